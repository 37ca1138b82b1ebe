//! `rankpact replay` with real processes.

mod common;

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;

use common::{Arena, assert_end, names, send, text};

/// A line of a trace that replays.
const REQUEST: &str =
    r#"{"timestamp": 5, "input_length": 513, "output_length": 2, "hash_ids": [0, 7]}"#;
/// So short that it is over before anybody could look at it.
const SHORT: [&str; 4] = ["--requests", "20", "--speed", "500"];
/// So slow that it is not over before a test has ended it.
const SLOW: [&str; 2] = ["--speed", "2"];
/// Prefetches from slow storage run out of time in every pass.
const IMPATIENT: [&str; 8] = [
    "--speed",
    "40",
    "--storage-delay-ms",
    "200",
    "--timeout-base",
    "0.01",
    "--timeout-per-ki-token",
    "0",
];

impl Arena {
    /// Not yet started: `rankpact replay ARGS...`.
    fn replay(&self, args: &[&str]) -> Command {
        self.rankpact(&[&["replay"], args].concat())
    }

    /// The JSON of a replay that ends well and says nothing else.
    #[track_caller]
    fn result(&self, args: &[&str]) -> Value {
        result(
            &self
                .replay(&[args, &["--json", "-"]].concat())
                .output()
                .unwrap(),
        )
    }

    /// Not yet started: the same with a file system of `size` of its own mounted on `folder`.
    fn replay_with_mount(&self, folder: &Path, size: &str, args: &[&str]) -> Command {
        let replay = self.replay(args);
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c"])
            .arg("mount -t tmpfs -o size=$0 tmpfs \"$1\" && shift && exec \"$@\"")
            .arg(size)
            .arg(folder)
            .arg(replay.get_program())
            .args(replay.get_args());
        self.prepare(&mut command);
        command
    }

    /// Starts a replay; returns once rank `rank` has written a page, in the middle of it all. In no terminal's foreground:
    /// there the program leaves Ctrl-C to it.
    fn start_and_see_pages_of(&self, rank: usize, args: &[&str]) -> Child {
        let child = self.replay(args).process_group(0).spawn().unwrap();
        let written = |name: String| {
            let folder = self.temp.path().join(name).join(format!("rank-{rank}"));
            folder.is_dir() && !names(&folder).is_empty()
        };
        while !names(self.temp.path()).into_iter().any(written) {
            thread::sleep(Duration::from_millis(5));
        }
        child
    }

    /// The process of a rank.
    fn rank(&self, rank: usize) -> Pid {
        let wanted = format!("RANKPACT_RANK={rank}");
        let is_it = |path: &PathBuf| {
            let words = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
            words("cmdline").split('\0').nth(1) == Some("replay-rank")
                && words("environ").split('\0').any(|word| word == wanted)
        };
        let path = self.processes().into_iter().find(is_it).unwrap();
        Pid::from_raw(path.file_name().unwrap().to_str().unwrap().parse().unwrap())
    }
}

/// File systems can be mounted by root only, and not in every container.
fn can_mount() -> bool {
    let can = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("skipped: no file system can be mounted here");
    }
    can
}

#[track_caller]
fn result(output: &Output) -> Value {
    assert_end(output, 0, "");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_contract(&result);
    result
}

/// A number at a path of keys.
#[track_caller]
fn number(value: &Value, path: &str) -> u64 {
    let found = value.pointer(path).unwrap_or(&Value::Null);
    found
        .as_u64()
        .unwrap_or_else(|| panic!("{path} is {found} in {value}"))
}

/// What holds of every replay that ends well.
#[track_caller]
fn assert_contract(result: &Value) {
    let decisions: Vec<&str> = result["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hash| hash.as_str().unwrap())
        .collect();
    assert_eq!(decisions.len() as u64, number(result, "/ranks"));
    assert!(
        decisions.iter().all(|hash| hash == &decisions[0]),
        "{decisions:?}"
    );
    assert_eq!(decisions[0].len(), 16);
    assert!(
        u64::from_str_radix(decisions[0], 16).is_ok(),
        "{}",
        decisions[0]
    );

    assert_eq!(number(result, "/stages"), 1);
    for field in ["policy", "agreement", "path"] {
        assert!(result[field].is_string(), "{field} of {result}");
    }
    assert!(number(result, "/requests") > 0);
    assert!(number(result, "/passes") > 0);
    assert_eq!(number(result, "/ticks"), number(result, "/passes"));
    assert_eq!(number(result, "/collectives/min"), number(result, "/ticks"));
    number(result, "/collectives/max");
    assert!(number(result, "/collectives/per_pass_max") >= 1);

    let prefetch = |field: &str| number(result, &format!("/prefetch/{field}"));
    assert!(prefetch("attempts") >= prefetch("issued"));
    assert_eq!(
        prefetch("issued"),
        prefetch("completed") + prefetch("revoked") + prefetch("cut"),
        "{result}"
    );
    let unfulfilled: u64 = result["tokens"]["unfulfilled"]
        .as_object()
        .unwrap()
        .values()
        .map(|tokens| tokens.as_u64().unwrap())
        .sum();
    assert_eq!(
        number(result, "/tokens/hit"),
        number(result, "/tokens/fulfilled") + unfulfilled,
        "{result}"
    );
    for field in ["round_us", "skew_us"] {
        let times = ["p50", "p99", "max"].map(|part| result[field][part].as_f64().unwrap());
        assert!(times[0] >= 0.0 && times.is_sorted(), "{field} of {result}");
    }
    assert!(result["wall_s"].as_f64().unwrap() > 0.0);
}

/// A public trace, if it is here.
fn mooncake(name: &str) -> Option<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/data/mooncake")
        .join(name);
    if !file.is_file() {
        eprintln!("skipped: there is no {}", file.display());
        return None;
    }
    Some(file.to_str().unwrap().to_owned())
}

/// The first requests of a public trace at high speed from slow storage; nothing if the trace is not here.
fn replay_mooncake(name: &str, requests: &str, more: &[&str]) -> Option<Value> {
    let trace = mooncake(name)?;
    let arena = Arena::new();
    let args = [&trace, "--requests", requests, "--storage-delay-ms", "20"];
    let result = arena.result(&[&args as &[&str], more].concat());
    assert_eq!(number(&result, "/requests").to_string(), requests);
    arena.assert_clean();
    Some(result)
}

/// One line on standard error; returns what it says.
#[track_caller]
fn one_line(output: &Output) -> &str {
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    stderr
        .strip_prefix("rankpact: ")
        .and_then(|line| line.strip_suffix('\n'))
        .unwrap_or_else(|| panic!("{stderr}"))
}

#[test]
fn the_first_command_tells_people_what_happened() {
    let arena = Arena::new();
    let output = arena.replay(&[]).output().unwrap();
    assert_end(&output, 0, "");
    let summary = text(&output.stdout);
    let line = |name: &str| {
        let is_it = |line: &&str| line.trim_start().starts_with(name);
        summary
            .lines()
            .find(is_it)
            .unwrap_or_else(|| panic!("no {name}: {summary}"))
    };
    assert!(line("ranks").ends_with("4 over path table"));
    assert!(line("requests").contains("400 in "));
    assert!(line("collectives").ends_with("at most 2 in a pass"));
    assert!(line("prefetches").ends_with(" cut"));
    for name in ["round", "skew"] {
        assert!(line(name).contains("p50 ") && line(name).contains("max "));
    }
    assert!(line("decisions").ends_with(" on all 4 ranks"));
    arena.assert_clean();
}

#[test]
fn the_built_in_trace_has_prefetches_that_complete_and_others_that_are_cut() {
    let arena = Arena::new();
    let result = arena.result(&[]);
    assert_eq!(number(&result, "/ranks"), 4);
    assert_eq!(number(&result, "/requests"), 400);
    for (field, value) in [
        ("policy", "timeout"),
        ("agreement", "tick"),
        ("path", "table"),
    ] {
        assert_eq!(result[field], value);
    }
    assert_eq!(number(&result, "/collectives/per_pass_max"), 2);
    let completes = |result: &Value| {
        number(result, "/prefetch/completed") > 0 && number(result, "/tokens/fulfilled") > 0
    };
    // On a machine so busy that none completes in the time they have by default, some do in ten times that.
    let more = ["--timeout-base", "0.5"];
    assert!(completes(&result) || completes(&arena.result(&more)));
    assert!(number(&result, "/prefetch/cut") > 0, "{result}");
    assert!(
        number(&result, "/tokens/unfulfilled/deadline") > 0,
        "{result}"
    );
    arena.assert_clean();
}

#[test]
fn a_file_gets_the_same_object_and_people_still_get_the_summary() {
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("replay.json");
    let args = [&SHORT as &[&str], &["--json", file.to_str().unwrap()]].concat();
    let output = arena.replay(&args).output().unwrap();
    assert_end(&output, 0, "");
    let result: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_contract(&result);
    let hash = result["decisions"][0].as_str().unwrap();
    assert!(text(&output.stdout).contains(&format!("{hash} on all 4 ranks")));
    arena.assert_clean();
}

#[test]
fn a_tick_costs_two_collectives_at_most_when_deadlines_are_agreed() {
    let fast = ["--speed", "200"];
    if let Some(result) = replay_mooncake("conversation_trace.jsonl", "300", &fast) {
        assert_eq!(number(&result, "/collectives/per_pass_max"), 2);
    }
}

#[test]
fn a_tick_costs_one_collective_when_prefetches_are_waited_for() {
    let args = ["--speed", "200", "--policy", "wait_complete"];
    if let Some(result) = replay_mooncake("conversation_trace.jsonl", "300", &args) {
        assert_eq!(number(&result, "/collectives/per_pass_max"), 1);
        assert_eq!(result["policy"], "wait_complete");
        assert_eq!(number(&result, "/prefetch/cut"), 0);
    }
}

#[test]
fn a_tick_costs_one_collective_when_prefetches_do_what_they_can() {
    let args = ["--speed", "200", "--policy", "best_effort"];
    if let Some(result) = replay_mooncake("conversation_trace.jsonl", "300", &args) {
        assert_eq!(number(&result, "/collectives/per_pass_max"), 1);
        assert_eq!(result["policy"], "best_effort");
    }
}

#[test]
fn one_vote_per_poll_costs_many_collectives_in_a_pass() {
    // So many arrive at once, and wait for so long, that dozens of prefetches are live together.
    let args = [
        "--speed",
        "1000",
        "--agreement",
        "poll",
        "--timeout-base",
        "0.2",
    ];
    if let Some(result) = replay_mooncake("conversation_trace.jsonl", "500", &args) {
        assert!(
            number(&result, "/collectives/per_pass_max") >= 10,
            "{result}"
        );
        assert_eq!(result["agreement"], "poll");
    }
}

#[test]
fn long_prompts_of_the_synthetic_trace_replay_too() {
    if let Some(result) = replay_mooncake("synthetic_trace.jsonl", "300", &["--speed", "200"]) {
        assert!(number(&result, "/collectives/per_pass_max") <= 2);
    }
}

#[test]
fn any_number_of_ranks_agrees_over_any_path() {
    for (ranks, path, told) in [
        ("1", "table", "alone"),
        ("2", "table", "table"),
        ("8", "auto", "table"),
        ("1", "tcp", "alone"),
        ("2", "tcp", "tcp"),
        ("8", "tcp", "tcp"),
    ] {
        let arena = Arena::new();
        let result = arena.result(&[
            "--requests",
            "120",
            "--speed",
            "80",
            "--ranks",
            ranks,
            "--path",
            path,
        ]);
        assert_eq!(number(&result, "/ranks").to_string(), ranks);
        assert_eq!(number(&result, "/requests"), 120);
        assert_eq!(result["path"], told);
        assert!(number(&result, "/collectives/per_pass_max") <= 2);
        arena.assert_clean();
    }
}

#[test]
fn a_rank_killed_from_outside_is_named_with_its_signal() {
    let arena = Arena::new();
    let child = arena.start_and_see_pages_of(2, &SLOW);
    let begin = Instant::now();
    signal::kill(arena.rank(2), Signal::SIGKILL).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(5));
    let line = one_line(&output);
    assert!(line.starts_with("rank 2 was killed by SIGKILL; "), "{line}");
    assert!(line.contains(": rank 2 died (last round "), "{line}");
    assert_eq!(text(&output.stdout), "");
    arena.assert_clean();
}

#[test]
fn rank_0_killed_from_outside_is_named_by_the_others() {
    let arena = Arena::new();
    let child = arena.start_and_see_pages_of(0, &[&SLOW as &[&str], &["--path", "tcp"]].concat());
    let begin = Instant::now();
    signal::kill(arena.rank(0), Signal::SIGKILL).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(5));
    let line = one_line(&output);
    assert!(line.starts_with("rank 0 was killed by SIGKILL; "), "{line}");
    arena.assert_clean();
}

/// Whoever leaves a group over TCP waits a while for the others to hang up, and a stopped rank does not. Where the dead rank
/// had taken part in the round that the stopped one is missing from, nobody knows of it in time: rarely.
#[test]
fn a_stopped_rank_does_not_keep_the_others_from_telling_what_they_know() {
    let told = (0..5).any(|_| {
        let arena = Arena::new();
        let args = [&SLOW as &[&str], &["--path", "tcp"]].concat();
        let child = arena.start_and_see_pages_of(2, &args);
        signal::kill(arena.rank(1), Signal::SIGSTOP).unwrap();
        signal::kill(arena.rank(2), Signal::SIGKILL).unwrap();
        let output = child.wait_with_output().unwrap();
        let line = one_line(&output);
        assert!(line.starts_with("rank 2 was killed by SIGKILL"), "{line}");
        arena.assert_clean();
        line.contains(": rank 2 died (last round ") && line.ends_with(" (also told by rank 3)")
    });
    assert!(told);
}

#[test]
fn a_rank_that_kills_itself_on_purpose_is_named() {
    let arena = Arena::new();
    let output = arena.replay(&["--inject", "kill@20:1"]).output().unwrap();
    let line = one_line(&output);
    assert!(line.starts_with("rank 1 was killed by SIGKILL; "), "{line}");
    assert!(line.ends_with(" (also told by ranks 2, 3)"), "{line}");
    arena.assert_clean();
}

#[test]
fn a_fault_is_the_last_ranks_if_nobody_else_is_named() {
    let arena = Arena::new();
    let args = ["--ranks", "3", "--path", "tcp", "--inject", "kill@0"];
    let output = arena.replay(&args).output().unwrap();
    let line = one_line(&output);
    assert!(line.starts_with("rank 2 was killed by SIGKILL"), "{line}");
    arena.assert_clean();
}

#[test]
fn an_abort_is_told_with_its_reason() {
    let arena = Arena::new();
    let output = arena.replay(&["--inject", "abort@5"]).output().unwrap();
    let line = one_line(&output);
    assert!(
        line.contains("rank 3 aborted: asked to abort by --inject"),
        "{line}"
    );
    assert!(line.ends_with(" (also told by ranks 1, 2, 3)"), "{line}");
    arena.assert_clean();
}

#[test]
fn ranks_that_poll_unevenly_diverge_and_are_named_by_all() {
    for (fault, culprit) in [("uneven-poll@5", "3"), ("uneven-poll@1:1", "1")] {
        let arena = Arena::new();
        let args = [&IMPATIENT as &[&str], &["--inject", fault]].concat();
        let output = arena.replay(&args).output().unwrap();
        let line = one_line(&output);
        assert!(line.contains("the ranks have diverged: digest "), "{line}");
        assert!(
            line.contains(&format!("unlike ranks [{culprit}]")),
            "{line}"
        );
        assert!(line.ends_with(" (also told by ranks 1, 2, 3)"), "{line}");
        let words: Vec<&str> = line.split(' ').collect();
        let digest = words.iter().position(|word| *word == "digest").unwrap();
        let [mine, "here,", least, "to", most] = words[digest + 1..digest + 6] else {
            panic!("{line}");
        };
        let digests = [mine, least, most].map(|digest| digest.parse::<u64>().unwrap());
        assert!(digests[1] < digests[2], "{line}");
        assert!(digests[1..].contains(&digests[0]), "{line}");
        arena.assert_clean();
    }
}

#[test]
fn broken_traces_are_named_with_file_and_line() {
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    let six = format!("{REQUEST}\n").repeat(6);
    for (content, message) in [
        (
            format!("{six}{{\"timestamp\": x}}\n{six}"),
            ", line 7: expected value (column 15)",
        ),
        (
            format!("{six}{}\n", REQUEST.replace("output_length", "other")),
            ", line 7: missing field `output_length` (column 69)",
        ),
        (
            REQUEST.replace("513", "512"),
            ", line 1: input_length 512 needs 1 hash_ids, one per 512 tokens, not 2",
        ),
        (String::new(), ": no requests in it"),
    ] {
        fs::write(&file, content).unwrap();
        let output = arena.replay(&[file.to_str().unwrap()]).output().unwrap();
        assert_eq!(
            one_line(&output),
            format!("trace {}{message}", file.display())
        );
    }
    for (path, message) in [
        (folder.path().to_owned(), "Is a directory (os error 21)"),
        (
            folder.path().join("missing"),
            "No such file or directory (os error 2)",
        ),
    ] {
        let output = arena.replay(&[path.to_str().unwrap()]).output().unwrap();
        assert_eq!(
            one_line(&output),
            format!("trace {}: {message}", path.display())
        );
    }
    arena.assert_clean();
}

#[test]
fn a_trace_may_be_named_from_where_one_is() {
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("trace.jsonl"),
        format!("{REQUEST}\n{REQUEST}\n"),
    )
    .unwrap();
    let output = arena
        .replay(&[
            "trace.jsonl",
            "--ranks",
            "2",
            "--storage",
            "pages",
            "--json",
            "-",
        ])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(number(&result(&output), "/requests"), 2);
    assert!(
        folder.path().join("pages/rank-1").is_dir(),
        "the user's folder stays"
    );
    arena.assert_clean();
}

#[test]
fn wrong_arguments_are_refused() {
    let arena = Arena::new();
    for args in [
        ["--ranks", "0"],
        ["--ranks", "65"],
        ["--policy", "hope"],
        ["--agreement", "never"],
        ["--path", "pigeon"],
        ["--requests", "0"],
        ["--speed", "0"],
        ["--speed", "nan"],
        ["--speed", "-1"],
        ["--page-bytes", "0"],
        ["--page-bytes", "100000000000000"],
        ["--timeout-base", "-1"],
        ["--timeout-per-ki-token", "inf"],
        ["--storage-delay-ms", "soon"],
        ["--inject", "nonsense"],
        ["--inject", "kill"],
        ["--inject", "kill@x"],
        ["--inject", "kill@1:"],
        ["--inject", "panic@1"],
    ] {
        let output = arena.replay(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).starts_with("error: "), "{args:?}");
        assert_eq!(text(&output.stdout), "");
    }
    let output = arena.replay(&["--inject", "kill@1:4"]).output().unwrap();
    let message = "rankpact: --inject names rank 4, but there are 4 ranks\n";
    assert_end(&output, 2, message);
    arena.assert_clean();
}

#[test]
fn a_result_that_cannot_be_written_is_not_lost() {
    let arena = Arena::new();
    let file = arena.temp.path().join("missing/replay.json");
    let args = [&SHORT as &[&str], &["--json", file.to_str().unwrap()]].concat();
    let output = arena.replay(&args).output().unwrap();
    let cause = "No such file or directory (os error 2)";
    assert_eq!(one_line(&output), format!("{}: {cause}", file.display()));
    assert!(text(&output.stdout).contains(" on all 4 ranks"));
    arena.assert_clean();
}

#[test]
fn a_full_standard_output_is_one_line_and_the_file_is_written() {
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("replay.json");
    for json in ["-", file.to_str().unwrap()] {
        let output = arena
            .replay(&[&SHORT as &[&str], &["--json", json]].concat())
            .stdout(File::create("/dev/full").unwrap())
            .output()
            .unwrap();
        let cause = "No space left on device (os error 28)";
        assert_eq!(one_line(&output), format!("standard output: {cause}"));
    }
    assert_contract(&serde_json::from_slice(&fs::read(file).unwrap()).unwrap());
    arena.assert_clean();
}

#[test]
fn a_storage_folder_that_cannot_be_made_is_named() {
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let args = [&SHORT as &[&str], &["--storage", file.to_str().unwrap()]].concat();
    let output = arena.replay(&args).output().unwrap();
    let line = one_line(&output);
    let named = format!("storage {}/rank-", file.display());
    assert!(line.contains(&named), "{line}");
    assert!(line.contains(": Not a directory (os error 20)"), "{line}");
    arena.assert_clean();
}

#[test]
fn pages_of_an_earlier_replay_are_found_and_damaged_ones_do_no_harm() {
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path().to_str().unwrap();
    let args = ["--requests", "100", "--storage", storage];
    let first = arena.result(&args);
    let second = arena.result(&args);
    assert!(number(&second, "/tokens/hit") > number(&first, "/tokens/hit"));

    // On one rank only: the others have to do without these pages too.
    let mut pages = names(&folder.path().join("rank-2"));
    pages.sort_unstable();
    for (place, page) in pages.iter().enumerate() {
        let file = folder.path().join("rank-2").join(page);
        let mut bytes = fs::read(&file).unwrap();
        match place % 3 {
            0 => *bytes.last_mut().unwrap() ^= 1,
            1 => bytes.truncate(100),
            _ => {}
        }
        fs::write(file, bytes).unwrap();
    }
    let output = arena
        .replay(&[&args as &[&str], &["--json", "-"]].concat())
        .output()
        .unwrap();
    let notices = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{notices}");
    let told = |line: &str| line.contains("a page could not be read");
    assert!(
        !notices.is_empty() && notices.lines().all(told),
        "{notices}"
    );
    assert_contract(&serde_json::from_slice(&output.stdout).unwrap());
    arena.assert_clean();
}

#[test]
fn a_full_disk_fails_pages_and_not_the_replay() {
    if !can_mount() {
        return;
    }
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let args = [
        "--requests",
        "100",
        "--speed",
        "100",
        "--storage",
        path,
        "--json",
        "-",
    ];
    let output = arena
        .replay_with_mount(folder.path(), "64k", &args)
        .output()
        .unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let full = |line: &str| line.ends_with("No space left on device (os error 28)");
    assert!(stderr.lines().all(full), "{stderr}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_contract(&result);
    assert!(number(&result, "/storage/failed") > 0, "{result}");
    arena.assert_clean();
}

#[test]
fn a_shared_memory_folder_that_is_too_small_means_tcp() {
    if !can_mount() {
        return;
    }
    let arena = Arena::new();
    let args = [&SHORT as &[&str], &["--json", "-"]].concat();
    let output = arena
        .replay_with_mount(Path::new("/dev/shm"), "4k", &args)
        .output()
        .unwrap();
    let notices = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{notices}");
    let [notice] = notices.lines().collect::<Vec<_>>()[..] else {
        panic!("not one notice: {notices}");
    };
    assert!(
        notice.contains("groups use TCP: no space for /dev/shm/rankpact-"),
        "{notice}"
    );
    assert!(notice.contains(" bytes needed, 4096 free"), "{notice}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_contract(&result);
    assert_eq!(result["path"], "tcp");
    arena.assert_clean();
}

#[test]
fn a_shared_memory_folder_that_is_too_small_ends_those_who_insist_on_it() {
    if !can_mount() {
        return;
    }
    let arena = Arena::new();
    let args = [&SHORT as &[&str], &["--path", "table"]].concat();
    let output = arena
        .replay_with_mount(Path::new("/dev/shm"), "4k", &args)
        .output()
        .unwrap();
    let line = one_line(&output);
    assert!(line.contains(": no space for /dev/shm/rankpact-"), "{line}");
    assert!(line.contains(" bytes needed, 4096 free"), "{line}");
    assert!(line.ends_with(" (also told by ranks 1, 2, 3)"), "{line}");
    arena.assert_clean();
}

#[test]
fn segments_may_lie_in_another_folder() {
    let arena = Arena::new();
    let output = arena
        .replay(&[&SHORT as &[&str], &["--path", "table", "--json", "-"]].concat())
        .env("RANKPACT_SHM_DIR", arena.shm.path())
        .output()
        .unwrap();
    assert_eq!(result(&output)["path"], "table");
    arena.assert_clean();
}

#[test]
fn an_interrupted_replay_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let arena = Arena::new();
        let child = arena.start_and_see_pages_of(3, &SLOW);
        assert_eq!(arena.processes().len(), 5, "it sees what it looks for");
        let begin = Instant::now();
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(60));
        let line = one_line(&output);
        assert!(
            line.starts_with(&format!("interrupted by {signal}")),
            "{line}"
        );
        assert_eq!(text(&output.stdout), "");
        arena.assert_clean();
    }
}

#[test]
fn no_rank_survives_a_killed_replay() {
    let arena = Arena::new();
    let child = arena.start_and_see_pages_of(3, &SLOW);
    send(&child, Signal::SIGKILL);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(9));
    assert_eq!(text(&output.stderr), "");
    arena.await_stragglers();
    arena.assert_no_segments();
}

#[test]
fn two_replays_at_once_do_not_disturb_each_other() {
    let arena = Arena::new();
    let args = ["--requests", "150", "--speed", "60", "--json", "-"];
    let children = [(), ()].map(|()| arena.replay(&args).spawn().unwrap());
    for child in children {
        let result = result(&child.wait_with_output().unwrap());
        assert_eq!(number(&result, "/requests"), 150);
        assert_eq!(result["path"], "table");
    }
    arena.assert_clean();
}
