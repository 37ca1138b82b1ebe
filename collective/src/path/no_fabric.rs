//! In place of the engine over MPI, where this crate is built without feature `mpi`: nobody has one.

use super::engine::{Engine, Severed, Witness};
use crate::error::ErrorKind;
use crate::job::Job;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) type Address = i32;

#[derive(Debug)]
pub(crate) enum Fabric {}

#[derive(Debug)]
pub(crate) enum Port {}

#[derive(Debug)]
pub(crate) enum Leaders {}

fn absent() -> ErrorKind {
    let what =
        "engine `mpi`: this program is built without it; rankpact-collective needs feature `mpi`";
    ErrorKind::Usage(what.to_owned())
}

impl Fabric {
    pub(crate) fn check() -> Result<(), ErrorKind> {
        Err(absent())
    }

    pub(crate) fn start(_: Instant) -> Result<Self, ErrorKind> {
        Err(absent())
    }

    pub(crate) fn listen(&self, _: u64) -> Port {
        match *self {}
    }

    pub(crate) fn leave(&self, _: Duration) {
        match *self {}
    }
}

impl Port {
    pub(crate) fn address(&self) -> Address {
        match *self {}
    }
}

impl Leaders {
    pub(crate) fn new(port: Port, _: Vec<Address>, _: Vec<usize>, _: usize, _: Arc<Job>) -> Self {
        match port {}
    }
}

impl Engine for Leaders {
    fn exchange(
        &mut self,
        _: u64,
        _: &[u8],
        _: &mut dyn Witness,
        _: Instant,
    ) -> Result<(), Severed> {
        match *self {}
    }

    fn give_up(&mut self, _: u64, _: &[u8]) {
        match *self {}
    }

    fn close(&mut self) {
        match *self {}
    }
}
