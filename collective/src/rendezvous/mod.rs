//! Where the ranks of a job meet: rank 0 serves, every rank holds one link, and one primitive does everything else.
//!
//! The primitive is a gather of small byte strings under a key. Addresses, agreement fields, votes and barriers are
//! all gathers. Besides that the rendezvous knows who died and who left, and relays an abort to everybody.

mod link;
mod message;
mod server;

use std::fmt;
use std::io;
use std::net::SocketAddr;

pub(crate) use link::Link;
pub(crate) use server::Server;

/// Bytes of the longest body on the wire.
const BODY: usize = 1 << 20;

/// Bytes of the longest reason of an abort; the rest is cut off.
const REASON: usize = 4 << 10;

/// Why a link could not be made, or a gather not be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// Nobody let this rank in before the deadline.
    Unreachable {
        /// Where it knocked.
        address: SocketAddr,
        /// The address of this host that the last attempt came from.
        from: Option<String>,
        /// Why the last attempt failed.
        trouble: String,
    },
    /// The rendezvous does not want this rank: wrong token, another number of ranks, a rank that is taken.
    Refused {
        /// Why.
        reason: String,
    },
    /// A deadline passed, of any waiting member; these are all ranks that had not contributed then.
    Missing {
        /// The ranks, in the order of the members; rank 0 alone also when its server does not answer.
        ranks: Vec<usize>,
    },
    /// A member's connection ended without goodbye.
    Died {
        /// The member.
        rank: usize,
    },
    /// A member left in order without contributing.
    Left {
        /// The member.
        rank: usize,
    },
    /// Two ranks gave different members for one key.
    Members {
        /// The lower rank, and its list.
        one: (usize, Vec<usize>),
        /// The higher rank, and its list.
        other: (usize, Vec<usize>),
    },
    /// A rank aborted the job.
    Aborted {
        /// The rank.
        rank: usize,
        /// Its reason.
        reason: String,
    },
    /// The caller did something that can never work.
    Usage(String),
    /// This link is closed.
    Closed,
    /// The system refused something.
    Io(String),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

impl std::error::Error for LinkError {}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable {
                address, trouble, ..
            } => {
                write!(f, "rendezvous at {address} not reached: {trouble}")
            }
            Self::Refused { reason } => write!(f, "the rendezvous refuses this rank: {reason}"),
            Self::Missing { ranks } => write!(f, "missing at the deadline: ranks {ranks:?}"),
            Self::Died { rank } => write!(f, "rank {rank} died"),
            Self::Left { rank } => write!(f, "rank {rank} has left"),
            Self::Members { one, other } => write!(
                f,
                "different members under one name: rank {} says {:?}, rank {} says {:?}",
                one.0, one.1, other.0, other.1
            ),
            Self::Aborted { rank, reason } => write!(f, "rank {rank} aborted: {reason}"),
            Self::Closed => f.write_str("the link to the rendezvous is closed"),
            Self::Usage(what) | Self::Io(what) => f.write_str(what),
        }
    }
}

/// Why a link is of no more use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A rank aborted the job; this one may have been it.
    Aborted {
        /// The rank.
        rank: usize,
        /// Its reason.
        reason: String,
    },
    /// The connection to the server, which lives in this rank, ended without goodbye.
    Died {
        /// Always 0.
        rank: usize,
    },
    /// The server, which lives in this rank, was closed in order.
    Left {
        /// Always 0.
        rank: usize,
    },
}

impl From<Ended> for LinkError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Aborted { rank, reason } => Self::Aborted { rank, reason },
            Ended::Died { rank } => Self::Died { rank },
            Ended::Left { rank } => Self::Left { rank },
        }
    }
}

#[cfg(test)]
mod tests;
