//! One rank of a bench.

use crate::Failure;
use crate::team;
use clap::ValueEnum;
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
    pub(crate) ops: Vec<OpName>,
    pub(crate) rounds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum OpName {
    Min,
    Max,
    Sum,
    Or,
    And,
    /// An operation for each slot.
    Each,
    /// A minimum that is started, then finished.
    Split,
    Gather,
    GatherBytes,
    Broadcast,
    Barrier,
}

impl fmt::Display for OpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value()
            .map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// Times of one rank in one kind of round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) path: String,
    pub(crate) op: String,
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
    team::take_part(Join::from_env()?, open, |groups| bench(groups, &settings))
}

/// A group of each path.
fn open(world: &World) -> Result<[Group; 2], Failure> {
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
    Ok([table, tcp])
}

fn bench(groups: &mut [Group; 2], settings: &Settings) -> Result<Vec<Latency>, Failure> {
    let oversubscribed = groups[0].size() > cpus::allowed()?.len();
    if !oversubscribed {
        cpus::pin(groups[0].rank())?;
    }
    let mut rows = Vec::new();
    for group in groups {
        let path = group
            .path()
            .map_or(String::new(), |(kind, _)| kind.to_string());
        for &op in &settings.ops {
            for &width in &settings.widths {
                if !op.has(width) {
                    continue;
                }
                let travels = path == "tcp" || usize::try_from(width)? > rankpact_shm::MAX_SLOTS;
                let fewer = if travels { 50 } else { 1 }
                    * if oversubscribed { 5 } else { 1 }
                    * u64::from(width / 1024 + 1);
                let rounds = (settings.rounds / fewer).max(10);
                rows.push(measure(group, &path, op, width, rounds)?);
            }
        }
    }
    Ok(rows)
}

impl OpName {
    /// Whether rounds of that width exist.
    fn has(self, width: u32) -> bool {
        match self {
            Self::Split => width <= 8,
            // It has none, and is measured once.
            Self::Barrier => width == 1,
            _ => true,
        }
    }
}

/// One kind of round, with what it works on.
struct Work {
    op: OpName,
    each: Vec<Op>,
    values: Vec<i64>,
    all: Vec<i64>,
    bytes: Vec<u8>,
}

impl Work {
    fn new(op: OpName, width: u32) -> Result<Self, Failure> {
        let width = usize::try_from(width)?;
        let ops = [Op::Min, Op::Sum, Op::Or].into_iter().cycle();
        Ok(Self {
            op,
            each: ops.take(width).collect(),
            values: vec![0; width],
            all: Vec::new(),
            bytes: vec![0; 8 * width],
        })
    }

    /// One round in which `mine` is this rank's contribution to every slot.
    fn once(&mut self, group: &mut Group, mine: i64) -> Result<(), Failure> {
        self.values.fill(mine);
        let simple = match self.op {
            OpName::Min => Op::Min,
            OpName::Max => Op::Max,
            OpName::Sum => Op::Sum,
            OpName::Or => Op::Or,
            OpName::And => Op::And,
            OpName::Each => {
                group.all_reduce(&self.each, &mut self.values, "bench")?;
                return Ok(());
            }
            OpName::Split => {
                let started = group.start_all_reduce(Op::Min, &self.values, "bench")?;
                self.values = group.finish(&started, "bench")?;
                return Ok(());
            }
            OpName::Gather => {
                group.all_gather(&self.values, &mut self.all, "bench")?;
                return Ok(());
            }
            OpName::GatherBytes => {
                let all = group.all_gather_bytes(&self.bytes, "bench")?;
                self.all = all.iter().map(|bytes| bytes.len() as i64).collect();
                return Ok(());
            }
            OpName::Broadcast => {
                group.broadcast(0, &mut self.bytes, "bench")?;
                return Ok(());
            }
            OpName::Barrier => {
                group.barrier("bench")?;
                return Ok(());
            }
        };
        group.all_reduce(simple, &mut self.values, "bench")?;
        Ok(())
    }

    /// Whether a round in which rank r contributed `r + more` came to what it must.
    fn is_right(&self, group: &Group, more: i64) -> bool {
        let all = || (0..group.size()).map(|rank| rank as i64 + more);
        let of = |op: Op| {
            all()
                .skip(1)
                .fold(i128::from(more), |total, value| op.fold(total, value))
        };
        let total = |op: Op| self.values.iter().all(|value| i128::from(*value) == of(op));
        match self.op {
            OpName::Min | OpName::Split => total(Op::Min),
            OpName::Max => total(Op::Max),
            OpName::Sum => total(Op::Sum),
            OpName::Or => total(Op::Or),
            OpName::And => total(Op::And),
            OpName::Each => self
                .values
                .iter()
                .zip(&self.each)
                .all(|(value, op)| i128::from(*value) == of(*op)),
            OpName::Gather => {
                let width = self.values.len();
                self.all
                    .iter()
                    .copied()
                    .eq(all().flat_map(|value| std::iter::repeat_n(value, width)))
            }
            OpName::GatherBytes => {
                self.all.len() == group.size()
                    && self.all.iter().all(|len| *len == self.bytes.len() as i64)
            }
            OpName::Broadcast => self.bytes.len() == 8 * self.values.len(),
            OpName::Barrier => true,
        }
    }
}

fn measure(
    group: &mut Group,
    path: &str,
    op: OpName,
    width: u32,
    rounds: u64,
) -> Result<Latency, Failure> {
    let mut times: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    let mut work = Work::new(op, width)?;
    let mine = i64::try_from(group.rank())?;
    // The warm-up checks every value.
    for round in 0..i64::try_from(rounds / 10 + 1)? {
        work.once(group, round + mine)?;
        if !work.is_right(group, round) {
            return Err(Failure {
                code: 1,
                message: format!("wrong value in round {}: {:?}", group.round(), work.values),
            });
        }
    }
    group.barrier("start")?;
    let cpu = cpu_time()?;
    for _ in 0..rounds {
        let started = Instant::now();
        work.once(group, mine)?;
        times.saturating_record(u64::try_from(started.elapsed().as_nanos())?.max(1));
    }
    Ok(Latency {
        path: path.to_owned(),
        op: op.to_string(),
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
