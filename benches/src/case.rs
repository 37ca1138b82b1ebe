//! What all contestants are given to do, and how it is timed.

use crate::{Failure, Report, nanoseconds};
use nix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};

/// A warm-up is over when it has taken that long on any rank. By then the system has spread ranks over its CPUs.
const WARM_UP: Duration = Duration::from_millis(300);

/// Rounds of `calls` reductions of `width` integers each. `peers/case.h` reads and measures the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Integers in a reduction.
    pub width: usize,
    /// Reductions in a round.
    pub calls: usize,
    /// Rounds; each contestant has its own number.
    pub rounds: usize,
}

impl Case {
    /// One reduction in each round.
    #[must_use]
    pub fn of(width: usize) -> Self {
        Self {
            width,
            calls: 1,
            rounds: 0,
        }
    }

    /// What reports call it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}x{}", self.width, self.calls)
    }

    /// Repeats `once`, which is told the number of its round and whether this rank has time for another, 1 or 0, and returns
    /// the least of what all ranks have been told.
    ///
    /// # Errors
    ///
    /// Those of `once`.
    pub fn warm_up(
        mut once: impl FnMut(usize, i64) -> Result<i64, Failure>,
    ) -> Result<(), Failure> {
        let until = Instant::now() + WARM_UP;
        let mut round = 0;
        while once(round, i64::from(Instant::now() < until))? == 1 {
            round += 1;
        }
        Ok(())
    }

    /// Times rounds that are `once` each: all of them without a look at the clock, for the wall and CPU time, then all again
    /// with one look after each.
    ///
    /// # Errors
    ///
    /// Those of `once`.
    pub fn measure(
        &self,
        rank: usize,
        mut once: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Report, Failure> {
        let cpu_time = || ClockId::CLOCK_PROCESS_CPUTIME_ID.now().map(Duration::from);
        let (wall, cpu) = (Instant::now(), cpu_time()?);
        for _ in 0..self.rounds {
            once()?;
        }
        let (wall, cpu) = (wall.elapsed(), cpu_time()?.saturating_sub(cpu));
        once()?;
        let mut times_ns = Vec::with_capacity(self.rounds);
        let mut before = Instant::now();
        for _ in 0..self.rounds {
            once()?;
            let after = Instant::now();
            times_ns.push(nanoseconds(after - before));
            before = after;
        }
        Ok(Report {
            case: self.name(),
            rank,
            times_ns,
            wall_ns: u64::try_from(wall.as_nanos())?,
            cpu_ns: u64::try_from(cpu.as_nanos())?,
            ..Report::default()
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name(), self.rounds)
    }
}
