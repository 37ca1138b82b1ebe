//! Rank 0's side of the rendezvous: one thread that polls all connections.

use rankpact_shm::{CloseOnFork, Process};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::message::{Reply, Request};
use super::{BODY, LinkError};
use crate::envelope::{Filled, Inbox};
use crate::gate::{Admitted, Gate, Purpose};
use crate::socket::{Outbox, Stream, patience};
use crate::token::Token;

/// The longest sleep; nothing depends on it but how long a missed wake-up could last.
const NAP: Duration = Duration::from_secs(1);

/// How long a closing server waits for its links to hang up.
const LINGER: Duration = Duration::from_secs(1);

/// Reads from one connection in one go, so that a talkative rank does not starve the others.
const READS: usize = 8;

/// Bytes that may wait for a rank that does not read; more, and it counts as dead.
const WAITING: usize = 256 << 20;

/// The server of a rendezvous; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// Dropping this end wakes the thread and tells it to stop.
    waker: Option<CloseOnFork<UnixStream>>,
    /// Disconnects when the thread has ended.
    ended: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
    owner: Process,
}

impl Server {
    /// Serves `size` ranks that know `token`.
    ///
    /// # Errors
    /// The system refuses a socket or a thread.
    pub(crate) fn start(listener: TcpListener, token: Token, size: usize) -> io::Result<Self> {
        let (waker, woken) = UnixStream::pair()?;
        let waker = CloseOnFork::new(waker)?;
        let gate = Gate::new(listener, token, Purpose::Rendezvous, size)?;
        let seats = (0..size).map(|_| Seat::Empty).collect();
        let desk = Desk {
            seats,
            rounds: HashMap::new(),
            aborted: None,
        };
        let (ending, ended) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("rankpact-meet".to_owned())
            .spawn(move || {
                let _ending: mpsc::Sender<()> = ending;
                serve(gate, desk, &woken);
            })?;
        Ok(Self {
            waker: Some(waker),
            ended,
            thread: Some(thread),
            owner: Process::current(),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // The thread is the parent's, and so is its waker.
            return;
        }
        drop(self.waker.take());
        let ended = self.ended.recv_timeout(LINGER + NAP);
        if ended == Err(mpsc::RecvTimeoutError::Disconnected)
            && let Some(thread) = self.thread.take()
        {
            // A panic of the thread has been reported by the panic hook; a drop has no one to tell.
            let _ = thread.join();
        }
    }
}

fn serve(mut gate: Gate, mut desk: Desk, woken: &UnixStream) {
    loop {
        let now = Instant::now();
        let wakes = desk
            .deadlines()
            .chain(gate.wakes())
            .min()
            .unwrap_or(now + NAP);
        let mut sockets = vec![PollFd::new(woken.as_fd(), PollFlags::POLLIN)];
        sockets.extend(
            gate.sockets()
                .map(|socket| PollFd::new(socket, PollFlags::POLLIN)),
        );
        sockets.extend(desk.sockets());
        // An interrupted poll is an early wake-up, nothing more.
        let _ = poll(&mut sockets, patience(now, wakes, NAP));
        let stop = sockets[0]
            .revents()
            .is_some_and(|events| !events.is_empty());
        drop(sockets);
        for admitted in gate.serve(|rank| desk.judge(rank)) {
            desk.seat(admitted);
        }
        desk.turn();
        if stop {
            break;
        }
    }
    drop(gate);
    desk.linger();
}

#[derive(Debug)]
struct Connection {
    stream: Stream,
    inbox: Inbox,
    outbox: Outbox,
}

#[derive(Debug)]
enum Seat {
    Empty,
    Live(Connection),
    Died,
    Left,
}

/// The n-th gather of each of its members under one key.
#[derive(Debug)]
struct Round {
    /// Who came first, and its list.
    first: (usize, Vec<usize>),
    /// Everybody who will come: the members, and the members that others believe in.
    expected: Vec<usize>,
    arrived: Vec<usize>,
    contributions: HashMap<usize, Vec<u8>>,
    waiting: Vec<Waiting>,
    state: State,
}

/// A failed round stays until all who will come have been told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Open,
    Complete,
    Failed(LinkError),
}

#[derive(Debug)]
struct Waiting {
    rank: usize,
    id: u64,
    until: Instant,
}

#[derive(Debug)]
struct Desk {
    seats: Vec<Seat>,
    rounds: HashMap<String, VecDeque<Round>>,
    aborted: Option<(usize, String)>,
}

impl Desk {
    fn sockets(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.seats.iter().filter_map(|seat| match seat {
            Seat::Live(connection) => {
                let mut events = PollFlags::POLLIN;
                events.set(PollFlags::POLLOUT, connection.outbox.waiting() > 0);
                Some(PollFd::new(connection.stream.as_fd(), events))
            }
            _ => None,
        })
    }

    fn deadlines(&self) -> impl Iterator<Item = Instant> {
        self.rounds
            .values()
            .flatten()
            .flat_map(|round| round.waiting.iter().map(|waiting| waiting.until))
    }

    fn judge(&self, rank: usize) -> Result<(), String> {
        match self.seats.get(rank) {
            Some(Seat::Empty) => Ok(()),
            Some(Seat::Live(_)) => Err(format!("rank {rank} is taken by a live process")),
            Some(Seat::Died) => Err(format!(
                "rank {rank} was here and died; a job is not joined twice"
            )),
            Some(Seat::Left) => Err(format!(
                "rank {rank} was here and left; a job is not joined twice"
            )),
            None => Err(format!("there is no rank {rank}")),
        }
    }

    fn seat(&mut self, admitted: Admitted) {
        let Admitted {
            rank,
            stream,
            mut inbox,
        } = admitted;
        inbox.set_limit(BODY);
        if let Some(seat @ Seat::Empty) = self.seats.get_mut(rank) {
            *seat = Seat::Live(Connection {
                stream,
                inbox,
                outbox: Outbox::default(),
            });
            if let Some((origin, reason)) = self.aborted.clone() {
                self.say(
                    rank,
                    &Reply::Aborted {
                        rank: origin,
                        reason,
                    },
                );
            }
        }
    }

    fn turn(&mut self) {
        for rank in 0..self.seats.len() {
            self.hear(rank);
        }
        self.expire(Instant::now());
        for rank in 0..self.seats.len() {
            if let Seat::Live(connection) = &mut self.seats[rank] {
                let flushed = connection.outbox.flush(&mut *connection.stream);
                // A broken pipe may still hold a goodbye; only its end tells a death from an exit.
                if flushed.is_err() {
                    self.hear(rank);
                }
                if flushed.is_err() && matches!(self.seats[rank], Seat::Live(_)) {
                    self.vacate(rank, Seat::Died);
                }
            }
        }
    }

    /// Takes what a rank has sent, and notices its end.
    fn hear(&mut self, rank: usize) {
        let Some(Seat::Live(connection)) = self.seats.get_mut(rank) else {
            return;
        };
        let mut requests = Vec::new();
        let mut gone = connection.outbox.waiting() > WAITING;
        for _ in 0..READS {
            let filled = connection.inbox.fill(&mut *connection.stream);
            loop {
                match connection.inbox.peek() {
                    Ok(Some(body)) => match Request::decode(body) {
                        Some(request) => {
                            requests.push(request);
                            connection.inbox.pop();
                        }
                        None => gone = true,
                    },
                    Ok(None) => break,
                    Err(_) => gone = true,
                }
                if gone {
                    break;
                }
            }
            match filled {
                Ok(Filled::Some) if !gone => {}
                Ok(Filled::Nothing) => break,
                _ => {
                    gone = true;
                    break;
                }
            }
        }
        for request in requests {
            match request {
                Request::Gather {
                    id,
                    millis,
                    key,
                    members,
                    payload,
                } => {
                    let until = Instant::now().checked_add(Duration::from_millis(millis));
                    let until = until
                        .unwrap_or_else(|| Instant::now() + Duration::from_secs(u32::MAX.into()));
                    self.gather(Waiting { rank, id, until }, &key, &members, payload);
                }
                Request::Abort { reason } => self.abort(rank, &reason),
                Request::Goodbye => {
                    self.vacate(rank, Seat::Left);
                    return;
                }
            }
        }
        if gone {
            self.vacate(rank, Seat::Died);
        }
    }

    fn say(&mut self, rank: usize, reply: &Reply) {
        if let Some(Seat::Live(connection)) = self.seats.get_mut(rank) {
            connection.outbox.push(&reply.encode());
        }
    }

    fn abort(&mut self, origin: usize, reason: &str) {
        if self.aborted.is_some() {
            return;
        }
        self.aborted = Some((origin, reason.to_owned()));
        for rank in (0..self.seats.len()).filter(|&rank| rank != origin) {
            self.say(
                rank,
                &Reply::Aborted {
                    rank: origin,
                    reason: reason.to_owned(),
                },
            );
        }
        self.rounds.clear();
    }

    fn gather(&mut self, waiting: Waiting, key: &str, members: &[usize], payload: Vec<u8>) {
        if let Some((rank, reason)) = self.aborted.clone() {
            let error = LinkError::Aborted { rank, reason };
            return self.say(
                waiting.rank,
                &Reply::Failed {
                    id: waiting.id,
                    error,
                },
            );
        }
        let rank = waiting.rank;
        let rounds = self.rounds.entry(key.to_owned()).or_default();
        let at = rounds
            .iter()
            .position(|round| !round.arrived.contains(&rank))
            .unwrap_or(rounds.len());
        if at == rounds.len() {
            rounds.push_back(Round {
                first: (rank, members.to_vec()),
                expected: members.to_vec(),
                arrived: Vec::new(),
                contributions: HashMap::new(),
                waiting: Vec::new(),
                state: State::Open,
            });
        }
        let round = &mut rounds[at];
        round.arrived.push(rank);
        round.waiting.push(waiting);
        round.contributions.insert(rank, payload);
        if round.state == State::Open && round.first.1 != members {
            let mut lists = [round.first.clone(), (rank, members.to_vec())];
            lists.sort();
            let [one, other] = lists;
            let error = LinkError::Members { one, other };
            round.state = State::Failed(error);
            round.expected.extend_from_slice(members);
        }
        self.settle(key);
    }

    /// Fails the rounds whose first deadline has passed: for all who wait, so that all hear the same.
    fn expire(&mut self, now: Instant) {
        let mut late = Vec::new();
        for (key, rounds) in &mut self.rounds {
            for round in rounds.iter_mut().filter(|round| round.state == State::Open) {
                if round.waiting.iter().any(|waiting| waiting.until <= now) {
                    let missing = round
                        .expected
                        .iter()
                        .filter(|rank| !round.arrived.contains(rank));
                    round.state = State::Failed(LinkError::Missing {
                        ranks: missing.copied().collect(),
                    });
                    late.push(key.clone());
                }
            }
        }
        for key in late {
            self.settle(&key);
        }
    }

    fn vacate(&mut self, rank: usize, seat: Seat) {
        if let Seat::Live(mut connection) = std::mem::replace(&mut self.seats[rank], seat) {
            let _ = connection.outbox.flush(&mut *connection.stream);
        }
        if matches!(self.seats[rank], Seat::Died) {
            (0..self.seats.len()).for_each(|other| self.say(other, &Reply::Died { rank }));
        }
        let keys: Vec<String> = self.rounds.keys().cloned().collect();
        for key in keys {
            self.settle(&key);
        }
    }

    /// Answers whom it can and forgets the rounds that nobody will come to any more.
    fn settle(&mut self, key: &str) {
        let Some(mut rounds) = self.rounds.remove(key) else {
            return;
        };
        for round in &mut rounds {
            if round.state == State::Open {
                round.state = self.judge_round(round);
            }
            match &round.state {
                State::Open => {}
                State::Complete => {
                    for Waiting { rank, id, .. } in std::mem::take(&mut round.waiting) {
                        for member in &round.first.1 {
                            let bytes =
                                round.contributions.get(member).cloned().unwrap_or_default();
                            self.say(rank, &Reply::Part { id, bytes });
                        }
                    }
                }
                State::Failed(error) => {
                    for Waiting { rank, id, .. } in std::mem::take(&mut round.waiting) {
                        self.say(
                            rank,
                            &Reply::Failed {
                                id,
                                error: error.clone(),
                            },
                        );
                    }
                    round.contributions.clear();
                }
            }
        }
        rounds.retain(|round| match round.state {
            State::Open => true,
            State::Complete => false,
            State::Failed(_) => round.expected.iter().any(|&rank| {
                !round.arrived.contains(&rank)
                    && matches!(self.seats.get(rank), Some(Seat::Empty | Seat::Live(_)))
            }),
        });
        if !rounds.is_empty() {
            self.rounds.insert(key.to_owned(), rounds);
        }
    }

    fn judge_round(&self, round: &Round) -> State {
        if round
            .expected
            .iter()
            .all(|rank| round.arrived.contains(rank))
        {
            return State::Complete;
        }
        let gone = |how: fn(&Seat) -> bool| {
            let expected = round.expected.iter().copied();
            expected.filter(move |&rank| self.seats.get(rank).is_some_and(how))
        };
        // Also one that has contributed: whatever is being agreed, it will not take part in it. Told before a leaving, which
        // may be on its account.
        let died = gone(|seat| matches!(seat, Seat::Died)).next();
        let left =
            gone(|seat| matches!(seat, Seat::Left)).find(|rank| !round.arrived.contains(rank));
        match (died, left) {
            (Some(rank), _) => State::Failed(LinkError::Died { rank }),
            (None, Some(rank)) => State::Failed(LinkError::Left { rank }),
            (None, None) => State::Open,
        }
    }

    /// Says farewell and waits until the others have hung up: a socket closed with unread bytes is reset, and a reset
    /// may overtake the farewell.
    fn linger(mut self) {
        let until = Instant::now() + LINGER;
        for rank in 0..self.seats.len() {
            self.say(rank, &Reply::Closed);
        }
        loop {
            for seat in &mut self.seats {
                let Seat::Live(connection) = seat else {
                    continue;
                };
                let mut gone = connection.outbox.flush(&mut *connection.stream).is_err();
                if connection.outbox.waiting() == 0 {
                    // Refused only by a socket that is closed already.
                    let _ = connection.stream.shutdown(Shutdown::Write);
                }
                let mut waste = Inbox::new(0);
                gone |= !matches!(
                    waste.fill(&mut *connection.stream),
                    Ok(Filled::Some | Filled::Nothing)
                );
                if gone {
                    *seat = Seat::Left;
                }
            }
            let now = Instant::now();
            if now >= until || !self.seats.iter().any(|seat| matches!(seat, Seat::Live(_))) {
                return;
            }
            let mut sockets: Vec<PollFd<'_>> = self.sockets().collect();
            let _ = poll(&mut sockets, patience(now, until, LINGER));
        }
    }
}
