//! Ranks that make different calls: every rank is told the difference, in that round, and nobody gets a value.

use crate::{assert_poisoned, job, missing};
use rankpact_collective::{Described, Error, ErrorKind, PathChoice};
use rankpact_tests::Ranks;

/// The rank that does something else: in the middle, so that there is one on either side.
const ODD: usize = 1;

/// Three ranks make three equal calls, then rank 1 makes another one than the others.
pub(crate) fn different_calls(
    common: &str,
    odd: &str,
    says: [(&str, &str, &str); 2],
    path: PathChoice,
) -> Vec<Error> {
    let mut ranks = job(3).path(path).start(|rank| {
        [
            "group g",
            "min g slots=8 count=3",
            if rank == ODD { odd } else { common },
            "min g label=later",
            "max g slots=30 label=later",
            "hold end",
        ]
    });
    let mut errors = Vec::new();
    for rank in ranks.all() {
        let failed = ranks.report(rank, if rank == ODD { odd } else { common });
        let error = failed.error().clone();
        assert_eq!((error.round, error.rank), (4, rank), "{path}: {error}");
        for later in ["min g label=later", "max g slots=30 label=later"] {
            assert_poisoned(ranks.report(rank, later).error(), &error);
        }
        errors.push(error);
    }
    for error in &errors {
        both_calls_side_by_side(error, says, path);
    }
    finish(ranks);
    errors
}

#[track_caller]
fn both_calls_side_by_side(error: &Error, says: [(&str, &str, &str); 2], path: PathChoice) {
    let ErrorKind::Mismatch { one, other } = &*error.kind else {
        panic!("{path}: no mismatch: {error}");
    };
    let of = |odd| {
        [one, other]
            .into_iter()
            .find(|call| (call.rank == ODD) == odd)
    };
    let (Some(common), Some(odd)) = (of(false), of(true)) else {
        panic!("{path}: not the two sides: {error}");
    };
    for (call, (operation, shape, label)) in [(common, says[0]), (odd, says[1])] {
        let Described {
            operation: did,
            shape: with,
            label: at,
            ..
        } = &**call;
        assert!(
            did == operation && with.contains(shape) && at == label,
            "{path}: {error} should say {operation} {shape} {label}"
        );
    }
}

fn finish(mut ranks: Ranks) {
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

macro_rules! different {
    ($($name:ident: $common:literal, $odd:literal => $says:expr;)*) => {
        mod different_calls_over_the_table {
            $(
                #[test]
                fn $name() {
                    let errors = super::different_calls($common, $odd, $says, super::PathChoice::Table);
                    assert!(errors.iter().all(|error| error.kind == errors[0].kind), "{errors:?}");
                }
            )*
        }
        mod different_calls_over_tcp {
            $(
                #[test]
                fn $name() {
                    super::different_calls($common, $odd, $says, super::PathChoice::Tcp);
                }
            )*
        }
    };
}

different! {
    min_against_max: "min g", "max g" => [("min", "8", "test"), ("max", "8", "test")];
    min_against_max_in_wide_vectors: "max g slots=100", "min g slots=100" => [("max", "100", "test"), ("min", "100", "test")];
    a_reduction_against_a_barrier: "min g", "barrier g" => [("min", "8", "test"), ("barrier", "", "test")];
    a_wide_reduction_against_a_broadcast: "min g slots=64", "broadcast g root=0" => [("min", "64", "test"), ("broadcast", "0", "test")];
    a_broadcast_against_a_row: "broadcast g root=2 bytes=4", "max g slots=2" => [("broadcast", "2", "test"), ("max", "2", "test")];
    three_slots_against_four: "min g slots=3", "min g slots=4" => [("min", "3", "test"), ("min", "4", "test")];
    no_slot_against_one: "min g slots=0", "min g slots=1" => [("min", "0", "test"), ("min", "1", "test")];
    eight_slots_against_nine: "min g slots=8", "min g slots=9" => [("min", "8", "test"), ("min", "9", "test")];
    nine_slots_against_eight: "min g slots=9 full", "min g slots=8 full" => [("min", "9", "test"), ("min", "8", "test")];
    nine_slots_against_ten: "min g slots=9", "min g slots=10" => [("min", "9", "test"), ("min", "10", "test")];
    a_thousand_slots_against_one_more: "max g slots=1000", "max g slots=1001" => [("max", "1000", "test"), ("max", "1001", "test")];
    labels_of_a_row: "min g label=counts", "min g label=votes" => [("min", "8", "counts"), ("min", "8", "votes")];
    labels_of_a_vector: "min g slots=50 label=counts", "min g slots=50 label=votes" => [("min", "50", "counts"), ("min", "50", "votes")];
    labels_of_a_barrier: "barrier g label=start", "barrier g label=end" => [("barrier", "", "start"), ("barrier", "", "end")];
    labels_that_differ_at_their_end: "min g label=the-label-of-a-call-site-0", "min g label=the-label-of-a-call-site-1"
        => [("min", "8", "the-label-of-a-call-site-0"), ("min", "8", "the-label-of-a-call-site-1")];
    roots_of_a_small_broadcast: "broadcast g root=0 bytes=8", "broadcast g root=1 bytes=8" => [("broadcast", "0", "test"), ("broadcast", "1", "test")];
    min_against_sum: "min g", "sum g" => [("min", "8", "test"), ("sum", "8", "test")];
    a_sum_against_an_or_in_wide_vectors: "sum g slots=70", "or g slots=70" => [("sum", "70", "test"), ("or", "70", "test")];
    the_operations_of_one_slot: "each g slots=3 ops=min,sum,or", "each g slots=3 ops=min,and,or"
        => [("each", "min,sum,or", "test"), ("each", "min,and,or", "test")];
    one_operation_against_one_for_each_slot: "min g slots=2", "each g slots=2 ops=min" => [("min", "2", "test"), ("each", "min,min", "test")];
    the_operations_of_one_slot_in_wide_vectors: "each g slots=30 ops=min,sum,or", "each g slots=30 ops=min,and,or"
        => [("each", "", "test"), ("each", "", "test")];
    a_gather_against_a_reduction: "gather g slots=4", "min g slots=4" => [("gather", "4", "test"), ("min", "4", "test")];
    widths_of_a_gather: "gather g slots=4", "gather g slots=5" => [("gather", "4", "test"), ("gather", "5", "test")];
    widths_of_a_wide_gather: "gather g slots=40", "gather g slots=50" => [("gather", "40", "test"), ("gather", "50", "test")];
    gathered_bytes_against_a_broadcast: "gather-bytes g bytes=9", "broadcast g root=1 bytes=9" => [("gather bytes", "", "test"), ("broadcast", "1", "test")];
    rounds_in_flight_against_another_operation: "split g slots=2", "max g slots=2" => [("min", "2", "test"), ("max", "2", "test")];
    labels_of_rounds_in_flight: "split g label=here", "split g label=there" => [("min", "8", "here"), ("min", "8", "there")];
    roots_of_a_large_broadcast: "broadcast g root=2 bytes=70000", "broadcast g root=0 bytes=70000" => [("broadcast", "2", "test"), ("broadcast", "0", "test")];
}

/// Three ranks make three calls; then only `callers` call, and the others do `instead`.
fn only_some_call(
    callers: &[usize],
    op: &str,
    instead: &str,
    path: PathChoice,
) -> (Ranks, Vec<Error>) {
    let mut ranks = job(3).path(path).start(|rank| {
        let mut steps = vec!["group g", "min g slots=8 count=3"];
        if !callers.contains(&rank) {
            steps.push(instead);
        }
        steps.extend([op, "min g label=later", "hold end"]);
        steps
    });
    let mut errors = Vec::new();
    for rank in callers {
        let error = ranks.report(*rank, op).error().clone();
        assert_eq!((error.round, error.rank), (4, *rank), "{path}: {error}");
        assert_poisoned(ranks.report(*rank, "min g label=later").error(), &error);
        errors.push(error);
    }
    (ranks, errors)
}

const CALLS: [&str; 4] = [
    "min g slots=8 label=more",
    "max g slots=64 label=more",
    "broadcast g root=0 bytes=4000 label=more",
    "barrier g label=more",
];

/// Calls that some ranks do not make.
fn short() -> [String; 4] {
    CALLS.map(|op| format!("{op} within=1500"))
}

fn a_call_too_many_names_all_that_do_not_come(path: PathChoice) {
    for op in &short() {
        let (mut ranks, errors) = only_some_call(&[1], op, "hold silent", path);
        assert_eq!(missing(&errors[0]), [0, 2], "{path}, {op}: {}", errors[0]);
        let ErrorKind::Timeout { by, missing, .. } = &*errors[0].kind else {
            unreachable!("just seen");
        };
        assert_eq!(*by, 1);
        for silent in missing {
            assert_eq!(
                (silent.last_round, silent.last_label.as_str()),
                (3, "test"),
                "{path}, {op}"
            );
        }
        for rank in [0, 2] {
            ranks.holds(rank, "silent");
            ranks.go(rank);
            // Late: it learns that it was missing, and nothing else.
            let late = ranks.report(rank, op).error().clone();
            assert_eq!(late.kind, errors[0].kind, "{path}, {op}, rank {rank}");
            assert_poisoned(ranks.report(rank, "min g label=later").error(), &late);
        }
        finish(ranks);
    }
}

fn a_call_too_few_names_the_rank_that_stays_away(path: PathChoice) {
    for op in &short() {
        let (mut ranks, errors) = only_some_call(&[0, 2], op, "hold silent", path);
        for error in &errors {
            assert_eq!(missing(error), [1], "{path}, {op}: {error}");
        }
        // Over TCP both may have given up by themselves, at the same moment.
        if path == PathChoice::Table {
            assert_eq!(errors[0].kind, errors[1].kind, "{path}, {op}");
        }
        ranks.holds(1, "silent");
        ranks.go(1);
        let late = ranks.report(1, op).error().clone();
        assert!(
            errors.iter().any(|error| error.kind == late.kind),
            "{path}, {op}: {late}"
        );
        assert_poisoned(ranks.report(1, "min g label=later").error(), &late);
        finish(ranks);
    }
}

fn a_call_too_many_meets_ranks_that_have_left(path: PathChoice) {
    for op in CALLS {
        let mut ranks = job(3).path(path).start(|rank| {
            let mut steps = vec!["group g", "min g slots=8 count=3"];
            if rank == ODD {
                steps.extend([op, "min g label=later"]);
            }
            steps.extend(["leave g", "hold end"]);
            steps
        });
        let error = ranks.report(ODD, op).error().clone();
        assert!(
            matches!(
                *error.kind,
                ErrorKind::PeerClosed {
                    rank: 0 | 2,
                    last_round: 3
                }
            ),
            "{path}, {op}: {error}"
        );
        assert_poisoned(ranks.report(ODD, "min g label=later").error(), &error);
        finish(ranks);
    }
}

fn all_that_stay_away_are_named_to_all_that_come(path: PathChoice) {
    const OP: &str = "min g slots=8 label=counts within=1500";
    let mut ranks = job(5).path(path).start(|rank| {
        let mut steps = vec!["group g", "max g label=before count=7"];
        if rank != 1 && rank != 3 {
            steps.push(OP);
        }
        steps.push("hold end");
        steps
    });
    for rank in [0, 2, 4] {
        let failed = ranks.report(rank, OP);
        let error = failed.error();
        assert_eq!(missing(error), [1, 3], "{path}: {error}");
        let text = error.to_string();
        for part in [
            "group g",
            "round 8",
            "min",
            "`counts`",
            "last round 7",
            "`before`",
        ] {
            assert!(text.contains(part), "{path}: `{text}` lacks {part}");
        }
    }
    finish(ranks);
}

/// The difference is known first, and said at once.
fn a_silent_rank_is_not_taken_for_a_divergent_one(path: PathChoice) {
    let mut ranks = job(3).path(path).start(|rank| {
        let mut steps = vec!["group g", "min g count=2", "hold apart"];
        match rank {
            0 => steps.push("min g slots=5 label=this"),
            1 => steps.push("min g slots=6 label=this"),
            _ => {}
        }
        steps.push("hold end");
        steps
    });
    ranks.all_hold("apart");
    ranks.go(0);
    ranks.go(1);
    for (rank, step) in [
        (0, "min g slots=5 label=this"),
        (1, "min g slots=6 label=this"),
    ] {
        let failed = ranks.report(rank, step);
        assert!(
            matches!(failed.kind(), ErrorKind::Mismatch { .. }),
            "{path}: {}",
            failed.error()
        );
    }
    ranks.go(2);
    finish(ranks);
}

on_both_paths! {
    a_call_too_many_names_all_that_do_not_come
    a_call_too_few_names_the_rank_that_stays_away
    a_call_too_many_meets_ranks_that_have_left
    all_that_stay_away_are_named_to_all_that_come
    a_silent_rank_is_not_taken_for_a_divergent_one
}
