//! Segments, rows, rounds, rings, parking and liveness: how the ranks of one machine agree through shared memory.
//!
//! A [`Table`] holds one row for each rank. A round is one call: every rank writes its row, publishes it with one word,
//! reads every other row, and reduces for itself. A [`Ring`] carries messages of any length from one rank to all others.
//! `PROTOCOL.md` beside this file has the layouts, the orderings, and why a round completes on every rank or fails on every
//! rank.

#![doc = include_str!("../PROTOCOL.md")]
#![cfg_attr(
    not(loom),
    expect(
        clippy::disallowed_types,
        reason = "this crate alone has atomics, all from `sync`"
    )
)]

mod call;
#[cfg(not(loom))]
mod close_on_fork;
mod habit;
mod header;
mod label;
mod layout;
mod liveness;
#[cfg(not(loom))]
mod locks;
mod member;
mod origin;
mod outcome;
mod park;
mod place;
mod process;
mod ring;
mod row;
mod seat;
mod storage;
mod sync;
mod table;

#[cfg(not(loom))]
pub mod cpus;
#[cfg(not(loom))]
pub mod floor;
#[cfg(not(loom))]
mod map;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod segment;

pub use call::{Announcement, CallView, FREE_WORDS, Kind, Reduction, Shape};
#[cfg(not(loom))]
pub use close_on_fork::CloseOnFork;
pub use habit::Habit;
#[cfg(loom)]
pub use header::Preamble;
pub use header::{Identity, Shape as SegmentShape};
pub use label::LabelError;
pub use layout::{Geometry, LABEL_BYTES, LAYOUT_VERSION, MAX_RANKS, MAX_SLOTS, REASON_BYTES};
pub use liveness::Liveness;
#[cfg(not(loom))]
pub use locks::Locks;
pub use origin::{Cause, Failure, Missing};
#[cfg(not(loom))]
pub use park::Awake;
pub use park::{Effort, Ladder};
pub use process::Process;
pub use ring::{LONGEST_MESSAGE, Ring, RingError, RingGeometry, RingStorage};
pub use seat::Aborter;
#[cfg(not(loom))]
pub use segment::{Contents, Segment, SegmentError};
pub use storage::Storage;
#[cfg(loom)]
pub use sync::model::mortal;
#[cfg(not(loom))]
pub use table::Unlock;
pub use table::{
    Notice, Open, Reduced, RoundError, Slice, Started, Table, Timing, Trouble, monotonic_ns,
};
