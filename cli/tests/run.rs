//! `rankpact run` with real processes.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Uid;

use common::{Arena, RANKPACT, assert_end, names, send, text};

impl Arena {
    /// Not yet started: `rankpact run -n RANKS ARGS...`.
    fn run<S: AsRef<OsStr>>(&self, ranks: usize, args: &[S]) -> Command {
        let mut command = self.rankpact(&["run", "-n", &ranks.to_string()]);
        command.args(args).env("RANKPACT_SHM_DIR", self.shm.path());
        command
    }

    /// To its end, with `script` as the shell script of every rank.
    fn shell(&self, ranks: usize, script: &str) -> Output {
        self.run(ranks, &["sh", "-c", script]).output().unwrap()
    }

    /// Returns once every rank has written a line. In no terminal's foreground: there the launcher leaves Ctrl-C to it.
    fn start_and_hear(&self, ranks: usize, args: &[&str]) -> Child {
        let mut child = self.run(ranks, args).process_group(0).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.take(ranks).filter(Result::is_ok).count(), ranks);
        child
    }
}

#[test]
fn success_of_all_is_success() {
    let arena = Arena::new();
    let output = arena.shell(3, "echo $RANKPACT_RANK");
    assert_end(&output, 0, "");
    let mut lines: Vec<&str> = text(&output.stdout).lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0", "1", "2"]);
    arena.assert_clean();
}

#[test]
fn sixty_four_ranks_end_well() {
    let arena = Arena::new();
    let output = arena.run(64, &["true"]).output().unwrap();
    assert_end(&output, 0, "");
    arena.assert_clean();
}

#[test]
fn the_first_failure_ends_all_and_gives_its_code() {
    let arena = Arena::new();
    let output = arena.shell(4, "[ $RANKPACT_RANK = 2 ] && exit 42; exec sleep 600");
    assert_end(&output, 42, "rankpact: rank 2 exited with code 42\n");
    arena.assert_clean();
}

#[test]
fn others_may_end_by_themselves_after_a_failure() {
    let arena = Arena::new();
    let script = "[ $RANKPACT_RANK = 0 ] && exit 1; sleep 0.3; echo rank 0 is dead";
    let output = arena.shell(2, script);
    assert_end(&output, 1, "rankpact: rank 0 exited with code 1\n");
    assert_eq!(text(&output.stdout), "rank 0 is dead\n");
    arena.assert_clean();
}

#[test]
fn a_killed_rank_is_named_with_its_signal() {
    let arena = Arena::new();
    let script = "[ $RANKPACT_RANK = 5 ] && kill -KILL $$; exec sleep 600";
    let output = arena.shell(8, script);
    assert_end(&output, 137, "rankpact: rank 5 was killed by SIGKILL\n");
    arena.assert_clean();
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let arena = Arena::new();
    let script = "[ $RANKPACT_RANK = 1 ] && exit 3; trap '' TERM; exec sleep 600";
    let output = arena.shell(2, script);
    assert_end(&output, 3, "rankpact: rank 1 exited with code 3\n");
    arena.assert_clean();
}

#[test]
fn a_stopped_rank_is_killed() {
    let arena = Arena::new();
    let script = "[ $RANKPACT_RANK = 1 ] && exit 3; kill -STOP $$";
    let output = arena.shell(2, script);
    assert_end(&output, 3, "rankpact: rank 1 exited with code 3\n");
    arena.assert_clean();
}

#[test]
fn a_job_timeout_names_the_ranks_still_running() {
    let arena = Arena::new();
    let script = "[ $RANKPACT_RANK = 1 ] || exec sleep 600";
    let args = ["--job-timeout", "3", "--", "sh", "-c", script];
    let begin = Instant::now();
    let output = arena.run(3, &args).output().unwrap();
    assert_end(
        &output,
        1,
        "rankpact: the job did not end within 3 s; still running: ranks 0, 2\n",
    );
    assert!(begin.elapsed() >= Duration::from_secs(3));
    arena.assert_clean();
}

#[test]
fn a_job_that_ends_in_time_does_not_notice_its_timeout() {
    let arena = Arena::new();
    let output = arena
        .run(2, &["--job-timeout", "1e18", "true"])
        .output()
        .unwrap();
    assert_end(&output, 0, "");
    arena.assert_clean();
}

#[test]
fn signals_to_the_launcher_reach_the_ranks() {
    for (signal, code, name) in [
        (Signal::SIGTERM, 143, "SIGTERM"),
        (Signal::SIGINT, 130, "SIGINT"),
        (Signal::SIGHUP, 129, "SIGHUP"),
    ] {
        let arena = Arena::new();
        let short = &name[3..];
        let script = format!(
            "trap 'echo told >&2; exit 0' {short}; echo ready; while :; do sleep 0.05; done"
        );
        let child = arena.start_and_hear(2, &["sh", "-c", &script]);
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        let stderr = format!("told\ntold\nrankpact: interrupted by {name}\n");
        assert_end(&output, code, &stderr);
        arena.await_stragglers();
        arena.assert_clean();
    }
}

#[test]
fn ranks_deaf_to_signals_do_not_survive_an_interrupted_launcher() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let arena = Arena::new();
        let script = "trap '' TERM INT; echo ready; exec sleep 600";
        let mut child = arena.start_and_hear(3, &["sh", "-c", script]);
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        arena.assert_clean();
    }
}

#[test]
fn an_interrupt_from_the_terminal_reaches_each_rank_once() {
    let arena = Arena::new();
    // Rank 1 leaves the terminal, so that an interrupt could only come from the launcher.
    let rank = "trap 'echo $RANKPACT_RANK:INT' INT; trap 'echo $RANKPACT_RANK:TERM; exit' TERM
        echo ready; while :; do sleep 0.05; done";
    let script = "[ $RANKPACT_RANK = 1 ] && exec setsid sh -c \"$RANK\"; eval \"$RANK\"";
    let run = arena.run(2, &["sh", "-c", "eval \"$SCRIPT\""]);
    let words: Vec<String> = [run.get_program()]
        .into_iter()
        .chain(run.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    let mut child = Command::new("script")
        .args(["-qec", &words.join(" "), "/dev/null"])
        .env("SCRIPT", script)
        .env("RANK", rank)
        .env("TMPDIR", arena.temp.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(|line| line.unwrap().replace("^C", ""));
    assert_eq!(lines.by_ref().take(2).collect::<Vec<_>>(), ["ready"; 2]);
    child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    let mut heard: Vec<String> = lines.collect();
    assert_eq!(heard.pop().unwrap(), "rankpact: interrupted by SIGINT");
    heard.sort_unstable();
    assert_eq!(heard, ["0:INT", "0:TERM", "1:TERM"]);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    arena.await_stragglers();
    arena.assert_clean();
}

#[test]
fn ignored_signals_stay_ignored() {
    let arena = Arena::new();
    let output = Command::new("env")
        .args(["--ignore-signal=HUP", RANKPACT, "run", "-n", "1"])
        .args(["sh", "-c", "kill -HUP $$ $PPID; echo alive"])
        .env("TMPDIR", arena.temp.path())
        .output()
        .unwrap();
    assert_end(&output, 0, "");
    assert_eq!(text(&output.stdout), "alive\n");
    arena.assert_clean();
}

#[test]
fn no_rank_survives_a_killed_launcher() {
    let arena = Arena::new();
    let mut child = arena.start_and_hear(4, &["sh", "-c", "echo ready; exec sleep 600"]);
    // A process shows no environment while it becomes another program.
    while arena.processes().len() < 5 {
        thread::sleep(Duration::from_millis(10));
    }
    send(&child, Signal::SIGKILL);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    arena.await_stragglers();
}

#[test]
fn names_left_by_the_job_are_removed_and_others_stay() {
    let arena = Arena::new();
    let uid = Uid::current();
    let foreign = arena
        .shm
        .path()
        .join(format!("rankpact-{uid}-{:032x}-group", 1));
    fs::write(&foreign, "").unwrap();
    let script = format!(
        ": > \"$RANKPACT_SHM_DIR/rankpact-{uid}-$RANKPACT_JOB-$RANKPACT_RANK\"; kill -KILL $$"
    );
    let output = arena.shell(2, &script);
    assert_eq!(output.status.code(), Some(137));
    let foreign_name = foreign.file_name().unwrap().to_str().unwrap();
    assert_eq!(names(arena.shm.path()), [foreign_name]);
    fs::remove_file(foreign).unwrap();
    arena.assert_clean();
}

#[test]
fn names_in_the_real_folder_are_removed() {
    let arena = Arena::new();
    let script = format!(
        "f=/dev/shm/rankpact-{}-$RANKPACT_JOB-test; : > $f; echo $f; [ -e $f ]",
        Uid::current()
    );
    let output = arena
        .run(1, &["sh", "-c", &script])
        .env_remove("RANKPACT_SHM_DIR")
        .output()
        .unwrap();
    assert_end(&output, 0, "");
    assert!(!Path::new(text(&output.stdout).trim()).exists());
    arena.assert_clean();
}

#[test]
fn ranks_know_their_place() {
    let arena = Arena::new();
    let script = "d=${RANKPACT_RENDEZVOUS#file://}
        echo $RANKPACT_RANK $RANKPACT_LOCAL_RANK $RANKPACT_WORLD_SIZE $RANKPACT_JOB $d $(stat -c %a $d) \
        $RANKPACT_LAUNCHER_PID $PPID $(cut -d ' ' -f 5 /proc/$$/stat) $(cut -d ' ' -f 5 /proc/$PPID/stat)";
    let output = arena.shell(2, script);
    assert_end(&output, 0, "");
    let mut lines: Vec<&str> = text(&output.stdout).lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2);
    let mut shared = Vec::new();
    for (rank, line) in lines.into_iter().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let rank = rank.to_string();
        assert_eq!(words[..3], [&rank, &rank, "2"]);
        let nonce = words[3];
        assert!(
            nonce.len() == 32 && u128::from_str_radix(nonce, 16).is_ok(),
            "{nonce}"
        );
        let prefix = arena
            .temp
            .path()
            .join(format!("rankpact-{}-", Uid::current()));
        assert!(words[4].starts_with(prefix.to_str().unwrap()), "{line}");
        assert_eq!(words[5], "700");
        assert_eq!(words[6], words[7], "the launcher is the parent");
        assert_eq!(words[8], words[9], "one process group");
        shared.push([nonce.to_owned(), words[4].to_owned()]);
    }
    assert_eq!(shared[0], shared[1]);

    let other = arena.shell(1, "echo $RANKPACT_JOB");
    assert_ne!(text(&other.stdout).trim(), shared[0][0]);
    arena.assert_clean();
}

#[test]
fn only_rank_0_reads_the_standard_input() {
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    fs::write(&input, "typed\n").unwrap();
    let output = arena
        .run(2, &["sh", "-c", "read line; echo $RANKPACT_RANK:$line"])
        .stdin(fs::File::open(input).unwrap())
        .output()
        .unwrap();
    assert_end(&output, 0, "");
    let mut lines: Vec<&str> = text(&output.stdout).lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0:typed", "1:"]);
    arena.assert_clean();
}

#[test]
fn commands_that_cannot_start_end_like_in_a_shell() {
    let arena = Arena::new();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for name in ["no-such-command", &at("missing"), &at("")] {
        let output = arena.run(3, &[name]).output().unwrap();
        assert_end(
            &output,
            127,
            &format!("rankpact: {name}: command not found\n"),
        );
    }
    let plain = at("plain");
    fs::write(&plain, "").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let output = arena.run(3, &[&plain]).output().unwrap();
    let message = format!("rankpact: {plain}: cannot start: Permission denied (os error 13)\n");
    assert_end(&output, 126, &message);
    arena.assert_clean();
}

#[test]
fn arguments_reach_the_command_as_they_are() {
    let arena = Arena::new();
    let args = ["printf", "%s|", "--job-timeout", "-n", "", "a b", "--", "x"];
    let output = arena.run(1, &args).output().unwrap();
    assert_end(&output, 0, "");
    assert_eq!(text(&output.stdout), "--job-timeout|-n||a b|--|x|");
    let output = arena.run(1, &["--", "echo", "-n", "y"]).output().unwrap();
    assert_eq!(text(&output.stdout), "y");
    arena.assert_clean();
}

#[test]
fn wrong_arguments_are_refused() {
    let arena = Arena::new();
    for args in [
        &["0", "true"] as &[&str],
        &["-1", "true"],
        &["x", "true"],
        &["2"],
        &["2", "--bogus", "true"],
        &["2", "--job-timeout", "0", "true"],
        &["2", "--job-timeout", "-1", "true"],
        &["2", "--job-timeout", "soon", "true"],
        &["2", "--job-timeout", "nan", "true"],
        &["2", "--job-timeout", "1e300", "true"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_rankpact"))
            .args(["run", "-n"])
            .args(args)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).starts_with("error: "), "{args:?}");
    }
    arena.assert_clean();
}

#[test]
fn the_first_failure_cleans_up_although_a_grandchild_keeps_running() {
    let arena = Arena::new();
    let output = arena.shell(1, "sleep 1 >/dev/null 2>&1 & exit 4");
    assert_end(&output, 4, "rankpact: rank 0 exited with code 4\n");
    assert_eq!(names(arena.temp.path()), [] as [String; 0]);
    arena.await_stragglers();
    arena.assert_clean();
}
