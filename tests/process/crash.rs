//! Ranks that die, stop, leave or give up: the others are told who, soon, and nothing is left behind.

use crate::{assert_poisoned, job, missing};
use nix::sys::signal::Signal;
use rankpact_collective::{Error, ErrorKind, PathChoice};
use rankpact_tests::Ranks;
use std::thread;
use std::time::{Duration, Instant};

/// The one time limit of this suite: a death is reported long before any deadline.
pub(crate) const SOON: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before any round.
    Before,
    /// While the others wait for it in the first round.
    Waited,
    /// Between two rounds.
    Between,
    /// At a random point of a long series of rounds.
    Running,
}

const MOMENTS: [Moment; 4] = [
    Moment::Before,
    Moment::Waited,
    Moment::Between,
    Moment::Running,
];

/// One call of three ranks in which rank `victim` comes to grief; returns what the two others were told.
fn grief(
    op: &str,
    victim: usize,
    moment: Moment,
    signal: Signal,
    path: PathChoice,
) -> (Ranks, Vec<Error>, String) {
    let mut op = op.to_owned();
    if moment == Moment::Running {
        op += " count=1000000000";
    }
    if signal != Signal::SIGKILL {
        op += " within=1500";
    }
    let mut ranks = job(3).path(path).start(|_| {
        let mut steps = vec!["group g".to_owned(), "ready g".into()];
        if moment == Moment::Between {
            steps.extend([
                "min g slots=8 count=10".into(),
                "max g slots=20 count=10".into(),
            ]);
        }
        steps.extend([
            "hold grief".into(),
            op.clone(),
            "min g label=later".into(),
            "hold end".into(),
        ]);
        steps
    });
    ranks.all_hold("grief");
    let others: Vec<usize> = ranks
        .all()
        .into_iter()
        .filter(|rank| *rank != victim)
        .collect();
    match moment {
        Moment::Before | Moment::Between => ranks.signal(victim, signal),
        Moment::Waited => {}
        Moment::Running => ranks.go(victim),
    }
    others.iter().for_each(|rank| ranks.go(*rank));
    if matches!(moment, Moment::Waited | Moment::Running) {
        thread::sleep(Duration::from_millis(150));
        ranks.signal(victim, signal);
    }
    let mut errors = Vec::new();
    for rank in others {
        let failed = ranks.report(rank, &op);
        assert!(signal != Signal::SIGKILL || failed.ms < SOON, "{failed:?}");
        let later = ranks.report(rank, "min g label=later");
        assert_poisoned(later.error(), failed.error());
        errors.push(failed.error().clone());
    }
    (ranks, errors, op)
}

pub(crate) fn killed(op: &str, victim: usize, moment: Moment, path: PathChoice) {
    let (mut ranks, errors, _) = grief(op, victim, moment, Signal::SIGKILL, path);
    let case = format!("{op}, {moment:?}, {path}, rank {victim}");
    for error in &errors {
        let ErrorKind::PeerDied { rank, last_round } = *error.kind else {
            panic!("{case}: {error}");
        };
        assert_eq!(rank, victim, "{case}: {error}");
        match moment {
            Moment::Before | Moment::Waited => assert_eq!(last_round, 0, "{case}"),
            Moment::Between => assert_eq!(last_round, 20, "{case}"),
            Moment::Running => {}
        }
    }
    if path == PathChoice::Tcp {
        // There is no shared word: one may have taken the last value, and is told at its next call.
        assert!(errors[0].round.abs_diff(errors[1].round) <= 1, "{case}");
    } else {
        // Completed before it on all, failed from it on on all.
        assert_eq!(errors[0].round, errors[1].round, "{case}");
        assert_eq!(errors[0].kind, errors[1].kind, "{case}");
    }
    for error in &errors {
        ranks.holds(error.rank, "end");
        ranks.go(error.rank);
    }
    ranks.end();
}

fn stopped(op: &str, moment: Moment, path: PathChoice) {
    let victim = 1;
    let (mut ranks, errors, op) = grief(op, victim, moment, Signal::SIGSTOP, path);
    let case = format!("{op}, {moment:?}, {path}");
    // Stopped between its messages to two peers, it lets one of them go on to a round in which the other is missing too.
    let torn = path == PathChoice::Tcp && moment == Moment::Running;
    let named = |error: &Error| {
        let missing = missing(error);
        assert!(
            missing == [victim] || torn && missing.contains(&victim),
            "{case}: {error}"
        );
    };
    errors.iter().for_each(named);
    // Over TCP there is no shared word: one rank may have taken the last value, and is told at its next call.
    let apart = u64::from(path == PathChoice::Tcp);
    assert!(errors[0].round.abs_diff(errors[1].round) <= apart, "{case}");
    ranks.signal(victim, Signal::SIGCONT);
    if moment != Moment::Running {
        ranks.go(victim);
    }
    let late = ranks.report(victim, &op);
    named(late.error());
    assert!(
        late.error().round.abs_diff(errors[0].round) <= apart,
        "{case}"
    );
    assert_poisoned(
        ranks.report(victim, "min g label=later").error(),
        late.error(),
    );
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

/// Runs all cases at once: they mostly wait. Each failure is told with its case.
pub(crate) fn at_once<T: Copy + Send + Sync + std::fmt::Debug>(
    cases: &[T],
    run: impl Fn(T) + Send + Copy,
) {
    let failed = thread::scope(|scope| {
        let threads: Vec<_> = cases
            .iter()
            .map(|case| (*case, scope.spawn(move || run(*case))))
            .collect();
        threads
            .into_iter()
            .filter_map(|(case, thread)| thread.join().is_err().then_some(case))
            .collect::<Vec<_>>()
    });
    assert!(failed.is_empty(), "failed, see above: {failed:?}");
}

macro_rules! griefs {
    ($($name:ident: $op:literal;)*) => {
        mod a_killed_rank_is_named_soon {
            $(mod $name {
                use super::super::{MOMENTS, PathChoice, at_once, killed};
                #[test]
                fn over_the_table() {
                    at_once(&MOMENTS, |moment| killed($op, 1, moment, PathChoice::Table));
                }
                #[test]
                fn over_tcp() {
                    at_once(&MOMENTS, |moment| killed($op, 1, moment, PathChoice::Tcp));
                }
            })*
        }
        mod a_rank_stopped_past_the_deadline_is_named_and_learns_of_it {
            $(mod $name {
                use super::super::{MOMENTS, PathChoice, at_once, stopped};
                #[test]
                fn over_the_table() {
                    at_once(&MOMENTS, |moment| stopped($op, moment, PathChoice::Table));
                }
                #[test]
                fn over_tcp() {
                    at_once(&MOMENTS, |moment| stopped($op, moment, PathChoice::Tcp));
                }
            })*
        }
    };
}

griefs! {
    in_a_row: "min g slots=8";
    in_a_vector: "max g slots=1000";
    in_its_broadcast: "broadcast g root=1 bytes=50000";
    in_the_broadcast_of_another: "broadcast g root=0 bytes=20";
    in_a_barrier: "barrier g";
    in_a_sum: "sum g slots=8";
    in_a_wide_sum: "sum g slots=400";
    in_an_operation_for_each_slot: "each g slots=5 ops=min,sum,or";
    in_a_gather: "gather g slots=4";
    in_a_wide_gather: "gather g slots=300";
    in_gathered_bytes: "gather-bytes g bytes=5000";
    in_flight: "split g slots=3";
}

fn the_death_of_rank_0_which_serves_is_noticed_as_any_other(path: PathChoice) {
    at_once(&MOMENTS, |moment| killed("min g slots=8", 0, moment, path));
}

fn ranks_stopped_for_less_than_the_deadline_change_nothing(path: PathChoice) {
    at_once(&[&[1][..], &[0, 2], &[0, 1, 2]], |stopped| {
        let mut ranks = job(3).path(path).start(|_| {
            [
                "group g",
                "ready g",
                "hold running",
                "min g slots=8 count=1000 pause=1000 full",
                "hold running",
                "max g slots=50 count=1000 pause=1000",
                "hold running",
                "broadcast g root=2 bytes=9000 count=1000 pause=1000",
            ]
        });
        for _ in 0..3 {
            ranks.all_hold("running");
            ranks.all_go();
            // A series takes a second at least.
            thread::sleep(Duration::from_millis(70));
            stopped
                .iter()
                .for_each(|rank| ranks.signal(*rank, Signal::SIGSTOP));
            thread::sleep(Duration::from_millis(300));
            stopped
                .iter()
                .for_each(|rank| ranks.signal(*rank, Signal::SIGCONT));
        }
        ranks.end();
    });
}

fn a_fast_rank_may_leave_while_a_slow_one_still_reads_its_result(path: PathChoice) {
    let last = [
        "min g slots=8",
        "max g slots=5000",
        "broadcast g root=0 bytes=1000000",
        "broadcast g root=1 bytes=1000000",
        "barrier g",
    ];
    at_once(&last, |last| {
        for fast in [0, 1] {
            let mut ranks = job(2).path(path).start(|rank| {
                let mut steps = vec!["group g", "min g slots=8 count=200", last];
                if rank != fast {
                    steps.push("sleep 500");
                }
                steps
            });
            for rank in ranks.all() {
                ranks.report(rank, last).well();
                assert!(ranks.ended(rank).success());
                assert_eq!(ranks.stderr(rank), "", "{path}, {last}");
            }
            ranks.end();
        }
    });
}

/// Three ranks make ten calls; rank 2 does `departure`, the others call once more.
fn departed(departure: &str, op: &str, path: PathChoice) -> Vec<Error> {
    let mut ranks = job(3).path(path).start(|rank| {
        let mut steps = vec!["group g", "min g slots=8 count=10", "hold apart"];
        if rank == 2 {
            steps.extend(departure.split(", "));
        } else {
            steps.extend([op, "min g label=later", "hold end"]);
        }
        steps
    });
    ranks.all_hold("apart");
    ranks.all_go();
    let mut errors = Vec::new();
    for rank in [0, 1] {
        let failed = ranks.report(rank, op);
        assert!(failed.ms < SOON, "{failed:?}");
        assert_poisoned(
            ranks.report(rank, "min g label=later").error(),
            failed.error(),
        );
        errors.push(failed.error().clone());
    }
    for rank in [0, 1] {
        ranks.holds(rank, "end");
        ranks.go(rank);
    }
    ranks.end();
    errors
}

const CALLS: [&str; 3] = [
    "min g slots=8 label=more",
    "max g slots=100 label=more",
    "broadcast g root=2 bytes=100 label=more",
];

fn leaving_without_a_close_is_a_death(path: PathChoice) {
    for departure in ["exit", "crash"] {
        at_once(&CALLS, |op| {
            for error in departed(departure, op, path) {
                assert_eq!(
                    *error.kind,
                    ErrorKind::PeerDied {
                        rank: 2,
                        last_round: 10
                    },
                    "{path}, {departure}, {op}"
                );
            }
        });
    }
}

fn leaving_with_a_close_is_no_death(path: PathChoice) {
    for departure in ["close g, exit", "leave g, hold end", "sleep 0"] {
        at_once(&CALLS, |op| {
            let departure = departure.replace("hold end", "sleep 1500");
            for error in departed(&departure, op, path) {
                assert_eq!(
                    *error.kind,
                    ErrorKind::PeerClosed {
                        rank: 2,
                        last_round: 10
                    },
                    "{path}, {departure}, {op}"
                );
            }
        });
    }
}

fn a_panic_of_a_rank_thread_aborts_its_job(path: PathChoice) {
    at_once(&CALLS, |op| {
        for error in departed("panic g, sleep 1500", op, path) {
            match &*error.kind {
                ErrorKind::Aborted { rank: 2, reason } => {
                    assert!(reason.contains("panic"), "{path}, {op}: {reason}");
                }
                other => panic!("{path}, {op}: {other}"),
            }
        }
    });
}

fn an_abort_reaches_all_groups_of_all_ranks(path: PathChoice) {
    let waiting = "parallel row,vector,bytes,rest,opening barrier within=20000";
    let mut ranks = job(3).path(path).start(|rank| {
        let mut steps: Vec<_> = [
            "group row",
            "group vector",
            "group bytes",
            "group rest",
            "group unopened",
            "group opening",
        ]
        .into_iter()
        .chain([
            "min row count=3",
            "max vector slots=30 count=3",
            "broadcast bytes count=3",
            "barrier rest",
        ])
        .collect();
        steps.push("hold waiting");
        steps.push(if rank == 2 {
            "abort out of memory"
        } else {
            waiting
        });
        steps.extend([
            "min row label=later",
            "min unopened label=later",
            "min vector slots=20 label=later",
            "hold end",
        ]);
        steps
    });
    ranks.all_hold("waiting");
    for rank in [0, 1] {
        ranks.go(rank);
    }
    thread::sleep(Duration::from_millis(150));
    ranks.go(2);
    let aborted = |error: &Error| {
        assert_eq!(
            *error.root().kind,
            ErrorKind::Aborted {
                rank: 2,
                reason: "out of memory".to_owned()
            },
            "{path}: {error}"
        );
    };
    for rank in [0, 1] {
        for group in ["row", "vector", "bytes", "rest", "opening"] {
            let failed = ranks.report(rank, &format!("parallel {group} barrier within=20000"));
            aborted(failed.error());
            assert!(failed.ms < SOON, "{failed:?}");
        }
    }
    ranks.report(2, "abort out of memory").well();
    for rank in ranks.all() {
        for later in [
            "min row label=later",
            "min unopened label=later",
            "min vector slots=20 label=later",
        ] {
            aborted(ranks.report(rank, later).error());
        }
    }
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn the_death_of_rank_0_while_others_join_is_named() {
    let mut ranks = job(4).without(3).start(|_| ["hold end"]);
    ranks.all_met();
    ranks.kill(0);
    let killed = Instant::now();
    for rank in [1, 2] {
        let failed = ranks.report(rank, "join");
        assert!(killed.elapsed() < Duration::from_millis(SOON), "{failed:?}");
        assert!(
            matches!(failed.kind(), ErrorKind::PeerDied { rank: 0, .. }),
            "rank {rank}: {}",
            failed.error()
        );
    }
    ranks.end();
}

fn a_death_before_a_group_opens_is_named(path: PathChoice) {
    at_once(&[0, 1, 2], |victim| {
        for waited in [false, true] {
            let mut ranks = job(3).path(path).start(|_| {
                [
                    "group g",
                    "hold opening",
                    "ready g",
                    "min g label=later",
                    "hold end",
                ]
            });
            ranks.all_hold("opening");
            let others: Vec<_> = ranks
                .all()
                .into_iter()
                .filter(|rank| *rank != victim)
                .collect();
            if waited {
                others.iter().for_each(|rank| ranks.go(*rank));
                thread::sleep(Duration::from_millis(150));
                ranks.kill(victim);
            } else {
                ranks.kill(victim);
                others.iter().for_each(|rank| ranks.go(*rank));
            }
            for rank in others {
                let failed = ranks.report(rank, "ready g");
                assert!(failed.ms < SOON, "{failed:?}");
                assert!(
                    matches!(failed.kind(), ErrorKind::PeerDied { rank, .. } if *rank == victim),
                    "{path}, {victim}, {waited}, rank {rank}: {}",
                    failed.error()
                );
                assert_poisoned(
                    ranks.report(rank, "min g label=later").error(),
                    failed.error(),
                );
                ranks.holds(rank, "end");
                ranks.go(rank);
            }
            ranks.end();
        }
    });
}

on_both_paths! {
    ranks_stopped_for_less_than_the_deadline_change_nothing
    the_death_of_rank_0_which_serves_is_noticed_as_any_other
    a_fast_rank_may_leave_while_a_slow_one_still_reads_its_result
    leaving_without_a_close_is_a_death
    leaving_with_a_close_is_no_death
    a_panic_of_a_rank_thread_aborts_its_job
    an_abort_reaches_all_groups_of_all_ranks
    a_death_before_a_group_opens_is_named
}
