//! A reduction over the ranks of this machine, ours and that of others: gloo in C++ and through torch, Open MPI, MPICH.
//!
//! `cargo bench -p rankpact-benches --bench versus -- [full]`; the short form only shows that it runs.
//!
//! All contestants take turns, so that whatever else goes on meets them all; a ratio is that of one turn, and printed are
//! the median of all turns and the spread. `rankpact again` is the same program once more: the spread of that ratio is
//! what a difference must exceed. Where every rank can have a CPU, ours and those of MPI are pinned to one each; gloo and
//! whatever goes over TCP is not, for that needs more than one thread.

use clap::Parser;
use rankpact_benches::{
    Case, Contest, Depth, Failure, Peer, Results, Scored, Table, Team, settings,
};
use rankpact_collective::{Group, Join, Op, Options, World};
use rankpact_shm::cpus;
use serde::{Deserialize, Serialize};

const RANKS: [usize; 3] = [2, 4, 8];
const WIDE: [usize; 6] = [9, 64, 1024, 16_384, 1 << 18, 1 << 20];
const AGAIN: &str = "rankpact again";

/// Our reduction beside that of others.
#[derive(Parser)]
struct Versus {
    #[command(flatten)]
    depth: Depth,
}

/// What a rank of ours is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Settings {
    path: String,
    pinned: bool,
    cases: Vec<Case>,
}

fn rank(settings: &Settings) -> Result<(), Failure> {
    let world = World::connect(Join::from_env()?)?;
    let options = Options {
        path: settings.path.parse()?,
        ..world.options().clone()
    };
    let mut group = world.everybody_with("versus", options)?;
    group.ready()?;
    if settings.pinned {
        cpus::pin(world.rank())?;
    }
    for case in &settings.cases {
        let mut values = vec![0; case.width];
        for round in 0..case.rounds / 10 + 2 {
            check(&mut group, &mut values, round)?;
        }
        let reduce = || Ok(group.all_reduce(Op::Min, &mut values, "versus")?);
        case.measure(world.rank(), reduce)?.say()?;
    }
    Ok(())
}

/// A round in which the ranks take turns to have the minimum.
fn check(group: &mut Group, values: &mut [i64], round: usize) -> Result<(), Failure> {
    let (rank, size) = (group.rank(), group.size());
    for (slot, value) in values.iter_mut().enumerate() {
        *value = i64::try_from((rank + round + slot) % size * 1000 + round + slot)?;
    }
    group.all_reduce(Op::Min, values, "versus")?;
    let right = |(slot, value): (usize, &i64)| usize::try_from(*value) == Ok(round + slot);
    if values.iter().enumerate().all(right) {
        Ok(())
    } else {
        Err(format!("wrong value in round {}", group.round()).into())
    }
}

fn ours(name: &str, ranks: usize, path: &str, pinned: bool, cases: &[Case]) -> Result<Team, Failure> {
    let settings = Settings {
        path: path.to_owned(),
        pinned: pinned && ranks <= cpus::available(),
        cases: cases.to_vec(),
    };
    Team::ours(name, ranks, &settings, |_| Vec::new())
}

/// Up to 8 slots, against everybody.
fn rows(ranks: usize, peers: &[Peer], depth: &Depth, results: &mut Results) -> Result<Vec<Scored>, Failure> {
    let mut contest = Contest::new(ranks, vec![Case::of(8)]);
    for name in ["rankpact", AGAIN] {
        contest.ours(name, move |cases| ours(name, ranks, "table", true, cases));
    }
    for peer in peers {
        contest.other(peer.name, move |cases| peer.team(ranks, cases));
    }
    contest.hold(depth, |line| results.say(line))
}

/// Wide vectors over TCP, against gloo; and what a group takes that is free to choose.
fn vectors(ranks: usize, peers: &[Peer], depth: &Depth, results: &mut Results) -> Result<Vec<Scored>, Failure> {
    let mut contest = Contest::new(ranks, WIDE.map(Case::of).to_vec());
    for (name, path) in [("rankpact tcp", "tcp"), (AGAIN, "tcp"), ("rankpact ring", "auto")] {
        contest.ours(name, move |cases| ours(name, ranks, path, false, cases));
    }
    for peer in peers.iter().filter(|peer| peer.name == Peer::GLOO) {
        contest.other(peer.name, move |cases| peer.team(ranks, cases));
    }
    contest.hold(depth, |line| results.say(line))
}

fn main() -> Result<(), Failure> {
    if let Some(settings) = settings()? {
        return rank(&settings);
    }
    let Versus { depth } = Versus::parse();
    let mut results = Results::new("versus", &depth);
    let peers = Peer::all(|line| results.say(line))?;
    let mut all = Vec::new();
    for ranks in RANKS {
        let scored = rows(ranks, &peers, &depth, &mut results)?;
        show(ranks, &scored, &mut results)?;
        all.push((ranks, scored));
    }
    results.finish()
}

fn show(ranks: usize, all: &[Scored], results: &mut Results) -> Result<(), Failure> {
    let mut table = Table::new(1, [
        "contestant", "ranks", "width", "rounds", "p50 us", "p99 us", "p99.9 us", "wall us", "CPU us", "x p50", "x p99", "x wall",
    ]);
    let us = |ns: f64| format!("{:.2}", ns / 1000.0);
    for scored in all {
        for (score, base) in scored.scores.iter().zip(&all[0].scores) {
            let sample = &score.all;
            let worst = sample.worst;
            let mut cells = vec![scored.name.clone(), ranks.to_string(), sample.case.clone(), sample.rounds.to_string()];
            cells.extend([worst.p50, worst.p99, worst.p999].map(|ns| us(ns.into())));
            cells.extend([us(sample.wall_ns), us(sample.cpu_ns)]);
            let ratios = [base.quantile(score, |q| q.p50), base.quantile(score, |q| q.p99), base.wall(score)];
            cells.extend(ratios.map(|ratio| ratio.to_string()));
            table.row(cells);
        }
    }
    results.table(&format!("{ranks} ranks"), &table);
    Ok(())
}
