//! The deadline vote: which live prefetches have run out of time on some rank.

use rankpact_collective::Op;

use crate::agreement::Ranks;
use crate::error::Error;

/// How the ranks agree on the overdue prefetches of a tick; replace it to send the flags another way.
///
/// Whatever carries the flags, the tick itself records the verdicts, so there is one verdict and one vote a tick.
pub trait Vote: Send {
    /// Turns this rank's flags (1 for overdue) into the agreed ones, in place and in table order.
    ///
    /// Called once a tick while prefetches are live under policy timeout, on every rank alike. Blocks until every
    /// rank has made the same call, at most for the group's deadline.
    ///
    /// # Errors
    ///
    /// Whatever ended the round.
    fn agree(&mut self, ranks: &mut dyn Ranks, flags: &mut [i64]) -> Result<(), Error>;
}

/// One MAX over all flags, one slot each.
///
/// Not one bit each: the MAX of 0b01 and 0b10 would lose a verdict.
#[derive(Clone, Copy, Debug, Default)]
pub struct PackedVote;

impl Vote for PackedVote {
    fn agree(&mut self, ranks: &mut dyn Ranks, flags: &mut [i64]) -> Result<(), Error> {
        Ok(ranks.reduce(Op::Max, flags, "vote")?)
    }
}
