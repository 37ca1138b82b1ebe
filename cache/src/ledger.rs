//! What became of the prefetches: outcomes and tokens.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::prefetch::Handle;

/// Why tokens that storage holds did not spare a request their computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// The hit was too short to be worth a transfer.
    BelowThreshold,
    /// The host pool had no room.
    HostCapacity,
    /// Less landed than was asked for.
    StorageTransfer,
    /// The request's budget was spent.
    Deadline,
    /// The device held these pages by the time the request was admitted.
    DeviceCovered,
    /// The request went away, or the pages were evicted before it was admitted.
    Dropped,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BelowThreshold => "below_threshold",
            Self::HostCapacity => "host_capacity",
            Self::StorageTransfer => "storage_transfer",
            Self::Deadline => "deadline",
            Self::DeviceCovered => "device_covered",
            Self::Dropped => "dropped",
        })
    }
}

/// How often each thing happened; every issued prefetch ends as exactly one of completed, revoked, cut or aborted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests for a prefetch with storage on.
    pub attempts: u64,
    /// Those that were issued.
    pub issued: u64,
    /// Transfers that ended by themselves.
    pub completed: u64,
    /// Prefetches that never got a destination.
    pub revoked: u64,
    /// Transfers that were cut short by a poll or a deadline.
    pub cut: u64,
    /// Prefetches whose request was aborted.
    pub aborted: u64,
    /// Not issued: the missing span was below the threshold.
    pub declined_too_short: u64,
    /// Not issued: too many tokens were being fetched.
    pub declined_rate_limited: u64,
    /// Revoked with a hit that could not be used.
    pub revoked_insufficient: u64,
    /// Revoked without any hit.
    pub revoked_full_miss: u64,
    /// Tokens asked of storage.
    pub requested_tokens: u64,
    /// Tokens asked of storage that it did not have.
    pub missed_tokens: u64,
    /// Pages written through to storage.
    pub backup_written: u64,
    /// Pages that storage refused to take.
    pub backup_failed: u64,
}

/// The tokens of every hit: hit = fulfilled + the sum of unfulfilled + what is still open.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    hit: u64,
    fulfilled: u64,
    unfulfilled: BTreeMap<Reason, u64>,
    open: HashMap<Handle, u64>,
}

impl Ledger {
    /// Tokens of all drained hits.
    #[must_use]
    pub fn hit(&self) -> u64 {
        self.hit
    }

    /// Tokens that reached the device for their request.
    #[must_use]
    pub fn fulfilled(&self) -> u64 {
        self.fulfilled
    }

    /// Tokens that did not, by reason.
    #[must_use]
    pub fn unfulfilled(&self) -> &BTreeMap<Reason, u64> {
        &self.unfulfilled
    }

    /// Tokens whose fate is open.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.open.values().sum()
    }

    /// Whether every token is accounted for, none twice.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.open() == 0 && self.hit == self.fulfilled + self.unfulfilled.values().sum::<u64>()
    }

    /// Records a hit.
    pub(crate) fn record(&mut self, handle: &Handle, tokens: u64) {
        if tokens > 0 {
            self.hit += tokens;
            *self.open.entry(handle.clone()).or_default() += tokens;
        }
    }

    /// Settles up to `tokens` of what is open as fulfilled.
    pub(crate) fn fulfil(&mut self, handle: &Handle, tokens: u64) {
        self.fulfilled += self.settle(handle, tokens);
    }

    /// Settles up to `tokens` of what is open as unfulfilled.
    pub(crate) fn miss(&mut self, handle: &Handle, tokens: u64, reason: Reason) {
        let settled = self.settle(handle, tokens);
        if settled > 0 {
            *self.unfulfilled.entry(reason).or_default() += settled;
        }
    }

    /// Settles all that is open.
    pub(crate) fn close(&mut self, handle: &Handle, reason: Reason) {
        self.miss(handle, u64::MAX, reason);
    }

    pub(crate) fn close_all(&mut self, reason: Reason) {
        let rest = std::mem::take(&mut self.open).into_values().sum::<u64>();
        if rest > 0 {
            *self.unfulfilled.entry(reason).or_default() += rest;
        }
    }

    /// Never more than is open, so that no token is counted twice.
    fn settle(&mut self, handle: &Handle, tokens: u64) -> u64 {
        let Some(open) = self.open.get_mut(handle) else {
            return 0;
        };
        let settled = tokens.min(*open);
        *open -= settled;
        if *open == 0 {
            self.open.remove(handle);
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_token_is_counted_twice() {
        let mut ledger = Ledger::default();
        let handle = Handle::new("a", 0);
        ledger.record(&handle, 8);
        ledger.fulfil(&handle, 6);
        ledger.miss(&handle, 6, Reason::Deadline);
        ledger.close(&handle, Reason::Dropped);
        assert_eq!((ledger.hit(), ledger.fulfilled()), (8, 6));
        assert_eq!(
            ledger.unfulfilled(),
            &BTreeMap::from([(Reason::Deadline, 2)])
        );
        assert!(ledger.is_closed());
    }

    proptest! {
        #[test]
        fn the_ledger_always_closes(steps in prop::collection::vec((0u32..4, 0u64..100, 0u8..4), 0..100)) {
            let mut ledger = Ledger::default();
            for (attempt, tokens, kind) in steps {
                let handle = Handle::new("r", attempt);
                match kind {
                    0 => ledger.record(&handle, tokens),
                    1 => ledger.fulfil(&handle, tokens),
                    2 => ledger.miss(&handle, tokens, Reason::StorageTransfer),
                    _ => ledger.close(&handle, Reason::HostCapacity),
                }
                let settled = ledger.fulfilled() + ledger.unfulfilled().values().sum::<u64>();
                prop_assert_eq!(ledger.hit(), settled + ledger.open());
            }
            ledger.close_all(Reason::Dropped);
            prop_assert!(ledger.is_closed());
        }
    }
}
