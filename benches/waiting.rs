//! The ways of waiting, side by side: what a round costs in wall time and in CPU time, and how far `auto` is from the
//! best that can be chosen by hand.
//!
//! `cargo bench -p rankpact-benches --bench waiting -- [full]`; the short form only shows that it runs.
//!
//! Ranks are processes and have a group for each strategy. The strategies take turns, so that whatever else goes on meets
//! them all.

use clap::Parser;
use rankpact_benches::{Depth, Failure, Report, Results, Sample, Table, Team, settings};
use rankpact_collective::{Group, Join, Op, Options, Waiting, World};
use rankpact_shm::cpus;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const STRATEGIES: [&str; 4] = ["spin", "yield", "park", "auto"];
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    depth: Depth,
}

/// How much to measure.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Effort {
    turns: usize,
    rounds: usize,
}

impl Effort {
    /// Ranks that never leave the CPU to those they wait for need a time slice of the scheduler for each hand-over.
    fn rounds(self, strategy: &str, ranks: usize) -> usize {
        let stuck = strategy == "spin" && ranks > cpus::available();
        if stuck {
            self.rounds / 200 + 1
        } else {
            self.rounds
        }
    }
}

fn round(group: &mut Group) -> Result<Duration, Failure> {
    let before = Instant::now();
    let mut row = [group.rank() as i64];
    group.all_reduce(Op::Max, &mut row, "round")?;
    let time = before.elapsed();
    if row != [group.size() as i64 - 1] {
        return Err(format!("round {}: {row:?}", group.round()).into());
    }
    Ok(time)
}

/// The part of one rank.
fn rank(effort: Effort) -> Result<(), Failure> {
    let world = World::connect(Join::from_env()?)?;
    let mut groups = Vec::new();
    for strategy in STRATEGIES {
        let waiting: Waiting = strategy.parse()?;
        let options = Options {
            waiting,
            timeout: LIMIT,
            ..world.options().clone()
        };
        let mut group = world.everybody_with(strategy, options)?;
        group.ready()?;
        groups.push((strategy, group));
    }
    for _ in 0..effort.turns {
        for (strategy, group) in &mut groups {
            let rounds = effort.rounds(strategy, group.size());
            for _ in 0..rounds / 20 + 1 {
                round(group)?;
            }
            Report::of(*strategy, group.rank(), rounds, || round(group))?.say()?;
            // Nobody goes on while another has rounds to measure.
            group.barrier("end")?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    if let Some(effort) = settings()? {
        return rank(effort);
    }
    let Arguments { depth } = Arguments::parse();
    let effort = Effort {
        turns: depth.choose(2, 15),
        rounds: depth.choose(200, 4000),
    };
    let mut results = Results::new("waiting", &depth);
    let header = [
        "ranks", "wait", "rounds", "p50 ns", "wall us", "x best", "CPU us",
    ];
    let mut table = Table::new(2, header);
    for ranks in [2, 4, 8] {
        let team = Team::ours("ranks", ranks, &effort, |_| Vec::new())?;
        let samples = Sample::all(ranks, team.run(LIMIT)?)?;
        let by_hand = samples.iter().filter(|sample| sample.case != "auto");
        let best = by_hand
            .map(|sample| sample.wall_ns)
            .fold(f64::INFINITY, f64::min);
        for mut sample in samples {
            table.row([
                ranks.to_string(),
                sample.case.clone(),
                sample.rounds.to_string(),
                sample.worst.p50.to_string(),
                format!("{:.2}", sample.wall_ns / 1e3),
                format!("{:.2}", sample.wall_ns / best),
                format!("{:.2}", sample.cpu_ns / 1e3),
            ]);
            sample.case = format!("{ranks} ranks: {}", sample.case);
            results.keep(&sample)?;
        }
    }
    results.table(
        "A round of one slot, by the way in which ranks wait; the median turn.",
        &table,
    );
    results.finish()
}
