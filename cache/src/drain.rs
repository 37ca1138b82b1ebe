//! Consuming exactly what the ranks have agreed to consume.

use std::collections::VecDeque;
use std::time::Duration;

use crate::admission::DeviceCopy;
use crate::cache::{Cache, ExtraPool, WriteAck, wait_for};
use crate::decision::Decision;
use crate::device::PageCopy;
use crate::error::Error;
use crate::ledger::Reason;
use crate::pool::Slot;
use crate::row::{Counts, StorageCounts};
use crate::workers::{Ack, Backup, Hit, Written};

impl Cache {
    /// Starts all backups queued since the last tick as one copy.
    pub(crate) fn submit_backups(&mut self) {
        let mut parts = Vec::new();
        for mut copy in std::mem::take(&mut self.queued_backups) {
            self.make_room_on_host(copy.nodes.len());
            let slots = self.pool.take(copy.nodes.len());
            // What finds no room stays on the device alone; the front is the part that a later match can use.
            for id in copy.nodes.split_off(slots.len()) {
                self.tree.set_backing_up(id, false);
            }
            if slots.is_empty() {
                self.tree.unlock_device(copy.held);
            } else {
                parts.push((copy, slots));
            }
        }
        if !parts.is_empty() {
            let page = |(&id, &slot)| PageCopy {
                key: self.tree.key(id),
                slot,
            };
            let pages = parts
                .iter()
                .flat_map(|(copy, slots)| copy.nodes.iter().zip(slots).map(page))
                .collect();
            let done = self.device.store(pages, &self.buffers);
            self.writes.push_back(WriteAck { done, parts });
        }
    }

    /// Consumes copies between device and host; a rank that is behind waits here instead of diverging.
    pub(crate) fn drain_copies(&mut self, agreed: &Counts, rank: usize) -> Result<(), Error> {
        let timeout = self.config.drain_timeout;
        for ack in take_front(&mut self.writes, agreed.write, "write", rank)? {
            wait_for(&ack.done, "write", rank, timeout)?;
            for (copy, slots) in ack.parts {
                self.copied_to_host(copy, slots);
            }
        }
        for ack in take_front(&mut self.loads, agreed.load, "load", rank)? {
            wait_for(&ack.done, "load", rank, timeout)?;
            for &id in &ack.nodes {
                self.tree.unlock_host(id);
            }
            if let Some(&last) = ack.nodes.last() {
                self.tree.unlock_device(last);
            }
        }
        Ok(())
    }

    /// Consumes what storage work has finished, in the one order that all ranks follow.
    pub(crate) fn drain_storage(
        &mut self,
        agreed: &StorageCounts,
        rank: usize,
    ) -> Result<(), Error> {
        let timeout = self.config.drain_timeout;
        let Some(workers) = &self.workers else {
            return Ok(());
        };
        for hit in workers.hits.take(agreed.hit, timeout)? {
            self.drain_hit(hit);
        }
        let Some(workers) = &self.workers else {
            return Ok(());
        };
        for ack in workers.acks.take(agreed.ack, timeout)? {
            self.drain_ack(&ack, rank)?;
        }
        let Some(workers) = &self.workers else {
            return Ok(());
        };
        for written in workers.written.take(agreed.backup, timeout)? {
            self.drain_written(&written);
        }
        self.pool.free(take_front(
            &mut self.release,
            agreed.release,
            "release",
            rank,
        )?);
        for (extra, &count) in self.extra.iter_mut().zip(&agreed.extra) {
            extra.pool.free(take_front(
                &mut extra.release,
                count,
                "extra release",
                rank,
            )?);
        }
        Ok(())
    }

    /// Consumes what is there when the cache ends; hits would only start new transfers.
    pub(crate) fn drain_leftovers(&mut self) {
        if let Some(workers) = &self.workers {
            let (acks, written) = (workers.acks.take_ready(), workers.written.take_ready());
            for ack in acks.iter().filter(|ack| ack.last) {
                self.release_tail(ack.operation.id);
            }
            for written in &written {
                self.drain_written(written);
            }
        }
        self.pool.free(self.release.drain(..));
        for ExtraPool { pool, release } in &mut self.extra {
            pool.free(release.drain(..));
        }
    }

    fn copied_to_host(&mut self, copy: DeviceCopy, slots: Vec<Slot>) {
        let mut backup = Backup {
            nodes: Vec::new(),
            pages: Vec::new(),
        };
        for (id, slot) in copy.nodes.into_iter().zip(slots) {
            self.tree.set_backing_up(id, false);
            if let Some(duplicate) = self.tree.give_host_copy(id, slot) {
                // It came from storage meanwhile, so it need not go there.
                self.pool.free([duplicate]);
            } else {
                backup.pages.push(PageCopy {
                    key: self.tree.key(id),
                    slot,
                });
                backup.nodes.push(id);
            }
        }
        self.tree.unlock_device(copy.held);
        if let Some(workers) = self.workers.as_ref().filter(|_| !backup.nodes.is_empty()) {
            for &id in &backup.nodes {
                self.tree.lock_host(id);
            }
            workers.back_up(backup);
        }
    }

    fn drain_hit(&mut self, Hit { operation, pages }: Hit) {
        let handle = operation.handle.clone();
        self.decide(Decision::Hit {
            handle: handle.clone(),
            pages,
        });
        // A newer attempt under the same handle has nothing to do with this answer.
        let Some(entry) = self.live.of(&operation) else {
            return;
        };
        let expired = entry.is_expired();
        entry.hit = Some(pages);
        let tokens = self.config.tokens(pages);
        self.counters.missed_tokens += self
            .config
            .tokens(operation.pages.len())
            .saturating_sub(tokens);
        self.ledger.record(&handle, tokens);
        let unusable = if expired {
            Some(Reason::Deadline)
        } else if operation.is_terminated() {
            Some(Reason::Dropped)
        } else if pages == 0 || tokens < self.config.threshold_tokens as u64 {
            Some(Reason::BelowThreshold)
        } else if !self.start_transfer(&operation, pages) {
            Some(Reason::HostCapacity)
        } else {
            None
        };
        let Some(reason) = unusable else { return };
        // A query that was cut may have answered 0 without asking, which says nothing about storage.
        if !expired {
            if pages == 0 {
                self.counters.revoked_full_miss += 1;
            } else {
                self.counters.revoked_insufficient += 1;
            }
        }
        if let Some(entry) = self.live.remove(&handle) {
            self.revoke(entry, reason, !expired);
        }
    }

    fn drain_ack(
        &mut self,
        Ack {
            operation,
            landed,
            last,
        }: &Ack,
        rank: usize,
    ) -> Result<(), Error> {
        let handle = operation.handle.clone();
        self.decide(Decision::Landed {
            handle: handle.clone(),
            pages: *landed,
            last: *last,
        });
        let Some(entry) = self.live.of(operation) else {
            if *last {
                self.release_tail(operation.id);
            }
            return Ok(());
        };
        if *landed < entry.completed {
            let reason = format!(
                "progress of {handle} went back from {} to {landed} pages",
                entry.completed
            );
            return Err(Error::WorkerFailed {
                rank,
                worker: "sync".into(),
                reason,
            });
        }
        entry.completed = *landed;
        if let Some(entry) = last.then(|| self.live.remove(&handle)).flatten() {
            self.settle(entry, true);
        }
        Ok(())
    }

    fn drain_written(
        &mut self,
        Written {
            nodes,
            written,
            failed,
        }: &Written,
    ) {
        self.counters.backup_written += *written as u64;
        self.counters.backup_failed += *failed as u64;
        for &id in nodes {
            self.tree.unlock_host(id);
        }
    }
}

/// Takes exactly `count` items of a queue that only this thread fills; waiting for more would be for ever.
fn take_front<T>(
    queue: &mut VecDeque<T>,
    count: usize,
    name: &'static str,
    rank: usize,
) -> Result<Vec<T>, Error> {
    let arrived = queue.len();
    if count > arrived {
        return Err(Error::DrainTimeout {
            rank,
            queue: name,
            wanted: count,
            arrived,
            after: Duration::ZERO,
        });
    }
    Ok(queue.drain(..count).collect())
}
