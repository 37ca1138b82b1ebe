//! The query thread: how much of a prompt every rank finds in storage.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender};
use rankpact_collective::Op;

use crate::agreement::Ranks;
use crate::error::Error;
use crate::prefetch::Operation;
use crate::storage::Storage;

/// An agreed hit.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) operation: Arc<Operation>,
    /// Leading pages that storage holds on every rank.
    pub(crate) pages: usize,
}

pub(crate) struct Query {
    pub(crate) ranks: Box<dyn Ranks>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) queries: Receiver<Arc<Operation>>,
    pub(crate) hits: Sender<Hit>,
}

impl Query {
    pub(crate) fn run(mut self) -> Result<(), Error> {
        for operation in &self.queries {
            let found = leading_run(&*self.storage, &operation);
            let mut row = [i64::try_from(found).unwrap_or(i64::MAX)];
            // Also for a terminated operation: the peers may not know yet and would wait.
            self.ranks.reduce(Op::Min, &mut row, "hit")?;
            let pages = usize::try_from(row[0]).unwrap_or(0).min(found);
            if self.hits.send(Hit { operation, pages }).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// A terminated operation has no hit.
fn leading_run(storage: &dyn Storage, operation: &Operation) -> usize {
    operation
        .pages
        .iter()
        .take_while(|&&key| !operation.is_terminated() && storage.exists(key))
        .count()
}
