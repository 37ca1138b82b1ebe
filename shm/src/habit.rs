//! Something that usually pays, given up for a while where it does not.

use std::cell::Cell;

/// So much in failures is enough.
const ENOUGH: u32 = 32;
/// How many waits then go without, before one tries again. Twice as many after a trial that fails too, up to the second.
const REST: (u32, u32) = (64, 1024);

/// Whether to go on doing something, by its failures in recent rounds. Rounds count, no clock.
#[derive(Debug)]
pub struct Habit {
    failures: Cell<u32>,
    /// The last round that failed or rested.
    last: Cell<u64>,
    rest: Cell<u32>,
    next_rest: Cell<u32>,
}

impl Default for Habit {
    fn default() -> Self {
        Self {
            failures: Cell::default(),
            last: Cell::default(),
            rest: Cell::default(),
            next_rest: Cell::new(REST.0),
        }
    }
}

impl Habit {
    /// What a failure costs that wastes microseconds. Each round brings back one, so what fails seldom goes on.
    pub const CHEAP: u32 = 4;
    /// What a failure costs that wastes milliseconds.
    pub const DEAR: u32 = 16;

    /// Whether to try in a wait of `round`.
    #[must_use]
    pub fn tries(&self, round: u64) -> bool {
        let rest = self.rest.get();
        if rest > 0 {
            self.rest.set(rest - 1);
            // Rounds that did not try bring nothing back.
            self.last.set(round);
        }
        rest == 0
    }

    /// Whether it rests, or failures are still to be made good in `round`.
    pub(crate) fn doubts(&self, round: u64) -> bool {
        self.rest.get() > 0 || u64::from(self.failures.get()) > round.wrapping_sub(self.last.get())
    }

    /// Says that it has failed in `round`, at that price.
    pub fn failed(&self, round: u64, price: u32) {
        let since = round.wrapping_sub(self.last.replace(round));
        let brought_back = u32::try_from(since).unwrap_or(u32::MAX);
        let left = self.failures.get().saturating_sub(brought_back);
        if left == 0 {
            self.next_rest.set(REST.0);
        }
        let failures = (left + price).min(ENOUGH + 1);
        self.failures.set(failures);
        if failures >= ENOUGH {
            let rest = self.next_rest.get();
            self.rest.set(rest);
            self.next_rest.set((2 * rest).min(REST.1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A habit, and a turn that tells whether it tried.
    fn turn() -> impl FnMut(bool) -> bool {
        let (habit, mut round) = (Habit::default(), 0);
        move |pays| {
            round += 1;
            let tries = habit.tries(round);
            if tries && !pays {
                habit.failed(round, Habit::CHEAP);
            }
            tries
        }
    }

    fn count(mut turn: impl FnMut() -> bool) -> u32 {
        u32::try_from((0..).take_while(|_| turn()).count()).expect("few")
    }

    #[test]
    fn what_always_fails_is_tried_ever_more_seldom() {
        let mut turn = turn();
        let before = count(|| turn(false));
        assert!(
            (ENOUGH / Habit::CHEAP..=ENOUGH).contains(&before),
            "{before}"
        );
        for rest in [64, 128, 256, 512, 1024, 1024] {
            // The turn that ended the counting was the first to rest, or the trial.
            let rested = 1 + count(|| !turn(false));
            assert_eq!(rested, rest);
            assert!(!turn(false), "one trial is enough");
        }
    }

    #[test]
    fn what_pays_again_goes_on_at_its_next_trial() {
        let mut turn = turn();
        count(|| turn(false));
        assert_eq!(1 + count(|| !turn(true)), 64);
        assert!((0..100).all(|_| turn(true)));
        // And all is forgiven.
        assert!(count(|| turn(false)) >= ENOUGH / Habit::CHEAP);
        assert_eq!(1 + count(|| !turn(false)), 64);
    }

    #[test]
    fn what_seldom_fails_goes_on_for_ever() {
        let mut turn = turn();
        for round in 0..10_000 {
            assert!(turn(round % Habit::CHEAP != 0), "round {round}");
        }
    }
}
