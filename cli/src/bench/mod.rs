//! `rankpact bench`: latency of reductions between real processes, beside the floor of this machine.

pub(crate) mod rank;

use crate::Failure;
use crate::replay::publish;
use crate::team::Team;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use rank::{Latency, Settings};
use rankpact_shm::{cpus, floor};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Name of the hidden subcommand of a rank.
pub(crate) const RANK: &str = "bench-rank";

/// The whole bench of one number of ranks may take so long.
const LIMIT: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Numbers of rank processes
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [2, 4, 8], value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: Vec<u16>,
    /// Slots of a row; a broadcast and gathered bytes have 8 bytes for each
    #[arg(long, value_name = "W,..", value_delimiter = ',', default_values_t = [1, 7, 8, 9, 64], value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    widths: Vec<u32>,
    /// Operations
    #[arg(long, value_name = "OP,..", value_enum, value_delimiter = ',', default_values_t = [rank::OpName::Min])]
    op: Vec<rank::OpName>,
    /// Rounds through the table; over TCP, and where ranks outnumber CPUs, fewer
    #[arg(long, value_name = "K", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(10..=1_000_000_000))]
    rounds: u64,
    /// Write the result as JSON to a file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One line of the result; times are those of the worst rank, `min_ns` that of the best.
#[derive(Debug, Serialize)]
struct Row {
    path: String,
    op: String,
    width: u32,
    ranks: u16,
    cpus: usize,
    rounds: u64,
    min_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    cpu_s: f64,
    /// Median against that of a raw exchange of one cache line, where both ranks have a CPU of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    floor_ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Bench {
    version: &'static str,
    cpus: usize,
    /// Median of a raw exchange of one cache line between two CPUs, measured just before and just after.
    #[serde(skip_serializing_if = "Option::is_none")]
    floor_ns: Option<u64>,
    rows: Vec<Row>,
}

pub(crate) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let cpus = cpus::allowed()?.len();
    let mut floors = Vec::new();
    let mut rows = Vec::new();
    for &ranks in &args.ranks {
        let pair = ranks == 2 && cpus >= 2;
        if pair {
            floors.push(floor_ns(args.rounds));
        }
        rows.extend(measure(args, ranks, cpus)?);
        if pair {
            floors.push(floor_ns(args.rounds));
        }
    }
    // The better of the two: noise only ever adds.
    let floor_ns = floors.iter().min().copied();
    for row in rows.iter_mut().filter(|row| row.ranks == 2) {
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds")]
        let ratio = |floor: u64| row.p50_ns as f64 / floor as f64;
        row.floor_ratio = floor_ns.map(ratio);
    }
    let bench = Bench {
        version: env!("CARGO_PKG_VERSION"),
        cpus,
        floor_ns,
        rows,
    };
    publish(args.json.as_deref(), &bench, &bench.table())
}

/// Median of the raw exchange between the first two CPUs, of as many rounds as are measured, within reason.
fn floor_ns(rounds: u64) -> u64 {
    let rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
    let mut times = floor::exchange(rounds.clamp(1_000, 100_000), 1, |side| {
        // Unpinned is still a measurement, only a worse one.
        let _ = cpus::pin(side);
    });
    times.sort_unstable();
    times
        .get(times.len() / 2)
        .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn measure(args: &BenchArgs, ranks: u16, cpus: usize) -> Result<Vec<Row>, Failure> {
    let settings = Settings {
        widths: args.widths.clone(),
        ops: args.op.clone(),
        rounds: args.rounds,
    };
    let team = Team {
        subcommand: RANK,
        ranks: usize::from(ranks),
        timeout: Some(LIMIT),
    };
    let reports = team.run::<Settings, Vec<Latency>>(&settings, |_| ())?;
    let mut worst: Vec<Latency> = Vec::new();
    for report in reports {
        if worst.is_empty() {
            worst = report;
        } else {
            worst
                .iter_mut()
                .zip(report)
                .for_each(|(worst, other)| worst.merge(&other));
        }
    }
    let row = |latency: Latency| Row {
        path: latency.path,
        op: latency.op,
        width: latency.width,
        ranks,
        cpus,
        rounds: latency.rounds,
        min_ns: latency.min_ns,
        p50_ns: latency.p50_ns,
        p99_ns: latency.p99_ns,
        p999_ns: latency.p999_ns,
        max_ns: latency.max_ns,
        cpu_s: latency.cpu_s,
        floor_ratio: None,
    };
    Ok(worst.into_iter().map(row).collect())
}

impl Bench {
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "path", "op", "width", "ranks", "min ns", "p50 ns", "p99 ns", "p99.9 ns", "cpu s",
            "x floor",
        ]);
        for row in &self.rows {
            table.add_row([
                row.path.clone(),
                row.op.clone(),
                row.width.to_string(),
                format!(
                    "{}{}",
                    row.ranks,
                    if usize::from(row.ranks) > row.cpus {
                        " *"
                    } else {
                        ""
                    }
                ),
                row.min_ns.to_string(),
                row.p50_ns.to_string(),
                row.p99_ns.to_string(),
                row.p999_ns.to_string(),
                format!("{:.2}", row.cpu_s),
                row.floor_ratio
                    .map_or(String::new(), |ratio| format!("{ratio:.2}")),
            ]);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let floor = match self.floor_ns {
            Some(floor) => {
                format!("floor: {floor} ns, a raw exchange of one cache line between two CPUs")
            }
            None => "floor: not measured, for it needs 2 ranks and 2 CPUs".to_owned(),
        };
        let rows: Vec<String> = table
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        format!(
            "{}\n{floor}\n* more ranks than the {} CPUs",
            rows.join("\n"),
            self.cpus
        )
    }
}
