//! Messages between two ranks: in order, off the round counter, and nobody's trouble but theirs.

use crate::{assert_poisoned, job, missing};
use nix::sys::signal::Signal;
use rankpact_collective::{ErrorKind, PathChoice};
use std::thread;
use std::time::Duration;

/// A death is told long before any deadline.
const SOON: u64 = 5_000;

/// From nothing to more than sockets hold.
const LENGTHS: [&str; 6] = ["0", "1", "95", "4096", "1048576", "9000000"];

fn messages_of_any_length_keep_their_order_in_both_directions_and_leave_the_counter_alone(
    path: PathChoice,
) {
    let mut ranks = job(3).path(path).start(|rank| {
        let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
        // All send before they receive, in a ring.
        let each = LENGTHS.map(|bytes| {
            // Opening a pair takes both: of two ranks one must not wait for a third.
            let to = |first| format!("send g to={next} bytes={bytes} first={first} count=3");
            let from =
                |first| format!("recv g from={previous} bytes={bytes} first={first} count=3");
            if rank == 0 {
                [to(1), from(1), to(4), from(4)]
            } else {
                [from(1), to(1), from(4), to(4)]
            }
        });
        let mut steps = vec!["group g".to_owned()];
        steps.extend(each.into_iter().flatten());
        steps.push("barrier g".to_owned());
        // Both directions of one pair, large messages at once.
        if rank < 2 {
            let peer = 1 - rank;
            steps.push(format!("send g to={peer} bytes=5000000 first=50 count=3"));
            steps.push(format!("recv g from={peer} bytes=5000000 first=50 count=3"));
        }
        steps.extend(["min g slots=8".to_owned(), "hold end".to_owned()]);
        steps
    });
    for rank in ranks.all() {
        assert_eq!(ranks.report(rank, "min g slots=8").round, 2);
    }
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn the_longest_message_arrives_and_a_longer_one_is_refused() {
    let mut ranks = job(2).start(|rank| {
        let steps: [&str; 3] = if rank == 0 {
            [
                "send g to=1 bytes=67108865",
                "send g to=1 bytes=67108864",
                "hold end",
            ]
        } else {
            ["sleep 0", "recv g from=0 bytes=67108864", "hold end"]
        };
        ["group g"].into_iter().chain(steps).collect::<Vec<_>>()
    });
    let refused = ranks.report(0, "send g to=1 bytes=67108865");
    assert!(
        matches!(refused.kind(), ErrorKind::Usage(_)),
        "{}",
        refused.error()
    );
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn pairs_of_several_groups_and_of_a_group_made_again_do_not_mix() {
    let mut ranks = job(3).start(|rank| match rank {
        0 => vec![
            "group a",
            "group b ranks=1,0",
            "send a to=1 first=1",
            "send b to=0 bytes=9 first=2",
            "send a to=1 first=3",
            "send b to=0 first=4",
            "send a to=2 first=5",
            "leave a",
            "group a",
            "send a to=1 bytes=10 first=6",
            "hold end",
        ],
        1 => vec![
            "group a",
            "group b ranks=1,0",
            "recv a from=0 first=1",
            "recv b from=1 bytes=9 first=2",
            // The other way round than they were sent.
            "recv b from=1 first=4",
            "recv a from=0 first=3",
            "leave a",
            "group a",
            "recv a from=0 bytes=10 first=6",
            "hold end",
        ],
        _ => vec!["group a", "recv a from=0 first=5", "hold end"],
    });
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn threads_of_two_ranks_talk_over_several_groups_at_once() {
    let mut ranks = job(2).start(|rank| {
        let (verb, peer) = if rank == 0 {
            ("send", "to=1")
        } else {
            ("recv", "from=0")
        };
        vec![
            "group a".to_owned(),
            "group b".to_owned(),
            "group c".to_owned(),
            format!("parallel a,b,c {verb} {peer} bytes=20000 count=200"),
            "hold end".to_owned(),
        ]
    });
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn ranks_that_mean_different_groups_by_one_name_are_told() {
    for (one, other, field) in [
        ("group g", "group g ranks=1,0", "ranks of the group"),
        ("group g", "group g, group g", "generation of the group"),
    ] {
        let mut ranks = job(2).start(|rank| {
            let groups = if rank == 0 { one } else { other };
            let peer = if other.contains("1,0") && rank == 1 {
                1
            } else {
                1 - rank
            };
            let mut steps: Vec<_> = groups.split(", ").map(str::to_owned).collect();
            steps.push(format!("send g to={peer} label=x"));
            steps.push("hold end".to_owned());
            steps
        });
        for rank in ranks.all() {
            let failed = loop {
                let report = ranks.next(rank).expect("alive");
                if report.step.starts_with("send") {
                    break report;
                }
                report.well();
            };
            match failed.kind() {
                ErrorKind::Config { field: found, .. } => assert_eq!(found, field),
                other => panic!("{other}"),
            }
        }
        ranks.all_hold("end");
        ranks.all_go();
        ranks.end();
    }
}

#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Before the pair was opened.
    Before,
    /// While the survivor waits for the opening.
    Opening,
    /// While the survivor waits for a message.
    Waited,
    /// After messages, before the next call.
    Between,
    /// In the middle of a message.
    Inside,
}

/// Rank 2 is killed; rank 0, which has a pair with it, calls `op`, and goes on with rank 1.
fn killed(moment: Moment, op: &str, path: PathChoice) {
    let mut ranks = job(3).path(path).start(|rank| {
        let mut steps = vec!["group g"];
        if rank != 2 {
            steps.push("group rest ranks=0,1");
        }
        if !matches!(moment, Moment::Before | Moment::Opening) {
            match rank {
                0 => steps.push("send g to=2 count=3"),
                2 => steps.push("recv g from=0 count=3"),
                _ => {}
            }
        }
        steps.push("hold grief");
        match rank {
            0 => steps.extend([
                op,
                "send g to=2 label=later",
                "recv g from=2 label=later",
                "send g to=1 first=20",
                "recv g from=1 first=30",
                "min rest count=10",
                "hold end",
            ]),
            1 => steps.extend([
                "recv g from=0 first=20",
                "send g to=0 first=30",
                "min rest count=10",
                "hold end",
            ]),
            _ if matches!(moment, Moment::Inside) => {
                steps.push("send g to=0 bytes=12000000 count=1000");
            }
            _ => {}
        }
        if rank == 2 {
            steps.push("hold end");
        }
        steps
    });
    ranks.all_hold("grief");
    ranks.go(1);
    match moment {
        Moment::Before | Moment::Between => {
            ranks.kill(2);
            ranks.go(0);
        }
        Moment::Opening | Moment::Waited => {
            ranks.go(0);
            thread::sleep(Duration::from_millis(150));
            ranks.kill(2);
        }
        Moment::Inside => {
            ranks.go(2);
            ranks.go(0);
            thread::sleep(Duration::from_millis(150));
            ranks.kill(2);
        }
    }
    let case = format!("{moment:?}, {op}, {path}");
    let failed = ranks.report(0, op);
    assert!(failed.ms < SOON, "{case}: {failed:?}");
    let died = matches!(failed.kind(), ErrorKind::PeerDied { rank: 2, .. });
    assert!(died, "{case}: {}", failed.error());
    for later in ["send g to=2 label=later", "recv g from=2 label=later"] {
        assert_poisoned(ranks.report(0, later).error(), failed.error());
    }
    for rank in [0, 1] {
        ranks.holds(rank, "end");
        ranks.go(rank);
    }
    ranks.end();
}

fn the_death_of_a_peer_is_named_soon_and_ends_only_its_pair(path: PathChoice) {
    thread::scope(|scope| {
        for (moment, op) in [
            (Moment::Before, "recv g from=2 label=dead"),
            (Moment::Opening, "send g to=2 label=dead"),
            (Moment::Waited, "recv g from=2 label=dead"),
            (Moment::Between, "recv g from=2 label=dead"),
            (Moment::Inside, "recv g from=2 bytes=12000000 count=1000"),
            // More than sockets hold, so that it waits for the other to read.
            (Moment::Waited, "send g to=2 bytes=12000000 count=1000"),
        ] {
            scope.spawn(move || killed(moment, op, path));
        }
    });
}

#[test]
fn a_peer_that_stands_still_past_the_deadline_is_named_and_learns_of_it() {
    thread::scope(|scope| {
        for op in [
            "recv g from=1 label=late within=1500",
            "send g to=1 label=late within=1500 bytes=12000000",
        ] {
            scope.spawn(move || {
                let mut ranks = job(2).start(|rank| {
                    if rank == 0 {
                        vec![
                            "group g",
                            "send g to=1",
                            "hold apart",
                            op,
                            "recv g from=1",
                            "hold end",
                        ]
                    } else {
                        vec![
                            "group g",
                            "recv g from=0",
                            "hold apart",
                            "recv g from=0 label=more",
                            "hold end",
                        ]
                    }
                });
                ranks.all_hold("apart");
                ranks.signal(1, Signal::SIGSTOP);
                ranks.go(0);
                let failed = ranks.report(0, op);
                assert_eq!(missing(failed.error()), [1], "{}", failed.error());
                assert!(failed.ms >= 1500, "{failed:?}");
                assert!(
                    2 * failed.cpu_ms < failed.ms,
                    "it does not spin: {failed:?}"
                );
                assert_poisoned(ranks.report(0, "recv g from=1").error(), failed.error());
                ranks.signal(1, Signal::SIGCONT);
                ranks.go(1);
                let late = ranks.report(1, "recv g from=0 label=more");
                // A message of which half is missing is none, and nothing can come behind it.
                let cut = matches!(late.kind(), ErrorKind::PeerDied { rank: 0, .. });
                assert!(
                    late.kind() == failed.kind() || (op.starts_with("send") && cut),
                    "{op}: {}",
                    late.error()
                );
                ranks.all_hold("end");
                ranks.all_go();
                ranks.end();
            });
        }
    });
}

fn who_leaves_in_order_is_no_death_and_its_messages_arrive(path: PathChoice) {
    thread::scope(|scope| {
        for departure in ["leave g", "close g", "sleep 0"] {
            scope.spawn(move || {
                let mut ranks = job(2).path(path).start(|rank| {
                    if rank == 0 {
                        vec!["group g", "send g to=1 bytes=50000 count=20", departure]
                    } else {
                        vec![
                            "group g",
                            "recv g from=0 bytes=50000 count=1",
                            "sleep 300",
                            "recv g from=0 bytes=50000 first=2 count=19",
                            "recv g from=0 label=more",
                            "send g to=0 label=more",
                            "hold end",
                        ]
                    }
                });
                let failed = ranks.report(1, "recv g from=0 label=more");
                let left = ErrorKind::PeerClosed {
                    rank: 0,
                    last_round: 20,
                };
                assert_eq!(*failed.kind(), left, "{departure}");
                let later = ranks.report(1, "send g to=0 label=more");
                assert_poisoned(later.error(), failed.error());
                ranks.holds(1, "end");
                ranks.go(1);
                ranks.end();
            });
        }
    });
}

#[test]
fn another_label_is_a_mismatch_on_both_and_a_waiting_rank_does_not_spin() {
    let mut ranks = job(2).start(|rank| {
        if rank == 0 {
            vec![
                "group g",
                "send g to=1",
                "send g to=1 label=keys bytes=9",
                "recv g from=1 label=answer",
                "hold end",
            ]
        } else {
            vec![
                "group g",
                "recv g from=0",
                "hold apart",
                "recv g from=0 label=values",
                "hold end",
            ]
        }
    });
    ranks.holds(1, "apart");
    ranks.report(0, "send g to=1 label=keys bytes=9").well();
    // Rank 0 goes on to wait.
    thread::sleep(Duration::from_millis(1000));
    ranks.go(1);
    let seen = ranks.report(1, "recv g from=0 label=values");
    assert_eq!(
        seen.error().to_string(),
        "group g, round 2, recv `values`, rank 1: ranks made different calls: rank 0 send 9 bytes `keys`; rank 1 recv \
         from rank 0 `values`"
    );
    let told = ranks.report(0, "recv g from=1 label=answer");
    assert_eq!(told.kind(), seen.kind());
    assert!(
        told.ms > 300 && 2 * told.cpu_ms < told.ms,
        "it waits asleep: {told:?}"
    );
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn an_abort_reaches_a_rank_that_waits_for_a_message() {
    let mut ranks = job(3).start(|rank| match rank {
        0 => vec![
            "group g",
            "send g to=1",
            "hold apart",
            "recv g from=1 label=more",
            "hold end",
        ],
        1 => vec![
            "group g",
            "recv g from=0",
            "hold apart",
            "send g to=2 label=more",
            "hold end",
        ],
        _ => vec!["group g", "hold apart", "abort out of memory", "hold end"],
    });
    ranks.all_hold("apart");
    ranks.go(0);
    ranks.go(1);
    thread::sleep(Duration::from_millis(150));
    ranks.go(2);
    let aborted = ErrorKind::Aborted {
        rank: 2,
        reason: "out of memory".to_owned(),
    };
    for (rank, step) in [
        (0, "recv g from=1 label=more"),
        (1, "send g to=2 label=more"),
    ] {
        let failed = ranks.report(rank, step);
        assert!(failed.ms < SOON, "{failed:?}");
        assert_eq!(*failed.kind(), aborted);
    }
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

/// Whether what `said` tells of a series, its median and 90 of a hundred in microseconds, leaves no room for an
/// acknowledgement that the kernel holds back: that costs 40 ms, in every series. A busy machine spoils some, not all.
pub(crate) fn is_prompt(said: &str) -> bool {
    let took: Vec<u64> = said
        .split(' ')
        .map(|text| text.parse().expect("a number"))
        .collect();
    eprintln!("median, p90, p99, longest: {took:?} us");
    took[0] < 20_000 && took[1] < 20_000
}

#[test]
fn small_messages_one_way_do_not_wait_for_acknowledgements() {
    let work = |rank| match rank {
        0 => "send g to=1 bytes=80 timed count=1000 pause=300",
        _ => "recv g from=0 bytes=80 timed count=1000",
    };
    assert!((0..5).any(|_| {
        let mut ranks = job(2).start(|rank| ["group g", work(rank), "hold end"]);
        let prompt = is_prompt(ranks.report(1, work(1)).well());
        ranks.all_hold("end");
        ranks.all_go();
        ranks.end();
        prompt
    }));
}

on_both_paths! {
    messages_of_any_length_keep_their_order_in_both_directions_and_leave_the_counter_alone
    the_death_of_a_peer_is_named_soon_and_ends_only_its_pair
    who_leaves_in_order_is_no_death_and_its_messages_arrive
}
