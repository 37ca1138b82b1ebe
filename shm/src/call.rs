//! What a rank calls in a round, and the stamp that says so in one word.

use crate::layout::MAX_SLOTS;
use crate::place::Place;
use std::fmt;

/// The kind of a collective call.
//
// A whole word, so that what it is part of has no padding: that is copied in overlapping pieces, and a load of such a piece
// stalls until the row just published has left the store buffer, half of a round's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u64)]
pub enum Kind {
    /// Wait for all.
    Barrier = 1,
    /// The smallest value of each slot.
    Min = 2,
    /// The largest value of each slot.
    Max = 3,
    /// Bytes of one rank to all.
    Broadcast = 4,
    /// The sum of each slot.
    Sum = 5,
    /// The bits that any rank has set.
    Or = 6,
    /// The bits that all ranks have set.
    And = 7,
    /// An operation of its own for each slot.
    Each = 8,
    /// The slots of every rank to all.
    Gather = 9,
    /// Bytes of every rank to all.
    GatherBytes = 10,
}

impl Kind {
    /// The kind with this number, where there is one.
    #[must_use]
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u64 == code)
    }

    const ALL: [Self; 10] = [
        Self::Barrier,
        Self::Min,
        Self::Max,
        Self::Broadcast,
        Self::Sum,
        Self::Or,
        Self::And,
        Self::Each,
        Self::Gather,
        Self::GatherBytes,
    ];

    /// Folds one contribution into an accumulated slot, where that can be done row by row.
    #[inline(always)]
    pub(crate) fn fold(self, accumulated: i64, contribution: i64) -> i64 {
        match self {
            Self::Min => accumulated.min(contribution),
            Self::Max => accumulated.max(contribution),
            Self::Or => accumulated | contribution,
            Self::And => accumulated & contribution,
            _ => accumulated,
        }
    }

    /// Whether it is an operation on slots, or a barrier of none.
    #[inline(always)]
    pub(crate) fn reduces(self) -> bool {
        matches!(
            self,
            Self::Barrier | Self::Min | Self::Max | Self::Sum | Self::Or | Self::And
        )
    }

    /// Whether it is a reduction whose rows can be folded as they come. Else all rows are read when all are there: a sum is
    /// judged by its total alone, and must not count a row twice.
    #[inline(always)]
    pub(crate) fn folds_row_by_row(self) -> bool {
        self.reduces() && self != Self::Sum
    }

    /// Folds one contribution into a total that cannot overflow: of 64 ranks, 70 bits.
    pub(crate) fn fold_wide(self, accumulated: i128, contribution: i64) -> i128 {
        let contribution = i128::from(contribution);
        match self {
            Self::Min => accumulated.min(contribution),
            Self::Max => accumulated.max(contribution),
            Self::Or => accumulated | contribution,
            Self::And => accumulated & contribution,
            Self::Sum => accumulated + contribution,
            _ => accumulated,
        }
    }
}

/// What is done with the slots of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction<'a> {
    /// The same with all: one of min, max, sum, or, and.
    All(Kind),
    /// With each its own.
    Each(&'a [Kind]),
}

impl Reduction<'_> {
    /// What is done with `slot`; nothing with one that does not exist.
    pub(crate) fn of(self, slot: usize) -> Kind {
        match self {
            Self::All(kind) => kind,
            Self::Each(kinds) => kinds.get(slot).copied().unwrap_or(Kind::Barrier),
        }
    }
}

impl From<Kind> for Reduction<'_> {
    fn from(kind: Kind) -> Self {
        Self::All(kind)
    }
}

impl<'a> From<&'a [Kind]> for Reduction<'a> {
    fn from(kinds: &'a [Kind]) -> Self {
        Self::Each(kinds)
    }
}

impl<'a, const N: usize> From<&'a [Kind; N]> for Reduction<'a> {
    fn from(kinds: &'a [Kind; N]) -> Self {
        Self::Each(kinds)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Barrier => "barrier",
            Self::Min => "min",
            Self::Max => "max",
            Self::Broadcast => "broadcast",
            Self::Sum => "sum",
            Self::Or => "or",
            Self::And => "and",
            Self::Each => "each",
            Self::Gather => "gather",
            Self::GatherBytes => "gather bytes",
        })
    }
}

/// How the words of a row are to be read: a rank's own affair, not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One line: up to seven slots, or eight of 56 bits.
    Short,
    /// Two lines: eight full slots.
    Full,
}

const KIND_SHIFT: u32 = 32;
const WIDTH_SHIFT: u32 = 38;
const FORM_SHIFT: u32 = 42;
const LABEL_SHIFT: u32 = 44;
const PLACE_SHIFT: u32 = 60;
const KIND_MASK: u64 = (1 << 6) - 1;
const WIDTH_MASK: u64 = (1 << 4) - 1;
const LABEL_MASK: u64 = (1 << 16) - 1;
const WIDE: u64 = 15;

/// The word that publishes a row. The place is a hint, and not compared; nor is the form.
///
/// ```text
///  63    60 59        44 43  42 41   38 37   32 31                  0
/// +--------+------------+------+-------+-------+---------------------+
/// | place  |  label id  | form | width | kind  | low bits of round   |
/// +--------+------------+------+-------+-------+---------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(pub(crate) u64);

impl Stamp {
    /// The bits that all ranks of a round share.
    const COMPARED: u64 = !(1 << FORM_SHIFT | u64::MAX << PLACE_SHIFT);

    pub(crate) fn new(round: u64, kind: Kind, width: Width, form: Form, label: u16) -> Self {
        Self(
            u64::from(Self::low(round))
                | (kind as u64) << KIND_SHIFT
                | width.code() << WIDTH_SHIFT
                | (form as u64) << FORM_SHIFT
                | u64::from(label) << LABEL_SHIFT,
        )
    }

    /// The same, of a rank that is there.
    #[inline(always)]
    pub(crate) fn at(self, place: Place) -> Self {
        Self(self.0 | place.0 << PLACE_SHIFT)
    }

    pub(crate) fn place(self) -> Place {
        Place(self.0 >> PLACE_SHIFT)
    }

    /// The stamp of a buffer whose tenant was `round`, before anybody has called.
    pub(crate) fn vacant(round: u64) -> Self {
        Self(u64::from(Self::low(round)))
    }

    /// The bits of a round number that a stamp carries.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits are what is wanted"
    )]
    pub(crate) const fn low(round: u64) -> u32 {
        round as u32
    }

    #[inline(always)]
    pub(crate) fn same_call(self, other: Self) -> bool {
        (self.0 ^ other.0) & Self::COMPARED == 0
    }

    #[inline(always)]
    pub(crate) fn is_round(self, round: u64) -> bool {
        Self::low(self.0) == Self::low(round)
    }

    #[inline(always)]
    pub(crate) fn form(self) -> Form {
        if self.0 >> FORM_SHIFT & 1 == 0 {
            Form::Short
        } else {
            Form::Full
        }
    }

    pub(crate) fn with_form(self, form: Form) -> Self {
        Self(self.0 & Self::COMPARED | (form as u64) << FORM_SHIFT)
    }

    pub(crate) fn kind(self) -> Option<Kind> {
        Kind::from_code(self.0 >> KIND_SHIFT & KIND_MASK)
    }

    pub(crate) fn is_wide(self) -> bool {
        self.width_code() == WIDE
    }

    pub(crate) fn width_code(self) -> u64 {
        self.0 >> WIDTH_SHIFT & WIDTH_MASK
    }

    pub(crate) fn label(self) -> u16 {
        u16::try_from(self.0 >> LABEL_SHIFT & LABEL_MASK).unwrap_or(u16::MAX)
    }
}

/// How wide a contribution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// The slots themselves are in the row.
    Slots(usize),
    /// The row describes the call.
    Wide,
}

impl Width {
    fn code(self) -> u64 {
        match self {
            Self::Slots(n) => {
                debug_assert!(n <= MAX_SLOTS, "checked where the caller's row comes in");
                n as u64
            }
            Self::Wide => WIDE,
        }
    }
}

/// Words of an [`Announcement`] for the caller's own use: the first five are in the first line of the row.
pub const FREE_WORDS: usize = 10;

/// As many of them as one line takes.
const FREE_IN_LINE: usize = 5;

/// What a rank says of a described call besides its description; not compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// Bytes that this rank sends by another way.
    pub travelling: u64,
    /// For the caller's use: the size of a broadcast and its bytes, if few.
    pub free: [u64; FREE_WORDS],
}

impl Announcement {
    /// What is in the first line of the row, the description first, and what in the second.
    pub(crate) fn words(self, description: i64) -> ([u64; 7], [u64; FREE_WORDS - FREE_IN_LINE]) {
        let mut line = [0; 7];
        line[0] = description.cast_unsigned();
        line[1] = self.travelling;
        line[2..].copy_from_slice(&self.free[..FREE_IN_LINE]);
        (line, std::array::from_fn(|i| self.free[FREE_IN_LINE + i]))
    }

    pub(crate) fn from_words(line: [u64; 7], more: [u64; FREE_WORDS - FREE_IN_LINE]) -> Self {
        let mut free = [0; FREE_WORDS];
        free[..FREE_IN_LINE].copy_from_slice(&line[2..]);
        free[FREE_IN_LINE..].copy_from_slice(&more);
        Self {
            travelling: line[1],
            free,
        }
    }
}

/// One rank's call as an error shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallView {
    /// Whose call, within the group.
    pub rank: usize,
    /// Its kind; `None` for a number that this version does not know.
    pub kind: Option<Kind>,
    /// Its shape.
    pub shape: Shape,
    /// Its label; empty where it cannot be told.
    pub label: String,
}

/// The shape of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// So many slots in the row, with an operation of its own for each.
    Each(Vec<Kind>),
    /// So many slots in the row.
    Slots(u64),
    /// A described call: slots of a reduction, root of a broadcast.
    Described(u64),
}

impl CallView {
    /// The shape in words: `8 slots`, `root 0`.
    #[must_use]
    pub fn shape_text(&self) -> String {
        match (&self.shape, self.kind) {
            (Shape::Each(kinds), _) => {
                let names: Vec<_> = kinds.iter().map(Kind::to_string).collect();
                names.join(",")
            }
            (Shape::Described(root), Some(Kind::Broadcast)) => format!("root {root}"),
            (Shape::Described(_), Some(Kind::GatherBytes)) => "bytes".to_owned(),
            // Below the crc32 of the operations the number of slots.
            (Shape::Described(word), Some(Kind::Each)) => {
                format!(
                    "{} slots, operations {:08x}",
                    word & u64::from(u32::MAX),
                    word >> 32
                )
            }
            (Shape::Slots(1) | Shape::Described(1), _) => "1 slot".to_owned(),
            (Shape::Slots(n) | Shape::Described(n), _) => format!("{n} slots"),
        }
    }
}

impl fmt::Display for CallView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ", self.rank)?;
        match self.kind {
            Some(kind) => write!(f, "{kind}")?,
            None => f.write_str("unknown call")?,
        }
        write!(f, " {} `{}`", self.shape_text(), self.label)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_call() -> impl Strategy<Value = (u64, u64, Width, Form, u16)> {
        (
            any::<u64>(),
            1_u64..=10,
            prop_oneof![(0_usize..=8).prop_map(Width::Slots), Just(Width::Wide)],
            prop_oneof![Just(Form::Short), Just(Form::Full)],
            any::<u16>(),
        )
    }

    proptest! {
        #[test]
        fn a_stamp_returns_what_it_was_made_of((round, kind, width, form, label) in any_call(), place in 0_u64..16) {
            let kind = Kind::from_code(kind).expect("1 to 10 are kinds");
            let elsewhere = Stamp::new(round, kind, width, form, label);
            let stamp = elsewhere.at(Place(place));
            prop_assert!(stamp.same_call(elsewhere));
            prop_assert_eq!(stamp.place(), Place(place));
            prop_assert!(stamp.is_round(round));
            prop_assert!(!stamp.is_round(round.wrapping_add(1)));
            prop_assert_eq!(stamp.kind(), Some(kind));
            prop_assert_eq!(stamp.width_code(), width.code());
            prop_assert_eq!(stamp.is_wide(), width == Width::Wide);
            prop_assert_eq!(stamp.form(), form);
            prop_assert_eq!(stamp.label(), label);
        }

        #[test]
        fn stamps_are_the_same_call_exactly_when_all_but_form_and_place_agrees(a in any_call(), b in any_call(), places in [0_u64..16, 0..16]) {
            let make = |(round, kind, width, form, label): (u64, u64, Width, Form, u16)| {
                Stamp::new(round, Kind::from_code(kind).expect("1 to 10 are kinds"), width, form, label)
            };
            let equal = Stamp::low(a.0) == Stamp::low(b.0) && a.1 == b.1 && a.2 == b.2 && a.4 == b.4;
            let [here, there] = places.map(Place);
            prop_assert_eq!(make(a).at(here).same_call(make(b).at(there)), equal);
            let reformed = (a.0, a.1, a.2, Form::Full, a.4);
            prop_assert!(make(a).at(here).same_call(make(reformed).at(there)));
        }
    }
}
