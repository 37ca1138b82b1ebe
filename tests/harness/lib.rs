//! What tests of real ranks need: starting and watching processes, values whose reductions anybody can compute, and the
//! behaviours that every group must show.
//!
//! A rank is the program `rankpact-rank`. Its arguments are the steps it takes, each a sentence of words; it reports each
//! step as one line of JSON, and waits at a `hold` until the test lets it go.

#![cfg(not(loom))]
#![expect(
    clippy::missing_panics_doc,
    reason = "a failed check is a panic: this is what tests call"
)]

mod behaviour;
mod job;
mod messages;
mod network;
mod report;
mod soak;
mod values;

pub use behaviour::{Behaviour, Checked, behaviour, behaviours, on_threads};
pub use job::{Job, Namespace, Ranks, may_unshare, names_in, unlaunched};
pub use messages::{Series, consume};
pub use network::{Network, Port, may_network, may_network_anew};
pub use report::{Failure, Report};
pub use soak::soak;
pub use values::{Range, Values, bytes, mix};

/// The Rust of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
pub struct Readme;
