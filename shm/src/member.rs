//! What one rank says of itself besides its rows.

use crate::layout::Member;
use crate::sync::Ordering::{self, Relaxed};
use crate::sync::order;

impl Member {
    /// Says that this rank holds all data of `round`. Relaxed: the fences F4, F2 and F3 order it.
    pub(crate) fn finish(&self, round: u64) {
        self.done.store(round, Relaxed);
    }

    pub(crate) fn has_finished(&self, round: u64) -> bool {
        self.done.load(Relaxed) == round
    }

    /// Says that this rank leaves in good order.
    pub(crate) fn close(&self) {
        // ORDERING [K1] Release: pairs with has_closed(); whoever sees it sees the last row of this rank.
        self.closed.store(1, order("K1", Ordering::Release));
    }

    pub(crate) fn has_closed(&self) -> bool {
        // ORDERING [K2] Acquire: pairs with close(); the look at the stamps comes after it.
        self.closed.load(order("K2", Ordering::Acquire)) != 0
    }
}
