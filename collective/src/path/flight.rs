//! Rounds that were started and are not finished, where no table keeps them.

use super::data::Exchange;
use crate::error::ErrorKind;
use crate::op::{Ops, OwnOps};
use rankpact_shm::monotonic_ns;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The result of a round that was started, once it has settled.
pub(crate) type Finished = OnceLock<Result<Vec<i64>, ErrorKind>>;

/// A round that was started, with this rank's row.
#[derive(Debug)]
pub(super) struct Flying {
    pub(super) round: u64,
    pub(super) label: String,
    pub(super) ops: OwnOps,
    pub(super) values: Vec<i64>,
    pub(super) arrived_ns: u64,
    /// Shared with the handle, which may be gone.
    finished: Arc<Finished>,
}

impl Flying {
    pub(super) fn new(round: u64, label: &str, ops: Ops<'_>, values: &[i64]) -> Self {
        Self {
            round,
            label: label.to_owned(),
            ops: ops.into(),
            values: values.to_vec(),
            arrived_ns: monotonic_ns(),
            finished: Arc::default(),
        }
    }

    pub(super) fn exchange(&self, deadline: Instant) -> Exchange<'_> {
        Exchange {
            round: self.round,
            label: &self.label,
            deadline,
        }
    }

    /// Keeps the result for whoever has the handle.
    pub(super) fn settle(self, result: Result<Vec<i64>, ErrorKind>) {
        // Set here alone, once for each round.
        let _ = self.finished.set(result);
    }
}

/// They settle in order, oldest first.
#[derive(Debug)]
pub(super) struct Flight {
    rounds: VecDeque<Flying>,
    depth: usize,
}

impl Flight {
    /// None yet, and at most `depth`.
    pub(super) fn new(depth: usize) -> Self {
        Self {
            rounds: VecDeque::new(),
            depth,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.rounds.len() >= self.depth
    }

    pub(super) fn oldest(&self) -> Option<&Flying> {
        self.rounds.front()
    }

    pub(super) fn push(&mut self, flying: Flying) -> Arc<Finished> {
        let finished = Arc::clone(&flying.finished);
        self.rounds.push_back(flying);
        finished
    }

    pub(super) fn take_oldest(&mut self) -> Option<Flying> {
        self.rounds.pop_front()
    }

    /// None of them will settle.
    pub(super) fn clear(&mut self) {
        self.rounds.clear();
    }

    /// The result of `finished`; nothing while it is among these.
    pub(super) fn result(&self, finished: &Arc<Finished>) -> Option<Result<Vec<i64>, ErrorKind>> {
        if let Some(result) = finished.get() {
            return Some(result.clone());
        }
        let ours = |flying: &Flying| Arc::ptr_eq(&flying.finished, finished);
        let stranger = || ErrorKind::Usage("this round was started in another group".to_owned());
        (!self.rounds.iter().any(ours)).then(|| Err(stranger()))
    }
}
