//! Death at every step: a rank stops before any one of its writes to shared memory, and the others agree what follows.

use crate::flight::fly;
use crate::{PATIENT, explore, polls, seats, travel};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use rankpact_shm::{
    Cause, Failure, Geometry, Kind, Ladder, Liveness, RoundError, Storage, Table, mortal,
};
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
    Scene { ranks, ladder, .. }: Scene,
    storage: Storage,
    step: usize,
    fate: impl FnOnce(&mut Table),
    witness: fn(Table) -> T,
) -> bool {
    let lock = Arc::new(Lock::default());
    let storage = Arc::new(storage);
    let mut tables = seats(&storage, ranks, ladder).into_iter();
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

/// Where rank 0 dies.
#[derive(Clone, Copy)]
struct Scene {
    ranks: usize,
    /// Rounds in flight.
    depth: usize,
    radix: usize,
    ladder: Ladder,
    preemptions: usize,
}

impl Scene {
    /// One round in flight, every rank reads every row and sleeps.
    fn plain(ranks: usize, preemptions: usize) -> Self {
        Self {
            ranks,
            depth: 1,
            radix: 0,
            ladder: watchful(),
            preemptions,
        }
    }
}

/// Tries every step at which rank 0 can die in `fate`.
fn at_every_step<T: PartialEq + std::fmt::Debug + 'static>(
    scene: Scene,
    fate: fn(&mut Table),
    witness: fn(Table) -> T,
) {
    for step in 0.. {
        assert!(step < 64, "rank 0 writes for ever");
        let died = Arc::new(Counted::new(0));
        let seen = Arc::clone(&died);
        explore(scene.preemptions, move || {
            let geometry = Geometry::new(scene.ranks, scene.depth).expect("a valid geometry");
            let storage = Storage::heap(geometry, 1).with_radix(scene.radix);
            if !one_fate(scene, storage, step, fate, witness) {
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
    of_a_death(survive(table, rounds))
}

fn of_a_death((completed, failure): (i64, Option<Failure>)) -> (i64, Option<Failure>) {
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
/// Control: R1.
#[test]
fn a_death_at_any_step_is_told_to_one_witness() {
    at_every_step(
        Scene::plain(2, 2),
        |table| reduce(table, Kind::Min, 2, PATIENT),
        |table| survive_a_death(table, 3),
    );
}

/// 3 threads, 2 rounds of which rank 0 makes one: both others complete the first or neither does. Control: O1.
#[test]
fn a_death_at_any_step_is_told_to_two_witnesses_alike() {
    at_every_step(
        Scene::plain(3, 1),
        |table| reduce(table, Kind::Min, 1, PATIENT),
        |table| survive_a_death(table, 2),
    );
}

/// 3 threads, 1 round: rank 0 gives up at its first poll and dies while it does. Control: O1.
#[test]
fn a_death_while_giving_up_leaves_one_outcome() {
    at_every_step(
        Scene::plain(3, 1),
        |table| reduce(table, Kind::Min, 1, 1),
        |table| survive(table, 1),
    );
}

/// 3 threads, 1 round: rank 0 makes another call than the others and dies while it or they say so. Control: O1.
#[test]
fn a_death_in_a_mismatch_leaves_one_outcome() {
    at_every_step(
        Scene::plain(3, 1),
        |table| reduce(table, Kind::Max, 1, PATIENT),
        |table| survive(table, 1),
    );
}

/// 3 threads, 1 round of travelling data: rank 0 dies between announcement and commit, or in either. Control: O1.
#[test]
fn a_death_at_any_step_of_travelling_data_leaves_one_outcome() {
    at_every_step(
        Scene::plain(3, 1),
        |table| drop(travel(table, polls(PATIENT))),
        |mut table| travel(&mut table, polls(PATIENT)),
    );
}

/// 2 threads, 3 rounds of which 2 may be in flight: rank 0 starts two and finishes them, and dies before any write.
/// Control: R1.
#[test]
fn a_death_with_rounds_in_flight_is_told_to_one_witness() {
    at_every_step(
        Scene {
            depth: 2,
            ..Scene::plain(2, 2)
        },
        |table| drop(fly(table, 2, PATIENT)),
        |mut table| of_a_death(fly(&mut table, 3, PATIENT)),
    );
}

/// 3 threads, 2 rounds of which 1 may be in flight: rank 0 starts the first, and the others settle it by the second.
/// Control: O1.
#[test]
fn a_death_with_a_round_in_flight_is_told_to_two_witnesses_alike() {
    at_every_step(
        Scene::plain(3, 1),
        |table| drop(fly(table, 1, PATIENT)),
        |mut table| of_a_death(fly(&mut table, 2, PATIENT)),
    );
}

/// 3 threads in groups of 2 and 1, 2 rounds of which rank 0 makes one: it dies before its row, its partial result or
/// either's stamp, and both others complete the first round or neither does. Control: O1.
#[test]
fn a_death_at_any_step_of_two_hops_is_told_to_two_witnesses_alike() {
    at_every_step(
        Scene {
            radix: 2,
            ladder: Ladder {
                spin: Duration::from_nanos(1),
                ..watchful()
            },
            ..Scene::plain(3, 1)
        },
        |table| reduce(table, Kind::Min, 1, PATIENT),
        |table| survive_a_death(table, 2),
    );
}
