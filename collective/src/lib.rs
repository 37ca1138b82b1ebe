//! Collectives between the ranks of one machine: shared memory where it can, TCP where it must, one meaning on both.
//!
//! ```
//! use rankpact_collective::{Group, Op, Options};
//!
//! // Ranks are threads here; `World::connect` makes the same of processes.
//! let ranks = Group::threads("tp", 2, &Options::default())?;
//! let ends: Vec<_> = ranks
//!     .into_iter()
//!     .map(|mut group| {
//!         std::thread::spawn(move || {
//!             let mut ready = [3 + group.rank() as i64, 7];
//!             group.all_reduce(Op::Min, &mut ready, "counts").map(|()| ready)
//!         })
//!     })
//!     .collect();
//! for end in ends {
//!     assert_eq!(end.join().expect("no rank panics")?, [3, 7]);
//! }
//! # Ok::<(), rankpact_collective::Error>(())
//! ```

#![doc = include_str!("../PROTOCOL.md")]
#![forbid(unsafe_code)]

mod attach;
mod codec;
mod envelope;
mod error;
mod gate;
mod group;
mod ip;
mod job;
mod join;
mod mesh;
mod op;
mod options;
mod pair;
mod pairs;
mod path;
mod relay;
mod rendezvous;
mod socket;
mod token;
#[cfg(test)]
mod watchdog;
mod world;

pub use error::{Described, Error, ErrorKind, Silent};
pub use group::{Group, PathKind, Started};
pub use join::{Join, Rendezvous};
pub use op::{Call, Op, Ops};
pub use options::{EngineChoice, Interrupt, Options, PathChoice, Waiting};
pub use rankpact_shm::{Timing, Unlock};
pub use relay::{Pending, Relay};
pub use world::World;
