//! Requests that run: their pages are held on the device, and what the device alone holds is backed up after them.

use crate::cache::Cache;
use crate::completion::Completion;
use crate::device::PageCopy;
use crate::ledger::Reason;
use crate::prefetch::Handle;
use crate::tree::{Match, NodeId};

/// How an admitted request finds its prompt.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Leading pages that were on the device.
    pub device: usize,
    /// Pages after those that are being loaded from the host.
    pub loaded: usize,
    /// Pages after those that must be computed.
    pub missing: usize,
    /// When the loaded pages are on the device; wait for it before the forward pass.
    pub ready: Completion,
}

/// A request that was admitted.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) pages: Vec<u64>,
    pub(crate) held: Option<NodeId>,
    pub(crate) reserved: usize,
}

/// Pages that a prefetch brought for a request which was not admitted yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(crate) start: usize,
    pub(crate) pages: usize,
}

/// Nodes of which the device has the only copy, and the last node of their prompt, held on the device meanwhile.
#[derive(Debug)]
pub(crate) struct DeviceCopy {
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) held: NodeId,
}

/// A host-to-device copy in flight.
#[derive(Debug)]
pub(crate) struct LoadAck {
    pub(crate) done: Completion,
    pub(crate) nodes: Vec<NodeId>,
}

impl Cache {
    /// Admits a request: holds its cached pages on the device, loads those on the host, reserves the rest.
    ///
    /// `None` when the device has no room, when its prefetch is still live or when it runs already; it may try again
    /// at the next pass.
    pub fn admit(&mut self, handle: &Handle, pages: &[u64]) -> Option<Admission> {
        if self.live.get(handle).is_some() || self.running.contains_key(handle) {
            return None;
        }
        let found = self.tree.match_prefix(pages);
        let path = self.tree.path(pages);
        let (on_device, on_host) = path.split_at(found.device);
        if !self.make_room_on_device(
            pages.len() - found.device,
            on_device.last().copied(),
            on_host,
        ) {
            return None;
        }
        self.tree.load(on_host);
        let held = path.last().copied();
        if let Some(held) = held {
            self.tree.lock_device(held);
        }
        let ready = self.load_back(on_host);
        let missing = pages.len() - path.len();
        self.reserved += missing;
        self.running.insert(
            handle.clone(),
            Running {
                pages: pages.to_vec(),
                held,
                reserved: missing,
            },
        );
        self.retries.forget(&handle.rid);
        self.attribute(handle, found);
        Some(Admission {
            device: found.device,
            loaded: found.host,
            missing,
            ready,
        })
    }

    /// Ends an admitted request: its whole prompt is on the device now, and what has no copy on the host gets one,
    /// which with storage on is written through.
    ///
    /// Does nothing for a handle that does not run.
    pub fn finish(&mut self, handle: &Handle) {
        let Some(running) = self.running.shift_remove(handle) else {
            return;
        };
        self.reserved -= running.reserved;
        let path = self.tree.insert_on_device(&running.pages);
        if let Some(held) = running.held {
            self.tree.unlock_device(held);
        }
        let nodes: Vec<_> = path
            .iter()
            .copied()
            .filter(|&id| self.tree.needs_backup(id))
            .collect();
        if let (Some(&held), false) = (path.last(), nodes.is_empty()) {
            for &id in &nodes {
                self.tree.set_backing_up(id, true);
            }
            self.tree.lock_device(held);
            self.queued_backups.push(DeviceCopy { nodes, held });
        }
    }

    /// Takes at most `pages` pages off the device, the least recently used first, and says how many.
    pub fn evict_device(&mut self, pages: usize) -> usize {
        self.tree.evict_device(pages)
    }

    /// Makes room on the device without losing the pages that the request is about to use.
    fn make_room_on_device(
        &mut self,
        pages: usize,
        held: Option<NodeId>,
        on_host: &[NodeId],
    ) -> bool {
        let taken = self.tree.pages_on_device() + self.reserved + pages;
        if let Some(held) = held {
            self.tree.lock_device(held);
        }
        for &id in on_host {
            self.tree.lock_host(id);
        }
        let lacking = taken.saturating_sub(self.config.device_pages);
        // A request that will not fit must not cost the others their pages.
        let room = lacking <= self.tree.evictable_on_device()
            && self.tree.evict_device(lacking) == lacking;
        for &id in on_host {
            self.tree.unlock_host(id);
        }
        if let Some(held) = held {
            self.tree.unlock_device(held);
        }
        room
    }

    /// Starts loading host pages; they stay locked in both places until the tick consumes the acknowledgement.
    fn load_back(&mut self, nodes: &[NodeId]) -> Completion {
        let Some(&last) = nodes.last() else {
            return Completion::done();
        };
        let copy = |&id: &NodeId| {
            self.tree
                .host_copy(id)
                .map(|(key, slot)| PageCopy { key, slot })
        };
        let copies = nodes.iter().filter_map(copy).collect();
        let done = self.device.load(copies, &self.buffers);
        for &id in nodes {
            self.tree.lock_host(id);
        }
        self.tree.lock_device(last);
        self.loads.push_back(LoadAck {
            done: done.clone(),
            nodes: nodes.to_vec(),
        });
        done
    }

    /// Settles the tokens of a prefetched span at admission: only what is loaded for the request spares it work.
    fn attribute(&mut self, handle: &Handle, found: Match) {
        if let Some(Loaded { start, pages }) = self.loaded.remove(handle) {
            let end = start + pages;
            let overlap = |from: usize, to: usize| to.min(end).saturating_sub(from.max(start));
            let covered = self.config.tokens(overlap(0, found.device));
            let loaded = self.config.tokens(overlap(found.device, found.pages()));
            self.ledger.fulfil(handle, loaded);
            self.ledger.miss(handle, covered, Reason::DeviceCovered);
        }
        self.ledger.close(handle, Reason::Dropped);
    }
}
