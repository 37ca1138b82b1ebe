//! The prefix tree over pages: what is on the device, what has a copy on the host, and what goes first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::digest::Digest;
use crate::pool::Slot;

/// One node, that is one page after one particular prefix. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(u64);

impl NodeId {
    pub(crate) const ROOT: Self = Self(0);
}

/// How much of a prompt the tree holds, in pages from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Pages on the device.
    pub device: usize,
    /// Pages after those that have a copy on the host only.
    pub host: usize,
}

impl Match {
    /// Pages held in either place.
    #[must_use]
    pub fn pages(self) -> usize {
        self.device + self.host
    }
}

/// The place of a node in the order of eviction: oldest first, then deepest, then first made. No two are equal, and
/// no wall clock is in it, so every rank evicts the same.
type Age = (u64, Reverse<usize>, NodeId);

#[derive(Debug)]
struct Node {
    key: u64,
    parent: NodeId,
    depth: usize,
    children: BTreeMap<u64, NodeId>,
    children_on_device: usize,
    on_device: bool,
    host: Option<Slot>,
    /// A copy to the host is on its way.
    backing_up: bool,
    device_locks: usize,
    host_locks: usize,
    last_use: u64,
}

impl Node {
    fn new(key: u64, parent: NodeId, depth: usize, last_use: u64) -> Self {
        Self {
            key,
            parent,
            depth,
            children: BTreeMap::new(),
            children_on_device: 0,
            on_device: false,
            host: None,
            backing_up: false,
            device_locks: 0,
            host_locks: 0,
            last_use,
        }
    }

    fn is_held(&self) -> bool {
        self.on_device || self.host.is_some()
    }

    /// From the host, deepest first: a copy is of no use without the pages before it.
    fn may_leave_host(&self) -> bool {
        self.host.is_some()
            && self.host_locks == 0
            && self.children.len() == self.children_on_device
    }

    /// From the device, deepest first, so that what is there stays a prefix.
    fn may_leave_device(&self) -> bool {
        let may_vanish = self.host.is_some() || self.host_locks == 0;
        self.on_device && self.device_locks == 0 && self.children_on_device == 0 && may_vanish
    }
}

/// The tree. The pages on the device are prefixes. A node that is held nowhere stays as long as something hangs off
/// it or locks it; what hangs off it is found again when its page comes back.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: HashMap<NodeId, Node>,
    next: u64,
    /// Counts uses, so that age is the same on every rank.
    uses: u64,
    leaving_host: BTreeSet<Age>,
    leaving_device: BTreeSet<Age>,
    on_device: usize,
    locked_on_device: usize,
    digest: Digest,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let root = Node::new(0, NodeId::ROOT, 0, 0);
        Self {
            nodes: HashMap::from([(NodeId::ROOT, root)]),
            next: 1,
            uses: 0,
            leaving_host: BTreeSet::new(),
            leaving_device: BTreeSet::new(),
            on_device: 0,
            locked_on_device: 0,
            digest: Digest::default(),
        }
    }

    /// The order in which host copies were reclaimed so far.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    pub(crate) fn pages_on_device(&self) -> usize {
        self.on_device
    }

    /// How many pages could leave the device, one after the other.
    pub(crate) fn evictable_on_device(&self) -> usize {
        self.on_device.saturating_sub(self.locked_on_device)
    }

    /// The nodes of the longest held prefix of `pages`, in order.
    pub(crate) fn path(&self, pages: &[u64]) -> Vec<NodeId> {
        let mut at = NodeId::ROOT;
        pages
            .iter()
            .map_while(|page| {
                at = *self.nodes.get(&at)?.children.get(page)?;
                self.nodes.get(&at)?.is_held().then_some(at)
            })
            .collect()
    }

    /// How much of `pages` is held; counts as a use of it.
    pub(crate) fn match_prefix(&mut self, pages: &[u64]) -> Match {
        let path = self.path(pages);
        self.touch(&path);
        self.measure(&path)
    }

    /// How much of `pages` is held, without using it.
    pub(crate) fn peek(&self, pages: &[u64]) -> Match {
        self.measure(&self.path(pages))
    }

    fn measure(&self, path: &[NodeId]) -> Match {
        let device = path
            .iter()
            .take_while(|id| self.nodes.get(id).is_some_and(|node| node.on_device))
            .count();
        Match {
            device,
            host: path.len() - device,
        }
    }

    /// Puts all of `pages` on the device and gives their nodes.
    pub(crate) fn insert_on_device(&mut self, pages: &[u64]) -> Vec<NodeId> {
        let path = self.grow(NodeId::ROOT, pages);
        self.load(&path);
        path
    }

    /// Marks held nodes as being on the device too.
    pub(crate) fn load(&mut self, nodes: &[NodeId]) {
        for &id in nodes {
            self.set_on_device(id, true);
        }
    }

    /// Hangs landed pages off `anchor`; gives back the slots of pages that had a host copy already.
    pub(crate) fn graft(&mut self, anchor: NodeId, pages: &[u64], slots: &[Slot]) -> Vec<Slot> {
        let path = self.grow(anchor, pages);
        path.into_iter()
            .zip(slots)
            .filter_map(|(id, &slot)| self.give_host_copy(id, slot))
            .collect()
    }

    /// Gives a node its host copy, or the slot back if it has one: the copy that came second is reclaimed.
    pub(crate) fn give_host_copy(&mut self, id: NodeId, slot: Slot) -> Option<Slot> {
        let node = self.nodes.get_mut(&id)?;
        let duplicate = match node.host {
            Some(_) => Some(slot),
            None => {
                node.host = Some(slot);
                None
            }
        };
        if duplicate.is_some() {
            self.reclaimed(id);
        }
        self.refile(id);
        duplicate
    }

    pub(crate) fn host_copy(&self, id: NodeId) -> Option<(u64, Slot)> {
        let node = self.nodes.get(&id)?;
        Some((node.key, node.host?))
    }

    pub(crate) fn key(&self, id: NodeId) -> u64 {
        self.nodes.get(&id).map_or(0, |node| node.key)
    }

    /// Whether a copy to the host is missing and not on its way.
    pub(crate) fn needs_backup(&self, id: NodeId) -> bool {
        self.nodes
            .get(&id)
            .is_some_and(|node| node.host.is_none() && !node.backing_up)
    }

    pub(crate) fn set_backing_up(&mut self, id: NodeId, backing_up: bool) {
        self.change(id, |node| node.backing_up = backing_up);
    }

    /// Keeps the host copy of a node, and the node itself, until unlocked.
    pub(crate) fn lock_host(&mut self, id: NodeId) {
        self.change(id, |node| node.host_locks += 1);
    }

    pub(crate) fn unlock_host(&mut self, id: NodeId) {
        self.change(id, |node| {
            node.host_locks = node.host_locks.saturating_sub(1);
        });
        self.prune(id);
    }

    /// Keeps a node and all before it on the device until unlocked; it must be there.
    pub(crate) fn lock_device(&mut self, id: NodeId) {
        for id in self.lineage(id) {
            let mut first = false;
            self.change(id, |node| {
                first = node.device_locks == 0;
                node.device_locks += 1;
            });
            self.locked_on_device += usize::from(first);
        }
    }

    pub(crate) fn unlock_device(&mut self, id: NodeId) {
        for id in self.lineage(id) {
            let mut last = false;
            self.change(id, |node| {
                last = node.device_locks == 1;
                node.device_locks = node.device_locks.saturating_sub(1);
            });
            self.locked_on_device -= usize::from(last);
        }
        self.prune(id);
    }

    /// A node and those before it, without the root.
    fn lineage(&self, id: NodeId) -> Vec<NodeId> {
        let before = |id: &NodeId| Some(self.nodes.get(id)?.parent);
        std::iter::successors(Some(id), before)
            .take_while(|&id| id != NodeId::ROOT)
            .collect()
    }

    /// Takes at most `count` pages off the host, the least recently used first, and gives their slots.
    pub(crate) fn evict_host(&mut self, count: usize) -> Vec<Slot> {
        let mut slots = Vec::new();
        while slots.len() < count {
            let Some(&(_, _, id)) = self.leaving_host.first() else {
                break;
            };
            self.change(id, |node| slots.extend(node.host.take()));
            self.reclaimed(id);
            self.prune(id);
        }
        slots
    }

    /// Takes at most `count` pages off the device, the least recently used first, and says how many.
    pub(crate) fn evict_device(&mut self, count: usize) -> usize {
        for evicted in 0..count {
            let Some(&(_, _, id)) = self.leaving_device.first() else {
                return evicted;
            };
            self.set_on_device(id, false);
            self.prune(id);
        }
        count
    }

    /// Every reclaimed host copy enters the digest: eviction happens at agreed points only, so a rank that evicts
    /// another page has diverged, and would say so too late otherwise.
    fn reclaimed(&mut self, id: NodeId) {
        self.digest = self.digest.reclaimed(id.0, 0, 1);
    }

    /// The nodes of `pages` below `anchor`, made where missing; counts as a use.
    fn grow(&mut self, anchor: NodeId, pages: &[u64]) -> Vec<NodeId> {
        let mut at = anchor;
        let mut path = Vec::with_capacity(pages.len());
        for &page in pages {
            at = self.child(at, page);
            path.push(at);
        }
        self.touch(&path);
        path
    }

    fn child(&mut self, parent: NodeId, key: u64) -> NodeId {
        let new = NodeId(self.next);
        let Some(node) = self.nodes.get_mut(&parent) else {
            return parent;
        };
        let child = *node.children.entry(key).or_insert(new);
        if child == new {
            self.next += 1;
            let depth = node.depth + 1;
            self.nodes
                .insert(new, Node::new(key, parent, depth, self.uses));
            self.refile(parent);
        }
        child
    }

    fn touch(&mut self, path: &[NodeId]) {
        self.uses += 1;
        for &id in path {
            self.unfile(id);
            let uses = self.uses;
            self.change(id, |node| node.last_use = uses);
        }
    }

    fn set_on_device(&mut self, id: NodeId, on_device: bool) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.on_device == on_device {
            return;
        }
        node.on_device = on_device;
        let parent = node.parent;
        let step = |n: usize| {
            if on_device {
                n + 1
            } else {
                n.saturating_sub(1)
            }
        };
        self.on_device = step(self.on_device);
        self.refile(id);
        self.change(parent, |node| {
            node.children_on_device = step(node.children_on_device);
        });
    }

    /// Removes a node that nothing needs any more, and those before it that stayed for its sake.
    fn prune(&mut self, id: NodeId) {
        let mut at = id;
        while let Some(node) = self.nodes.get(&at) {
            let needed = node.is_held()
                || !node.children.is_empty()
                || node.host_locks + node.device_locks > 0;
            if needed || at == NodeId::ROOT {
                return;
            }
            let (key, parent) = (node.key, node.parent);
            self.nodes.remove(&at);
            self.change(parent, |node| {
                node.children.remove(&key);
            });
            at = parent;
        }
    }

    fn change(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(&id) {
            change(node);
            self.refile(id);
        }
    }

    /// Files a node under its age wherever it may leave; the one place that keeps both orders true.
    fn refile(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let age = (node.last_use, Reverse(node.depth), id);
        let places = [
            (node.may_leave_host(), &mut self.leaving_host),
            (node.may_leave_device(), &mut self.leaving_device),
        ];
        for (may_leave, order) in places {
            if may_leave {
                order.insert(age);
            } else {
                order.remove(&age);
            }
        }
    }

    /// Must come before the age of a filed node changes.
    fn unfile(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let age = (node.last_use, Reverse(node.depth), id);
        self.leaving_host.remove(&age);
        self.leaving_device.remove(&age);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use proptest::prelude::*;

    fn with_host_copies(prompts: &[&[u64]]) -> (Tree, Pool) {
        let (mut tree, mut pool) = (Tree::new(), Pool::new(64));
        for pages in prompts {
            let slots = pool.take(pages.len());
            let duplicates = tree.graft(NodeId::ROOT, pages, &slots);
            pool.free(duplicates);
        }
        (tree, pool)
    }

    #[test]
    fn a_match_is_the_device_part_and_then_the_host_part() {
        let (mut tree, mut pool) = with_host_copies(&[&[1, 2, 3]]);
        assert_eq!(tree.match_prefix(&[1, 2, 9]), Match { device: 0, host: 2 });
        let path = tree.path(&[1]);
        tree.load(&path);
        assert_eq!(
            tree.match_prefix(&[1, 2, 3, 4]),
            Match { device: 1, host: 2 }
        );
        let slots = tree.evict_host(3);
        assert_eq!(tree.peek(&[1, 2, 3]), Match { device: 1, host: 0 });
        pool.free(slots);
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn the_least_recently_used_goes_first_and_the_deepest_of_equals() {
        let (mut tree, _) = with_host_copies(&[&[1, 2], &[5]]);
        tree.match_prefix(&[1]);
        tree.evict_host(1);
        assert_eq!(tree.peek(&[1, 2]).host, 1, "page 2 was used longest ago");
        tree.evict_host(1);
        assert_eq!((tree.peek(&[5]).host, tree.peek(&[1]).host), (0, 1));
    }

    #[test]
    fn locked_pages_stay() {
        let (mut tree, _) = with_host_copies(&[&[1, 2]]);
        let path = tree.path(&[1, 2]);
        tree.lock_host(path[1]);
        assert!(tree.evict_host(2).is_empty());
        tree.unlock_host(path[1]);
        tree.load(&path);
        tree.lock_device(path[1]);
        assert_eq!(tree.evict_device(2), 0);
        tree.unlock_device(path[1]);
        assert_eq!(tree.evict_device(3), 2);
        assert_eq!(tree.evict_host(3).len(), 2);
        assert_eq!(tree.nodes.len(), 1, "only the root is left");
    }

    #[test]
    fn copies_after_a_lost_page_are_found_again_when_it_comes_back() {
        let (mut tree, mut pool) = (Tree::new(), Pool::new(4));
        let anchor = tree.insert_on_device(&[1])[0];
        tree.graft(anchor, &[2], &pool.take(1));
        assert_eq!(
            tree.evict_device(1),
            1,
            "without a copy, but it must not hold up the device"
        );
        assert_eq!(tree.peek(&[1, 2]), Match::default());
        tree.insert_on_device(&[1]);
        assert_eq!(tree.peek(&[1, 2]), Match { device: 1, host: 1 });
        tree.evict_device(1);
        tree.evict_host(1);
        assert_eq!(tree.nodes.len(), 1, "only the root is left");
    }

    #[test]
    fn a_second_copy_is_reclaimed_and_enters_the_digest() {
        let (mut tree, mut pool) = with_host_copies(&[&[1, 2]]);
        let before = tree.digest();
        let slots = pool.take(2);
        assert_eq!(tree.graft(NodeId::ROOT, &[1, 2], &slots), slots);
        assert_ne!(tree.digest(), before);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Match(Vec<u64>),
        Graft(Vec<u64>),
        Insert(Vec<u64>),
        EvictHost(usize),
        EvictDevice(usize),
        Lock(Vec<u64>),
        LockOnDevice(Vec<u64>),
        UnlockAll,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let prompt = prop::collection::vec(0u64..3, 1..5);
        let step = prop_oneof![
            prompt.clone().prop_map(Step::Match),
            prompt.clone().prop_map(Step::Graft),
            prompt.clone().prop_map(Step::Insert),
            (0usize..4).prop_map(Step::EvictHost),
            (0usize..4).prop_map(Step::EvictDevice),
            prompt.clone().prop_map(Step::Lock),
            prompt.prop_map(Step::LockOnDevice),
            Just(Step::UnlockAll),
        ];
        prop::collection::vec(step, 0..60)
    }

    #[derive(Default)]
    struct Walk {
        locked: Vec<NodeId>,
        locked_on_device: Vec<NodeId>,
        evicted: Vec<Slot>,
    }

    fn apply(tree: &mut Tree, pool: &mut Pool, walk: &mut Walk, step: &Step) {
        match step {
            Step::Match(pages) => {
                tree.match_prefix(pages);
            }
            Step::Graft(pages) => {
                let slots = pool.take(pages.len());
                pool.free(slots[slots.len().min(pages.len())..].iter().copied());
                let duplicates = tree.graft(NodeId::ROOT, &pages[..slots.len()], &slots);
                pool.free(duplicates);
            }
            Step::Insert(pages) => {
                tree.insert_on_device(pages);
            }
            Step::EvictHost(count) => {
                let slots = tree.evict_host(*count);
                walk.evicted.extend(&slots);
                pool.free(slots);
            }
            Step::EvictDevice(count) => {
                tree.evict_device(*count);
            }
            Step::Lock(pages) => {
                if let Some(&last) = tree.path(pages).last() {
                    tree.lock_host(last);
                    walk.locked.push(last);
                }
            }
            Step::LockOnDevice(pages) => {
                let path = tree.insert_on_device(pages);
                if let Some(&last) = path.last() {
                    tree.lock_device(last);
                    walk.locked_on_device.push(last);
                }
            }
            Step::UnlockAll => {
                walk.locked.drain(..).for_each(|id| tree.unlock_host(id));
                walk.locked_on_device
                    .drain(..)
                    .for_each(|id| tree.unlock_device(id));
            }
        }
    }

    proptest! {
        #[test]
        fn two_trees_with_one_history_evict_alike(steps in steps()) {
            let mut runs = [(); 2].map(|()| (Tree::new(), Pool::new(12), Walk::default()));
            for (tree, pool, walk) in &mut runs {
                steps.iter().for_each(|step| apply(tree, pool, walk, step));
            }
            let [(one, _, a), (other, _, b)] = runs;
            prop_assert_eq!(a.evicted, b.evicted);
            prop_assert_eq!(one.digest(), other.digest());
            prop_assert_eq!(one.leaving_host, other.leaving_host);
        }

        #[test]
        fn what_is_held_stays_a_prefix_and_both_orders_stay_true(steps in steps()) {
            let (mut tree, mut pool, mut walk) = (Tree::new(), Pool::new(12), Walk::default());
            for step in &steps {
                apply(&mut tree, &mut pool, &mut walk, step);
                for (&id, node) in tree.nodes.iter().filter(|(id, _)| **id != NodeId::ROOT) {
                    let parent = &tree.nodes[&node.parent];
                    prop_assert!(node.is_held() || !node.children.is_empty() || node.host_locks > 0);
                    prop_assert!(!node.on_device || parent.on_device || node.parent == NodeId::ROOT);
                    let age = (node.last_use, Reverse(node.depth), id);
                    prop_assert_eq!(tree.leaving_host.contains(&age), node.may_leave_host());
                    prop_assert_eq!(tree.leaving_device.contains(&age), node.may_leave_device());
                }
                prop_assert!(walk.locked.iter().all(|id| tree.nodes.contains_key(id)));
                let host = tree.nodes.values().filter(|node| node.host.is_some()).count();
                prop_assert_eq!(host + pool.available(), 12);
                let locked = tree.nodes.values().filter(|node| node.device_locks > 0);
                prop_assert!(locked.clone().all(|node| node.on_device));
                prop_assert_eq!(locked.count(), tree.locked_on_device);
                let filed = tree.leaving_host.len() + tree.leaving_device.len();
                prop_assert!(filed <= 2 * tree.nodes.len());
            }
        }
    }
}
