//! The cache over real page files and real worker threads.

mod ranks;

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rankpact_cache::{
    Backend, Budget, Cache, Config, Counts, Decision, Enqueued, Error, Handle, PageFiles, Policy,
    Ranks, Reason, Storage, SyntheticDevice, Vote,
};
use rankpact_collective::{Error as CollectiveError, ErrorKind, Op};
use ranks::{Alone, Job};
use tempfile::tempdir;

const PAGE_BYTES: usize = 64;
const PATIENCE: Duration = Duration::from_secs(30);

fn config(policy: Policy) -> Config {
    Config {
        policy,
        ..Config::new(256, PAGE_BYTES, 16, 16)
    }
}

fn backend(storage: Arc<dyn Storage>) -> Backend {
    Backend {
        storage,
        hits: Box::new(Alone::default()),
        acks: Box::new(Alone::default()),
        batch_pages: 1,
        read_delay: Duration::ZERO,
    }
}

fn cache(config: Config, storage: &Arc<impl Storage + 'static>) -> Cache {
    Cache::new(
        config,
        Box::new(SyntheticDevice::new()),
        Some(backend(storage.clone())),
    )
    .unwrap()
}

fn handle(rid: &str) -> Handle {
    Handle::new(rid, 0)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} never held");
        thread::sleep(Duration::from_millis(1));
    }
}

fn tick(cache: &mut Cache) {
    cache.tick(&mut Alone::default()).unwrap();
}

fn tick_until(cache: &mut Cache, what: &str, holds: impl Fn(&Cache) -> bool) {
    until(what, || {
        tick(cache);
        holds(cache)
    });
}

fn hits_ready(cache: &Cache, count: usize) -> bool {
    cache.ready().storage.unwrap().hit == count
}

fn acks_ready(cache: &Cache, count: usize) -> bool {
    cache.ready().storage.unwrap().ack == count
}

/// Asks storage and waits for its answer, which no tick has seen yet.
fn ask(cache: &mut Cache, handle: &Handle, pages: &[u64]) {
    assert!(matches!(
        cache.prefetch_from_storage(handle, pages),
        Enqueued::Issued { .. }
    ));
    until("the hit", || hits_ready(cache, 1));
}

fn compute(cache: &mut Cache, rid: &str, pages: &[u64]) {
    cache.admit(&handle(rid), pages).unwrap();
    cache.finish(&handle(rid));
}

fn assert_settled(cache: &mut Cache) {
    cache.shutdown().unwrap();
    assert!(cache.ledger().is_closed(), "{:?}", cache.ledger());
    let counters = cache.counters();
    assert_eq!(
        counters.issued,
        counters.completed + counters.revoked + counters.cut + counters.aborted
    );
    assert_eq!(cache.occupied(), 0);
}

/// Pages in memory, with gates on reading, failures and a count of reads.
#[derive(Default)]
struct Memory {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stored: BTreeSet<u64>,
    reads: usize,
    reading_held: bool,
    full: bool,
    panics: bool,
}

impl Memory {
    fn holding(pages: impl IntoIterator<Item = u64>) -> Arc<Self> {
        let memory = Self::default();
        memory.state.lock().unwrap().stored.extend(pages);
        Arc::new(memory)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn reads(&self) -> usize {
        self.state.lock().unwrap().reads
    }
}

impl Storage for Memory {
    fn exists(&self, key: u64) -> bool {
        let (panics, exists) = {
            let state = self.state.lock().unwrap();
            (state.panics, state.stored.contains(&key))
        };
        assert!(!panics, "a broken storage library");
        exists
    }

    fn read(&self, key: u64, page: &mut [u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.reads += 1;
        drop(
            self.changed
                .wait_timeout_while(state, PATIENCE, |state| state.reading_held)
                .unwrap(),
        );
        SyntheticDevice::fill(key, page);
        Ok(())
    }

    fn write(&self, key: u64, _page: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.stored.insert(key);
        Ok(())
    }
}

#[test]
fn pages_travel_from_the_device_to_storage_and_back_unchanged() {
    let folder = tempdir().unwrap();
    let files = Arc::new(PageFiles::open(folder.path()).unwrap());
    let device = SyntheticDevice::new();
    let config = Config {
        host_pages: 4,
        device_pages: 4,
        prefetch_pages: 4,
        ..config(Policy::WaitComplete)
    };
    let mut cache = Cache::new(
        config,
        Box::new(device.clone()),
        Some(backend(files.clone())),
    )
    .unwrap();
    for (n, base) in [10, 20, 30].into_iter().enumerate() {
        compute(&mut cache, &format!("r{n}"), &[base, base + 1, base + 2]);
        tick_until(&mut cache, "the write-through", |cache| {
            cache.counters().backup_written == 3 * (n as u64 + 1)
        });
    }
    assert_eq!(
        cache.peek(&[10, 11, 12]).pages(),
        0,
        "both the device and the host have evicted it"
    );
    assert!(files.exists(10) && files.exists(12));

    let again = handle("again");
    ask(&mut cache, &again, &[10, 11, 12]);
    assert!(!cache.poll(&again));
    tick_until(&mut cache, "the landing", |cache| {
        cache.live().next().is_none()
    });
    assert!(cache.poll(&again));
    let admission = cache.admit(&again, &[10, 11, 12, 99]).unwrap();
    assert_eq!(
        (admission.device, admission.loaded, admission.missing),
        (0, 3, 1)
    );
    assert!(admission.ready.wait(PATIENCE));
    assert_eq!(device.damaged_pages(), 0);
    assert_eq!(
        (cache.ledger().hit(), cache.ledger().fulfilled()),
        (768, 768)
    );
    cache.finish(&again);
    tick(&mut cache);
    assert_settled(&mut cache);
}

#[test]
fn a_request_that_does_not_fit_costs_the_others_nothing() {
    let config = Config {
        device_pages: 6,
        ..config(Policy::WaitComplete)
    };
    let mut cache = Cache::new(config, Box::new(SyntheticDevice::new()), None).unwrap();
    compute(&mut cache, "done", &[1, 2]);
    tick(&mut cache);
    cache.admit(&handle("runs"), &[10, 11, 12]).unwrap();
    assert!(cache.admit(&handle("large"), &[20, 21, 22, 23]).is_none());
    assert_eq!(cache.peek(&[1, 2]).device, 2);
    assert_eq!(cache.admit(&handle("small"), &[1, 2, 3]).unwrap().device, 2);
    cache.finish(&handle("runs"));
    cache.finish(&handle("small"));
    tick(&mut cache);
    assert_eq!(
        cache
            .admit(&handle("large"), &[20, 21, 22, 23])
            .unwrap()
            .missing,
        4
    );
}

#[test]
fn a_damaged_page_ends_what_has_landed() {
    let folder = tempdir().unwrap();
    let files = Arc::new(PageFiles::open(folder.path()).unwrap());
    for key in 1..4 {
        files.write(key, &[0; PAGE_BYTES]).unwrap();
    }
    let mut bytes = std::fs::read(files.path(2)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(files.path(2), bytes).unwrap();
    let mut cache = cache(config(Policy::WaitComplete), &files);
    ask(&mut cache, &handle("a"), &[1, 2, 3]);
    tick_until(&mut cache, "the landing", |cache| {
        cache.live().next().is_none()
    });
    assert_eq!(cache.peek(&[1, 2, 3]).host, 1);
    assert_eq!(cache.ledger().unfulfilled()[&Reason::StorageTransfer], 512);
    assert_settled(&mut cache);
}

#[test]
fn a_full_storage_costs_only_the_pages() {
    let memory = Memory::holding([]);
    memory.set(|state| state.full = true);
    let mut cache = cache(config(Policy::WaitComplete), &memory);
    compute(&mut cache, "a", &[1, 2]);
    tick_until(&mut cache, "the refusal", |cache| {
        cache.counters().backup_failed == 2
    });
    memory.set(|state| state.full = false);
    compute(&mut cache, "b", &[3]);
    tick_until(&mut cache, "the write-through", |cache| {
        cache.counters().backup_written == 1
    });
    assert_settled(&mut cache);
}

#[test]
fn an_expired_query_is_revoked_once_by_the_drain_and_not_tried_again() {
    let mut cache = cache(config(Policy::default()), &Memory::holding(1..4));
    ask(&mut cache, &handle("a"), &[1, 2, 3]);
    cache.mark_expired(&handle("a"));
    tick(&mut cache);
    assert!(cache.poll(&handle("a")));
    assert_eq!(cache.counters().revoked, 1);
    assert_eq!(cache.ledger().unfulfilled()[&Reason::Deadline], 768);
    let waiting = [handle("head"), handle("a")];
    assert!((0..20).all(|_| cache.due_retries(&waiting).is_empty()));
    assert_settled(&mut cache);
}

#[test]
fn an_expired_transfer_is_settled_by_its_last_acknowledgement_before_any_poll() {
    let memory = Memory::holding(1..4);
    memory.set(|state| state.reading_held = true);
    let mut cache = cache(config(Policy::default()), &memory);
    ask(&mut cache, &handle("a"), &[1, 2, 3]);
    tick(&mut cache);
    until("the first read", || memory.reads() == 1);
    cache.mark_expired(&handle("a"));
    memory.set(|state| state.reading_held = false);
    until("the acknowledgements", || acks_ready(&cache, 4));
    tick(&mut cache);
    assert_eq!(cache.live().count(), 0);
    assert_eq!(cache.counters().cut, 1);
    assert_eq!(cache.peek(&[1, 2, 3]).host, 1, "the completed prefix");
    assert_eq!(cache.ledger().unfulfilled()[&Reason::Deadline], 512);
    assert!(cache.poll(&handle("a")));
    assert_settled(&mut cache);
}

#[test]
fn a_miss_and_a_short_hit_are_revoked_and_tried_again() {
    let config = Config {
        threshold_tokens: 3 * 256,
        ..config(Policy::WaitComplete)
    };
    let config = Config {
        prefetch_pages: 16,
        ..config
    };
    let mut cache = cache(config, &Memory::holding([20, 21]));
    let waiting = [handle("head"), handle("miss"), handle("short")];
    cache.prefetch_from_storage(&waiting[1], &[10, 11, 12, 13, 14, 15, 16, 17]);
    cache.prefetch_from_storage(&waiting[2], &[20, 21, 22, 23, 24, 25, 26, 27]);
    until("the hits", || hits_ready(&cache, 2));
    tick(&mut cache);
    let counters = *cache.counters();
    assert_eq!(
        (
            counters.revoked_full_miss,
            counters.revoked_insufficient,
            counters.revoked
        ),
        (1, 1, 2)
    );
    assert_eq!(counters.missed_tokens, 14 * 256);
    assert_eq!(cache.ledger().unfulfilled()[&Reason::BelowThreshold], 512);
    let fired: Vec<_> = (0..9).flat_map(|_| cache.due_retries(&waiting)).collect();
    assert_eq!(fired, waiting[1..]);
    assert_settled(&mut cache);
}

#[test]
fn a_cut_transfer_sends_every_acknowledgement_but_reads_no_more() {
    let memory = Memory::holding(1..4);
    memory.set(|state| state.reading_held = true);
    let mut cache = cache(config(Policy::BestEffort), &memory);
    ask(&mut cache, &handle("a"), &[1, 2, 3]);
    tick(&mut cache);
    until("the first read", || memory.reads() == 1);
    assert!(cache.poll(&handle("a")));
    assert_eq!(
        cache.host_available(),
        13,
        "a read may still write to all three"
    );
    memory.set(|state| state.reading_held = false);
    until("the acknowledgements", || acks_ready(&cache, 4));
    assert_eq!(memory.reads(), 1);
    tick(&mut cache);
    assert_eq!(
        cache.host_available(),
        13,
        "the last acknowledgement hands them over"
    );
    tick(&mut cache);
    assert_eq!(cache.host_available(), 16);
    assert_settled(&mut cache);
}

#[test]
fn an_acknowledgement_of_an_older_operation_leaves_the_new_one_alone() {
    let memory = Memory::holding(1..4);
    memory.set(|state| state.reading_held = true);
    let mut cache = cache(config(Policy::BestEffort), &memory);
    let a = handle("a");
    ask(&mut cache, &a, &[1, 2]);
    tick(&mut cache);
    until("the first read", || memory.reads() == 1);
    assert!(cache.poll(&a));
    ask(&mut cache, &a, &[1, 2, 3]);
    memory.set(|state| state.reading_held = false);
    until("the old acknowledgements", || acks_ready(&cache, 3));
    tick(&mut cache);
    assert_eq!(cache.live().count(), 1, "the new operation is live");
    tick_until(&mut cache, "the landing", |cache| {
        cache.live().next().is_none()
    });
    assert_eq!(cache.peek(&[1, 2, 3]).host, 3);
    tick(&mut cache);
    assert_eq!(cache.host_available(), 13);
    assert_settled(&mut cache);
}

#[test]
fn aborting_twice_is_aborting_once_and_other_attempts_stay() {
    let memory = Memory::holding(1..8);
    memory.set(|state| state.reading_held = true);
    let mut cache = cache(config(Policy::WaitComplete), &memory);
    let (first, second) = (Handle::new("a", 0), Handle::new("a", 1));
    ask(&mut cache, &first, &[1, 2, 3]);
    tick(&mut cache);
    cache.prefetch_from_storage(&second, &[4, 5]);
    assert_eq!(cache.occupied(), 5);
    for _ in 0..2 {
        cache.abort(&first);
        assert_eq!((cache.occupied(), cache.counters().aborted), (2, 1));
        assert!(cache.poll(&first) && !cache.poll(&second));
    }
    memory.set(|state| state.reading_held = false);
    tick_until(&mut cache, "the landing", |cache| {
        cache.live().next().is_none()
    });
    assert_eq!(cache.peek(&[4, 5]).host, 2);
    tick(&mut cache);
    assert_eq!(cache.host_available(), 14);
    assert_settled(&mut cache);
}

#[test]
fn a_hit_that_finds_no_room_is_cut_to_what_fits_or_revoked() {
    let config = Config {
        host_pages: 3,
        prefetch_pages: 16,
        ..config(Policy::WaitComplete)
    };
    let memory = Memory::holding(1..16);
    memory.set(|state| state.reading_held = true);
    let mut cache = cache(config, &memory);
    ask(&mut cache, &handle("a"), &[1, 2, 3, 4, 5]);
    tick(&mut cache);
    assert_eq!(cache.ledger().unfulfilled()[&Reason::HostCapacity], 512);
    ask(&mut cache, &handle("b"), &[11, 12]);
    tick(&mut cache);
    assert_eq!(cache.ledger().unfulfilled()[&Reason::HostCapacity], 1024);
    assert_eq!(cache.counters().revoked, 1);
    memory.set(|state| state.reading_held = false);
    assert_settled(&mut cache);
}

#[test]
fn requests_are_declined_while_too_much_is_asked_for_and_tried_again() {
    let config = Config {
        prefetch_pages: 3,
        ..config(Policy::WaitComplete)
    };
    let mut cache = cache(config, &Memory::holding([]));
    let waiting = [handle("head"), handle("a")];
    ask(&mut cache, &waiting[0], &[1, 2, 3]);
    assert_eq!(
        cache.prefetch_from_storage(&waiting[1], &[4]),
        Enqueued::RateLimited
    );
    assert_eq!(
        cache.prefetch_from_storage(&waiting[1], &[]),
        Enqueued::TooShort
    );
    assert_eq!(
        cache.prefetch_from_storage(&waiting[0], &[1, 2, 3]),
        Enqueued::AlreadyLive
    );
    assert_eq!(
        cache.prefetch_from_storage(&waiting[1], &[4]),
        Enqueued::RateLimited
    );
    tick(&mut cache);
    assert_eq!(
        (0..9)
            .flat_map(|_| cache.due_retries(&waiting))
            .collect::<Vec<_>>(),
        waiting[1..]
    );
    let counters = cache.counters();
    assert_eq!(
        (counters.declined_rate_limited, counters.declined_too_short),
        (2, 1)
    );
    assert_settled(&mut cache);
}

/// A group whose rounds fail, and which remembers what it was told at the end.
#[derive(Clone, Default)]
struct Broken {
    told: Arc<Mutex<Vec<String>>>,
}

impl Ranks for Broken {
    fn rank(&self) -> usize {
        3
    }

    fn size(&self) -> usize {
        4
    }

    fn reduce(&mut self, op: Op, _row: &mut [i64], label: &str) -> Result<(), CollectiveError> {
        let (group, operation, label) = ("hits".to_owned(), op.to_string(), label.to_owned());
        Err(CollectiveError {
            group,
            round: 7,
            operation,
            label,
            rank: 3,
            kind: Box::new(ErrorKind::Closed),
        })
    }

    fn contributions(&self, _slot: usize) -> Option<Vec<i64>> {
        None
    }

    fn abort(&mut self, reason: &str) {
        self.told.lock().unwrap().push(reason.to_owned());
    }
}

fn fails_in_a_tick(mut cache: Cache) -> (Error, Vec<String>) {
    cache.prefetch_from_storage(&handle("a"), &[1]);
    let mut group = Broken::default();
    let mut failure = None;
    until("the failure", || {
        failure = cache
            .tick(&mut group)
            .err()
            .filter(|error| matches!(error, Error::WorkerFailed { .. }));
        failure.is_some()
    });
    let told = group.told.lock().unwrap().clone();
    (failure.unwrap(), told)
}

#[test]
fn a_failed_worker_ends_the_job_and_the_peers_are_told_why() {
    let backend = Backend {
        hits: Box::new(Broken::default()),
        ..backend(Memory::holding([]))
    };
    let cache = Cache::new(
        config(Policy::default()),
        Box::new(SyntheticDevice::new()),
        Some(backend),
    )
    .unwrap();
    let (error, told) = fails_in_a_tick(cache);
    assert_eq!(
        error.to_string(),
        "rank 3: worker `query` has ended: group hits, round 7, min `hit`, rank 3: the group is closed; restart the job"
    );
    assert_eq!(told, [error.to_string()]);
}

#[test]
fn a_worker_that_panicked_is_noticed() {
    let memory = Memory::holding([]);
    memory.set(|state| state.panics = true);
    let (error, told) = fails_in_a_tick(cache(config(Policy::default()), &memory));
    assert!(
        matches!(&error, Error::WorkerFailed { worker, .. } if worker == "query"),
        "{error}"
    );
    assert_eq!(told.len(), 1);
}

/// A vote whose flags travel some other way.
struct Elsewhere;

impl Vote for Elsewhere {
    fn agree(&mut self, _ranks: &mut dyn Ranks, flags: &mut [i64]) -> Result<(), Error> {
        flags.fill(1);
        Ok(())
    }
}

#[test]
fn another_vote_takes_the_place_of_the_packed_one() {
    let memory = Memory::holding(1..4);
    memory.set(|state| state.reading_held = true);
    let mut cache = cache(config(Policy::default()), &memory).with_vote(Box::new(Elsewhere));
    ask(&mut cache, &handle("a"), &[1, 2, 3]);
    let report = cache.tick(&mut Alone::default()).unwrap();
    assert_eq!(report.expired, [handle("a")]);
    assert_eq!((cache.reductions().min, cache.reductions().max), (1, 0));
    memory.set(|state| state.reading_held = false);
    assert_settled(&mut cache);
}

#[test]
fn a_busy_storage_does_not_hold_up_the_shutdown() {
    let memory = Memory::holding(1..4);
    memory.set(|state| state.reading_held = true);
    let config = Config {
        drain_timeout: Duration::from_millis(20),
        ..config(Policy::WaitComplete)
    };
    let mut cache = cache(config, &memory);
    ask(&mut cache, &handle("a"), &[1, 2, 3]);
    tick(&mut cache);
    until("the first read", || memory.reads() == 1);
    let error = cache.shutdown().unwrap_err();
    assert!(error.to_string().contains("`transfer`"), "{error}");
    assert_eq!(cache.host_available(), 13, "its pages are not used again");
    assert!(cache.ledger().is_closed());
    memory.set(|state| state.reading_held = false);
}

/// A small replay: requests with shared prefixes, a host pool and a device smaller than what they need.
fn replay(job: &Job, rank: usize, policy: Policy) -> Vec<Decision> {
    let storage = Memory::holding([]);
    let backend = Backend {
        storage,
        hits: Box::new(job.member(1, rank)),
        acks: Box::new(job.member(2, rank)),
        batch_pages: 2,
        read_delay: Duration::from_micros(200 * rank as u64),
    };
    let decisions = Arc::new(Mutex::new(Vec::new()));
    let seen = decisions.clone();
    let config = Config {
        host_pages: 14,
        device_pages: 16,
        prefetch_pages: 14,
        ..config(policy)
    };
    let mut cache = Cache::new(config, Box::new(SyntheticDevice::new()), Some(backend))
        .unwrap()
        .with_witness(Box::new(move |decision: &Decision| {
            seen.lock().unwrap().push(decision.clone());
        }));
    let mut group = job.member(0, rank);
    let mut arrivals: Vec<(Handle, Vec<u64>)> = (0..60_u64)
        .map(|n| {
            let family = n * 7 % 5;
            let pages = (0..2 + n % 5)
                .map(|page| family * 100 + page)
                .chain([1000 + n % 11])
                .collect();
            (Handle::new(format!("r{n}"), 0), pages)
        })
        .collect();
    arrivals.reverse();
    let (mut waiting, mut running) = (Vec::new(), Vec::new());
    let mut passes = 0;
    while !(arrivals.is_empty() && waiting.is_empty() && running.is_empty()) {
        passes += 1;
        assert!(passes < 100_000, "the replay does not end");
        if let Some((handle, pages)) = arrivals.pop() {
            cache.prefetch_from_storage(&handle, &pages);
            waiting.push((handle, pages));
        }
        cache.tick(&mut group).unwrap();
        for handle in cache.due_retries(waiting.iter().map(|(handle, _)| handle)) {
            let pages = &waiting
                .iter()
                .find(|(waiting, _)| *waiting == handle)
                .unwrap()
                .1;
            cache.prefetch_from_storage(&handle, pages);
        }
        for handle in running.drain(..) {
            cache.finish(&handle);
        }
        waiting.retain(|(handle, pages)| {
            let admitted = cache.poll(handle) && cache.admit(handle, pages).is_some();
            if admitted {
                running.push(handle.clone());
            }
            !admitted
        });
    }
    assert_settled(&mut cache);
    // Under the other policies a poll or a deadline may always come before the answer.
    assert!(
        policy != Policy::WaitComplete || cache.ledger().hit() > 0,
        "something came from storage"
    );
    let decisions = decisions.lock().unwrap();
    let end = decisions
        .iter()
        .rposition(|decision| matches!(decision, Decision::Drained(_)))
        .unwrap();
    decisions[..=end].to_vec()
}

fn ranks_decide_alike(policy: Policy) {
    let job = Job::new(3, &["tick", "hits", "acks"], PATIENCE);
    let decisions: Vec<_> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let job = &job;
                scope.spawn(move || replay(job, rank, policy))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(decisions[0], decisions[1]);
    assert_eq!(decisions[0], decisions[2]);
}

#[test]
fn ranks_with_unequal_storage_decide_alike_under_timeout() {
    let base = Duration::from_millis(1);
    ranks_decide_alike(Policy::Timeout(Budget {
        base,
        per_ki_token: Duration::ZERO,
        cap: None,
    }));
}

#[test]
fn ranks_with_unequal_storage_decide_alike_under_best_effort() {
    ranks_decide_alike(Policy::BestEffort);
}

#[test]
fn ranks_with_unequal_storage_decide_alike_under_wait_complete() {
    ranks_decide_alike(Policy::WaitComplete);
}

#[test]
fn the_counts_of_a_fresh_cache_are_zero() {
    let cache = Cache::new(
        config(Policy::default()),
        Box::new(SyntheticDevice::new()),
        None,
    )
    .unwrap();
    assert_eq!(cache.ready(), Counts::default());
}
