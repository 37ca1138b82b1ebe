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
mod process;
mod ring;
mod row;
mod storage;
mod sync;
mod table;

#[cfg(not(loom))]
pub mod floor;
#[cfg(not(loom))]
mod map;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod segment;

pub use call::{Announcement, CallView, FREE_WORDS, Kind, Shape};
#[cfg(loom)]
pub use header::Preamble;
pub use header::{Identity, Shape as SegmentShape};
pub use label::LabelError;
pub use layout::{Geometry, LABEL_BYTES, MAX_RANKS, MAX_SLOTS, REASON_BYTES};
pub use liveness::Liveness;
#[cfg(not(loom))]
pub use locks::Locks;
pub use origin::{Cause, Failure, Missing};
pub use park::Ladder;
pub use process::Process;
pub use ring::{LONGEST_MESSAGE, Ring, RingError, RingGeometry, RingStorage};
#[cfg(not(loom))]
pub use segment::{Contents, Segment, SegmentError};
pub use storage::Storage;
#[cfg(loom)]
pub use sync::model::mortal;
pub use table::{Aborter, Notice, RoundError, Table, Timing, Trouble, monotonic_ns};
