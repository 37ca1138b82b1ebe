//! Long runs: every result of very many rounds verified, and hundreds of groups that leave nothing in their ranks.

use crate::{job, seed};
use rankpact_collective::PathChoice;
use std::time::{Duration, Instant};

/// Rounds of two ranks in the long form, which `RANKPACT_SOAK` asks for; eight ranks do a tenth of them.
fn asked_for() -> Option<u64> {
    let text = std::env::var("RANKPACT_SOAK").ok()?;
    Some(text.parse().expect("RANKPACT_SOAK is a number of rounds"))
}

fn soaked(size: usize, rounds: u64) {
    let seed = seed();
    let step = format!("soak g count={rounds} seed={seed}");
    // A millisecond a round is far beyond what any machine takes.
    let hangs = Duration::from_secs(60) + Duration::from_millis(rounds);
    let started = Instant::now();
    let mut ranks = job(size)
        .path(PathChoice::Table)
        .hangs_after(hangs)
        .start(|_| ["group g", "ready g", &step, "path g"]);
    for rank in ranks.all() {
        let report = ranks.report(rank, &step);
        assert_eq!(report.well(), "", "RANKPACT_SEED={seed}");
        assert_eq!(report.round, rounds);
    }
    eprintln!(
        "{rounds} rounds of {size} ranks, RANKPACT_SEED={seed}: {:.1?}",
        started.elapsed()
    );
    ranks.end();
}

#[test]
fn every_result_of_two_ranks_is_right_over_very_many_rounds() {
    soaked(2, asked_for().unwrap_or(20_000));
}

#[test]
fn every_result_of_eight_ranks_is_right_over_very_many_rounds() {
    soaked(8, asked_for().map_or(3_000, |rounds| rounds / 10));
}

fn groups_opened_and_closed_one_after_another_leave_nothing_in_their_ranks(path: PathChoice) {
    const MANY: &str = "reopen g count=400";
    let mut ranks = job(2)
        .path(path)
        .start(|_| ["reopen g count=40", "holdings", MANY, "holdings"]);
    for rank in ranks.all() {
        let mut holdings = || -> Vec<usize> {
            let said = ranks.report(rank, "holdings");
            let numbers = said.well().split(' ').map(|text| text.parse());
            numbers.collect::<Result<_, _>>().expect("two numbers")
        };
        let (before, after) = (holdings(), holdings());
        // A connection that is just being closed may be among them, but not one of each group.
        assert!(after[0] < before[0] + 20, "{before:?}, {after:?}");
        assert_eq!(after[1], 0);
    }
    ranks.end();
}

on_both_paths! {
    groups_opened_and_closed_one_after_another_leave_nothing_in_their_ranks
}
