//! Rounds of a group that spans several hosts: the ranks of one host meet in their table, one leader of each host
//! exchanges with the others, and what came of it returns through the table.
//!
//! A round of the group is two of the table. In the first, all announce the same call and the leader gets their
//! contributions; in the second, it gives the verdict to all. What fails between hosts is a verdict too: so every rank
//! of a host takes the value, or none does.

mod members;
mod verdict;
mod work;

pub(crate) use members::Hosts;

use super::data::Shown;
use super::engine::{Engine, Severed, Witness};
use super::flight::{Finished, Flight, Flying};
use super::slots::{bytes_of, get};
use super::table::{TablePath, get_inline, put_inline};
use super::tcp::describe;
use super::{Round, first_sign};
use crate::error::{ErrorKind, Silent};
use crate::job;
use crate::op::Ops;
use crate::options::Options;
use members::LEADER;
use rankpact_shm::{Aborter, Announcement, Timing, monotonic_ns};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use verdict::Verdict;
use work::{Work, header, shown, unpack};

/// How much longer than the ranks of its host a leader waits for the other hosts: who knows better who is missing speaks
/// first.
const GRACE: Duration = Duration::from_millis(200);

/// How much longer than its own deadline a rank waits for the verdict.
const PATIENCE: Duration = Duration::from_millis(500);

/// For how long a close still completes what was started.
const PARTING: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct HostsPath {
    table: TablePath,
    hosts: Hosts,
    /// World ranks of the members on this host, in the order of its table.
    ranks: Vec<usize>,
    /// World ranks of the leaders.
    leaders: Vec<usize>,
    /// On the leader alone.
    engine: Option<Box<dyn Engine>>,
    round: u64,
    /// The round that failed.
    failed: Option<u64>,
    last_label: String,
    timing: Option<Timing>,
    /// Rounds that were started and have not begun.
    flight: Flight,
}

fn garbled() -> ErrorKind {
    ErrorKind::Io("what a host sent is not what its call needs".to_owned())
}

/// The monotonic clock of this host at `deadline`.
fn clock(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
    monotonic_ns().saturating_add(left)
}

fn announce(bytes: &[u8], deadline: Instant) -> Announcement {
    let mut announcement = Announcement::default();
    let [until, len, words @ ..] = &mut announcement.free;
    *until = clock(deadline);
    announcement.travelling = put_inline(bytes, len, words);
    announcement
}

fn inline_bytes(announcement: &Announcement) -> Vec<u8> {
    let [_, len, words @ ..] = &announcement.free;
    get_inline(*len, words)
}

/// A failure of the table, whose rounds are two for each of the group.
fn in_rounds_of_the_group(mut kind: ErrorKind) -> ErrorKind {
    match &mut kind {
        ErrorKind::PeerDied { last_round, .. } | ErrorKind::PeerClosed { last_round, .. } => {
            *last_round = last_round.div_ceil(2);
        }
        ErrorKind::Timeout { missing, .. } => {
            for silent in missing {
                silent.last_round = silent.last_round.div_ceil(2);
            }
        }
        _ => {}
    }
    kind
}

/// One call, as it is made.
#[derive(Clone, Copy, Debug)]
struct Going<'a> {
    work: Work<'a>,
    label: &'a str,
    started: Instant,
    deadline: Instant,
}

impl Going<'_> {
    fn round<'a>(&'a self, ranks: &'a [usize], longer: Duration) -> Round<'a> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        Round {
            label: self.label,
            timeout: left.saturating_add(longer),
            ranks,
        }
    }
}

/// Compares what other hosts send with this host's call, and looks after this host meanwhile.
struct Comparison<'a> {
    table: &'a mut TablePath,
    ranks: &'a [usize],
    leaders: &'a [usize],
    here: usize,
    mine: &'a Shown,
    header: &'a [u8],
    /// What each host has sent, behind its header.
    brought: Vec<Vec<u8>>,
}

impl Witness for Comparison<'_> {
    fn arrived(&mut self, host: usize, bytes: &[u8]) -> Result<(), ErrorKind> {
        if let Some(brought) = bytes.strip_prefix(self.header) {
            self.brought[host].extend_from_slice(brought);
            return Ok(());
        }
        let theirs = shown(bytes).ok_or_else(garbled)?;
        let mut calls = [
            describe(self.leaders[self.here], self.mine.clone()),
            describe(self.leaders[host], theirs),
        ];
        calls.sort_by_key(|call| call.rank);
        let [one, other] = calls.map(Box::new);
        Err(ErrorKind::Mismatch { one, other })
    }

    fn idle(&mut self) -> Result<(), ErrorKind> {
        self.table.watch(self.ranks).map_err(in_rounds_of_the_group)
    }
}

impl HostsPath {
    /// The path of a group whose members have the world ranks `ranks`; `engine` is the leader's.
    pub(crate) fn new(
        table: TablePath,
        hosts: Hosts,
        ranks: &[usize],
        engine: Option<Box<dyn Engine>>,
        options: &Options,
    ) -> Self {
        let leader = |places: &Vec<usize>| ranks[places[LEADER]];
        Self {
            table,
            ranks: hosts.ranks(ranks),
            leaders: hosts.all().iter().map(leader).collect(),
            hosts,
            engine,
            round: 0,
            failed: None,
            last_label: String::new(),
            timing: options.timing.then(Timing::default),
            flight: Flight::new(options.depth),
        }
    }

    pub(crate) fn aborter(&self) -> Aborter {
        self.table.aborter()
    }

    /// The round of the last call, or the one that failed.
    pub(crate) fn round(&self) -> u64 {
        self.failed.unwrap_or(self.round)
    }

    pub(crate) fn timing(&self) -> Option<Timing> {
        self.timing
    }

    /// Tells the other hosts that this rank gives the group up after the rounds it has completed, and why.
    pub(crate) fn abort(&mut self, kind: &ErrorKind) {
        let round = self
            .flight
            .oldest()
            .map_or(self.round + 1, |flying| flying.round);
        if let Some(engine) = &mut self.engine {
            engine.give_up(round, &job::encode(kind));
        }
    }

    pub(crate) fn close(&mut self) {
        if self.failed.is_none() && !thread::panicking() {
            // The others may count on what was started here. If it fails, nobody is there to be told.
            let _ = self.land_all(job::deadline(Instant::now(), PARTING));
        }
        let (table, engine) = (&mut self.table, &mut self.engine);
        thread::scope(|scope| {
            if let Some(engine) = engine {
                // Side by side: either waits a while for its peers. Without a thread it closes when it is dropped.
                let _ = thread::Builder::new().spawn_scoped(scope, || engine.close());
            }
            table.close();
        });
    }

    pub(crate) fn all_reduce(
        &mut self,
        ops: Ops<'_>,
        values: &mut [i64],
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        let slots = values.len();
        let reduced = self.call(Work::Reduce { ops, slots }, &bytes_of(values), round)?;
        let totals = values.iter_mut().zip(get(&reduced));
        totals.for_each(|(value, total)| *value = total);
        Ok(())
    }

    pub(crate) fn all_gather(
        &mut self,
        values: &[i64],
        into: &mut Vec<i64>,
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        let slots = values.len();
        let gathered = self.call(Work::Gather { slots }, &bytes_of(values), round)?;
        let rows = unpack(&gathered, round.ranks.len()).ok_or_else(garbled)?;
        rows.into_iter().for_each(|row| into.extend(get(row)));
        Ok(())
    }

    pub(crate) fn all_gather_bytes(
        &mut self,
        bytes: &[u8],
        round: &Round<'_>,
    ) -> Result<Vec<Vec<u8>>, ErrorKind> {
        let gathered = self.call(Work::GatherBytes, bytes, round)?;
        let all = unpack(&gathered, round.ranks.len()).ok_or_else(garbled)?;
        Ok(all.into_iter().map(<[u8]>::to_vec).collect())
    }

    pub(crate) fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        let is_root = self.hosts.places()[self.hosts.seat()] == root;
        let mine: &[u8] = if is_root { bytes } else { &[] };
        let got = self.call(Work::Broadcast { root }, mine, round)?;
        *bytes = got;
        Ok(())
    }

    pub(crate) fn barrier(&mut self, round: &Round<'_>) -> Result<(), ErrorKind> {
        self.call(Work::Barrier, &[], round).map(drop)
    }

    /// Keeps this rank's row: the round begins when it is finished, or at the next call. Between hosts nothing moves
    /// while its leader is not in a call, so beginning earlier would promise too much.
    pub(crate) fn start(
        &mut self,
        ops: Ops<'_>,
        values: &[i64],
        round: &Round<'_>,
    ) -> Result<Arc<Finished>, ErrorKind> {
        // What can be refused is refused now: later, the round counts.
        self.table.intern(round.label)?;
        if self.flight.is_full() {
            self.land(job::deadline(Instant::now(), round.timeout))?;
        }
        self.round += 1;
        let flying = Flying::new(self.round, round.label, ops, values);
        Ok(self.flight.push(flying))
    }

    /// Completes the started rounds up to that of `finished`, oldest first.
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
            self.land(deadline)?;
        }
    }

    /// Completes the oldest started round.
    fn land(&mut self, deadline: Instant) -> Result<(), ErrorKind> {
        let Some(flying) = self.flight.take_oldest() else {
            return Ok(());
        };
        let going = Going {
            work: Work::Reduce {
                ops: flying.ops.borrow(),
                slots: flying.values.len(),
            },
            label: &flying.label,
            started: Instant::now(),
            deadline,
        };
        let total = match self.go(flying.round, going, &bytes_of(&flying.values)) {
            Ok(bytes) => Ok(get(&bytes).collect()),
            Err(kind @ ErrorKind::Overflow { .. }) => Err(kind),
            Err(kind) => {
                self.flight.clear();
                return Err(kind);
            }
        };
        flying.settle(total);
        Ok(())
    }

    fn land_all(&mut self, deadline: Instant) -> Result<(), ErrorKind> {
        while !self.flight.is_empty() {
            self.land(deadline)?;
        }
        Ok(())
    }

    /// One round, behind those that were started.
    fn call(
        &mut self,
        work: Work<'_>,
        bytes: &[u8],
        round: &Round<'_>,
    ) -> Result<Vec<u8>, ErrorKind> {
        let started = Instant::now();
        let deadline = job::deadline(started, round.timeout);
        self.table.intern(round.label)?;
        self.land_all(deadline)?;
        self.round += 1;
        let going = Going {
            work,
            label: round.label,
            started,
            deadline,
        };
        self.go(self.round, going, bytes)
    }

    /// Makes a call that counts as `round`; what it brings.
    fn go(&mut self, round: u64, going: Going<'_>, bytes: &[u8]) -> Result<Vec<u8>, ErrorKind> {
        match self.both_rounds(round, going, bytes) {
            Ok(Verdict::Value(bytes)) => Ok(bytes),
            Ok(Verdict::Overflow { slot }) => Err(ErrorKind::Overflow { slot }),
            Ok(Verdict::Failed(kind)) | Err(kind) => {
                self.failed = Some(round);
                if let Some(engine) = &mut self.engine {
                    engine.give_up(round, &job::encode(&kind));
                }
                Err(kind)
            }
        }
    }

    /// The two rounds of the table, and between them, on the leader, the exchange.
    fn both_rounds(
        &mut self,
        round: u64,
        going: Going<'_>,
        bytes: &[u8],
    ) -> Result<Verdict, ErrorKind> {
        let (contributions, until) = self.assemble(going, bytes)?;
        let mut skew = self.table.timing().unwrap_or_default().skew;
        let assembled = Instant::now();
        let mut verdict = if self.engine.is_some() {
            let until = job::deadline(until, GRACE);
            self.confer(round, going, &contributions, until).encode()
        } else {
            Vec::new()
        };
        let conferred = assembled.elapsed();
        self.table
            .broadcast(LEADER, &mut verdict, &going.round(&self.ranks, PATIENCE))
            .map_err(in_rounds_of_the_group)?;
        going.label.clone_into(&mut self.last_label);
        if let Some(timing) = &mut self.timing {
            // Clocks of hosts cannot be compared: all of the exchange counts as waiting for others.
            skew += match &self.engine {
                Some(_) => conferred,
                None => self.table.timing().unwrap_or_default().skew,
            };
            timing.skew = skew;
            timing.transport = going.started.elapsed().saturating_sub(skew);
        }
        Verdict::decode(verdict).ok_or_else(garbled)
    }

    /// Meets the ranks of this host. On the leader, what each of them contributes; and when the first of them gives up.
    fn assemble(
        &mut self,
        going: Going<'_>,
        bytes: &[u8],
    ) -> Result<(Vec<Vec<u8>>, Instant), ErrorKind> {
        let Going { work, deadline, .. } = going;
        let travelled = self
            .table
            .described(
                work.kind(),
                work.description(),
                announce(bytes, deadline),
                &going.round(&self.ranks, Duration::ZERO),
                |wire, exchange, guard| wire.gather_at(exchange, LEADER, bytes, guard),
            )
            .map_err(in_rounds_of_the_group)?;
        let announced: Vec<_> = (0..self.ranks.len())
            .map(|rank| self.table.announced(rank))
            .collect();
        let until = announced.iter().map(|said| said.free[0]).min();
        let left = until.map_or(0, |until| until.saturating_sub(monotonic_ns()));
        let until = job::deadline(Instant::now(), Duration::from_nanos(left));
        let contributions =
            travelled.unwrap_or_else(|| announced.iter().map(inline_bytes).collect());
        Ok((contributions, until))
    }

    /// What this host comes to, given to the other hosts; what all come to.
    fn confer(
        &mut self,
        round: u64,
        going: Going<'_>,
        contributions: &[Vec<u8>],
        until: Instant,
    ) -> Verdict {
        let Going { work, label, .. } = going;
        let mine = work.shown(label);
        let header = header(&mine);
        let here = self.hosts.here();
        let (Some(engine), Some(own)) = (
            &mut self.engine,
            work.contribute(&self.hosts, contributions),
        ) else {
            return Verdict::Failed(garbled());
        };
        let sent = [&header[..], &own].concat();
        let mut comparison = Comparison {
            table: &mut self.table,
            ranks: &self.ranks,
            leaders: &self.leaders,
            here,
            mine: &mine,
            header: &header,
            brought: vec![Vec::new(); self.leaders.len()],
        };
        let outcome = engine.exchange(round, &sent, &mut comparison, until);
        let outcome = outcome.map_err(|severed| match severed {
            // An abort closes connections too, and says more.
            Severed::Died(host) => {
                first_sign(|| comparison.idle().err()).map_or(Severed::Died(host), Severed::Witness)
            }
            other => other,
        });
        let mut brought = comparison.brought;
        match outcome {
            Ok(()) => {
                brought[here] = own;
                work.conclude(&self.hosts, &mut brought)
                    .unwrap_or_else(|| Verdict::Failed(garbled()))
            }
            Err(severed) => Verdict::Failed(self.failure(severed, round, going.started)),
        }
    }

    fn failure(&self, severed: Severed, round: u64, started: Instant) -> ErrorKind {
        let leader = |host: usize| self.leaders.get(host).copied().unwrap_or(host);
        let last_round = round - 1;
        match severed {
            Severed::Witness(kind) => kind,
            Severed::Missing(hosts) => ErrorKind::Timeout {
                by: leader(self.hosts.here()),
                after: started.elapsed(),
                missing: hosts
                    .into_iter()
                    .map(|host| Silent {
                        rank: leader(host),
                        last_round,
                        last_label: self.last_label.clone(),
                    })
                    .collect(),
            },
            Severed::Died(host) => ErrorKind::PeerDied {
                rank: leader(host),
                last_round,
            },
            Severed::Left(host) => ErrorKind::PeerClosed {
                rank: leader(host),
                last_round,
            },
            Severed::GaveUp(host, why) => serde_json::from_slice(&why).unwrap_or_else(|_| {
                ErrorKind::Io(format!("rank {} gave up without a reason", leader(host)))
            }),
            Severed::Other(what) => ErrorKind::Io(what),
        }
    }
}
