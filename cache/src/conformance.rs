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
