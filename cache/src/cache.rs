//! The cache of one rank, as its scheduler thread sees it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use rankpact_collective::Op;

use crate::admission::{DeviceCopy, LoadAck, Loaded, Running};
use crate::agreement::Ranks;
use crate::clock::{Clock, SystemClock};
use crate::completion::Completion;
use crate::config::{Agreement, Config};
use crate::decision::{Decision, Witness};
use crate::device::Device;
use crate::digest::Digest;
use crate::error::Error;
use crate::ledger::{Counters, Ledger, Reason};
use crate::policy::Policy;
use crate::pool::{Buffers, Pool, Slot};
use crate::prefetch::{Entry, Handle, LiveTable, Operation, Wait};
use crate::retry::Retries;
use crate::tick::Reductions;
use crate::tree::{Match, NodeId, Tree};
use crate::vote::{PackedVote, Vote};
use crate::workers::{Backend, Workers};

/// The hierarchical cache of one rank: device, host pool, storage.
///
/// All methods are for the scheduler thread. Only [`Cache::tick`] and [`Cache::poll_agreeing`] communicate; all
/// others must be called in the same order with the same arguments on every rank, and a rank that does not is found
/// out by the next tick under policy timeout.
pub struct Cache {
    pub(crate) config: Config,
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) device: Box<dyn Device>,
    pub(crate) vote: Box<dyn Vote>,
    pub(crate) witness: Option<Box<dyn Witness>>,
    pub(crate) workers: Option<Workers>,

    pub(crate) tree: Tree,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) pool: Pool,
    pub(crate) extra: Vec<ExtraPool>,

    pub(crate) live: LiveTable,
    next_operation: u64,
    /// Pages asked of storage by the live prefetches.
    pub(crate) occupied: usize,
    /// Slots of retired prefetches that a read may still write to, until the last acknowledgement.
    pub(crate) tails: HashMap<u64, Vec<Slot>>,
    pub(crate) loaded: HashMap<Handle, Loaded>,
    pub(crate) retries: Retries,

    pub(crate) running: IndexMap<Handle, Running>,
    /// Device pages promised to running requests.
    pub(crate) reserved: usize,
    pub(crate) queued_backups: Vec<DeviceCopy>,
    pub(crate) writes: VecDeque<WriteAck>,
    pub(crate) loads: VecDeque<LoadAck>,
    pub(crate) release: VecDeque<Slot>,

    pub(crate) ledger: Ledger,
    pub(crate) counters: Counters,
    pub(crate) reductions: Reductions,
}

/// A further pool of slots whose releases are agreed upon.
#[derive(Debug)]
pub(crate) struct ExtraPool {
    pub(crate) pool: Pool,
    pub(crate) release: VecDeque<Slot>,
}

/// A device-to-host copy in flight; one for all backups of a tick.
#[derive(Debug)]
pub(crate) struct WriteAck {
    pub(crate) done: Completion,
    pub(crate) parts: Vec<(DeviceCopy, Vec<Slot>)>,
}

/// What became of a wish for a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// Storage is off.
    Off,
    /// The handle has a live prefetch.
    AlreadyLive,
    /// Too little is missing to be worth a transfer.
    TooShort,
    /// Too much is being fetched; tried again some passes from now.
    RateLimited,
    /// Storage is being asked for this many pages.
    Issued {
        /// Pages.
        pages: usize,
    },
}

impl Cache {
    /// A cache without storage, or with storage and running worker threads.
    ///
    /// # Errors
    ///
    /// When the configuration can never work or a thread cannot be started.
    pub fn new(
        config: Config,
        device: Box<dyn Device>,
        backend: Option<Backend>,
    ) -> Result<Self, Error> {
        config.check()?;
        if backend
            .as_ref()
            .is_some_and(|backend| backend.batch_pages == 0)
        {
            return Err(Error::Config("a batch needs at least one page".into()));
        }
        let (pool, buffers) = Pool::with_buffers(config.host_pages, config.page_bytes);
        let workers = backend
            .map(|backend| Workers::start(backend, &buffers))
            .transpose()
            .map_err(|error| {
                Error::Config(format!("a worker thread cannot be started: {error}"))
            })?;
        let extra = config
            .extra_pools
            .iter()
            .map(|&slots| ExtraPool::new(slots))
            .collect();
        Ok(Self {
            clock: Box::new(SystemClock::start()),
            device,
            vote: Box::new(PackedVote),
            witness: None,
            workers,
            tree: Tree::new(),
            buffers,
            pool,
            extra,
            live: LiveTable::default(),
            next_operation: 0,
            occupied: 0,
            tails: HashMap::new(),
            loaded: HashMap::new(),
            retries: Retries::new(config.retry),
            running: IndexMap::new(),
            reserved: 0,
            queued_backups: Vec::new(),
            writes: VecDeque::new(),
            loads: VecDeque::new(),
            release: VecDeque::new(),
            ledger: Ledger::default(),
            counters: Counters::default(),
            reductions: Reductions::default(),
            config,
        })
    }

    /// Replaces the clock of the waits.
    #[must_use]
    pub fn with_clock(mut self, clock: Box<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Replaces the way in which deadline flags are agreed.
    #[must_use]
    pub fn with_vote(mut self, vote: Box<dyn Vote>) -> Self {
        self.vote = vote;
        self
    }

    /// Shows every agreed decision to `witness`.
    #[must_use]
    pub fn with_witness(mut self, witness: Box<dyn Witness>) -> Self {
        self.witness = Some(witness);
        self
    }

    /// Asks storage for what is missing of a prompt; the answer comes with a later tick.
    ///
    /// Cancels a pending second try of the request.
    pub fn prefetch_from_storage(&mut self, handle: &Handle, pages: &[u64]) -> Enqueued {
        let Some(workers) = &self.workers else {
            return Enqueued::Off;
        };
        self.retries.cancel(&handle.rid);
        if self.live.get(handle).is_some() {
            return Enqueued::AlreadyLive;
        }
        self.counters.attempts += 1;
        let start = self.tree.match_prefix(pages).pages();
        let missing = pages.len() - start;
        if missing == 0 || self.config.tokens(missing) < self.config.threshold_tokens as u64 {
            self.counters.declined_too_short += 1;
            return Enqueued::TooShort;
        }
        if self.occupied >= self.config.prefetch_pages {
            self.counters.declined_rate_limited += 1;
            self.retries.arm_paced(&handle.rid);
            return Enqueued::RateLimited;
        }
        let anchor = self
            .tree
            .path(pages)
            .last()
            .copied()
            .unwrap_or(NodeId::ROOT);
        self.tree.lock_host(anchor);
        self.occupied += missing;
        self.counters.issued += 1;
        self.counters.requested_tokens += self.config.tokens(missing);
        let operation = Arc::new(Operation::new(
            self.next_operation,
            handle.clone(),
            pages[start..].to_vec(),
        ));
        self.next_operation += 1;
        workers.query(operation.clone());
        self.live.push(Entry::new(operation, anchor, start));
        Enqueued::Issued { pages: missing }
    }

    /// Whether a request need not wait for its prefetch any more; true also for a handle without one.
    ///
    /// Never communicates: under policy timeout it reads the verdict of the last tick, and starts the wait of a
    /// request that it blocks for the first time.
    pub fn poll(&mut self, handle: &Handle) -> bool {
        let Some(entry) = self.live.get_mut(handle) else {
            return true;
        };
        let over = entry.operation.is_terminated() || self.config.policy == Policy::BestEffort;
        if over {
            self.retire(handle);
        } else if matches!(self.config.policy, Policy::Timeout(_)) && entry.wait == Wait::NotStarted
        {
            entry.wait = Wait::Started(self.clock.now());
        }
        over
    }

    /// The poll of the old shape: one MAX for each blocked request under policy timeout, here and now.
    ///
    /// For comparison only. Ranks that poll unequally often hang or mismatch, which is why [`Agreement::Tick`]
    /// exists; under that agreement this is [`Cache::poll`].
    ///
    /// # Errors
    ///
    /// Whatever ended the round. Blocks until every rank polls, at most for the group's deadline.
    pub fn poll_agreeing(&mut self, handle: &Handle, ranks: &mut dyn Ranks) -> Result<bool, Error> {
        if self.poll(handle) {
            return Ok(true);
        }
        let asks = self.config.agreement == Agreement::Poll
            && matches!(self.config.policy, Policy::Timeout(_));
        let Some(entry) = self.live.get(handle).filter(|_| asks) else {
            return Ok(false);
        };
        let mut row = [self.flag(entry, self.clock.now())];
        self.reductions
            .counting(ranks)
            .reduce(Op::Max, &mut row, "poll")?;
        if row[0] == 0 {
            return Ok(false);
        }
        self.mark_expired(handle);
        self.retire(handle);
        Ok(true)
    }

    /// Records the agreed verdict that a live prefetch has run out of time; a second time it changes nothing.
    ///
    /// The tick does this after its vote; an engine that carries verdicts some other way calls it on every rank in
    /// the same tick.
    pub fn mark_expired(&mut self, handle: &Handle) {
        let Some(entry) = self.live.get_mut(handle) else {
            return;
        };
        if !entry.is_expired() {
            entry.expire();
            self.decide(Decision::Expired {
                handle: handle.clone(),
            });
        }
    }

    /// Counts one scheduling pass and says which waiting requests should ask storage again, in queue order.
    ///
    /// Call it once a pass with the whole waiting queue.
    pub fn due_retries<'a>(
        &mut self,
        waiting: impl IntoIterator<Item = &'a Handle>,
    ) -> Vec<Handle> {
        self.retries.due(waiting)
    }

    /// Has a request ask storage again at the next pass, for one that lost pages it had been brought.
    pub fn refetch(&mut self, rid: &str) {
        self.retries.arm_immediate(rid);
    }

    /// How much of a prompt the cache holds, without counting as a use of it.
    #[must_use]
    pub fn peek(&self, pages: &[u64]) -> Match {
        self.tree.peek(pages)
    }

    /// Takes a slot of an extra pool; `None` when it is empty or there is no such pool.
    pub fn take_extra(&mut self, pool: usize) -> Option<Slot> {
        self.extra.get_mut(pool)?.pool.take(1).pop()
    }

    /// Gives a slot of an extra pool back, free once all ranks have given one back.
    pub fn release_extra(&mut self, pool: usize, slot: Slot) {
        if let Some(extra) = self.extra.get_mut(pool) {
            extra.release.push_back(slot);
        }
    }

    /// Slots of an extra pool that could be taken now.
    #[must_use]
    pub fn extra_available(&self, pool: usize) -> usize {
        self.extra
            .get(pool)
            .map_or(0, |extra| extra.pool.available())
    }

    /// Free pages of the host pool.
    #[must_use]
    pub fn host_available(&self) -> usize {
        self.pool.available()
    }

    /// Pages asked of storage by the live prefetches.
    #[must_use]
    pub fn occupied(&self) -> usize {
        self.occupied
    }

    /// The live prefetches with their waits, in table order.
    pub fn live(&self) -> impl Iterator<Item = (&Handle, Wait)> {
        self.live
            .entries()
            .map(|entry| (&entry.operation.handle, entry.wait))
    }

    /// Where every token of every hit went.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How often each thing happened.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many reductions the scheduler thread has made.
    #[must_use]
    pub fn reductions(&self) -> Reductions {
        self.reductions
    }

    /// What the digest slots of the next row will say.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let base = self.tree.digest();
        if self.config.fold && self.votes() {
            base.folded(self.live.handles())
        } else {
            base
        }
    }

    /// Ends the workers and settles what is left, without a word to the peers: they may be gone.
    ///
    /// Blocks until the workers have finished what they have, at most for the drain timeout.
    ///
    /// # Errors
    ///
    /// When a worker is still busy then; its pages are not reused, and the thread is left to itself.
    pub fn shutdown(&mut self) -> Result<(), Error> {
        for entry in self.live.entries() {
            entry.operation.terminate();
        }
        let stopped = self
            .workers
            .as_mut()
            .map_or(Ok(()), |workers| workers.stop(self.config.drain_timeout));
        self.drain_leftovers();
        let handles: Vec<_> = self.live.handles().cloned().collect();
        for handle in &handles {
            self.abort(handle);
        }
        if stopped.is_ok() {
            let tails: Vec<_> = std::mem::take(&mut self.tails)
                .into_values()
                .flatten()
                .collect();
            self.pool.free(tails);
        }
        self.ledger.close_all(Reason::Dropped);
        self.workers = None;
        stopped
    }

    /// Whether this tick would vote, which is also when the digest covers the live table.
    pub(crate) fn votes(&self) -> bool {
        self.workers.is_some()
            && self.config.agreement == Agreement::Tick
            && matches!(self.config.policy, Policy::Timeout(_))
            && !self.live.is_empty()
    }

    /// This rank's flag for a live prefetch: 1 if it has run out of time here.
    pub(crate) fn flag(&self, entry: &Entry, now: Duration) -> i64 {
        let Policy::Timeout(budget) = &self.config.policy else {
            return 0;
        };
        let known = entry
            .hit
            .unwrap_or(0)
            .saturating_mul(self.config.page_tokens);
        i64::from(entry.wait.is_overdue(now, budget, known))
    }

    pub(crate) fn decide(&mut self, decision: Decision) {
        if let Some(witness) = &mut self.witness {
            witness.decided(&decision);
        }
    }

    pub(crate) fn make_room_on_host(&mut self, pages: usize) {
        let lacking = pages.saturating_sub(self.pool.available());
        let evicted = self.tree.evict_host(lacking);
        self.pool.free(evicted);
    }
}

impl ExtraPool {
    fn new(slots: usize) -> Self {
        Self {
            pool: Pool::new(slots),
            release: VecDeque::new(),
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("config", &self.config)
            .field("live", &self.live)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// How long a copy may take that all ranks have agreed to consume.
pub(crate) fn wait_for(
    done: &Completion,
    queue: &'static str,
    rank: usize,
    timeout: Duration,
) -> Result<(), Error> {
    if done.wait(timeout) {
        return Ok(());
    }
    Err(Error::DrainTimeout {
        rank,
        queue,
        wanted: 1,
        arrived: 0,
        after: timeout,
    })
}
