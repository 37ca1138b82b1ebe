//! The tick of the cache over real groups, each rank a process or a thread, on both paths.

use crate::{job, missing};
use rankpact_cache::conformance::{Ends, Scenario, scenarios};
use rankpact_collective::{Error, ErrorKind, Group, Options, PathChoice};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

fn scenario(test: &str) -> (usize, Scenario) {
    let name = test.replace('_', " ");
    scenarios()
        .into_iter()
        .enumerate()
        .find(|(_, scenario)| scenario.name == name)
        .unwrap_or_else(|| panic!("no scenario `{name}`"))
}

fn deadline(scenario: &Scenario) -> Duration {
    // A rank that waits alone does so until the end.
    if scenario.ends == Ends::Timeout {
        Duration::from_millis(1000)
    } else {
        Duration::from_secs(30)
    }
}

fn on_processes(test: &str, path: PathChoice) {
    let (number, scenario) = scenario(test);
    let play = format!("scenario {number}");
    let mut ranks = job(scenario.ranks)
        .path(path)
        .timeout(deadline(&scenario))
        .start(|_| {
            vec![
                "group tick".to_owned(),
                "group hits".into(),
                "group acks".into(),
                // Opening is no part of a scenario, whose deadline may be short; and a rank that ends while a worker
                // of its cache still opens a group leaves the name of the segment behind.
                "ready tick".into(),
                "ready hits".into(),
                "ready acks".into(),
                play.clone(),
                "hold ended".into(),
                "min tick label=after".into(),
                "hold end".into(),
            ]
        });
    for rank in ranks.all() {
        ranks.report(rank, &play).well();
    }
    ranks.all_hold("ended");
    ranks.all_go();
    for rank in ranks.all() {
        let after = ranks.report(rank, "min tick label=after");
        match scenario.ends {
            // The ranks are still in step.
            Ends::Well => {
                after.well();
            }
            Ends::Diverged => {
                assert!(
                    matches!(*after.error().root().kind, ErrorKind::Aborted { .. }),
                    "{}",
                    after.error()
                );
            }
            Ends::Timeout => assert_eq!(missing(after.error().root()), [0]),
            Ends::Mismatch => both_calls(after.error()),
        }
    }
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[track_caller]
fn both_calls(error: &Error) {
    let ErrorKind::Mismatch { one, other } = &*error.root().kind else {
        panic!("no mismatch: {error}");
    };
    let mut calls =
        [one, other].map(|call| (call.rank, call.operation.as_str(), call.label.as_str()));
    calls.sort_unstable();
    assert_eq!(calls, [(0, "min", "counts"), (1, "max", "vote")], "{error}");
}

fn on_threads(test: &str, path: PathChoice) {
    let (_, scenario) = scenario(test);
    let options = Options {
        path,
        timeout: deadline(&scenario),
        ..Options::default()
    };
    let make =
        |name| Group::threads(name, scenario.ranks, &options).expect("threads can always be ranks");
    let ended = Barrier::new(scenario.ranks);
    thread::scope(|scope| {
        let (scenario, ended) = (&scenario, &ended);
        let ranks: Vec<_> = make("tick")
            .into_iter()
            .zip(make("hits"))
            .zip(make("acks"))
            .map(|((mut tick, hits), acks)| {
                scope.spawn(move || {
                    let played = scenario.run(&mut tick, Box::new(hits), Box::new(acks));
                    // Nobody closes before the last has ended.
                    ended.wait();
                    played
                })
            })
            .collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            if let Err(why) = thread.join().expect("no rank panics") {
                panic!("rank {rank}: {why}");
            }
        }
    });
}

macro_rules! behaviours {
    ($($name:ident)*) => {
        mod processes_over_the_table {
            $(#[test] fn $name() { super::on_processes(stringify!($name), super::PathChoice::Table); })*
        }
        mod processes_over_tcp {
            $(#[test] fn $name() { super::on_processes(stringify!($name), super::PathChoice::Tcp); })*
        }
        mod threads_over_the_table {
            $(#[test] fn $name() { super::on_threads(stringify!($name), super::PathChoice::Table); })*
        }
        mod threads_over_tcp {
            $(#[test] fn $name() { super::on_threads(stringify!($name), super::PathChoice::Tcp); })*
        }
        #[test]
        fn every_scenario_has_its_tests() {
            let tests = [$(stringify!($name).replace('_', " ")),*];
            let names: Vec<_> = scenarios().into_iter().map(|scenario| scenario.name).collect();
            assert_eq!(names, tests);
        }
    };
}

behaviours! {
    first_polls_start_waits_and_say_nothing_to_anyone
    a_tick_votes_once_over_all_live_prefetches
    polls_stay_blocked_past_the_budget_until_a_tick
    the_vote_cuts_what_is_overdue_and_nothing_else
    a_cut_request_is_retired_by_its_next_poll_and_not_tried_again
    under_best_effort_nobody_votes
    under_wait_complete_nobody_votes
    with_an_empty_table_nobody_votes
    a_verdict_marked_again_changes_nothing
    a_rank_that_has_not_started_to_wait_learns_the_verdict_of_one_that_has
    uneven_polls_before_a_verdict_do_no_harm
    uneven_polls_after_a_verdict_raise_on_both_ranks_before_a_second_vote
    without_the_fold_a_rank_waits_alone_in_its_vote
    without_the_fold_a_vote_meets_the_next_tick_of_the_other_rank
    in_the_old_shape_each_blocked_poll_is_a_vote_and_the_tick_has_none
    without_storage_the_row_has_four_values
    with_storage_and_an_extra_pool_the_row_has_nine_values
    four_values_raise_when_one_rank_reclaims_another_page
    eight_values_raise_when_one_rank_reclaims_another_page
    nine_values_raise_when_one_rank_reclaims_another_page
    ten_values_raise_when_one_rank_reclaims_another_page
    the_shorter_leading_run_decides_for_all_ranks
    tables_in_another_order_raise_on_every_rank
    tables_with_other_attempts_raise_on_every_rank
    an_empty_and_a_filled_table_raise_on_every_rank
    under_wait_complete_the_order_of_the_table_is_free
    under_wait_complete_the_attempts_are_free
    under_wait_complete_a_table_may_be_empty_on_one_rank
    a_divergence_consumes_nothing
}
