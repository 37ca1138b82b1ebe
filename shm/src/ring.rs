//! The ring: messages of any length through few slots, from one seat to all others.

mod slot;
mod storage;

pub use storage::{RingGeometry, RingStorage};

use crate::layout::Control;
use crate::liveness::Liveness;
use crate::member::Leave;
use crate::park::{self, Climb, Ladder, Step, Waits};
use crate::process::Process;
use crate::sync::{Ordering, full_fence, order, weakened};
use crate::table::monotonic_ns;
use slot::Fragment;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of one message.
pub const LONGEST_MESSAGE: usize = 1 << 30;

/// All waits at a ring are of one kind.
const ANY: u64 = 0;

/// Why a message was not sent or received. Ranks are the seats of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The deadline passed.
    Timeout {
        /// Who has not sent, or has not read to make room.
        ranks: Vec<usize>,
        /// How long this rank has waited.
        waited: Duration,
    },
    /// A rank died.
    Died {
        /// The rank.
        rank: usize,
    },
    /// A rank has left in good order.
    Left {
        /// The rank.
        rank: usize,
    },
    /// A rank has left because its thread panicked.
    Abandoned {
        /// The rank.
        rank: usize,
    },
    /// The ring holds what its protocol never writes.
    Corrupt {
        /// The rank whose words are wrong.
        rank: usize,
        /// The number of the slot.
        slot: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// More than [`LONGEST_MESSAGE`] bytes.
    TooLong(usize),
    /// No other seat has this number.
    NoPeer(usize),
    /// The ring was closed by this rank.
    Closed,
    /// The ring belongs to the parent of this process.
    Forked,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { ranks, waited } => {
                write!(f, "nothing for {:.1} s from", waited.as_secs_f64())?;
                ranks.iter().try_for_each(|rank| write!(f, " rank {rank}"))
            }
            Self::Died { rank } => write!(f, "rank {rank} died"),
            Self::Left { rank } => write!(f, "rank {rank} has left"),
            Self::Abandoned { rank } => {
                write!(f, "rank {rank} has left: one of its threads panicked")
            }
            Self::Corrupt { rank, slot, what } => {
                write!(f, "slot {slot} of rank {rank} is corrupt: {what}")
            }
            Self::TooLong(bytes) => write!(
                f,
                "{bytes} bytes are more than a message of {LONGEST_MESSAGE} may have"
            ),
            Self::NoPeer(rank) => write!(f, "rank {rank} is no peer in this ring"),
            Self::Closed => f.write_str("the ring is closed"),
            Self::Forked => f.write_str("the ring belongs to the parent of this process"),
        }
    }
}

impl std::error::Error for RingError {}

/// One rank's seat at a ring.
///
/// One seat sends at a time and all others receive, every message. Which one sends is the caller's affair: always the
/// same, as in a relay, or whoever the last message has handed the part over to. Two threads cannot share a seat: every
/// call takes `&mut self`.
#[derive(Debug)]
pub struct Ring {
    storage: Arc<RingStorage>,
    me: usize,
    /// The slot this seat writes or reads next. The same on all seats once a message has gone through.
    cursor: u64,
    /// The first slot that may not be written yet, as far as this seat has looked.
    limit: u64,
    /// The last slot that this seat has told the others it is done with.
    given_back: u64,
    /// What has come of a message.
    incoming: Vec<u8>,
    /// Whether `incoming` is the beginning of a message.
    begun: bool,
    ladder: Ladder,
    peers: Option<Box<dyn Liveness>>,
    /// The process that sat down here. A forked child touches nothing.
    owner: Process,
    closed: bool,
}

/// What a seat waits for.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    /// A slot that all others have read.
    Room,
    /// The next slot of this rank.
    Slot { from: usize },
}

impl Ring {
    /// The seat of rank `me` at a ring.
    ///
    /// # Panics
    ///
    /// If `me` is not a seat of the ring.
    #[must_use]
    pub fn new(storage: Arc<RingStorage>, me: usize, ladder: Ladder) -> Self {
        assert!(
            me < storage.geometry().seats(),
            "rank {me} has no seat at this ring"
        );
        let first = storage.first();
        Self {
            me,
            cursor: first,
            limit: first,
            given_back: first.wrapping_sub(1),
            incoming: Vec::new(),
            begun: false,
            ladder,
            peers: None,
            owner: Process::current(),
            closed: false,
            storage,
        }
    }

    /// Lets waits find out about dead peers.
    #[must_use]
    pub fn with_liveness(mut self, peers: Box<dyn Liveness>) -> Self {
        self.peers = Some(peers);
        self
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.me
    }

    /// The form of the ring.
    #[must_use]
    pub fn geometry(&self) -> RingGeometry {
        self.storage.geometry()
    }

    /// How many bytes of a message this rank could send now without waiting: the back-pressure of the slowest reader.
    ///
    /// # Errors
    ///
    /// A reader's place in the ring makes no sense.
    pub fn room(&self) -> Result<usize, RingError> {
        let free = usize::try_from(self.free()?).unwrap_or(usize::MAX);
        Ok(free * self.geometry().fragment_bytes())
    }

    /// Sends a message to all others.
    ///
    /// Blocks while the ring is full, at most for `timeout`. After [`RingError::Timeout`] the message is withdrawn: what
    /// of it is out the readers drop when the next one begins. It need not have been read when this returns.
    ///
    /// # Errors
    ///
    /// A rank that died or left is told within one slice of the wait; nothing else can go through this ring then.
    pub fn send(&mut self, message: &[u8], timeout: Duration) -> Result<(), RingError> {
        self.send_watching(message, timeout, &mut || Ok(()))
    }

    /// As [`Ring::send`]; `watch` is called once each slice of the wait, and its error ends it.
    ///
    /// # Errors
    ///
    /// As [`Ring::send`], or that of `watch`.
    pub fn send_watching<E: From<RingError>>(
        &mut self,
        message: &[u8],
        timeout: Duration,
        watch: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut sent = 0;
        self.wait(Awaited::Room, timeout, watch, |ring| {
            ring.offer(message, &mut sent)
        })
    }

    /// Sends as much of a message as there is room for, without waiting; whether all of it is out. At most one lap of the
    /// ring at a time, however fast the others read.
    ///
    /// `sent` counts its bytes that are out: zero for a new message, and the same variable until the message is out. A
    /// new message instead withdraws the rest of this one; the readers drop what they have of it.
    ///
    /// # Errors
    ///
    /// [`RingError::TooLong`] and a rank that has left are told before anything is sent. Deaths are not looked for: see
    /// [`Ring::inspect`].
    pub fn offer(&mut self, message: &[u8], sent: &mut usize) -> Result<bool, RingError> {
        self.usable()?;
        if message.len() > LONGEST_MESSAGE {
            return Err(RingError::TooLong(message.len()));
        }
        if *sent == 0 {
            self.inspect_while(false, || true)?;
        } else if *sent >= message.len() {
            return Ok(true);
        }
        for _ in 0..self.geometry().slots() {
            if !self.has_room()? {
                break;
            }
            let rest = &message[*sent..];
            let piece = &rest[..rest.len().min(self.geometry().fragment_bytes())];
            let last = piece.len() == rest.len();
            let fragment = Fragment {
                from: self.me,
                first: *sent == 0,
                last,
            };
            self.put(fragment, piece)?;
            *sent += piece.len();
            if last {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Receives the next message of `from`.
    ///
    /// Blocks until all of it is here, at most for `timeout`. After [`RingError::Timeout`] the next call goes on with
    /// what has come. `message` is replaced, and keeps what it was until the new one is whole.
    ///
    /// # Errors
    ///
    /// A rank that died or left is told within one slice of the wait. What was sent whole before that still arrives.
    pub fn receive(
        &mut self,
        from: usize,
        message: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), RingError> {
        self.receive_watching(from, message, timeout, &mut || Ok(()))
    }

    /// As [`Ring::receive`]; `watch` is called once each slice of the wait, and its error ends it.
    ///
    /// # Errors
    ///
    /// As [`Ring::receive`], or that of `watch`.
    pub fn receive_watching<E: From<RingError>>(
        &mut self,
        from: usize,
        message: &mut Vec<u8>,
        timeout: Duration,
        watch: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.wait(Awaited::Slot { from }, timeout, watch, |ring| {
            ring.try_receive(from, message)
        })
    }

    /// Takes what has come of the next message of `from`, without waiting; whether it was the rest of it. At most one lap of
    /// the ring at a time, however fast it comes.
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`] if what has come is not what `from` sent. Deaths are not looked for: see [`Ring::inspect`].
    pub fn try_receive(&mut self, from: usize, message: &mut Vec<u8>) -> Result<bool, RingError> {
        self.usable()?;
        if from == self.me || from >= self.geometry().seats() {
            return Err(RingError::NoPeer(from));
        }
        // Whoever waits for room is told once a quarter of the ring is free, not at each slot.
        let batch = (self.geometry().slots() as u64 / 4).max(1);
        for _ in 0..self.geometry().slots() {
            if !self.has_come(from)? {
                break;
            }
            let last = self.take(from)?;
            self.cursor = self.cursor.wrapping_add(1);
            if last {
                self.begun = false;
                std::mem::swap(message, &mut self.incoming);
                self.give_back();
                return Ok(true);
            }
            if self.cursor.wrapping_sub(self.given_back) > batch {
                self.give_back();
            }
        }
        self.give_back();
        Ok(false)
    }

    /// Sees whether all others are still here, as a wait does once each slice.
    ///
    /// # Errors
    ///
    /// The first rank that died or has left.
    pub fn inspect(&self) -> Result<(), RingError> {
        self.usable()?;
        self.inspect_while(true, || true)
    }

    /// Leaves in good order: the others are told, once they have read what this rank has sent.
    pub fn close(&mut self) {
        self.leave(Leave::Closed);
    }

    fn leave(&mut self, how: Leave) {
        if !self.closed && self.owner.is_here() {
            self.closed = true;
            self.storage.member(self.me).leave(how);
            park::wake(self.storage.readers());
            park::wake(self.storage.senders());
        }
    }

    fn usable(&self) -> Result<(), RingError> {
        if !self.owner.is_here() {
            return Err(RingError::Forked);
        }
        if self.closed {
            return Err(RingError::Closed);
        }
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.geometry().seats()).filter(move |rank| *rank != me)
    }

    /// Writes the next slot, which must be free.
    fn put(&mut self, fragment: Fragment, bytes: &[u8]) -> Result<(), RingError> {
        let slot = self.storage.slot(self.cursor);
        if slot.stamp() != self.tenant() {
            return Err(self.corrupt(self.me, "somebody else has written to it"));
        }
        slot.fill(self.cursor, fragment, bytes);
        if fragment.last {
            // A sender is done with what it has sent. Said before the stamp, so that whoever has the message, and may send
            // the next one, knows. Relaxed: S1 orders it.
            self.given_back = self.cursor;
            let member = self.storage.member(self.me);
            member.done.store(self.cursor, Ordering::Relaxed);
        }
        slot.publish(self.cursor);
        self.cursor = self.cursor.wrapping_add(1);
        // ORDERING [S3] SeqCst fence between the stamp and the look at the waiters: pairs with P2.
        full_fence("S3");
        park::wake_fenced(self.storage.readers(), ANY);
        Ok(())
    }

    /// Takes the fragment in the next slot, which has come; whether it is the last of its message.
    fn take(&mut self, from: usize) -> Result<bool, RingError> {
        let slot = self.storage.slot(self.cursor);
        let head = slot.head();
        let (fragment, length) = (head.fragment(), head.length());
        if fragment.first {
            // What has come of another message was withdrawn.
            self.incoming.clear();
        }
        let wrong = if length > slot.capacity() {
            Some("its length is that of no fragment")
        } else if !slot.read(self.cursor, head, &mut self.incoming) {
            Some("its checksum does not match")
        } else if fragment.from != from {
            Some("it is from another rank")
        } else if !fragment.last && length < slot.capacity() {
            Some("it is short but not the last of its message")
        } else if !fragment.first && !self.begun {
            Some("its message has no beginning")
        } else if self.incoming.len() > LONGEST_MESSAGE {
            Some("its message is too long")
        } else {
            None
        };
        if let Some(what) = wrong {
            return Err(self.corrupt(from, what));
        }
        self.begun = true;
        Ok(fragment.last)
    }

    fn corrupt(&self, rank: usize, what: &'static str) -> RingError {
        RingError::Corrupt {
            rank,
            slot: self.cursor,
            what,
        }
    }

    /// What lies in the next slot until it is written.
    fn tenant(&self) -> u64 {
        self.cursor.wrapping_sub(self.geometry().slots() as u64)
    }

    /// Whether the next slot has been written.
    #[inline(always)]
    fn has_come(&self, from: usize) -> Result<bool, RingError> {
        let stamp = self.storage.slot(self.cursor).stamp();
        if stamp == self.cursor {
            Ok(true)
        } else if stamp == self.tenant() {
            Ok(false)
        } else {
            Err(self.corrupt(from, "its stamp is of another lap"))
        }
    }

    /// Tells whoever waits for room how far this rank has read.
    fn give_back(&mut self) {
        let read = self.cursor.wrapping_sub(1);
        if read == self.given_back {
            return;
        }
        self.given_back = read;
        let member = self.storage.member(self.me);
        // ORDERING [T1] Release: pairs with lag(); what this rank has read of the slots it has read before.
        member.done.store(read, order("T1", Ordering::Release));
        // ORDERING [T3] SeqCst fence between `done` and the look at the waiters: pairs with P2.
        full_fence("T3");
        park::wake_fenced(self.storage.senders(), ANY);
    }

    /// How many slots `rank` has yet to read before this rank's next.
    fn lag(&self, rank: usize) -> Result<u64, RingError> {
        // ORDERING [T2] Acquire: pairs with give_back(); the slots are written after it.
        let done = (self.storage.member(rank).done).load(order("T2", Ordering::Acquire));
        let lag = self.cursor.wrapping_sub(1).wrapping_sub(done);
        if lag > self.geometry().slots() as u64 {
            return Err(self.corrupt(rank, "it has read what was never written"));
        }
        Ok(lag)
    }

    /// How many slots all others have read.
    fn free(&self) -> Result<u64, RingError> {
        let slots = self.geometry().slots() as u64;
        self.others()
            .try_fold(slots, |free, rank| Ok(free.min(slots - self.lag(rank)?)))
    }

    /// Whether the next slot may be written; looks at the others only where it must.
    #[inline(always)]
    fn has_room(&mut self) -> Result<bool, RingError> {
        let known = self.limit.wrapping_sub(self.cursor);
        // An old limit may lie behind the cursor: then the difference is huge.
        if known == 0 || known > self.geometry().slots() as u64 {
            self.limit = self.cursor.wrapping_add(self.free()?);
        }
        Ok(self.limit != self.cursor)
    }

    fn is_there(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Room => self.free() != Ok(0),
            Awaited::Slot { from } => self.has_come(from) != Ok(false),
        }
    }

    fn sleepers(&self, awaited: Awaited) -> &Control {
        match awaited {
            Awaited::Room => self.storage.senders(),
            Awaited::Slot { .. } => self.storage.readers(),
        }
    }

    /// Whom `awaited` is missing of.
    fn missing(&self, awaited: Awaited) -> Vec<usize> {
        match awaited {
            Awaited::Room => {
                // Looked at once: readers go on meanwhile.
                let lag = |rank| (self.lag(rank).unwrap_or(0), rank);
                let lags: Vec<_> = self.others().map(lag).collect();
                let most = lags.iter().map(|(lag, _)| *lag).max();
                let slowest = lags.into_iter().filter(|(lag, _)| Some(*lag) == most);
                slowest.map(|(_, rank)| rank).collect()
            }
            Awaited::Slot { from } => vec![from],
        }
    }

    /// Waits until `attempt` has succeeded.
    fn wait<E: From<RingError>>(
        &mut self,
        awaited: Awaited,
        timeout: Duration,
        watch: &mut dyn FnMut() -> Result<(), E>,
        mut attempt: impl FnMut(&mut Self) -> Result<bool, RingError>,
    ) -> Result<(), E> {
        if attempt(self)? {
            return Ok(());
        }
        let (waits, started) = (Waits::new(self.ladder), monotonic_ns());
        let elapsed = || Duration::from_nanos(monotonic_ns().saturating_sub(started));
        let mut climb = Climb::new(&waits, ANY, timeout);
        let (mut moved, mut looked) = (false, Duration::ZERO);
        loop {
            let step = if climb.polls() {
                Step::Again
            } else {
                self.inspect_while(false, || !self.is_there(awaited))?;
                let look = || self.is_there(awaited) || self.has_anybody_left();
                climb.step(
                    u64::MAX,
                    |_| u64::MAX,
                    |slice| {
                        waits.sleep(self.sleepers(awaited), self.me, ANY, slice, look);
                    },
                )
            };
            // While fragments trickle in, no climb gets as far as a slice.
            if matches!(step, Step::Slice { .. })
                || moved && elapsed() - looked >= self.ladder.slice
            {
                looked = elapsed();
                watch()?;
                self.inspect_while(true, || !self.is_there(awaited))?;
            }
            let cursor = self.cursor;
            if attempt(self)? {
                return Ok(());
            }
            moved = self.cursor != cursor;
            let expired = matches!(step, Step::Expired { .. });
            if moved || expired {
                let waited = elapsed();
                if expired || waited >= timeout {
                    let ranks = self.missing(awaited);
                    return Err(E::from(RingError::Timeout { ranks, waited }));
                }
                // The next fragment follows soon: up the ladder anew.
                climb = Climb::new(&waits, ANY, timeout.saturating_sub(waited));
            }
        }
    }

    /// Sees whether all others are still here, if then still `missing` what this rank waits for. As long as nobody has left,
    /// the locks are asked only where `ask` says so.
    #[inline(always)]
    fn inspect_while(&self, ask: bool, missing: impl Fn() -> bool) -> Result<(), RingError> {
        if !ask && !self.has_anybody_left() {
            return Ok(());
        }
        // RULE [L1] A rank writes, then leaves, then loses its lock. Test the lock first, `closed` second, the slots last:
        // what was sent whole arrives.
        let early = weakened("L1") && missing();
        match self.who_is_gone() {
            Some(error) if early || missing() => Err(error),
            _ => Ok(()),
        }
    }

    fn has_anybody_left(&self) -> bool {
        self.others()
            .any(|rank| self.storage.member(rank).left().is_some())
    }

    /// The first rank that died; else the first that left in a panic; else in good order: the others may have left on
    /// account of it.
    #[cold]
    fn who_is_gone(&self) -> Option<RingError> {
        let left = |rank: usize| self.storage.member(rank).left();
        let first = |how| self.others().find(|&rank| left(rank) == Some(how));
        let dead = |rank| self.peers.as_ref().is_some_and(|peers| !peers.alive(rank));
        let died = || {
            self.others()
                .find(|&rank| dead(rank) && left(rank).is_none())
        };
        // RULE [L2] Effects first, causes last: whoever is seen to have left may have been told of a death, and that death
        // is then seen here too.
        let early = weakened("L2").then(died);
        let closed = first(Leave::Closed);
        let abandoned = first(Leave::Abandoned);
        let died = early.unwrap_or_else(died);
        died.map(|rank| RingError::Died { rank })
            .or(abandoned.map(|rank| RingError::Abandoned { rank }))
            .or(closed.map(|rank| RingError::Left { rank }))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if std::thread::panicking() && !cfg!(loom) {
            self.leave(Leave::Abandoned);
        }
        self.close();
    }
}
