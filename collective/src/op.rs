//! What a collective does: the operation and the call that names it.

use crate::error::ErrorKind;
use rankpact_shm::{Kind, LABEL_BYTES, LabelError};
use std::fmt;
use std::time::Duration;

/// How the contributions of all ranks become one value, slot by slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// The smallest contribution.
    Min,
    /// The largest contribution.
    Max,
    /// The sum of all contributions; one that does not fit 64 signed bits is an error on every rank, and fails nothing.
    Sum,
    /// The bits that any rank has set.
    Or,
    /// The bits that all ranks have set.
    And,
}

impl Op {
    /// Folds one contribution into a total that cannot overflow.
    #[inline]
    #[must_use]
    pub fn fold(self, total: i128, contribution: i64) -> i128 {
        self.join(total, i128::from(contribution))
    }

    /// One total of two, each of its own contributions.
    #[inline]
    pub(crate) fn join(self, one: i128, other: i128) -> i128 {
        match self {
            Self::Min => one.min(other),
            Self::Max => one.max(other),
            Self::Sum => one + other,
            Self::Or => one | other,
            Self::And => one & other,
        }
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Min => Kind::Min,
            Self::Max => Kind::Max,
            Self::Sum => Kind::Sum,
            Self::Or => Kind::Or,
            Self::And => Kind::And,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

/// The operation of a reduction, or one for each of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ops<'a> {
    /// The same for all slots.
    All(Op),
    /// Counts take their minimum, flags are or-ed, sums are summed, in one round.
    Each(&'a [Op]),
}

impl Ops<'_> {
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::All(op) => op.kind(),
            Self::Each(_) => Kind::Each,
        }
    }

    /// Whether a total may not fit 64 bits: that of a sum, and of operations that may be one.
    pub(crate) fn may_overflow(self) -> bool {
        matches!(self, Self::All(Op::Sum) | Self::Each(_))
    }

    #[inline]
    pub(crate) fn of(self, slot: usize) -> Op {
        match self {
            Self::All(op) => op,
            Self::Each(ops) => ops[slot],
        }
    }

    /// The operations of each slot as they cross a wire; nothing where all are the same.
    pub(crate) fn codes(self) -> Vec<u8> {
        match self {
            Self::All(_) => Vec::new(),
            Self::Each(ops) => ops.iter().map(|op| op.kind() as u8).collect(),
        }
    }

    /// Whether there is an operation for each of `slots`.
    pub(crate) fn fit(self, slots: usize) -> bool {
        match self {
            Self::All(_) => true,
            Self::Each(ops) => ops.len() == slots,
        }
    }
}

/// As [`Ops`], for a call that outlives its caller's list.
#[derive(Clone, Debug)]
pub(crate) enum OwnOps {
    All(Op),
    Each(Vec<Op>),
}

impl OwnOps {
    pub(crate) fn borrow(&self) -> Ops<'_> {
        match self {
            Self::All(op) => Ops::All(*op),
            Self::Each(ops) => Ops::Each(ops),
        }
    }
}

impl From<Ops<'_>> for OwnOps {
    fn from(ops: Ops<'_>) -> Self {
        match ops {
            Ops::All(op) => Self::All(op),
            Ops::Each(ops) => Self::Each(ops.to_vec()),
        }
    }
}

impl From<Op> for Ops<'_> {
    fn from(op: Op) -> Self {
        Self::All(op)
    }
}

impl<'a> From<&'a [Op]> for Ops<'a> {
    fn from(ops: &'a [Op]) -> Self {
        Self::Each(ops)
    }
}

impl<'a, const N: usize> From<&'a [Op; N]> for Ops<'a> {
    fn from(ops: &'a [Op; N]) -> Self {
        Self::Each(ops)
    }
}

impl<'a> From<&'a Vec<Op>> for Ops<'a> {
    fn from(ops: &'a Vec<Op>) -> Self {
        Self::Each(ops)
    }
}

/// The call site of a collective: its label and, where it differs from the group's, its deadline.
///
/// A plain string is a call with the group's own deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Short name of the call site, shown in every error; at most [`rankpact_shm::LABEL_BYTES`] bytes, not empty.
    pub label: &'a str,
    /// How long this call may take; `None` is the group's deadline.
    pub timeout: Option<Duration>,
}

/// Refuses a label that no call can have.
pub(crate) fn check_label(label: &str) -> Result<(), ErrorKind> {
    if label.is_empty() || label.len() > LABEL_BYTES {
        return Err(ErrorKind::Usage(LabelError::Length.to_string()));
    }
    Ok(())
}

impl<'a> Call<'a> {
    /// A call with its own deadline.
    #[must_use]
    pub fn within(label: &'a str, timeout: Duration) -> Self {
        Self {
            label,
            timeout: Some(timeout),
        }
    }
}

impl<'a> From<&'a str> for Call<'a> {
    fn from(label: &'a str) -> Self {
        Self {
            label,
            timeout: None,
        }
    }
}
