//! What one rank says of itself besides its rows.

use crate::layout::Member;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::order;

impl Member {
    /// Says that this rank holds all data of `round`.
    pub(crate) fn finish(&self, round: u64) {
        // ORDERING [R5] Release: pairs with F5 behind a look at it. Who sees it sees what this rank saw when it announced
        // the round: that its peers had settled those before. The fences F4, F2 and F3 order all else.
        self.done.store(round, order("R5", Release));
    }

    pub(crate) fn has_finished(&self, round: u64) -> bool {
        self.done.load(Relaxed) == round
    }

    /// Says that this rank leaves in good order. Relaxed: a waiter that sees it before this rank's last row gives up, and
    /// looks again behind F3.
    pub(crate) fn close(&self) {
        self.closed.store(1, Relaxed);
    }

    pub(crate) fn has_closed(&self) -> bool {
        self.closed.load(Relaxed) != 0
    }
}
