//! The exchange in two hops: between ranks that hurry, ranks that sleep, and ranks that give up.

use crate::round::one_outcome_of;
use crate::{PATIENT, Patience, explore, seats, storage};
use rankpact_shm::{Ladder, Table};
use std::sync::Arc;
use std::time::Duration;

/// Hops if all are there at the first look, else sleeps.
fn hopeful() -> Ladder {
    Ladder {
        spin: Duration::from_nanos(1),
        ..Ladder::parking()
    }
}

fn tables(ranks: usize, ladder: Ladder) -> Vec<Table> {
    let storage = Arc::new(storage(ranks).with_radix(2));
    seats(&storage, ranks, ladder)
}

fn one_outcome(ladder: Ladder, patience: &'static [&'static [Patience]]) {
    one_outcome_of(tables(patience.len(), ladder), patience);
}

/// 3 threads in groups of 2 and 1, 2 rounds: the second hop carries the first, and whoever hops wakes whoever sleeps.
/// Control: R3, R4.
#[test]
fn two_hops_carry_every_contribution_and_every_wake_up() {
    explore(1, || {
        one_outcome(hopeful(), &[&[PATIENT; 2], &[PATIENT; 2], &[PATIENT; 2]]);
    });
}

/// 3 threads in groups of 2 and 1, 2 rounds, one of them impatient: hop or not, one outcome. Control: R3.
#[test]
fn an_impatient_rank_among_hops_leaves_one_outcome() {
    explore(1, || {
        one_outcome(hopeful(), &[&[2, 1], &[PATIENT; 2], &[PATIENT; 2]]);
    });
}

/// 4 threads in two groups of 2, 1 round, all patient. Control: R3.
#[test]
fn two_groups_of_two_agree() {
    explore(0, || {
        let awake = Ladder {
            spin: Duration::from_nanos(1),
            ..Ladder::yielding()
        };
        one_outcome(
            awake,
            &[&[PATIENT; 1], &[PATIENT; 1], &[PATIENT; 1], &[PATIENT; 1]],
        );
    });
}

/// 3 threads in groups of 2 and 1, 1 round: one hops and then sleeps, one sleeps at once, one hops and then yields.
/// Control: P2.
#[test]
fn ranks_that_wait_each_in_its_own_way_wake_each_other() {
    explore(1, || {
        let storage = Arc::new(storage(3).with_radix(2));
        let yielding = Ladder {
            spin: Duration::from_nanos(1),
            ..Ladder::yielding()
        };
        let ladders = [hopeful(), Ladder::parking(), yielding];
        let seat = |(me, ladder)| Table::new(Arc::clone(&storage), me, ladder);
        let tables = ladders.into_iter().enumerate().map(seat).collect();
        one_outcome_of(tables, &[&[PATIENT; 1], &[PATIENT; 1], &[PATIENT; 1]]);
    });
}
