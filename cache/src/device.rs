//! The device, as far as the cache moves pages to and from it.

use std::sync::{Arc, Mutex};

use crate::completion::Completion;
use crate::guard::lock;
use crate::pool::{Buffers, Slot};

/// One page on its way between the device and a host slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Which page.
    pub key: u64,
    /// Its place on the host.
    pub slot: Slot,
}

/// Starts copies and says when they are done. Neither call blocks for the copy itself.
pub trait Device: Send {
    /// Starts copying pages from the device into their host slots.
    fn store(&mut self, pages: Vec<PageCopy>, host: &Arc<Buffers>) -> Completion;

    /// Starts copying pages from their host slots to the device.
    fn load(&mut self, pages: Vec<PageCopy>, host: &Arc<Buffers>) -> Completion;
}

/// A device whose pages follow from their keys, so that every page it gets back can be checked; for replays. Its
/// copies are done when they return.
#[derive(Clone, Debug, Default)]
pub struct SyntheticDevice {
    damaged: Arc<Mutex<u64>>,
}

impl SyntheticDevice {
    /// A device that has seen no page yet; clones share their count.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many loaded pages were not what was stored.
    #[must_use]
    pub fn damaged_pages(&self) -> u64 {
        *lock(&self.damaged)
    }

    /// The content of a page: words of a generator seeded with its key.
    pub fn fill(key: u64, page: &mut [u8]) {
        let mut state = key | 1 << 63;
        for chunk in page.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
    }
}

impl Device for SyntheticDevice {
    fn store(&mut self, pages: Vec<PageCopy>, host: &Arc<Buffers>) -> Completion {
        for PageCopy { key, slot } in pages {
            host.with(slot, |page| Self::fill(key, page));
        }
        Completion::done()
    }

    fn load(&mut self, pages: Vec<PageCopy>, host: &Arc<Buffers>) -> Completion {
        let mut expected = Vec::new();
        for PageCopy { key, slot } in pages {
            let intact = host.with(slot, |page| {
                expected.resize(page.len(), 0);
                Self::fill(key, &mut expected);
                page == expected.as_slice()
            });
            if intact != Some(true) {
                *lock(&self.damaged) += 1;
            }
        }
        Completion::done()
    }
}
