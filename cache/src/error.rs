//! Why the cache cannot go on.

use std::fmt;
use std::time::Duration;

/// Why a call of the cache failed. The cache is finished then, and so is the job: nothing is resynchronised.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A collective ended without a result.
    Agreement(Box<rankpact_collective::Error>),
    /// The ranks no longer hold the same state.
    Divergence(Box<Divergence>),
    /// A worker thread of this rank has ended.
    WorkerFailed {
        /// The rank.
        rank: usize,
        /// Which of its threads.
        worker: String,
        /// Why.
        reason: String,
    },
    /// Items that all ranks agreed to consume did not arrive here in time.
    DrainTimeout {
        /// The rank.
        rank: usize,
        /// Which queue.
        queue: &'static str,
        /// How many items were agreed.
        wanted: usize,
        /// How many were there.
        arrived: usize,
        /// How long this rank waited.
        after: Duration,
    },
    /// The configuration can never work.
    Config(String),
}

/// The digests of one tick were not all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// This rank.
    pub rank: usize,
    /// Its digest.
    pub own: i64,
    /// The smallest digest of all ranks.
    pub lowest: i64,
    /// The largest digest of all ranks.
    pub highest: i64,
    /// Ranks whose digest is not this rank's; empty where the path cannot tell.
    pub differing: Vec<usize>,
    /// How many prefetches are live here.
    pub live: usize,
    /// The first of them, in table order.
    pub first: Vec<String>,
}

impl Error {
    /// Whether the peers cannot know of this failure by themselves and must be told.
    pub(crate) fn is_local(&self) -> bool {
        !matches!(self, Self::Agreement(_))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Agreement(error) => Some(error),
            _ => None,
        }
    }
}

impl From<rankpact_collective::Error> for Error {
    fn from(error: rankpact_collective::Error) -> Self {
        Self::Agreement(Box::new(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agreement(error) => error.fmt(f),
            Self::Divergence(divergence) => divergence.fmt(f),
            Self::WorkerFailed {
                rank,
                worker,
                reason,
            } => {
                write!(
                    f,
                    "rank {rank}: worker `{worker}` has ended: {reason}; restart the job"
                )
            }
            Self::DrainTimeout {
                rank,
                queue,
                wanted,
                arrived,
                after,
            } => write!(
                f,
                "rank {rank}: {arrived} of {wanted} agreed items of queue `{queue}` came within {:.1} s; \
                 look at the storage and the device of this rank",
                after.as_secs_f64()
            ),
            Self::Config(what) => f.write_str(what),
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            own,
            lowest,
            highest,
            differing,
            live,
            first,
        } = self;
        write!(
            f,
            "tick row `counts`, rank {rank}: the ranks have diverged: digest {own} here, {lowest} to {highest} over all"
        )?;
        if !differing.is_empty() {
            write!(f, ", unlike ranks {differing:?}")?;
        }
        write!(f, "; {live} live prefetches here")?;
        if !first.is_empty() {
            write!(
                f,
                " ({}{})",
                first.join(", "),
                if first.len() < *live { ", .." } else { "" }
            )?;
        }
        f.write_str("; look for requests polled on some ranks only, or host pages reclaimed in another order")
    }
}
