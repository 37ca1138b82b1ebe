//! The exchange in two hops: the same results as where every rank reads every row.

use crate::{LONG, SHORT, check_rounds, failure, on_threads};
use rankpact_shm::{Cause, Geometry, Kind, Ladder, Storage, Table};
use std::sync::Arc;
use std::time::Duration;

/// Seats at a table of groups of `radix`. Their spin is long enough for the good case among threads that share CPUs.
fn tables(ranks: usize, radix: usize, first_round: u64) -> Vec<Table> {
    let geometry = Geometry::new(ranks, 2).expect("a valid geometry");
    let storage = Arc::new(Storage::heap(geometry, first_round).with_radix(radix));
    (0..ranks)
        .map(|me| {
            // Some ranks never hope for the good case: the others must not rely on them.
            let ladder = if me % 5 == 4 {
                Ladder::yielding()
            } else {
                Ladder {
                    spin: Duration::from_micros(20),
                    ..Ladder::yielding()
                }
            };
            Table::new(Arc::clone(&storage), me, ladder)
        })
        .collect()
}

#[test]
fn every_rank_gets_the_reduction_of_exactly_its_round_in_groups_of_any_size() {
    for (ranks, radix) in [
        (3, 2),
        (4, 2),
        (5, 2),
        (5, 3),
        (7, 3),
        (9, 4),
        (16, 4),
        (33, 8),
        (64, 8),
    ] {
        let rounds = if ranks > 16 { 60 } else { 400 };
        on_threads(tables(ranks, radix, u64::MAX - 20), move |mut table| {
            check_rounds(&mut table, rounds);
        });
    }
}

#[test]
fn different_calls_in_different_groups_are_a_mismatch_on_every_rank() {
    for odd in [0, 2, 4] {
        let errors = on_threads(tables(5, 2, 1), move |mut table| {
            check_rounds(&mut table, 5);
            let kind = if table.rank() == odd {
                Kind::Max
            } else {
                Kind::Min
            };
            failure(
                table
                    .all_reduce(kind, "odd", &mut [1, 2], LONG)
                    .expect_err("one rank calls another operation"),
            )
        });
        assert!(errors.iter().all(|error| *error == errors[0]));
        let Cause::Mismatch { one, other } = &errors[0].cause else {
            panic!("{}", errors[0]);
        };
        assert!([one.rank, other.rank].contains(&odd), "{}", errors[0]);
    }
}

#[test]
fn a_rank_missing_in_another_group_is_named_on_every_rank() {
    let mut all = tables(5, 2, 1);
    let absent = all.remove(3);
    let errors = on_threads(all, |mut table| {
        failure(
            table
                .all_reduce(Kind::Min, "m", &mut [1], SHORT)
                .expect_err("rank 3 does not come"),
        )
    });
    assert!(errors.iter().all(|error| *error == errors[0]));
    let Cause::Timeout { missing, .. } = &errors[0].cause else {
        panic!("{}", errors[0]);
    };
    assert_eq!(missing.iter().map(|m| m.rank).collect::<Vec<_>>(), [3]);
    drop(absent);
}
