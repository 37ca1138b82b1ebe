//! Rounds of a group that spans several hosts: the ranks of one host meet in their table, one leader of each host
//! exchanges with the others, and what came of it returns through the table.
//!
//! A round of the group is two of the table. In the first, all announce the same call and the leader gets their
//! contributions; in the second, it gives the verdict to all. What fails between hosts is a verdict too: so every rank
//! of a host takes the value, or none does.

use super::Round;
use super::data::{Shown, get, put};
use super::engine::{Engine, Severed, Witness};
use super::table::{TablePath, description};
use super::tcp::{Finished, describe};
use crate::codec::{Fields, Put};
use crate::error::{ErrorKind, Silent};
use crate::job;
use crate::op::{Op, Ops, OwnOps};
use crate::options::Options;
use rankpact_shm::{Aborter, Announcement, FREE_WORDS, Kind, Timing, monotonic_ns};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The leader's rank within its host.
const LEADER: usize = 0;

/// Bytes of a contribution that ride in its rank's row, behind its deadline and its length.
const INLINE: usize = 8 * (FREE_WORDS - 2);

/// How much longer than the ranks of its host a leader waits for the other hosts, and these for the leader: who knows
/// better who is missing speaks first.
const GRACE: Duration = Duration::from_millis(200);

/// How long a broken connection may be the first sign of an abort.
const HEARSAY: Duration = Duration::from_millis(100);

/// For how long a close still completes what was started.
const PARTING: Duration = Duration::from_secs(2);

/// Which member is on which host, as one of them sees it.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    /// The members on each host, by their place in the group; the first is the leader.
    places: Vec<Vec<usize>>,
    /// This host, and this member's rank on it.
    here: usize,
    seat: usize,
}

impl Hosts {
    /// The hosts as the member at place `me` of the group sees them; it must be on one.
    pub(crate) fn new(places: Vec<Vec<usize>>, me: usize) -> Self {
        let seat = |places: &Vec<usize>| places.iter().position(|place| *place == me);
        let found = places.iter().map(seat).enumerate();
        let (here, seat) = found
            .filter_map(|(host, seat)| Some((host, seat?)))
            .next()
            .unwrap_or_default();
        Self { places, here, seat }
    }

    /// This host.
    pub(crate) fn here(&self) -> usize {
        self.here
    }

    /// This member's rank on its host.
    pub(crate) fn seat(&self) -> usize {
        self.seat
    }

    /// Whether this member is the leader of its host.
    pub(crate) fn leads(&self) -> bool {
        self.seat == LEADER
    }

    /// The members on this host, by their place in the group.
    pub(crate) fn places(&self) -> &[usize] {
        &self.places[self.here]
    }

    /// World ranks of the members on this host, given those of the group.
    pub(crate) fn ranks(&self, ranks: &[usize]) -> Vec<usize> {
        self.places().iter().map(|place| ranks[*place]).collect()
    }
}

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
    /// Rounds that were started and have not begun, oldest first; at most so many.
    flight: VecDeque<Flying>,
    depth: usize,
}

/// A round that was started.
#[derive(Debug)]
struct Flying {
    round: u64,
    label: String,
    ops: OwnOps,
    values: Vec<i64>,
    finished: Arc<Finished>,
}

/// What a call does.
#[derive(Clone, Copy, Debug)]
enum Work<'a> {
    Barrier,
    Reduce { ops: Ops<'a>, slots: usize },
    Gather { slots: usize },
    GatherBytes,
    Broadcast { root: usize },
}

impl Work<'_> {
    fn kind(self) -> Kind {
        match self {
            Self::Barrier => Kind::Barrier,
            Self::Reduce { ops, .. } => ops.kind(),
            Self::Gather { .. } => Kind::Gather,
            Self::GatherBytes => Kind::GatherBytes,
            Self::Broadcast { .. } => Kind::Broadcast,
        }
    }

    /// What the ranks of a host compare besides kind and label.
    fn description(self) -> i64 {
        let word = |number| i64::try_from(number).unwrap_or(i64::MAX);
        match self {
            Self::Barrier | Self::GatherBytes => 0,
            Self::Reduce { ops, slots } => description(ops, slots),
            Self::Gather { slots } => word(slots),
            Self::Broadcast { root } => word(root),
        }
    }

    /// What hosts compare.
    fn shown(self, label: &str) -> Shown {
        let (root, slots, codes) = match self {
            Self::Barrier | Self::GatherBytes => (0, 0, Vec::new()),
            Self::Reduce { ops, slots } => (0, slots, ops.codes()),
            Self::Gather { slots } => (0, slots, Vec::new()),
            Self::Broadcast { root } => (root, 0, Vec::new()),
        };
        Shown {
            operation: self.kind() as u8,
            root: u16::try_from(root).unwrap_or(u16::MAX),
            width: u32::try_from(slots).unwrap_or(u32::MAX),
            label: label.to_owned(),
            codes,
        }
    }
}

/// The call in front of what a host sends.
fn header(shown: &Shown) -> Vec<u8> {
    let mut bytes = vec![shown.operation];
    bytes.extend(shown.root.to_le_bytes());
    bytes.extend(shown.width.to_le_bytes());
    bytes.put_bytes(shown.label.as_bytes());
    bytes.put_bytes(&shown.codes);
    bytes
}

fn shown(bytes: &[u8]) -> Option<Shown> {
    let mut fields = Fields(bytes);
    Some(Shown {
        operation: fields.u8()?,
        root: fields.u16()?,
        width: fields.u32()?,
        label: fields.text()?,
        codes: fields.bytes()?.to_vec(),
    })
}

/// What the leader tells its host.
#[derive(Debug)]
enum Verdict {
    Value(Vec<u8>),
    Overflow { slot: usize },
    Failed(ErrorKind),
}

impl Verdict {
    fn encode(self) -> Vec<u8> {
        let (mut bytes, last) = match self {
            Self::Value(bytes) => (bytes, 0),
            Self::Overflow { slot } => ((slot as u64).to_le_bytes().to_vec(), 1),
            Self::Failed(kind) => (job::encode(&kind), 2),
        };
        bytes.push(last);
        bytes
    }

    fn decode(mut bytes: Vec<u8>) -> Option<Self> {
        match bytes.pop()? {
            0 => Some(Self::Value(bytes)),
            1 => {
                let slot = usize::try_from(Fields(&bytes).u64()?).ok()?;
                Some(Self::Overflow { slot })
            }
            2 => serde_json::from_slice(&bytes).ok().map(Self::Failed),
            _ => None,
        }
    }
}

/// The totals of some ranks, which may not fit 64 bits.
fn total(ops: Ops<'_>, slots: usize, contributions: &[Vec<u8>]) -> Option<Vec<i128>> {
    let mut rows = contributions.iter();
    let mut totals: Vec<i128> = get(rows.next()?).map(i128::from).collect();
    for row in rows {
        if row.len() != 8 * slots {
            return None;
        }
        let each = totals.iter_mut().zip(get(row)).enumerate();
        each.for_each(|(slot, (total, value))| *total = ops.of(slot).fold(*total, value));
    }
    (totals.len() == slots).then_some(totals)
}

/// Whether the totals of a host may need more than 64 bits.
fn is_wide(ops: Ops<'_>) -> bool {
    matches!(ops, Ops::All(Op::Sum) | Ops::Each(_))
}

fn put_totals(ops: Ops<'_>, totals: &[i128], bytes: &mut Vec<u8>) {
    let width = if is_wide(ops) { 16 } else { 8 };
    for total in totals {
        bytes.extend_from_slice(&total.to_le_bytes()[..width]);
    }
}

fn get_totals(ops: Ops<'_>, bytes: &[u8]) -> Vec<i128> {
    if is_wide(ops) {
        let total = |bytes: &[u8]| i128::from_le_bytes(bytes.try_into().unwrap_or_default());
        bytes.chunks_exact(16).map(total).collect()
    } else {
        get(bytes).map(i128::from).collect()
    }
}

/// `totals` as 64-bit slots, or the first that does not fit.
fn narrow(totals: &[i128]) -> Verdict {
    let mut values = Vec::with_capacity(totals.len());
    for (slot, total) in totals.iter().enumerate() {
        match i64::try_from(*total) {
            Ok(value) => values.push(value),
            Err(_) => return Verdict::Overflow { slot },
        }
    }
    let mut bytes = Vec::with_capacity(8 * values.len() + 1);
    put(&values, &mut bytes);
    Verdict::Value(bytes)
}

fn pack<'a>(list: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    list.into_iter().for_each(|item| bytes.put_bytes(item));
    bytes
}

fn unpack(bytes: &[u8], count: usize) -> Option<Vec<&[u8]>> {
    let mut fields = Fields(bytes);
    let list = (0..count)
        .map(|_| fields.bytes())
        .collect::<Option<Vec<_>>>()?;
    fields.end(list)
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
    *len = bytes.len() as u64;
    if bytes.len() > INLINE {
        announcement.travelling = bytes.len() as u64;
        return announcement;
    }
    for (word, eight) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..eight.len()].copy_from_slice(eight);
        *word = u64::from_le_bytes(padded);
    }
    announcement
}

fn inline_bytes(announcement: &Announcement) -> Vec<u8> {
    let [_, len, words @ ..] = announcement.free;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(usize::try_from(len).unwrap_or(INLINE));
    bytes
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
            leaders: hosts.places.iter().map(leader).collect(),
            hosts,
            engine,
            round: 0,
            failed: None,
            last_label: String::new(),
            timing: options.timing.then(Timing::default),
            flight: VecDeque::new(),
            depth: options.depth,
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
            .front()
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
        self.table.close();
        if let Some(engine) = &mut self.engine {
            engine.close();
        }
    }

    pub(crate) fn all_reduce(
        &mut self,
        ops: Ops<'_>,
        values: &mut [i64],
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        let mut bytes = Vec::with_capacity(8 * values.len());
        put(values, &mut bytes);
        let slots = values.len();
        let reduced = self.call(Work::Reduce { ops, slots }, &bytes, round)?;
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
        let mut bytes = Vec::with_capacity(8 * values.len());
        put(values, &mut bytes);
        let slots = values.len();
        let gathered = self.call(Work::Gather { slots }, &bytes, round)?;
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
        let is_root = self.hosts.places()[self.hosts.seat] == root;
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
        if self.flight.len() >= self.depth {
            self.land(job::deadline(Instant::now(), round.timeout))?;
        }
        self.round += 1;
        let flying = Flying {
            round: self.round,
            label: round.label.to_owned(),
            ops: ops.into(),
            values: values.to_vec(),
            finished: Arc::default(),
        };
        let finished = Arc::clone(&flying.finished);
        self.flight.push_back(flying);
        Ok(finished)
    }

    /// Completes the started rounds up to that of `finished`, oldest first.
    pub(crate) fn finish(
        &mut self,
        finished: &Arc<Finished>,
        round: &Round<'_>,
    ) -> Result<Vec<i64>, ErrorKind> {
        let deadline = job::deadline(Instant::now(), round.timeout);
        loop {
            if let Some(result) = finished.get() {
                return result.clone();
            }
            let ours = |flying: &Flying| Arc::ptr_eq(&flying.finished, finished);
            if !self.flight.iter().any(ours) {
                return Err(ErrorKind::Usage(
                    "this round was started in another group".to_owned(),
                ));
            }
            self.land(deadline)?;
        }
    }

    /// Completes the oldest started round.
    fn land(&mut self, deadline: Instant) -> Result<(), ErrorKind> {
        let Some(flying) = self.flight.pop_front() else {
            return Ok(());
        };
        let mut bytes = Vec::with_capacity(8 * flying.values.len());
        put(&flying.values, &mut bytes);
        let going = Going {
            work: Work::Reduce {
                ops: flying.ops.borrow(),
                slots: flying.values.len(),
            },
            label: &flying.label,
            started: Instant::now(),
            deadline,
        };
        let total = match self.go(flying.round, going, &bytes) {
            Ok(bytes) => Ok(get(&bytes).collect()),
            Err(kind @ ErrorKind::Overflow { .. }) => Err(kind),
            Err(kind) => {
                self.flight.clear();
                return Err(kind);
            }
        };
        // Set here alone, once for each round.
        let _ = flying.finished.set(total);
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
            .broadcast(LEADER, &mut verdict, &going.round(&self.ranks, 2 * GRACE))
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
        let mut sent = header.clone();
        if self.contribute(work, contributions, &mut sent).is_none() {
            return Verdict::Failed(garbled());
        }
        let (Some(engine), here) = (&mut self.engine, self.hosts.here) else {
            return Verdict::Failed(garbled());
        };
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
            Severed::Died(host) => first_sign(&mut comparison).unwrap_or(Severed::Died(host)),
            other => other,
        });
        let mut brought = comparison.brought;
        match outcome {
            Ok(()) => {
                brought[here] = sent.split_off(header.len());
                self.conclude(work, &brought)
                    .unwrap_or_else(|| Verdict::Failed(garbled()))
            }
            Err(severed) => Verdict::Failed(self.failure(severed, round, going.started)),
        }
    }

    /// Appends what this host comes to.
    fn contribute(
        &self,
        work: Work<'_>,
        contributions: &[Vec<u8>],
        sent: &mut Vec<u8>,
    ) -> Option<()> {
        match work {
            Work::Barrier => {}
            Work::Reduce { ops, slots } => {
                put_totals(ops, &total(ops, slots, contributions)?, sent);
            }
            Work::Gather { .. } | Work::GatherBytes => {
                sent.extend(pack(contributions.iter().map(Vec::as_slice)));
            }
            Work::Broadcast { root } => {
                let mut here = self.hosts.places().iter();
                if let Some(at) = here.position(|place| *place == root) {
                    sent.extend_from_slice(&contributions[at]);
                }
            }
        }
        Some(())
    }

    /// What all hosts come to, given what each has sent.
    fn conclude(&self, work: Work<'_>, brought: &[Vec<u8>]) -> Option<Verdict> {
        let places = &self.hosts.places;
        match work {
            Work::Barrier => Some(Verdict::Value(Vec::new())),
            Work::Reduce { ops, slots } => {
                let mut hosts = brought.iter().map(|bytes| get_totals(ops, bytes));
                let mut totals = hosts.next()?;
                for theirs in hosts {
                    if theirs.len() != slots {
                        return None;
                    }
                    let each = totals.iter_mut().zip(theirs).enumerate();
                    each.for_each(|(slot, (total, theirs))| {
                        *total = ops.of(slot).join(*total, theirs);
                    });
                }
                (totals.len() == slots).then(|| narrow(&totals))
            }
            Work::Gather { .. } | Work::GatherBytes => {
                let size = places.iter().map(Vec::len).sum();
                let mut all: Vec<&[u8]> = vec![&[]; size];
                for (places, bytes) in places.iter().zip(brought) {
                    for (place, item) in places.iter().zip(unpack(bytes, places.len())?) {
                        all[*place] = item;
                    }
                }
                Some(Verdict::Value(pack(all)))
            }
            Work::Broadcast { root } => {
                let host = places.iter().position(|places| places.contains(&root))?;
                Some(Verdict::Value(brought[host].clone()))
            }
        }
    }

    fn failure(&self, severed: Severed, round: u64, started: Instant) -> ErrorKind {
        let leader = |host: usize| self.leaders.get(host).copied().unwrap_or(host);
        let last_round = round - 1;
        match severed {
            Severed::Witness(kind) => kind,
            Severed::Missing(hosts) => ErrorKind::Timeout {
                by: leader(self.hosts.here),
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

/// An abort closes connections too, and says more: what is known of it a moment later.
fn first_sign(witness: &mut impl Witness) -> Option<Severed> {
    let until = Instant::now() + HEARSAY;
    while Instant::now() < until {
        if let Err(kind) = witness.idle() {
            return Some(Severed::Witness(kind));
        }
        thread::sleep(Duration::from_millis(5));
    }
    None
}
