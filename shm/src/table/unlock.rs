//! Rounds of a caller that holds a lock which other threads of its process need: an interpreter's, for one.

use super::{MAX_SLOTS, RoundError, Table, bits};
use crate::call::Reduction;
use crate::sync::spin_loop;
use std::time::Duration;

/// Polls before the lock is given back: a few microseconds, where a spin makes sense at all.
const POLLS: u32 = 64;

/// A lock of the caller, which a wait gives back.
pub trait Unlock {
    /// Runs `body` with the lock given back, and takes it again.
    fn run<T: Send>(self, body: impl FnOnce() -> T + Send) -> T;
}

impl Table {
    /// As [`Table::all_reduce`]. The lock is kept for a spin of a few microseconds; what there is still to wait for then,
    /// `lock` runs.
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
        if slots.len() > MAX_SLOTS {
            return Err(RoundError::TooWide(slots.len()));
        }
        let reduction = reduction.into();
        // Older rounds and partial results are waited for too, and nobody knows for how long.
        if !self.flight.is_empty() || self.radix != 0 {
            return lock.run(|| self.all_reduce(reduction, label, slots, timeout));
        }
        let posted = self.post(reduction, label, slots)?;
        let mut buffer = [0; MAX_SLOTS];
        let total = &mut buffer[..slots.len()];
        let settled = if self.have_all_come(posted.round) {
            self.gather(posted, slots, total, timeout)
        } else {
            let (table, own, total) = (&mut *self, &*slots, &mut *total);
            lock.run(move || table.gather(posted, own, total, timeout))
        };
        self.settle(posted.round, settled)??;
        slots.copy_from_slice(total);
        Ok(())
    }

    /// Whether all ranks have published their row for `round`, or do so within a short spin.
    #[inline(always)]
    fn have_all_come(&self, round: u64) -> bool {
        let watch = self.row_watch(self.seat.storage.rows(round), round);
        let mut polls = if self.waits.spin().is_zero() {
            0
        } else {
            POLLS
        };
        while bits(self.others()).any(|peer| watch(peer).is_none()) {
            if polls == 0 {
                return false;
            }
            polls -= 1;
            spin_loop();
        }
        true
    }
}
