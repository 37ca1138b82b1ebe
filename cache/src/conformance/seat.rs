//! One rank of a scenario: a cache whose clock, storage and device the scenario holds in its hands.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Call, Checked, Recorder};
use crate::agreement::Ranks;
use crate::cache::{Cache, Enqueued};
use crate::clock::Clock;
use crate::completion::Completion;
use crate::config::Config;
use crate::decision::Decision;
use crate::device::{Device, PageCopy, SyntheticDevice};
use crate::error::Error;
use crate::guard::lock;
use crate::pool::Buffers;
use crate::prefetch::{Handle, Wait};
use crate::row::Counts;
use crate::storage::Storage;
use crate::tick::TickReport;
use crate::workers::Backend;

/// Far longer than any worker needs; only a broken scenario waits so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// One rank of a scenario.
#[derive(Debug)]
pub struct Seat<'a> {
    pub(super) cache: Cache,
    ranks: Recorder<'a>,
    clock: HandClock,
    pub(super) storage: GatedStorage,
    pub(super) device: HandDevice,
    decisions: Arc<Mutex<Vec<Decision>>>,
}

impl<'a> Seat<'a> {
    pub(super) fn new(
        config: Config,
        tick: &'a mut dyn Ranks,
        groups: Option<(Box<dyn Ranks>, Box<dyn Ranks>)>,
    ) -> Checked<Self> {
        let (clock, storage, device) = (
            HandClock::default(),
            GatedStorage::default(),
            HandDevice::default(),
        );
        let decisions = Arc::new(Mutex::new(Vec::new()));
        let seen = decisions.clone();
        let backend = groups.map(|(hits, acks)| Backend {
            storage: Arc::new(storage.clone()),
            hits,
            acks,
            batch_pages: 1,
            read_delay: Duration::ZERO,
        });
        let cache = Cache::new(config, Box::new(device.clone()), backend)
            .map_err(|error| error.to_string())?
            .with_clock(Box::new(clock.clone()))
            .with_witness(Box::new(move |decision: &Decision| {
                lock(&seen).push(decision.clone());
            }));
        Ok(Self {
            cache,
            ranks: Recorder {
                ranks: tick,
                calls: Vec::new(),
            },
            clock,
            storage,
            device,
            decisions,
        })
    }

    pub(super) fn rank(&self) -> usize {
        self.ranks.rank()
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.ranks.calls
    }

    pub(super) fn decisions(&self) -> Vec<Decision> {
        lock(&self.decisions).clone()
    }

    /// Issues a prefetch of pages that the cache does not hold.
    pub(super) fn prefetch(&mut self, handle: &Handle, pages: &[u64]) -> Checked {
        match self.cache.prefetch_from_storage(handle, pages) {
            // A query that is cut before it is asked is answered at once, in whatever tick that falls.
            Enqueued::Issued { .. } if self.storage.until_asked() => Ok(()),
            other => Err(format!(
                "the prefetch of {handle} was not issued or not asked: {other:?}"
            )),
        }
    }

    pub(super) fn poll(&mut self, handles: &[Handle]) -> Vec<bool> {
        handles
            .iter()
            .map(|handle| self.cache.poll(handle))
            .collect()
    }

    pub(super) fn poll_agreeing(&mut self, handle: &Handle) -> Checked<bool> {
        self.cache
            .poll_agreeing(handle, &mut self.ranks)
            .map_err(|error| error.to_string())
    }

    pub(super) fn tick(&mut self) -> Checked<TickReport> {
        self.cache
            .tick(&mut self.ranks)
            .map_err(|error| error.to_string())
    }

    pub(super) fn tick_fails(&mut self) -> Checked<Error> {
        match self.cache.tick(&mut self.ranks) {
            Ok(report) => Err(format!("the tick went well: {report:?}")),
            Err(error) => Ok(error),
        }
    }

    pub(super) fn waits(&self) -> Vec<Wait> {
        self.cache.live().map(|(_, wait)| wait).collect()
    }

    /// Spends every budget on the clock of this rank.
    pub(super) fn let_budgets_run_out(&self) {
        *lock(&self.clock.0) += Duration::from_secs(3600);
    }

    /// Computes a prompt: its pages end up on the device.
    pub(super) fn compute(&mut self, rid: &str, pages: &[u64]) -> Checked {
        let handle = Handle::new(rid, 0);
        self.cache
            .admit(&handle, pages)
            .ok_or("the device has no room")?;
        self.cache.finish(&handle);
        Ok(())
    }

    /// Waits until the workers have brought the ready counts there.
    pub(super) fn until_ready(&self, wanted: &Counts) -> Checked {
        let deadline = Instant::now() + PATIENCE;
        while self.cache.ready() != *wanted {
            if Instant::now() > deadline {
                return Err(format!(
                    "the ready counts stay at {:?}, not {wanted:?}",
                    self.cache.ready()
                ));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn shut_down(&mut self) -> Checked {
        self.storage.open();
        self.cache.shutdown().map_err(|error| error.to_string())
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        // A query thread may still stand at the gate.
        self.storage.open();
    }
}

/// A clock that moves only by hand.
#[derive(Clone, Debug, Default)]
struct HandClock(Arc<Mutex<Duration>>);

impl Clock for HandClock {
    fn now(&self) -> Duration {
        *lock(&self.0)
    }
}

/// Storage in memory that answers no question before it is opened.
#[derive(Clone, Debug, Default)]
pub(super) struct GatedStorage {
    shared: Arc<(Mutex<Pages>, Condvar)>,
}

#[derive(Debug, Default)]
struct Pages {
    open: bool,
    asked: bool,
    stored: BTreeSet<u64>,
}

impl GatedStorage {
    pub(super) fn open(&self) {
        lock(&self.shared.0).open = true;
        self.shared.1.notify_all();
    }

    /// Waits until a question stands at the gate, with all later ones behind it.
    fn until_asked(&self) -> bool {
        let (pages, changed) = &*self.shared;
        let waited =
            changed.wait_timeout_while(lock(pages), PATIENCE, |pages| !pages.open && !pages.asked);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(super) fn put(&self, pages: impl IntoIterator<Item = u64>) {
        lock(&self.shared.0).stored.extend(pages);
    }
}

impl Storage for GatedStorage {
    fn exists(&self, key: u64) -> bool {
        let (pages, changed) = &*self.shared;
        lock(pages).asked = true;
        changed.notify_all();
        let waited = changed.wait_timeout_while(lock(pages), PATIENCE, |pages| !pages.open);
        waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .stored
            .contains(&key)
    }

    fn read(&self, key: u64, page: &mut [u8]) -> io::Result<()> {
        SyntheticDevice::fill(key, page);
        Ok(())
    }

    fn write(&self, key: u64, _page: &[u8]) -> io::Result<()> {
        self.put([key]);
        Ok(())
    }
}

/// A device whose copies end at once, or by hand once they are held.
#[derive(Clone, Debug, Default)]
pub(super) struct HandDevice {
    shared: Arc<Mutex<Copies>>,
}

#[derive(Debug, Default)]
struct Copies {
    held: bool,
    started: Vec<Completion>,
}

impl HandDevice {
    /// From now on copies end by hand.
    pub(super) fn hold(&self) {
        lock(&self.shared).held = true;
    }

    /// Ends the copies at these places, counted from when they were first held.
    pub(super) fn complete(&self, places: &[usize]) {
        let copies = lock(&self.shared);
        places
            .iter()
            .filter_map(|&place| copies.started.get(place))
            .for_each(Completion::complete);
    }

    fn start(&self) -> Completion {
        let mut copies = lock(&self.shared);
        if !copies.held {
            return Completion::done();
        }
        let event = Completion::new();
        copies.started.push(event.clone());
        event
    }
}

impl Device for HandDevice {
    fn store(&mut self, _pages: Vec<PageCopy>, _host: &Arc<Buffers>) -> Completion {
        self.start()
    }

    fn load(&mut self, _pages: Vec<PageCopy>, _host: &Arc<Buffers>) -> Completion {
        self.start()
    }
}
