//! One rank of a bench.

use crate::Failure;
use crate::team;
use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use rankpact_collective::{Group, Join, Op, Options, PathChoice, World};
use rankpact_shm::cpus;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) widths: Vec<u32>,
    pub(crate) op: OpName,
    pub(crate) rounds: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum OpName {
    Min,
    Max,
}

impl OpName {
    fn op(self) -> Op {
        match self {
            Self::Min => Op::Min,
            Self::Max => Op::Max,
        }
    }
}

impl fmt::Display for OpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op().fmt(f)
    }
}

/// Times of one rank in one kind of round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) path: String,
    pub(crate) width: u32,
    pub(crate) rounds: u64,
    pub(crate) min_ns: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) cpu_s: f64,
}

impl Latency {
    /// The worse of each quantile; CPU time adds up.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.min_ns = self.min_ns.min(other.min_ns);
        self.p50_ns = self.p50_ns.max(other.p50_ns);
        self.p99_ns = self.p99_ns.max(other.p99_ns);
        self.p999_ns = self.p999_ns.max(other.p999_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.cpu_s += other.cpu_s;
    }
}

/// Entry of the rank process.
pub(crate) fn main() -> Result<(), Failure> {
    let settings: Settings = team::settings()?;
    team::take_part(Join::from_env()?, |world| bench(world, &settings))
}

fn bench(world: &World, settings: &Settings) -> Result<Vec<Latency>, Failure> {
    let oversubscribed = world.size() > cpus::allowed()?.len();
    let mut table = world.everybody("table")?;
    table.ready()?;
    let mut tcp = world.everybody_with(
        "tcp",
        Options {
            path: PathChoice::Tcp,
            ..world.options().clone()
        },
    )?;
    tcp.ready()?;
    if !oversubscribed {
        cpus::pin(world.rank())?;
    }
    let mut rows = Vec::new();
    for group in [&mut table, &mut tcp] {
        let path = group
            .path()
            .map_or(String::new(), |(kind, _)| kind.to_string());
        for &width in &settings.widths {
            let travels = path == "tcp" || usize::try_from(width)? > rankpact_shm::MAX_SLOTS;
            let fewer = if travels { 50 } else { 1 }
                * if oversubscribed { 5 } else { 1 }
                * u64::from(width / 1024 + 1);
            let rounds = (settings.rounds / fewer).max(10);
            rows.push(measure(group, &path, settings.op.op(), width, rounds)?);
        }
    }
    Ok(rows)
}

fn measure(
    group: &mut Group,
    path: &str,
    op: Op,
    width: u32,
    rounds: u64,
) -> Result<Latency, Failure> {
    let mut times: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    let mut values = vec![0_i64; usize::try_from(width)?];
    let mine = i64::try_from(group.rank())?;
    let last = i64::try_from(group.size())? - 1;
    let expected = if op == Op::Min { 0 } else { last };
    // The warm-up checks every value.
    for round in 0..i64::try_from(rounds / 10 + 1)? {
        values.fill(round + mine);
        group.all_reduce(op, &mut values, "bench")?;
        if values.iter().any(|value| *value != round + expected) {
            return Err(Failure {
                code: 1,
                message: format!("wrong value in round {}: {values:?}", group.round()),
            });
        }
    }
    group.barrier("start")?;
    let cpu = cpu_time()?;
    for _ in 0..rounds {
        values.fill(mine);
        let started = Instant::now();
        group.all_reduce(op, &mut values, "bench")?;
        times.saturating_record(u64::try_from(started.elapsed().as_nanos())?.max(1));
    }
    Ok(Latency {
        path: path.to_owned(),
        width,
        rounds,
        min_ns: times.min(),
        p50_ns: times.value_at_quantile(0.5),
        p99_ns: times.value_at_quantile(0.99),
        p999_ns: times.value_at_quantile(0.999),
        max_ns: times.max(),
        cpu_s: (cpu_time()? - cpu).as_secs_f64(),
    })
}

fn cpu_time() -> Result<Duration, Failure> {
    Ok(Duration::from(clock_gettime(
        ClockId::CLOCK_PROCESS_CPUTIME_ID,
    )?))
}
