//! Collectives between the ranks of one machine.

#![forbid(unsafe_code)]

mod codec;
mod envelope;
mod error;
mod gate;
#[allow(dead_code, unused_imports, reason = "the groups that use it come next")]
mod mesh;
mod op;
#[allow(dead_code, unused_imports, reason = "the worlds that use it come next")]
mod rendezvous;
mod socket;
#[allow(dead_code, reason = "the worlds that use it come next")]
mod token;
#[cfg(test)]
mod watchdog;

pub use error::{Described, Error, ErrorKind, Silent};
pub use op::{Call, Op};
