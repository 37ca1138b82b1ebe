//! What all contestants are given to do, and how it is timed.

use crate::{Failure, Report};
use nix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};

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
            times_ns.push(u32::try_from((after - before).as_nanos()).unwrap_or(u32::MAX));
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
