//! What every group shows, with threads and with processes as ranks, over the table, over TCP and over several hosts.

use crate::hosts::Hosts;
use crate::{PATHS, job};
use rankpact_collective::{ErrorKind, PathChoice};
use rankpact_tests::{Behaviour, Job, behaviour, behaviours, may_unshare, on_threads};
use std::collections::BTreeSet;
use std::time::Duration;

fn with_threads(test: &str, path: PathChoice) {
    let behaviour = behaviour(&test.replace('_', " "));
    for size in behaviour.sizes {
        on_threads(&behaviour, *size, path);
    }
}

fn with_processes(test: &str, path: PathChoice) {
    let behaviour = behaviour(&test.replace('_', " "));
    for size in behaviour.sizes {
        behave(&behaviour, job(*size).path(path), &path.to_string());
    }
}

fn with_hosts(test: &str) {
    if !may_unshare() {
        return;
    }
    let behaviour = behaviour(&test.replace('_', " "));
    // Two ranks on two hosts have nothing to share.
    let sizes = behaviour.sizes.iter().map(|size| *size.max(&3));
    for size in BTreeSet::from_iter(sizes) {
        // The more ranks, the more hosts; members of a host need not be neighbours.
        let count = if size > 4 { 3 } else { 2 };
        let hosts = Hosts::of(size, |rank| rank % count);
        behave(&behaviour, hosts.job(), "hierarchical");
    }
}

fn behave(behaviour: &Behaviour, mut job: Job, path: &str) {
    if behaviour.timing {
        job = job.option("--timing");
    }
    let behave = format!("behave g {}", behaviour.name);
    let mut ranks = job.start(|_| {
        vec![
            "group g".to_owned(),
            "ready g".into(),
            "path g".into(),
            behave.clone(),
            "hold end".into(),
        ]
    });
    for rank in ranks.all() {
        let said = ranks.report(rank, "path g");
        assert!(said.well().starts_with(path), "{said:?}");
        ranks.report(rank, &behave).well();
    }
    ranks.all_go();
    ranks.end();
}

macro_rules! everywhere {
    ($($name:ident)*) => {
        mod threads_over_the_table {
            $(#[test] fn $name() { super::with_threads(stringify!($name), super::PathChoice::Table); })*
        }
        mod threads_over_tcp {
            $(#[test] fn $name() { super::with_threads(stringify!($name), super::PathChoice::Tcp); })*
        }
        mod processes_over_the_table {
            $(#[test] fn $name() { super::with_processes(stringify!($name), super::PathChoice::Table); })*
        }
        mod processes_over_tcp {
            $(#[test] fn $name() { super::with_processes(stringify!($name), super::PathChoice::Tcp); })*
        }
        mod processes_over_hosts {
            $(#[test] fn $name() { super::with_hosts(stringify!($name)); })*
        }
        #[test]
        fn every_behaviour_has_its_tests() {
            let tests = [$(stringify!($name).replace('_', " ")),*];
            let names: Vec<_> = behaviours().into_iter().map(|behaviour| behaviour.name).collect();
            assert_eq!(names, tests);
        }
    };
}

everywhere! {
    min_and_max_are_right_at_every_width
    every_operation_is_right_at_every_width_and_an_overflow_fails_nothing
    rounds_in_flight_come_to_what_their_own_rows_do
    every_rank_gets_the_values_and_the_bytes_of_all
    the_smallest_and_the_largest_integer_survive_in_every_slot
    nobody_leaves_a_barrier_before_the_last_has_come
    every_rank_gets_what_any_root_broadcasts
    mixed_operations_keep_their_order_and_their_results
    every_call_is_one_round_whatever_path_it_takes
    the_contributions_of_the_last_reduction_can_be_asked_for
    a_late_rank_shows_in_the_skew_of_those_who_waited
    without_timing_nothing_is_measured
    slots_are_not_reused_before_the_slowest_rank_has_read_them
    a_sleeping_rank_is_woken_by_the_last_one
    a_call_has_its_own_deadline_and_the_late_rank_learns_that_it_was_missing
    a_wrong_use_costs_nobody_anything
    after_a_close_every_call_says_closed
    messages_between_two_ranks_leave_the_rounds_alone
}

#[test]
fn members_may_make_their_groups_in_any_order() {
    for path in PATHS {
        let ranks = job(3).path(path).start(|rank| {
            let names = ["a", "b", "c"];
            let mut steps: Vec<String> = (0..3)
                .map(|i| format!("group {}", names[(i + rank) % 3]))
                .collect();
            for name in names {
                steps.push(format!("min {name} slots=8 count=5"));
                steps.push(format!("max {name} slots=20 count=5"));
            }
            steps
        });
        ranks.end();
    }
}

#[test]
fn threads_may_open_their_groups_in_any_order() {
    for path in PATHS {
        let ranks = job(3).path(path).start(|rank| {
            let order = ["a,b,c", "c,a,b", "b,c,a"][rank];
            vec![
                "group a".to_owned(),
                "group b".into(),
                "group c".into(),
                format!("parallel {order} max slots=8 count=100"),
                format!("parallel {order} broadcast root=2 bytes=3000 count=20"),
                format!("parallel {order} min slots=12 count=50 full"),
            ]
        });
        ranks.end();
    }
}

#[test]
fn subgroups_have_their_members_in_any_order() {
    for path in PATHS {
        let mut ranks = job(4).path(path).start(|rank| {
            let mut steps = Vec::new();
            if rank % 2 == 0 {
                steps.push("group even ranks=2,0".to_owned());
            } else {
                steps.push("group odd ranks=3,1".to_owned());
            }
            steps.push("group all ranks=1,3,0,2".to_owned());
            steps.push("group one ranks=".to_owned() + &rank.to_string());
            let half = ["even", "odd"][rank % 2];
            steps.push(format!("min {half} slots=8 count=10"));
            steps.push(format!("broadcast {half} root=0 bytes=40000"));
            for step in [
                "max all slots=8 count=10",
                "broadcast all root=2 bytes=40000",
                "min all slots=100",
                "barrier one",
                "min one slots=9",
                "path one",
                "hold failing",
            ] {
                steps.push(step.to_owned());
            }
            // World rank 3 is rank 1 of `all`; errors name world ranks.
            if rank != 3 {
                steps.push("min all within=300".to_owned());
            }
            steps.push("hold end".to_owned());
            steps
        });
        for rank in ranks.all() {
            assert!(ranks.report(rank, "path one").well().starts_with("alone"));
        }
        ranks.all_hold("failing");
        ranks.all_go();
        for rank in [0, 1, 2] {
            let failed = ranks.report(rank, "min all within=300");
            assert_eq!(crate::missing(failed.error()), [3], "{path}");
            assert_eq!(failed.error().rank, rank);
        }
        ranks.all_hold("end");
        ranks.all_go();
        ranks.end();
    }
}

#[test]
fn different_member_lists_fail_at_once_with_both_lists() {
    for path in PATHS {
        let mut ranks = job(3).path(path).start(|rank| {
            let list = if rank == 1 { "0,1" } else { "0,1,2" };
            vec![
                format!("group g ranks={list}"),
                "ready g".to_owned(),
                "min g".to_owned(),
                "hold end".to_owned(),
            ]
        });
        for rank in ranks.all() {
            let failed = ranks.report(rank, "ready g");
            let text = failed.error().to_string();
            assert!(
                matches!(failed.kind(), ErrorKind::Config { .. }),
                "{path}, rank {rank}: {text}"
            );
            assert!(
                text.contains("[0, 1, 2]") && text.contains("[0, 1]"),
                "{text}"
            );
            // The deadline is 30 s.
            assert!(failed.ms < 10_000, "{failed:?}");
            crate::assert_poisoned(ranks.report(rank, "min g").error(), failed.error());
        }
        ranks.all_hold("end");
        ranks.all_go();
        ranks.end();
    }
}

#[test]
fn a_group_can_be_made_anew_under_its_name() {
    for path in PATHS {
        let ranks = job(2).path(path).start(|_| {
            let round = [
                "group g",
                "min g slots=8 count=3",
                "max g slots=9",
                "close g",
            ];
            round.repeat(15)
        });
        ranks.end();
    }
}

/// A group that failed is made anew under its name; a late rank of the old one harms nobody.
#[test]
fn a_poisoned_group_can_be_made_anew_under_its_name() {
    for path in PATHS {
        let mut ranks = job(3).path(path).start(|rank| {
            let mut steps = vec!["group g", "min g slots=8 count=5"];
            steps.push(if rank == 1 {
                "max g label=odd"
            } else {
                "min g label=odd"
            });
            if rank == 2 {
                // Still asleep in the old group while the others are in the new one.
                steps.push("sleep 200");
            }
            steps.extend([
                "min g label=later",
                "leave g",
                "group g",
                "min g slots=8 count=50",
                "max g slots=40 count=5",
                "broadcast g root=2 bytes=9000",
                "hold end",
            ]);
            steps
        });
        for rank in ranks.all() {
            let odd = if rank == 1 {
                "max g label=odd"
            } else {
                "min g label=odd"
            };
            let failed = ranks.report(rank, odd);
            assert!(
                matches!(failed.kind(), ErrorKind::Mismatch { .. }),
                "{}",
                failed.error()
            );
            let later = ranks.report(rank, "min g label=later");
            crate::assert_poisoned(later.error(), failed.error());
            ranks.report(rank, "min g slots=8 count=50").well();
            ranks.report(rank, "max g slots=40 count=5").well();
            ranks.report(rank, "broadcast g root=2 bytes=9000").well();
        }
        ranks.all_hold("end");
        ranks.all_go();
        ranks.end();
    }
}

#[test]
fn a_process_may_have_64_groups_open_at_once() {
    let names: Vec<_> = (0..64).map(|n| format!("g{n}")).collect();
    for path in PATHS {
        let ranks = job(2).path(path).start(|_| {
            let mut steps: Vec<String> = names.iter().map(|name| format!("group {name}")).collect();
            for slots in [7, 14] {
                let round = |name| format!("min {name} slots={slots} count=3");
                steps.extend(names.iter().map(round));
            }
            steps
        });
        ranks.end();
    }
}

#[test]
fn the_widest_rows_and_the_longest_broadcasts_arrive_whole() {
    for path in PATHS {
        let job = job(3).path(path).timeout(Duration::from_secs(120));
        let ranks = job.hangs_after(Duration::from_secs(180)).start(|_| {
            [
                "group g",
                "min g slots=300000",
                "sum g slots=50000",
                "broadcast g root=2 bytes=67108864",
                "gather-bytes g bytes=3000000",
            ]
        });
        ranks.end();
    }
}
