//! A full mesh of TCP connections between the members of one group.
//!
//! Members are numbered by their place in the group. Every exchange sends one frame to each peer and takes one frame
//! from each, over non-blocking sockets that are all served in turn: whatever the sizes, nobody waits to write before
//! it reads.

mod frame;
mod join;

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use rankpact_shm::{Awake, Habit, Ladder, Missing, Notice, Process};

use crate::envelope::{Filled, Garbage, Inbox};
use crate::socket::{Stream, patience};
use frame::{BODY, HEADER, Kind, PAYLOAD, POISON};
pub(crate) use frame::{Frame, LABEL};

/// A payload of so many bytes takes longer than a sleep and a wake-up: where ranks share CPUs, polls would take its time.
const BULK: usize = 64 << 10;

/// The longest sleep: the watch is asked at least this often.
const SLICE: Duration = Duration::from_millis(20);

/// A payload of so many bytes is copied behind its header: one piece takes the kernel less time than two.
const TOGETHER: usize = 4 << 10;

/// Reads from one peer in one go, so that a large frame starves neither the others nor the writing.
const READS: usize = 4;

/// How long beyond its deadline a member that misses several leaves it to one that misses fewer to say who is late.
const HEARSAY: Duration = Duration::from_millis(100);

/// A member that is silent for so long is worth a notice, once in each exchange. Compilation takes minutes.
const SILENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// How long a poison may take to leave.
const POISONING: Duration = Duration::from_millis(500);

/// How long a close waits for the others to hang up.
const LINGER: Duration = Duration::from_secs(2);

/// Why a mesh could not be made, or an exchange not be completed. Peers are places in the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MeshError {
    /// The deadline passed; these are all peers that had not sent (or not taken) their frame.
    Missing {
        /// The peers, in order.
        peers: Vec<usize>,
    },
    /// The deadline of the connecting passed; these are all peers that were not connected.
    Unreached {
        /// The peers, in order.
        peers: Vec<usize>,
        /// What is known of the first of them: the address, and why the last attempt failed.
        trouble: String,
    },
    /// A peer's connection ended without goodbye.
    Died {
        /// The peer.
        peer: usize,
    },
    /// A peer left in order without sending a frame for this round.
    Left {
        /// The peer.
        peer: usize,
    },
    /// A peer gave the group up.
    Poisoned {
        /// The peer.
        peer: usize,
        /// What it has to say about it.
        payload: Vec<u8>,
    },
    /// What a peer sent cannot be trusted.
    Garbage {
        /// The peer.
        peer: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The connections belong to the parent of this process.
    Forked,
    /// The guard of the connecting had seen enough.
    Stopped,
    /// A peer does not let this one in.
    Refused {
        /// The peer.
        peer: usize,
        /// Why.
        reason: String,
    },
    /// An earlier exchange failed, or the mesh is closed: what still arrives belongs to no round.
    Closed,
    /// The caller did something that can never work.
    Usage(String),
    /// The system refused something.
    Io(String),
}

impl From<io::Error> for MeshError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

impl std::error::Error for MeshError {}

impl fmt::Display for MeshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { peers } => write!(f, "missing at the deadline: members {peers:?}"),
            Self::Unreached { peers, trouble } => {
                write!(
                    f,
                    "not connected: members {peers:?} ({trouble}); RANKPACT_INTERFACE changes where a rank listens"
                )
            }
            Self::Died { peer } => write!(f, "member {peer} died"),
            Self::Left { peer } => write!(f, "member {peer} has left"),
            Self::Poisoned { peer, .. } => write!(f, "member {peer} has given the group up"),
            Self::Garbage { peer, what } => write!(f, "member {peer} sent garbage: {what}"),
            Self::Stopped => f.write_str("connecting was stopped"),
            Self::Forked => f.write_str("the connections belong to the parent of this process"),
            Self::Refused { peer, reason } => write!(f, "member {peer} refuses this one: {reason}"),
            Self::Closed => {
                f.write_str("the connections of the group failed earlier or are closed")
            }
            Self::Usage(what) | Self::Io(what) => f.write_str(what),
        }
    }
}

/// Why an exchange ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeError<S> {
    /// The mesh failed.
    Mesh(MeshError),
    /// The watch said so.
    Stopped(S),
}

impl<S> From<MeshError> for ExchangeError<S> {
    fn from(error: MeshError) -> Self {
        Self::Mesh(error)
    }
}

/// Looks at frames as they arrive, and around while nothing does.
pub(crate) trait Watch {
    /// Why it stops an exchange.
    type Stop;

    /// Takes the frame of `peer`; called once for each peer in an exchange, as soon as its frame is complete.
    ///
    /// # Errors
    /// Ends the exchange, for instance because the frame belongs to another call.
    fn frame(&mut self, peer: usize, frame: &Frame<'_>) -> Result<(), Self::Stop>;

    /// Called about every 20 ms, and before every sleep.
    ///
    /// # Errors
    /// Ends the exchange, for instance because the job was aborted.
    fn slice(&mut self) -> Result<(), Self::Stop>;
}

/// What the peers get in a round.
#[derive(Clone, Copy, Debug)]
enum Payload<'a> {
    /// All the same.
    Same(&'a [u8]),
    /// Each that of its place.
    Each(&'a [&'a [u8]]),
}

impl<'a> Payload<'a> {
    /// Bytes of the longest.
    fn most(self) -> usize {
        match self {
            Self::Same(payload) => payload.len(),
            Self::Each(parts) => parts.iter().map(|part| part.len()).max().unwrap_or(0),
        }
    }

    fn of(self, at: usize) -> &'a [u8] {
        match self {
            Self::Same(payload) => payload,
            Self::Each(parts) => parts[at],
        }
    }
}

/// How a peer's stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Left,
    Died,
}

#[derive(Debug)]
struct Peer {
    stream: Stream,
    inbox: Inbox,
    /// Header of the frame it gets, and a small payload behind it.
    head: Vec<u8>,
    /// Bytes of what it gets, and how many of them it has taken.
    total: usize,
    sent: usize,
    /// Frames of rounds that were posted, which go before anything else, and how much of them it has taken.
    outbox: Vec<u8>,
    flushed: usize,
    /// The frame of a failed exchange that it has taken only in part: what is sent next must come after its rest.
    owed: Option<Arc<[u8]>>,
    /// Its frame of the present round has been shown to the watch.
    delivered: bool,
    /// Its socket has been read in the present round. A frame may have come with that of an earlier one.
    fresh: bool,
    /// A complete frame of a later round is waiting; reading on could only fill memory.
    ahead: bool,
    /// It takes nothing any more. Only the end of what it sent tells why.
    deaf: bool,
    end: Option<End>,
}

/// A time in which nothing has moved.
struct Idle {
    since: Instant,
    /// How long to poll without sleeping.
    polls: Duration,
    /// Until it sleeps.
    awake: Option<Awake>,
}

impl Idle {
    fn since(now: Instant, ladder: &Ladder, polling: bool, bulky: bool) -> Self {
        let (awake, threads) = Awake::here();
        let polls = if polling && !(bulky && threads > ladder.spinners) {
            ladder.spin_among(threads).saturating_add(ladder.yields)
        } else {
            Duration::ZERO
        };
        Self {
            since: now,
            polls,
            awake: Some(awake),
        }
    }

    fn is_sleepy(&mut self, now: Instant) -> bool {
        let sleepy = now.duration_since(self.since) >= self.polls;
        if sleepy {
            self.awake = None;
        }
        sleepy
    }
}

/// What was in the inbox of a peer.
enum Found {
    Delivered,
    Later,
    Nothing,
}

impl Peer {
    fn new(stream: Stream, mut inbox: Inbox) -> Self {
        inbox.set_limit(BODY);
        Self {
            stream,
            inbox,
            head: Vec::new(),
            total: 0,
            sent: 0,
            outbox: Vec::new(),
            flushed: 0,
            owed: None,
            delivered: false,
            fresh: false,
            ahead: false,
            deaf: false,
            end: None,
        }
    }

    fn begin(&mut self, header: [u8; HEADER], payload: &[u8]) {
        self.head.clear();
        self.head.extend_from_slice(&header);
        if payload.len() <= TOGETHER {
            self.head.extend_from_slice(payload);
        }
        (self.total, self.sent) = (HEADER + payload.len(), 0);
        (self.delivered, self.fresh, self.ahead) = (false, false, false);
    }

    /// Expects the frame of a round for which this member has posted its own.
    fn expect(&mut self) {
        (self.total, self.sent) = (0, 0);
        (self.delivered, self.fresh, self.ahead) = (false, false, false);
    }

    fn wants(&self) -> bool {
        !self.deaf && self.end.is_none() && (self.sent < self.total || !self.outbox.is_empty())
    }

    /// Nothing more to do for this peer in this round. That it is gone after its frame arrived is no failure of it.
    fn complete(&self) -> bool {
        self.delivered && !self.wants()
    }

    /// Writes on what was posted, once; whether it moved anything.
    fn flush(&mut self) -> bool {
        let written = self.stream.write(&self.outbox[self.flushed..]);
        let Some(count) = self.taken(&written) else {
            return false;
        };
        self.flushed += count;
        if self.flushed == self.outbox.len() {
            self.outbox.clear();
            self.flushed = 0;
        }
        true
    }

    /// Writes the frame on, once; whether it moved anything.
    fn send(&mut self, payload: &[u8]) -> bool {
        if !self.outbox.is_empty() {
            return self.flush();
        }
        let written = match &self.head[self.sent.min(self.head.len())..] {
            [] => self.stream.write(&payload[self.sent - HEADER..]),
            rest if self.head.len() == self.total => self.stream.write(rest),
            rest => self
                .stream
                .write_vectored(&[IoSlice::new(rest), IoSlice::new(payload)]),
        };
        self.note_written(&written)
    }

    /// Writes on what it is owed and `last`, once; whether it moved anything.
    fn send_last(&mut self, last: &[u8]) -> bool {
        let owed = self.owed.as_deref().unwrap_or_default();
        let rest = if self.sent < owed.len() {
            &owed[self.sent..]
        } else {
            &last[self.sent - owed.len()..]
        };
        let written = self.stream.write(rest);
        self.note_written(&written)
    }

    fn note_written(&mut self, written: &io::Result<usize>) -> bool {
        let taken = self.taken(written);
        self.sent += taken.unwrap_or(0);
        taken.is_some()
    }

    /// How many bytes it took; a peer that takes none any more is deaf.
    fn taken(&mut self, written: &io::Result<usize>) -> Option<usize> {
        match written {
            Ok(count) if *count > 0 => return Some(*count),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Ok(_) | Err(_) => self.deaf = true,
        }
        None
    }

    /// Reads a few times, at most until the frame of `round` is delivered; whether anything moved.
    fn receive<W: Watch>(
        &mut self,
        peer: usize,
        round: u64,
        watch: &mut W,
    ) -> Result<bool, ExchangeError<W::Stop>> {
        let mut moved = false;
        for _ in 0..=READS {
            match self.look(peer, round, watch)? {
                Found::Delivered => return Ok(true),
                Found::Later => {
                    self.ahead = true;
                    return Ok(moved);
                }
                Found::Nothing if self.end.is_some() => return Ok(moved),
                Found::Nothing => {}
            }
            match self.fill() {
                Filled::Some => moved = true,
                Filled::Nothing => return Ok(moved),
                Filled::End => return Ok(true),
            }
        }
        Ok(moved)
    }

    /// Reads once.
    fn fill(&mut self) -> Filled {
        let filled = self.inbox.fill(&mut *self.stream);
        self.fresh = !self.inbox.is_brimming();
        match filled {
            Ok(Filled::End) | Err(_) => {
                self.end = Some(End::Died);
                Filled::End
            }
            Ok(filled) => filled,
        }
    }

    /// Whether the peer has given `round` up after it had sent its frame.
    fn last_word(&mut self, at: usize, round: u64) -> Result<(), MeshError> {
        if !self.fresh && self.end.is_none() {
            self.fill();
        }
        // Behind frames of later rounds too, which it may have posted before.
        let poison = self
            .inbox
            .find(|body| body.first() == Some(&(Kind::Poison as u8)));
        match poison.and_then(Frame::decode) {
            Some((Kind::Poison, frame)) if frame.round <= round => Err(MeshError::Poisoned {
                peer: at,
                payload: frame.payload.to_vec(),
            }),
            _ => Ok(()),
        }
    }

    /// Throws away what has arrived, up to 1 MiB so that the caller's clock counts, and notices the end.
    fn drain(&mut self) {
        let mut waste = [0; 16 << 10];
        for _ in 0..64 {
            if self.end == Some(End::Died) {
                return;
            }
            match self.stream.read(&mut waste) {
                Ok(count) if count > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.end = Some(End::Died),
            }
        }
    }

    fn look<W: Watch>(
        &mut self,
        peer: usize,
        round: u64,
        watch: &mut W,
    ) -> Result<Found, ExchangeError<W::Stop>> {
        let garbage = |what| MeshError::Garbage { peer, what };
        let body = self.inbox.peek().map_err(|Garbage(what)| garbage(what))?;
        let Some(body) = body else {
            return Ok(Found::Nothing);
        };
        match Frame::decode(body) {
            None => Err(garbage("no frame of a group").into()),
            // It ends the round it names and those after it, not one that its sender has completed.
            Some((Kind::Poison, frame)) if frame.round > round => Ok(Found::Later),
            Some((Kind::Poison, frame)) => Err(MeshError::Poisoned {
                peer,
                payload: frame.payload.to_vec(),
            }
            .into()),
            Some((Kind::Bye, _)) => {
                self.inbox.pop();
                self.end = Some(End::Left);
                Ok(Found::Nothing)
            }
            Some((Kind::Data, frame)) if self.delivered || frame.round > round => Ok(Found::Later),
            Some((Kind::Data, frame)) if frame.round < round => {
                Err(garbage("a frame of a past round").into())
            }
            Some((Kind::Data, frame)) => {
                let taken = watch.frame(peer, &frame);
                self.inbox.pop();
                self.delivered = true;
                if taken.is_err() {
                    // A peer that gave up long ago is the reason, not what this member makes of its frame.
                    self.last_word(peer, round)?;
                }
                taken.map_err(ExchangeError::Stopped)?;
                Ok(Found::Delivered)
            }
        }
    }
}

/// Tells of a member that is alive and silent.
struct Told(Notice);

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

/// The connections of one member to all others of its group; it closes when dropped, but not in a thread that panics.
#[derive(Debug)]
pub(crate) struct Mesh {
    me: usize,
    /// By place in the group; none at this member's own.
    peers: Vec<Option<Peer>>,
    /// How to wait: sockets are polled for as long as the ladder stays awake.
    ladder: Ladder,
    /// Whether polling pays.
    polling: Habit,
    notice: Option<Told>,
    state: State,
    /// A forked child shares the connections; what it sent would be taken for its parent's.
    owner: Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Failed,
    Closed,
}

impl Mesh {
    /// Calls `notice` for each member that an exchange waits for and that has been silent for 5 s.
    pub(crate) fn tell_silence(&mut self, notice: Notice) {
        self.notice = Some(Told(notice));
    }

    fn silent(&self, round: u64, waited: Duration) {
        let Some(Told(notice)) = &self.notice else {
            return;
        };
        for (rank, _) in self.numbered().filter(|(_, peer)| !peer.complete()) {
            let missing = Missing {
                rank,
                last_round: round.wrapping_sub(1),
                last_label: String::new(),
            };
            notice(&missing, waited);
        }
    }

    /// Waits as `ladder` says from now on.
    pub(crate) fn climb(&mut self, ladder: Ladder) {
        self.ladder = ladder;
    }

    /// This member's place in the group.
    pub(crate) fn me(&self) -> usize {
        self.me
    }

    /// How many members the group has.
    pub(crate) fn size(&self) -> usize {
        self.peers.len()
    }

    /// Sends `frame` to every peer and shows one frame of the same round from every peer to `watch`.
    ///
    /// Frames of later rounds wait for their own exchange. After a failure no further exchange is possible, only
    /// [`Mesh::poison`] and [`Mesh::close`].
    ///
    /// # Errors
    /// The first failure seen; where several are seen at once, a poison before all others and a leaving last: what caused
    /// the others.
    pub(crate) fn exchange<W: Watch>(
        &mut self,
        frame: &Frame<'_>,
        watch: &mut W,
        deadline: Instant,
    ) -> Result<(), ExchangeError<W::Stop>> {
        self.round(frame, Payload::Same(frame.payload), watch, deadline)
    }

    /// An exchange in which every peer gets a payload of its own: that of its place in `parts`. The payload of `frame`
    /// and the part at this member's own place are not sent.
    ///
    /// # Errors
    /// Those of [`Mesh::exchange`].
    pub(crate) fn scatter<W: Watch>(
        &mut self,
        frame: &Frame<'_>,
        parts: &[&[u8]],
        watch: &mut W,
        deadline: Instant,
    ) -> Result<(), ExchangeError<W::Stop>> {
        if parts.len() != self.size() {
            let (parts, size) = (parts.len(), self.size());
            return Err(
                MeshError::Usage(format!("{parts} parts for a group of {size} members")).into(),
            );
        }
        self.round(frame, Payload::Each(parts), watch, deadline)
    }

    /// Sends `frame` to every peer without waiting for theirs: [`Mesh::collect`] does that, later.
    ///
    /// What a peer does not take at once waits in memory; the caller bounds how many rounds it posts.
    ///
    /// # Errors
    /// What makes any exchange impossible. A peer that is gone is noticed when its frame is collected.
    pub(crate) fn post(&mut self, frame: &Frame<'_>) -> Result<(), MeshError> {
        self.check(frame, Payload::Same(frame.payload))?;
        let header = frame.header(Kind::Data);
        for peer in self.peers.iter_mut().flatten() {
            peer.outbox.extend_from_slice(&header);
            peer.outbox.extend_from_slice(frame.payload);
            (peer.total, peer.sent) = (0, 0);
            if peer.wants() {
                peer.flush();
            }
        }
        Ok(())
    }

    /// Shows one frame of `round`, for which this member has posted its own, from every peer to `watch`.
    ///
    /// # Errors
    /// Those of [`Mesh::exchange`].
    pub(crate) fn collect<W: Watch>(
        &mut self,
        round: u64,
        watch: &mut W,
        deadline: Instant,
    ) -> Result<(), ExchangeError<W::Stop>> {
        self.check(&Frame::default(), Payload::Same(&[]))?;
        self.peers.iter_mut().flatten().for_each(Peer::expect);
        let outcome = self.run(round, Payload::Same(&[]), watch, deadline);
        if outcome.is_err() {
            self.state = State::Failed;
        }
        outcome
    }

    fn check(&self, frame: &Frame<'_>, payload: Payload<'_>) -> Result<(), MeshError> {
        if !self.owner.is_here() {
            return Err(MeshError::Forked);
        }
        if self.state != State::Open {
            return Err(MeshError::Closed);
        }
        let most = payload.most();
        if most > PAYLOAD || frame.label.len() > LABEL {
            let label = frame.label.len();
            return Err(MeshError::Usage(format!(
                "{most} bytes or a label of {label} do not fit a frame"
            )));
        }
        Ok(())
    }

    fn round<W: Watch>(
        &mut self,
        frame: &Frame<'_>,
        payload: Payload<'_>,
        watch: &mut W,
        deadline: Instant,
    ) -> Result<(), ExchangeError<W::Stop>> {
        self.check(frame, payload)?;
        let mut shared = None;
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let header = match payload {
                Payload::Same(_) => *shared.get_or_insert_with(|| frame.header(Kind::Data)),
                Payload::Each(parts) => Frame {
                    payload: parts[at],
                    ..*frame
                }
                .header(Kind::Data),
            };
            peer.begin(header, payload.of(at));
        }
        let outcome = self.run(frame.round, payload, watch, deadline);
        if outcome.is_err() {
            self.state = State::Failed;
            self.owe(payload);
        }
        outcome
    }

    /// Keeps the frames that were sent in part: the caller's bytes are gone when their rest is sent.
    fn owe(&mut self, payload: Payload<'_>) {
        let mut shared: Option<Arc<[u8]>> = None;
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer.as_mut().filter(|peer| peer.sent > 0 && peer.wants()) else {
                continue;
            };
            let frame = shared
                .take()
                .unwrap_or_else(|| [&peer.head[..HEADER], payload.of(at)].concat().into());
            if let Payload::Same(_) = payload {
                shared = Some(Arc::clone(&frame));
            }
            peer.owed = Some(frame);
        }
    }

    fn run<W: Watch>(
        &mut self,
        round: u64,
        payload: Payload<'_>,
        watch: &mut W,
        deadline: Instant,
    ) -> Result<(), ExchangeError<W::Stop>> {
        let mut idle: Option<Idle> = None;
        let mut sliced: Option<Instant> = None;
        let mut silence: Option<Instant> = None;
        let mut over = false;
        loop {
            let moved = self.pass(round, payload, watch)?;
            if self.peers.iter().flatten().all(Peer::complete) {
                return Ok(self.last_words(round)?);
            }
            let now = Instant::now();
            if now >= deadline {
                let late = self.numbered().filter(|(_, peer)| !peer.complete());
                let peers: Vec<usize> = late.map(|(at, _)| at).collect();
                // Of several, some may themselves be waiting for another; they know better, and say so by now.
                let hearsay = if peers.len() > 1 {
                    HEARSAY
                } else {
                    Duration::ZERO
                };
                if now >= deadline + hearsay {
                    if over {
                        return Err(MeshError::Missing { peers }.into());
                    }
                    // This process may have been stopped since it looked; the frames may be here by now.
                    over = true;
                    continue;
                }
            }
            if moved {
                idle = None;
            }
            let sleepy = !moved
                && idle
                    .get_or_insert_with(|| {
                        let polling = !self.ladder.adapts || self.polling.tries(round);
                        Idle::since(now, &self.ladder, polling, payload.most() > BULK)
                    })
                    .is_sleepy(now);
            if sleepy || now >= *sliced.get_or_insert(now) + SLICE {
                watch.slice().map_err(ExchangeError::Stopped)?;
                sliced = Some(now);
                // Told once: from then on the time of the next lies beyond any deadline.
                let due = *silence.get_or_insert(now + SILENCE);
                if now >= due {
                    self.silent(round, SILENCE);
                    silence = Some(deadline.max(now) + SILENCE);
                }
            }
            if sleepy {
                self.sleep(now, deadline);
            } else if !moved {
                thread::yield_now();
                if now.elapsed() >= Ladder::LOST {
                    self.polling.failed(round, Habit::DEAR);
                }
            }
        }
    }

    /// Whether a peer has given this very round up after it had sent its frame: then all shall.
    fn last_words(&mut self, round: u64) -> Result<(), MeshError> {
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            peer.last_word(at, round)?;
        }
        Ok(())
    }

    /// Serves every peer once; whether anything moved.
    fn pass<W: Watch>(
        &mut self,
        round: u64,
        payload: Payload<'_>,
        watch: &mut W,
    ) -> Result<bool, ExchangeError<W::Stop>> {
        let mut moved = false;
        let mut failure = None;
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if peer.wants() {
                moved |= peer.send(payload.of(at));
            }
            if peer.ahead || (peer.delivered && peer.end.is_some()) {
                continue;
            }
            match peer.receive(at, round, watch) {
                Ok(some) => moved |= some,
                Err(ExchangeError::Mesh(error)) => note(&mut failure, error),
                Err(stopped) => return Err(stopped),
            }
            match peer.end {
                Some(End::Died) if !peer.delivered => {
                    note(&mut failure, MeshError::Died { peer: at });
                }
                Some(End::Left) if !peer.delivered => {
                    note(&mut failure, MeshError::Left { peer: at });
                }
                _ => {}
            }
        }
        failure.map_or(Ok(moved), |error| Err(error.into()))
    }

    /// Sleeps until a socket has something to do. A peer that can do nothing more in this round is left out: the
    /// kernel would report its hang-up again and again.
    fn sleep(&self, now: Instant, deadline: Instant) {
        let mut sockets: Vec<PollFd<'_>> = Vec::with_capacity(self.peers.len());
        for peer in self.peers.iter().flatten() {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, peer.end.is_none() && !peer.ahead);
            events.set(PollFlags::POLLOUT, peer.wants());
            if !events.is_empty() {
                sockets.push(PollFd::new(peer.stream.as_fd(), events));
            }
        }
        // An interrupted poll is an early wake-up, nothing more.
        let _ = poll(&mut sockets, patience(now, deadline, SLICE));
    }

    fn numbered(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.peers
            .iter()
            .enumerate()
            .filter_map(|(at, peer)| Some((at, peer.as_ref()?)))
    }

    /// Tells every peer, as far as it listens, that this member gives the group up from `round` on. Only the first
    /// 64 KiB of `payload` are sent.
    pub(crate) fn poison(&mut self, round: u64, payload: &[u8]) {
        self.poison_within(POISONING, round, payload);
    }

    /// As [`Mesh::poison`], for at most `patient`.
    pub(crate) fn poison_within(&mut self, patient: Duration, round: u64, payload: &[u8]) {
        if self.state == State::Closed || !self.owner.is_here() {
            return;
        }
        self.state = State::Failed;
        let payload = &payload[..payload.len().min(POISON)];
        let frame = Frame {
            round,
            payload,
            ..Frame::default()
        };
        self.tell(Kind::Poison, frame, patient);
    }

    /// Leaves in order: says goodbye, and waits a while until the others have hung up too, for a socket closed with
    /// unread bytes is reset and could take a peer's last result with it. A second call does nothing.
    pub(crate) fn close(&mut self) {
        if self.state == State::Closed || !self.owner.is_here() {
            return;
        }
        self.state = State::Closed;
        let until = Instant::now() + LINGER;
        self.tell(Kind::Bye, Frame::default(), LINGER);
        for peer in self.peers.iter_mut().flatten() {
            // Fails only for a socket that is closed already.
            let _ = peer.stream.shutdown(Shutdown::Write);
            // The end of the stream itself is still to come, and only that shows that the peer has read all.
            peer.end = peer.end.filter(|&end| end == End::Died);
            peer.deaf = true;
        }
        loop {
            self.peers.iter_mut().flatten().for_each(Peer::drain);
            let now = Instant::now();
            if now >= until || self.peers.iter().flatten().all(|peer| peer.end.is_some()) {
                break;
            }
            self.sleep(now, until);
        }
        self.peers.iter_mut().for_each(|peer| *peer = None);
    }

    /// Sends a last frame to all who listen, behind what they have still to get, for at most `patient`.
    fn tell(&mut self, kind: Kind, frame: Frame<'_>, patient: Duration) {
        let until = Instant::now() + patient;
        let last = [&frame.header(kind)[..], frame.payload].concat();
        for peer in self.peers.iter_mut().flatten() {
            if !peer.outbox.is_empty() {
                // What was posted comes first, and a frame that it held up has not begun.
                peer.owed = Some(peer.outbox.split_off(peer.flushed).into());
                peer.outbox.clear();
                peer.sent = 0;
            }
            let owed = peer.owed.as_ref().map_or(0, |owed| owed.len());
            peer.sent = peer.sent.min(owed);
            peer.total = owed + last.len();
            peer.ahead = false;
        }
        loop {
            let mut moved = false;
            for peer in self.peers.iter_mut().flatten().filter(|peer| peer.wants()) {
                moved |= peer.send_last(&last);
            }
            // A peer may be stuck in writing to this member, and would then not read.
            self.peers.iter_mut().flatten().for_each(Peer::drain);
            let now = Instant::now();
            if now >= until || !self.peers.iter().flatten().any(Peer::wants) {
                break;
            }
            if !moved {
                self.sleep(now, until);
            }
        }
        // Whoever has it only in part gets nothing more, or the next frame would be read as its rest.
        for peer in self.peers.iter_mut().flatten() {
            peer.deaf |= peer.wants();
            peer.owed = None;
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        // Without goodbye the others see a death, which a panic is.
        if !thread::panicking() {
            self.close();
        }
    }
}

/// Keeps the failure that says more, of equals the first: a poison may have caused all others, a death any leaving.
fn note(failure: &mut Option<MeshError>, error: MeshError) {
    let weight = |error: &MeshError| match error {
        MeshError::Poisoned { .. } => 0,
        MeshError::Left { .. } => 2,
        _ => 1,
    };
    if failure
        .as_ref()
        .is_none_or(|known| weight(&error) < weight(known))
    {
        *failure = Some(error);
    }
}

#[cfg(test)]
mod tests;
