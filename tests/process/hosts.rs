//! Groups that span several hosts. Hosts are namespaces of this machine: each with a `/dev/shm` of its own, and where it
//! matters with a network of its own.

use crate::job;
use rankpact_collective::PathChoice;
use rankpact_tests::{Job, Namespace};

/// Ranks on hosts that share a network, but no memory.
pub(crate) struct Hosts {
    spaces: Vec<Namespace>,
    /// The host of each rank.
    of: Vec<usize>,
}

impl Hosts {
    /// `size` ranks, each on the host that `of` says.
    pub(crate) fn of(size: usize, of: impl Fn(usize) -> usize) -> Self {
        let of: Vec<usize> = (0..size).map(of).collect();
        let count = of.iter().max().map_or(0, |last| last + 1);
        let host = |_| Namespace::new("mount -t tmpfs -o size=1m tmpfs /dev/shm");
        Self {
            spaces: (0..count).map(host).collect(),
            of,
        }
    }

    /// A job of these ranks.
    pub(crate) fn job(&self) -> Job {
        let job = job(self.of.len()).path(PathChoice::Auto);
        self.of.iter().enumerate().fold(job, |job, (rank, host)| {
            let words = self.spaces[*host].words();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            job.wrapped_rank(rank, &words)
        })
    }

    #[track_caller]
    pub(crate) fn nothing_is_left(&self) {
        for space in &self.spaces {
            let names = space.names("/dev/shm");
            assert!(names.is_empty(), "left behind: {names:?}");
        }
    }
}
