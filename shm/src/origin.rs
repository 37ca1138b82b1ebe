//! Why a round failed: the record that the rank which gave up leaves for all others.

use crate::call::{CallView, Kind, Shape, Stamp};
use crate::label;
use crate::layout::{OriginCall, TEXT_WORDS};
use crate::storage::Storage;
use crate::sync::Ordering::Relaxed;
use std::fmt;
use std::time::Duration;

/// Why a round of a group failed; the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The first round that did not complete.
    pub round: u64,
    /// The rank that ended it, within the group.
    pub by: usize,
    /// Why.
    pub cause: Cause,
}

/// Why a round failed. Ranks are those of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The deadline passed.
    Timeout {
        /// How long the rank that gave up had waited.
        after: Duration,
        /// Who was missing.
        missing: Vec<Missing>,
    },
    /// A rank died.
    Died(Missing),
    /// A rank left in good order.
    Closed(Missing),
    /// Ranks made different calls.
    Mismatch {
        /// The call of the rank that saw it.
        one: Box<CallView>,
        /// The other call.
        other: Box<CallView>,
    },
    /// A rank aborted the group.
    Aborted {
        /// Its words.
        reason: String,
        /// On whose behalf, in the caller's numbering, if not on its own.
        origin: Option<u32>,
    },
}

/// A rank that was not there, and what was seen of it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The rank, within the group.
    pub rank: usize,
    /// The last round it took part in; 0 for none.
    pub last_round: u64,
    /// The label of that round; empty for none.
    pub last_label: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} (last round {} `{}`)",
            self.rank, self.last_round, self.last_label
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {}, ended by rank {}: ", self.round, self.by)?;
        match &self.cause {
            Cause::Timeout { after, missing } => {
                write!(f, "no answer for {:.1} s from", after.as_secs_f64())?;
                missing
                    .iter()
                    .try_for_each(|missing| write!(f, " {missing}"))
            }
            Cause::Died(missing) => write!(f, "{missing} died"),
            Cause::Closed(missing) => write!(f, "{missing} has left"),
            Cause::Mismatch { one, other } => write!(f, "different calls: {one}; {other}"),
            Cause::Aborted { reason, .. } => write!(f, "aborted: {reason}"),
        }
    }
}

impl std::error::Error for Failure {}

/// What a rank that gives up knows; written as words, read back as a [`Cause`].
#[derive(Clone, Debug)]
pub(crate) enum Reason<'a> {
    Timeout { ranks: u64, waited: Duration },
    Died { rank: usize },
    Closed { rank: usize },
    Mismatch { rank: usize },
    Aborted { text: &'a str, origin: Option<u32> },
}

const TIMEOUT: u64 = 1;
const DIED: u64 = 2;
const CLOSED: u64 = 3;
const MISMATCH: u64 = 4;
const ABORTED: u64 = 5;

impl Reason<'_> {
    /// Writes the record of rank `me`. Nobody reads it before the outcome word names `me` as the origin.
    pub(crate) fn record(&self, storage: &Storage, me: usize, round: u64) {
        let origin = storage.origin(me);
        let (cause, ranks) = match self {
            Self::Timeout { ranks, .. } => (TIMEOUT, *ranks),
            Self::Died { rank } => (DIED, bit(*rank)),
            Self::Closed { rank } => (CLOSED, bit(*rank)),
            Self::Mismatch { rank } => (MISMATCH, bit(*rank)),
            Self::Aborted { origin, .. } => {
                (ABORTED, origin.map_or(0, |origin| u64::from(origin) + 1))
            }
        };
        origin.cause.store(cause, Relaxed);
        origin.ranks.store(ranks, Relaxed);
        match self {
            Self::Timeout { waited, .. } => {
                origin.waited_ns.store(
                    u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX),
                    Relaxed,
                );
            }
            Self::Mismatch { rank } => {
                for (call, rank) in origin.calls.iter().zip([me, *rank]) {
                    call.copy_from(storage, round, rank);
                }
            }
            Self::Aborted { text, .. } => {
                let mut bytes = text.as_bytes().chunks(8);
                for word in &origin.text {
                    let mut eight = [0; 8];
                    let part = bytes.next().unwrap_or_default();
                    eight[..part.len()].copy_from_slice(part);
                    word.store(u64::from_le_bytes(eight), Relaxed);
                }
            }
            Self::Died { .. } | Self::Closed { .. } => {}
        }
    }
}

/// The bit of a rank; none for a number that no rank has.
fn bit(rank: usize) -> u64 {
    u32::try_from(rank)
        .ok()
        .and_then(|rank| 1_u64.checked_shl(rank))
        .unwrap_or(0)
}

impl OriginCall {
    /// Copies the call that `rank` has published for `round`: its row may be overwritten later, this record not.
    fn copy_from(&self, storage: &Storage, round: u64, rank: usize) {
        let row = &storage.rows(round)[rank];
        let stamp = row.stamp();
        let shape = if stamp.is_wide() {
            row.description().cast_unsigned()
        } else {
            stamp.width_code()
        };
        self.stamp.store(stamp.0, Relaxed);
        self.rank.store(rank as u64, Relaxed);
        self.shape.store(shape, Relaxed);
    }

    fn view(&self, storage: &Storage) -> CallView {
        let stamp = Stamp(self.stamp.load(Relaxed));
        let shape = self.shape.load(Relaxed);
        let (label, kinds) = label::text_and_kinds(storage, stamp.label());
        CallView {
            rank: usize::try_from(self.rank.load(Relaxed)).unwrap_or(usize::MAX),
            kind: stamp.kind(),
            shape: if stamp.is_wide() {
                Shape::Described(shape)
            } else if stamp.kind() == Some(Kind::Each) {
                Shape::Each(kinds)
            } else {
                Shape::Slots(shape)
            },
            label,
        }
    }
}

/// The failure that rank `by` recorded for `round`.
pub(crate) fn read(storage: &Storage, by: usize, round: u64) -> Failure {
    let by = by.min(storage.geometry().ranks() - 1);
    let origin = storage.origin(by);
    let ranks = origin.ranks.load(Relaxed);
    let missing = || -> Vec<Missing> {
        (0..storage.geometry().ranks())
            .filter(|rank| ranks >> rank & 1 == 1)
            .map(|rank| last_seen(storage, rank, round))
            .collect()
    };
    let first = || {
        let nobody = Missing {
            rank: by,
            last_round: 0,
            last_label: String::new(),
        };
        missing().into_iter().next().unwrap_or(nobody)
    };
    let cause = match origin.cause.load(Relaxed) {
        TIMEOUT => Cause::Timeout {
            after: Duration::from_nanos(origin.waited_ns.load(Relaxed)),
            missing: missing(),
        },
        DIED => Cause::Died(first()),
        CLOSED => Cause::Closed(first()),
        MISMATCH => {
            let [one, other] = &origin.calls;
            Cause::Mismatch {
                one: Box::new(one.view(storage)),
                other: Box::new(other.view(storage)),
            }
        }
        _ => Cause::Aborted {
            reason: text(&origin.text),
            origin: u32::try_from(ranks)
                .ok()
                .and_then(|origin| origin.checked_sub(1)),
        },
    };
    Failure { round, by, cause }
}

fn text(words: &[crate::sync::AtomicU64; TEXT_WORDS]) -> String {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word| word.load(Relaxed).to_le_bytes())
        .take_while(|b| *b != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last round before `failed` for which `rank` has published a row, with its label.
///
/// What the rank did after the failure is not of interest: it was missing then.
pub(crate) fn last_seen(storage: &Storage, rank: usize, failed: u64) -> Missing {
    let buffers = storage.geometry().buffers() as u64;
    let stamps = (1..=buffers).map(|back| failed.wrapping_sub(back));
    let published = stamps.map(|round| (round, storage.rows(round)[rank].stamp()));
    let last = published
        .into_iter()
        .find(|(round, stamp)| stamp.is_round(*round) && stamp.kind().is_some());
    match last {
        Some((round, stamp)) => Missing {
            rank,
            last_round: round,
            last_label: label::text(storage, stamp.label()),
        },
        None => Missing {
            rank,
            last_round: 0,
            last_label: String::new(),
        },
    }
}
