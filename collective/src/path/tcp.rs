//! Rounds over TCP alone: every rank sends its call to every other and compares.
//!
//! There is no shared word, so one outcome cannot be promised: a rank that took a value another gave up on is told at its
//! next call.

use super::data::{Exchange, Shown, Stop, Wire};
use super::flight::{Finished, Flight, Flying};
use super::slots::Overflow;
use super::{Round, first_sign};
use crate::error::{Described, ErrorKind, Silent};
use crate::job::{self, Job};
use crate::mesh::{ExchangeError, Mesh, MeshError};
use crate::op::{Ops, check_label};
use crate::options::Options;
use rankpact_shm::{Kind, Timing, monotonic_ns};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct TcpPath {
    wire: Wire,
    round: u64,
    failed: Option<u64>,
    last_label: String,
    timing: Option<Timing>,
    /// Rounds whose frame is sent and whose peers' frames are not taken.
    flight: Flight,
    /// Asked while this rank waits whether it was aborted, and who in it has died.
    job: Option<Arc<Job>>,
}

/// A total that does not fit is an error that fails nothing.
pub(crate) fn fits(overflow: Overflow) -> Result<(), ErrorKind> {
    overflow.map_or(Ok(()), |slot| Err(ErrorKind::Overflow { slot }))
}

fn unless_aborted(job: Option<&Arc<Job>>) -> Result<(), ErrorKind> {
    job.and_then(|job| job.aborted()).map_or(Ok(()), Err)
}

impl TcpPath {
    pub(crate) fn new(mesh: Mesh, options: &Options) -> Self {
        let timing = options.timing.then(Timing::default);
        Self {
            wire: Wire::new(mesh),
            round: 0,
            failed: None,
            last_label: String::new(),
            timing,
            flight: Flight::new(options.depth),
            job: None,
        }
    }

    /// Asks `job` from now on.
    pub(crate) fn watch(&mut self, job: Arc<Job>) {
        self.job = Some(job);
    }

    /// The round of the last call, or the one that failed: a call that could not begin belongs to it.
    pub(crate) fn round(&self) -> u64 {
        self.failed.unwrap_or(self.round)
    }

    pub(crate) fn timing(&self) -> Option<Timing> {
        self.timing
    }

    pub(crate) fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        self.wire.contributions(slot)
    }

    /// Tells all peers that this rank gives the group up after the last round, and why.
    pub(crate) fn abort(&mut self, kind: &ErrorKind) {
        self.wire.poison(self.round + 1, &job::encode(kind));
    }

    pub(crate) fn close(&mut self) {
        self.wire.close();
    }

    pub(crate) fn all_reduce(
        &mut self,
        ops: Ops<'_>,
        values: &mut [i64],
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        let overflow = self.call(round, |wire, exchange, guard| {
            wire.all_reduce(exchange, ops, values, guard)
        });
        self.wire.settle(values, overflow.and_then(fits))
    }

    pub(crate) fn all_gather(
        &mut self,
        values: &[i64],
        into: &mut Vec<i64>,
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        self.call(round, |wire, exchange, guard| {
            wire.gather(exchange, values, guard)
        })?;
        into.extend_from_slice(self.wire.total());
        Ok(())
    }

    pub(crate) fn all_gather_bytes(
        &mut self,
        bytes: &[u8],
        round: &Round<'_>,
    ) -> Result<Vec<Vec<u8>>, ErrorKind> {
        self.call(round, |wire, exchange, guard| {
            wire.gather_bytes(exchange, bytes, guard)
        })
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

    /// Sends this rank's row; the peers' are taken when the round is finished.
    pub(crate) fn start(
        &mut self,
        ops: Ops<'_>,
        values: &[i64],
        round: &Round<'_>,
    ) -> Result<Arc<Finished>, ErrorKind> {
        self.begin(round)?;
        if self.flight.is_full() {
            self.land(job::deadline(Instant::now(), round.timeout), round.ranks)?;
        }
        let started = Instant::now();
        let flying = Flying::new(self.round + 1, round.label, ops, values);
        let posted = self.wire.start(&flying.exchange(started), ops, values);
        self.round += 1;
        if let Err(error) = posted {
            let error = ExchangeError::Mesh(error);
            return Err(self.give_up(error, round.ranks, self.round, started));
        }
        Ok(self.flight.push(flying))
    }

    /// Completes the rounds in flight up to that of `finished`, oldest first.
    pub(crate) fn finish(
        &mut self,
        finished: &Arc<Finished>,
        round: &Round<'_>,
    ) -> Result<Vec<i64>, ErrorKind> {
        let deadline = job::deadline(Instant::now(), round.timeout);
        loop {
            if let Some(result) = self.flight.result(finished) {
                return result;
            }
            self.land(deadline, round.ranks)?;
        }
    }

    /// Completes the oldest round in flight.
    fn land(&mut self, deadline: Instant, ranks: &[usize]) -> Result<(), ErrorKind> {
        let Some(flying) = self.flight.take_oldest() else {
            return Ok(());
        };
        let started = Instant::now();
        let exchange = flying.exchange(deadline);
        let ops = flying.ops.borrow();
        let guard = || unless_aborted(self.job.as_ref());
        let outcome = self.wire.finish(&exchange, ops, &flying.values, guard);
        match outcome {
            Ok(overflow) => {
                self.settled(&flying.label, flying.arrived_ns);
                flying.settle(fits(overflow).map(|()| self.wire.total().to_vec()));
                Ok(())
            }
            Err(error) => {
                self.flight.clear();
                Err(self.give_up(error, ranks, flying.round, started))
            }
        }
    }

    /// Whether a call can begin at all.
    fn begin(&self, round: &Round<'_>) -> Result<(), ErrorKind> {
        check_label(round.label)?;
        unless_aborted(self.job.as_ref())
    }

    /// One round, behind those in flight; whatever fails it is told to all peers.
    fn call<T>(
        &mut self,
        round: &Round<'_>,
        travel: impl FnOnce(
            &mut Wire,
            &Exchange<'_>,
            &mut dyn FnMut() -> Result<(), ErrorKind>,
        ) -> Result<T, ExchangeError<Stop<ErrorKind>>>,
    ) -> Result<T, ErrorKind> {
        self.begin(round)?;
        let started = Instant::now();
        let deadline = job::deadline(started, round.timeout);
        while !self.flight.is_empty() {
            self.land(deadline, round.ranks)?;
        }
        let arrived_ns = monotonic_ns();
        let exchange = Exchange {
            round: self.round + 1,
            label: round.label,
            deadline,
        };
        let mut guard = || unless_aborted(self.job.as_ref());
        let outcome = travel(&mut self.wire, &exchange, &mut guard);
        self.round += 1;
        match outcome {
            Ok(value) => {
                self.settled(round.label, arrived_ns);
                Ok(value)
            }
            Err(error) => Err(self.give_up(error, round.ranks, self.round, started)),
        }
    }

    fn settled(&mut self, label: &str, arrived_ns: u64) {
        label.clone_into(&mut self.last_label);
        if let Some(timing) = &mut self.timing {
            let last = self.wire.last_sent_ns.max(arrived_ns);
            timing.skew = Duration::from_nanos(last - arrived_ns);
            timing.transport = Duration::from_nanos(monotonic_ns().saturating_sub(last));
        }
    }

    /// Why `round` has failed, told to all peers.
    fn give_up(
        &mut self,
        error: ExchangeError<Stop<ErrorKind>>,
        ranks: &[usize],
        round: u64,
        started: Instant,
    ) -> ErrorKind {
        let kind = self.failure(error, ranks, round, started.elapsed());
        self.failed.get_or_insert(round);
        self.wire.poison(round, &job::encode(&kind));
        kind
    }

    /// Who of `ranks` has died, as the rendezvous knows, or will in a moment.
    fn dead_among(&self, ranks: &[usize]) -> Option<usize> {
        let job = self.job.as_ref()?;
        first_sign(|| job.dead(ranks))
    }

    fn failure(
        &self,
        error: ExchangeError<Stop<ErrorKind>>,
        ranks: &[usize],
        round: u64,
        after: Duration,
    ) -> ErrorKind {
        let world = |peer: usize| ranks.get(peer).copied().unwrap_or(peer);
        let me = self.wire.me();
        let last_round = round - 1;
        // An abort closes connections too, and says more.
        if let Err(kind) = unless_aborted(self.job.as_ref()) {
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
            // Who left may have left because somebody died.
            ExchangeError::Mesh(MeshError::Left { peer }) => match self.dead_among(ranks) {
                Some(rank) => ErrorKind::PeerDied { rank, last_round },
                None => ErrorKind::PeerClosed {
                    rank: world(peer),
                    last_round,
                },
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

pub(super) fn describe(rank: usize, shown: Shown) -> Described {
    let kind = Kind::from_code(shown.operation.into());
    let shape = match (kind, shown.width) {
        (Some(Kind::Broadcast), _) => format!("root {}", shown.root),
        (Some(Kind::GatherBytes), _) => "bytes".to_owned(),
        (Some(Kind::Each), _) => {
            let names = shown
                .codes
                .iter()
                .map(|code| Kind::from_code((*code).into()));
            let names: Vec<_> = names
                .map(|kind| kind.map_or_else(|| "unknown".to_owned(), |kind| kind.to_string()))
                .collect();
            names.join(",")
        }
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
