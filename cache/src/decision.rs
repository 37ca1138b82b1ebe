//! Agreed decisions, in the order in which a rank acts on them.

use std::fmt;

use crate::prefetch::Handle;
use crate::row::Counts;

/// One decision that every rank takes alike. Its text is stable, so ranks can compare a hash over all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// A tick consumes these counts.
    Drained(Counts),
    /// Storage holds this many pages of a prefetch.
    Hit {
        /// Whose.
        handle: Handle,
        /// Pages.
        pages: usize,
    },
    /// This many pages of a prefetch have landed.
    Landed {
        /// Whose.
        handle: Handle,
        /// Pages.
        pages: usize,
        /// Whether the transfer has ended.
        last: bool,
    },
    /// A request has spent its budget.
    Expired {
        /// Which.
        handle: Handle,
    },
    /// A prefetch left the live table.
    Retired {
        /// Whose.
        handle: Handle,
        /// How it ended.
        outcome: Outcome,
    },
}

/// How a prefetch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Its first pages are in the tree now.
    Inserted {
        /// Pages.
        pages: usize,
    },
    /// It never got a destination.
    Revoked,
    /// Its request was aborted.
    Aborted,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drained(counts) => {
                write!(f, "drained {} {}", counts.write, counts.load)?;
                if let Some(storage) = &counts.storage {
                    write!(
                        f,
                        " {} {} {} {}",
                        storage.hit, storage.ack, storage.backup, storage.release
                    )?;
                    storage
                        .extra
                        .iter()
                        .try_for_each(|extra| write!(f, " {extra}"))?;
                }
                Ok(())
            }
            Self::Hit { handle, pages } => write!(f, "hit {handle} {pages}"),
            Self::Landed {
                handle,
                pages,
                last,
            } => {
                write!(
                    f,
                    "{} {handle} {pages}",
                    if *last { "ended" } else { "landed" }
                )
            }
            Self::Expired { handle } => write!(f, "expired {handle}"),
            Self::Retired {
                handle,
                outcome: Outcome::Inserted { pages },
            } => write!(f, "inserted {handle} {pages}"),
            Self::Retired {
                handle,
                outcome: Outcome::Revoked,
            } => write!(f, "revoked {handle}"),
            Self::Retired {
                handle,
                outcome: Outcome::Aborted,
            } => write!(f, "aborted {handle}"),
        }
    }
}

/// Sees every decision on the scheduler thread; any closure over a decision is one.
pub trait Witness: Send {
    /// Called once for each decision, in order.
    fn decided(&mut self, decision: &Decision);
}

impl<F: FnMut(&Decision) + Send> Witness for F {
    fn decided(&mut self, decision: &Decision) {
        self(decision);
    }
}
