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
    Axis, Case, Contest, Depth, Failure, Peer, Plot, Results, Score, Scored, Table, Team, settings,
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
        Case::warm_up(|round, on| {
            check(&mut group, &mut values, round)?;
            let mut on = [on];
            group.all_reduce(Op::Min, &mut on, "warm-up")?;
            Ok(on[0])
        })?;
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

fn ours(
    name: &str,
    ranks: usize,
    path: &str,
    pinned: bool,
    cases: &[Case],
) -> Result<Team, Failure> {
    let settings = Settings {
        path: path.to_owned(),
        pinned: pinned && ranks <= cpus::available(),
        cases: cases.to_vec(),
    };
    Team::ours(name, ranks, &settings, |_| Vec::new())
}

/// Up to 8 slots, against everybody.
fn rows(
    ranks: usize,
    peers: &[Peer],
    depth: &Depth,
    results: &mut Results,
) -> Result<Vec<Scored>, Failure> {
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
fn vectors(
    ranks: usize,
    peers: &[Peer],
    depth: &Depth,
    results: &mut Results,
) -> Result<Vec<Scored>, Failure> {
    let mut contest = Contest::new(ranks, WIDE.map(Case::of).to_vec());
    for (name, path) in [
        ("rankpact tcp", "tcp"),
        (AGAIN, "tcp"),
        ("rankpact ring", "auto"),
    ] {
        contest.ours(name, move |cases| ours(name, ranks, path, false, cases));
    }
    for peer in peers.iter().filter(|peer| peer.name == Peer::GLOO) {
        contest.other(peer.name, move |cases| peer.team(ranks, cases));
    }
    contest.hold(depth, |line| results.say(line))
}

/// What is to be reached, and what was.
struct Goal {
    what: String,
    ranks: usize,
    slots: usize,
    least: f64,
    reached: f64,
}

impl Goal {
    /// Against the better Open MPI, and against gloo.
    fn of_rows(ranks: usize, all: &[Scored]) -> Vec<Self> {
        let slots = 8;
        let goal = |what: &str, least, reached| Self {
            what: what.to_owned(),
            ranks,
            slots,
            least,
            reached,
        };
        let ratios = |name: &str| {
            let other = Scored::find(all, name)?;
            Some(
                all[0].scores[0]
                    .ratios(&other.scores[0])
                    .map(|ratio| ratio.median),
            )
        };
        let mut goals = Vec::new();
        let mpi = Peer::OPEN_MPI.iter().filter_map(|name| ratios(name));
        let better = |one: [f64; 3], other: [f64; 3]| std::array::from_fn(|i| one[i].min(other[i]));
        if let Some([p50, _, wall]) = mpi.reduce(better) {
            goals.push(goal("Open MPI, wall time", 2.0, wall));
            goals.push(goal("Open MPI, p50", 2.0, p50));
        }
        if let Some([p50, p99, _]) = ratios(Peer::GLOO) {
            goals.push(goal("gloo, p50", 500.0, p50));
            goals.push(goal("gloo, p99", 500.0, p99));
        }
        goals
    }

    /// Over TCP, against gloo: much faster where it is short, and nowhere slower than our own spread.
    fn of_vectors(ranks: usize, all: &[Scored]) -> Vec<Self> {
        let (Some(gloo), Some(again)) = (Scored::find(all, Peer::GLOO), Scored::find(all, AGAIN))
        else {
            return Vec::new();
        };
        let goals = all[0].scores.iter().zip(&gloo.scores).zip(&again.scores);
        let goal = |((ours, gloo), again): ((&Score, &Score), &Score)| {
            let slots = ours.case.width;
            let least = match (slots, ranks) {
                (..=1024, 2) => 20.0,
                (..=1024, _) => 5.0,
                _ => {
                    let spread = ours.ratios(again)[2];
                    spread.least.min(1.0 / spread.most).min(1.0)
                }
            };
            let what = |of: &str| format!("gloo over TCP, {of}");
            let [p50, _, wall] = ours.ratios(gloo).map(|ratio| ratio.median);
            [("wall time", wall), ("p50", p50)].map(|(of, reached)| Self {
                what: what(of),
                ranks,
                slots,
                least,
                reached,
            })
        };
        goals.flat_map(goal).collect()
    }

    /// A single short turn is no ground for a verdict.
    fn table(goals: &[Self], depth: &Depth) -> Table {
        let heads = ["against", "ranks", "slots", "at least", "reached", ""];
        let mut table = Table::new(1, heads);
        for goal in goals {
            let Self {
                what,
                ranks,
                slots,
                least,
                reached,
            } = goal;
            let verdict = match reached >= least {
                _ if !depth.is_full() => "",
                true => "met",
                false => "MISSED",
            };
            table.row([
                what.clone(),
                ranks.to_string(),
                slots.to_string(),
                format!("{least:.2}"),
                format!("{reached:.2}"),
                verdict.to_owned(),
            ]);
        }
        table
    }
}

fn main() -> Result<(), Failure> {
    if let Some(settings) = settings()? {
        return rank(&settings);
    }
    let Versus { depth } = Versus::parse();
    let mut results = Results::new("versus", &depth);
    let peers = Peer::all(|line| results.say(line))?;
    let slots = Axis {
        name: "slots",
        of: |case| case.width,
    };
    let mut goals = Vec::new();
    let mut by_ranks = Vec::new();
    for ranks in RANKS {
        let all = rows(ranks, &peers, &depth, &mut results)?;
        Scored::show(&all, "a row on the table", ranks, slots, &mut results)?;
        goals.extend(Goal::of_rows(ranks, &all));
        by_ranks.push((ranks, all));
    }
    let mut wide = Vec::new();
    for ranks in RANKS {
        let all = vectors(ranks, &peers, &depth, &mut results)?;
        Scored::show(&all, "vectors over TCP", ranks, slots, &mut results)?;
        goals.extend(Goal::of_vectors(ranks, &all));
        wide.push((ranks, all));
    }
    let title = "Goals: how many times as long others take";
    results.table(title, &Goal::table(&goals, &depth));
    results.plot("rows", &rows_plot(&by_ranks))?;
    results.plot("vectors", &Scored::plot(&wide, "Vectors over TCP", slots))?;
    results.finish()
}

/// Over the number of ranks, for there is one width.
fn rows_plot(contests: &[(usize, Vec<Scored>)]) -> Plot {
    let mut plot = Plot {
        title: "8 slots on the table".to_owned(),
        axes: ["ranks", "wall time, times ours"],
        lines: Vec::new(),
    };
    for (ranks, all) in contests {
        for Scored { name, scores } in &all[1..] {
            let [.., wall] = all[0].scores[0].ratios(&scores[0]);
            let point = (*ranks as f64, wall.median);
            match plot.lines.iter_mut().find(|(known, _)| known == name) {
                Some((_, line)) => line.push(point),
                None => plot.lines.push((name.clone(), vec![point])),
            }
        }
    }
    plot
}
