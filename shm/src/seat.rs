//! What a rank's own threads share: the table, and the right to speak for the rank.

use crate::layout::Row;
use crate::origin::{self, Cause, Failure, Reason};
use crate::outcome::{State, Word, give_up};
use crate::process::Process;
use crate::storage::Storage;
use crate::sync::{AtomicU64, Mutex, Ordering, full_fence, weakened};
use std::cmp::Ordering as Cmp;
use std::sync::Arc;

/// What a rank's own threads share: the table, and the right to speak for the rank.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) storage: Arc<Storage>,
    pub(crate) me: usize,
    /// The oldest round this rank has not settled. Process memory: peers have no use for it.
    pub(crate) unsettled: AtomicU64,
    /// The process that sat down here. A forked child touches nothing.
    pub(crate) owner: Process,
    /// Held while this rank's origin record is written and proposed, so that two of its threads cannot mix theirs.
    speaking: Mutex<()>,
}

impl Seat {
    /// The seat of rank `me`, which has settled every round before `next`.
    pub(crate) fn new(storage: Arc<Storage>, me: usize, next: u64) -> Self {
        Self {
            storage,
            me,
            unsettled: AtomicU64::new(next),
            owner: Process::current(),
            speaking: Mutex::new(()),
        }
    }

    /// Whether this rank has settled `round`: proof that it completed, whatever its buffers hold by now.
    fn has_settled(&self, round: u64) -> bool {
        Word::new(round, State::Undecided).about(self.unsettled.load(Ordering::Relaxed))
            == Cmp::Less
    }

    pub(crate) fn failure(&self, word: Word, near: u64) -> Failure {
        match word.state() {
            State::Failed { by } => origin::read(&self.storage, by, word.round_near(near)),
            State::Undecided | State::Complete => contradiction(near, self.me),
        }
    }

    /// Gives up on `round`. Returns what holds on every rank: that it completed all the same, or why it failed.
    #[cold]
    pub(crate) fn surrender(&self, round: u64, reason: &Reason<'_>) -> Result<(), Failure> {
        let _speaking = self.speaking.lock();
        let complete = || {
            is_complete(&self.storage, self.me, round) || {
                // ORDERING [F5] SeqCst fence between the look at rows and `unsettled`: pairs with R1, R5 and F2 of peers. A
                // row or `done` of a later round was written after this rank had settled the present one, and said so.
                full_fence("F5");
                // RULE [O6] What this rank has settled has completed, whatever the buffers hold by now.
                !weakened("O6") && self.has_settled(round)
            }
        };
        give_up(&self.storage, self.me, round, complete, || {
            reason.record(&self.storage, self.me, round);
        });
        self.outcome(round, self.storage.control().word())
    }

    /// The outcome of `round`, whose contributions are all there or which somebody gave up on.
    #[cold]
    pub(crate) fn outcome(&self, round: u64, word: Word) -> Result<(), Failure> {
        match word.verdict(round) {
            State::Complete => Ok(()),
            State::Failed { .. } => Err(self.failure(word, round)),
            State::Undecided => match self.storage.control().decide(round, State::Complete) {
                State::Complete => Ok(()),
                _ => Err(self.failure(self.storage.control().word(), round)),
            },
        }
    }
}

/// Whether every contribution to `round` is there: the one predicate that decides an outcome. Monotone, made of shared
/// words only, and the same on all ranks.
fn is_complete(storage: &Storage, me: usize, round: u64) -> bool {
    let rows = storage.rows(round);
    let mine = rows[me].stamp();
    if !mine.is_round(round) {
        // Either not yet published, or the buffer has a later tenant: then this rank settled `round` long ago.
        return !mine.is_round(round.wrapping_sub(storage.geometry().buffers() as u64));
    }
    let described = |row: &Row| !mine.is_wide() || row.description() == rows[me].description();
    rows.iter()
        .all(|row| row.stamp().same_call(mine) && described(row))
        && (!mine.is_wide()
            || !data_travels(rows)
            || (0..rows.len()).all(|rank| storage.member(rank).has_finished(round)))
}

/// Whether any rank sends data by another way; known once all rows of a described call are there.
pub(crate) fn data_travels(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.travelling() != 0)
}

/// Shared memory says two things at once: only a writer outside of the protocol can bring that about.
#[cold]
pub(crate) fn contradiction(round: u64, me: usize) -> Failure {
    let reason = "the table contradicts itself: something else writes to it".to_owned();
    Failure {
        round,
        by: me,
        cause: Cause::Aborted {
            reason,
            origin: None,
        },
    }
}

/// Aborts a group from any thread of the process.
#[derive(Clone, Debug)]
pub struct Aborter {
    pub(crate) seat: Arc<Seat>,
}

impl Aborter {
    /// Fails the round that this rank is in, or its next one, on all ranks, and with it every later one.
    ///
    /// Rounds that this rank has settled stay settled everywhere. Does not block. A group that has failed already keeps
    /// its first reason. Of `reason`, [`REASON_BYTES`](crate::REASON_BYTES) bytes are kept.
    pub fn abort(&self, reason: &str) {
        self.abort_for(None, reason);
    }

    /// As [`Aborter::abort`], on behalf of somebody else: `origin` is returned in [`Cause::Aborted`](crate::Cause).
    pub fn abort_for(&self, origin: Option<u32>, reason: &str) {
        if !self.seat.owner.is_here() {
            return;
        }
        let mut round = self.seat.unsettled.load(Ordering::Relaxed);
        // The owner may settle the round meanwhile; then the next one is tried. The owner cannot win often: it needs all
        // peers for each round, and this thread nobody.
        for _ in 0..10_000 {
            if self
                .seat
                .surrender(
                    round,
                    &Reason::Aborted {
                        text: reason,
                        origin,
                    },
                )
                .is_err()
            {
                return;
            }
            let unsettled = self.seat.unsettled.load(Ordering::Relaxed);
            round = round.wrapping_add(1);
            if Word::new(round, State::Undecided).about(unsettled) == Cmp::Less {
                round = unsettled;
            }
        }
    }
}
