//! Collectives between the ranks of one machine.

#![forbid(unsafe_code)]

mod error;
mod op;

pub use error::{Described, Error, ErrorKind, Silent};
pub use op::{Call, Op};
