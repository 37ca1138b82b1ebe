//! Where a rank runs, as a hint to those that wait for it.

/// Which CPU a rank is on, in four bits: CPUs share numbers. A hint; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u64);

impl Place {
    #[cfg(not(loom))]
    const NUMBERS: usize = 15;

    /// Where the calling thread is now.
    #[cfg(not(loom))]
    pub(crate) fn here() -> Self {
        Self(1 + (rustix::thread::sched_getcpu() % Self::NUMBERS) as u64)
    }

    /// Models have no CPUs.
    #[cfg(loom)]
    pub(crate) fn here() -> Self {
        Self(0)
    }

    /// Whether a rank at `other` may have to wait until this one gives up its CPU.
    pub(crate) fn may_be(self, other: Self) -> bool {
        self == other || self.0 == 0 || other.0 == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_rank_may_be_here_unless_both_places_are_known_and_differ() {
        let [unknown, one, other] = [0, 1, 15].map(Place);
        assert!(one.may_be(one) && one.may_be(unknown) && unknown.may_be(one));
        assert!(!one.may_be(other));
    }
}
