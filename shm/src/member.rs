//! What one rank says of itself besides its rows.
//!
//! All relaxed: a word here only ever makes a peer ask for the outcome, which looks at everything again behind a fence.

use crate::layout::Member;
use crate::sync::Ordering::Relaxed;

impl Member {
    /// Says that this rank holds all data of `round`.
    pub(crate) fn finish(&self, round: u64) {
        self.done.store(round, Relaxed);
    }

    pub(crate) fn has_finished(&self, round: u64) -> bool {
        self.done.load(Relaxed) == round
    }

    /// Says that this rank leaves in good order.
    pub(crate) fn close(&self) {
        self.closed.store(1, Relaxed);
    }

    pub(crate) fn has_closed(&self) -> bool {
        self.closed.load(Relaxed) != 0
    }
}
