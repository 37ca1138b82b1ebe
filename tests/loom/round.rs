//! Rounds: one outcome, no lost wake-up, whoever is early, late or impatient.

use crate::{PATIENT, Patience, explore, polls, tables, travel};
use loom::thread;
use rankpact_shm::{Aborter, Failure, Geometry, Kind, Ladder, RoundError, Storage, Table};
use std::sync::Arc;

fn contribution(rank: usize, round: usize) -> i64 {
    10 * i64::try_from(round).expect("small") - i64::try_from(rank).expect("small")
}

/// Reduces once for each entry of `patience`; returns how many rounds completed, having checked the value of each.
fn rank(mut table: Table, patience: &[Patience]) -> (usize, Option<Failure>) {
    let ranks = table.ranks();
    for (round, patience) in patience.iter().enumerate() {
        let mut row = [contribution(table.rank(), round)];
        if let Err(error) = table.all_reduce(Kind::Min, "m", &mut row, polls(*patience)) {
            let failure = failure(error);
            // What a rank does after the failure changes nothing about it, for it and for those who come late.
            table.aborter().abort("later");
            let again = table.all_reduce(Kind::Min, "m", &mut row, polls(PATIENT));
            assert_eq!(again, Err(RoundError::Poisoned(failure.clone())));
            return (round, Some(failure));
        }
        assert_eq!(
            row,
            [contribution(ranks - 1, round)],
            "a torn or foreign row"
        );
    }
    (patience.len(), None)
}

fn failure(error: RoundError) -> Failure {
    match error {
        RoundError::Failed(failure) => failure,
        other => panic!("not the failure itself: {other}"),
    }
}

/// All ranks run `rank` side by side: each must complete the same rounds.
fn one_outcome(ladder: Ladder, patience: &'static [&'static [Patience]]) {
    one_outcome_of(tables(patience.len(), ladder), patience);
}

pub(crate) fn one_outcome_of(tables: Vec<Table>, patience: &'static [&'static [Patience]]) {
    let mut tables = tables.into_iter().zip(patience);
    let (first, own) = tables.next().expect("a rank");
    let others: Vec<_> = tables
        .map(|(table, patience)| thread::spawn(move || rank(table, patience)))
        .collect();
    let completed = rank(first, own);
    for other in others {
        assert_eq!(
            other.join().expect("no rank panics"),
            completed,
            "two outcomes of one round"
        );
    }
}

/// 2 threads, 3 rounds, rank 0 impatient in the last: early and late readers, reuse of both buffers. Control: R1, R2.
#[test]
fn two_ranks_agree_on_the_outcome_of_three_rounds() {
    explore(3, || {
        one_outcome(Ladder::spinning(), &[&[2, 2, 1], &[2, 1, 1]]);
    });
}

/// 2 threads, 2 rounds, both impatient from the start: whoever gives up first, both see it. Control: F3, O1 to O4.
#[test]
fn two_impatient_ranks_agree() {
    explore(4, || one_outcome(Ladder::spinning(), &[&[2, 1], &[1, 1]]));
    explore(4, || one_outcome(Ladder::spinning(), &[&[1, 1], &[2, 2]]));
}

/// 3 threads, 2 rounds: a third rank's row may be seen by one and missed by another. Control: F2.
#[test]
fn three_ranks_agree_on_the_outcome_of_two_rounds() {
    explore(1, || {
        one_outcome(Ladder::spinning(), &[&[2, 1], &[1, 1], &[2, 1]]);
    });
}

/// 2 threads, 3 rounds, both sleep as soon as a poll fails: a lost wake-up is a deadlock. Control: P2, O9.
#[test]
fn no_wake_up_is_lost_between_two_ranks() {
    explore(3, || {
        one_outcome(Ladder::parking(), &[&[PATIENT; 3], &[PATIENT; 3]])
    });
}

/// 3 threads, 1 round: whoever has seen all wakes, and there always is one. Control: P2.
#[test]
fn no_wake_up_is_lost_among_three_ranks() {
    explore(2, || {
        one_outcome(
            Ladder::parking(),
            &[&[PATIENT; 1], &[PATIENT; 1], &[PATIENT; 1]],
        )
    });
}

/// 2 threads, 2 rounds: the rank that gives up wakes the one that sleeps without a deadline. Control: P2.
#[test]
fn a_rank_that_gives_up_wakes_the_sleepers() {
    explore(3, || {
        let mut tables = tables(2, Ladder::parking());
        let (mut sleeper, mut other) = (tables.remove(0), tables.remove(0));
        let thread = thread::spawn(move || {
            // Another call: a mismatch, seen by whoever looks second.
            other
                .all_reduce(Kind::Max, "m", &mut [0], polls(PATIENT))
                .expect_err("different calls")
        });
        let mine = sleeper
            .all_reduce(Kind::Min, "m", &mut [0], polls(PATIENT))
            .expect_err("different calls");
        assert_eq!(
            thread.join().expect("no rank panics"),
            mine,
            "one origin for both"
        );
    });
}

fn wide(mut table: Table, patience: [Patience; 2]) -> (usize, Option<Failure>) {
    for (round, patience) in patience.into_iter().enumerate() {
        if let Err(error) = travel(&mut table, polls(patience)) {
            return (round, Some(failure(error)));
        }
    }
    (patience.len(), None)
}

/// 2 threads, 2 rounds whose data travels elsewhere: announce, then commit; the impatient rank may give up in between.
/// Control: O1.
#[test]
fn a_round_of_travelling_data_commits_on_both_ranks_or_on_none() {
    explore(3, || {
        let mut tables = tables(2, Ladder::parking());
        let (one, other) = (tables.remove(0), tables.remove(0));
        let thread = thread::spawn(move || wide(other, [1, 2]));
        let completed = wide(one, [2, 1]);
        assert_eq!(
            thread.join().expect("no rank panics"),
            completed,
            "a round committed on one rank only"
        );
    });
}

/// 2 threads, sleeping: a commit wakes the rank that waits for it. Control: F2, O9.
#[test]
fn a_commit_wakes_the_sleepers() {
    explore(3, || {
        let mut tables = tables(2, Ladder::parking());
        let (one, other) = (tables.remove(0), tables.remove(0));
        let thread = thread::spawn(move || wide(other, [PATIENT; 2]));
        assert_eq!(wide(one, [PATIENT; 2]), (2, None));
        assert_eq!(thread.join().expect("no rank panics"), (2, None));
    });
}

/// Two ranks run `body` while another thread of rank 0 aborts.
pub(crate) fn abort_beside<T: PartialEq + std::fmt::Debug + 'static>(
    mut tables: Vec<Table>,
    body: fn(Table) -> T,
) {
    let (one, other) = (tables.remove(0), tables.remove(0));
    let aborter: Aborter = one.aborter();
    let abort = thread::spawn(move || aborter.abort("x"));
    let thread = thread::spawn(move || body(other));
    let mine = body(one);
    assert_eq!(
        thread.join().expect("no rank panics"),
        mine,
        "two outcomes of one round"
    );
    abort.join().expect("no panic");
}

/// 3 threads, 3 rounds in 2 buffers: what the aborting thread has read of its rank may be old by a tenant.
/// Control: O6.
#[test]
fn an_abort_ends_the_same_round_on_both_ranks() {
    explore(1, || {
        abort_beside(tables(2, Ladder::spinning()), |table| {
            rank(table, &[PATIENT; 3])
        });
    });
}

/// 3 threads, 2 rounds of travelling data: `done` may be of a later round than the one the abort is about. Control: O6.
#[test]
fn an_abort_ends_the_same_round_of_travelling_data_on_both_ranks() {
    explore(1, || {
        abort_beside(tables(2, Ladder::spinning()), |table| {
            wide(table, [PATIENT; 2])
        });
    });
}

/// 2 threads: an abort against a rank that sleeps without a deadline. Control: C1, C2, W1.
#[test]
fn an_abort_wakes_the_sleepers() {
    explore(3, || {
        let mut tables = tables(2, Ladder::parking());
        let (one, mut other) = (tables.remove(0), tables.remove(0));
        let thread = thread::spawn(move || {
            other
                .all_reduce(Kind::Min, "m", &mut [0], polls(PATIENT))
                .expect_err("aborted")
                .to_string()
        });
        one.aborter().abort("x");
        assert!(
            thread
                .join()
                .expect("no rank panics")
                .contains("aborted: x"),
            "the reason arrives whole"
        );
    });
}

/// 2 threads: two labels that begin alike, interned at once in opposite order: a label has one number on both ranks.
/// Control: O5.
#[test]
fn a_label_gets_the_same_number_on_every_rank() {
    explore(4, || {
        let storage = Arc::new(Storage::heap(
            Geometry::new(2, 1).expect("a valid geometry"),
            1,
        ));
        let run = |storage: Arc<Storage>, labels: [&'static str; 2]| {
            labels.map(|label| storage.intern(label))
        };
        let other = Arc::clone(&storage);
        let thread = thread::spawn(move || run(other, ["sevenplusB", "sevenplusA"]));
        let [a, b] = run(storage, ["sevenplusA", "sevenplusB"]);
        assert!(a.is_ok() && b.is_ok() && a != b);
        assert_eq!(thread.join().expect("no panic"), [b, a]);
    });
}
