//! Tick agreement for a hierarchical KV cache.
//!
//! Every rank of a serving engine runs its own scheduler and its own copy of the cache: pages on the device, copies
//! in a host pool, page files in storage. All ranks must change their copies at the same logical point, in the same
//! order, by the same lengths. `PROTOCOL.md` beside this crate says what is agreed, when, and what a late or dead
//! rank does to it.
//!
//! [`Cache`] belongs to the scheduler thread. One pass of a scheduler over it:
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use rankpact_cache::{Backend, Cache, Config, Handle, PageFiles, Ranks, SyntheticDevice};
//! # use rankpact_collective::{Error as CollectiveError, Op};
//! # struct Alone;
//! # impl Ranks for Alone {
//! #     fn rank(&self) -> usize { 0 }
//! #     fn size(&self) -> usize { 1 }
//! #     fn reduce(&mut self, _: Op, _: &mut [i64], _: &str) -> Result<(), CollectiveError> { Ok(()) }
//! #     fn contributions(&self, _: usize) -> Option<Vec<i64>> { None }
//! #     fn abort(&mut self, _: &str) {}
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! # let (mut tick_ranks, hit_ranks, ack_ranks) = (Alone, Alone, Alone);
//! // 512 tokens and 4 KiB a page, 64 pages on the host, 32 on the device.
//! let config = Config::new(512, 4096, 64, 32);
//! let backend = Backend {
//!     storage: Arc::new(PageFiles::open(folder)?),
//!     hits: Box::new(hit_ranks),
//!     acks: Box::new(ack_ranks),
//!     batch_pages: 8,
//!     read_delay: Duration::ZERO,
//! };
//! let mut cache = Cache::new(config, Box::new(SyntheticDevice::new()), Some(backend))?;
//!
//! // A request arrives, on every rank alike: ask storage for what is missing of its prompt.
//! let request = (Handle::new("request-1", 0), vec![11_u64, 12, 13]);
//! cache.prefetch_from_storage(&request.0, &request.1);
//! let mut waiting = vec![request];
//!
//! let mut running = Vec::new();
//! while !waiting.is_empty() || !running.is_empty() {
//!     // Once a pass, unconditionally: at most two collectives, however many requests wait.
//!     cache.tick(&mut tick_ranks)?;
//!
//!     for handle in cache.due_retries(waiting.iter().map(|(handle, _)| handle)) {
//!         if let Some((handle, pages)) = waiting.iter().find(|(waiting, _)| *waiting == handle) {
//!             cache.prefetch_from_storage(handle, pages);
//!         }
//!     }
//!     // The walk over the waiting queue: no poll communicates.
//!     let mut blocked = Vec::new();
//!     for (handle, pages) in waiting {
//!         match cache.poll(&handle).then(|| cache.admit(&handle, &pages)).flatten() {
//!             Some(admission) => running.push((handle, admission)),
//!             None => blocked.push((handle, pages)),
//!         }
//!     }
//!     waiting = blocked;
//!
//!     // The forward pass computes what was missing; then the prompt is in the cache and on its way to storage.
//!     for (handle, admission) in running.drain(..) {
//!         assert!(admission.ready.wait(Duration::from_secs(10)));
//!         cache.finish(&handle);
//!     }
//! }
//! assert_eq!(cache.peek(&[11, 12, 13]).device, 3);
//!
//! cache.shutdown()?;
//! assert!(cache.ledger().is_closed());
//! # Ok(())
//! # }
//! ```
//!
//! A [`Witness`] sees every agreed decision in order, so that ranks can compare a hash over all of them.

#![forbid(unsafe_code)]

mod admission;
mod agreement;
mod cache;
mod clock;
mod completion;
mod config;
#[doc(hidden)]
pub mod conformance;
mod decision;
mod device;
mod digest;
mod drain;
mod error;
mod group;
mod guard;
mod ledger;
mod policy;
mod pool;
mod prefetch;
mod queue;
mod retirement;
mod retry;
mod row;
mod storage;
mod tick;
mod tree;
mod trouble;
mod vote;
mod workers;

pub use admission::Admission;
pub use agreement::Ranks;
pub use cache::{Cache, Enqueued};
pub use clock::{Clock, SystemClock};
pub use completion::Completion;
pub use config::{Agreement, Config};
pub use decision::{Decision, Outcome, Witness};
pub use device::{Device, PageCopy, SyntheticDevice};
pub use digest::Digest;
pub use error::{Divergence, Error};
pub use ledger::{Counters, Ledger, Reason};
pub use policy::{Budget, Policy};
pub use pool::{Buffers, Slot};
pub use prefetch::{Handle, Wait};
pub use retry::Pacing;
pub use row::{Counts, StorageCounts};
pub use storage::{PageFiles, Storage};
pub use tick::{Reductions, TickReport};
pub use tree::Match;
pub use vote::{PackedVote, Vote};
pub use workers::Backend;
