//! A reduction over the ranks of this machine, ours and that of others: gloo in C++ and through torch, Open MPI, MPICH.
//!
//! `cargo bench -p rankpact-benches --bench versus -- [full | --ranks 2,4 --widths 1,8]`; the short form only shows that it
//! runs.
//!
//! All contestants take turns, so that whatever else goes on meets them all; a ratio is that of one turn, and printed are
//! the median of all turns and the spread. `rankpact again` is the same program once more: the spread of that ratio is what
//! a difference must exceed. `bare lines` and `bare sockets` are no library but the least that a row, or a vector over TCP,
//! takes on this machine: they look after nothing. Where every rank can have a CPU, ours, bare lines and those of MPI are
//! pinned to one each; gloo and whatever goes over TCP is not, for that needs more than one thread.

use clap::Parser;
use rankpact_benches::{
    Axis, Case, Contest, Depth, Failure, Peer, Results, Scored, Table, Team, settings,
};
use rankpact_collective::{Group, Join, Op, Options, World};
use rankpact_shm::{MAX_SLOTS, cpus};
use serde::{Deserialize, Serialize};

const RANKS: [usize; 3] = [2, 4, 8];
const ROW: [usize; 2] = [1, MAX_SLOTS];
const WIDE: [usize; 6] = [9, 64, 1024, 16_384, 1 << 18, 1 << 20];
const AGAIN: &str = "rankpact again";

/// Our reduction beside that of others.
#[derive(Parser)]
struct Versus {
    #[command(flatten)]
    depth: Depth,
    /// Measure only these numbers of ranks
    #[arg(long, value_delimiter = ',', value_parser = one_of(&[&RANKS]), conflicts_with = "word")]
    ranks: Vec<usize>,
    /// Measure only these numbers of slots
    #[arg(long, value_delimiter = ',', value_parser = one_of(&[&ROW, &WIDE]), conflicts_with = "word")]
    widths: Vec<usize>,
}

/// A number that is measured.
fn one_of(known: &[&[usize]]) -> impl Fn(&str) -> Result<usize, String> + Clone + use<> {
    let known = known.concat();
    move |text: &str| {
        let number = text.parse().ok().filter(|number| known.contains(number));
        number.ok_or_else(|| format!("one of {known:?}"))
    }
}

impl Versus {
    /// A short turn is no ground for a verdict.
    fn measures(&self) -> bool {
        self.depth.is_full() || !(self.ranks.is_empty() && self.widths.is_empty())
    }

    /// With how many ranks to measure some of `widths`: none where none of these is chosen.
    fn ranks(&self, widths: &[usize]) -> impl Iterator<Item = usize> {
        let some = !self.cases(widths).is_empty();
        let chosen =
            move |ranks: &usize| some && (self.ranks.is_empty() || self.ranks.contains(ranks));
        RANKS.into_iter().filter(chosen)
    }

    fn cases(&self, widths: &[usize]) -> Vec<Case> {
        let chosen = |width: &usize| self.widths.is_empty() || self.widths.contains(width);
        widths
            .iter()
            .copied()
            .filter(chosen)
            .map(Case::of)
            .collect()
    }
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

/// One slot and 8, against everybody.
fn rows(
    ranks: usize,
    peers: &[Peer],
    versus: &Versus,
    results: &mut Results,
) -> Result<Vec<Scored>, Failure> {
    let mut contest = Contest::new(ranks, versus.cases(&ROW));
    for name in ["rankpact", AGAIN] {
        contest.ours(name, move |cases| ours(name, ranks, "table", true, cases));
    }
    for peer in peers.iter().filter(|peer| peer.name != Peer::BARE_TCP) {
        contest.other(peer.name, move |cases| peer.team(ranks, cases));
    }
    contest.hold(versus.measures(), |line| results.say(line))
}

/// Wide vectors over TCP, against gloo; and what a group takes that is free to choose.
fn vectors(
    ranks: usize,
    peers: &[Peer],
    versus: &Versus,
    results: &mut Results,
) -> Result<Vec<Scored>, Failure> {
    let mut contest = Contest::new(ranks, versus.cases(&WIDE));
    for (name, path) in [
        ("rankpact tcp", "tcp"),
        (AGAIN, "tcp"),
        ("rankpact ring", "auto"),
    ] {
        contest.ours(name, move |cases| ours(name, ranks, path, false, cases));
    }
    let over_tcp = [Peer::BARE_TCP, Peer::GLOO];
    for peer in peers.iter().filter(|peer| over_tcp.contains(&peer.name)) {
        contest.other(peer.name, move |cases| peer.team(ranks, cases));
    }
    contest.hold(versus.measures(), |line| results.say(line))
}

/// What is to be reached, what was, and what a bare exchange would reach: where that is less, nobody can.
struct Goals {
    table: Table,
    judged: bool,
}

impl Goals {
    fn add(&mut self, what: &str, case: [usize; 2], least: f64, reached: f64, bare: Option<f64>) {
        let verdict = match reached >= least {
            _ if !self.judged => "",
            true => "met",
            false => "MISSED",
        };
        let [ranks, slots] = case.map(|number| number.to_string());
        let [least, reached] = [least, reached].map(|times| format!("{times:.2}"));
        let bare = bare.map_or_else(String::new, |times| format!("{times:.2}"));
        self.table.row([
            what.to_owned(),
            ranks,
            slots,
            least,
            reached,
            bare,
            verdict.to_owned(),
        ]);
    }

    /// Against the better Open MPI, and against gloo.
    fn rows(&mut self, ranks: usize, all: &[Scored]) {
        let case = [ranks, MAX_SLOTS];
        let bare = Scored::find(all, Peer::BARE);
        let mpi = least_times(all, &Peer::OPEN_MPI, &all[0]);
        let mpi_by_bare = bare.and_then(|bare| least_times(all, &Peer::OPEN_MPI, bare));
        if let Some([p50, _, wall]) = mpi {
            self.add(
                "Open MPI, wall time",
                case,
                2.0,
                wall,
                mpi_by_bare.map(|times| times[2]),
            );
            self.add(
                "Open MPI, p50",
                case,
                2.0,
                p50,
                mpi_by_bare.map(|times| times[0]),
            );
        }
        let gloo_by_bare = bare.and_then(|bare| least_times(all, &[Peer::GLOO], bare));
        if let Some([p50, p99, _]) = least_times(all, &[Peer::GLOO], &all[0]) {
            self.add(
                "gloo, p50",
                case,
                500.0,
                p50,
                gloo_by_bare.map(|times| times[0]),
            );
            self.add(
                "gloo, p99",
                case,
                500.0,
                p99,
                gloo_by_bare.map(|times| times[1]),
            );
        }
    }

    /// Over TCP, against gloo: much faster where it is short, and nowhere slower than our own spread.
    fn vectors(&mut self, ranks: usize, all: &[Scored]) {
        let (Some(gloo), Some(again)) = (Scored::find(all, Peer::GLOO), Scored::find(all, AGAIN))
        else {
            return;
        };
        let bare = Scored::find(all, Peer::BARE_TCP);
        let mut by_bare = bare.into_iter().flat_map(|bare| gloo.times(bare));
        for ((case, times), (_, equal)) in gloo.times(&all[0]).zip(again.times(&all[0])) {
            let bare = by_bare.next().map(|(_, times)| times);
            for (number, of) in [(2, "wall time"), (0, "p50")] {
                let (what, spread) = (format!("gloo over TCP, {of}"), equal[number]);
                let least = match (case.width, ranks) {
                    (..=1024, 2) => 20.0,
                    (..=1024, _) => 5.0,
                    _ => spread.least.min(1.0 / spread.most).min(1.0),
                };
                let reached = times[number].median;
                let bare = bare.map(|times| times[number].median);
                self.add(&what, [ranks, case.width], least, reached, bare);
            }
        }
    }
}

/// How many times as long as `first` the fastest of some takes for a full row: median and 99th percentile of the worst rank,
/// wall time.
fn least_times(all: &[Scored], names: &[&str], first: &Scored) -> Option<[f64; 3]> {
    let times = |name: &&str| {
        let mut times = Scored::find(all, name)?.times(first);
        let (_, times) = times.find(|(case, _)| case.width == MAX_SLOTS)?;
        Some(times.map(|ratio| ratio.median))
    };
    let better = |one: [f64; 3], other: [f64; 3]| std::array::from_fn(|i| one[i].min(other[i]));
    names.iter().filter_map(times).reduce(better)
}

fn main() -> Result<(), Failure> {
    if let Some(settings) = settings()? {
        return rank(&settings);
    }
    let versus = Versus::parse();
    let mut results = Results::new("versus", &versus.depth);
    let peers = Peer::all(|line| results.say(line))?;
    let mut goals = Goals {
        table: Table::new(
            1,
            [
                "against",
                "ranks",
                "slots",
                "at least",
                "reached",
                "bare lines",
                "",
            ],
        ),
        judged: versus.measures(),
    };
    let slots = Axis {
        name: "slots",
        of: |case| case.width,
    };
    let mut narrow = Vec::new();
    for ranks in versus.ranks(&ROW) {
        let all = rows(ranks, &peers, &versus, &mut results)?;
        Scored::show(&all, "rows on the table", ranks, slots, &mut results)?;
        goals.rows(ranks, &all);
        narrow.push((ranks, all));
    }
    let mut wide = Vec::new();
    for ranks in versus.ranks(&WIDE) {
        let all = vectors(ranks, &peers, &versus, &mut results)?;
        Scored::show(&all, "vectors over TCP", ranks, slots, &mut results)?;
        goals.vectors(ranks, &all);
        wide.push((ranks, all));
    }
    results.table("Goals: how many times as long others take", &goals.table);
    let of_rows = |ranks: usize, name: &str, case: &Case| {
        let drawn = case.width == MAX_SLOTS && name != AGAIN;
        drawn.then(|| (name.to_owned(), ranks))
    };
    Scored::plot(&narrow, "Rows", "ranks", of_rows, &mut results)?;
    let of_vectors = |ranks: usize, name: &str, case: &Case| {
        let drawn = name != AGAIN;
        drawn.then(|| (format!("{name}, {ranks} ranks"), case.width))
    };
    Scored::plot(&wide, "Vectors", "slots", of_vectors, &mut results)?;
    results.finish()
}
