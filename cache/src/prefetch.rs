//! Prefetches in flight: who asked, what for, and how far it got.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indexmap::IndexMap;

use crate::guard::lock;
use crate::policy::Budget;
use crate::pool::Slot;
use crate::tree::NodeId;

/// One attempt of one request; a request that was put back gets a higher attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle {
    /// The request.
    pub rid: String,
    /// Which attempt of it.
    pub attempt: u32,
}

impl Handle {
    /// The handle of one attempt of a request.
    #[must_use]
    pub fn new(rid: impl Into<String>, attempt: u32) -> Self {
        Self {
            rid: rid.into(),
            attempt,
        }
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.rid, self.attempt)
    }
}

/// How long a request has waited for its prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No poll of it was blocked yet, so its budget is untouched.
    NotStarted,
    /// Its first blocked poll, on the clock of this rank.
    Started(Duration),
    /// The ranks have agreed that its budget is spent; final.
    Expired,
}

impl Wait {
    /// Whether this rank would cut the request at `now`; an agreed verdict stays one.
    pub(crate) fn is_overdue(self, now: Duration, budget: &Budget, tokens: usize) -> bool {
        match self {
            Self::NotStarted => false,
            Self::Started(since) => budget.is_exceeded(now.saturating_sub(since), tokens),
            Self::Expired => true,
        }
    }
}

/// What the scheduler thread and the workers share about one prefetch.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Tells this operation from any other under the same handle.
    pub(crate) id: u64,
    pub(crate) handle: Handle,
    /// Keys of the pages to fetch, in prefix order.
    pub(crate) pages: Vec<u64>,
    terminated: Mutex<bool>,
}

impl Operation {
    pub(crate) fn new(id: u64, handle: Handle, pages: Vec<u64>) -> Self {
        Self {
            id,
            handle,
            pages,
            terminated: Mutex::new(false),
        }
    }

    /// Tells every worker to do no more work for it; the acknowledgements still flow.
    pub(crate) fn terminate(&self) {
        *lock(&self.terminated) = true;
    }

    pub(crate) fn is_terminated(&self) -> bool {
        *lock(&self.terminated)
    }
}

/// The scheduler's side of one live prefetch.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) operation: Arc<Operation>,
    /// The node that the pages hang off; locked on the host side while the entry lives.
    pub(crate) anchor: NodeId,
    /// How many pages of the prompt lie before the span.
    pub(crate) start: usize,
    /// The agreed hit; `None` until it was drained.
    pub(crate) hit: Option<usize>,
    /// Destination of the pages; `None` until the hit got its room.
    pub(crate) buffer: Option<Vec<Slot>>,
    /// Pages that have landed on every rank, as of the last drained acknowledgement.
    pub(crate) completed: usize,
    pub(crate) wait: Wait,
}

impl Entry {
    pub(crate) fn new(operation: Arc<Operation>, anchor: NodeId, start: usize) -> Self {
        Self {
            operation,
            anchor,
            start,
            hit: None,
            buffer: None,
            completed: 0,
            wait: Wait::NotStarted,
        }
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.wait == Wait::Expired
    }

    /// Records the verdict and stops the workers; a second time it changes nothing.
    pub(crate) fn expire(&mut self) {
        self.wait = Wait::Expired;
        self.operation.terminate();
    }
}

/// The live prefetch table. Its insertion order is the slot order of the vote and the order of the fold.
#[derive(Debug, Default)]
pub(crate) struct LiveTable {
    entries: IndexMap<Handle, Entry>,
}

impl LiveTable {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn handles(&self) -> impl ExactSizeIterator<Item = &Handle> {
        self.entries.keys()
    }

    pub(crate) fn get(&self, handle: &Handle) -> Option<&Entry> {
        self.entries.get(handle)
    }

    pub(crate) fn get_mut(&mut self, handle: &Handle) -> Option<&mut Entry> {
        self.entries.get_mut(handle)
    }

    /// The entry of exactly this operation; a newer attempt under the same handle is not it.
    pub(crate) fn of(&mut self, operation: &Operation) -> Option<&mut Entry> {
        self.entries
            .get_mut(&operation.handle)
            .filter(|entry| entry.operation.id == operation.id)
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.insert(entry.operation.handle.clone(), entry);
    }

    /// Takes an entry out; all others keep their order, or ranks would vote on different slots.
    pub(crate) fn remove(&mut self, handle: &Handle) -> Option<Entry> {
        self.entries.shift_remove(handle)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_keeps_the_order_of_the_others() {
        let mut table = LiveTable::default();
        for (id, rid) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let operation = Arc::new(Operation::new(id as u64, Handle::new(rid, 0), vec![]));
            table.push(Entry::new(operation, NodeId::ROOT, 0));
        }
        table.remove(&Handle::new("b", 0));
        let order: Vec<_> = table.handles().map(|handle| handle.rid.as_str()).collect();
        assert_eq!(order, ["a", "c", "d"]);
    }

    #[test]
    fn a_verdict_is_final_and_marking_it_again_changes_nothing() {
        let mut entry = Entry::new(
            Arc::new(Operation::new(0, Handle::new("a", 0), vec![])),
            NodeId::ROOT,
            0,
        );
        entry.wait = Wait::Started(Duration::ZERO);
        for _ in 0..2 {
            entry.expire();
            assert_eq!(entry.wait, Wait::Expired);
            assert!(entry.operation.is_terminated());
        }
    }

    #[test]
    fn a_wait_that_never_started_is_never_overdue() {
        let budget = Budget::default();
        assert!(!Wait::NotStarted.is_overdue(Duration::MAX, &budget, 0));
        assert!(!Wait::Started(Duration::ZERO).is_overdue(Duration::from_secs(1), &budget, 0));
        assert!(Wait::Started(Duration::ZERO).is_overdue(Duration::from_secs(2), &budget, 0));
    }
}
