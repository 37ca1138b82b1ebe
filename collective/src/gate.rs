//! The gate of a listener: lets in who proves the token, and the way through it from the other side.
//!
//! Hello (nonce) -> Challenge (nonce) -> Answer (rank, size, proof) -> Welcome (proof) or Refusal (reason). Both ends
//! prove the token about both nonces, the purpose, the rank and the size. Nothing here blocks: a stranger costs
//! memory for a while and never time.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use rankpact_shm::CloseOnFork;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::codec::{Fields, Put};
use crate::envelope::{Filled, Inbox, seal};
use crate::ip::Ip;
use crate::options::Interrupt;
use crate::socket::{Stream, patience, tune};
use crate::token::{Nonce, Proof, Side, Token, nonce};

/// How long a handshake may take on either side.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The longest sleep of a visitor.
const SLICE: Duration = Duration::from_millis(50);

/// Connections that have not proved anything yet; the oldest make room, for ours need two round trips only.
const GUESTS: usize = 128;

/// Connections that the kernel holds for the gate; it takes less if it is set so.
const QUEUE: i32 = 4096;

/// Connections taken from the listener in one go, so that a flood does not starve those who are in.
const ACCEPTS: usize = 64;

/// Bytes of the longest message of a handshake: a refusal.
const MESSAGE: usize = 512;

/// How long to wait before another attempt to connect, and after the system refused a connection.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a gate refuses those of other jobs.
pub(crate) const WRONG_TOKEN: &str = "the token is not that of this job";

/// What a connection is for; part of every proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A rank and the rendezvous.
    Rendezvous,
    /// Two members of a group.
    Mesh,
}

/// Who wants in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// What for.
    pub(crate) purpose: Purpose,
    /// Its rank.
    pub(crate) rank: usize,
    /// How many ranks it believes there are.
    pub(crate) size: usize,
}

impl Claim {
    fn said(&self, connector: &Nonce, acceptor: &Nonce) -> Vec<u8> {
        let purpose: &[u8] = match self.purpose {
            Purpose::Rendezvous => b"rendezvous",
            Purpose::Mesh => b"mesh",
        };
        let mut said = Vec::new();
        said.put_bytes(purpose);
        said.put_bytes(connector);
        said.put_bytes(acceptor);
        said.put_count(self.rank);
        said.put_count(self.size);
        said
    }
}

#[derive(Debug)]
enum Message {
    Hello(Nonce),
    Challenge(Nonce),
    Answer {
        rank: usize,
        size: usize,
        proof: Proof,
    },
    Welcome(Proof),
    Refusal(String),
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        match self {
            Self::Hello(nonce) => {
                body.push(1);
                body.extend_from_slice(nonce);
            }
            Self::Challenge(nonce) => {
                body.push(2);
                body.extend_from_slice(nonce);
            }
            Self::Answer { rank, size, proof } => {
                body.push(3);
                body.put_count(*rank);
                body.put_count(*size);
                body.extend_from_slice(proof);
            }
            Self::Welcome(proof) => {
                body.push(4);
                body.extend_from_slice(proof);
            }
            Self::Refusal(reason) => {
                body.push(5);
                body.put_bytes(reason.as_bytes());
            }
        }
        seal(&body)
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let message = match fields.u8()? {
            1 => Self::Hello(fields.array()?),
            2 => Self::Challenge(fields.array()?),
            3 => Self::Answer {
                rank: fields.count()?,
                size: fields.count()?,
                proof: fields.array()?,
            },
            4 => Self::Welcome(fields.array()?),
            5 => Self::Refusal(fields.text()?),
            _ => return None,
        };
        fields.end(message)
    }

    /// A fresh socket takes a message whole; one that does not is not worth waiting for.
    fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        let bytes = self.encode();
        if stream.write(&bytes)? == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// The next message, if it is there.
    fn receive(stream: &mut TcpStream, inbox: &mut Inbox) -> io::Result<Option<Self>> {
        loop {
            match inbox.peek() {
                Err(garbage) => return Err(io::Error::other(garbage.0)),
                Ok(Some(body)) => {
                    let message =
                        Self::decode(body).ok_or(io::Error::other("no message of a handshake"))?;
                    inbox.pop();
                    return Ok(Some(message));
                }
                Ok(None) => match inbox.fill(stream)? {
                    Filled::Some => {}
                    Filled::Nothing => return Ok(None),
                    Filled::End => {
                        return Err(io::Error::other(
                            "the other end hung up during the handshake",
                        ));
                    }
                },
            }
        }
    }
}

/// A connection that proved the token; non-blocking, no delay, keepalive.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// The rank at the other end.
    pub(crate) rank: usize,
    /// The socket.
    pub(crate) stream: Stream,
    /// What has arrived on it; its limit is still that of a handshake.
    pub(crate) inbox: Inbox,
}

#[derive(Debug)]
struct Guest {
    stream: Stream,
    inbox: Inbox,
    since: Instant,
    nonces: Option<(Nonce, Nonce)>,
}

enum Verdict {
    Waits,
    Leaves,
    Enters(usize),
}

/// The accepting side.
#[derive(Debug)]
pub(crate) struct Gate {
    listener: CloseOnFork<TcpListener>,
    token: Token,
    purpose: Purpose,
    size: usize,
    guests: VecDeque<Guest>,
    /// Set while the system has no descriptor to spare: the listener stays readable, and must not be spun on.
    resting: Option<Instant>,
}

impl Gate {
    /// A gate before `listener`.
    ///
    /// # Errors
    /// The listener cannot be made non-blocking.
    pub(crate) fn new(
        listener: TcpListener,
        token: Token,
        purpose: Purpose,
        size: usize,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        // The standard queue holds 128: a flood would overflow it, and a rank's attempt be repeated only after 1 s.
        SockRef::from(&listener).listen(QUEUE)?;
        Ok(Self {
            listener: CloseOnFork::new(listener)?,
            token,
            purpose,
            size,
            guests: VecDeque::new(),
            resting: None,
        })
    }

    /// What to poll for reading before the next [`Gate::serve`].
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = self.resting.is_none().then(|| self.listener.as_fd());
        listener
            .into_iter()
            .chain(self.guests.iter().map(|guest| guest.stream.as_fd()))
    }

    /// When [`Gate::serve`] has something to do even if no socket is readable.
    pub(crate) fn wakes(&self) -> Option<Instant> {
        self.guests
            .front()
            .map(|guest| guest.since + HANDSHAKE)
            .into_iter()
            .chain(self.resting)
            .min()
    }

    /// Goes on with every handshake as far as possible; `judge` may still refuse a rank that proved the token.
    pub(crate) fn serve(
        &mut self,
        mut judge: impl FnMut(usize) -> Result<(), String>,
    ) -> Vec<Admitted> {
        let now = Instant::now();
        self.resting = self.resting.filter(|&until| now < until);
        self.accept(now);
        let mut admitted = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            let twice = |rank| admitted.iter().any(|other: &Admitted| other.rank == rank);
            let mut judge = |rank| {
                if twice(rank) {
                    Err(format!("rank {rank} is taken by a live process"))
                } else {
                    judge(rank)
                }
            };
            match self.advance(&mut guest, &mut judge) {
                Ok(Verdict::Enters(rank)) => {
                    admitted.push(Admitted {
                        rank,
                        stream: guest.stream,
                        inbox: guest.inbox,
                    });
                }
                Ok(Verdict::Waits) if now < guest.since + HANDSHAKE => self.guests.push_back(guest),
                Ok(Verdict::Waits | Verdict::Leaves) | Err(_) => {}
            }
        }
        admitted
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS {
            if self.resting.is_some() {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_ok()
                        && let Ok(stream) = Stream::new(stream)
                    {
                        self.guests.push_back(Guest {
                            stream,
                            inbox: Inbox::new(MESSAGE),
                            since: now,
                            nonces: None,
                        });
                    }
                    if self.guests.len() > GUESTS {
                        self.guests.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(_) => {
                    self.guests.pop_front();
                    self.resting = Some(now + PAUSE);
                }
            }
        }
    }

    fn advance(
        &self,
        guest: &mut Guest,
        judge: &mut impl FnMut(usize) -> Result<(), String>,
    ) -> io::Result<Verdict> {
        while let Some(message) = Message::receive(&mut guest.stream, &mut guest.inbox)? {
            match (message, guest.nonces) {
                (Message::Hello(connector), None) => {
                    let acceptor = nonce()?;
                    guest.nonces = Some((connector, acceptor));
                    Message::Challenge(acceptor).send(&mut guest.stream)?;
                }
                (Message::Answer { rank, size, proof }, Some((connector, acceptor))) => {
                    let said = Claim {
                        purpose: self.purpose,
                        rank,
                        size,
                    }
                    .said(&connector, &acceptor);
                    let verdict = if !self.token.verify(Side::Connector, &said, proof) {
                        Err(WRONG_TOKEN.to_owned())
                    } else if size != self.size && self.purpose == Purpose::Mesh {
                        Err(format!(
                            "rank {rank} was started for {size} ranks, this side for {}",
                            self.size
                        ))
                    } else if rank >= self.size {
                        Err(format!("there is no rank {rank} among {} ranks", self.size))
                    } else {
                        judge(rank)
                    };
                    return match verdict {
                        Ok(()) => {
                            tune(&guest.stream)?;
                            Message::Welcome(self.token.prove(Side::Acceptor, &said))
                                .send(&mut guest.stream)?;
                            Ok(Verdict::Enters(rank))
                        }
                        Err(reason) => {
                            Message::Refusal(reason).send(&mut guest.stream)?;
                            Ok(Verdict::Leaves)
                        }
                    };
                }
                _ => return Ok(Verdict::Leaves),
            }
        }
        Ok(Verdict::Waits)
    }
}

#[derive(Debug)]
enum Stage {
    Resting(Instant),
    Connecting(Stream),
    Talking {
        stream: Stream,
        inbox: Inbox,
        nonce: Nonce,
        said: Option<Vec<u8>>,
    },
}

/// The other side has decided that this one does not belong there; no use in trying again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

/// The connecting side: tries again until it is let in or refused.
#[derive(Debug)]
pub(crate) struct Visitor {
    address: SocketAddr,
    token: Token,
    claim: Claim,
    stage: Stage,
    /// When the present attempt is given up.
    until: Instant,
    /// The last attempt.
    last: Unanswered,
}

/// An attempt to be let in that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unanswered {
    /// The address of this host that leads there.
    pub(crate) from: Option<Ip>,
    /// Why it failed.
    pub(crate) why: String,
}

impl Visitor {
    /// A visitor who has not set out yet.
    pub(crate) fn new(address: SocketAddr, token: &Token, claim: Claim) -> Self {
        let now = Instant::now();
        Self {
            address,
            token: token.clone(),
            claim,
            stage: Stage::Resting(now),
            until: now,
            last: Unanswered {
                from: None,
                why: "nothing answered".to_owned(),
            },
        }
    }

    /// What to poll before the next [`Visitor::advance`].
    pub(crate) fn socket(&self) -> Option<PollFd<'_>> {
        match &self.stage {
            Stage::Resting(_) => None,
            Stage::Connecting(stream) => Some(PollFd::new(stream.as_fd(), PollFlags::POLLOUT)),
            Stage::Talking { stream, .. } => Some(PollFd::new(stream.as_fd(), PollFlags::POLLIN)),
        }
    }

    /// When [`Visitor::advance`] has something to do even if the socket is silent.
    pub(crate) fn wakes(&self) -> Instant {
        match self.stage {
            Stage::Resting(until) => until,
            _ => self.until,
        }
    }

    /// From where it goes where, and why the last attempt failed.
    pub(crate) fn trouble(&self) -> String {
        let Unanswered { from, why } = &self.last;
        let from = from.map_or("no interface".to_owned(), |from| from.to_string());
        format!("from {from} to {}: {why}", self.address)
    }

    /// Goes on as far as possible.
    ///
    /// # Errors
    /// The other side refuses, or does not know the token itself.
    pub(crate) fn advance(&mut self) -> Result<Option<(Stream, Inbox)>, Refused> {
        let now = Instant::now();
        match self.step(now) {
            Ok(Some(Ok(entered))) => Ok(Some(entered)),
            Ok(Some(Err(refused))) => Err(refused),
            Ok(None) if now >= self.until && !matches!(self.stage, Stage::Resting(_)) => {
                self.rest(now, "no answer".to_owned());
                Ok(None)
            }
            Ok(None) => Ok(None),
            Err(error) => {
                self.rest(now, error.to_string());
                Ok(None)
            }
        }
    }

    /// Blocks until it is let in. Once it has proved the token it may be in without knowing: giving up then would look
    /// like a death, so that the last answer is waited for a little longer.
    ///
    /// # Errors
    /// Refused, or `Ok(Err(..))` when `deadline` passed or the program does not go on.
    pub(crate) fn enter(
        mut self,
        deadline: Instant,
        interrupt: Option<Interrupt>,
    ) -> Result<Result<(Stream, Inbox), Unanswered>, Refused> {
        loop {
            if let Some(entered) = self.advance()? {
                return Ok(Ok(entered));
            }
            let now = Instant::now();
            let deadline = if self.has_proved() {
                deadline + HANDSHAKE
            } else {
                deadline
            };
            if now >= deadline || Interrupt::reason(interrupt).is_some() {
                return Ok(Err(self.last));
            }
            let timeout = patience(now, self.wakes().min(deadline), SLICE);
            // An interrupted poll is an early wake-up, nothing more.
            let _ = poll(self.socket().as_mut_slice(), timeout);
        }
    }

    fn has_proved(&self) -> bool {
        matches!(self.stage, Stage::Talking { said: Some(_), .. })
    }

    fn rest(&mut self, now: Instant, why: String) {
        self.last.why = why;
        self.stage = Stage::Resting(now + PAUSE);
    }

    fn step(&mut self, now: Instant) -> io::Result<Option<Result<(Stream, Inbox), Refused>>> {
        if let Stage::Resting(until) = self.stage {
            if now < until {
                return Ok(None);
            }
            self.until = now + HANDSHAKE;
            let stream = set_out(self.address)?;
            self.last.from = stream.local_addr().ok().map(Ip::from);
            self.stage = Stage::Connecting(stream);
        }
        if let Stage::Connecting(stream) = &self.stage {
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            if stream.peer_addr().is_err() {
                return Ok(None);
            }
            let mut stream = Stream::new(stream.try_clone()?)?;
            tune(&stream)?;
            let nonce = nonce()?;
            Message::Hello(nonce).send(&mut stream)?;
            self.stage = Stage::Talking {
                stream,
                inbox: Inbox::new(MESSAGE),
                nonce,
                said: None,
            };
        }
        let Stage::Talking {
            stream,
            inbox,
            nonce,
            said,
        } = &mut self.stage
        else {
            return Ok(None);
        };
        while let Some(message) = Message::receive(stream, inbox)? {
            match (message, said.as_ref()) {
                (Message::Challenge(acceptor), None) => {
                    let says = self.claim.said(nonce, &acceptor);
                    let proof = self.token.prove(Side::Connector, &says);
                    Message::Answer {
                        rank: self.claim.rank,
                        size: self.claim.size,
                        proof,
                    }
                    .send(stream)?;
                    *said = Some(says);
                    // Longer than the gate keeps anybody.
                    self.until = now + 2 * HANDSHAKE;
                }
                (Message::Welcome(proof), Some(says)) => {
                    if !self.token.verify(Side::Acceptor, says, proof) {
                        return Ok(Some(Err(Refused(format!(
                            "{} does not know the token",
                            self.address
                        )))));
                    }
                    let stage = std::mem::replace(&mut self.stage, Stage::Resting(now));
                    let Stage::Talking { stream, inbox, .. } = stage else {
                        return Ok(None);
                    };
                    return Ok(Some(Ok((stream, inbox))));
                }
                (Message::Refusal(reason), Some(_)) => return Ok(Some(Err(Refused(reason)))),
                _ => return Err(io::Error::other("what answers there is no rank of a job")),
            }
        }
        Ok(None)
    }
}

/// A socket on its way to `address`, without waiting for it to arrive.
fn set_out(address: SocketAddr) -> io::Result<Stream> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(nix::errno::Errno::EINPROGRESS as i32) => {
            Err(error)
        }
        Ok(()) | Err(_) => Stream::new(socket.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watchdog::within_a_minute;
    use std::thread;

    const CLAIM: Claim = Claim {
        purpose: Purpose::Mesh,
        rank: 1,
        size: 2,
    };

    fn open(token: &str) -> (Gate, SocketAddr) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (
            Gate::new(listener, Token::from_text(token), Purpose::Mesh, 2).unwrap(),
            address,
        )
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Serves until somebody is in.
    fn first(gate: &mut Gate) -> Admitted {
        loop {
            if let Some(admitted) = gate.serve(|_| Ok(())).pop() {
                return admitted;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn both_ends_of_a_connection_have_no_delay() {
        within_a_minute(|| {
            let (mut gate, address) = open("x");
            let visitor = Visitor::new(address, &Token::from_text("x"), CLAIM);
            let visit = thread::spawn(move || visitor.enter(soon(), None));
            let admitted = first(&mut gate);
            let (stream, _) = visit.join().unwrap().unwrap().unwrap();
            assert_eq!(admitted.rank, 1);
            for stream in [&admitted.stream, &stream] {
                assert!(stream.nodelay().unwrap());
            }
        });
    }

    #[test]
    fn a_wrong_token_is_refused_at_once_and_by_name() {
        within_a_minute(|| {
            let (mut gate, address) = open("x");
            let visitor = Visitor::new(address, &Token::from_text("y"), CLAIM);
            let visit = thread::spawn(move || visitor.enter(soon(), None));
            while !visit.is_finished() {
                assert!(gate.serve(|_| Ok(())).is_empty());
                thread::yield_now();
            }
            assert!(visit.join().unwrap().unwrap_err().0.contains("token"));
        });
    }

    #[test]
    fn an_acceptor_that_does_not_know_the_token_is_left() {
        within_a_minute(|| {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let visitor = Visitor::new(address, &Token::from_text("x"), CLAIM);
            let visit = thread::spawn(move || visitor.enter(soon(), None));
            let (mut stream, _) = listener.accept().unwrap();
            let mut inbox = Inbox::new(MESSAGE);
            assert!(matches!(
                Message::receive(&mut stream, &mut inbox),
                Ok(Some(Message::Hello(_)))
            ));
            Message::Challenge([1; 32]).send(&mut stream).unwrap();
            let Ok(Some(Message::Answer { proof, .. })) = Message::receive(&mut stream, &mut inbox)
            else {
                panic!("no answer");
            };
            // The visitor's own proof sent back must not pass for the acceptor's.
            Message::Welcome(proof).send(&mut stream).unwrap();
            assert!(
                visit
                    .join()
                    .unwrap()
                    .unwrap_err()
                    .0
                    .contains("does not know the token")
            );
        });
    }

    #[test]
    fn a_connection_for_another_purpose_is_refused() {
        within_a_minute(|| {
            let (mut gate, address) = open("x");
            let claim = Claim {
                purpose: Purpose::Rendezvous,
                ..CLAIM
            };
            let visitor = Visitor::new(address, &Token::from_text("x"), claim);
            let visit = thread::spawn(move || visitor.enter(soon(), None));
            while !visit.is_finished() {
                assert!(gate.serve(|_| Ok(())).is_empty());
                thread::yield_now();
            }
            assert!(visit.join().unwrap().is_err());
        });
    }

    #[test]
    fn nobody_there_is_told_with_the_reason() {
        within_a_minute(|| {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let address = listener.local_addr().unwrap();
            drop(listener);
            let visitor = Visitor::new(address, &Token::from_text("x"), CLAIM);
            let why = visitor
                .enter(Instant::now() + Duration::from_millis(100), None)
                .unwrap()
                .unwrap_err();
            assert!(why.why.contains("refused"), "{why:?}");
            assert_eq!(why.from, Some(Ip::LOOPBACK));
        });
    }

    #[test]
    fn guests_are_bounded_and_the_oldest_make_room() {
        within_a_minute(|| {
            let (mut gate, address) = open("x");
            let mut strangers = Vec::new();
            for _ in 0..GUESTS + 40 {
                strangers.push(TcpStream::connect(address).unwrap());
                gate.serve(|_| Ok(()));
            }
            assert_eq!(gate.guests.len(), GUESTS);
            strangers[0]
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            assert_eq!(io::Read::read(&mut strangers[0], &mut [0]).unwrap(), 0);
        });
    }
}
