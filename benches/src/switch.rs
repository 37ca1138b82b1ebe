//! One switching yield: what it costs a CPU to go over from a rank that yields to another one that yields.

use crate::{Failure, Report, Sample, Team};
use rankpact_collective::{Join, Options, Waiting, World};
use rankpact_shm::cpus;
use serde::Serialize;
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// Starts two ranks of this very program that share a CPU; the role that they find as their settings is to call [`rank`].
///
/// # Errors
///
/// A rank fails.
pub fn measure(role: &impl Serialize) -> Result<Sample, Failure> {
    let team = Team::ours("yields", 2, role, |_| Vec::new())?;
    Ok(Sample::all(2, team.run(Duration::from_secs(60))?)?.remove(0))
}

/// The part of one rank, for `rounds` rounds: each is half of a yield, which goes to the other rank and comes back.
///
/// # Errors
///
/// The other rank is missing.
pub fn rank(rounds: usize) -> Result<(), Failure> {
    let world = World::connect(Join::from_env()?)?;
    let mut options = Options {
        waiting: Waiting::Yield,
        ..world.options().clone()
    };
    options.timeout = Duration::from_secs(30);
    let mut group = world.everybody_with("yields", options)?;
    cpus::pin(0)?;
    group.barrier("start")?;
    let report = Report::of("yield", group.rank(), rounds, || {
        let before = Instant::now();
        yield_now();
        Ok::<_, Failure>(before.elapsed() / 2)
    })?;
    // Whoever is done yields until the other one is.
    group.barrier("end")?;
    report.say()
}
