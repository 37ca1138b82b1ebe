//! The round protocol on threads over a heap table: the same code that runs in mapped memory and under loom.

#![cfg(not(loom))]

mod flight;
mod operations;
mod radix;
mod unlock;
#[path = "../harness/watchdog.rs"]
mod watchdog;

use rankpact_shm::{
    Announcement, Cause, Geometry, Kind, Ladder, Liveness, Open, RoundError, Shape, Storage, Table,
    Trouble,
};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use watchdog::watchdog;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn tables(ranks: usize, first_round: u64, ladder: Ladder) -> Vec<Table> {
    let depth = if ranks > 32 { 2 } else { 4 };
    let geometry = Geometry::new(ranks, depth).expect("a valid geometry");
    let storage = Arc::new(Storage::heap(geometry, first_round));
    (0..ranks)
        .map(|me| Table::new(Arc::clone(&storage), me, ladder))
        .collect()
}

/// Runs `body` for each rank on a thread of its own; results by rank.
fn on_threads<T: Send + 'static>(
    tables: Vec<Table>,
    body: impl Fn(Table) -> T + Send + Sync + 'static,
) -> Vec<T> {
    watchdog(move || {
        let body = &body;
        thread::scope(|scope| {
            let ranks: Vec<_> = tables
                .into_iter()
                .map(|table| scope.spawn(move || body(table)))
                .collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().expect("no rank panics"))
                .collect()
        })
    })
}

/// A value that only this rank, round and slot has.
fn value(rank: usize, round: u64, slot: usize) -> i64 {
    let mixed =
        (round.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (rank as u64) << 56 ^ (slot as u64) << 48)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (mixed ^ mixed >> 29).cast_signed();
    // Small values take the one-line form, and the form is each rank's own affair.
    if mixed & 8 == 0 { value >> 9 } else { value }
}

fn check_rounds(table: &mut Table, rounds: u64) {
    let (ranks, me) = (table.ranks(), table.rank());
    for _ in 0..rounds {
        let round = table.round().wrapping_add(1);
        let width = usize::try_from(round % 9).expect("small");
        let (kind, fold): (Kind, fn(i64, i64) -> i64) = if round.is_multiple_of(3) {
            (Kind::Max, i64::max)
        } else {
            (Kind::Min, i64::min)
        };
        let mut row: Vec<i64> = (0..width).map(|slot| value(me, round, slot)).collect();
        table
            .all_reduce(kind, "values", &mut row, LONG)
            .expect("all ranks call alike");
        assert_eq!(table.round(), round);
        for (slot, total) in row.iter().enumerate() {
            let expected = (0..ranks)
                .map(|rank| value(rank, round, slot))
                .reduce(fold)
                .expect("a rank");
            assert_eq!(*total, expected, "round {round} slot {slot}");
            let all = table.contributions(slot).expect("a row round");
            assert_eq!(
                all,
                (0..ranks)
                    .map(|rank| value(rank, round, slot))
                    .collect::<Vec<_>>()
            );
        }
        if value(me, round, 99) % 997 == 0 {
            thread::sleep(Duration::from_micros(300));
        }
    }
}

#[test]
fn every_rank_gets_the_reduction_of_exactly_its_round_at_any_number_of_ranks() {
    for (ranks, rounds) in [(1, 200), (2, 40_000), (3, 4000), (8, 1500), (64, 60)] {
        on_threads(
            tables(ranks, 1, Ladder::auto(ranks, 2)),
            move |mut table| check_rounds(&mut table, rounds),
        );
    }
}

#[test]
fn every_way_of_waiting_gives_the_same_values() {
    for ladder in [
        Ladder::spinning(),
        Ladder::yielding(),
        Ladder::parking(),
        Ladder::auto(2, 1),
        Ladder::auto(2, 2),
    ] {
        on_threads(tables(2, 1, ladder), |mut table| {
            check_rounds(&mut table, 400);
        });
    }
}

#[test]
fn the_round_counter_works_across_every_wrap() {
    for shift in [8, 16, 31, 32, 53, 54, 63] {
        let first = (1_u64 << shift) - 20;
        on_threads(tables(3, first, Ladder::auto(3, 2)), |mut table| {
            check_rounds(&mut table, 40);
        });
    }
    on_threads(tables(3, u64::MAX - 20, Ladder::auto(3, 2)), |mut table| {
        check_rounds(&mut table, 40);
    });
}

#[test]
fn extreme_values_survive_in_every_slot() {
    let extremes = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    on_threads(tables(2, 1, Ladder::auto(2, 2)), move |mut table| {
        for mine in extremes {
            for theirs in extremes {
                for width in 1..=8 {
                    let own = if table.rank() == 0 { mine } else { theirs };
                    let mut row = vec![own; width];
                    table
                        .all_reduce(Kind::Min, "extremes", &mut row, LONG)
                        .expect("alike");
                    assert_eq!(row, vec![mine.min(theirs); width]);
                    let mut row = vec![own; width];
                    table
                        .all_reduce(Kind::Max, "extremes", &mut row, LONG)
                        .expect("alike");
                    assert_eq!(row, vec![mine.max(theirs); width]);
                }
            }
        }
    });
}

fn failure(error: RoundError) -> rankpact_shm::Failure {
    match error {
        RoundError::Failed(failure) => failure,
        other => panic!("expected the failure itself, got: {other}"),
    }
}

fn is_poisoned_by(table: &mut Table, origin: &rankpact_shm::Failure) {
    let again = table.all_reduce(Kind::Min, "later", &mut [0], LONG);
    assert_eq!(again, Err(RoundError::Poisoned(origin.clone())));
}

#[test]
fn different_calls_are_a_mismatch_on_every_rank_in_that_round() {
    type Call = fn(&mut Table) -> Result<(), RoundError>;
    let usual: Call = |table| table.all_reduce(Kind::Min, "counts", &mut [1, 2], LONG);
    let others: [(Call, &str); 5] = [
        (
            |table| table.all_reduce(Kind::Max, "counts", &mut [1, 2], LONG),
            "max 2 slots `counts`",
        ),
        (
            |table| table.all_reduce(Kind::Min, "vote", &mut [1, 2], LONG),
            "min 2 slots `vote`",
        ),
        (
            |table| table.all_reduce(Kind::Min, "counts", &mut [1], LONG),
            "min 1 slot `counts`",
        ),
        (
            |table| announce(table, Kind::Min, "counts", 9).map(drop),
            "min 9 slots `counts`",
        ),
        (
            |table| announce(table, Kind::Broadcast, "counts", 1).map(drop),
            "broadcast root 1 `counts`",
        ),
    ];
    for (odd, says) in others {
        let errors = on_threads(tables(3, 1, Ladder::auto(3, 2)), move |mut table| {
            table
                .all_reduce(Kind::Min, "first", &mut [0], LONG)
                .expect("alike");
            let result = if table.rank() == 1 {
                odd(&mut table)
            } else {
                usual(&mut table)
            };
            let origin = failure(result.expect_err("different calls"));
            is_poisoned_by(&mut table, &origin);
            origin
        });
        assert!(
            errors.iter().all(|error| *error == errors[0]),
            "one origin for all: {errors:?}"
        );
        assert_eq!(errors[0].round, 2);
        let Cause::Mismatch { one, other } = &errors[0].cause else {
            panic!("{}", errors[0])
        };
        let texts = [one.to_string(), other.to_string()];
        assert!(texts.contains(&format!("rank 1 {says}")), "{texts:?}");
        assert!(
            texts
                .iter()
                .any(|text| text.ends_with("min 2 slots `counts`")),
            "{texts:?}"
        );
    }
}

fn announce<'a>(
    table: &'a mut Table,
    kind: Kind,
    label: &str,
    description: i64,
) -> Result<Open<'a>, RoundError> {
    let me = u64::try_from(table.rank()).expect("small");
    let travelling = Announcement {
        travelling: 8,
        free: [me, 7, 0, u64::MAX, 1, 0, 0, 0, 0, me * 9],
    };
    let open = table.announce(kind, label, description, travelling, LONG)?;
    Ok(open.expect("data travels"))
}

#[test]
fn descriptions_that_differ_are_a_mismatch_and_free_words_are_not() {
    let errors = on_threads(tables(2, 1, Ladder::auto(2, 2)), |mut table| {
        let me = i64::try_from(table.rank()).expect("small");
        let mut open = announce(&mut table, Kind::Min, "wide", 9).expect("alike");
        assert_eq!([0, 1].map(|rank| open.announced(rank).free[0]), [0, 1]);
        assert_eq!(
            open.announced(1).free[1..],
            [7, 0, u64::MAX, 1, 0, 0, 0, 0, 9]
        );
        assert_eq!(open.announced(0).free[9], 0, "its row has one line");
        open.watch().expect("all is well");
        open.commit(LONG).expect("all have their data");
        failure(announce(&mut table, Kind::Min, "wide", 9 + me).expect_err("9 and 10 slots"))
    });
    assert_eq!(errors[0], errors[1]);
    let Cause::Mismatch { one, other } = &errors[0].cause else {
        panic!("{}", errors[0])
    };
    let mut shapes = [one.shape.clone(), other.shape.clone()];
    shapes.sort_by_key(|shape| {
        if let Shape::Described(n) = shape {
            *n
        } else {
            0
        }
    });
    assert_eq!(shapes, [Shape::Described(9), Shape::Described(10)]);
}

#[test]
fn a_described_call_without_travelling_data_is_over_when_announced() {
    on_threads(tables(3, 1, Ladder::auto(3, 2)), |mut table| {
        for round in 0..50 {
            let inline = Announcement {
                travelling: 0,
                free: [round, 0, 0, 0, 3, 0, 5, 0, 0, round],
            };
            let open = table.announce(Kind::Broadcast, "small", 1, inline, LONG);
            assert!(open.expect("alike").is_none(), "nothing travels");
            assert_eq!(table.announced(1), inline);
        }
    });
}

#[test]
fn a_deadline_names_all_missing_ranks_and_tells_the_late_ones_too() {
    let errors = on_threads(tables(5, 1, Ladder::auto(5, 2)), |mut table| {
        table
            .all_reduce(Kind::Min, "counts", &mut [0], LONG)
            .expect("alike");
        if [1, 3].contains(&table.rank()) {
            thread::sleep(SHORT * 4);
        }
        let origin = failure(
            table
                .all_reduce(Kind::Min, "vote", &mut [0], SHORT)
                .expect_err("two are late"),
        );
        is_poisoned_by(&mut table, &origin);
        origin
    });
    assert!(
        errors.iter().all(|error| *error == errors[0]),
        "one origin for all: {errors:?}"
    );
    let Cause::Timeout { after, missing } = &errors[0].cause else {
        panic!("{}", errors[0])
    };
    assert!(*after >= SHORT);
    let missing: Vec<_> = missing
        .iter()
        .map(|m| (m.rank, m.last_round, m.last_label.as_str()))
        .collect();
    assert_eq!(missing, [(1, 1, "counts"), (3, 1, "counts")]);
    assert_eq!(errors[0].round, 2);
}

#[test]
fn an_orderly_close_is_told_apart_and_takes_nothing_from_a_slow_reader() {
    let results = on_threads(tables(2, 1, Ladder::auto(2, 2)), |mut table| {
        let me = table.rank();
        if me == 1 {
            thread::sleep(SHORT);
        }
        let mut row = [i64::try_from(me).expect("small")];
        table
            .all_reduce(Kind::Max, "last", &mut row, LONG)
            .expect("the leaver took part");
        assert_eq!(row, [1]);
        if me == 0 {
            table.close();
            assert_eq!(
                table.all_reduce(Kind::Max, "after", &mut row, LONG),
                Err(RoundError::Closed)
            );
            return None;
        }
        Some(failure(
            table
                .all_reduce(Kind::Max, "one more", &mut row, LONG)
                .expect_err("rank 0 has left"),
        ))
    });
    let Some(Cause::Closed(missing)) = results[1].as_ref().map(|failure| &failure.cause) else {
        panic!("{results:?}")
    };
    assert_eq!(
        (
            missing.rank,
            missing.last_round,
            missing.last_label.as_str()
        ),
        (0, 1, "last")
    );
}

/// Ranks that are dead as soon as they are in the list.
#[derive(Debug, Clone)]
struct Obituaries(Arc<Mutex<Vec<usize>>>);

impl Liveness for Obituaries {
    fn alive(&self, rank: usize) -> bool {
        !self
            .0
            .lock()
            .expect("no panic with the lock")
            .contains(&rank)
    }
}

#[test]
fn a_dead_rank_is_named_long_before_the_deadline() {
    let dead = Obituaries(Arc::default());
    let all = tables(3, 1, Ladder::auto(3, 2));
    let all = all
        .into_iter()
        .map(|table| table.with_liveness(Box::new(dead.clone())))
        .collect();
    let errors = on_threads(all, move |mut table| {
        table
            .all_reduce(Kind::Min, "counts", &mut [0], LONG)
            .expect("alike");
        if table.rank() == 2 {
            thread::sleep(SHORT);
            dead.0.lock().expect("no panic with the lock").push(2);
            // A dead rank closes nothing.
            std::mem::forget(table);
            return None;
        }
        Some(failure(
            table
                .all_reduce(Kind::Min, "counts", &mut [0], LONG)
                .expect_err("rank 2 is dead"),
        ))
    });
    assert_eq!(errors[0], errors[1]);
    let Some(Cause::Died(missing)) = errors[0].as_ref().map(|failure| &failure.cause) else {
        panic!("{errors:?}")
    };
    assert_eq!((missing.rank, missing.last_round), (2, 1));
}

/// Right after rank 0 was found alive it dies, and rank 1, which is told in another group, leaves.
#[derive(Debug)]
struct TooEarly {
    died: Cell<bool>,
    leaver: RefCell<Option<Table>>,
}

impl Liveness for TooEarly {
    fn alive(&self, rank: usize) -> bool {
        let alive = rank != 0 || !self.died.get();
        if rank == 0 {
            self.died.set(true);
            drop(self.leaver.take());
        }
        alive
    }
}

#[test]
fn a_death_is_told_and_not_the_leaving_on_its_account() {
    let mut all = tables(3, 1, Ladder::parking());
    let (doomed, leaver, waiter) = (all.remove(0), all.remove(0), all.remove(0));
    let mut waiter = waiter.with_liveness(Box::new(TooEarly {
        died: Cell::new(false),
        leaver: RefCell::new(Some(leaver)),
    }));
    let error = watchdog(move || waiter.all_reduce(Kind::Min, "m", &mut [0], LONG));
    std::mem::forget(doomed);
    let failure = failure(error.expect_err("nobody comes"));
    assert!(
        matches!(&failure.cause, Cause::Died(missing) if missing.rank == 0),
        "{failure}"
    );
}

#[test]
fn an_abort_reaches_a_waiting_rank_with_its_reason_and_leaves_settled_rounds_alone() {
    let errors = on_threads(tables(3, 1, Ladder::parking()), |mut table| {
        check_rounds(&mut table, 10);
        if table.rank() == 0 {
            thread::sleep(SHORT);
            let aborter = table.aborter();
            thread::spawn(move || aborter.abort("out of cheese"))
                .join()
                .expect("no panic");
        }
        let origin = failure(
            table
                .all_reduce(Kind::Min, "next", &mut [0], LONG)
                .expect_err("aborted"),
        );
        table.aborter().abort("a second reason changes nothing");
        is_poisoned_by(&mut table, &origin);
        origin
    });
    for error in &errors {
        assert_eq!((error.round, error.by), (11, 0));
        assert_eq!(
            error.cause,
            Cause::Aborted {
                reason: "out of cheese".to_owned(),
                origin: None
            }
        );
    }
}

#[test]
fn a_panicking_thread_aborts_its_group() {
    let mut all = tables(2, 1, Ladder::auto(2, 2));
    let (mut one, two) = (all.remove(0), all.remove(0));
    let panicked = thread::spawn(move || {
        let _held = two;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.join().is_err());
    let error = watchdog(move || {
        failure(
            one.all_reduce(Kind::Min, "x", &mut [0], LONG)
                .expect_err("rank 1 panicked"),
        )
    });
    assert!(
        matches!(&error.cause, Cause::Aborted { reason, .. } if reason.contains("panicked")),
        "{error}"
    );
}

#[test]
fn data_that_cannot_arrive_fails_its_round_on_every_rank() {
    let errors = on_threads(tables(2, 1, Ladder::auto(2, 2)), |mut table| {
        let me = table.rank();
        let open = announce(&mut table, Kind::Min, "wide", 100).expect("alike");
        let error = if me == 0 {
            open.fail(Trouble::Other("connection to rank 1 broke"))
        } else {
            open.commit(LONG).expect_err("rank 0 gave up")
        };
        failure(error)
    });
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].to_string().contains("connection to rank 1 broke"));
}

#[test]
fn an_announced_round_that_is_dropped_fails_on_every_rank() {
    let errors = on_threads(tables(2, 1, Ladder::auto(2, 2)), |mut table| {
        let me = table.rank();
        let open = announce(&mut table, Kind::Min, "wide", 100).expect("alike");
        if me == 0 {
            drop(open);
            failure_of_next(&mut table)
        } else {
            failure(open.commit(LONG).expect_err("rank 0 has dropped it"))
        }
    });
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].to_string().contains("dropped"), "{}", errors[0]);
}

/// What later calls are poisoned by.
fn failure_of_next(table: &mut Table) -> rankpact_shm::Failure {
    match table.all_reduce(Kind::Min, "later", &mut [0], LONG) {
        Err(RoundError::Poisoned(failure)) => failure,
        other => panic!("not poisoned: {other:?}"),
    }
}

/// The record of a failure stays what its first readers saw, whatever the rank that wrote it does afterwards.
#[test]
fn an_abort_after_a_failure_changes_nothing_for_those_who_come_late() {
    let mut all = tables(3, 1, Ladder::auto(3, 2));
    let early = failure(
        all[0]
            .all_reduce(Kind::Min, "m", &mut [1], SHORT)
            .expect_err("nobody else is there"),
    );
    all[0]
        .aborter()
        .abort("the panic of an unwrap on that error");
    let late = failure(
        all[2]
            .all_reduce(Kind::Min, "m", &mut [1], LONG)
            .expect_err("too late"),
    );
    assert_eq!(early, late);
}

/// An abort from another thread while rounds rush by: what it has read of its rank may be old.
#[test]
fn an_abort_at_a_random_moment_ends_the_same_round_everywhere() {
    for attempt in 0_u32..300 {
        let all = tables(2, 1, Ladder::yielding());
        let aborter = all[0].aborter();
        let wide = attempt % 2 == 0;
        let abort = thread::spawn(move || {
            (0..attempt * 100).for_each(|_| std::hint::spin_loop());
            aborter.abort("now");
        });
        let ends = on_threads(all, move |mut table| {
            for round in 1_u64.. {
                let result = if wide {
                    announce(&mut table, Kind::Broadcast, "m", 0).and_then(|open| open.commit(LONG))
                } else {
                    table.all_reduce(Kind::Min, "m", &mut [1], LONG)
                };
                if let Err(error) = result {
                    return (round, failure(error));
                }
            }
            unreachable!("the abort comes before the counter ends")
        });
        abort.join().expect("no panic");
        assert_eq!(ends[0], ends[1], "attempt {attempt}");
        assert_eq!(
            ends[0].0, ends[0].1.round,
            "the first round that failed is the one named"
        );
    }
}

/// Ranks give up at random moments while others complete: never one value on one rank and an error on another.
#[test]
fn a_round_completes_on_every_rank_or_fails_on_every_rank() {
    for attempt in 0_u64..150 {
        let settled = on_threads(tables(3, 1, Ladder::auto(3, 2)), move |mut table| {
            for round in 1..=100_u64 {
                let noise = value(
                    table.rank(),
                    round.wrapping_mul(31).wrapping_add(attempt),
                    5,
                )
                .unsigned_abs();
                let timeout = if noise.is_multiple_of(40) {
                    Duration::from_micros(noise % 60)
                } else {
                    LONG
                };
                if noise.is_multiple_of(7) {
                    thread::sleep(Duration::from_micros(noise % 50));
                }
                if table
                    .all_reduce(Kind::Min, "noise", &mut [0], timeout)
                    .is_err()
                {
                    return round - 1;
                }
            }
            100
        });
        assert!(
            settled.iter().all(|rounds| *rounds == settled[0]),
            "attempt {attempt}: {settled:?}"
        );
    }
}

#[test]
fn labels_and_widths_out_of_range_are_refused_before_anything_is_sent() {
    let results = on_threads(tables(2, 1, Ladder::auto(2, 2)), |mut table| {
        assert!(matches!(
            table.all_reduce(Kind::Min, "", &mut [0], LONG),
            Err(RoundError::Label(_))
        ));
        assert!(matches!(
            table.all_reduce(Kind::Min, "x", &mut [0; 9], LONG),
            Err(RoundError::TooWide(9))
        ));
        table.all_reduce(Kind::Min, "x", &mut [3], LONG)
    });
    assert_eq!(results, [Ok(()), Ok(())]);
}

/// Panics when it is asked for the first time.
#[derive(Debug, Default)]
struct Fragile(Cell<bool>);

impl Liveness for Fragile {
    fn alive(&self, _: usize) -> bool {
        if !self.0.replace(true) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        true
    }
}

/// A round that is published and was never settled has an open outcome: nobody goes on behind it.
#[test]
fn a_call_left_before_its_end_fails_the_group_at_the_next() {
    let leave: [fn(&mut Table); 2] = [
        |table| {
            let _ = table.all_reduce(Kind::Min, "m", &mut [1], LONG);
        },
        |table| std::mem::forget(announce(table, Kind::Broadcast, "m", 0)),
    ];
    for (way, leave) in leave.into_iter().enumerate() {
        let mut all = tables(2, 1, Ladder::parking());
        let (one, mut two) = (all.remove(0), all.remove(0));
        let mut one = one.with_liveness(Box::new(Fragile::default()));
        let both = watchdog(move || {
            let peer = thread::spawn(move || {
                let first = if way == 0 {
                    thread::sleep(SHORT);
                    two.all_reduce(Kind::Min, "m", &mut [1], LONG)
                } else {
                    std::mem::forget(announce(&mut two, Kind::Broadcast, "m", 0));
                    Ok(())
                };
                let result = first.and_then(|()| two.all_reduce(Kind::Min, "m", &mut [1], LONG));
                failure(result.expect_err("rank 0 has left a round"))
            });
            let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| leave(&mut one)));
            assert_eq!(left.is_err(), way == 0, "way {way}");
            let mine = failure(
                one.all_reduce(Kind::Min, "m", &mut [1], LONG)
                    .expect_err("it has left a round"),
            );
            is_poisoned_by(&mut one, &mine);
            [mine, peer.join().expect("no panic")]
        });
        assert_eq!(both[0], both[1]);
    }
}

#[test]
fn a_finish_that_panicked_can_be_called_again() {
    let mut all = tables(2, 1, Ladder::parking());
    let (one, mut two) = (all.remove(0), all.remove(0));
    let mut one = one.with_liveness(Box::new(Fragile::default()));
    watchdog(move || {
        let start = |own| {
            one.start(Kind::Min, "m", &[own], LONG)
                .expect("all is well")
        };
        let handles = [1, 2].map(start);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            one.finish(&handles[1], LONG)
        }));
        assert!(panicked.is_err());
        let peer = thread::spawn(move || {
            two.all_reduce(Kind::Max, "m", &mut [3], LONG)
                .expect_err("rank 0 calls min");
        });
        // The one behind it does not complete without it.
        let error = one.finish(&handles[1], LONG).expect_err("rank 1 calls max");
        assert_eq!(failure(error).round, 1);
        peer.join().expect("no panic");
    });
}

#[test]
fn with_rounds_in_flight_a_rank_looks_after_the_oldest() {
    let [mut zero, mut one] = tables(2, 1, Ladder::parking())
        .try_into()
        .expect("two ranks");
    let theirs = one.start(Kind::Min, "x", &[1], LONG).expect("a round");
    one.close();
    let mine = [1, 2].map(|value| zero.start(Kind::Min, "x", &[value], LONG).expect("a round"));
    zero.watch().expect("the row of rank 1 is there");
    assert_eq!(zero.finish(&mine[0], LONG).as_deref(), Ok(&[1][..]));
    let error = failure(zero.watch().expect_err("rank 1 has left"));
    assert_eq!(error.round, 2);
    let last = zero.finish(&mine[1], LONG);
    assert_eq!(failure(last.expect_err("rank 1 has left")), error);
    drop(theirs);
}

#[test]
fn a_rank_that_has_come_with_another_call_is_not_missing() {
    let [mut zero, mut one] = tables(2, 1, Ladder::parking())
        .try_into()
        .expect("two ranks");
    let theirs = one.start(Kind::Max, "x", &[1], LONG).expect("a round");
    // No time is left for more than one look.
    let error = zero.all_reduce(Kind::Min, "x", &mut [1], Duration::ZERO);
    let error = failure(error.expect_err("rank 1 calls max"));
    assert!(matches!(&error.cause, Cause::Mismatch { .. }), "{error}");
    drop(theirs);
}

#[test]
fn a_rank_that_is_busy_elsewhere_can_look_after_its_next_round() {
    let [mut zero, mut one, mut two] = tables(3, 1, Ladder::parking())
        .try_into()
        .expect("three ranks");
    zero.watch().expect("nobody is gone");
    let started = one.start(Kind::Min, "x", &[1], LONG);
    one.close();
    zero.watch().expect("the row of rank 1 is there");
    two.close();
    let error = failure(zero.watch().expect_err("rank 2 has left"));
    assert_eq!(error.round, 1);
    assert!(
        matches!(&error.cause, Cause::Closed(missing) if missing.rank == 2),
        "{error}"
    );
    let later = zero.all_reduce(Kind::Min, "x", &mut [0], LONG);
    assert_eq!(later, Err(RoundError::Poisoned(error.clone())));
    assert_eq!(zero.watch(), Err(RoundError::Poisoned(error)));
    drop(started);
}

#[test]
fn a_label_that_has_its_number_is_never_refused() {
    let mut table = tables(1, 1, Ladder::parking()).remove(0);
    table.intern("early").expect("there is room");
    while table.intern(&format!("filler {}", table.round())).is_ok() {
        table
            .all_reduce(
                Kind::Min,
                &format!("filler {}", table.round()),
                &mut [0],
                LONG,
            )
            .expect("its label has a number");
    }
    assert!(matches!(table.intern("late"), Err(RoundError::Label(_))));
    table
        .all_reduce(Kind::Min, "early", &mut [0], LONG)
        .expect("as above");
}
