//! A group: an ordered set of ranks with its own table and its own round counter.

use crate::attach::{Members, attach};
use crate::error::{Error, ErrorKind};
use crate::job::{self, Job};
use crate::mesh::Mesh;
use crate::op::{Call, Op, Ops};
use crate::options::{Crowd, Options};
use crate::pair::{Hub, Venue};
use crate::pairs::Pairs;
use crate::path::table::TablePath;
use crate::path::tcp::TcpPath;
use crate::path::{self, Path, Round};
use rankpact_shm::{MAX_SLOTS, Ring, RingGeometry, RingStorage, Storage, Timing, Unlock};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An ordered set of ranks that agree in rounds.
///
/// Every operation waits for all members, and every member must make the same calls in the same order; one that does
/// not is an error on every rank, in that round. After a failure every later call fails at once with its origin. Only
/// [`Group::send`] and [`Group::recv`] concern two ranks alone. All operations take `&mut self`: two threads cannot
/// interleave rounds of one group. Dropping a group closes it, and in a thread that panics it aborts.
///
/// # If a peer dies
///
/// Waiting ranks are told within 50 ms, whatever the deadline: [`ErrorKind::PeerDied`] names it.
pub struct Group {
    name: String,
    ranks: Vec<usize>,
    me: usize,
    job: Option<Arc<Job>>,
    options: Options,
    state: State,
    failure: Option<Error>,
    reason: String,
    registration: Option<u64>,
    pairs: Pairs,
}

#[expect(
    clippy::large_enum_variant,
    reason = "one for each group; a call must not follow one more pointer"
)]
enum State {
    Unopened,
    Open(Path),
    Closed,
}

/// The path that a group's rounds take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathKind {
    /// One rank: nothing travels.
    Alone,
    /// Rows in shared memory; wider data over TCP.
    Table,
    /// Everything over TCP.
    Tcp,
    /// The ranks span several hosts: those of one host meet in its table, one of each host exchanges with the others.
    Hierarchical,
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "alone",
            Self::Table => "table",
            Self::Tcp => "tcp",
            Self::Hierarchical => "hierarchical",
        })
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("name", &self.name)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

impl Group {
    pub(crate) fn new(
        name: &str,
        ranks: Vec<usize>,
        me: usize,
        job: Arc<Job>,
        options: Options,
    ) -> Self {
        Self {
            name: name.to_owned(),
            pairs: Pairs::new(name, &ranks, me, Venue::Job(Arc::clone(&job))),
            ranks,
            me,
            options,
            job: Some(job),
            state: State::Unopened,
            failure: None,
            reason: String::new(),
            registration: None,
        }
    }

    /// Groups whose ranks are threads of this process, over a table in its heap, or over TCP if the options say so.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Usage`] for a number of ranks outside of 1 to 64, [`ErrorKind::Io`] if the system refuses a socket.
    pub fn threads(name: &str, ranks: usize, options: &Options) -> Result<Vec<Self>, Error> {
        let error = |kind| Error {
            group: name.to_owned(),
            round: 0,
            operation: "group".to_owned(),
            label: String::new(),
            rank: 0,
            kind: Box::new(kind),
        };
        let geometry = options.geometry(ranks).ok_or_else(|| {
            error(ErrorKind::Usage(format!(
                "a group of {ranks} threads: 1 to 64"
            )))
        })?;
        let storage =
            Arc::new(Storage::heap(geometry, 1).with_radix(geometry.radix(Crowd::threads().cpus)));
        let ring = RingGeometry::of_seats(ranks).map(|form| Arc::new(RingStorage::heap(form, 1)));
        let meshes = Mesh::pairs(ranks).map_err(|e| error(ErrorKind::Io(e.to_string())))?;
        let ladder = options.ladder(Crowd::threads());
        let hub = Hub::new();
        let all: Vec<usize> = (0..ranks).collect();
        let open = |(me, mut mesh): (usize, Mesh)| {
            mesh.climb(ladder);
            let path = if options.path == crate::PathChoice::Tcp {
                Path::Tcp(TcpPath::new(mesh, options))
            } else {
                let table = options.seat(Arc::clone(&storage), me, ladder);
                let ring = ring
                    .as_ref()
                    .map(|ring| Ring::new(Arc::clone(ring), me, ladder));
                Path::Table(TablePath::new(table, mesh, ring))
            };
            Self {
                name: name.to_owned(),
                pairs: Pairs::new(name, &all, me, Venue::Threads(Arc::clone(&hub))),
                ranks: all.clone(),
                me,
                job: None,
                options: options.clone(),
                state: State::Open(path),
                failure: None,
                reason: "threads of one process".to_owned(),
                registration: None,
            }
        };
        Ok(meshes.into_iter().enumerate().map(open).collect())
    }

    /// Changes the deadline of calls that have none of their own. Must be equal on all ranks when the group opens.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This rank within the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.me
    }

    /// How many ranks the group has.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// The world ranks of the members, in the order of the group.
    #[must_use]
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// The round of the last call; 0 before the first.
    #[must_use]
    pub fn round(&self) -> u64 {
        match &self.state {
            State::Open(path) => path.round(),
            State::Unopened | State::Closed => 0,
        }
    }

    /// The path of the group and why it is that one; `None` before the group has opened.
    #[must_use]
    pub fn path(&self) -> Option<(PathKind, &str)> {
        match &self.state {
            State::Open(Path::Alone { .. }) => Some((PathKind::Alone, &self.reason)),
            State::Open(Path::Table(_)) => Some((PathKind::Table, &self.reason)),
            State::Open(Path::Tcp(_)) => Some((PathKind::Tcp, &self.reason)),
            State::Open(Path::Hosts(_)) => Some((PathKind::Hierarchical, &self.reason)),
            State::Unopened | State::Closed => None,
        }
    }

    /// Where the time of the last round went, if the options ask for it.
    #[must_use]
    pub fn timing(&self) -> Option<Timing> {
        match &self.state {
            State::Open(path) => path.timing(),
            State::Unopened | State::Closed => None,
        }
    }

    /// What each rank contributed to `slot` of the last reduction, in the order of the group.
    ///
    /// Known until this rank's next call, for rows of up to 64 slots; not in a group that spans several hosts.
    #[must_use]
    pub fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        match &self.state {
            State::Open(path) => path.contributions(slot),
            State::Unopened | State::Closed => None,
        }
    }

    /// Opens the group: waits for all members, and agrees with them on the path.
    ///
    /// The first call does this by itself.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] names the members that did not come, [`ErrorKind::Config`] a setting or a list of
    /// members that differs.
    pub fn ready(&mut self) -> Result<(), Error> {
        let timeout = self.options.timeout;
        self.run(
            "open",
            Call {
                label: "",
                timeout: Some(timeout),
            },
            |_, _| Ok(()),
        )
    }

    /// Reduces `values` over all ranks, slot by slot and in place.
    ///
    /// `ops` is one operation, or a list with one for each slot: counts MIN, flags OR, sums SUM, in one round. Up to 8
    /// slots go through the table in one hand-over of a cache line or two; wider ones over TCP. With a list a label has
    /// as many bytes less as there are slots, and one; of different lists and labels there may be 64.
    ///
    /// Blocks until all ranks have made the same call, at most for the deadline.
    ///
    /// # Errors
    ///
    /// Whatever ended the round, the same on every rank of the host. [`ErrorKind::Overflow`], on every rank alike, if a
    /// sum does not fit: that fails nothing, and the next call works. `values` are then unchanged.
    ///
    /// # Source
    ///
    /// All read all, one hop: PROTOCOL.md of `rankpact-shm`.
    #[inline]
    pub fn all_reduce<'a>(
        &mut self,
        ops: impl Into<Ops<'a>>,
        values: &mut [i64],
        call: impl Into<Call<'a>>,
    ) -> Result<(), Error> {
        let ops = ops.into();
        self.run(operation(ops), call.into(), |path, round| {
            check(ops, values.len())?;
            path.all_reduce(ops, values, round)
        })
    }

    /// As [`Group::all_reduce`], for a caller that holds a lock which other threads of its process need, such as an
    /// interpreter's: it is kept for a spin of a few microseconds, in which most rounds of co-located ranks are over, and what
    /// takes longer is run by `lock`.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`].
    #[inline]
    pub fn all_reduce_unlocking<'a>(
        &mut self,
        ops: impl Into<Ops<'a>>,
        values: &mut [i64],
        call: impl Into<Call<'a>>,
        lock: impl Unlock,
    ) -> Result<(), Error> {
        let (ops, call) = (ops.into(), call.into());
        if !matches!(self.state, State::Open(_)) {
            return lock.run(|| self.all_reduce(ops, values, call));
        }
        self.run(operation(ops), call, |path, round| {
            check(ops, values.len())?;
            path.all_reduce_unlocking(ops, values, round, lock)
        })
    }

    /// Starts a reduction of up to 8 slots, to be finished later by [`Group::finish`].
    ///
    /// It matches a blocking reduction of the peers. As many rounds may be in flight as the options say; one more first
    /// settles the oldest, whose result is kept: so this may block, at most for the deadline. Every other call settles
    /// what is in flight before it. In a group that spans several hosts a started round moves only while its ranks are in
    /// calls of the group: what is started there must be finished, or another call or a close must follow.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`]; the failure may be that of an older round in flight.
    pub fn start_all_reduce<'a>(
        &mut self,
        ops: impl Into<Ops<'a>>,
        values: &[i64],
        call: impl Into<Call<'a>>,
    ) -> Result<Started, Error> {
        let ops = ops.into();
        let started = self.run(operation(ops), call.into(), |path, round| {
            check(ops, values.len())?;
            if values.len() > MAX_SLOTS {
                return Err(ErrorKind::Usage(format!(
                    "{} slots: at most {MAX_SLOTS} can be started and finished later",
                    values.len()
                )));
            }
            path.start(ops, values, round)
        })?;
        Ok(Started {
            round: self.round(),
            operation: operation(ops),
            started,
        })
    }

    /// Waits for a started reduction, at most for the deadline; those started before it are settled first.
    ///
    /// A round that completed before the group failed keeps its result.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`]; the failure may be that of an older round in flight.
    pub fn finish<'a>(
        &mut self,
        started: &Started,
        call: impl Into<Call<'a>>,
    ) -> Result<Vec<i64>, Error> {
        let call = call.into();
        let round = Round {
            label: call.label,
            timeout: call.timeout.unwrap_or(self.options.timeout),
            ranks: &self.ranks,
        };
        let State::Open(path) = &mut self.state else {
            return Err(self.error(started.operation, call, ErrorKind::Closed));
        };
        match (path.finish(&started.started, &round), self.failure.clone()) {
            (Ok(values), _) => Ok(values),
            (Err(_), Some(origin)) => {
                Err(self.error(started.operation, call, ErrorKind::Poisoned { origin }))
            }
            (Err(kind), None) => Err(self.fail(started.operation, call, kind)),
        }
    }

    /// Gives the values of every rank to all: `into` holds those of rank 0 of the group first. All ranks give as many.
    ///
    /// Blocks until all ranks have made the same call, at most for the deadline.
    ///
    /// # Errors
    ///
    /// Whatever ended the round. `into` is then empty.
    pub fn all_gather<'a>(
        &mut self,
        values: &[i64],
        into: &mut Vec<i64>,
        call: impl Into<Call<'a>>,
    ) -> Result<(), Error> {
        into.clear();
        self.run("gather", call.into(), |path, round| {
            path.all_gather(values, into, round)
        })
    }

    /// Gives the bytes of every rank to all, in the order of the group. Lengths may differ.
    ///
    /// Blocks until all ranks have made the same call, at most for the deadline.
    ///
    /// # Errors
    ///
    /// Whatever ended the round.
    pub fn all_gather_bytes<'a>(
        &mut self,
        bytes: &[u8],
        call: impl Into<Call<'a>>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        self.run("gather bytes", call.into(), |path, round| {
            path.all_gather_bytes(bytes, round)
        })
    }

    /// Gives the bytes of `root`, a rank of the group, to all ranks: theirs are replaced.
    ///
    /// Blocks until all ranks have made the same call, at most for the deadline.
    ///
    /// # Errors
    ///
    /// Whatever ended the round. The bytes of the other ranks are then unspecified.
    pub fn broadcast<'a>(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        call: impl Into<Call<'a>>,
    ) -> Result<(), Error> {
        let size = self.size();
        self.run("broadcast", call.into(), |path, round| {
            if root >= size {
                return Err(ErrorKind::Usage(format!(
                    "root {root} is not among {size} ranks"
                )));
            }
            path.broadcast(root, bytes, round)
        })
    }

    /// Waits until all ranks have come here, at most for the deadline.
    ///
    /// # Errors
    ///
    /// Whatever ended the round.
    pub fn barrier<'a>(&mut self, call: impl Into<Call<'a>>) -> Result<(), Error> {
        self.run("barrier", call.into(), |path, round| path.barrier(round))
    }

    /// Sends a message of up to 64 MiB to `to`, a rank of the group.
    ///
    /// Messages are off the round counter: only the two ranks take part, and each direction between them has its own
    /// sequence. The first one of either direction opens the pair, for which both must come. Returns when the kernel
    /// has taken the message; one that is larger than what it holds waits until the other rank receives or sends, at
    /// most for the deadline. Meanwhile up to 64 MiB are read ahead: two ranks may send to each other before they
    /// receive.
    ///
    /// # Errors
    ///
    /// Whatever ended the pair: later calls on it, and only on it, are [`ErrorKind::Poisoned`]. In an error of a pair
    /// `round` and `last_round` are numbers of messages.
    ///
    /// # If a peer dies
    ///
    /// [`ErrorKind::PeerDied`] at once. A message that was sent before may be lost.
    pub fn send<'a>(
        &mut self,
        to: usize,
        bytes: &[u8],
        call: impl Into<Call<'a>>,
    ) -> Result<(), Error> {
        let call = call.into();
        let timeout = call.timeout.unwrap_or(self.options.timeout);
        self.pairs.send(to, bytes, call, timeout)
    }

    /// Receives the next message of `from`, a rank of the group, into `bytes`, which it replaces.
    ///
    /// Blocks until it has arrived, at most for the deadline. What `from` sent before it left, gave up or died, and what
    /// has arrived whole, is delivered first.
    ///
    /// # Errors
    ///
    /// As [`Group::send`]; [`ErrorKind::Mismatch`] if the message was sent under another label. `bytes` are then
    /// unchanged.
    pub fn recv<'a>(
        &mut self,
        from: usize,
        bytes: &mut Vec<u8>,
        call: impl Into<Call<'a>>,
    ) -> Result<(), Error> {
        let call = call.into();
        let timeout = call.timeout.unwrap_or(self.options.timeout);
        self.pairs.recv(from, bytes, call, timeout)
    }

    /// Ends the job on every rank, or this group where it has no job: all groups fail with this rank and `reason`.
    ///
    /// Does not block.
    pub fn abort(&mut self, reason: &str) {
        let reason = job::cut(reason);
        let kind = ErrorKind::Aborted {
            rank: self.ranks[self.me],
            reason: reason.to_owned(),
        };
        match &mut self.state {
            State::Open(Path::Table(path)) => path.aborter().abort(reason),
            State::Open(Path::Tcp(path)) => path.abort(&kind),
            State::Open(Path::Hosts(path)) => {
                path.aborter().abort(reason);
                path.abort(&kind);
            }
            State::Open(Path::Alone { .. }) | State::Unopened | State::Closed => {}
        }
        self.pairs.abort(&kind);
        if let Some(job) = &self.job {
            job.abort(reason);
        }
    }

    /// Leaves in good order; dropping does the same.
    ///
    /// Peers still get every result this rank took part in. Waits up to 2 s for them to leave too.
    pub fn close(&mut self) {
        if let (Some(number), Some(job)) = (self.registration.take(), &self.job) {
            job.unregister(number);
        }
        self.pairs.leave();
        if let State::Open(mut path) = std::mem::replace(&mut self.state, State::Closed) {
            path.close();
        }
        self.pairs.close();
    }

    #[inline]
    fn run<T>(
        &mut self,
        operation: &str,
        call: Call<'_>,
        body: impl FnOnce(&mut Path, &Round<'_>) -> Result<T, ErrorKind>,
    ) -> Result<T, Error> {
        if self.failure.is_some() || !matches!(self.state, State::Open(_)) {
            self.open(operation, call)?;
        }
        let round = Round {
            label: call.label,
            timeout: call.timeout.unwrap_or(self.options.timeout),
            ranks: &self.ranks,
        };
        let State::Open(path) = &mut self.state else {
            return Err(self.fail(operation, call, ErrorKind::Closed));
        };
        match body(path, &round) {
            Ok(value) => Ok(value),
            Err(kind) => Err(self.fail(operation, call, kind)),
        }
    }

    /// Sees to it that the group can be called: opens it, or says why not.
    #[cold]
    fn open(&mut self, operation: &str, call: Call<'_>) -> Result<(), Error> {
        if let Some(origin) = self.failure.clone() {
            return Err(self.error(operation, call, ErrorKind::Poisoned { origin }));
        }
        let (State::Unopened, Some(job)) = (&self.state, self.job.clone()) else {
            return Err(self.error(operation, call, ErrorKind::Closed));
        };
        if job.is_forked() {
            return Err(self.error(operation, call, ErrorKind::Forked));
        }
        let members = Members {
            name: &self.name,
            ranks: &self.ranks,
            me: self.me,
            options: &self.options,
            timeout: call.timeout.unwrap_or(self.options.timeout),
        };
        let attached = if self.ranks.len() == 1 {
            Ok((Path::Alone { round: 0 }, "one rank".to_owned()))
        } else {
            attach(&job, &members)
        };
        let (mut path, reason) = attached.map_err(|kind| self.fail(operation, call, kind))?;
        match &mut path {
            Path::Table(path) => self.registration = Some(job.register(path.aborter())),
            Path::Hosts(path) => self.registration = Some(job.register(path.aborter())),
            Path::Tcp(path) => path.watch(job),
            Path::Alone { .. } => {}
        }
        self.state = State::Open(path);
        self.reason = reason;
        Ok(())
    }

    fn error(&self, operation: &str, call: Call<'_>, kind: ErrorKind) -> Error {
        Error {
            group: self.name.clone(),
            round: self.round(),
            operation: operation.to_owned(),
            label: call.label.to_owned(),
            rank: self.ranks[self.me],
            kind: Box::new(kind),
        }
    }

    /// The error of a call, kept if it ends the group.
    #[cold]
    fn fail(&mut self, operation: &str, call: Call<'_>, kind: ErrorKind) -> Error {
        let harmless = matches!(
            kind,
            ErrorKind::Usage(_)
                | ErrorKind::Overflow { .. }
                | ErrorKind::Forked
                | ErrorKind::Closed
        );
        let error = self.error(operation, call, kind);
        if !harmless {
            self.failure = Some(error.clone());
        }
        error
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort("a thread of this rank panicked");
        }
        self.close();
    }
}

/// A reduction that has been started: a value. Dropping it withdraws nothing.
#[derive(Debug)]
#[must_use = "a started reduction has no result before it is finished"]
pub struct Started {
    round: u64,
    operation: &'static str,
    started: path::Started,
}

impl Started {
    /// Its round.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }
}

fn check(ops: Ops<'_>, slots: usize) -> Result<(), ErrorKind> {
    if ops.fit(slots) {
        return Ok(());
    }
    let Ops::Each(ops) = ops else { return Ok(()) };
    Err(ErrorKind::Usage(format!(
        "{} operations for {slots} slots",
        ops.len()
    )))
}

fn operation(ops: Ops<'_>) -> &'static str {
    match ops {
        Ops::Each(_) => "each",
        Ops::All(Op::Min) => "min",
        Ops::All(Op::Max) => "max",
        Ops::All(Op::Sum) => "sum",
        Ops::All(Op::Or) => "or",
        Ops::All(Op::And) => "and",
    }
}
