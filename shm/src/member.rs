//! What one rank says of itself besides its rows.

use crate::layout::Member;
use crate::sync::Ordering::{self, Relaxed};
use crate::sync::order;

impl Member {
    /// Says that this rank holds all data of `round`.
    pub(crate) fn finish(&self, round: u64) {
        // ORDERING [R5] Release: pairs with F5 behind a look at it. Who sees it sees what this rank saw when it announced
        // the round: that its peers had settled those before. The fences F2 and F3 order all else.
        self.done.store(round, order("R5", Ordering::Release));
    }

    pub(crate) fn has_finished(&self, round: u64) -> bool {
        self.done.load(Relaxed) == round
    }

    /// Says that this rank leaves.
    pub(crate) fn leave(&self, how: Leave) {
        let code = match how {
            Leave::Closed => 1,
            Leave::Abandoned => 2,
        };
        // ORDERING [K1] Release: pairs with left(); whoever sees it sees the last row or slot of this rank.
        self.closed.store(code, order("K1", Ordering::Release));
    }

    /// How this rank has left, if it has.
    #[inline(always)]
    pub(crate) fn left(&self) -> Option<Leave> {
        // ORDERING [K2] Acquire: pairs with leave(); the look at stamps and slots comes after it.
        match self.closed.load(order("K2", Ordering::Acquire)) {
            0 => None,
            1 => Some(Leave::Closed),
            _ => Some(Leave::Abandoned),
        }
    }
}

/// How a rank has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// In good order.
    Closed,
    /// Its thread panicked; its process may live on.
    Abandoned,
}
