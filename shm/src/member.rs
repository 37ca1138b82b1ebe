//! What one rank says of itself besides its rows.

use crate::layout::Member;
use crate::sync::{Ordering, order};

impl Member {
    /// Says that this rank holds all data of `round`.
    pub(crate) fn finish(&self, round: u64) {
        // ORDERING [D1] Release: pairs with has_finished(); a peer that sees it sees all this rank did before.
        self.done.store(round, order("D1", Ordering::Release));
    }

    pub(crate) fn has_finished(&self, round: u64) -> bool {
        // ORDERING [D2] Acquire: pairs with finish().
        self.done.load(order("D2", Ordering::Acquire)) == round
    }

    /// Says that this rank leaves in good order.
    pub(crate) fn close(&self) {
        // ORDERING [K1] Release: pairs with has_closed(); whoever sees it sees the last row of this rank.
        self.closed.store(1, order("K1", Ordering::Release));
    }

    pub(crate) fn has_closed(&self) -> bool {
        // ORDERING [K2] Acquire: pairs with close().
        self.closed.load(order("K2", Ordering::Acquire)) != 0
    }
}
