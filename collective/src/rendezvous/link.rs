//! A rank's connection to the rendezvous.

use rankpact_shm::Process;
use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::message::{Reply, Request, cut};
use super::{BODY, Ended, LinkError};
use crate::envelope::{Filled, HEAD, Inbox};
use crate::gate::{Claim, Purpose, Visitor};
use crate::ip::Ip;
use crate::options::Interrupt;
use crate::socket::Stream;
use crate::token::Token;

/// How much longer than a deadline a link waits for the server's list of the missing.
const GRACE: Duration = Duration::from_millis(400);

/// How often a gather that waits asks the program whether to go on.
const SLICE: Duration = Duration::from_millis(50);

/// How long a write may take; the server always reads, so a longer one means that its host is gone.
const WRITE: Duration = Duration::from_secs(5);

/// How long a close waits for the server to hang up.
const LINGER: Duration = Duration::from_secs(2);

/// Called with the rank and its reason when a rank aborts the job.
pub(crate) type OnAbort = Box<dyn FnOnce(usize, &str) + Send>;

type Gathered = Result<Vec<Vec<u8>>, LinkError>;

/// A rank's link to the rendezvous. Gathers may run in several threads at once.
///
/// Dropping it closes it, but in a thread that panics it aborts the job first.
pub(crate) struct Link {
    rank: usize,
    size: usize,
    here: Ip,
    there: Ip,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    /// What a gather asks while it waits.
    interrupt: Option<Interrupt>,
    /// In a forked child there is no reader, and the connection is the parent's.
    owner: Process,
    /// Disconnects when the reader has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

struct Shared {
    /// Held for one whole message: halves of two messages must not mix.
    writer: Mutex<Stream>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    ended: Option<Ended>,
    next: u64,
    pending: HashMap<u64, Pending>,
    on_abort: Option<OnAbort>,
    dead: Vec<usize>,
}

struct Pending {
    parts: Vec<Vec<u8>>,
    members: usize,
    reply: mpsc::Sender<Gathered>,
}

impl Link {
    /// Joins the rendezvous at `address` as `rank` of `size`; tries again until `deadline` if nobody answers there. Waits
    /// ask `interrupt` whether to go on: a reason not to ends this call, and later the job.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`] at the deadline, [`LinkError::Refused`] at once.
    pub(crate) fn connect(
        address: SocketAddr,
        token: &Token,
        rank: usize,
        size: usize,
        deadline: Instant,
        interrupt: Option<Interrupt>,
    ) -> Result<Self, LinkError> {
        let visitor = Visitor::new(
            address,
            token,
            Claim {
                purpose: Purpose::Rendezvous,
                rank,
                size,
            },
        );
        let entered = visitor
            .enter(deadline, interrupt)
            .map_err(|refused| LinkError::Refused { reason: refused.0 })?;
        let (stream, inbox) = entered.map_err(|unanswered| LinkError::Unreachable {
            address,
            from: unanswered.from.map(|from| from.to_string()),
            trouble: unanswered.why,
        })?;
        let (here, there) = (stream.local_addr()?.into(), stream.peer_addr()?.into());
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(WRITE))?;
        let source = Stream::new(stream.try_clone()?)?;
        let shared = Arc::new(Shared {
            writer: Mutex::new(stream),
            state: Mutex::default(),
        });
        let (ending, ended) = mpsc::channel();
        let reader = thread::Builder::new()
            .name("rankpact-link".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let _ending: mpsc::Sender<()> = ending;
                    shared.read(source, inbox);
                }
            })?;
        Ok(Self {
            rank,
            size,
            here,
            there,
            shared,
            reader: Some(reader),
            interrupt,
            owner: Process::current(),
            ended: Mutex::new(ended),
        })
    }

    /// Exchanges `payload` with all `members` under `key`: waits until each has contributed and returns what they
    /// gave, in the order of `members`. The n-th gather of a key pairs with the n-th of every other member. It ends
    /// alike for all who wait: the earliest deadline among them counts, and a member that comes later is told that
    /// it was missing.
    ///
    /// # Errors
    /// Says who is missing, died, left, gave other members or aborted; or that the call can never work.
    pub(crate) fn gather(
        &self,
        key: &str,
        members: &[usize],
        payload: &[u8],
        deadline: Instant,
    ) -> Gathered {
        self.check(members)?;
        let (reply, answer) = mpsc::channel();
        let id = {
            let mut state = self.shared.state();
            state.usable()?;
            state.next += 1;
            let id = state.next;
            state.pending.insert(
                id,
                Pending {
                    parts: Vec::new(),
                    members: members.len(),
                    reply,
                },
            );
            id
        };
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: nobody is called missing before the deadline.
        let millis = left.as_millis().saturating_add(1);
        let request = Request::Gather {
            id,
            millis: u64::try_from(millis).unwrap_or(u64::MAX),
            key: key.to_owned(),
            members: members.to_vec(),
            payload: payload.to_vec(),
        };
        let sent = self.shared.send(&request);
        let outcome = match sent {
            Ok(()) => self.answered(&answer, left.saturating_add(GRACE)),
            // What ended the connection may have come with it, and says more.
            Err(LinkError::Io(_)) => answer.recv_timeout(GRACE).ok(),
            Err(error) => Some(Err(error)),
        };
        let mut state = self.shared.state();
        state.pending.remove(&id);
        outcome.unwrap_or_else(|| {
            state.usable()?;
            Err(LinkError::Missing { ranks: vec![0] })
        })
    }

    fn answered(&self, answer: &mpsc::Receiver<Gathered>, patience: Duration) -> Option<Gathered> {
        let started = Instant::now();
        loop {
            let left = patience.saturating_sub(started.elapsed());
            match answer.recv_timeout(left.min(SLICE)) {
                Ok(gathered) => return Some(gathered),
                Err(mpsc::RecvTimeoutError::Timeout) if left > SLICE => {}
                Err(_) => return None,
            }
            if let Some(reason) = Interrupt::reason(self.interrupt) {
                self.abort(&reason);
            }
        }
    }

    /// Ends the job for everybody: all other ranks are told at once, and every gather fails.
    pub(crate) fn abort(&self, reason: &str) {
        if !self.owner.is_here() {
            return;
        }
        let reason = cut(reason).to_owned();
        // No one is left to be told if this fails: the server is gone, and the others know that already.
        let _ = self.shared.send(&Request::Abort {
            reason: reason.clone(),
        });
        // The callback is about what others do.
        self.shared.state().on_abort = None;
        self.shared.finish(Ended::Aborted {
            rank: self.rank,
            reason,
        });
    }

    /// The address of this host that leads to the rendezvous.
    pub(crate) fn here(&self) -> Ip {
        self.here
    }

    /// Where the rendezvous was found.
    pub(crate) fn there(&self) -> Ip {
        self.there
    }

    /// Why this link is of no more use, if it is.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.shared.state().ended.clone()
    }

    /// Ranks that have died, as far as the server has noticed.
    pub(crate) fn dead(&self) -> Vec<usize> {
        let state = self.shared.state();
        let server = state.ended.as_ref().and_then(|ended| {
            if let Ended::Died { rank } = ended {
                Some(*rank)
            } else {
                None
            }
        });
        state.dead.iter().copied().chain(server).collect()
    }

    /// Calls `callback` once when another rank aborts the job, in the thread that reads; right here if that has
    /// happened. A later callback replaces one that has not been called.
    pub(crate) fn on_abort(&self, callback: OnAbort) {
        let mut state = self.shared.state();
        match state.ended.clone() {
            Some(Ended::Aborted { rank, reason }) if rank != self.rank => {
                drop(state);
                callback(rank, &reason);
            }
            _ => state.on_abort = Some(callback),
        }
    }

    /// Leaves in order: the others see that this rank left, not that it died. A second call does nothing.
    pub(crate) fn close(&mut self) {
        let Some(reader) = self.reader.take().filter(|_| self.owner.is_here()) else {
            return;
        };
        self.shared.state().closed = true;
        // Both fail only when the connection is gone, and then there is nothing to leave.
        let _ = self.shared.send(&Request::Goodbye);
        let _ = self.shared.writer().shutdown(Shutdown::Write);
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(LINGER) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = self.shared.writer().shutdown(Shutdown::Both);
        }
        // The reader ends with its socket; its panic, if any, has been reported by the panic hook.
        let _ = reader.join();
    }

    /// Ends as if the process were killed: the socket closes without a goodbye.
    #[cfg(test)]
    pub(super) fn kill(mut self) {
        self.shared.state().closed = true;
        let _ = self.shared.writer().shutdown(Shutdown::Both);
        let _ = self.reader.take().map(JoinHandle::join);
    }

    fn check(&self, members: &[usize]) -> Result<(), LinkError> {
        let distinct = members
            .iter()
            .enumerate()
            .all(|(at, rank)| !members[..at].contains(rank));
        if !distinct
            || !members.contains(&self.rank)
            || members.iter().any(|&rank| rank >= self.size)
        {
            return Err(LinkError::Usage(format!(
                "members {members:?} must be distinct ranks below {}, rank {} among them",
                self.size, self.rank
            )));
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if thread::panicking() && self.reader.is_some() && self.owner.is_here() {
            self.abort("panicked");
        }
        self.close();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl State {
    fn usable(&self) -> Result<(), LinkError> {
        match &self.ended {
            _ if self.closed => Err(LinkError::Closed),
            Some(ended) => Err(ended.clone().into()),
            None => Ok(()),
        }
    }
}

impl Shared {
    // Nothing panics while it holds one of these locks, so a poisoned one is as good as any.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Stream> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, request: &Request) -> Result<(), LinkError> {
        let bytes = request.encode();
        if bytes.len() > HEAD + BODY {
            return Err(LinkError::Usage(format!(
                "{} bytes are too many for a gather, at most {BODY}",
                bytes.len()
            )));
        }
        let mut writer = self.writer();
        writer.write_all(&bytes).map_err(|error| {
            // Half a message may be out; nothing may follow it. What has arrived stays readable.
            let _ = writer.shutdown(Shutdown::Write);
            error.into()
        })
    }

    /// The reader thread: until the server hangs up, or a close runs out of patience and shuts the socket.
    fn read(&self, mut stream: Stream, mut inbox: Inbox) {
        inbox.set_limit(HEAD + BODY);
        loop {
            match inbox.peek() {
                Ok(Some(body)) => {
                    let Some(reply) = Reply::decode(body) else {
                        break;
                    };
                    inbox.pop();
                    self.take(reply);
                }
                Ok(None) => {
                    if !matches!(inbox.fill(&mut *stream), Ok(Filled::Some | Filled::Nothing)) {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        // The server counts on a hang-up to end its own close; this rank may keep the link for long.
        let _ = stream.shutdown(Shutdown::Both);
        self.finish(Ended::Died { rank: 0 });
    }

    fn take(&self, reply: Reply) {
        match reply {
            Reply::Part { id, bytes } => {
                let mut state = self.state();
                let Some(pending) = state.pending.get_mut(&id) else {
                    return;
                };
                pending.parts.push(bytes);
                if pending.parts.len() == pending.members
                    && let Some(pending) = state.pending.remove(&id)
                {
                    // A waiter that gave up is no error.
                    let _ = pending.reply.send(Ok(pending.parts));
                }
            }
            Reply::Failed { id, error } => {
                if let Some(pending) = self.state().pending.remove(&id) {
                    let _ = pending.reply.send(Err(error));
                }
            }
            Reply::Aborted { rank, reason } => self.finish(Ended::Aborted { rank, reason }),
            Reply::Died { rank } => self.state().dead.push(rank),
            Reply::Closed => self.finish(Ended::Left { rank: 0 }),
        }
    }

    /// Records the first reason for the end, and wakes everybody who waits.
    fn finish(&self, ended: Ended) {
        let mut state = self.state();
        if state.closed || state.ended.is_some() {
            return;
        }
        state.ended = Some(ended.clone());
        for (_, pending) in state.pending.drain() {
            let _ = pending.reply.send(Err(ended.clone().into()));
        }
        let callback = state.on_abort.take();
        drop(state);
        if let (Some(callback), Ended::Aborted { rank, reason }) = (callback, ended) {
            callback(rank, &reason);
        }
    }
}
