//! What every operation costs on every path: back to back and at the pace of a scheduler, pinned and not, and how that
//! grows with ranks and width.
//!
//! `cargo bench -p rankpact-benches --bench latency -- [full | --ranks 2,4 --op min --widths 1,8 --paths table]`
//!
//! A rank that is always the last to arrive sees no wait at all: each quantile is that of the rank where it is worst.

mod case;
mod growth;
mod rank;

use case::{Case, Path, Plan, Setting, What};
use clap::Parser;
use rank::Orders;
use rankpact_benches::{Depth, Failure, Quantiles, Results, Sample, Table, Team, settings, switch};
use rankpact_shm::{cpus, floor};
use rankpact_tests::{Namespace, may_unshare};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The ranks of one setting may take so long.
const LIMIT: Duration = Duration::from_secs(400);

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    depth: Depth,
    /// Only these numbers of ranks
    #[arg(long, value_delimiter = ',', conflicts_with = "word")]
    ranks: Vec<usize>,
    /// Only these operations
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "word")]
    op: Vec<What>,
    /// Only these widths
    #[arg(long, value_delimiter = ',', conflicts_with = "word")]
    widths: Vec<usize>,
    /// Only these paths
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "word")]
    paths: Vec<Path>,
    /// How long each case is measured
    #[arg(long, value_name = "MS")]
    time: Option<u64>,
}

impl Arguments {
    fn is_filtered(&self) -> bool {
        let Self {
            ranks,
            op,
            widths,
            paths,
            ..
        } = self;
        !(ranks.is_empty() && op.is_empty() && widths.is_empty() && paths.is_empty())
    }

    fn plan(&self) -> Plan {
        fn has<T: PartialEq>(list: &[T], value: &T) -> bool {
            list.is_empty() || list.contains(value)
        }
        // Filters choose among all cases.
        let mut plan = if self.depth.is_full() || self.is_filtered() {
            case::all()
        } else {
            case::few()
        };
        for (_, cases) in &mut plan {
            cases.retain(|case| {
                has(&self.op, &case.what)
                    && has(&self.widths, &case.width)
                    && has(&self.paths, &case.path)
            });
        }
        plan.retain(|(setting, cases)| has(&self.ranks, &setting.ranks) && !cases.is_empty());
        plan
    }
}

/// What a process of this program is.
#[derive(Debug, Serialize, Deserialize)]
enum Role {
    Yields(usize),
    Rank(Orders),
}

/// A case that was measured.
pub(crate) struct Row {
    pub(crate) setting: Setting,
    pub(crate) case: Case,
    pub(crate) sample: Sample,
    /// The raw exchange of a line, just before or just after: the better of both, for noise only ever adds.
    line: Option<f64>,
}

/// So many cases of a pair of ranks go between two looks at the raw exchange, for what a machine can do changes.
const LOOK: usize = 16;

/// Median of the raw exchange of one line between two CPUs, in nanoseconds.
fn line() -> f64 {
    let times = floor::exchange(100_000, 1, |side| {
        // Unpinned is still a measurement, only a worse one.
        let _ = cpus::pin(side);
    });
    Sample::single("line", times).worst.p50.into()
}

/// Runs the ranks of one setting; nothing where it needs what is not permitted.
fn measure(setting: Setting, cases: &[Case], time: Duration) -> Result<Vec<Row>, Failure> {
    if setting.hosts && !may_unshare() {
        return Ok(Vec::new());
    }
    let host = |_| Namespace::new("mount -t tmpfs -o size=64m tmpfs /dev/shm");
    let hosts: Vec<Namespace> = (0..if setting.hosts { 2 } else { 0 }).map(host).collect();
    let orders = Role::Rank(Orders {
        cases: cases.to_vec(),
        pinned: setting.pinned,
        time,
    });
    let words = |rank: usize| {
        let host = hosts.get(rank * hosts.len() / setting.ranks);
        host.map_or(Vec::new(), Namespace::words)
    };
    let team = Team::ours(&setting.to_string(), setting.ranks, &orders, words)?;
    let samples = Sample::all(setting.ranks, team.run(LIMIT)?)?;
    if samples.len() != cases.len() {
        return Err(format!("{setting}: {} of {} cases", samples.len(), cases.len()).into());
    }
    let row = |(case, mut sample): (&Case, Sample)| {
        sample.case = format!("{setting}: {case}");
        Row {
            setting,
            case: *case,
            sample,
            line: None,
        }
    };
    Ok(cases.iter().zip(samples).map(row).collect())
}

fn print(results: &mut Results, setting: Setting, rows: &[Row], switch: f64) {
    let heads = ["path", "op", "width", "every", "rounds"];
    let mut header: Vec<_> = heads.into_iter().chain(Quantiles::HEADS).collect();
    header.extend([
        "wall us",
        "CPU us",
        "skew p50",
        "p99",
        "transport p50",
        "p99",
    ]);
    let crowd = setting.ranks as f64 / cpus::available() as f64;
    let has_line = rows.iter().any(|row| row.line.is_some());
    header.extend(has_line.then_some("x line"));
    header.extend((crowd > 1.0).then_some("x yields"));
    let mut table = Table::new(4, header);
    for Row {
        case, sample, line, ..
    } in rows
    {
        let mut cells: Vec<_> = case.cells().into();
        cells.push(sample.rounds.to_string());
        cells.extend(sample.worst.cells());
        cells.extend([sample.wall_ns, sample.cpu_ns].map(|ns| format!("{:.2}", ns / 1e3)));
        for part in [sample.skew, sample.transport] {
            cells.extend(part.map_or([String::new(), String::new()], |part| {
                [part.p50, part.p99].map(|time| time.to_string())
            }));
        }
        cells.extend(line.map(|line| format!("{:.2}", f64::from(sample.worst.p50) / line)));
        if crowd > 1.0 {
            cells.push(format!("{:.2}", sample.wall_ns / (crowd * switch)));
        }
        table.row(cells);
    }
    results.table(&format!("{setting}."), &table);
}

fn main() -> Result<(), Failure> {
    match settings()? {
        Some(Role::Yields(rounds)) => return switch::rank(rounds),
        Some(Role::Rank(orders)) => return rank::rank(&orders),
        None => {}
    }
    let arguments = Arguments::parse();
    let depth = &arguments.depth;
    let mut results = Results::new("latency", depth);
    let plain = if arguments.is_filtered() { 200 } else { 20 };
    let time = Duration::from_millis(arguments.time.unwrap_or(depth.choose(plain, 250)));
    let switch = switch::measure(&Role::Yields(depth.choose(2000, 20_000)))?;
    let mut all = Vec::new();
    for (setting, cases) in arguments.plan() {
        let pair = setting.ranks == 2 && setting.pinned && cpus::available() >= 2;
        let mut rows = Vec::new();
        for cases in cases.chunks(if pair { LOOK } else { cases.len() }) {
            let before = pair.then(line);
            let measured = measure(setting, cases, time)?;
            let line = before.map(|before| before.min(line()));
            rows.extend(measured.into_iter().map(|row| Row { line, ..row }));
        }
        for row in &rows {
            results.keep(&row.sample)?;
        }
        if rows.is_empty() {
            continue;
        }
        print(&mut results, setting, &rows, switch.worst.p50.into());
        all.extend(rows);
    }
    let lines: Vec<f64> = all.iter().filter_map(|row: &Row| row.line).collect();
    if let Some(best) = lines.iter().copied().reduce(f64::min) {
        let worst = lines.into_iter().fold(best, f64::max);
        results.say(&format!(
            "x line: the median, times the raw exchange of one line around it, {best} to {worst} ns"
        ));
    }
    results.say(&format!(
        "x yields: wall time of a round, times (ranks / CPUs) x one switching yield of {} ns",
        switch.worst.p50
    ));
    if depth.is_full() {
        growth::show(&mut results, &all)?;
    }
    results.finish()
}
