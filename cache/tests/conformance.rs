//! The behaviours of the tick, on a script and on threads.

mod ranks;

use std::thread;
use std::time::Duration;

use rankpact_cache::conformance::{Ends, Scenario, scenarios};
use ranks::{Alone, Job, Scripted};

fn scenario(test: &str) -> Scenario {
    let name = test.replace('_', " ");
    scenarios()
        .into_iter()
        .find(|scenario| scenario.name == name)
        .unwrap_or_else(|| panic!("no scenario `{name}`"))
}

/// Each rank by itself, its peers a script.
fn on_a_script(test: &str) {
    let scenario = scenario(test);
    for rank in 0..scenario.ranks {
        let mut tick = Scripted::new(rank, scenario.script.clone());
        let worker = || Box::new(Alone { rank });
        scenario
            .run(&mut tick, worker(), worker())
            .unwrap_or_else(|why| panic!("rank {rank}: {why}"));
    }
}

/// All ranks at once.
fn on_threads(test: &str) {
    let scenario = scenario(test);
    let timeout = if scenario.ends == Ends::Timeout {
        Duration::from_millis(500)
    } else {
        Duration::from_secs(30)
    };
    let job = Job::new(scenario.ranks, &["tick", "hits", "acks"], timeout);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..scenario.ranks)
            .map(|rank| {
                let (job, scenario) = (&job, &scenario);
                scope.spawn(move || {
                    let worker = |group| Box::new(job.member(group, rank));
                    scenario.run(&mut job.member(0, rank), worker(1), worker(2))
                })
            })
            .collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            thread
                .join()
                .unwrap()
                .unwrap_or_else(|why| panic!("rank {rank}: {why}"));
        }
    });
}

macro_rules! behaviours {
    ($($name:ident)*) => {
        mod script {
            $(#[test] fn $name() { super::on_a_script(stringify!($name)); })*
        }
        mod threads {
            $(#[test] fn $name() { super::on_threads(stringify!($name)); })*
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
