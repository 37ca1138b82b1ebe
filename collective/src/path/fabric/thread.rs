//! The thread that makes all calls of MPI.

use super::{Address, Command};
use crate::codec::Fields;
use mpi::Threading;
use mpi::point_to_point::MatchedReceiveVec as _;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, Destination as _, Source as _};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The tag of all our messages, so that those of the program are left alone.
const TAG: i32 = 0x5250;

/// Bytes of a frame in one message: small enough to travel in one go on all networks that MPI knows.
const CHUNK: usize = 16 << 10;

/// Port, and what the message is.
const HEADER: usize = 9;

/// Memory that MPI needs for a buffered message besides its bytes; those of today take about 100.
const OVERHEAD: usize = 512;

/// Memory for buffered messages, unless there are very many processes.
const BUFFER: usize = 64 << 20;

/// Messages to one process that it has not acknowledged.
const WINDOW: usize = 64;

/// The longest frame.
pub(super) const FRAME: usize = (64 << 20) + 64;

/// Messages taken in one go.
const TAKES: usize = 64;

/// For how long the thread polls after something moved; then it sleeps, a part of the time it has idled, at most `NAP`
/// while a port is open.
const POLLS: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_millis(1);
const REST: Duration = Duration::from_millis(10);

/// What a message is.
const FIRST: u8 = 1;
const LAST: u8 = 2;
const TAKEN: u8 = 4;

pub(super) fn spawn(
    commands: Receiver<Command>,
    started: Sender<Result<Address, String>>,
) -> io::Result<()> {
    let run = move || run(&commands, &started);
    // Not joined: where peers are gone, MPI may never let it end.
    thread::Builder::new()
        .name("rankpact-mpi".to_owned())
        .spawn(run)
        .map(drop)
}

fn run(commands: &Receiver<Command>, started: &Sender<Result<Address, String>>) {
    let Some((mut universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
        let what = "engine `mpi`: this program has started MPI itself; rankpact must do that";
        let _ = started.send(Err(what.to_owned()));
        return;
    };
    let world = universe.world();
    let peers = usize::try_from(world.size()).unwrap_or(1).max(2) - 1;
    // A message and the acknowledgement of one that came.
    let message = CHUNK + 2 * (HEADER + OVERHEAD);
    // Twice what is needed: MPI may free it later than its receiver acknowledges it.
    let window = (BUFFER / 2 / message / peers).clamp(2, WINDOW);
    universe.set_buffer_size(2 * message * window * peers);
    let _ = started.send(Ok(world.rank()));
    let mut thread = Thread {
        world,
        window,
        ports: BTreeMap::new(),
        peers: BTreeMap::new(),
    };
    let done = thread.serve(commands);
    // Waits until everything is delivered, and for the other processes.
    drop(universe);
    drop(done);
}

struct Thread {
    world: SimpleCommunicator,
    window: usize,
    ports: BTreeMap<u64, Port>,
    peers: BTreeMap<Address, Peer>,
}

struct Port {
    deliver: Sender<(Address, Vec<u8>)>,
    /// Frames that have arrived in part.
    partial: BTreeMap<Address, Vec<u8>>,
    closing: Option<(Instant, Sender<()>)>,
}

struct Peer {
    queue: VecDeque<Outgoing>,
    /// How many messages it may still get before it acknowledges one.
    credit: usize,
}

struct Outgoing {
    port: u64,
    frame: Arc<[u8]>,
    sent: usize,
}

impl Thread {
    /// Until there is nobody left to serve; who waits for the end, if somebody does.
    fn serve(&mut self, commands: &Receiver<Command>) -> Option<Sender<()>> {
        let mut moved = Instant::now();
        loop {
            let idle = moved.elapsed();
            let next = if self.peers.is_empty() && self.ports.is_empty() {
                // Nobody sends to a process that has never had a port.
                commands.recv().map_err(RecvTimeoutError::from)
            } else if idle < POLLS {
                thread::yield_now();
                commands.recv_timeout(Duration::ZERO)
            } else {
                let most = if self.ports.is_empty() { REST } else { NAP };
                commands.recv_timeout((idle / 4).min(most))
            };
            match next {
                Ok(Command::Leave { done }) => return Some(done),
                Ok(command) => {
                    self.obey(command);
                    moved = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
            if self.receive() | self.send() {
                moved = Instant::now();
            }
            self.close();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open { port, deliver } => {
                let port_of = Port {
                    deliver,
                    partial: BTreeMap::new(),
                    closing: None,
                };
                self.ports.insert(port, port_of);
            }
            Command::Send {
                port,
                to,
                frame,
                instead,
            } => {
                if instead {
                    self.forget(port);
                }
                for address in to {
                    let frame = Arc::clone(&frame);
                    self.peer(address).queue.push_back(Outgoing {
                        port,
                        frame,
                        sent: 0,
                    });
                }
            }
            Command::Close { port, until, done } => {
                if let Some(port) = self.ports.get_mut(&port) {
                    port.closing = Some((until, done));
                }
            }
            // The caller ends.
            Command::Leave { .. } => {}
        }
    }

    fn peer(&mut self, address: Address) -> &mut Peer {
        let credit = self.window;
        self.peers.entry(address).or_insert_with(|| Peer {
            queue: VecDeque::new(),
            credit,
        })
    }

    fn forget(&mut self, port: u64) {
        for peer in self.peers.values_mut() {
            peer.queue.retain(|outgoing| outgoing.port != port);
        }
    }

    /// Takes messages that are there; whether there were any.
    fn receive(&mut self) -> bool {
        for taken in 0..TAKES {
            let probed = self
                .world
                .any_process()
                .immediate_matched_probe_with_tag(TAG);
            let Some(probed) = probed else {
                return taken > 0;
            };
            let (bytes, status) = probed.matched_receive_vec::<u8>();
            // Too short for a message: not ours.
            let _ = self.take(status.source_rank(), &bytes);
        }
        true
    }

    fn take(&mut self, from: Address, bytes: &[u8]) -> Option<()> {
        let mut fields = Fields(bytes);
        let (number, what) = (fields.u64()?, fields.u8()?);
        if what == TAKEN {
            let window = self.window;
            let peer = self.peer(from);
            peer.credit = window.min(peer.credit + 1);
            return Some(());
        }
        self.post(from, &message(number, TAKEN, &[]));
        // Whoever sends may not know yet that the port is closed.
        let port = self.ports.get_mut(&number)?;
        let partial = port.partial.entry(from).or_default();
        if what & FIRST != 0 {
            partial.clear();
        }
        if partial.len() <= FRAME {
            partial.extend_from_slice(fields.0);
        }
        if what & LAST != 0 {
            let frame = std::mem::take(partial);
            let _ = port.deliver.send((from, frame));
        }
        Some(())
    }

    /// Sends what the peers have credit for; whether there was any.
    fn send(&mut self) -> bool {
        let mut due = Vec::new();
        for (address, peer) in &mut self.peers {
            while peer.credit > 0
                && let Some(outgoing) = peer.queue.front_mut()
            {
                let rest = &outgoing.frame[outgoing.sent..];
                let now = &rest[..rest.len().min(CHUNK)];
                let first = if outgoing.sent == 0 { FIRST } else { 0 };
                let last = if now.len() == rest.len() { LAST } else { 0 };
                due.push((*address, message(outgoing.port, first | last, now)));
                outgoing.sent += now.len();
                peer.credit -= 1;
                if last != 0 {
                    peer.queue.pop_front();
                }
            }
        }
        due.iter()
            .for_each(|(address, message)| self.post(*address, message));
        !due.is_empty()
    }

    fn post(&self, to: Address, message: &[u8]) {
        self.world
            .process_at_rank(to)
            .buffered_send_with_tag(message, TAG);
    }

    fn close(&mut self) {
        let now = Instant::now();
        let queued = |port: u64| {
            let mut queues = self.peers.values().flat_map(|peer| &peer.queue);
            queues.any(|outgoing| outgoing.port == port)
        };
        let over = |(number, port): (&u64, &Port)| {
            let (until, _) = port.closing.as_ref()?;
            (now >= *until || !queued(*number)).then_some(*number)
        };
        let over: Vec<u64> = self.ports.iter().filter_map(over).collect();
        for number in over {
            self.forget(number);
            self.ports.remove(&number);
        }
    }
}

fn message(port: u64, what: u8, bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + bytes.len());
    message.extend_from_slice(&port.to_le_bytes());
    message.push(what);
    message.extend_from_slice(bytes);
    message
}
