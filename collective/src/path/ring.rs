//! Data through the ring of a group whose ranks share memory.

use crate::mesh::{ExchangeError, Frame, MeshError, Watch};
use rankpact_shm::{Ring, RingError};
use std::time::{Duration, Instant};

/// Why a ring did not carry a message.
enum Failed<S> {
    Ring(RingError),
    Stopped(S),
}

impl<S> From<RingError> for Failed<S> {
    fn from(error: RingError) -> Self {
        Self::Ring(error)
    }
}

impl<S> From<Failed<S>> for ExchangeError<S> {
    fn from(failed: Failed<S>) -> Self {
        let error = match failed {
            Failed::Stopped(stop) => return Self::Stopped(stop),
            Failed::Ring(error) => error,
        };
        Self::Mesh(match error {
            RingError::Timeout { ranks, .. } => MeshError::Missing { peers: ranks },
            // A thread that panics aborts its group too, which says more.
            RingError::Died { rank } | RingError::Abandoned { rank } => {
                MeshError::Died { peer: rank }
            }
            RingError::Left { rank } => MeshError::Left { peer: rank },
            RingError::Forked => MeshError::Forked,
            RingError::Closed => MeshError::Closed,
            other => MeshError::Io(other.to_string()),
        })
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Every member in turn sends the payload of `frame` to all others: whoever has the message of the one before sends next.
pub(super) fn go_round<W: Watch>(
    ring: &mut Ring,
    frame: &Frame<'_>,
    watch: &mut W,
    deadline: Instant,
) -> Result<(), ExchangeError<W::Stop>> {
    let mut message = Vec::new();
    for rank in 0..ring.geometry().seats() {
        let mut slice = || watch.slice().map_err(Failed::Stopped);
        if rank == ring.rank() {
            ring.send_watching(frame.payload, left(deadline), &mut slice)?;
        } else {
            ring.receive_watching(rank, &mut message, left(deadline), &mut slice)?;
            // All have announced the same call; what is compared here is what an announcement has no room for.
            let theirs = Frame {
                payload: &message,
                ..*frame
            };
            watch.frame(rank, &theirs).map_err(ExchangeError::Stopped)?;
        }
    }
    Ok(())
}

/// Gives the bytes of `root` to all members.
pub(super) fn broadcast<S>(
    ring: &mut Ring,
    root: usize,
    bytes: &mut Vec<u8>,
    deadline: Instant,
    mut guard: impl FnMut() -> Result<(), S>,
) -> Result<(), ExchangeError<S>> {
    let mut slice = || guard().map_err(Failed::Stopped);
    if ring.rank() == root {
        ring.send_watching(bytes, left(deadline), &mut slice)?;
    } else {
        ring.receive_watching(root, bytes, left(deadline), &mut slice)?;
    }
    Ok(())
}
