//! How the members of a group find each other: each connects to those before it and accepts those after it.

use rankpact_shm::{Habit, Ladder, Process};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use super::{Mesh, MeshError, Peer, SLICE, State};
use crate::envelope::Inbox;
use crate::gate::{Claim, Gate, Purpose, Visitor};
use crate::ip::Ip;
use crate::socket::{Stream, patience};
use crate::token::Token;

/// How long the members of one process may take to find each other.
const PAIRING: Duration = Duration::from_secs(30);

impl Mesh {
    /// A listener on `ip`, whose address the others are to be told.
    ///
    /// # Errors
    /// The address is not of this host, or no port is free.
    pub(crate) fn listen(ip: Ip) -> io::Result<TcpListener> {
        TcpListener::bind(ip.at(0))
    }

    /// Connects the member at place `me` to all others, who listen at `addresses`, and waits until all are there.
    ///
    /// # Errors
    /// [`MeshError::Unreached`] names all that were not there at `deadline`; a peer that refuses this one ends it at
    /// once. `guard` is asked every slice whether it is worth going on.
    pub(crate) fn connect(
        listener: TcpListener,
        addresses: &[SocketAddr],
        me: usize,
        token: &Token,
        deadline: Instant,
        guard: &dyn Fn() -> bool,
    ) -> Result<Self, MeshError> {
        let size = addresses.len();
        if me >= size {
            return Err(MeshError::Usage(format!(
                "there is no member {me} among {size}"
            )));
        }
        let mut peers: Vec<Option<Peer>> = (0..size).map(|_| None).collect();
        let claim = Claim {
            purpose: Purpose::Mesh,
            rank: me,
            size,
        };
        let here = listener
            .local_addr()
            .map_err(|error| MeshError::Io(error.to_string()))?;
        let visit = |at| {
            let there = Ip::from(here).reaches(addresses[at]);
            (at, Visitor::new(there, token, claim))
        };
        let mut visitors: Vec<(usize, Visitor)> = (0..me).map(visit).collect();
        let mut gate = Gate::new(listener, token.clone(), Purpose::Mesh, size)?;
        loop {
            for admitted in gate.serve(|rank| judge(rank, me, &peers)) {
                peers[admitted.rank] = Some(Peer::new(admitted.stream, admitted.inbox));
            }
            let mut refused = None;
            visitors.retain_mut(|(at, visitor)| match visitor.advance() {
                Ok(None) => true,
                Ok(Some((stream, inbox))) => {
                    peers[*at] = Some(Peer::new(stream, inbox));
                    false
                }
                Err(refusal) => {
                    refused = Some(MeshError::Refused {
                        peer: *at,
                        reason: refusal.0,
                    });
                    false
                }
            });
            if let Some(refused) = refused {
                return Err(refused);
            }
            let missing: Vec<usize> = (0..size)
                .filter(|&at| at != me && peers[at].is_none())
                .collect();
            if missing.is_empty() {
                return Ok(Self {
                    me,
                    peers,
                    ladder: Ladder::auto(1, 1),
                    polling: Habit::default(),
                    notice: None,
                    state: State::Open,
                    owner: Process::current(),
                });
            }
            if !guard() {
                return Err(MeshError::Stopped);
            }
            let now = Instant::now();
            if now >= deadline {
                let sought = visitors.first().map(|(_, visitor)| visitor.trouble());
                let trouble =
                    sought.unwrap_or_else(|| format!("they were to connect to {}", addresses[me]));
                return Err(MeshError::Unreached {
                    peers: missing,
                    trouble,
                });
            }
            let wakes = visitors
                .iter()
                .map(|(_, visitor)| visitor.wakes())
                .chain(gate.wakes())
                .min();
            let mut sockets: Vec<PollFd<'_>> = gate
                .sockets()
                .map(|socket| PollFd::new(socket, PollFlags::POLLIN))
                .collect();
            sockets.extend(visitors.iter().filter_map(|(_, visitor)| visitor.socket()));
            // An interrupted poll is an early wake-up, nothing more.
            let _ = poll(
                &mut sockets,
                patience(now, wakes.unwrap_or(deadline).min(deadline), SLICE),
            );
        }
    }

    /// The connection of a mesh of two.
    pub(crate) fn into_only(mut self) -> Option<(Stream, Inbox)> {
        let peer = self.peers.iter_mut().find_map(Option::take)?;
        Some((peer.stream, peer.inbox))
    }

    /// The meshes of a group whose `size` members are threads of this process, over loopback.
    ///
    /// # Errors
    /// The system refuses a socket or a thread.
    pub(crate) fn pairs(size: usize) -> io::Result<Vec<Self>> {
        let listeners = (0..size)
            .map(|_| Self::listen(Ip::LOOPBACK))
            .collect::<io::Result<Vec<_>>>()?;
        let addresses = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<Vec<_>>>()?;
        let token = Token::random()?;
        let deadline = Instant::now() + PAIRING;
        thread::scope(|scope| {
            let connect = |(me, listener)| {
                let (addresses, token) = (&addresses, &token);
                thread::Builder::new().spawn_scoped(scope, move || {
                    Self::connect(listener, addresses, me, token, deadline, &|| true)
                })
            };
            let threads = listeners
                .into_iter()
                .enumerate()
                .map(connect)
                .collect::<io::Result<Vec<_>>>()?;
            threads
                .into_iter()
                .map(|thread| {
                    let joined = thread
                        .join()
                        .map_err(|_| io::Error::other("a thread of the mesh panicked"))?;
                    joined.map_err(io::Error::other)
                })
                .collect()
        })
    }
}

fn judge(rank: usize, me: usize, peers: &[Option<Peer>]) -> Result<(), String> {
    if rank <= me {
        Err(format!(
            "member {rank} is to accept member {me}, not to connect to it"
        ))
    } else if peers[rank].is_some() {
        Err(format!("member {rank} is taken by a live process"))
    } else {
        Ok(())
    }
}
