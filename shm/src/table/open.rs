//! A round that is announced and whose data is on its way.

use super::{RoundError, Table};
use crate::call::Announcement;
use crate::layout::MAX_RANKS;
use crate::origin::Reason;
use crate::park::Awaited;
use crate::seat::contradiction;
use std::time::Duration;

/// A round that all ranks have announced and that completes when all hold their data.
///
/// Ends with [`Open::commit`] or [`Open::fail`]. Dropped before, it fails on all ranks: they would wait for this one.
/// A forked child's copy is nothing: its calls are [`RoundError::Forked`], and its drop touches nothing.
#[derive(Debug)]
pub struct Open<'a> {
    table: &'a mut Table,
    round: u64,
    over: bool,
}

impl<'a> Open<'a> {
    pub(super) fn new(table: &'a mut Table, round: u64) -> Self {
        Self {
            table,
            round,
            over: false,
        }
    }

    /// Its round.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// What `rank` announced.
    #[must_use]
    pub fn announced(&self, rank: usize) -> Announcement {
        self.table.announced(rank)
    }

    /// Whether the round can still complete. Looks at the outcome word and at every peer; does not block.
    ///
    /// # Errors
    ///
    /// The failure of the round, if somebody gave up on it, died or left.
    pub fn watch(&mut self) -> Result<(), RoundError> {
        let (table, round) = (&mut *self.table, self.round);
        table.owned()?;
        let result = table.look_after(round, &|peer| {
            table.seat.storage.member(peer).has_finished(round)
        });
        self.over |= result.is_err();
        result.map_err(|failure| self.table.poison(failure))
    }

    /// Says that this rank holds all data of the round, and waits until all ranks do: only then has it completed.
    ///
    /// # Errors
    ///
    /// As [`Table::all_reduce`].
    pub fn commit(mut self, timeout: Duration) -> Result<(), RoundError> {
        self.over = true;
        let (table, round) = (&mut *self.table, self.round);
        table.owned()?;
        let storage = &table.seat.storage;
        storage.member(table.seat.me).finish(round);
        let watch = |peer: usize| storage.member(peer).has_finished(round).then_some(());
        let all = table.wait_for_all(round, table.others(), false, timeout, watch, |_, ()| true);
        let settled = all.and_then(|()| {
            table.seen_all(storage.control(), Awaited::Data(round));
            table.agree(storage.control(), round)
        });
        table.settle(round, settled)
    }

    /// Gives up on the round because its data cannot arrive.
    pub fn fail(mut self, why: Trouble<'_>) -> RoundError {
        self.give_up(why)
    }

    fn give_up(&mut self, why: Trouble<'_>) -> RoundError {
        self.over = true;
        let (table, round) = (&mut *self.table, self.round);
        if let Err(forked) = table.owned() {
            return forked;
        }
        let reason = match why {
            Trouble::Died { rank } => Reason::Died { rank },
            Trouble::Closed { rank } => Reason::Closed { rank },
            Trouble::Timeout { ranks, waited } => Reason::Timeout {
                ranks: ranks
                    .iter()
                    .filter(|rank| **rank < MAX_RANKS)
                    .fold(0, |bits, rank| bits | 1 << rank),
                waited,
            },
            Trouble::Other(text) => Reason::Aborted { text, origin: None },
        };
        match table.seat.surrender(round, &reason) {
            Err(failure) => table.poison(failure),
            // This rank has not committed, so the round cannot have completed.
            Ok(()) => table.poison(contradiction(round, table.seat.me)),
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.give_up(Trouble::Other(if std::thread::panicking() {
                "a thread of this rank panicked"
            } else {
                "an announced round was dropped"
            }));
        }
    }
}

/// Why the data of an announced round cannot arrive. Ranks are those of the table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Trouble<'a> {
    /// A rank died.
    Died {
        /// The rank.
        rank: usize,
    },
    /// A rank has left.
    Closed {
        /// The rank.
        rank: usize,
    },
    /// The deadline passed.
    Timeout {
        /// Whose data is missing.
        ranks: &'a [usize],
        /// How long this rank has waited.
        waited: Duration,
    },
    /// Something else, in words.
    Other(&'a str),
}
