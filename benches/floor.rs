//! The floor: a raw exchange of one and of two cache lines between two CPUs, and the reading of many fresh lines.
//!
//! `cargo bench -p rankpact-benches --bench floor -- [ROUNDS]`

use comfy_table::{CellAlignment, Table, presets};
use rankpact_shm::{cpus, floor};
use std::thread::available_parallelism;
use std::time::Duration;

const ROUNDS: usize = 1_000_000;

/// Unpinned is still a measurement, only a worse one.
fn pin(side: usize) {
    if let Err(error) = cpus::pin(side) {
        eprintln!("floor: side {side} is not pinned: {error}");
    }
}

fn main() {
    if available_parallelism().map_or(1, usize::from) < 2 {
        println!("floor: skipped, an exchange needs two CPUs");
        return;
    }
    // Cargo adds `--bench`.
    let rounds = std::env::args()
        .skip(1)
        .find_map(|word| word.parse().ok())
        .unwrap_or(ROUNDS);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "what", "lines", "rounds", "min ns", "p50 ns", "p99 ns", "p99.9 ns", "max ns",
    ]);
    let mut row = |what: &str, lines: usize, mut times: Vec<Duration>| {
        times.sort_unstable();
        let at = |quantile: usize| {
            times[(times.len() - 1) * quantile / 1000]
                .as_nanos()
                .to_string()
        };
        let quantiles = [0, 500, 990, 999, 1000].map(at);
        table.add_row(
            [what.to_owned(), lines.to_string(), rounds.to_string()]
                .into_iter()
                .chain(quantiles),
        );
    };
    for lines in [1, 2] {
        row("exchange", lines, floor::exchange(rounds, lines, pin));
    }
    // The last rank to arrive reads the rows of all others.
    for lines in [1, 3, 7, 15, 31, 63] {
        row("scan", lines, floor::scan(rounds, lines, pin));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
}
