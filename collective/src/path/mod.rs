//! The paths of a round: rows in a table, frames over TCP, or both. The round counter is the same on all.

pub(crate) mod data;
pub(crate) mod engine;
#[cfg(feature = "mpi")]
pub(crate) mod fabric;
#[cfg(not(feature = "mpi"))]
#[path = "no_fabric.rs"]
pub(crate) mod fabric;
mod flight;
pub(crate) mod hosts;
mod ring;
pub(crate) mod slots;
pub(crate) mod table;
pub(crate) mod tcp;

use crate::error::ErrorKind;
use crate::op::Ops;
use hosts::HostsPath;
use rankpact_shm::{Timing, Unlock};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use table::TablePath;
use tcp::TcpPath;

/// How much later than a connection breaks or closes another way may tell more of it.
const HEARSAY: Duration = Duration::from_millis(100);

/// What `look` finds soon, if anything.
fn first_sign<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + HEARSAY;
    loop {
        let sign = look();
        if sign.is_some() || Instant::now() >= until {
            return sign;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// How the rounds of one group travel.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one for each group; a call must not follow one more pointer"
)]
pub(crate) enum Path {
    /// The group has one rank: nothing travels.
    Alone {
        round: u64,
    },
    Table(TablePath),
    Tcp(TcpPath),
    Hosts(HostsPath),
}

/// One call, as the paths see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round<'a> {
    pub(crate) label: &'a str,
    pub(crate) timeout: Duration,
    /// World ranks of the members, for errors.
    pub(crate) ranks: &'a [usize],
}

/// A reduction that has been started, on whatever path.
#[derive(Debug)]
pub(crate) enum Started {
    Alone(Vec<i64>),
    Table(rankpact_shm::Started),
    Tcp(Arc<flight::Finished>),
    Hosts(Arc<flight::Finished>),
}

impl Path {
    pub(crate) fn round(&self) -> u64 {
        match self {
            Self::Alone { round } => *round,
            Self::Table(path) => path.round(),
            Self::Tcp(path) => path.round(),
            Self::Hosts(path) => path.round(),
        }
    }

    #[inline]
    pub(crate) fn all_reduce(
        &mut self,
        ops: Ops<'_>,
        values: &mut [i64],
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        match self {
            Self::Table(path) => path.all_reduce(ops, values, round),
            Self::Tcp(path) => path.all_reduce(ops, values, round),
            Self::Hosts(path) => path.all_reduce(ops, values, round),
            Self::Alone { round } => {
                *round += 1;
                Ok(())
            }
        }
    }

    #[inline]
    pub(crate) fn all_reduce_unlocking(
        &mut self,
        ops: Ops<'_>,
        values: &mut [i64],
        round: &Round<'_>,
        lock: impl Unlock,
    ) -> Result<(), ErrorKind> {
        match self {
            Self::Table(path) => path.all_reduce_unlocking(ops, values, round, lock),
            Self::Alone { .. } => self.all_reduce(ops, values, round),
            Self::Tcp(_) | Self::Hosts(_) => lock.run(|| self.all_reduce(ops, values, round)),
        }
    }

    pub(crate) fn start(
        &mut self,
        ops: Ops<'_>,
        values: &[i64],
        round: &Round<'_>,
    ) -> Result<Started, ErrorKind> {
        match self {
            Self::Table(path) => path.start(ops, values, round).map(Started::Table),
            Self::Tcp(path) => path.start(ops, values, round).map(Started::Tcp),
            Self::Hosts(path) => path.start(ops, values, round).map(Started::Hosts),
            Self::Alone { round } => {
                *round += 1;
                Ok(Started::Alone(values.to_vec()))
            }
        }
    }

    pub(crate) fn finish(
        &mut self,
        started: &Started,
        round: &Round<'_>,
    ) -> Result<Vec<i64>, ErrorKind> {
        match (self, started) {
            (Self::Table(path), Started::Table(started)) => path.finish(started, round),
            (Self::Tcp(path), Started::Tcp(finished)) => path.finish(finished, round),
            (Self::Hosts(path), Started::Hosts(finished)) => path.finish(finished, round),
            (Self::Alone { .. }, Started::Alone(values)) => Ok(values.clone()),
            _ => Err(ErrorKind::Usage(
                "this round was started in another group".to_owned(),
            )),
        }
    }

    pub(crate) fn all_gather(
        &mut self,
        values: &[i64],
        into: &mut Vec<i64>,
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        into.clear();
        match self {
            Self::Table(path) => path.all_gather(values, into, round),
            Self::Tcp(path) => path.all_gather(values, into, round),
            Self::Hosts(path) => path.all_gather(values, into, round),
            Self::Alone { round } => {
                *round += 1;
                into.extend_from_slice(values);
                Ok(())
            }
        }
    }

    pub(crate) fn all_gather_bytes(
        &mut self,
        bytes: &[u8],
        round: &Round<'_>,
    ) -> Result<Vec<Vec<u8>>, ErrorKind> {
        match self {
            Self::Table(path) => path.all_gather_bytes(bytes, round),
            Self::Tcp(path) => path.all_gather_bytes(bytes, round),
            Self::Hosts(path) => path.all_gather_bytes(bytes, round),
            Self::Alone { round } => {
                *round += 1;
                Ok(vec![bytes.to_vec()])
            }
        }
    }

    pub(crate) fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        match self {
            Self::Table(path) => path.broadcast(root, bytes, round),
            Self::Tcp(path) => path.broadcast(root, bytes, round),
            Self::Hosts(path) => path.broadcast(root, bytes, round),
            Self::Alone { round } => {
                *round += 1;
                Ok(())
            }
        }
    }

    pub(crate) fn barrier(&mut self, round: &Round<'_>) -> Result<(), ErrorKind> {
        match self {
            Self::Table(path) => path.barrier(round),
            Self::Tcp(path) => path.barrier(round),
            Self::Hosts(path) => path.barrier(round),
            Self::Alone { round } => {
                *round += 1;
                Ok(())
            }
        }
    }

    pub(crate) fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        match self {
            Self::Table(path) => path.contributions(slot),
            Self::Tcp(path) => path.contributions(slot),
            Self::Hosts(_) | Self::Alone { .. } => None,
        }
    }

    pub(crate) fn timing(&self) -> Option<Timing> {
        match self {
            Self::Table(path) => path.timing(),
            Self::Tcp(path) => path.timing(),
            Self::Hosts(path) => path.timing(),
            Self::Alone { .. } => None,
        }
    }

    pub(crate) fn close(&mut self) {
        match self {
            Self::Table(path) => path.close(),
            Self::Tcp(path) => path.close(),
            Self::Hosts(path) => path.close(),
            Self::Alone { .. } => {}
        }
    }
}
