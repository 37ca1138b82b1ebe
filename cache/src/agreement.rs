//! The one trait through which the cache reaches its peers.

use rankpact_collective::{Error, Op};

/// A group of ranks as the cache sees it: reduce a row, and end the job when it cannot go on.
///
/// A [`rankpact_collective::Group`] is one; so is a scripted fake in the tests. Two threads never share one: each worker
/// thread has a group of its own.
pub trait Ranks: Send {
    /// This rank within the group.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn size(&self) -> usize;

    /// Reduces `row` slot by slot over all ranks, in place.
    ///
    /// Blocks until every rank has made the same call, at most for the group's deadline.
    ///
    /// # Errors
    ///
    /// Whatever ended the round; the row is then unspecified and the group is finished.
    fn reduce(&mut self, op: Op, row: &mut [i64], label: &str) -> Result<(), Error>;

    /// What each rank had put into `slot` of the row reduced last, in rank order, where the path can tell.
    fn contributions(&self, slot: usize) -> Option<Vec<i64>>;

    /// Tells every rank of the job why it ends. Does not block.
    fn abort(&mut self, reason: &str);
}
