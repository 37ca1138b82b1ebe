//! Rounds over TCP alone: every rank sends its call to every other and compares.
//!
//! There is no shared word, so one outcome cannot be promised: a rank that took a value another gave up on is told at its
//! next call.

use super::Round;
use super::data::{Exchange, Shown, Stop, Wire};
use crate::error::{Described, ErrorKind, Silent};
use crate::job;
use crate::mesh::{ExchangeError, Mesh, MeshError};
use crate::op::Op;
use rankpact_shm::{Kind, LABEL_BYTES, Timing, monotonic_ns};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct TcpPath {
    wire: Wire,
    round: u64,
    last_label: String,
    timing: Option<Timing>,
    /// Asked while this rank waits: whether the job was aborted.
    aborted: Option<Abortion>,
}

/// Whether, and why, the job was aborted.
pub(crate) struct Abortion(pub(crate) Box<dyn Fn() -> Option<ErrorKind> + Send>);

impl std::fmt::Debug for Abortion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Abortion")
    }
}

impl TcpPath {
    pub(crate) fn new(mesh: Mesh, timing: bool) -> Self {
        let timing = timing.then(Timing::default);
        Self {
            wire: Wire::new(mesh),
            round: 0,
            last_label: String::new(),
            timing,
            aborted: None,
        }
    }

    pub(crate) fn watch_abortion(&mut self, aborted: Abortion) {
        self.aborted = Some(aborted);
    }

    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    pub(crate) fn timing(&self) -> Option<Timing> {
        self.timing
    }

    pub(crate) fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        self.wire.contributions(slot)
    }

    /// Tells all peers that this rank gives the group up after the last round, and why.
    pub(crate) fn abort(&mut self, kind: &ErrorKind) {
        self.wire.mesh.poison(self.round + 1, &job::encode(kind));
    }

    pub(crate) fn close(&mut self) {
        self.wire.mesh.close();
    }

    pub(crate) fn all_reduce(
        &mut self,
        op: Op,
        values: &mut [i64],
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        self.call(round, |wire, exchange, guard| {
            wire.all_reduce(exchange, op, values, guard)
        })?;
        values.copy_from_slice(self.wire.total());
        Ok(())
    }

    pub(crate) fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        self.call(round, |wire, exchange, guard| {
            wire.broadcast(exchange, root, bytes, guard)
        })
    }

    pub(crate) fn barrier(&mut self, round: &Round<'_>) -> Result<(), ErrorKind> {
        self.call(round, |wire, exchange, guard| wire.barrier(exchange, guard))
    }

    /// One round; whatever fails it is told to all peers.
    fn call(
        &mut self,
        round: &Round<'_>,
        travel: impl FnOnce(
            &mut Wire,
            &Exchange<'_>,
            &mut dyn FnMut() -> Result<(), ErrorKind>,
        ) -> Result<(), ExchangeError<Stop<ErrorKind>>>,
    ) -> Result<(), ErrorKind> {
        if round.label.is_empty() || round.label.len() > LABEL_BYTES {
            return Err(ErrorKind::Usage(format!(
                "a label has 1 to {LABEL_BYTES} bytes"
            )));
        }
        let aborted = || self.aborted.as_ref().and_then(|aborted| aborted.0());
        if let Some(kind) = aborted() {
            return Err(kind);
        }
        let started = Instant::now();
        let arrived_ns = monotonic_ns();
        let exchange = Exchange {
            round: self.round + 1,
            label: round.label,
            deadline: job::deadline(started, round.timeout),
        };
        let outcome = travel(&mut self.wire, &exchange, &mut || {
            aborted().map_or(Ok(()), Err)
        });
        self.round += 1;
        if let Err(error) = outcome {
            let kind = self.failure(error, round, started.elapsed());
            self.wire.mesh.poison(self.round, &job::encode(&kind));
            return Err(kind);
        }
        round.label.clone_into(&mut self.last_label);
        if let Some(timing) = &mut self.timing {
            let last = self.wire.last_sent_ns.max(arrived_ns);
            timing.skew = Duration::from_nanos(last - arrived_ns);
            timing.transport = Duration::from_nanos(monotonic_ns().saturating_sub(last));
        }
        Ok(())
    }

    fn failure(
        &self,
        error: ExchangeError<Stop<ErrorKind>>,
        round: &Round<'_>,
        after: Duration,
    ) -> ErrorKind {
        let world = |peer: usize| round.ranks.get(peer).copied().unwrap_or(peer);
        let me = self.wire.mesh.me();
        let last_round = self.round - 1;
        // An abort closes connections too, and says more.
        if let Some(kind) = self.aborted.as_ref().and_then(|aborted| aborted.0()) {
            return kind;
        }
        match error {
            ExchangeError::Stopped(Stop::Guard(kind)) => kind,
            ExchangeError::Stopped(Stop::Mismatch { peer, mine, theirs }) => {
                let mut calls = [describe(world(me), mine), describe(world(peer), theirs)];
                calls.sort_by_key(|call| call.rank);
                let [one, other] = calls.map(Box::new);
                ErrorKind::Mismatch { one, other }
            }
            ExchangeError::Mesh(MeshError::Missing { peers }) => ErrorKind::Timeout {
                by: world(me),
                after,
                missing: peers
                    .into_iter()
                    .map(|peer| Silent {
                        rank: world(peer),
                        last_round,
                        last_label: self.last_label.clone(),
                    })
                    .collect(),
            },
            ExchangeError::Mesh(MeshError::Left { peer }) => ErrorKind::PeerClosed {
                rank: world(peer),
                last_round,
            },
            ExchangeError::Mesh(MeshError::Died { peer }) => ErrorKind::PeerDied {
                rank: world(peer),
                last_round,
            },
            ExchangeError::Mesh(MeshError::Poisoned { peer, payload }) => {
                serde_json::from_slice(&payload).unwrap_or_else(|_| {
                    ErrorKind::Io(format!("rank {} gave up without a reason", world(peer)))
                })
            }
            ExchangeError::Mesh(MeshError::Forked) => ErrorKind::Forked,
            ExchangeError::Mesh(other) => ErrorKind::Io(other.to_string()),
        }
    }
}

fn describe(rank: usize, shown: Shown) -> Described {
    let kind = Kind::from_code(shown.operation.into());
    let shape = match (kind, shown.width) {
        (Some(Kind::Broadcast), _) => format!("root {}", shown.root),
        (_, 1) => "1 slot".to_owned(),
        (_, slots) => format!("{slots} slots"),
    };
    Described {
        rank,
        operation: kind.map_or_else(|| "unknown call".to_owned(), |kind| kind.to_string()),
        shape,
        label: shown.label,
    }
}
