//! The name of a segment: there for the blink of an eye, and no harm to anybody who dies, or removes it, meanwhile.

use crate::{job, seed};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::Signal;
use rankpact_collective::PathChoice;
use rankpact_tests::{Ranks, mix, names_in};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

const GROUPS: [&str; 3] = ["first", "second", "third"];

/// Four ranks that open three groups one after another and go on calling.
fn opening_groups() -> Ranks {
    let opening = GROUPS.map(|name| [format!("group {name}"), format!("ready {name}")]);
    job(4).path(PathChoice::Auto).start(|_| {
        opening
            .iter()
            .flatten()
            .map(String::as_str)
            .chain(["hold joined", "min first slots=8 count=1000000"])
    })
}

/// Whether the rank that made the segment under `name` is dead: its lock, on byte 0, is free then.
fn creator_is_dead(name: &Path) -> bool {
    let file = fs::File::open(name).expect("nobody else removes it");
    let small = |number: i32| i16::try_from(number).expect("a small constant");
    let mut lock = libc::flock {
        l_type: small(libc::F_RDLCK),
        l_whence: small(libc::SEEK_SET),
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)).expect("locks can be asked for");
    lock.l_type == small(libc::F_UNLCK)
}

/// Kills all ranks `after` so long. Whether all had joined and opened their groups by then, and how many names were left.
fn killed(after: Duration) -> (bool, usize) {
    let mut ranks = opening_groups();
    ranks.all_go();
    thread::sleep(after);
    for rank in ranks.all() {
        ranks.signal(rank, Signal::SIGKILL);
    }
    let mut joined = true;
    for rank in ranks.all() {
        ranks.ended(rank);
        // A line may be cut short by the kill.
        joined &= ranks
            .said(rank)
            .iter()
            .any(|line| line.contains("hold joined"));
    }
    let names = ranks.names();
    for group in GROUPS {
        let of_group = |name: &&PathBuf| name.to_string_lossy().contains(group);
        assert!(names.iter().filter(of_group).count() <= 1, "{names:?}");
    }
    for name in &names {
        assert!(creator_is_dead(name), "{} has a holder", name.display());
        fs::remove_file(name).expect("it can be removed");
    }
    assert!(!joined || names.is_empty(), "after the join: {names:?}");
    ranks.nothing_is_left();
    (joined, names.len())
}

#[test]
fn killing_all_ranks_at_any_moment_leaves_one_removable_name_at_most_and_none_after_the_join() {
    let seed = seed();
    let started = Instant::now();
    let mut undisturbed = opening_groups();
    undisturbed.all_hold("joined");
    let join = started.elapsed();
    drop(undisturbed);
    // Several at a time: no two cycles are alike then.
    let lane = |lane: u64| {
        let mut span = 2.0;
        (0..25).map(move |cycle| {
            let drawn = mix(seed ^ (lane << 32 | cycle)) % 1000;
            let after = join.mul_f64(span * f64::from(u32::try_from(drawn).expect("small")) / 1e3);
            let (joined, left) = catch_unwind(|| killed(after)).unwrap_or_else(|_| {
                panic!("RANKPACT_SEED={seed}, lane {lane}, cycle {cycle}: killed after {after:?}")
            });
            // However busy the machine: some cycles end before the join is over, some after.
            span *= if joined { 0.8 } else { 1.2 };
            (joined, left)
        })
    };
    let cycles: Vec<_> = thread::scope(|scope| {
        let lanes = [0, 1, 2, 3].map(|n| scope.spawn(move || lane(n).collect::<Vec<_>>()));
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().expect("see above"))
            .collect()
    });
    let joined = cycles.iter().filter(|(joined, _)| *joined).count();
    let left: usize = cycles.iter().map(|(_, left)| left).sum();
    eprintln!(
        "{joined} of {} had joined; {left} names were left",
        cycles.len()
    );
    assert!((1..cycles.len()).contains(&joined), "{joined}");
}

/// A login manager removes what a user has in `/dev/shm` when its last session ends, under running services as well.
#[test]
fn names_removed_at_any_moment_change_no_value_and_part_no_rank_from_the_others() {
    for path in [PathChoice::Auto, PathChoice::Table] {
        let mut ranks = job(3).path(path).start(|_| {
            let mut steps = vec![
                "group old".to_owned(),
                "min old".into(),
                "hold apart".into(),
            ];
            for n in 0..80 {
                steps.push(format!("group g{n}"));
                steps.push(format!("min g{n} slots=8 count=5 full"));
                steps.push("max old slots=8 count=20 full".to_owned());
            }
            steps.push("hold end".to_owned());
            steps
        });
        ranks.all_hold("apart");
        let nonce = ranks.nonce().to_owned();
        let (over, watch) = mpsc::channel::<()>();
        let removed = thread::scope(|scope| {
            let remover = scope.spawn(move || {
                let mut removed = 0;
                while watch.try_recv() == Err(TryRecvError::Empty) {
                    let names = names_in(Path::new("/dev/shm"), &nonce);
                    removed += names
                        .iter()
                        .filter(|name| fs::remove_file(name).is_ok())
                        .count();
                }
                removed
            });
            ranks.all_go();
            for n in 0..80 {
                let step = format!("min g{n} slots=8 count=5 full");
                let mut errors = Vec::new();
                for rank in ranks.all() {
                    let report = loop {
                        let report = ranks.next(rank).expect("the rank is alive");
                        if report.step == step {
                            break report;
                        }
                        report.well();
                    };
                    if report.outcome.is_err() {
                        errors.push(report.error().clone());
                    }
                }
                let alike = errors.iter().all(|error| error.kind == errors[0].kind);
                assert!(alike && [0, 3].contains(&errors.len()), "{errors:?}");
                if let Some(error) = errors.first() {
                    assert!(path == PathChoice::Table, "{error}");
                    assert!(error.to_string().contains("/dev/shm/"), "{error}");
                }
            }
            drop(over);
            remover.join().expect("the remover does not fail")
        });
        assert!(removed > 0, "no name was met");
        eprintln!("{path}: {removed} names removed");
        ranks.all_hold("end");
        ranks.all_go();
        ranks.end();
    }
}
