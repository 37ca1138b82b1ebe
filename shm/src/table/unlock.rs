//! Rounds of a caller that holds a lock which other threads of its process need: an interpreter's, for one.

use super::{RoundError, Table, copied};
use crate::call::Reduction;
use std::time::Duration;

/// A lock of the caller, which a wait gives back.
pub trait Unlock {
    /// Runs `body` with the lock given back, and takes it again.
    fn run<T: Send>(self, body: impl FnOnce() -> T + Send) -> T;
}

impl Table {
    /// As [`Table::all_reduce`]. The lock is kept for the first polls, a few microseconds where a spin makes sense at all;
    /// what there is still to wait for then, `lock` runs.
    ///
    /// # Errors
    ///
    /// As [`Table::all_reduce`].
    #[inline]
    pub fn all_reduce_unlocking<'a>(
        &mut self,
        reduction: impl Into<Reduction<'a>>,
        label: &str,
        slots: &mut [i64],
        timeout: Duration,
        lock: impl Unlock,
    ) -> Result<(), RoundError> {
        let reduction = reduction.into();
        // Older rounds and partial results are waited for too, and nobody knows for how long.
        if !self.flight.is_empty() || self.radix != 0 {
            return lock.run(|| self.all_reduce(reduction, label, slots, timeout));
        }
        let posted = self.post(reduction, label, slots)?;
        let mut totals = copied(slots);
        let totals = &mut totals[..slots.len()];
        let missing = self.hurry(posted, self.others(), totals);
        let settled = if missing == 0 {
            self.gather_rest(posted, 0, totals, timeout)
        } else {
            let (table, totals) = (&mut *self, &mut *totals);
            lock.run(move || table.gather_rest(posted, missing, totals, timeout))
        };
        let settled = settled.map(|()| self.total_up(posted, reduction, totals));
        self.settle(posted.round, settled)??;
        slots.copy_from_slice(totals);
        Ok(())
    }
}
