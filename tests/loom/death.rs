//! Death at every step: a rank stops before any one of its writes to shared memory, and the others agree what follows.

use crate::{PATIENT, explore, polls, seats, storage, travel};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use rankpact_shm::{Cause, Failure, Kind, Ladder, Liveness, RoundError, Table, mortal};
use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Counted, Ordering::Relaxed};
use std::time::Duration;

/// Sleeps at once, and looks after its peers whenever it has slept.
pub(crate) fn watchful() -> Ladder {
    Ladder {
        slice: Duration::ZERO,
        ..Ladder::parking()
    }
}

/// The lock of the one rank that may die: the kernel releases it after everything the rank wrote.
#[derive(Debug, Default)]
pub(crate) struct Lock(pub(crate) AtomicBool);

#[derive(Debug)]
pub(crate) struct Locks(pub(crate) usize, pub(crate) Arc<Lock>);

impl Liveness for Locks {
    fn alive(&self, rank: usize) -> bool {
        rank != self.0 || !self.1.0.load(Ordering::Acquire)
    }
}

/// Rank 0 runs `fate` and dies before its write number `step`; the others run `witness`, and must end alike.
///
/// Returns whether rank 0 outlived `fate`.
fn one_fate<T: PartialEq + std::fmt::Debug + 'static>(
    ranks: usize,
    step: usize,
    fate: impl FnOnce(&mut Table),
    witness: fn(Table) -> T,
) -> bool {
    let lock = Arc::new(Lock::default());
    let storage = Arc::new(storage(ranks));
    let mut tables = seats(&storage, ranks, watchful()).into_iter();
    let mut doomed = tables.next().expect("a rank");
    let witnesses: Vec<_> = tables
        .map(|table| {
            let table = table.with_liveness(Box::new(Locks(0, Arc::clone(&lock))));
            thread::spawn(move || witness(table))
        })
        .collect();
    let outlived = mortal(step, || fate(&mut doomed));
    forget(doomed);
    lock.0.store(true, Ordering::Release);
    storage.let_time_pass();
    let mut ends = witnesses
        .into_iter()
        .map(|witness| witness.join().expect("no rank panics"));
    let first = ends.next().expect("a witness");
    for other in ends {
        assert_eq!(other, first, "two outcomes of one round");
    }
    outlived
}

/// Tries every step at which rank 0 can die in `fate`.
fn at_every_step<T: PartialEq + std::fmt::Debug + 'static>(
    ranks: usize,
    preemptions: usize,
    fate: fn(&mut Table),
    witness: fn(Table) -> T,
) {
    for step in 0.. {
        assert!(step < 64, "rank 0 writes for ever");
        let died = Arc::new(Counted::new(0));
        let seen = Arc::clone(&died);
        explore(preemptions, move || {
            if !one_fate(ranks, step, fate, witness) {
                seen.fetch_add(1, Relaxed);
            }
        });
        if died.load(Relaxed) == 0 {
            assert!(step > 3, "rank 0 hardly wrote anything");
            return;
        }
    }
}

/// Reduces until a round fails; how many completed, and why the next did not.
fn survive(mut table: Table, rounds: i64) -> (i64, Option<Failure>) {
    for round in 0..rounds {
        let mut row = [10 * round + 1];
        match table.all_reduce(Kind::Min, "m", &mut row, polls(PATIENT)) {
            Ok(()) => assert_eq!(row, [10 * round], "a torn or foreign row"),
            Err(RoundError::Failed(failure)) => return (round, Some(failure)),
            Err(other) => panic!("not the failure itself: {other}"),
        }
    }
    (rounds, None)
}

/// As [`survive`], where nothing else can happen than that rank 0 dies.
fn survive_a_death(table: Table, rounds: i64) -> (i64, Option<Failure>) {
    let (completed, failure) = survive(table, rounds);
    let died = failure.as_ref().map(|failure| &failure.cause);
    assert!(
        matches!(died, Some(Cause::Died(missing)) if missing.rank == 0),
        "{failure:?}"
    );
    (completed, failure)
}

/// Rank 0 reduces with `kind`, and gives up after so many polls.
fn reduce(table: &mut Table, kind: Kind, rounds: i64, patience: u64) {
    for round in 0..rounds {
        if table
            .all_reduce(kind, "m", &mut [10 * round], polls(patience))
            .is_err()
        {
            return;
        }
    }
}

/// 2 threads, 3 rounds of which rank 0 makes two: its death before any write is told, and no value is torn.
#[test]
fn a_death_at_any_step_is_told_to_one_witness() {
    at_every_step(
        2,
        3,
        |table| reduce(table, Kind::Min, 2, PATIENT),
        |table| survive_a_death(table, 3),
    );
}

/// 3 threads, 2 rounds of which rank 0 makes one: both others complete the first or neither does.
#[test]
fn a_death_at_any_step_is_told_to_two_witnesses_alike() {
    at_every_step(
        3,
        2,
        |table| reduce(table, Kind::Min, 1, PATIENT),
        |table| survive_a_death(table, 2),
    );
}

/// 3 threads, 1 round: rank 0 gives up at its first poll and dies while it does.
#[test]
fn a_death_while_giving_up_leaves_one_outcome() {
    at_every_step(
        3,
        2,
        |table| reduce(table, Kind::Min, 1, 1),
        |table| survive(table, 1),
    );
}

/// 3 threads, 1 round: rank 0 makes another call than the others and dies while it or they say so.
#[test]
fn a_death_in_a_mismatch_leaves_one_outcome() {
    at_every_step(
        3,
        1,
        |table| reduce(table, Kind::Max, 1, PATIENT),
        |table| survive(table, 1),
    );
}

/// 3 threads, 1 round of travelling data: rank 0 dies between announcement and commit, or in either.
#[test]
fn a_death_at_any_step_of_travelling_data_leaves_one_outcome() {
    at_every_step(
        3,
        1,
        |table| drop(travel(table, polls(PATIENT))),
        |mut table| travel(&mut table, polls(PATIENT)),
    );
}
