//! What any group of ranks must show when the cache ticks over it: the behaviours as scenarios, each with the exact
//! calls of every rank. They run on a scripted fake, on threads and on processes alike.

mod scenarios;
mod seat;

use std::fmt::{self, Debug};

use rankpact_collective::{Error as CollectiveError, Op};

pub use self::scenarios::scenarios;
pub use self::seat::Seat;

use crate::agreement::Ranks;
use crate::config::Config;

/// The outcome of a scenario on one rank: what was not as it should be.
pub type Checked<T = ()> = Result<T, String>;

/// One reduction of a scheduler thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// The label of the call site.
    pub label: &'static str,
    /// What the rank contributes.
    pub row: Vec<i64>,
}

/// How a scenario ends for the rank that ends last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Without an error.
    Well,
    /// With a divergence on every rank.
    Diverged,
    /// With a rank that waits alone until its deadline; give it a short one.
    Timeout,
    /// With two different calls in one round.
    Mismatch,
}

/// A behaviour of the specification.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The behaviour, as a sentence.
    pub name: &'static str,
    /// How many ranks it needs.
    pub ranks: usize,
    /// How it ends.
    pub ends: Ends,
    /// What each rank's scheduler thread calls, in order.
    pub script: Vec<Vec<Call>>,
    config: Config,
    storage: bool,
    body: fn(&mut Seat<'_>) -> Checked,
}

impl Scenario {
    /// Plays the part of one rank; its peers play theirs at the same time.
    ///
    /// `tick` stays with the caller, who must not close it before the last rank has ended. Blocks for the rounds of
    /// the scenario, and a bounded time for its own worker threads.
    ///
    /// # Errors
    ///
    /// What was not as it should be.
    pub fn run(&self, tick: &mut dyn Ranks, hits: Box<dyn Ranks>, acks: Box<dyn Ranks>) -> Checked {
        let rank = tick.rank();
        let backend = self.storage.then_some((hits, acks));
        let mut seat = Seat::new(self.config.clone(), tick, backend)?;
        (self.body)(&mut seat)?;
        same(
            "the calls",
            &seat.calls(),
            &self.script.get(rank).map_or(&[][..], Vec::as_slice),
        )
    }
}

/// Both must be equal.
fn same<T: PartialEq + Debug>(what: &str, got: &T, wanted: &T) -> Checked {
    if got == wanted {
        Ok(())
    } else {
        Err(format!("{what}: got {got:?}, not {wanted:?}"))
    }
}

/// Keeps the calls that go through it.
struct Recorder<'a> {
    ranks: &'a mut dyn Ranks,
    calls: Vec<Call>,
}

impl Ranks for Recorder<'_> {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    fn reduce(&mut self, op: Op, row: &mut [i64], label: &str) -> Result<(), CollectiveError> {
        let known = ["counts", "vote", "poll"]
            .into_iter()
            .find(|known| *known == label);
        self.calls.push(Call {
            op,
            label: known.unwrap_or("?"),
            row: row.to_vec(),
        });
        self.ranks.reduce(op, row, label)
    }

    fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        self.ranks.contributions(slot)
    }

    fn abort(&mut self, reason: &str) {
        self.ranks.abort(reason);
    }
}

impl Debug for Recorder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

/// Calls a macro with the name of every scenario, so that each can be a test of its own wherever it is played.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_scenario {
    ($behaviours:ident) => {
        $behaviours! {
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
    };
}
