//! Split phase: a reduction is started, other work is done, and it is finished later.

use super::{Overflow, Posted, RoundError, Table, copied, monotonic_ns};
use crate::call::{Kind, Reduction};
use crate::layout::MAX_SLOTS;
use crate::park::{Awaited, Waits};
use crate::sync::{full_fence, weakened};
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
    result: Arc<OnceLock<Result<Reduced, Overflow>>>,
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
    /// The operation of each slot.
    each: [Kind; MAX_SLOTS],
    own: Reduced,
    /// Shared with the handle, which may be gone.
    result: Arc<OnceLock<Result<Reduced, Overflow>>>,
}

impl Flight {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline(always)]
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
    pub fn start<'a>(
        &mut self,
        reduction: impl Into<Reduction<'a>>,
        label: &str,
        slots: &[i64],
        timeout: Duration,
    ) -> Result<Started, RoundError> {
        // RULE [O8] Publishing a round settles the one as far back as rounds may be in flight: its peers are done with the
        // buffer that comes next.
        if self.is_full_flight() && !weakened("O8") {
            self.land(timeout)?;
        }
        let reduction = reduction.into();
        let posted = self.post(reduction, label, slots)?;
        self.wake_if_last(posted.round);
        let result = Arc::new(OnceLock::new());
        self.flight.0.push_back(Flying {
            posted,
            each: std::array::from_fn(|slot| reduction.of(slot)),
            own: Reduced {
                slots: copied(slots),
                width: slots.len(),
            },
            result: Arc::clone(&result),
        });
        Ok(Started {
            round: posted.round,
            result,
        })
    }

    /// Waits for a started reduction, at most for `timeout`; those started before it are settled first.
    ///
    /// # Errors
    ///
    /// As [`Table::all_reduce`]; the failure may be that of an older round in flight.
    pub fn finish(&mut self, started: &Started, timeout: Duration) -> Result<Reduced, RoundError> {
        let ours = |flying: &Flying| Arc::ptr_eq(&flying.result, &started.result);
        if self.flight.0.front().is_some_and(ours) {
            // No other round shares its deadline: no look at the clock.
            self.land(timeout)?;
        } else if self.flight.0.iter().any(ours) {
            let budget = Budget::of(timeout);
            while self.flight.0.iter().any(ours) {
                self.land(budget.left())?;
            }
        }
        match (started.result.get(), &self.failure) {
            (Some(reduced), _) => Ok((*reduced)?),
            (None, Some(failure)) => Err(RoundError::Poisoned(failure.clone())),
            (None, None) => Err(RoundError::NotStarted),
        }
    }

    /// Whether as many rounds are in flight as may be.
    pub(super) fn is_full_flight(&self) -> bool {
        self.flight.len() >= self.geometry().depth()
    }

    /// Wakes whoever sleeps for `round` if this rank was the last to come.
    ///
    /// RULE [P1] Who starts a round may look at it much later: so it looks for the sleepers' sake at once.
    fn wake_if_last(&self, round: u64) {
        let storage = &self.seat.storage;
        // ORDERING [F1] SeqCst fence between the stamp and the look at waiters and rows: pairs with P2, and with itself on
        // other ranks. A rank that sleeps either sees this row or is seen; of two that start, one sees the other's row.
        full_fence("F1");
        if !weakened("P1")
            && Waits::anybody_sleeps(storage.control(), round)
            && storage
                .rows(round)
                .iter()
                .all(|row| row.stamp().is_round(round))
        {
            self.waits.wake(storage.control(), Awaited::Rows(round));
        }
    }

    /// A blocking reduction behind others that are in flight.
    #[cold]
    pub(super) fn reduce_behind(
        &mut self,
        reduction: Reduction<'_>,
        label: &str,
        slots: &mut [i64],
        timeout: Duration,
    ) -> Result<(), RoundError> {
        let budget = Budget::of(timeout);
        let started = self.start(reduction, label, slots, timeout)?;
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
        let at = if weakened("O7") {
            self.flight.len().saturating_sub(1)
        } else {
            0
        };
        let Some(&Flying {
            posted, each, own, ..
        }) = self.flight.0.get(at)
        else {
            return Ok(());
        };
        let mut reduced = own;
        let totals = &mut reduced.slots[..own.width];
        let settled = self.gather_all(posted, Reduction::Each(&each), totals, timeout);
        // In flight until here: a panic in between, caught by somebody, leaves it to the next call.
        match (&settled, self.flight.0.remove(at)) {
            // Set here alone, once for each round.
            (Ok(total), Some(flying)) => drop(flying.result.set(total.map(|()| reduced))),
            _ => self.flight.0.clear(),
        }
        self.settle(posted.round, settled).map(drop)
    }
}
