//! What a collective does: the operation and the call that names it.

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
}

impl Op {
    /// Folds one contribution into an accumulated slot.
    #[inline]
    #[must_use]
    pub fn fold(self, accumulated: i64, contribution: i64) -> i64 {
        match self {
            Self::Min => accumulated.min(contribution),
            Self::Max => accumulated.max(contribution),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Min => "min",
            Self::Max => "max",
        })
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
