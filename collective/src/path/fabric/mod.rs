//! An engine over the MPI of a cluster.
//!
//! One thread of the process makes all calls of MPI and never waits in one: it probes for messages and sends buffered
//! ones, as many as their receivers have acknowledged. A peer that vanished holds back no more than that, and whoever
//! waits for it waits at a channel, with a deadline.

mod engine;
mod thread;

use crate::error::ErrorKind;
use crate::job::locked;
use std::env;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

pub(crate) use engine::Leaders;

/// A process in the world of MPI.
pub(crate) type Address = i32;

/// What a launcher of MPI sets for each process.
const LAUNCHED: [&str; 3] = ["PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"];

/// MPI can be started once in the life of a process.
static STARTED: OnceLock<()> = OnceLock::new();

/// What the thread is asked to do.
enum Command {
    /// From now on frames for `port` are handed to `deliver`, with their sender.
    Open {
        port: u64,
        deliver: Sender<(Address, Vec<u8>)>,
    },
    Send {
        port: u64,
        to: Vec<Address>,
        frame: Arc<[u8]>,
        /// Before it, forget what waits to be sent for this port.
        instead: bool,
    },
    /// Forget the port once all is sent, or at `until`; `done` is dropped then.
    Close {
        port: u64,
        until: Instant,
        done: Sender<()>,
    },
    /// Finalize MPI; `done` is dropped then.
    Leave { done: Sender<()> },
}

/// This process's way to MPI.
#[derive(Debug)]
pub(crate) struct Fabric {
    commands: Sender<Command>,
    address: Address,
}

impl Fabric {
    /// Refuses what can never start, before anybody waits for it.
    ///
    /// # Errors
    /// Usage, in words.
    pub(crate) fn check() -> Result<(), ErrorKind> {
        if LAUNCHED.iter().all(|name| env::var_os(name).is_none()) {
            return Err(ErrorKind::Usage(format!(
                "engine `mpi` needs ranks that a launcher of MPI has started, say mpirun: none of {} is set",
                LAUNCHED.join(", ")
            )));
        }
        Ok(())
    }

    /// Starts MPI, together with all processes that its launcher has started.
    ///
    /// # Errors
    /// Usage if this process has had MPI before; Io if it does not start by `deadline`.
    pub(crate) fn start(deadline: Instant) -> Result<Self, ErrorKind> {
        if STARTED.set(()).is_err() {
            return Err(ErrorKind::Usage(
                "engine `mpi`: a process joins one job, once; MPI cannot be started again"
                    .to_owned(),
            ));
        }
        let (commands, asked) = mpsc::channel();
        let (say, started) = mpsc::channel();
        thread::spawn(asked, say).map_err(|error| ErrorKind::Io(error.to_string()))?;
        let left = deadline.saturating_duration_since(Instant::now());
        match started.recv_timeout(left) {
            Ok(started) => {
                let address = started.map_err(ErrorKind::Usage)?;
                Ok(Self { commands, address })
            }
            Err(RecvTimeoutError::Timeout) => Err(ErrorKind::Io(
                "MPI does not start: every process of the MPI job must join, with engine `mpi`"
                    .to_owned(),
            )),
            Err(RecvTimeoutError::Disconnected) => {
                Err(ErrorKind::Io("MPI failed to start".to_owned()))
            }
        }
    }

    /// Opens a port, which keeps what comes from now on.
    pub(crate) fn listen(&self, port: u64) -> Port {
        let (deliver, frames) = mpsc::channel();
        let commands = self.commands.clone();
        // A thread that is gone is told by the port, which then hangs up.
        let _ = commands.send(Command::Open { port, deliver });
        Port {
            commands,
            port,
            address: self.address,
            frames: Mutex::new(frames),
        }
    }

    /// Leaves MPI, together with all its processes; for at most `patience`. Nothing comes after it.
    pub(crate) fn leave(&self, patience: Duration) {
        let (done, left) = mpsc::channel();
        let _ = self.commands.send(Command::Leave { done });
        let _ = left.recv_timeout(patience);
    }
}

/// Where the frames of one group arrive.
#[derive(Debug)]
pub(crate) struct Port {
    commands: Sender<Command>,
    port: u64,
    address: Address,
    frames: Mutex<Receiver<(Address, Vec<u8>)>>,
}

impl Port {
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    fn send(&self, to: Vec<Address>, frame: Arc<[u8]>, instead: bool) {
        let port = self.port;
        let _ = self.commands.send(Command::Send {
            port,
            to,
            frame,
            instead,
        });
    }

    fn next(&self, patience: Duration) -> Result<(Address, Vec<u8>), RecvTimeoutError> {
        locked(&self.frames).recv_timeout(patience)
    }

    /// Waits until all is on its way, for at most `patience`.
    fn close(&self, patience: Duration) {
        let (done, closed) = mpsc::channel();
        let _ = self.commands.send(Command::Close {
            port: self.port,
            until: Instant::now() + patience,
            done,
        });
        if !patience.is_zero() {
            let _ = closed.recv_timeout(patience);
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}
