//! Models: the code that runs in production, on loom's atomics.
//!
//! Time does not pass here: the `timeout` of a call says how many polls may fail before the rank gives up. Run with
//! `.ci/loom.sh`; `RANKPACT_WEAKEN=TAG` weakens one ordering, and then a model that needs it must fail: each model names its
//! controls, the tags with which it does.

#![cfg(loom)]

mod death;
mod flight;
mod radix;
mod ring;
mod round;
mod segment;

use rankpact_shm::{Announcement, FREE_WORDS, Geometry, Kind, Ladder, RoundError, Storage, Table};
use std::sync::Arc;
use std::time::Duration;

/// How many polls may fail before a rank gives up.
type Patience = u64;

/// A rank that never gives up.
const PATIENT: Patience = Patience::MAX;

fn polls(patience: Patience) -> Duration {
    Duration::from_nanos(patience)
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 50_000;
    builder.check(model);
}

/// A table of one round in flight, and so two row buffers: the tightest reuse there is.
fn storage(ranks: usize) -> Storage {
    let geometry = Geometry::new(ranks, 1).expect("a valid geometry");
    Storage::heap(geometry, 1)
}

/// The seats of all ranks at `storage`.
fn seats(storage: &Arc<Storage>, ranks: usize, ladder: Ladder) -> Vec<Table> {
    (0..ranks)
        .map(|me| Table::new(Arc::clone(storage), me, ladder))
        .collect()
}

fn tables(ranks: usize, ladder: Ladder) -> Vec<Table> {
    seats(&Arc::new(storage(ranks)), ranks, ladder)
}

/// An announcement of one byte that travels by another way.
const DATA: Announcement = Announcement {
    travelling: 1,
    free: [0; FREE_WORDS],
};

/// One round whose data travels elsewhere; `patience` is that of its commit.
fn travel(table: &mut Table, patience: Duration) -> Result<(), RoundError> {
    let open = table.announce(Kind::Broadcast, "m", 0, DATA, polls(PATIENT))?;
    open.expect("data travels").commit(patience)
}
