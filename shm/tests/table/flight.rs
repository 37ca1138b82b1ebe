//! Split phase: rounds that are started, left alone, and finished later.

use crate::{
    LONG, SHORT, announce, check_rounds, failure, on_threads, tables, value, watchdog,
};
use rankpact_shm::{Cause, Kind, Ladder, RoundError, Started, Table};
use std::thread;
use std::time::Duration;

fn row(rank: usize, round: u64) -> [i64; 3] {
    std::array::from_fn(|slot| value(rank, round, slot))
}

fn reduced(ranks: usize, round: u64) -> [i64; 3] {
    std::array::from_fn(|slot| {
        (0..ranks)
            .map(|rank| value(rank, round, slot))
            .min()
            .expect("at least one rank")
    })
}

fn start(table: &mut Table) -> Started {
    let round = table.round().wrapping_add(1);
    let own = row(table.rank(), round);
    table
        .start(Kind::Min, "split", &own, LONG)
        .expect("all is well")
}

fn finish(table: &mut Table, started: &Started) {
    let ranks = table.ranks();
    let got = table.finish(started, LONG).expect("all is well");
    assert_eq!(
        *got,
        reduced(ranks, started.round()),
        "round {}",
        started.round()
    );
}

/// Each rank in its own order: starts and blocking calls mixed, handles finished early, late, in reverse, or dropped.
#[test]
fn rounds_in_flight_give_the_results_of_their_own_rows() {
    for ladder in [Ladder::auto(3, 2), Ladder::parking(), Ladder::yielding()] {
        on_threads(tables(3, u64::MAX - 100, ladder), |mut table| {
            let mut held = Vec::new();
            for turn in 0..300_u64 {
                match value(table.rank(), turn, 0).unsigned_abs() % 5 {
                    0 | 1 => held.push(start(&mut table)),
                    2 => {
                        let round = table.round().wrapping_add(1);
                        let mut slots = row(table.rank(), round);
                        table
                            .all_reduce(Kind::Min, "split", &mut slots, LONG)
                            .expect("a start matches a blocking call");
                        assert_eq!(slots, reduced(table.ranks(), round));
                    }
                    3 => drop(start(&mut table)),
                    _ => {
                        held.push(start(&mut table));
                        if let Some(last) = held.pop() {
                            finish(&mut table, &last);
                        }
                        if turn % 2 == 0 && !held.is_empty() {
                            let first = held.remove(0);
                            finish(&mut table, &first);
                        }
                    }
                }
            }
            // However long ago they were started.
            for started in held {
                finish(&mut table, &started);
            }
        });
    }
}

#[test]
fn a_start_does_not_wait_for_its_own_round() {
    let mut all = tables(2, 1, Ladder::auto(2, 2));
    let mut one = all.remove(0);
    let handles = [(); 4].map(|()| start(&mut one));
    // The fifth would settle the first, for which the peer is missing.
    let error = one
        .start(Kind::Min, "split", &row(0, 5), SHORT)
        .expect_err("nobody else is there");
    assert_eq!(failure(error).round, 1, "giving up is about the oldest");
    for handle in handles {
        assert!(matches!(
            one.finish(&handle, LONG),
            Err(RoundError::Poisoned(_))
        ));
    }
}

/// The starter does not come back to its round before the sleeper has woken, and no slice ends meanwhile.
#[test]
fn a_start_wakes_those_who_sleep_for_its_row() {
    let drowsy = Ladder {
        slice: LONG,
        ..Ladder::parking()
    };
    let mut all = tables(2, 1, drowsy);
    let (mut one, mut two) = (all.remove(0), all.remove(0));
    watchdog(move || {
        let sleeper = thread::spawn(move || {
            let mut slots = row(1, 1);
            two.all_reduce(Kind::Min, "split", &mut slots, LONG * 2)
                .map(|()| slots)
        });
        thread::sleep(SHORT);
        let started = start(&mut one);
        let woken = sleeper.join().expect("no rank panics");
        assert_eq!(woken, Ok(reduced(2, 1)));
        finish(&mut one, &started);
    });
}

#[test]
fn rounds_before_the_failed_one_complete_although_they_are_still_in_flight() {
    let ends = on_threads(tables(2, 1, Ladder::auto(2, 2)), |mut table| {
        let early = [(); 2].map(|()| start(&mut table));
        if table.rank() == 0 {
            early.iter().for_each(|started| finish(&mut table, started));
            table.aborter().abort("enough");
        } else {
            // Told by a later call first, when rank 0 has failed round 3.
            thread::sleep(Duration::from_millis(50));
        }
        let third = table.start(Kind::Min, "split", &row(table.rank(), 3), LONG);
        let third = failure(third.map(drop).expect_err("aborted"));
        if table.rank() == 1 {
            early.iter().for_each(|started| finish(&mut table, started));
        }
        third
    });
    assert_eq!(ends[0], ends[1]);
    assert_eq!(ends[0].round, 3);
}

#[test]
fn a_mismatch_in_flight_is_told_by_whoever_finishes() {
    let errors = on_threads(tables(2, 1, Ladder::auto(2, 2)), |mut table| {
        let first = start(&mut table);
        let label = ["here", "there"][table.rank()];
        let second = table
            .start(Kind::Min, label, &[1], LONG)
            .expect("publishing is not comparing");
        let third = start(&mut table);
        let error = failure(table.finish(&third, LONG).expect_err("round 2 differs"));
        finish(&mut table, &first);
        assert_eq!(
            table.finish(&second, LONG),
            Err(RoundError::Poisoned(error.clone()))
        );
        error
    });
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[0].round, 2);
    assert!(matches!(errors[0].cause, Cause::Mismatch { .. }));
}

#[test]
fn a_described_call_settles_what_is_in_flight() {
    on_threads(tables(3, 1, Ladder::auto(3, 2)), |mut table| {
        for _ in 0..50 {
            let handles = [(); 3].map(|()| start(&mut table));
            announce(&mut table, Kind::Broadcast, "wide", 1)
                .expect("alike")
                .commit(LONG)
                .expect("all have their data");
            handles
                .iter()
                .for_each(|started| finish(&mut table, started));
            check_rounds(&mut table, 2);
        }
    });
}

#[test]
fn a_handle_of_another_table_is_refused() {
    let (mut here, mut there) = (
        tables(1, 1, Ladder::parking()).remove(0),
        tables(1, 1, Ladder::parking()).remove(0),
    );
    let started = start(&mut here);
    assert_eq!(there.finish(&started, LONG), Err(RoundError::NotStarted));
    finish(&mut here, &started);
}

/// With as many rounds in flight as may be, a peer may be writing into the rows of the round settled last.
#[test]
fn contributions_are_those_of_the_settled_round_or_none() {
    let mut all = tables(2, 1, Ladder::auto(2, 2));
    let (mut one, mut two) = (all.remove(0), all.remove(0));
    watchdog(move || {
        let ours: Vec<_> = (0..4).map(|_| start(&mut one)).collect();
        let theirs: Vec<_> = (0..4).map(|_| start(&mut two)).collect();
        finish(&mut one, &ours[0]);
        let both = Some(vec![value(0, 1, 0), value(1, 1, 0)]);
        assert_eq!(one.contributions(0), both);
        // Five rounds are published here, one of them settled; the peer settles all and goes on to the buffer of the first.
        let fifth = start(&mut one);
        assert_eq!(one.contributions(0), None);
        theirs.iter().for_each(|started| finish(&mut two, started));
        let more: Vec<_> = (0..5).map(|_| start(&mut two)).collect();
        assert_eq!(one.contributions(0), None);
        finish(&mut one, &fifth);
        assert_eq!(
            one.contributions(0),
            Some(vec![value(0, 5, 0), value(1, 5, 0)])
        );
        drop(more);
    });
}

#[test]
fn a_closed_table_settles_nothing_more() {
    let mut one = tables(2, 1, Ladder::auto(2, 2)).remove(0);
    let handles = [(); 4].map(|()| start(&mut one));
    one.close();
    assert_eq!(one.finish(&handles[0], LONG), Err(RoundError::Closed));
    let again = one.start(Kind::Min, "split", &[1], LONG).map(drop);
    assert_eq!(again, Err(RoundError::Closed));
    let wide = announce(&mut one, Kind::Broadcast, "wide", 1).map(drop);
    assert_eq!(wide, Err(RoundError::Closed));
}
