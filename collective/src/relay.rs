//! A relay: vectors that the first stage of a pipeline decides, handed on from each stage to the next.

use crate::error::{Error, ErrorKind};
use crate::job;
use crate::op::{Call, check_label};
use crate::options::Options;
use crate::pair::{Hub, LINGER, LONGEST, Message, Pair, Venue, hang_up, mismatch, wait};
use nix::poll::PollFd;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Room for what the next stage has not taken, unless [`Relay::with_room`] says otherwise.
const ROOM: Pending = Pending {
    vectors: 16,
    bytes: 1 << 20,
};

/// What the next stage has not taken yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Vectors.
    pub vectors: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// One stage's place in a pipeline: it takes vectors from the stage before it and hands them on to the stage after it.
///
/// The first stage decides: it [posts](Relay::post). Every later stage gets exactly these vectors, in this order, by
/// [`Relay::next`], which hands a copy on before it returns. A post is a copy too; it stays in a work list until the next
/// stage has taken it. The list is bounded: a stage that lags holds up those before it once they are so far ahead, and
/// [`Relay::pending`] shows how far they are.
///
/// Only neighbours talk to each other. They find each other at [`Relay::ready`], or at the first call. Whatever ends the
/// relay on one stage ends it on all, and names its origin. Dropping a relay closes it, and in a thread that panics it
/// aborts the job.
///
/// # If a peer dies
///
/// Its neighbours are told at their next call, and at once if they wait: [`ErrorKind::PeerDied`] names it, also to the
/// stages beyond. What a stage had handed on whole is still delivered.
pub struct Relay {
    name: String,
    /// This rank.
    me: usize,
    venue: Venue,
    upstream: Option<Stage>,
    downstream: Option<Stage>,
    /// Bytes of each vector that the next stage has not taken.
    list: VecDeque<usize>,
    room: Pending,
    timeout: Duration,
    failure: Option<Error>,
    closed: bool,
}

/// A neighbour.
#[derive(Debug)]
struct Stage {
    rank: usize,
    /// How many relays of that name this rank has had with it before.
    generation: u64,
    pair: Option<Pair>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = |stage: &Option<Stage>| stage.as_ref().map(|stage| stage.rank);
        f.debug_struct("Relay")
            .field("name", &self.name)
            .field("upstream", &rank(&self.upstream))
            .field("downstream", &rank(&self.downstream))
            .finish_non_exhaustive()
    }
}

impl Stage {
    fn pair(stage: Option<&Self>) -> Option<&Pair> {
        stage?.pair.as_ref()
    }

    fn ended(&self) -> Option<ErrorKind> {
        self.pair.as_ref()?.ended(self.rank)
    }
}

impl Relay {
    /// The place of rank `me`; the caller has checked the ranks.
    pub(crate) fn new(
        name: &str,
        me: usize,
        upstream: Option<usize>,
        downstream: Option<usize>,
        venue: Venue,
        timeout: Duration,
    ) -> Self {
        let stage = |rank: usize| Stage {
            rank,
            generation: match &venue {
                Venue::Job(job) => job.count(&format!("relay {name}/{rank}")),
                Venue::Threads(_) => 0,
            },
            pair: None,
        };
        Self {
            name: name.to_owned(),
            me,
            upstream: upstream.map(stage),
            downstream: downstream.map(stage),
            venue,
            list: VecDeque::new(),
            room: ROOM,
            timeout,
            failure: None,
            closed: false,
        }
    }

    /// A relay whose `stages` are threads of this process, in their order.
    #[must_use]
    pub fn threads(name: &str, stages: usize, options: &Options) -> Vec<Self> {
        let hub = Hub::new();
        let place = |me: usize| {
            let upstream = me.checked_sub(1);
            let downstream = Some(me + 1).filter(|next| *next < stages);
            let venue = Venue::Threads(Arc::clone(&hub));
            Self::new(name, me, upstream, downstream, venue, options.timeout)
        };
        (0..stages).map(place).collect()
    }

    /// Changes the deadline of calls that have none of their own.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Changes how many vectors, and how many bytes of them, the next stage may be behind: 16 and 1 MiB if nothing else
    /// is said. One vector always has room.
    #[must_use]
    pub fn with_room(mut self, vectors: usize, bytes: usize) -> Self {
        self.room = Pending { vectors, bytes };
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the next stage has not taken, as far as this one has heard. [`Relay::settle`] listens.
    #[must_use]
    pub fn pending(&self) -> Pending {
        Pending {
            vectors: self.list.len(),
            bytes: self.list.iter().sum(),
        }
    }

    /// Waits until both neighbours have come; the first call does this by itself.
    ///
    /// Blocks at most for the deadline of the relay. A stage meets the one before it first, so no two wait for each
    /// other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] or [`ErrorKind::PeerDied`] names the neighbour, [`ErrorKind::Config`] one that means
    /// another direction.
    pub fn ready(&mut self) -> Result<(), Error> {
        let call = Call {
            label: "",
            timeout: None,
        };
        self.run("open", call, |_, _, _| Ok(()))
    }

    /// Hands a copy of `values` to the next stage, without waiting for it while the work list has room.
    ///
    /// Blocks while the list is full, at most for the deadline. In a pipeline of one stage nothing happens.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] names the next stage if it has made no room, [`ErrorKind::Usage`] a stage that is not the
    /// first one. Else whatever ended the relay.
    pub fn post<'a>(&mut self, values: &[i64], call: impl Into<Call<'a>>) -> Result<(), Error> {
        let call = call.into();
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.run("post", call, |relay, started, deadline| {
            check_label(call.label)?;
            if relay.upstream.is_some() {
                let what = "the first stage decides, the others hand on what they get";
                return Err(ErrorKind::Usage(what.to_owned()));
            }
            if bytes.len() > LONGEST {
                let many = bytes.len();
                let what = format!("{many} bytes are too many for a vector, at most {LONGEST}");
                return Err(ErrorKind::Usage(what));
            }
            let room = |relay: &mut Self| {
                relay.turn()?;
                match relay.downstream.as_ref().and_then(Stage::ended) {
                    Some(kind) => Err(kind),
                    None => Ok(relay.has_room(bytes.len()).then_some(())),
                }
            };
            wait(relay, deadline, room, Self::sockets)?
                .ok_or_else(|| late(relay.downstream.as_ref(), relay.me, started))?;
            relay.hand_on(call.label, &bytes);
            Ok(())
        })
    }

    /// Receives the next vector of the first stage into `values`, which it replaces, and hands a copy on if there is a
    /// next stage.
    ///
    /// Blocks until the vector has arrived and the work list has room for it, at most for the deadline.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] names the stage that was waited for, [`ErrorKind::Mismatch`] another label than that of
    /// the post, [`ErrorKind::Usage`] the first stage. Else whatever ended the relay. `values` are then unchanged.
    pub fn next<'a>(
        &mut self,
        values: &mut Vec<i64>,
        call: impl Into<Call<'a>>,
    ) -> Result<(), Error> {
        let call = call.into();
        self.run("next", call, |relay, started, deadline| {
            check_label(call.label)?;
            if relay.upstream.is_none() {
                let what = "the first stage decides: there is nobody to hear from";
                return Err(ErrorKind::Usage(what.to_owned()));
            }
            let came = |relay: &mut Self| {
                relay.turn()?;
                if let Some(kind) = relay.downstream.as_ref().and_then(Stage::ended) {
                    return Err(kind);
                }
                relay.take(call)
            };
            let message = wait(relay, deadline, came, Self::sockets)?.ok_or_else(|| {
                let stuck = relay
                    .downstream
                    .as_ref()
                    .filter(|_| relay.arrived().is_some());
                late(stuck.or(relay.upstream.as_ref()), relay.me, started)
            })?;
            relay.hand_on(call.label, &message.bytes);
            let (words, _) = message.bytes.as_chunks();
            values.clear();
            values.extend(words.iter().map(|word| i64::from_le_bytes(*word)));
            Ok(())
        })
    }

    /// Goes on with what is in the work list, and forgets what the next stage has taken; returns what is left. Does not
    /// block.
    ///
    /// To be called in each tick, before anything is posted.
    ///
    /// # Errors
    ///
    /// Whatever ended the relay.
    pub fn settle(&mut self) -> Result<Pending, Error> {
        let call = Call {
            label: "",
            timeout: Some(Duration::ZERO),
        };
        self.usable("settle", call, 0)?;
        match self.turn().and_then(|()| self.settled()) {
            Ok(_) => Ok(self.pending()),
            Err(kind) => Err(self.fail("settle", call, 0, kind)),
        }
    }

    /// Waits until the next stage has taken everything, at most for the deadline.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] names the next stage. Else whatever ended the relay.
    pub fn finish<'a>(&mut self, call: impl Into<Call<'a>>) -> Result<(), Error> {
        self.run("finish", call.into(), |relay, started, deadline| {
            let done = |relay: &mut Self| {
                relay.turn()?;
                Ok(relay.settled()?.then_some(()))
            };
            wait(relay, deadline, done, Self::sockets)?
                .ok_or_else(|| late(relay.downstream.as_ref(), relay.me, started))
        })
    }

    /// Leaves in good order; dropping does the same.
    ///
    /// The neighbours still get what this stage has handed on. Waits up to 2 s for them to leave too.
    pub fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) || self.venue.is_forked() {
            return;
        }
        let adopted = self.venue.leave(self.me).into_values();
        let pairs = [&mut self.upstream, &mut self.downstream];
        let pairs = pairs
            .into_iter()
            .flatten()
            .filter_map(|stage| stage.pair.take());
        hang_up(pairs.chain(adopted).collect(), Instant::now() + LINGER);
    }

    /// One call: meets the neighbours if need be, and keeps what ends the relay.
    fn run<T>(
        &mut self,
        operation: &'static str,
        call: Call<'_>,
        body: impl FnOnce(&mut Self, Instant, Instant) -> Result<T, ErrorKind>,
    ) -> Result<T, Error> {
        let number = match operation {
            "post" => 1 + Stage::pair(self.downstream.as_ref()).map_or(0, Pair::pushed),
            "next" => 1 + Stage::pair(self.upstream.as_ref()).map_or(0, Pair::taken),
            _ => 0,
        };
        self.usable(operation, call, number)?;
        let started = Instant::now();
        let deadline = job::deadline(started, call.timeout.unwrap_or(self.timeout));
        self.meet(deadline)
            .and_then(|()| body(self, started, deadline))
            .map_err(|kind| self.fail(operation, call, number, kind))
    }

    fn usable(&self, operation: &'static str, call: Call<'_>, number: u64) -> Result<(), Error> {
        let kind = if self.closed {
            ErrorKind::Closed
        } else if self.venue.is_forked() {
            ErrorKind::Forked
        } else if let Some(origin) = self.failure.clone() {
            ErrorKind::Poisoned { origin }
        } else {
            return Ok(());
        };
        Err(self.error(operation, call, number, kind))
    }

    /// Opens the pairs with both neighbours.
    fn meet(&mut self, deadline: Instant) -> Result<(), ErrorKind> {
        let key = format!("relay {}", self.name);
        let me = self.me;
        let venue = &self.venue;
        let open = |stage: Option<&mut Stage>, sends: bool| {
            let Some(stage) = stage.filter(|stage| stage.pair.is_none()) else {
                return Ok(());
            };
            let sender = if sends { me } else { stage.rank };
            let fields = [
                ("sender of the relay".to_owned(), format!("rank {sender}")),
                (
                    "generation of the relay".to_owned(),
                    stage.generation.to_string(),
                ),
            ];
            stage.pair = Some(venue.open(&key, (me, stage.rank), &fields, deadline)?);
            Ok(())
        };
        open(self.upstream.as_mut(), false)?;
        open(self.downstream.as_mut(), true)
    }

    fn pairs(&mut self) -> impl Iterator<Item = &mut Pair> {
        [&mut self.upstream, &mut self.downstream]
            .into_iter()
            .flatten()
            .filter_map(|stage| stage.pair.as_mut())
    }

    /// Sends and receives what can be sent and received now.
    fn turn(&mut self) -> Result<(), ErrorKind> {
        self.pairs().for_each(Pair::pump);
        if let Some(pair) = Stage::pair(self.downstream.as_ref()) {
            let left = pair.pushed() - pair.acknowledged();
            while self.list.len() as u64 > left {
                self.list.pop_front();
            }
        }
        // An abort closes connections too, and says more.
        self.venue.aborted().map_or(Ok(()), Err)
    }

    fn sockets(&self) -> Vec<PollFd<'_>> {
        let stages = [&self.upstream, &self.downstream].into_iter().flatten();
        stages
            .filter_map(|stage| stage.pair.as_ref()?.socket())
            .collect()
    }

    /// Whether the next stage has taken everything. That it has left is no failure then.
    fn settled(&self) -> Result<bool, ErrorKind> {
        let settled = self.list.is_empty();
        let Some(stage) = &self.downstream else {
            return Ok(settled);
        };
        let in_order = settled && stage.pair.as_ref().is_some_and(Pair::is_left);
        match stage.ended() {
            Some(kind) if !in_order => Err(kind),
            _ => Ok(settled),
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        let Pending {
            vectors,
            bytes: listed,
        } = self.pending();
        self.downstream.is_none()
            || vectors == 0
            || (vectors < self.room.vectors && listed + bytes <= self.room.bytes)
    }

    /// The vector that is next, while it stays where it is.
    fn arrived(&self) -> Option<&Message> {
        Stage::pair(self.upstream.as_ref())?.front()
    }

    /// Takes the next vector, if it has arrived and can be handed on.
    fn take(&mut self, call: Call<'_>) -> Result<Option<Message>, ErrorKind> {
        let bytes = self.arrived().map(|message| message.bytes.len());
        let room = bytes.is_some_and(|bytes| self.has_room(bytes));
        let Some(stage) = &mut self.upstream else {
            return Ok(None);
        };
        let Some(pair) = stage.pair.as_mut().filter(|_| room) else {
            let ended = stage.ended().filter(|_| bytes.is_none());
            return ended.map_or(Ok(None), Err);
        };
        let Some(message) = pair.take() else {
            return Ok(None);
        };
        if message.label != call.label {
            let mine = (self.me, "next", call.label);
            return Err(mismatch(mine, stage.rank, ("post", &message)));
        }
        if message.bytes.len() % 8 != 0 {
            let what = format!("rank {} handed on something that is no vector", stage.rank);
            return Err(ErrorKind::Io(what));
        }
        pair.acknowledge();
        pair.pump();
        Ok(Some(message))
    }

    /// Puts a copy into the work list, and sends what can be sent now.
    fn hand_on(&mut self, label: &str, bytes: &[u8]) {
        if let Some(pair) = self
            .downstream
            .as_mut()
            .and_then(|stage| stage.pair.as_mut())
        {
            pair.push(label, bytes);
            self.list.push_back(bytes.len());
            pair.pump();
        }
    }

    fn error(
        &self,
        operation: &'static str,
        call: Call<'_>,
        number: u64,
        kind: ErrorKind,
    ) -> Error {
        Error {
            group: self.name.clone(),
            round: number,
            operation: operation.to_owned(),
            label: call.label.to_owned(),
            rank: self.me,
            kind: Box::new(kind),
        }
    }

    /// The error of a call. Unless the caller alone is to blame it ends the relay, and the neighbours are told.
    fn fail(
        &mut self,
        operation: &'static str,
        call: Call<'_>,
        number: u64,
        kind: ErrorKind,
    ) -> Error {
        let harmless = matches!(kind, ErrorKind::Usage(_));
        if !harmless {
            self.give_up(&kind);
        }
        let error = self.error(operation, call, number, kind);
        if !harmless {
            self.failure = Some(error.clone());
        }
        error
    }

    fn give_up(&mut self, kind: &ErrorKind) {
        self.pairs().for_each(|pair| pair.give_up(kind));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.closed && !self.venue.is_forked() {
            let reason = "a thread of this rank panicked";
            self.give_up(&ErrorKind::Aborted {
                rank: self.me,
                reason: reason.to_owned(),
            });
            if let Venue::Job(job) = &self.venue {
                job.abort(reason);
            }
        }
        self.close();
    }
}

/// The error of rank `by`, which has waited for `stage` since `started`.
fn late(stage: Option<&Stage>, by: usize, started: Instant) -> ErrorKind {
    match stage {
        Some(Stage {
            rank,
            pair: Some(pair),
            ..
        }) => pair.late(by, *rank, started),
        _ => ErrorKind::Closed,
    }
}
