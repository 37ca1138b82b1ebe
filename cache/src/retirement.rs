//! The ends of a prefetch: revoked, settled or aborted.

use std::sync::Arc;

use crate::admission::Loaded;
use crate::cache::Cache;
use crate::decision::{Decision, Outcome};
use crate::ledger::Reason;
use crate::prefetch::{Entry, Handle, Operation};
use crate::workers::Transfer;

impl Cache {
    /// Forgets a request in whatever state; safe to repeat, and other attempts of the request keep theirs.
    pub fn abort(&mut self, handle: &Handle) {
        self.retries.forget(&handle.rid);
        self.loaded.remove(handle);
        if let Some(running) = self.running.shift_remove(handle) {
            self.reserved -= running.reserved;
            if let Some(held) = running.held {
                self.tree.unlock_device(held);
            }
        }
        if let Some(mut entry) = self.live.remove(handle) {
            entry.operation.terminate();
            if let Some(mut landed) = entry.buffer.take() {
                self.tails
                    .insert(entry.operation.id, landed.split_off(entry.completed));
                self.pool.free(landed);
            }
            self.counters.aborted += 1;
            self.leave(&entry, Outcome::Aborted);
        }
        self.ledger.close(handle, Reason::Dropped);
    }

    /// Ends a live prefetch at a poll.
    pub(crate) fn retire(&mut self, handle: &Handle) {
        let Some(entry) = self.live.remove(handle) else {
            return;
        };
        entry.operation.terminate();
        if entry.buffer.is_some() {
            self.settle(entry, false);
        } else {
            // Its hit is not known here, so none of its tokens are in the ledger.
            let again = !entry.is_expired();
            self.revoke(entry, Reason::Dropped, again);
        }
    }

    /// Ends a prefetch that has no destination.
    pub(crate) fn revoke(&mut self, entry: Entry, reason: Reason, again: bool) {
        entry.operation.terminate();
        self.counters.revoked += 1;
        self.ledger.close(&entry.operation.handle, reason);
        if again {
            self.retries.arm_paced(&entry.operation.handle.rid);
        }
        self.leave(&entry, Outcome::Revoked);
    }

    /// Ends a prefetch that has a destination: what landed everywhere goes into the tree.
    pub(crate) fn settle(&mut self, mut entry: Entry, ended: bool) {
        let mut slots = entry.buffer.take().unwrap_or_default();
        let handle = entry.operation.handle.clone();
        let tail = slots.split_off(entry.completed);
        let reason = if entry.is_expired() {
            Reason::Deadline
        } else {
            Reason::StorageTransfer
        };
        self.ledger
            .miss(&handle, self.config.tokens(tail.len()), reason);
        let duplicates =
            self.tree
                .graft(entry.anchor, &entry.operation.pages[..slots.len()], &slots);
        self.pool.free(duplicates);
        if ended {
            self.release.extend(tail);
        } else {
            self.tails.insert(entry.operation.id, tail);
        }
        if ended && !entry.operation.is_terminated() {
            self.counters.completed += 1;
        } else {
            self.counters.cut += 1;
        }
        self.loaded.insert(
            handle,
            Loaded {
                start: entry.start,
                pages: slots.len(),
            },
        );
        self.leave(&entry, Outcome::Inserted { pages: slots.len() });
    }

    /// Gives a hit its destination and starts the transfer; `false` when there is no room worth it.
    pub(crate) fn start_transfer(&mut self, operation: &Arc<Operation>, hit: usize) -> bool {
        let least = self
            .config
            .threshold_tokens
            .div_ceil(self.config.page_tokens)
            .max(1);
        self.make_room_on_host(hit);
        if self.pool.available().min(hit) < least {
            return false;
        }
        let (Some(entry), Some(workers)) = (self.live.of(operation), &self.workers) else {
            return false;
        };
        let slots = self.pool.take(hit);
        let refused = self.config.tokens(hit - slots.len());
        entry.buffer = Some(slots.clone());
        self.ledger
            .miss(&operation.handle, refused, Reason::HostCapacity);
        workers.transfer(Transfer {
            operation: operation.clone(),
            slots,
        });
        true
    }

    /// Frees the tail of a prefetch that was retired before its transfer ended.
    pub(crate) fn release_tail(&mut self, operation: u64) {
        self.release
            .extend(self.tails.remove(&operation).unwrap_or_default());
    }

    fn leave(&mut self, entry: &Entry, outcome: Outcome) {
        self.tree.unlock_host(entry.anchor);
        self.occupied = self.occupied.saturating_sub(entry.operation.pages.len());
        self.decide(Decision::Retired {
            handle: entry.operation.handle.clone(),
            outcome,
        });
    }
}
