//! One rank of a replay: its scheduler loop over a cache of its own.

use super::report::{Collectives, Durations, Prefetch, RankReport, Storage, Tokens};
use super::settings::{Fault, Injection, Settings};
use crate::Failure;
use crate::team;
use crate::trace::{BLOCK_TOKENS, Request, Trace};
use nix::sys::signal::{Signal, raise};
use rankpact_cache::{
    Admission, Agreement, Backend, Cache, Config, Decision, Handle, PageFiles, Ranks,
    SyntheticDevice, Wait,
};
use rankpact_collective::{Error as CollectiveError, Group, Join, Op, World};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Storage pages read in one go.
const BATCH_PAGES: usize = 8;
/// Requests that the forward pass takes at once.
const BATCH_REQUESTS: usize = 256;
/// A decoding step of the model that the trace was served with.
const STEP: Duration = Duration::from_millis(25);
/// The shortest forward pass worth a sleep.
const SHORTEST_PASS: Duration = Duration::from_millis(5);
/// Prompt tokens computed in a second of trace time.
const PREFILL_RATE: f64 = 200_000.0;
/// Passes between two words on progress.
const PROGRESS_EVERY: u64 = 64;

/// What rank 0 tells all at the start of a pass; nothing at all where nothing has arrived.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Arrivals {
    requests: Vec<Request>,
    /// No more will come.
    last: bool,
}

/// A request in the waiting queue.
struct Waiting {
    handle: Handle,
    pages: Vec<u64>,
    output: u64,
}

/// A request in the batch.
struct Running {
    handle: Handle,
    output_left: u64,
}

/// A group that keeps the times of its rounds.
struct Timed {
    group: Group,
    round: Durations,
    skew: Durations,
    transport: Durations,
}

impl Ranks for Timed {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn reduce(&mut self, op: Op, row: &mut [i64], label: &str) -> Result<(), CollectiveError> {
        let started = Instant::now();
        self.group.all_reduce(op, row, label)?;
        self.round.record(started.elapsed());
        if let Some(timing) = self.group.timing() {
            self.skew.record(timing.skew);
            self.transport.record(timing.transport);
        }
        Ok(())
    }

    fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        self.group.contributions(slot)
    }

    fn abort(&mut self, reason: &str) {
        self.group.abort(reason);
    }
}

/// A hash over text, shared with the cache's witness.
#[derive(Clone, Default)]
struct Decisions(Arc<Mutex<blake3::Hasher>>);

impl Decisions {
    fn add(&self, decision: &str) {
        let mut hasher = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hasher.update(decision.as_bytes()).update(b"\n");
    }

    fn hash(&self) -> String {
        let hasher = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hasher.finalize().to_hex()[..16].to_owned()
    }
}

struct Scheduler {
    settings: Settings,
    cache: Cache,
    ticks: Timed,
    requests: Group,
    decisions: Decisions,
    device: SyntheticDevice,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    arrived: u64,
    passes: u64,
    per_pass_max: u64,
    fault: Option<Injection>,
}

/// Entry of the rank process.
pub(crate) fn main() -> Result<(), Failure> {
    let settings: Settings = team::settings()?;
    let mut join = Join::from_env()?;
    join.options.path = settings.path();
    join.options.timing = true;
    team::take_part(
        join,
        |world| {
            // Rank 0 alone knows what comes.
            let to_come = if world.rank() == 0 {
                Trace::load(settings.trace.as_deref(), settings.requests)?.requests
            } else {
                Vec::new()
            };
            Ok((Scheduler::new(world, settings)?, to_come.into()))
        },
        |(scheduler, to_come)| {
            scheduler.run(to_come)?;
            scheduler.report()
        },
    )
}

impl Scheduler {
    fn new(world: &World, settings: Settings) -> Result<Self, Failure> {
        let page_tokens = usize::try_from(BLOCK_TOKENS)?;
        let mut config = Config::new(
            page_tokens,
            settings.page_bytes,
            settings.host_pages,
            settings.device_pages,
        );
        config.policy = settings.policy();
        config.agreement = settings.agreement();
        let folder = settings.storage.join(format!("rank-{}", world.rank()));
        let storage = PageFiles::open(&folder).map_err(|error| Failure {
            code: 1,
            message: format!("storage {}: {error}", folder.display()),
        })?;
        let backend = Backend {
            storage: Arc::new(storage),
            hits: Box::new(world.everybody("hits")?),
            acks: Box::new(world.everybody("acks")?),
            batch_pages: BATCH_PAGES,
            read_delay: Duration::from_millis(settings.storage_delay_ms),
        };
        let decisions = Decisions::default();
        let witness = decisions.clone();
        let device = SyntheticDevice::new();
        let cache = Cache::new(config, Box::new(device.clone()), Some(backend))?.with_witness(
            Box::new(move |decision: &Decision| witness.add(&decision.to_string())),
        );
        let mut group = world.everybody("tick")?;
        let mut requests = world.everybody("requests")?;
        group.ready()?;
        requests.ready()?;
        let ticks = Timed {
            group,
            round: Durations::new()?,
            skew: Durations::new()?,
            transport: Durations::new()?,
        };
        let last = world.size() - 1;
        let fault = settings
            .inject
            .filter(|fault| fault.rank.unwrap_or(last) == world.rank());
        Ok(Self {
            settings,
            cache,
            ticks,
            requests,
            decisions,
            device,
            waiting: VecDeque::new(),
            running: Vec::new(),
            arrived: 0,
            passes: 0,
            per_pass_max: 0,
            fault,
        })
    }

    /// Passes until everything that will come has come and gone. `to_come` is empty on all ranks but 0.
    fn run(&mut self, to_come: &mut VecDeque<Request>) -> Result<(), Failure> {
        let started = Instant::now();
        let mut last = false;
        while !last || !self.waiting.is_empty() || !self.running.is_empty() {
            last |= self.receive(to_come, started.elapsed(), last)?;
            let before = self.cache.reductions();
            self.inject();
            self.cache.tick(&mut self.ticks)?;
            self.retry();
            let prefill = self.admit()?;
            let made = self.cache.reductions();
            self.per_pass_max = self
                .per_pass_max
                .max(made.min + made.max - before.min - before.max);
            self.forward(prefill);
            self.passes += 1;
            if self.passes.is_multiple_of(PROGRESS_EVERY) && self.requests.rank() == 0 {
                team::say_progress(self.arrived - self.waiting.len() as u64);
            }
        }
        Ok(())
    }

    /// The requests of this pass, the same on all ranks: rank 0 alone looks at the clock.
    fn receive(
        &mut self,
        to_come: &mut VecDeque<Request>,
        now: Duration,
        all_came: bool,
    ) -> Result<bool, Failure> {
        let mut bytes = Vec::new();
        if self.requests.rank() == 0 && !all_came {
            let trace_ms = now.as_secs_f64() * 1000.0 * self.settings.speed;
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of a trace")]
            let due = to_come
                .iter()
                .take_while(|request| request.timestamp as f64 <= trace_ms)
                .count();
            let arrivals = Arrivals {
                requests: to_come.drain(..due).collect(),
                last: to_come.is_empty(),
            };
            if !arrivals.requests.is_empty() || arrivals.last {
                bytes = serde_json::to_vec(&arrivals)?;
            }
        }
        self.requests.broadcast(0, &mut bytes, "requests")?;
        if bytes.is_empty() {
            return Ok(false);
        }
        let arrivals: Arrivals = serde_json::from_slice(&bytes)?;
        for request in arrivals.requests {
            let handle = Handle::new(format!("r{}", self.arrived), 0);
            self.arrived += 1;
            self.cache.prefetch_from_storage(&handle, &request.hash_ids);
            self.waiting.push_back(Waiting {
                handle,
                pages: request.hash_ids,
                output: request.output_length,
            });
        }
        Ok(arrivals.last)
    }

    fn retry(&mut self) {
        for handle in self
            .cache
            .due_retries(self.waiting.iter().map(|waiting| &waiting.handle))
        {
            if let Some(waiting) = self.waiting.iter().find(|waiting| waiting.handle == handle) {
                self.cache.prefetch_from_storage(&handle, &waiting.pages);
            }
        }
    }

    /// The walk over the waiting queue. Returns how many prompt tokens are to be computed.
    fn admit(&mut self) -> Result<u64, Failure> {
        let mut prefill = 0;
        let mut loads: Vec<Admission> = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let full = self.running.len() >= BATCH_REQUESTS;
            if full || self.polls_uneven(&waiting.handle) || !self.poll(&waiting.handle)? {
                self.waiting.push_back(waiting);
                continue;
            }
            let Some(admission) = self.cache.admit(&waiting.handle, &waiting.pages) else {
                self.waiting.push_back(waiting);
                continue;
            };
            let Admission {
                device,
                loaded,
                missing,
                ..
            } = &admission;
            self.decisions.add(&format!(
                "admitted {} {device} {loaded} {missing}",
                waiting.handle
            ));
            prefill += *missing as u64 * BLOCK_TOKENS;
            self.running.push(Running {
                handle: waiting.handle,
                output_left: waiting.output.max(1),
            });
            loads.push(admission);
        }
        for admission in loads {
            if !admission.ready.wait(Duration::from_secs(60)) {
                return Err(Failure {
                    code: 1,
                    message: "a load from the host did not end".to_owned(),
                });
            }
        }
        Ok(prefill)
    }

    fn poll(&mut self, handle: &Handle) -> Result<bool, Failure> {
        match self.settings.agreement() {
            Agreement::Tick => Ok(self.cache.poll(handle)),
            Agreement::Poll => Ok(self.cache.poll_agreeing(handle, &mut self.ticks)?),
        }
    }

    /// A sleep; then every request of the batch has so many tokens more.
    fn forward(&mut self, prefill: u64) {
        let pass = STEP.div_f64(self.settings.speed).max(SHORTEST_PASS);
        #[expect(clippy::cast_precision_loss, reason = "a duration for people")]
        let computing =
            Duration::from_secs_f64(prefill as f64 / PREFILL_RATE / self.settings.speed);
        thread::sleep(pass + computing);
        let steps = pass.as_secs_f64() * self.settings.speed / STEP.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let tokens = steps.round().max(1.0) as u64;
        for running in &mut self.running {
            running.output_left = running.output_left.saturating_sub(tokens);
        }
        for done in self
            .running
            .extract_if(.., |running| running.output_left == 0)
        {
            self.cache.finish(&done.handle);
        }
    }

    /// Makes the fault of this rank when its time has come.
    fn inject(&mut self) {
        let Some(Injection { fault, tick, .. }) = self.fault else {
            return;
        };
        if self.passes < tick {
            return;
        }
        match fault {
            Fault::Kill => {
                // A signal to oneself that cannot be caught: this does not return.
                let _ = raise(Signal::SIGKILL);
            }
            Fault::Abort => {
                self.fault = None;
                self.ticks.abort("asked to abort by --inject");
            }
            Fault::UnevenPoll => {}
        }
    }

    /// Whether this rank leaves out one poll of a request with a verdict, on purpose and once.
    fn polls_uneven(&mut self, handle: &Handle) -> bool {
        let due = self
            .fault
            .is_some_and(|fault| fault.fault == Fault::UnevenPoll && self.passes >= fault.tick);
        let uneven = due
            && self
                .cache
                .live()
                .any(|(live, wait)| live == handle && wait == Wait::Expired);
        if uneven {
            self.fault = None;
        }
        uneven
    }

    fn report(&mut self) -> Result<RankReport, Failure> {
        if let Some(fault) = self.fault {
            let message = format!(
                "--inject {:?} found no occasion from tick {} on",
                fault.fault, fault.tick
            );
            return Err(Failure { code: 1, message });
        }
        let decisions = self.decisions.hash();
        self.cache.shutdown()?;
        let counters = *self.cache.counters();
        let reductions = self.cache.reductions();
        let path = self
            .ticks
            .group
            .path()
            .map_or(String::new(), |(kind, _)| kind.to_string());
        Ok(RankReport {
            path,
            requests: self.arrived,
            passes: self.passes,
            collectives: Collectives {
                min: reductions.min,
                max: reductions.max,
                per_pass_max: self.per_pass_max,
            },
            prefetch: Prefetch {
                attempts: counters.attempts,
                issued: counters.issued,
                completed: counters.completed,
                revoked: counters.revoked,
                cut: counters.cut,
            },
            storage: Storage {
                written: counters.backup_written,
                failed: counters.backup_failed,
                rate_limited: counters.declined_rate_limited,
            },
            tokens: Tokens::of(self.cache.ledger()),
            closed: self.cache.ledger().is_closed(),
            round: self.ticks.round.quantiles(),
            skew: self.ticks.skew.quantiles(),
            transport: self.ticks.transport.quantiles(),
            decisions,
            damaged_pages: self.device.damaged_pages(),
        })
    }
}
