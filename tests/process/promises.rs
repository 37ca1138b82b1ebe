//! Promises of the documents that were once broken, each in its smallest form.

use crate::disagreement::different_calls;
use crate::segment::refused;
use crate::{assert_poisoned, job, missing};
use rankpact_collective::{ErrorKind, PathChoice};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// architecture.md 5.1: "no rank may take a value that another gave up on"; "a late rank: that it was missing".
#[test]
fn over_tcp_no_rank_takes_a_value_that_another_gave_up_on() {
    let mut ranks = job(2).path(PathChoice::Tcp).start(|rank| {
        let mut steps = vec!["group g", "min g", "hold apart"];
        steps.push(["min g within=300", "min g"][rank]);
        steps.extend(["min g label=later", "hold end"]);
        steps
    });
    ranks.all_hold("apart");
    ranks.go(0);
    let given_up = ranks.report(0, "min g within=300");
    assert_eq!(missing(given_up.error()), [1]);
    assert_poisoned(
        ranks.report(0, "min g label=later").error(),
        given_up.error(),
    );
    ranks.go(1);
    let late = loop {
        let report = ranks.next(1).expect("rank 1 is alive");
        if report.step == "min g" {
            break report;
        }
    };
    assert_eq!(late.error().kind, given_up.error().kind);
    assert_poisoned(ranks.report(1, "min g label=later").error(), late.error());
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

/// architecture.md 5.1: "failed at r: every round < r completes on every rank". A rank that is still in round 3 must not
/// fail there with the mismatch of round 4.
#[test]
fn over_tcp_rounds_before_the_failed_one_complete_on_every_rank() {
    // Several jobs at once: on an idle machine all ranks read round 3 before the first can fail round 4.
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..15 {
                    let says = [("min", "8", "test"), ("max", "8", "test")];
                    different_calls("min g", "max g", says, PathChoice::Tcp);
                }
            });
        }
    });
}

/// error.rs of collective: "The error of a failed round is the same on every rank of a host: its kind and its ranks
/// come from the rank that ended the round." Over TCP each rank tells what it has seen
/// itself; the side of the lower rank comes first.
#[test]
fn over_tcp_every_error_names_the_odd_rank_and_the_lower_rank_first() {
    let errors = different_calls(
        "min g slots=3",
        "min g slots=4",
        [("min", "3", "test"), ("min", "4", "test")],
        PathChoice::Tcp,
    );
    for error in &errors {
        let ErrorKind::Mismatch { one, other } = &*error.kind else {
            panic!("{error}");
        };
        assert!(
            one.rank < other.rank && [one.rank, other.rank].contains(&1),
            "{error}"
        );
    }
}

/// architecture.md 5.2: "Rust drop closes, unless the thread panics: then it aborts", which "tells all peers why, at
/// once". The close of the same drop must not overtake it.
#[test]
fn over_tcp_a_panic_is_an_abort_and_not_a_close() {
    for _ in 0..15 {
        let mut ranks = job(3).path(PathChoice::Tcp).start(|rank| {
            let last = if rank == 2 {
                ["panic g", "sleep 300"]
            } else {
                ["min g", "hold end"]
            };
            ["group g", "ready g"].into_iter().chain(last)
        });
        for rank in [0, 1] {
            let failed = ranks.report(rank, "min g");
            assert!(
                matches!(failed.kind(), ErrorKind::Aborted { rank: 2, .. }),
                "{}",
                failed.error()
            );
            ranks.holds(rank, "end");
            ranks.go(rank);
        }
        ranks.end();
    }
}

/// `World::connect`: "`ErrorKind::Timeout` names all ranks that are missing".
#[test]
fn a_join_without_rank_0_names_it() {
    let mut ranks = job(3)
        .without(0)
        .timeout(Duration::from_secs(5))
        .start(|_| ["hold end"]);
    for rank in ranks.all() {
        let failed = ranks.report(rank, "join");
        assert!(
            failed.error().to_string().contains("rank 0"),
            "{}",
            failed.error()
        );
        assert_eq!(missing(failed.error()), [0], "{}", failed.error());
    }
    ranks.end();
}

/// architecture.md 7: world size is an agreement field, section 6: a field that differs is refused at the join with both
/// values.
#[test]
fn a_world_size_that_differs_is_refused_at_the_join_with_both_values() {
    refused(
        job(3).var_of(1, "RANKPACT_WORLD_SIZE", 4),
        "world size",
        ["3", "4"],
    );
}

/// `World::connect`: "`ErrorKind::PeerDied` a rank that died meanwhile" (field report R30).
#[test]
fn a_death_while_others_still_join_is_named() {
    for victim in [1, 2] {
        let mut ranks = job(4).without(3).start(|_| ["hold end"]);
        ranks.all_met();
        ranks.kill(victim);
        let killed = Instant::now();
        for rank in ranks.all() {
            if rank != victim {
                let failed = ranks.report(rank, "join");
                assert!(killed.elapsed() < Duration::from_secs(5), "{failed:?}");
                assert!(
                    matches!(failed.kind(), ErrorKind::PeerDied { rank, .. } if *rank == victim),
                    "rank {rank}: {}",
                    failed.error()
                );
            }
        }
        ranks.end();
    }
}

/// A rank that ends in good order, with a thread that still waits for the members of a new group, leaves the name of that
/// group's segment behind. architecture.md 4 has such names removed by `run` and `doctor --clean`; a job that uses
/// neither, and nobody was killed, has nobody to do it.
#[test]
fn an_orderly_end_while_a_thread_opens_a_group_leaves_no_name() {
    let mut ranks = job(2).path(PathChoice::Table).start(|rank| {
        let last = if rank == 0 {
            ["begin ready g", "sleep 300"]
        } else {
            ["sleep 0", "sleep 600"]
        };
        ["group g"].into_iter().chain(last)
    });
    for rank in ranks.all() {
        assert!(ranks.ended(rank).success());
    }
    let nonce = ranks.nonce().to_owned();
    drop(ranks);
    let left: Vec<_> = fs::read_dir("/dev/shm")
        .expect("it is there")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().contains(&nonce))
        .map(|entry| entry.path())
        .collect();
    for name in &left {
        fs::remove_file(name).expect("it is ours");
    }
    assert!(left.is_empty(), "{left:?}");
}
