//! A rank whose forked child outlives it is dead all the same, whatever connections and locks the child has inherited.

#[path = "harness/process.rs"]
mod process;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, pause};
use process::child;
use rankpact_collective::{ErrorKind, Group, Join, Op, Options, PathChoice, Rendezvous, World};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Long before the deadline of 30 s.
const SOON: Duration = Duration::from_secs(5);

/// What rank 1 waits for when rank 0 dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Round(PathChoice, usize),
    Opening,
}

fn joined(rank: usize, folder: &Path, path: PathChoice) -> (World, Group) {
    let mut join = Join::new(rank, 2, Rendezvous::Folder(folder.to_owned()));
    join.options.timeout = Duration::from_secs(30);
    let world = World::connect(join).expect("both come");
    let options = Options {
        path,
        ..world.options().clone()
    };
    let mut group = world.everybody_with("group", options).expect("a group");
    group
        .all_reduce(Op::Max, &mut [3; 20], "together")
        .expect("both call");
    (world, group)
}

/// The rank that dies, and leaves a child that sleeps.
fn outlived(rank: usize, wait: Wait, folder: &Path, note: &Path) {
    let _held = joined(rank, folder, path_of(wait));
    let sleeper = child(|| {
        pause();
    });
    // The other one waits by then, or comes to wait later: both are deaths.
    std::thread::sleep(Duration::from_millis(150));
    fs::write(note, sleeper.to_string()).expect("a file");
    kill(Pid::this(), Signal::SIGKILL).expect("oneself");
}

fn survivor(rank: usize, wait: Wait, folder: &Path) {
    let (world, mut group) = joined(rank, folder, path_of(wait));
    let started = Instant::now();
    let error = match wait {
        Wait::Round(_, slots) => group.all_reduce(Op::Max, &mut vec![3; slots], "alone"),
        Wait::Opening => world.everybody("another").expect("only a name").ready(),
    }
    .expect_err("the other rank is dead");
    let dead = 1 - rank;
    let named = matches!(&*error.kind, ErrorKind::PeerDied { rank, .. } if *rank == dead);
    assert!(named, "{wait:?}: {error}");
    assert!(
        started.elapsed() < SOON,
        "{wait:?}: {:?}",
        started.elapsed()
    );
}

fn path_of(wait: Wait) -> PathChoice {
    match wait {
        Wait::Round(path, _) => path,
        Wait::Opening => PathChoice::Table,
    }
}

fn told(victim: usize, wait: Wait) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let note = folder.path().join("sleeper");
    let meeting = folder.path().join("meeting");
    fs::create_dir(&meeting).expect("a folder");
    let dying = child(|| outlived(victim, wait, &meeting, &note));
    let other = child(|| survivor(1 - victim, wait, &meeting));
    // A watchdog: whoever hangs is ended, and the assertions below say so.
    let dog = child(|| {
        std::thread::sleep(Duration::from_secs(25));
        for pid in [dying, other] {
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    let killed = WaitStatus::Signaled(dying, Signal::SIGKILL, false);
    assert_eq!(waitpid(dying, None), Ok(killed));
    let ended = waitpid(other, None);
    let sleeper = fs::read_to_string(&note).expect("written");
    let sleeper = Pid::from_raw(sleeper.parse().expect("a number"));
    let slept_on = kill(sleeper, Signal::SIGKILL);
    kill(dog, Signal::SIGKILL).expect("ours");
    waitpid(dog, None).expect("ours");
    assert_eq!(
        ended,
        Ok(WaitStatus::Exited(other, 0)),
        "rank {victim}, {wait:?}"
    );
    assert_eq!(slept_on, Ok(()), "it must have slept on");
}

// One test in this program: a fork beside other tests' threads would copy their locks in whatever state they are.
#[test]
fn a_rank_is_dead_although_its_forked_child_lives() {
    for victim in [1, 0] {
        for wait in [
            Wait::Round(PathChoice::Table, 8),
            Wait::Round(PathChoice::Table, 100),
            Wait::Round(PathChoice::Tcp, 8),
            Wait::Opening,
        ] {
            told(victim, wait);
        }
    }
}
