//! What all ranks of a scheduler agree upon between two batches: our tick, and the reductions of one integer that it
//! replaces. Those are one for the counts, and one in each poll of a request that waits for its prefetch.
//!
//! `cargo bench -p rankpact-benches --bench tick -- [full]`; the short form only shows that it runs.
//!
//! `rankpact` is the tick, the look for due retries, and the polls of all waiting requests. `tick` is the first alone, and
//! `collectives` its rounds without the cache around them. Ranks are pinned as in `versus`.

use clap::Parser;
use rankpact_benches::{
    Axis, Case, Contest, Depth, Failure, Peer, Results, Scored, Team, settings,
};
use rankpact_cache::{
    Backend, Budget, Cache, Config, Enqueued, Handle, Policy, Storage, SyntheticDevice,
};
use rankpact_collective::{Group, Join, Op, World};
use rankpact_shm::cpus;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Requests that wait.
const WAITING: [usize; 5] = [0, 1, 8, 64, 512];
/// Slots of the row of counts.
const COUNTS: usize = 8;
/// A tick may cost so many times what its collectives cost, with so many waiting.
const BUDGET: (f64, usize) = (3.0, 64);
const HOUR: Duration = Duration::from_secs(3600);

/// Our tick beside the reductions that it replaces.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    depth: Depth,
}

/// What a rank of ours does in a round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Part {
    /// All that a scheduler does with it.
    All,
    Tick,
    Collectives,
}

#[derive(Debug, Serialize, Deserialize)]
struct Settings {
    part: Part,
    pinned: bool,
    /// For each waiting request the others reduce once more.
    cases: Vec<Case>,
}

/// Storage that has not answered yet, for as long as the lock is held.
struct Silent(Arc<Mutex<()>>);

impl Storage for Silent {
    fn exists(&self, _: u64) -> bool {
        drop(self.0.lock());
        false
    }

    fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// A cache whose every prefetch waits, and the group in which it ticks.
struct Scheduler {
    cache: Cache,
    ranks: Group,
    waiting: Vec<Handle>,
    flags: Vec<i64>,
}

impl Scheduler {
    fn new(world: &World, storage: Silent) -> Result<Self, Failure> {
        let mut config = Config::new(512, 64, 4096, 64);
        config.policy = Policy::Timeout(Budget {
            base: HOUR,
            ..Budget::default()
        });
        let backend = Backend {
            storage: Arc::new(storage),
            hits: Box::new(world.everybody("hits")?),
            acks: Box::new(world.everybody("acks")?),
            batch_pages: 8,
            read_delay: Duration::ZERO,
        };
        let cache = Cache::new(config, Box::new(SyntheticDevice::new()), Some(backend))?;
        let mut ranks = world.everybody("tick")?;
        ranks.ready()?;
        Ok(Self {
            cache,
            ranks,
            waiting: Vec::new(),
            flags: Vec::new(),
        })
    }

    /// Has so many requests wait.
    fn fill(&mut self, waiting: usize) -> Result<(), Failure> {
        for number in self.waiting.len()..waiting {
            let handle = Handle::new(format!("request-{number}"), 0);
            let enqueued = self.cache.prefetch_from_storage(&handle, &[number as u64]);
            if enqueued != (Enqueued::Issued { pages: 1 }) || self.cache.poll(&handle) {
                return Err(format!("{handle} does not wait: {enqueued:?}").into());
            }
            self.waiting.push(handle);
        }
        self.flags.resize(waiting, 0);
        Ok(())
    }

    fn once(&mut self, part: Part) -> Result<(), Failure> {
        if matches!(part, Part::Collectives) {
            let mut counts = [0; COUNTS];
            self.ranks.all_reduce(Op::Min, &mut counts, "counts")?;
            if !self.flags.is_empty() {
                self.ranks.all_reduce(Op::Max, &mut self.flags, "vote")?;
            }
            return Ok(());
        }
        let report = self.cache.tick(&mut self.ranks)?;
        let mut over = !report.expired.is_empty();
        if matches!(part, Part::All) {
            over |= !self.cache.due_retries(&self.waiting).is_empty();
            for handle in &self.waiting {
                over |= self.cache.poll(handle);
            }
        }
        if over {
            return Err("a request does not wait any more".into());
        }
        Ok(())
    }
}

fn rank(settings: &Settings) -> Result<(), Failure> {
    let world = World::connect(Join::from_env()?)?;
    let answers = Arc::new(Mutex::new(()));
    let silence = answers.lock().unwrap_or_else(PoisonError::into_inner);
    let mut scheduler = Scheduler::new(&world, Silent(Arc::clone(&answers)))?;
    if settings.pinned {
        cpus::pin(world.rank())?;
    }
    for case in &settings.cases {
        scheduler.fill(case.calls - 1)?;
        Case::warm_up(|_, on| {
            scheduler.once(settings.part)?;
            let mut on = [on];
            scheduler.ranks.all_reduce(Op::Min, &mut on, "warm-up")?;
            Ok(on[0])
        })?;
        case.measure(world.rank(), || scheduler.once(settings.part))?
            .say()?;
    }
    drop(silence);
    scheduler.cache.shutdown()?;
    Ok(())
}

fn contest(
    ranks: usize,
    gloo: Option<&Peer>,
    depth: &Depth,
    results: &mut Results,
) -> Result<Vec<Scored>, Failure> {
    let case = |waiting: &usize| Case {
        calls: 1 + waiting,
        ..Case::of(1)
    };
    let waiting = depth.choose(&WAITING[..4], &WAITING);
    let mut contest = Contest::new(ranks, waiting.iter().map(case).collect());
    for (name, part) in [
        ("rankpact", Part::All),
        ("tick", Part::Tick),
        ("collectives", Part::Collectives),
    ] {
        contest.ours(name, move |cases| {
            let settings = Settings {
                part,
                pinned: ranks <= cpus::available(),
                cases: cases.to_vec(),
            };
            Team::ours(name, ranks, &settings, |_| Vec::new())
        });
    }
    if let Some(gloo) = gloo {
        contest.other(gloo.name, move |cases| gloo.team(ranks, cases));
    }
    contest.hold(depth.is_full(), |line| results.say(line))
}

/// How many times what its collectives cost a tick does.
fn judge(ranks: usize, all: &[Scored], depth: &Depth, results: &mut Results) {
    let (most, waiting) = BUDGET;
    let (Some(tick), Some(rounds)) = (Scored::find(all, "tick"), Scored::find(all, "collectives"))
    else {
        return;
    };
    let replaces = 1 + waiting;
    let times = tick.times(rounds);
    for (_, [p50, _, wall]) in times.filter(|(case, _)| case.calls == replaces) {
        let verdict = match wall.median < most {
            _ if !depth.is_full() => "",
            true => ": met",
            false => ": MISSED",
        };
        results.say(&format!(
            "{ranks} ranks: a tick with {waiting} waiting costs {wall} times its collectives, {p50} at the median; \
             less than {most} is the goal{verdict}"
        ));
    }
}

fn main() -> Result<(), Failure> {
    if let Some(settings) = settings()? {
        return rank(&settings);
    }
    let Arguments { depth } = Arguments::parse();
    let mut results = Results::new("tick", &depth);
    let peers = Peer::all(|line| results.say(line))?;
    let gloo = peers.iter().find(|peer| peer.name == Peer::GLOO);
    let waiting = Axis {
        name: "waiting",
        of: |case| case.calls - 1,
    };
    let mut contests = Vec::new();
    for &ranks in depth.choose(&[2, 4][..], &[2, 4, 8]) {
        let all = contest(ranks, gloo, &depth, &mut results)?;
        Scored::show(
            &all,
            "a tick, and 1 + N reductions",
            ranks,
            waiting,
            &mut results,
        )?;
        judge(ranks, &all, &depth, &mut results);
        contests.push((ranks, all));
    }
    let axis = "reductions that a tick replaces";
    let place = |ranks: usize, name: &str, case: &Case| {
        let drawn = name == Peer::GLOO;
        drawn.then(|| (format!("{name}, {ranks} ranks"), case.calls))
    };
    Scored::plot(&contests, "Ticks", axis, place, &mut results)?;
    results.finish()
}
