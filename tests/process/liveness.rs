//! Who is alive is what the kernel says of locks and connections: not numbers of processes, nor who has been reaped.

use crate::{PATHS, job};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rankpact_collective::{ErrorKind, PathChoice};
use rankpact_tests::Ranks;
use std::fs;
use std::process::{Child, Command};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// Ranks that have opened a group, do `op` when they are let go, and hold at the end.
fn opened(size: usize, path: PathChoice, op: &str) -> Ranks {
    let mut ranks = job(size)
        .path(path)
        .var("RANKPACT_WAIT", "park")
        .start(|_| ["group g", "ready g", "hold apart", op, "hold end"]);
    ranks.all_hold("apart");
    ranks
}

/// All ranks but `victim` report that it has died.
#[track_caller]
fn all_report_the_death(ranks: &mut Ranks, victim: usize, op: &str) {
    for rank in ranks.all() {
        if rank != victim {
            let failed = ranks.report(rank, op);
            assert!(
                matches!(failed.kind(), ErrorKind::PeerDied { rank, .. } if *rank == victim),
                "{}",
                failed.error()
            );
        }
    }
}

fn finish(mut ranks: Ranks, victim: usize) {
    for rank in ranks.all() {
        if rank != victim {
            ranks.holds(rank, "end");
            ranks.go(rank);
        }
    }
    ranks.end();
}

/// The state of a process as the kernel shows it: `Z` of one that has died and that nobody has waited for.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn a_dead_rank_that_nobody_has_waited_for_is_dead(path: PathChoice) {
    for victim in [0, 2] {
        let mut ranks = opened(3, path, "min g");
        let pid = ranks.pid(victim);
        ranks.signal(victim, Signal::SIGKILL);
        while state(pid) != Some('Z') {
            thread::sleep(Duration::from_millis(1));
        }
        ranks.all_go();
        all_report_the_death(&mut ranks, victim, "min g");
        assert_eq!(state(pid), Some('Z'), "it must not have been reaped");
        finish(ranks, victim);
    }
}

/// A process with just this number, if the kernel can be made to give it away.
fn reincarnation(pid: Pid) -> Option<Child> {
    let last = (pid.as_raw() - 1).to_string();
    for _ in 0..500 {
        // Others start processes meanwhile and may take the number, or one before it.
        fs::write("/proc/sys/kernel/ns_last_pid", &last).ok()?;
        let mut child = Command::new("sleep").arg("60").spawn().ok()?;
        if child.id() == pid.as_raw().cast_unsigned() {
            return Some(child);
        }
        child.kill().expect("a child");
        child.wait().expect("a child");
    }
    None
}

fn a_new_process_with_the_number_of_a_dead_rank_hides_no_death(path: PathChoice) {
    for victim in [0, 1] {
        let mut ranks = opened(2, path, "min g");
        let pid = ranks.pid(victim);
        ranks.kill(victim);
        let Some(mut other) = reincarnation(pid) else {
            eprintln!("SKIPPED: the number {pid} could not be given to another process");
            return;
        };
        ranks.go(1 - victim);
        all_report_the_death(&mut ranks, victim, "min g");
        assert_ne!(state(pid), None, "the other process must be there");
        other.kill().expect("a child");
        other.wait().expect("a child");
        finish(ranks, victim);
    }
}

/// How late a thread is woken, at worst, that sleeps for 5 ms again and again while `run` does: how busy the machine is.
fn lateness<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    const NAP: Duration = Duration::from_millis(5);
    let (over, watch) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let control = scope.spawn(move || {
            let mut worst = Duration::ZERO;
            let mut since = Instant::now();
            while watch.try_recv() == Err(TryRecvError::Empty) {
                thread::sleep(NAP);
                let now = Instant::now();
                worst = worst.max((now - since).saturating_sub(NAP));
                since = now;
            }
            worst
        });
        let done = run();
        drop(over);
        (done, control.join().expect("it only sleeps"))
    })
}

/// From the signal to the last report, as this process sees it; and how late the machine is meanwhile.
fn told_within(size: usize, path: PathChoice, op: &str, victim: usize) -> (Duration, Duration) {
    let mut ranks = opened(size, path, op);
    for rank in ranks.all() {
        if rank != victim {
            ranks.go(rank);
        }
    }
    // All others are asleep long before.
    thread::sleep(Duration::from_millis(150));
    let told = lateness(|| {
        let killed = Instant::now();
        ranks.signal(victim, Signal::SIGKILL);
        all_report_the_death(&mut ranks, victim, op);
        killed.elapsed()
    });
    finish(ranks, victim);
    told
}

/// Whether a death is told soon in one of three tries, not counting those in which the machine itself was late; none if
/// it is so again and again.
fn is_told_soon(size: usize, path: PathChoice, op: &str) -> Option<bool> {
    let mut missed = 0;
    for _ in 0..20 {
        let (told, late) = told_within(size, path, op, size / 2);
        eprintln!("{size} ranks, {path}, {op}: {told:?}, the machine {late:?} late");
        if told < Duration::from_millis(200) {
            return Some(true);
        }
        if late <= Duration::from_millis(20) {
            missed += 1;
        }
        if missed == 3 {
            return Some(false);
        }
    }
    None
}

/// The one promise in time, whatever the deadline.
#[test]
fn a_death_under_parked_ranks_is_reported_in_under_200_ms() {
    for size in [2, 4, 8] {
        for path in PATHS {
            for op in ["min g slots=8", "max g slots=100"] {
                match is_told_soon(size, path, op) {
                    Some(soon) => assert!(soon, "{size} ranks, {path}, {op}"),
                    None => eprintln!("SKIPPED, too busy a machine: {size} ranks, {path}, {op}"),
                }
            }
        }
    }
}

on_both_paths! {
    a_dead_rank_that_nobody_has_waited_for_is_dead
    a_new_process_with_the_number_of_a_dead_rank_hides_no_death
}
