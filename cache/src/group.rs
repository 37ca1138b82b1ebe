//! A group of the collective crate as the cache's ranks.

use crate::agreement::Ranks;
use rankpact_collective::{Error, Group, Op};

impl Ranks for Group {
    fn rank(&self) -> usize {
        self.rank()
    }

    fn size(&self) -> usize {
        self.size()
    }

    fn reduce(&mut self, op: Op, row: &mut [i64], label: &str) -> Result<(), Error> {
        self.all_reduce(op, row, label)
    }

    fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        self.contributions(slot)
    }

    fn abort(&mut self, reason: &str) {
        self.abort(reason);
    }
}
