//! The host pool: a fixed number of page buffers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::guard::lock;

/// The index of one page buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(usize);

/// The bytes of all page buffers, shared by the threads that fill and read them.
#[derive(Debug)]
pub struct Buffers {
    pages: Vec<Mutex<Box<[u8]>>>,
}

impl Buffers {
    fn new(pages: usize, page_bytes: usize) -> Self {
        Self {
            pages: (0..pages)
                .map(|_| Mutex::new(vec![0; page_bytes].into()))
                .collect(),
        }
    }

    /// Lends the bytes of one page to `use_page`; `None` when there is no such page.
    ///
    /// Blocks while another thread has the same page.
    pub fn with<T>(&self, slot: Slot, use_page: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        self.pages.get(slot.0).map(|page| use_page(&mut lock(page)))
    }
}

/// The free slots; only the scheduler thread takes and returns them, the lowest first, so every rank takes the same.
#[derive(Debug)]
pub(crate) struct Pool {
    free: BTreeSet<Slot>,
}

impl Pool {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            free: (0..slots).map(Slot).collect(),
        }
    }

    /// A pool together with its bytes.
    pub(crate) fn with_buffers(slots: usize, page_bytes: usize) -> (Self, Arc<Buffers>) {
        (Self::new(slots), Arc::new(Buffers::new(slots, page_bytes)))
    }

    pub(crate) fn available(&self) -> usize {
        self.free.len()
    }

    /// Takes at most `count` slots.
    pub(crate) fn take(&mut self, count: usize) -> Vec<Slot> {
        (0..count).map_while(|_| self.free.pop_first()).collect()
    }

    pub(crate) fn free(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            let was_taken = self.free.insert(slot);
            debug_assert!(was_taken, "{slot:?} freed twice");
        }
    }
}
