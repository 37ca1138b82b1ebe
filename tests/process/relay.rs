//! Relays between pipeline stages: what the first stage decides, in order; a lag shows, a death is named on both sides.

use crate::pair::is_prompt;
use crate::{assert_poisoned, job, missing};
use nix::sys::signal::Signal;
use rankpact_collective::{Error, ErrorKind};
use rankpact_tests::Ranks;
use std::thread;
use std::time::{Duration, Instant};

/// A death is told long before any deadline.
const SOON: Duration = Duration::from_secs(5);

/// The place of `rank` in a pipeline of `stages` ranks.
fn place(rank: usize, stages: usize, more: &str) -> String {
    let mut step = format!("relay pp {more}");
    if rank > 0 {
        step += &format!(" up={}", rank - 1);
    }
    if rank + 1 < stages {
        step += &format!(" down={}", rank + 1);
    }
    step
}

#[test]
fn every_stage_consumes_exactly_what_the_first_one_announced_however_late_its_own_events_are() {
    let consume = |rank| match rank {
        0 => "consume pp ticks=24 counts=0,3,0,1,0,0,2,1",
        1 => "consume pp ticks=24",
        _ => "consume pp ticks=24 late=20",
    };
    let mut ranks =
        job(3).start(|rank| [&*place(rank, 3, ""), consume(rank), "hold end"].map(str::to_owned));
    let said: Vec<_> = ranks
        .all()
        .into_iter()
        .map(|rank| ranks.report(rank, consume(rank)).well().to_owned())
        .collect();
    assert!(
        said[0].starts_with("0 3 3 4 4 4 6 7 7 10 ") && said[0].ends_with(" 21 "),
        "{said:?}"
    );
    assert!(said.iter().all(|other| *other == said[0]), "{said:?}");
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn vectors_of_any_width_are_handed_on_unchanged_and_in_order() {
    let mut ranks = job(4).start(|rank| {
        let verb = if rank == 0 { "post" } else { "next" };
        let mut steps = vec![place(rank, 4, "")];
        for (first, slots) in [(1, 0), (101, 1), (201, 9), (301, 70_000)] {
            steps.push(format!(
                "{verb} pp slots={slots} first={first} count=40 label=row"
            ));
        }
        steps.extend(["finish pp".to_owned(), "hold end".to_owned()]);
        steps
    });
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

/// Three stages in the middle of their work when `victim` comes to grief; what the others are told.
fn grief(victim: usize, harm: impl FnOnce(&mut Ranks)) -> (Ranks, Vec<Error>) {
    // Rank 0 has more time than the others: it is told who stands still.
    let work = |rank| match rank {
        0 => ["post pp", "post pp first=2 count=1000000 pause=500"],
        _ => ["next pp", "next pp first=2 count=1000000 within=1500"],
    };
    let mut ranks = job(3).start(|rank| {
        let [first, then] = work(rank);
        [
            &*place(rank, 3, ""),
            first,
            "hold apart",
            then,
            "settle pp",
            "hold end",
        ]
        .map(str::to_owned)
    });
    ranks.all_hold("apart");
    ranks.all_go();
    thread::sleep(Duration::from_millis(200));
    harm(&mut ranks);
    let harmed = Instant::now();
    let mut errors = Vec::new();
    for rank in ranks.all().into_iter().filter(|rank| *rank != victim) {
        let failed = ranks.report(rank, work(rank)[1]);
        assert!(harmed.elapsed() < SOON, "{failed:?}");
        assert_poisoned(ranks.report(rank, "settle pp").error(), failed.error());
        errors.push(failed.error().clone());
        ranks.holds(rank, "end");
        ranks.go(rank);
    }
    (ranks, errors)
}

#[test]
fn a_stage_that_is_killed_in_the_middle_of_a_relay_is_named_on_all_others() {
    thread::scope(|scope| {
        for victim in [0, 1, 2] {
            scope.spawn(move || {
                let (ranks, errors) = grief(victim, |ranks| ranks.kill(victim));
                assert_eq!(errors.len(), 2);
                for error in errors {
                    let named =
                        matches!(*error.kind, ErrorKind::PeerDied { rank, .. } if rank == victim);
                    assert!(named, "stage {victim}: {error}");
                }
                ranks.end();
            });
        }
    });
}

#[test]
fn a_stage_that_stands_still_past_the_deadline_is_named_on_all_others() {
    let (mut ranks, errors) = grief(2, |ranks| ranks.signal(2, Signal::SIGSTOP));
    for error in &errors {
        assert_eq!(missing(error), [2], "{error}");
    }
    ranks.signal(2, Signal::SIGCONT);
    let late = ranks.report(2, "next pp first=2 count=1000000 within=1500");
    assert_eq!(late.kind(), &*errors[1].kind);
    ranks.report(2, "settle pp").error();
    ranks.holds(2, "end");
    ranks.go(2);
    ranks.end();
}

#[test]
fn a_stage_is_at_most_so_far_behind_and_the_first_one_sees_it() {
    let mut ranks = job(2).start(|rank| {
        let mut steps = vec![place(rank, 2, "room=5"), "hold apart".to_owned()];
        let more: &[&str] = if rank == 0 {
            &[
                "post pp count=5",
                "settle pp",
                "post pp first=6 count=3",
                "settle pp",
                "finish pp",
                "settle pp",
            ]
        } else {
            &[
                "next pp count=1",
                "hold lagging",
                "next pp first=2 count=2",
                "hold slower",
                "next pp first=4 count=5",
            ]
        };
        steps.extend(more.iter().map(|step| (*step).to_owned()));
        steps.push("hold end".to_owned());
        steps
    });
    ranks.all_hold("apart");
    ranks.all_go();
    ranks.holds(1, "lagging");
    let pending = ranks.report(0, "settle pp");
    let pending: Vec<u64> = pending
        .well()
        .split(' ')
        .map(|text| text.parse().expect("a number"))
        .collect();
    assert!(
        pending[0] >= 4 && pending[1] == 64 * pending[0],
        "{pending:?}"
    );
    // Rank 0 goes on to post.
    thread::sleep(Duration::from_millis(500));
    ranks.go(1);
    // Eight were posted; three are taken, and five is the most that may be left.
    let posted = ranks.report(0, "post pp first=6 count=3");
    posted.well();
    assert!(posted.ms >= 100, "it was held up: {posted:?}");
    ranks.holds(1, "slower");
    assert_eq!(ranks.report(0, "settle pp").well(), "5 320");
    ranks.go(1);
    assert_eq!(ranks.report(0, "settle pp").well(), "0 0");
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn a_stage_that_leaves_in_order_is_no_death_and_what_it_handed_on_arrives() {
    let mut ranks = job(3).start(|rank| {
        let mut steps = vec![place(rank, 3, "")];
        let more: &[&str] = match rank {
            0 => &["post pp count=10", "quit pp"],
            1 => &[
                "next pp count=10",
                "settle pp",
                "next pp label=more",
                "quit pp",
            ],
            _ => &[
                "next pp count=1",
                "sleep 200",
                "next pp first=2 count=9",
                "next pp label=more",
                "quit pp",
            ],
        };
        steps.extend(more.iter().map(|step| (*step).to_owned()));
        steps
    });
    for rank in [1, 2] {
        let failed = ranks.report(rank, "next pp label=more");
        let left = matches!(failed.kind(), ErrorKind::PeerClosed { rank: 0, .. });
        assert!(left, "{}", failed.error());
    }
    ranks.end();
}

#[test]
fn a_panic_of_a_stage_aborts_the_job() {
    let work = ["post pp count=1000000 pause=500", "next pp count=1000000"];
    let mut ranks = job(3).start(|rank| {
        let mut steps = vec![place(rank, 3, "")];
        let more: &[&str] = match rank {
            2 => &["next pp count=5", "panic pp", "hold end"],
            _ => &[work[rank], "hold end"],
        };
        steps.extend(more.iter().map(|step| (*step).to_owned()));
        steps
    });
    for rank in [0, 1] {
        let failed = ranks.report(rank, work[rank]);
        let aborted = matches!(failed.kind(), ErrorKind::Aborted { rank: 2, .. });
        assert!(aborted, "{}", failed.error());
    }
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn stages_that_mean_different_directions_are_told() {
    let mut ranks = job(2).start(|rank| {
        let relay = format!("relay pp down={}", 1 - rank);
        [&*relay, "post pp", "hold end"].map(str::to_owned)
    });
    for rank in ranks.all() {
        let failed = ranks.report(rank, "post pp");
        match failed.kind() {
            ErrorKind::Config { field, .. } => assert_eq!(field, "sender of the relay"),
            other => panic!("{other}"),
        }
    }
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn a_stage_that_expects_another_vector_is_told_and_so_are_the_others() {
    let mut ranks = job(3).start(|rank| {
        let work = match rank {
            0 => "post pp count=1000 pause=1000 label=counts",
            1 => "next pp count=1000 label=counts",
            _ => "next pp label=vote",
        };
        [&*place(rank, 3, ""), work, "hold end"].map(str::to_owned)
    });
    let steps = [
        "post pp count=1000 pause=1000 label=counts",
        "next pp count=1000 label=counts",
        "next pp label=vote",
    ];
    let kinds: Vec<_> = ranks
        .all()
        .into_iter()
        .map(|rank| ranks.report(rank, steps[rank]).kind().clone())
        .collect();
    let wanted =
        "ranks made different calls: rank 1 post 64 bytes `counts`; rank 2 next from rank 1 `vote`";
    for kind in kinds {
        assert_eq!(kind.to_string(), wanted);
    }
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn vectors_one_way_do_not_wait_for_acknowledgements() {
    let work = |rank| match rank {
        0 => "post pp slots=9 timed count=1000 pause=300",
        _ => "next pp slots=9 timed count=1000",
    };
    assert!((0..5).any(|_| {
        let mut ranks =
            job(3).start(|rank| [&*place(rank, 3, ""), work(rank), "hold end"].map(str::to_owned));
        let prompt = [1, 2].map(|rank| is_prompt(ranks.report(rank, work(rank)).well()));
        ranks.all_hold("end");
        ranks.all_go();
        ranks.end();
        prompt == [true; 2]
    }));
}
