//! A forked child does not own its parent's groups, and does not hide its parent's death.

#![cfg(not(loom))]

#[path = "harness/process.rs"]
mod process;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, pause};
use process::{child, ended};
use rankpact_shm::{
    Announcement, Cause, CloseOnFork, Failure, Geometry, Identity, Kind, Ladder, Missing, Open,
    RoundError, Segment, Table, Trouble,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn identity() -> Identity {
    Identity {
        geometry: Geometry::new(2, 4).expect("valid"),
        generation: 0,
        nonce: [7, 9],
    }
}

fn table(segment: Segment, rank: usize) -> Table {
    let (storage, locks) = segment.into_parts();
    Table::new(storage, rank, Ladder::auto(2, 2)).with_liveness(Box::new(locks))
}

/// Rank 1: three rounds, then rank 0 is dead.
fn peer(path: &Path) -> bool {
    let segment = loop {
        match Segment::attach(path, &identity(), 1) {
            Ok(segment) => break segment,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    segment.prove(1, 1);
    let mut table = table(segment, 1);
    let mut row = [5];
    for _ in 0..3 {
        table
            .all_reduce(Kind::Min, "x", &mut row, LONG)
            .expect("rank 0 calls alike");
    }
    let error = table
        .all_reduce(Kind::Min, "x", &mut row, LONG)
        .expect_err("rank 0 is dead");
    matches!(
        error,
        RoundError::Failed(Failure {
            cause: Cause::Died(Missing { rank: 0, .. }),
            ..
        })
    )
}

/// Rank 0: its children leave its name and its group alone, and the last of them outlives it.
fn rank(path: &Path, note: &Path) -> bool {
    let mut segment = Segment::create(path, &identity(), 1, 0).expect("space");
    ended(child(|| {
        segment.unlink();
        path.exists()
    }));
    while segment.proof(1) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut own = table(segment, 0);
    let mut row = [3];
    own.all_reduce(Kind::Min, "x", &mut row, LONG)
        .expect("the peer calls alike");
    ended(child(|| {
        let refused = own.all_reduce(Kind::Min, "x", &mut [0], LONG) == Err(RoundError::Forked);
        own.aborter().abort("not from a child");
        own.close();
        refused
    }));
    own.all_reduce(Kind::Min, "x", &mut row, LONG)
        .expect("still whole");
    own.all_reduce(Kind::Min, "x", &mut row, LONG)
        .expect("still whole");
    let sleeper = child(|| {
        pause();
        true
    });
    std::fs::write(note, sleeper.to_string()).expect("a file");
    kill(Pid::this(), Signal::SIGKILL).expect("oneself");
    false
}

/// A child gets a connection that leads nowhere in the place of its parent's, and keeps nothing of that open.
fn a_connection_is_not_inherited() {
    let (own, mut peer) = UnixStream::pair().expect("two ends");
    let mut own = Some(CloseOnFork::new(own).expect("one more descriptor"));
    let mut byte = [0];
    ended(child(|| {
        // Dropped at the end: the number must still be this value's own.
        let mut copy = own.take().expect("copied by the fork");
        matches!(copy.read(&mut byte), Ok(0)) && copy.write(&[1]).is_err()
    }));
    let sleeper = child(|| {
        pause();
        true
    });
    let mut own = own.expect("the child took a copy");
    own.write_all(&[7]).expect("still connected");
    drop(own);
    let mut rest = Vec::new();
    peer.set_read_timeout(Some(Duration::from_secs(10)))
        .expect("not zero");
    peer.read_to_end(&mut rest)
        .expect("the end, whoever sleeps on");
    assert_eq!(rest, [7]);
    kill(sleeper, Signal::SIGKILL).expect("ours");
    waitpid(sleeper, None).expect("ours");
}

/// An announced round is its parent's: a child that drops or ends its copy changes nothing.
fn an_open_round_is_not_inherited() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let alone = Identity {
        geometry: Geometry::new(1, 1).expect("valid"),
        ..identity()
    };
    let segment = Segment::create(&folder.path().join("segment"), &alone, 1, 0).expect("space");
    let mut own = table(segment, 0);
    let data = Announcement {
        travelling: 1,
        ..Announcement::default()
    };
    type End = fn(Open<'_>) -> bool;
    let ends: [End; 3] = [
        |open| open.commit(LONG) == Err(RoundError::Forked),
        |open| open.fail(Trouble::Other("not from a child")) == RoundError::Forked,
        |mut open| open.watch() == Err(RoundError::Forked),
    ];
    for end in ends {
        let open = own.announce(Kind::Broadcast, "x", 0, data, LONG);
        let mut open = open.expect("alone");
        ended(child(|| end(open.take().expect("data travels"))));
        let mut open = open.expect("the child took a copy");
        open.watch().expect("untouched");
        open.commit(LONG).expect("untouched");
    }
}

// One test in this program: a fork beside other tests' threads would copy their locks in whatever state they are.
#[test]
fn a_child_owns_nothing_and_hides_nothing() {
    a_connection_is_not_inherited();
    an_open_round_is_not_inherited();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, note) = (folder.path().join("segment"), folder.path().join("sleeper"));
    let (one, two) = (child(|| rank(&path, &note)), child(|| peer(&path)));
    // A watchdog: whoever hangs is ended, and the assertions below say so.
    let dog = child(|| {
        std::thread::sleep(Duration::from_secs(20));
        let sleeper = std::fs::read_to_string(&note)
            .ok()
            .and_then(|pid| pid.parse().ok());
        for pid in [Some(one), Some(two), sleeper.map(Pid::from_raw)]
            .into_iter()
            .flatten()
        {
            let _ = kill(pid, Signal::SIGKILL);
        }
        true
    });
    assert_eq!(
        waitpid(one, None),
        Ok(WaitStatus::Signaled(one, Signal::SIGKILL, false))
    );
    // The rank is dead, its child sleeps on: the peer is told all the same, long before its deadline.
    ended(two);
    let sleeper = Pid::from_raw(
        std::fs::read_to_string(&note)
            .expect("written")
            .parse()
            .expect("a number"),
    );
    assert_eq!(kill(sleeper, None), Ok(()), "it must have slept on");
    kill(sleeper, Signal::SIGKILL).expect("ours");
    kill(dog, Signal::SIGKILL).expect("ours");
    waitpid(dog, None).expect("ours");
}
