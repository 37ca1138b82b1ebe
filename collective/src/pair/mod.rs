//! A pair: the connection between two ranks, a sequence of messages in each direction, and what waits to be sent.
//!
//! Nothing here blocks but [`wait`], [`Pair::give_up`] and [`hang_up`], which have a deadline each. What has arrived whole
//! can be taken, whatever came behind it.

mod frame;
mod open;

use crate::envelope::{Filled, Garbage, Inbox};
use crate::error::{Described, ErrorKind, Silent};
use crate::job;
use crate::socket::{Stream, patience};
pub(crate) use frame::LONGEST;
use frame::{BODY, Frame, HEADER, Kind};
use nix::poll::{PollFd, PollFlags, poll};
pub(crate) use open::{Hub, Venue};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The longest sleep: whoever waits is asked at least this often whether it goes on.
const SLICE: Duration = Duration::from_millis(20);

/// Bytes of messages that are read before anybody takes them. One that is longer than what is left is still read.
const AHEAD: usize = LONGEST;

/// Reads in one go, so that the clock counts.
const READS: usize = 64;

/// How long a poison may take to leave.
const POISONING: Duration = Duration::from_millis(500);

/// How long a close waits for the other rank to hang up.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// What one rank has sent to the other.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) label: String,
    pub(crate) bytes: Vec<u8>,
}

/// How the stream of the other rank ended.
#[derive(Debug)]
enum End {
    /// With a goodbye.
    Left,
    /// Without one.
    Died,
    /// It has given the pair up, and said why.
    GaveUp(ErrorKind),
    /// What it sent cannot be trusted.
    Garbage(&'static str),
}

/// The connection between this rank and another.
///
/// Dropped without [`hang_up`] it looks like a death to the other rank.
#[derive(Debug)]
pub(crate) struct Pair {
    stream: Stream,
    inbox: Inbox,
    /// Frames that the kernel has not taken; of the first one `written` bytes are gone.
    outbox: VecDeque<Vec<u8>>,
    written: usize,
    /// Messages that nobody has taken, and their bytes, those of headers too.
    arrived: VecDeque<Message>,
    held: usize,
    /// Numbers of the last message of this rank, of the last that arrived, and of the last that was taken.
    pushed: u64,
    received: u64,
    taken: u64,
    /// Number of the last message that the other rank has taken, as far as it says so.
    acknowledged: u64,
    /// Label of the last message that arrived.
    last_label: String,
    end: Option<End>,
    /// The other rank reads no more. Only the end of what it sent tells why.
    deaf: bool,
    /// Something was to be sent when that was found out.
    unsent: bool,
    /// This rank has said its last word.
    leaving: bool,
}

impl Pair {
    fn new(stream: Stream, mut inbox: Inbox) -> Self {
        inbox.set_limit(BODY);
        let mut pair = Self {
            stream,
            inbox,
            outbox: VecDeque::new(),
            written: 0,
            arrived: VecDeque::new(),
            held: 0,
            pushed: 0,
            received: 0,
            taken: 0,
            acknowledged: 0,
            last_label: String::new(),
            end: None,
            deaf: false,
            unsent: false,
            leaving: false,
        };
        // The first messages may have come with the last word of the handshake.
        pair.sort();
        pair
    }

    /// Number of the last message of this rank.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Number of the last message that was taken here.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Number of the last message that the other rank has taken, as far as it says so.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Puts a copy of a message behind what waits to be sent; the caller has checked the lengths.
    pub(crate) fn push(&mut self, label: &str, payload: &[u8]) {
        self.pushed += 1;
        let frame = Frame {
            label,
            payload,
            ..Frame::bare(Kind::Message, self.pushed)
        };
        self.outbox.push_back(frame.seal());
    }

    /// Tells the other rank how many messages were taken here.
    pub(crate) fn acknowledge(&mut self) {
        self.outbox
            .push_back(Frame::bare(Kind::Taken, self.taken).seal());
    }

    /// Whether the kernel has taken everything that was to be sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.outbox.is_empty() && !self.unsent
    }

    /// The next message, while it stays where it is.
    pub(crate) fn front(&self) -> Option<&Message> {
        self.arrived.front()
    }

    /// The next message.
    pub(crate) fn take(&mut self) -> Option<Message> {
        let message = self.arrived.pop_front()?;
        self.held -= HEADER + message.bytes.len();
        self.taken += 1;
        Some(message)
    }

    /// Sends and receives what can be sent and received now.
    pub(crate) fn pump(&mut self) {
        self.flush();
        for _ in 0..READS {
            if !self.reads() {
                break;
            }
            match self.inbox.fill(&mut *self.stream) {
                Ok(Filled::Some) => self.sort(),
                Ok(Filled::Nothing) => break,
                Ok(Filled::End) | Err(_) => {
                    self.end = Some(End::Died);
                    self.hush();
                }
            }
        }
        self.inbox.release();
    }

    /// Why nothing more will arrive, if that is so, as an error about `rank`, which is the other one.
    pub(crate) fn ended(&self, rank: usize) -> Option<ErrorKind> {
        let last_round = self.received;
        Some(match self.end.as_ref()? {
            End::Left => ErrorKind::PeerClosed { rank, last_round },
            End::Died => ErrorKind::PeerDied { rank, last_round },
            End::GaveUp(kind) => kind.clone(),
            End::Garbage(what) => ErrorKind::Io(format!("rank {rank} sent garbage: {what}")),
        })
    }

    /// Whether the other rank has left in order.
    pub(crate) fn is_left(&self) -> bool {
        matches!(self.end, Some(End::Left))
    }

    /// The error of rank `by`, which has waited for `rank`, the other one, since `started`.
    pub(crate) fn late(&self, by: usize, rank: usize, started: Instant) -> ErrorKind {
        ErrorKind::Timeout {
            by,
            after: started.elapsed(),
            missing: vec![Silent {
                rank,
                last_round: self.received,
                last_label: self.last_label.clone(),
            }],
        }
    }

    /// What to poll before the next [`Pair::pump`]; nothing where nothing can come any more.
    pub(crate) fn socket(&self) -> Option<PollFd<'_>> {
        self.interest(self.reads())
    }

    /// Ends the pair for the other rank too, and tells it why. What nobody has taken is gone.
    ///
    /// Waits at most 500 ms, and only if the other rank has got a message in part.
    pub(crate) fn give_up(&mut self, kind: &ErrorKind) {
        self.arrived.clear();
        self.held = 0;
        if std::mem::replace(&mut self.leaving, true) || self.end.is_some() {
            return;
        }
        self.outbox.truncate(usize::from(self.written > 0));
        self.outbox
            .push_back(Frame::poison(&job::encode(kind)).seal());
        let until = Instant::now() + POISONING;
        loop {
            self.flush();
            // The other rank may be stuck in writing to this one, and would then not read.
            self.waste();
            let now = Instant::now();
            if self.outbox.is_empty() || self.end.is_some() || now >= until {
                break;
            }
            sleep(self.interest(true).into_iter().collect(), now, until);
        }
        // Fails only for a socket that is closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
        self.deaf = true;
    }

    /// Says goodbye and hangs up, as far as that goes at once.
    pub(crate) fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaving, true) && self.end.is_none() {
            self.outbox.push_back(Frame::bare(Kind::Bye, 0).seal());
        }
        self.flush();
        if self.outbox.is_empty() {
            // Fails only for a socket that is closed already.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    fn reads(&self) -> bool {
        self.end.is_none() && (self.deaf || self.held < AHEAD)
    }

    fn interest(&self, reads: bool) -> Option<PollFd<'_>> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, reads);
        events.set(PollFlags::POLLOUT, !self.outbox.is_empty());
        (!events.is_empty()).then(|| PollFd::new(self.stream.as_fd(), events))
    }

    /// Sends what the kernel takes now.
    fn flush(&mut self) {
        while let Some(front) = self.outbox.front() {
            match self.stream.write(&front[self.written..]) {
                Ok(count) if count > 0 => {
                    self.written += count;
                    if self.written == front.len() {
                        self.outbox.pop_front();
                        self.written = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.hush(),
            }
        }
    }

    /// Nothing more can be sent.
    fn hush(&mut self) {
        self.deaf = true;
        self.unsent |= !self.outbox.is_empty();
        self.outbox.clear();
        self.written = 0;
    }

    /// Sorts what has arrived whole.
    fn sort(&mut self) {
        while self.end.is_none() {
            let frame = match self.inbox.peek() {
                Ok(None) => return,
                Ok(Some(body)) => Frame::decode(body).ok_or("no frame of a pair"),
                Err(Garbage(what)) => Err(what),
            };
            match frame {
                Err(what) => self.end = Some(End::Garbage(what)),
                Ok(frame) => match frame.kind {
                    Kind::Message if frame.number == self.received + 1 => {
                        self.received += 1;
                        self.held += HEADER + frame.payload.len();
                        frame.label.clone_into(&mut self.last_label);
                        self.arrived.push_back(Message {
                            label: frame.label.to_owned(),
                            bytes: frame.payload.to_vec(),
                        });
                    }
                    Kind::Message => self.end = Some(End::Garbage("a message out of order")),
                    Kind::Taken if (self.acknowledged..=self.pushed).contains(&frame.number) => {
                        self.acknowledged = frame.number;
                    }
                    Kind::Taken => self.end = Some(End::Garbage("it took what was never sent")),
                    Kind::Bye => self.end = Some(End::Left),
                    Kind::Poison => {
                        let why = serde_json::from_slice(frame.payload);
                        self.end = Some(End::GaveUp(why.unwrap_or_else(|_| {
                            ErrorKind::Io("the other rank gave up without a reason".to_owned())
                        })));
                    }
                },
            }
            self.inbox.pop();
        }
        // It reads no more, and may wait for this rank to hang up.
        self.hush();
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Throws away what has arrived, and notices the end; whether that has come.
    fn waste(&mut self) -> bool {
        let mut waste = [0; 16 << 10];
        for _ in 0..READS {
            match self.stream.read(&mut waste) {
                Ok(count) if count > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    self.end.get_or_insert(End::Died);
                    return true;
                }
            }
        }
        false
    }
}

/// Two calls that do not belong together: this rank's, which receives, and that of `rank`, which has sent `message`.
pub(crate) fn mismatch(
    (me, operation, label): (usize, &str, &str),
    rank: usize,
    (theirs, message): (&str, &Message),
) -> ErrorKind {
    let mine = Described {
        rank: me,
        operation: operation.to_owned(),
        shape: format!("from rank {rank}"),
        label: label.to_owned(),
    };
    let other = Described {
        rank,
        operation: theirs.to_owned(),
        shape: format!("{} bytes", message.bytes.len()),
        label: message.label.clone(),
    };
    let mut calls = [mine, other];
    calls.sort_by_key(|call| call.rank);
    let [one, other] = calls.map(Box::new);
    ErrorKind::Mismatch { one, other }
}

/// Takes turns until one brings something; `None` if none did before `deadline`.
///
/// # Errors
/// Those of `turn`.
pub(crate) fn wait<S, T>(
    state: &mut S,
    deadline: Instant,
    mut turn: impl FnMut(&mut S) -> Result<Option<T>, ErrorKind>,
    sockets: impl Fn(&S) -> Vec<PollFd<'_>>,
) -> Result<Option<T>, ErrorKind> {
    loop {
        let now = Instant::now();
        // After the clock: this process may have been stopped since the last turn, and all may be here by now.
        if let Some(brought) = turn(state)? {
            return Ok(Some(brought));
        }
        if now >= deadline {
            return Ok(None);
        }
        sleep(sockets(state), now, deadline);
    }
}

/// Says goodbye to all and waits until they have hung up too, at most until `until`: a socket closed with unread bytes is
/// reset, and could take the last messages with it.
pub(crate) fn hang_up(mut pairs: Vec<Pair>, until: Instant) {
    loop {
        pairs.retain_mut(|pair| {
            pair.leave();
            !pair.waste()
        });
        let now = Instant::now();
        if pairs.is_empty() || now >= until {
            return;
        }
        let sockets = pairs.iter().filter_map(|pair| pair.interest(true));
        sleep(sockets.collect(), now, until);
    }
}

fn sleep(mut sockets: Vec<PollFd<'_>>, now: Instant, until: Instant) {
    // An interrupted poll is an early wake-up, nothing more.
    let _ = poll(&mut sockets, patience(now, until, SLICE));
}

#[cfg(test)]
mod tests;
