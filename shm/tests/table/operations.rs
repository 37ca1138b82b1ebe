//! Every operation on slots: what it comes to, where it cannot, and how ranks that differ are told.

use crate::{LONG, announce, failure, on_threads, tables, value};
use rankpact_shm::{
    Cause, Geometry, Kind, LABEL_BYTES, LabelError, Ladder, RoundError, Shape, Storage, Table,
};
use std::sync::Arc;

const KINDS: [Kind; 5] = [Kind::Min, Kind::Max, Kind::Sum, Kind::Or, Kind::And];

fn folded(kind: Kind, values: impl Iterator<Item = i64>) -> Option<i64> {
    let values: Vec<i64> = values.collect();
    match kind {
        Kind::Min => values.into_iter().min(),
        Kind::Max => values.into_iter().max(),
        Kind::Sum => i64::try_from(values.into_iter().map(i128::from).sum::<i128>()).ok(),
        Kind::Or => Some(values.into_iter().fold(0, |all, value| all | value)),
        Kind::And => Some(values.into_iter().fold(-1, |all, value| all & value)),
        other => panic!("{other} folds nothing"),
    }
}

fn reduced(ranks: usize, round: u64, kinds: &[Kind]) -> Result<Vec<i64>, usize> {
    kinds
        .iter()
        .enumerate()
        .map(|(slot, kind)| {
            folded(*kind, (0..ranks).map(|rank| value(rank, round, slot))).ok_or(slot)
        })
        .collect()
}

fn row(rank: usize, round: u64, width: usize) -> Vec<i64> {
    (0..width).map(|slot| value(rank, round, slot)).collect()
}

fn expect(table: &Table, what: Result<(), RoundError>, own: &[i64], got: &[i64], kinds: &[Kind]) {
    let round = table.round();
    match reduced(table.ranks(), round, kinds) {
        Ok(wanted) => {
            what.expect("all is well");
            assert_eq!(got, wanted, "round {round}, {kinds:?}");
        }
        Err(slot) => {
            assert_eq!(what, Err(RoundError::Overflow { slot }), "round {round}");
            assert_eq!(got, own, "the slots are unchanged");
        }
    }
}

#[test]
fn every_operation_is_right_at_every_width_and_an_overflow_fails_nothing() {
    for (ranks, radix) in [(2, 0), (3, 0), (5, 2)] {
        let geometry = Geometry::new(ranks, 4).expect("a valid geometry");
        let storage = Arc::new(Storage::heap(geometry, 1).with_radix(radix));
        let all = (0..ranks)
            .map(|me| Table::new(Arc::clone(&storage), me, Ladder::auto(ranks, 2)))
            .collect();
        on_threads(all, |mut table| {
            for turn in 0..400_usize {
                let width = turn % 9;
                let own = row(table.rank(), table.round() + 1, width);
                let mut slots = own.clone();
                let kind = KINDS[turn / 9 % 5];
                let done = table.all_reduce(kind, "all", &mut slots, LONG);
                expect(&table, done, &own, &slots, &vec![kind; width]);
                let own = row(table.rank(), table.round() + 1, width);
                let mut slots = own.clone();
                let kinds: Vec<_> = (0..width)
                    .map(|slot| KINDS[(turn / 3 + slot) % 5])
                    .collect();
                let done = table.all_reduce(&kinds[..], "each", &mut slots, LONG);
                match done {
                    // Each list of operations takes a label of its own.
                    Err(RoundError::Label(LabelError::Full)) => {}
                    done => expect(&table, done, &own, &slots, &kinds),
                }
            }
        });
    }
}

#[test]
fn sums_are_judged_by_their_total_alone() {
    on_threads(tables(3, 1, Ladder::auto(3, 2)), |mut table| {
        let me = table.rank();
        let mut slots = [
            [i64::MAX, 1, -1][me],
            [i64::MIN, i64::MAX, 1][me],
            [i64::MAX, 1, 0][me],
        ];
        let before = slots;
        let done = table.all_reduce(Kind::Sum, "sum", &mut slots, LONG);
        assert_eq!(done, Err(RoundError::Overflow { slot: 2 }));
        assert_eq!(slots, before);
        let mut slots = [slots[0], slots[1]];
        table
            .all_reduce(Kind::Sum, "sum", &mut slots, LONG)
            .expect("both totals fit, though not every step to them");
        assert_eq!(slots, [i64::MAX, 0]);
    });
}

#[test]
fn operations_in_flight_keep_their_totals_and_their_overflows() {
    on_threads(tables(2, 1, Ladder::auto(2, 2)), |mut table| {
        let sum = table
            .start(Kind::Sum, "sum", &[i64::MAX], LONG)
            .expect("alike");
        let each = table
            .start(&[Kind::Or, Kind::Sum, Kind::Min], "each", &[1, 2, 3], LONG)
            .expect("alike");
        let mut slots = [4];
        table
            .all_reduce(Kind::Sum, "sum", &mut slots, LONG)
            .expect("an overflow in flight is no failure");
        assert_eq!(slots, [8]);
        assert_eq!(*table.finish(&each, LONG).expect("alike"), [1, 4, 3]);
        for _ in 0..2 {
            assert_eq!(
                table.finish(&sum, LONG),
                Err(RoundError::Overflow { slot: 0 })
            );
        }
    });
}

#[test]
fn every_rank_gets_the_rows_of_all_in_their_order() {
    on_threads(tables(3, 1, Ladder::auto(3, 2)), |mut table| {
        let mut rows = vec![77];
        for turn in 0..60_usize {
            let (round, width) = (table.round() + 1, turn % 9);
            let own = row(table.rank(), round, width);
            table
                .all_gather("rows", &own, &mut rows, LONG)
                .expect("alike");
            let wanted: Vec<i64> = (0..3).flat_map(|rank| row(rank, round, width)).collect();
            assert_eq!(rows, wanted);
        }
        assert_eq!(
            table.all_gather("rows", &[0; 9], &mut rows, LONG),
            Err(RoundError::TooWide(9))
        );
        assert!(rows.is_empty());
        announce(&mut table, Kind::Gather, "wide", 9)
            .expect("alike")
            .commit(LONG)
            .expect("alike");
    });
}

#[test]
fn operations_that_differ_in_one_slot_are_a_mismatch_that_shows_both_lists() {
    let errors = on_threads(tables(2, 1, Ladder::auto(2, 2)), |mut table| {
        let me = table.rank();
        let kinds = [Kind::Min, [Kind::Or, Kind::Sum][me], Kind::Max];
        failure(
            table
                .all_reduce(&kinds, "counts", &mut [1, 2, 3], LONG)
                .expect_err("the second slot differs"),
        )
    });
    assert_eq!(errors[0], errors[1]);
    let Cause::Mismatch { one, other } = &errors[0].cause else {
        panic!("{}", errors[0]);
    };
    let mut sides = [one, other].map(|side| (side.shape.clone(), side.label.clone()));
    sides.sort_by_key(|side| format!("{side:?}"));
    let wanted = [Kind::Or, Kind::Sum].map(|second| {
        let kinds = vec![Kind::Min, second, Kind::Max];
        (Shape::Each(kinds), "counts".to_owned())
    });
    assert_eq!(sides, wanted);
    let text = errors[0].to_string();
    assert!(
        text.contains("min,or,max") && text.contains("min,sum,max"),
        "{text}"
    );
}

#[test]
fn operations_and_labels_that_do_not_fit_are_refused_before_anything_is_sent() {
    let mut table = tables(1, 1, Ladder::parking()).remove(0);
    let mut refused = |kinds: &[Kind], label: &str| {
        table
            .all_reduce(kinds, label, &mut [1, 2], LONG)
            .expect_err("refused")
    };
    assert_eq!(
        refused(&[Kind::Min], "m"),
        RoundError::Operations {
            operations: 1,
            slots: 2
        }
    );
    let two = [Kind::Min, Kind::Max];
    assert_eq!(refused(&two, ""), LabelError::Length.into());
    let longest = "l".repeat(LABEL_BYTES - 3);
    assert_eq!(
        refused(&two, &format!("{longest}l")),
        LabelError::Length.into()
    );
    assert_eq!(table.round(), 0);
    table
        .all_reduce(&two, &longest, &mut [1, 2], LONG)
        .expect("it fits");
    assert_eq!(table.round(), 1);
}
