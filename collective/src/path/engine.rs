//! What carries bytes between the hosts of a group: one member of each host, its leader, has an engine.

use crate::error::ErrorKind;
use crate::mesh::{ExchangeError, Frame, Mesh, MeshError, Watch};
use rankpact_shm::monotonic_ns;
use std::fmt::Debug;
use std::time::Instant;

/// Looks at what arrives in an exchange, and around while nothing does.
pub(crate) trait Witness {
    /// Takes the bytes of another host, as soon as they are there.
    ///
    /// # Errors
    /// Ends the exchange, for instance because they belong to another call.
    fn arrived(&mut self, host: usize, bytes: &[u8]) -> Result<(), ErrorKind>;

    /// Called several times a second, and before every sleep.
    ///
    /// # Errors
    /// Ends the exchange, for instance because a member of this host died.
    fn idle(&mut self) -> Result<(), ErrorKind>;
}

/// An exchange between the leaders of a group's hosts. Hosts are numbered, alike on all of them.
pub(crate) trait Engine: Debug + Send {
    /// Gives `bytes` to every other host, and shows those of every other host to `witness`. Lengths may differ.
    ///
    /// After an error no further exchange is possible, only [`Engine::give_up`] and [`Engine::close`].
    ///
    /// # Errors
    /// The first failure seen; that another host gave up goes before all others, for those may be its consequences.
    fn exchange(
        &mut self,
        round: u64,
        bytes: &[u8],
        witness: &mut dyn Witness,
        deadline: Instant,
    ) -> Result<(), Severed>;

    /// Tells every other host, as far as it listens, that this one gives the group up from `round` on, and why. A host
    /// that has completed `round` is told in its next exchange.
    fn give_up(&mut self, round: u64, why: &[u8]);

    /// Leaves in order: the other hosts still get what was sent.
    fn close(&mut self);
}

/// Why an exchange ended early. Numbers are those of hosts.
#[derive(Debug)]
pub(crate) enum Severed {
    /// The witness said so.
    Witness(ErrorKind),
    /// The deadline passed; from these nothing has come.
    Missing(Vec<usize>),
    /// A leader is gone without a goodbye.
    Died(usize),
    /// A leader left in order.
    Left(usize),
    /// A leader gave the group up; what it said.
    GaveUp(usize, Vec<u8>),
    /// Something else, in words.
    Other(String),
}

/// An engine of our own: one connection between every two leaders.
#[derive(Debug)]
pub(crate) struct Sockets(pub(crate) Mesh);

struct Through<'a>(&'a mut dyn Witness);

impl Watch for Through<'_> {
    type Stop = ErrorKind;

    fn frame(&mut self, peer: usize, frame: &Frame<'_>) -> Result<(), ErrorKind> {
        self.0.arrived(peer, frame.payload)
    }

    fn slice(&mut self) -> Result<(), ErrorKind> {
        self.0.idle()
    }
}

impl Engine for Sockets {
    fn exchange(
        &mut self,
        round: u64,
        bytes: &[u8],
        witness: &mut dyn Witness,
        deadline: Instant,
    ) -> Result<(), Severed> {
        let frame = Frame {
            round,
            sent_ns: monotonic_ns(),
            payload: bytes,
            ..Frame::default()
        };
        self.0
            .exchange(&frame, &mut Through(witness), deadline)
            .map_err(|error| match error {
                ExchangeError::Stopped(kind) => Severed::Witness(kind),
                ExchangeError::Mesh(error) => match error {
                    MeshError::Missing { peers } => Severed::Missing(peers),
                    MeshError::Died { peer } => Severed::Died(peer),
                    MeshError::Left { peer } => Severed::Left(peer),
                    MeshError::Poisoned { peer, payload } => Severed::GaveUp(peer, payload),
                    other => Severed::Other(other.to_string()),
                },
            })
    }

    fn give_up(&mut self, round: u64, why: &[u8]) {
        self.0.poison(round, why);
    }

    fn close(&mut self) {
        self.0.close();
    }
}
