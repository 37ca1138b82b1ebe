//! Split phase: rounds that are started, left alone, and finished later.

use crate::{LONG, SHORT, announce, check_rounds, failure, on_threads, tables, value, watchdog};
use rankpact_shm::{
    Announcement, Cause, FREE_WORDS, Failure, Geometry, Kind, Ladder, RoundError, Started, Storage,
    Table,
};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

/// An announcement of one byte that travels by another way.
const DATA: Announcement = Announcement {
    travelling: 1,
    free: [0; FREE_WORDS],
};

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
    let aborted = Arc::new(Barrier::new(2));
    let ends = on_threads(tables(2, 1, Ladder::auto(2, 2)), move |mut table| {
        let early = [(); 2].map(|()| start(&mut table));
        if table.rank() == 0 {
            early.iter().for_each(|started| finish(&mut table, started));
            table.aborter().abort("enough");
        }
        // Rank 1 is told by a later call first.
        aborted.wait();
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
    let published = Arc::new(Barrier::new(2));
    let errors = on_threads(tables(2, 1, Ladder::auto(2, 2)), move |mut table| {
        let first = start(&mut table);
        let label = ["here", "there"][table.rank()];
        let second = table
            .start(Kind::Min, label, &[1], LONG)
            .expect("publishing is not comparing");
        let third = start(&mut table);
        published.wait();
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

/// What ends a group in the test below.
const ENDS: u64 = 4;

/// Makes calls of every kind until a round fails; then every round before it has its value and no later one has.
fn until_the_end(mut table: Table, end: u64, seed: u64) -> Failure {
    let rank = table.rank();
    let first = table.round();
    let mut held = Vec::new();
    let failure = loop {
        let round = table.round().wrapping_add(1);
        let turn = round.wrapping_sub(first);
        let mine = |salt| value(rank, turn ^ seed << 20, salt).unsigned_abs() >> 8;
        let timeout = match end {
            0 if mine(1).is_multiple_of(90) => Duration::from_micros(mine(2) % 40),
            _ => LONG,
        };
        // Ranks agree on the kind of a call, and each chooses its own way of making it.
        let wide = value(7, turn ^ seed << 20, 3).unsigned_abs() >> 8;
        let odd = end == 1 && rank == 1 && turn > 20 + seed;
        let result = if wide.is_multiple_of(11) {
            table
                .announce(Kind::Broadcast, "wide", 1, DATA, timeout)
                .and_then(|open| open.expect("data travels").commit(timeout))
        } else {
            let own = row(table.rank(), round);
            let label = if odd { "odd" } else { "split" };
            table
                .start(Kind::Min, label, &own, timeout)
                .map(|started| held.push(started))
        };
        let result = result.and_then(|()| match mine(4) % 3 {
            0 => held.last().map_or(Ok(()), |last| {
                table.finish(last, timeout).map(|got| {
                    assert_eq!(*got, reduced(table.ranks(), last.round()));
                })
            }),
            _ => Ok(()),
        });
        match result {
            Ok(()) if end == 2 && rank == 1 && turn > 20 + seed => {
                table.aborter().abort("in flight");
            }
            Ok(()) => {}
            Err(RoundError::Failed(failure)) => break failure,
            Err(other) => panic!("not the failure itself: {other}"),
        }
    };
    for started in held {
        let before = failure.round.wrapping_sub(started.round()).cast_signed() > 0;
        match table.finish(&started, Duration::ZERO) {
            Ok(got) => {
                assert!(before, "round {} has a value", started.round());
                assert_eq!(*got, reduced(table.ranks(), started.round()));
            }
            Err(RoundError::Poisoned(again) | RoundError::Failed(again)) => {
                assert!(!before, "round {} has none: {again}", started.round());
                assert_eq!(again, failure);
            }
            Err(other) => panic!("not a failure: {other}"),
        }
    }
    failure
}

/// Deadlines, a mismatch, an abort between calls and one from another thread, with 1 to 8 rounds in flight, in groups of
/// any size, read at once or in two hops, across wraps of the counter.
#[test]
fn whatever_ends_a_group_with_rounds_in_flight_ends_the_same_round_everywhere() {
    for attempt in 0..120_u64 {
        let (end, depth) = (attempt % ENDS, [1, 2, 8][(attempt / ENDS % 3) as usize]);
        let ranks = [2, 3, 5][(attempt / 12 % 3) as usize];
        let first = [1, u64::MAX - 30, (1 << 32) - 30, (1 << 54) - 30][(attempt / 36 % 4) as usize];
        let radix = if ranks > 2 && attempt % 5 < 3 { 2 } else { 0 };
        let geometry = Geometry::new(ranks, depth).expect("a valid geometry");
        let storage = Arc::new(Storage::heap(geometry, first).with_radix(radix));
        let ladders = [
            Ladder::parking(),
            Ladder::yielding(),
            Ladder::auto(ranks, ranks),
        ];
        let all: Vec<_> = (0..ranks)
            .map(|me| Table::new(Arc::clone(&storage), me, ladders[me % 3]))
            .collect();
        let aborter = all[0].aborter();
        let abort = thread::spawn(move || {
            (0..attempt * 700).for_each(|_| std::hint::spin_loop());
            if end == 3 {
                aborter.abort("from another thread");
            }
        });
        let ends = on_threads(all, move |table| until_the_end(table, end, attempt));
        abort.join().expect("no panic");
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    }
}
