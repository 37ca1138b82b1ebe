//! Split phase: a reduction is started, other work is done, and it is finished later.

use super::{Posted, RoundError, Table, bits, monotonic_ns};
use crate::call::Kind;
use crate::layout::MAX_SLOTS;
use crate::park;
use crate::sync::{Ordering, weakened};
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The slots of a finished reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduced {
    slots: [i64; MAX_SLOTS],
    width: usize,
}

impl Reduced {
    fn of(slots: &[i64]) -> Self {
        let mut reduced = Self {
            slots: [0; MAX_SLOTS],
            width: slots.len(),
        };
        reduced.slots[..slots.len()].copy_from_slice(slots);
        reduced
    }
}

impl Deref for Reduced {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.slots[..self.width]
    }
}

/// A reduction that has been started: a value, to be handed to [`Table::finish`].
///
/// Dropping it withdraws nothing: the row is published, and the round settles with those that follow.
#[derive(Debug)]
#[must_use = "a started reduction has no result before it is finished"]
pub struct Started {
    round: u64,
    result: Arc<OnceLock<Reduced>>,
}

impl Started {
    /// Its round.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }
}

/// The rounds of a rank that were started and are not settled, oldest first.
#[derive(Debug, Default)]
pub(super) struct Flight(VecDeque<Flying>);

#[derive(Debug)]
struct Flying {
    posted: Posted,
    own: Reduced,
    /// Shared with the handle, which may be gone.
    result: Arc<OnceLock<Reduced>>,
}

impl Flight {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// What is left of a deadline.
struct Budget {
    timeout: Duration,
    since: u64,
}

impl Budget {
    fn of(timeout: Duration) -> Self {
        Self {
            timeout,
            since: monotonic_ns(),
        }
    }

    fn left(&self) -> Duration {
        let spent = Duration::from_nanos(monotonic_ns().saturating_sub(self.since));
        self.timeout.saturating_sub(spent)
    }
}

impl Table {
    /// Starts a reduction of up to eight slots over all ranks. It matches a blocking call of the peers, and theirs
    /// this.
    ///
    /// As many rounds as the table has in flight may be started and not finished. One more first settles the oldest,
    /// whose result its handle keeps: so this may block, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Table::all_reduce`]; the failure may be that of an older round in flight.
    pub fn start(
        &mut self,
        kind: Kind,
        label: &str,
        slots: &[i64],
        timeout: Duration,
    ) -> Result<Started, RoundError> {
        if slots.len() > MAX_SLOTS {
            return Err(RoundError::TooWide(slots.len()));
        }
        // RULE [O8] Publishing a round settles the one as far back as rounds may be in flight: its peers are done with the
        // buffer that comes next.
        if self.flight.len() >= self.geometry().depth() && !weakened("O8") {
            self.land(timeout)?;
        }
        let posted = self.post(kind, label, slots)?;
        if self.seat.storage.control().waiters.load(Ordering::Relaxed) != 0 && !weakened("P1") {
            self.wake_if_last(posted.round);
        }
        let result = Arc::new(OnceLock::new());
        self.flight.0.push_back(Flying {
            posted,
            own: Reduced::of(slots),
            result: Arc::clone(&result),
        });
        Ok(Started {
            round: posted.round,
            result,
        })
    }

    /// Wakes the sleepers if every row of `round` is there.
    ///
    /// RULE [P1] Who starts a round may look at it much later: so it looks for the sleepers' sake at once, behind F1, as a
    /// blocking call does.
    #[cold]
    fn wake_if_last(&self, round: u64) {
        let there = self.row_watch(self.seat.storage.rows(round), round);
        if bits(self.others()).all(|peer| there(peer).is_some()) {
            park::wake_fenced(&self.seat.storage);
        }
    }

    /// Waits for a started reduction, at most for `timeout`; those started before it are settled first.
    ///
    /// # Errors
    ///
    /// As [`Table::all_reduce`]; the failure may be that of an older round in flight.
    pub fn finish(&mut self, started: &Started, timeout: Duration) -> Result<Reduced, RoundError> {
        let budget = Budget::of(timeout);
        loop {
            if let Some(reduced) = started.result.get() {
                return Ok(*reduced);
            }
            let ours = |flying: &Flying| Arc::ptr_eq(&flying.result, &started.result);
            if !self.flight.0.iter().any(ours) {
                return Err(self
                    .failure
                    .clone()
                    .map_or(RoundError::NotStarted, RoundError::Poisoned));
            }
            self.land(budget.left())?;
        }
    }

    /// A blocking reduction behind others that are in flight.
    #[cold]
    pub(super) fn reduce_behind(
        &mut self,
        kind: Kind,
        label: &str,
        slots: &mut [i64],
        timeout: Duration,
    ) -> Result<(), RoundError> {
        let budget = Budget::of(timeout);
        let started = self.start(kind, label, slots, timeout)?;
        let reduced = self.finish(&started, budget.left())?;
        slots.copy_from_slice(&reduced);
        Ok(())
    }

    /// Settles all rounds in flight; returns what is left of `timeout`.
    #[inline(always)]
    pub(super) fn land_all(&mut self, timeout: Duration) -> Result<Duration, RoundError> {
        if self.flight.is_empty() {
            return Ok(timeout);
        }
        let budget = Budget::of(timeout);
        while !self.flight.is_empty() {
            self.land(budget.left())?;
        }
        Ok(budget.left())
    }

    /// Settles the oldest round in flight and keeps its result. Rounds settle in order: giving up is always about the
    /// oldest, so that a failed round has no completed one behind it.
    #[cold]
    fn land(&mut self, timeout: Duration) -> Result<(), RoundError> {
        self.owned()?;
        if self.closed {
            return Err(RoundError::Closed);
        }
        // RULE [O7] The oldest first.
        let next = if weakened("O7") {
            self.flight.0.pop_back()
        } else {
            self.flight.0.pop_front()
        };
        let Some(Flying {
            posted,
            own,
            result,
        }) = next
        else {
            return Ok(());
        };
        let mut total = own;
        let settled = self.gather(posted, &own, &mut total.slots[..own.width], timeout);
        if settled.is_ok() {
            // Set here alone, once for each round.
            let _ = result.set(total);
        } else {
            self.flight.0.clear();
        }
        self.settle(posted.round, settled)
    }
}
