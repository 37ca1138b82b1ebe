//! Rings between processes: deaths are told within a slice, whole messages survive them, forked children own nothing.

#![cfg(not(loom))]

#[path = "harness/process.rs"]
mod process;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pause};
use process::{child, ended};
use rankpact_shm::{Identity, Ladder, Ring, RingError, RingGeometry, Segment};
use std::path::Path;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
/// Many slices of 50 ms, far below the deadline: this machine may be busy.
const SOON: Duration = Duration::from_secs(2);
const SEATS: usize = 3;
/// Of a message larger than the ring.
const TOO_MUCH: usize = 1 << 20;

fn identity() -> Identity<RingGeometry> {
    Identity {
        geometry: RingGeometry::of_seats(SEATS).expect("valid"),
        generation: 0,
        nonce: [7, 9],
    }
}

/// Waits, in a child until its alarm ends it.
fn wait_for(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The seat of `rank`, once all have theirs.
fn sit(path: &Path, rank: usize, ladder: Ladder) -> Ring {
    let mut segment = if rank == 0 {
        Segment::create(path, &identity(), u64::MAX - 2, 0).expect("space")
    } else {
        loop {
            match Segment::attach(path, &identity(), rank) {
                Ok(segment) => break segment,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    };
    segment.prove(rank, 1);
    wait_for(|| (0..SEATS).all(|rank| segment.proof(rank) == 1));
    segment.unlink();
    let (storage, locks) = segment.into_parts();
    Ring::new(storage, rank, ladder).with_liveness(Box::new(locks))
}

fn ladder(rank: usize) -> Ladder {
    if rank == 1 {
        Ladder::parking()
    } else {
        Ladder::auto(SEATS, 2)
    }
}

/// Says that this process is where it should be, and stays there.
fn rest(note: &Path) -> bool {
    std::fs::write(note, "here").expect("a file");
    loop {
        pause();
    }
}

/// Runs the ranks, kills `doomed` once one of them has written the note, and expects the others to be told soon.
fn death_of(doomed: usize, rank: impl Fn(usize, &Path, &Path) -> bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, note) = (folder.path().join("ring"), folder.path().join("note"));
    let ranks: Vec<_> = (0..SEATS)
        .map(|me| child(|| rank(me, &path, &note)))
        .collect();
    let patience = Instant::now();
    wait_for(|| note.exists() || patience.elapsed() > LONG / 2);
    let began = Instant::now();
    kill(ranks[doomed], Signal::SIGKILL).expect("ours");
    assert!(
        note.exists(),
        "they never came to where the test wants them"
    );
    for (_, pid) in ranks.iter().enumerate().filter(|(me, _)| *me != doomed) {
        ended(*pid);
    }
    assert!(began.elapsed() < SOON, "told after {:?}", began.elapsed());
    waitpid(ranks[doomed], None).expect("ours");
    if let Some(orphan) = std::fs::read_to_string(note.with_extension("child"))
        .ok()
        .and_then(|pid| pid.parse().ok())
    {
        let orphan = Pid::from_raw(orphan);
        assert_eq!(kill(orphan, None), Ok(()), "it must have outlived its rank");
        kill(orphan, Signal::SIGKILL).expect("ours");
    }
}

/// Rank 0 dies in the middle of its second message, and leaves a child that sleeps on. The others read nothing of that
/// message before the ring is full of it: they could else take it as fast as it is sent, to its end.
fn the_sender(me: usize, path: &Path, note: &Path) -> bool {
    let mut ring = sit(path, me, ladder(me));
    let (whole, cut) = (vec![3; TOO_MUCH], vec![4; TOO_MUCH]);
    if me == 0 {
        ring.send(&whole, LONG).expect("read by both");
        let mut seat = Some(ring);
        let orphan = child(|| {
            let mut ring = seat.take().expect("a copy");
            let refused = ring.send(b"not mine", LONG) == Err(RingError::Forked)
                && ring.receive(1, &mut Vec::new(), LONG) == Err(RingError::Forked);
            ring.close();
            drop(ring);
            refused && rest(&note.with_extension("born"))
        });
        wait_for(|| note.with_extension("born").exists());
        std::fs::write(note.with_extension("child"), orphan.to_string()).expect("a file");
        // The child has taken a copy.
        let mut ring = seat.take().expect("the original");
        let whole = ring.offer(&cut, &mut 0).expect("the readers have not left");
        return !whole && rest(note);
    }
    let mut received = Vec::new();
    ring.receive(0, &mut received, LONG).expect("sent whole");
    wait_for(|| note.exists());
    let next = ring.receive(0, &mut received, LONG);
    received == whole && next == Err(RingError::Died { rank: 0 })
}

/// Rank 2 dies while the ring is full because of it, rank 0 waits for room and rank 1 for the rest.
fn a_reader(me: usize, path: &Path, note: &Path) -> bool {
    let mut ring = sit(path, me, ladder(2 - me));
    let died = Err(RingError::Died { rank: 2 });
    match me {
        0 => ring.send(&vec![5; TOO_MUCH], LONG) == died,
        1 => ring.receive(0, &mut Vec::new(), LONG) == died,
        _ => rest(note),
    }
}

/// Ranks 0 and 2 pass messages, until rank 1 is killed in whatever it is doing.
fn in_traffic(me: usize, path: &Path, note: &Path) -> bool {
    let mut ring = sit(path, me, ladder(me));
    let mut received = Vec::new();
    for number in 0_u32.. {
        let length = number.wrapping_mul(0x9e37_79b9) as usize >> 12;
        let from = number as usize % SEATS;
        let message = vec![number as u8; length % 40_000];
        let outcome = if from == me {
            ring.send(&message, LONG)
        } else {
            let outcome = ring.receive(from, &mut received, LONG);
            assert!(outcome.is_err() || received == message, "torn");
            outcome
        };
        if let Err(error) = outcome {
            // Whoever is told first leaves, but that is not what the other is told.
            return error == RingError::Died { rank: 1 };
        }
        if number == 500 && me == 0 {
            std::fs::write(note, "here").expect("a file");
        }
    }
    false
}

// One test in this program: a fork beside other tests' threads would copy their locks in whatever state they are.
#[test]
fn a_death_is_told_to_all_others_soon_and_tears_no_message() {
    death_of(0, the_sender);
    death_of(2, a_reader);
    for _ in 0..5 {
        death_of(1, in_traffic);
    }
}
