//! Rounds in flight: started, left alone, settled in order.

use crate::round::abort_beside;
use crate::{PATIENT, Patience, explore, polls, seats, tables};
use loom::thread;
use rankpact_shm::{Failure, Geometry, Kind, Ladder, RoundError, Storage, Table};
use std::sync::Arc;

fn value(rank: usize, round: i64) -> i64 {
    10 * round + i64::try_from(rank).expect("small")
}

/// Starts so many rounds and finishes the last first, then all; returns how many completed, and why the next did not.
pub(crate) fn fly(table: &mut Table, rounds: i64, patience: Patience) -> (i64, Option<Failure>) {
    let mut started = Vec::new();
    let mut failed = None;
    for round in 0..rounds {
        let own = [value(table.rank(), round)];
        match table.start(Kind::Min, "m", &own, polls(patience)) {
            Ok(handle) => started.push(handle),
            Err(error) => {
                failed = Some(failure(error));
                break;
            }
        }
    }
    if let Some(last) = started.last() {
        if let Err(error) = table.finish(last, polls(patience)) {
            failed = failed.or(Some(failure(error)));
        }
    }
    let mut completed = 0;
    for handle in &started {
        match table.finish(handle, polls(patience)) {
            Ok(reduced) => {
                assert_eq!(*reduced, [value(0, completed)], "a torn or foreign row");
                completed += 1;
            }
            Err(error) => {
                assert!(failed.is_some(), "no failure before {error}");
                break;
            }
        }
    }
    (completed, failed)
}

fn failure(error: RoundError) -> Failure {
    match error {
        RoundError::Failed(failure) | RoundError::Poisoned(failure) => failure,
        other => panic!("assertion: no failure of a round: {other}"),
    }
}

/// The seats of 2 ranks that may have two rounds in flight, in 4 buffers.
fn tables_of_two_in_flight() -> Vec<Table> {
    let geometry = Geometry::new(2, 2).expect("a valid geometry");
    let storage = Arc::new(Storage::heap(geometry, 1));
    seats(&storage, 2, Ladder::parking())
}

fn one_outcome(tables: Vec<Table>, rounds: i64, patience: [Patience; 2]) {
    let mut tables = tables.into_iter();
    let (mut one, mut other) = (
        tables.next().expect("a rank"),
        tables.next().expect("a rank"),
    );
    let thread = thread::spawn(move || fly(&mut other, rounds, patience[1]));
    let completed = fly(&mut one, rounds, patience[0]);
    assert_eq!(
        thread.join().expect("no rank panics"),
        completed,
        "two outcomes of one round"
    );
}

/// 2 threads, 3 rounds of which 1 may be in flight, in 2 buffers: a start settles the round before. Control: O8.
#[test]
fn a_start_settles_what_its_buffer_needs() {
    explore(3, || {
        one_outcome(tables(2, Ladder::parking()), 3, [PATIENT; 2])
    });
}

/// 2 threads, 2 rounds, both in flight, one rank impatient: what it gives up on is the oldest round. Control: O7.
#[test]
fn giving_up_in_flight_is_about_the_oldest_round() {
    explore(3, || {
        one_outcome(tables_of_two_in_flight(), 2, [PATIENT, 1]);
    });
}

/// 2 threads, 1 round: a rank that starts last and does not look at the round wakes the one that sleeps. Control: F1, P1.
#[test]
fn a_start_wakes_the_sleepers() {
    explore(4, || {
        let mut tables = tables(2, Ladder::parking());
        let (mut one, mut other) = (tables.remove(0), tables.remove(0));
        let sleeper = thread::spawn(move || {
            let mut row = [1];
            other
                .all_reduce(Kind::Min, "m", &mut row, polls(PATIENT))
                .map(|()| row)
        });
        let started = one
            .start(Kind::Min, "m", &[0], polls(PATIENT))
            .expect("all is well");
        assert_eq!(sleeper.join().expect("no rank panics"), Ok([0]));
        assert_eq!(
            one.finish(&started, polls(PATIENT)).as_deref(),
            Ok(&[0][..])
        );
    });
}

/// 3 threads, 3 rounds of which 1 may be in flight, in 2 buffers: another thread of a rank aborts between its starts.
/// Control: O6.
#[test]
fn an_abort_beside_one_round_in_flight_leaves_one_outcome() {
    explore(2, || {
        abort_beside(tables(2, Ladder::parking()), |mut table| {
            fly(&mut table, 3, PATIENT)
        });
    });
}

/// 3 threads, 2 rounds, both in flight: the abort may find rounds complete that nobody has settled. Control: F2.
#[test]
fn an_abort_beside_two_rounds_in_flight_leaves_one_outcome() {
    explore(2, || {
        abort_beside(tables_of_two_in_flight(), |mut table| {
            fly(&mut table, 2, PATIENT)
        });
    });
}
