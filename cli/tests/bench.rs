//! `rankpact bench` with real processes.

mod common;

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use common::{Arena, assert_end, send, text};

const QUICK: [&str; 7] = [
    "bench", "--ranks", "2", "--widths", "8,9", "--rounds", "2000",
];

impl Arena {
    fn bench(&self, more: &[&str]) -> Command {
        self.rankpact(&[&QUICK as &[&str], more].concat())
    }

    /// Returns once its ranks run, and most likely measure.
    fn start_endless(&self) -> Child {
        let args = [
            "bench",
            "--ranks",
            "2",
            "--widths",
            "8",
            "--rounds",
            "1000000000",
        ];
        let child = self.rankpact(&args).spawn().unwrap();
        while self.processes().len() < 3 {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(300));
        child
    }
}

fn number(row: &Value, column: &str) -> u64 {
    row[column]
        .as_u64()
        .unwrap_or_else(|| panic!("{column} of {row}"))
}

#[track_caller]
fn assert_rows(bench: &Value) {
    let rows = bench["rows"].as_array().unwrap();
    let kinds: Vec<(&str, u64)> = rows
        .iter()
        .map(|row| (row["path"].as_str().unwrap(), number(row, "width")))
        .collect();
    assert_eq!(kinds, [("table", 8), ("table", 9), ("tcp", 8), ("tcp", 9)]);
    for row in rows {
        assert_eq!(row["op"], "min", "{row}");
        assert_eq!(number(row, "ranks"), 2);
        assert_eq!(number(row, "cpus"), number(bench, "cpus"));
        assert!(number(row, "rounds") >= 10, "{row}");
        let times =
            ["min_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"].map(|column| number(row, column));
        assert!(times[0] > 0 && times.is_sorted(), "{row}");
        assert!(row["cpu_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(number(&rows[0], "rounds"), 2000);
    if number(bench, "cpus") >= 2 {
        let floor = number(bench, "floor_ns");
        assert!(floor > 0);
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds")]
        let ratio = number(&rows[0], "p50_ns") as f64 / floor as f64;
        assert!((rows[0]["floor_ratio"].as_f64().unwrap() - ratio).abs() < 1e-6);
    } else {
        assert!(bench.get("floor_ns").is_none());
    }
}

#[test]
fn json_has_every_column_for_both_paths() {
    let arena = Arena::new();
    let output = arena.bench(&["--json", "-"]).output().unwrap();
    assert_end(&output, 0, "");
    assert_rows(&serde_json::from_slice(&output.stdout).unwrap());
    arena.assert_clean();
}

#[test]
fn people_get_a_table_and_programs_a_file() {
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    let output = arena
        .bench(&["--json", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_end(&output, 0, "");
    let table = text(&output.stdout);
    let heads: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert!(
        heads.starts_with(&["path", "op", "width", "ranks"]),
        "{table}"
    );
    assert!(
        table.lines().any(|line| line.starts_with("floor: ")),
        "{table}"
    );
    assert_rows(&serde_json::from_slice(&fs::read(file).unwrap()).unwrap());
    arena.assert_clean();
}

#[test]
fn more_ranks_than_cpus_and_the_other_operation_are_measured_too() {
    let arena = Arena::new();
    let args = [
        "bench", "--ranks", "3,5", "--widths", "1", "--rounds", "500", "--op", "max", "--json", "-",
    ];
    let output = arena.rankpact(&args).output().unwrap();
    assert_end(&output, 0, "");
    let bench: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows: Vec<(u64, &str, &str)> = bench["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let word = |column: &str| row[column].as_str().unwrap();
            (number(row, "ranks"), word("path"), word("op"))
        })
        .collect();
    assert_eq!(
        rows,
        [
            (3, "table", "max"),
            (3, "tcp", "max"),
            (5, "table", "max"),
            (5, "tcp", "max")
        ]
    );
    arena.assert_clean();
}

#[test]
fn results_that_cannot_be_written_are_one_line() {
    let arena = Arena::new();
    let args = ["--widths", "1", "--rounds", "10"];
    let bench = |more: &[&str]| {
        arena.rankpact(&[&["bench", "--ranks", "2"], &args as &[&str], more].concat())
    };
    let file = arena.temp.path().join("missing/bench.json");
    let output = bench(&["--json", file.to_str().unwrap()]).output().unwrap();
    let cause = "No such file or directory (os error 2)";
    assert_end(
        &output,
        1,
        &format!("rankpact: {}: {cause}\n", file.display()),
    );
    assert!(text(&output.stdout).contains("floor: "));
    for more in [&[] as &[&str], &["--json", "-"]] {
        let full = File::create("/dev/full").unwrap();
        let output = bench(more).stdout(full).output().unwrap();
        let cause = "No space left on device (os error 28)";
        assert_end(&output, 1, &format!("rankpact: standard output: {cause}\n"));
    }
    arena.assert_clean();
}

#[test]
fn an_interrupted_bench_leaves_nothing() {
    let arena = Arena::new();
    let child = arena.start_endless();
    send(&child, Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("rankpact: interrupted by SIGTERM"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_eq!(output.status.code(), Some(1));
    arena.assert_clean();
}

#[test]
fn no_rank_survives_a_killed_bench() {
    let arena = Arena::new();
    let mut child = arena.start_endless();
    send(&child, Signal::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    arena.await_stragglers();
    arena.assert_no_segments();
}

#[test]
fn wrong_arguments_are_refused() {
    let arena = Arena::new();
    for args in [
        ["--ranks", "1"],
        ["--ranks", "65"],
        ["--ranks", "2,x"],
        ["--widths", "0"],
        ["--widths", "16777217"],
        ["--rounds", "9"],
        ["--op", "product"],
    ] {
        let output = arena.rankpact(&["bench"]).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).starts_with("error: "), "{args:?}");
    }
    arena.assert_clean();
}
