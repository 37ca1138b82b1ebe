//! What all groups of one rank share: its place in the job, the rendezvous, and the word that ends it all.

use crate::error::{Error, ErrorKind, Silent};
use crate::ip::Ip;
use crate::options::{Crowd, Interrupt, Options};
use crate::path::fabric::Fabric;
use crate::rendezvous::{Ended, Link, LinkError, Server};
use crate::token::Token;
use rankpact_shm::{Aborter, Process};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The groups to be told when the job is aborted, by number of registration.
type Aborters = Arc<Mutex<BTreeMap<u64, Aborter>>>;

/// How long a rank waits for MPI to end where some will never get there.
const PARTING: Duration = Duration::from_secs(2);

/// One rank's place in a job, as joining has settled it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) options: Options,
    pub(crate) crowd: Crowd,
    /// The random number of the job, part of the name of every segment.
    pub(crate) nonce: [u64; 2],
    /// Where this rank listens for its peers.
    pub(crate) ip: Ip,
    /// The way to MPI, where the options want it.
    pub(crate) fabric: Option<Fabric>,
    pub(crate) token: Token,
    pub(crate) link: Link,
    /// After the link: the last to leave is the one that serves. Locked because groups share a job between threads.
    pub(crate) _server: Mutex<Option<Server>>,
}

/// One rank's membership in a job. The link closes when the last group and the world are gone.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) place: Place,
    aborters: Aborters,
    names: Mutex<BTreeMap<String, u64>>,
    told: Once,
    owner: Process,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked with one of our locks has left a map as it was before or after one insertion.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    pub(crate) fn new(place: Place) -> Arc<Self> {
        let aborters = Aborters::default();
        let told = Arc::clone(&aborters);
        place.link.on_abort(Box::new(move |rank, reason| {
            locked(&told)
                .values()
                .for_each(|aborter| aborter.abort_for(u32::try_from(rank).ok(), reason));
        }));
        Arc::new(Self {
            place,
            aborters,
            names: Mutex::default(),
            told: Once::new(),
            owner: Process::current(),
        })
    }

    /// Says why groups do not get what they wanted: once, for the next group fares no better.
    pub(crate) fn tell_once(&self, what: &str) {
        self.told.call_once(|| tracing::warn!("{what}"));
    }

    /// Whether this is a forked child of the process that joined.
    pub(crate) fn is_forked(&self) -> bool {
        !self.owner.is_here()
    }

    /// Gathers `payload` from all `members`; errors are those of `group`.
    pub(crate) fn gather(
        &self,
        group: &str,
        step: &str,
        members: &[usize],
        payload: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>, ErrorKind> {
        let started = Instant::now();
        self.place
            .link
            .gather(&format!("{group}/{step}"), members, payload, deadline)
            .map_err(|error| {
                // Interrupted while it waited; its groups shall hear it too.
                if let LinkError::Aborted { rank, reason } = &error
                    && *rank == self.place.rank
                {
                    self.abort(reason);
                }
                // Who left may have left because somebody died.
                let cause = matches!(error, LinkError::Left { .. })
                    .then(|| self.lost(members))
                    .flatten();
                cause.unwrap_or_else(|| link_error(error, self.place.rank, started.elapsed()))
            })
    }

    /// How often a group of that name has been made before, as far as this rank knows.
    pub(crate) fn generation(&self, name: &str) -> u64 {
        locked(&self.names).get(name).copied().unwrap_or(0)
    }

    /// Remembers that `generation` of that name has been made.
    pub(crate) fn made(&self, name: &str, generation: u64) {
        locked(&self.names).insert(name.to_owned(), generation + 1);
    }

    /// How often this rank has asked for that name before. No group has it, for it contains a slash.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let mut names = locked(&self.names);
        let next = names.entry(name.to_owned()).or_insert(0);
        *next += 1;
        *next - 1
    }

    /// Lets an abort of the job reach a group; the number takes it back.
    pub(crate) fn register(&self, aborter: Aborter) -> u64 {
        let mut aborters = locked(&self.aborters);
        let number = aborters.last_key_value().map_or(0, |(last, _)| last + 1);
        aborters.insert(number, aborter.clone());
        drop(aborters);
        // After it is in the list: an abort that came before has not seen it there.
        if let Some(Ended::Aborted { rank, reason }) = self.place.link.ended() {
            aborter.abort_for(u32::try_from(rank).ok(), &reason);
        }
        number
    }

    pub(crate) fn unregister(&self, number: u64) {
        locked(&self.aborters).remove(&number);
    }

    /// Ends the job on all ranks: the groups of this rank first, for they name their origin themselves.
    pub(crate) fn abort(&self, reason: &str) {
        let reason = cut(reason);
        locked(&self.aborters)
            .values()
            .for_each(|aborter| aborter.abort(reason));
        self.place.link.abort(reason);
    }

    /// The first of `ranks` that has died, as far as the rendezvous has noticed.
    pub(crate) fn dead(&self, ranks: &[usize]) -> Option<usize> {
        let dead = self.place.link.dead();
        dead.into_iter().find(|rank| ranks.contains(rank))
    }

    /// Why one of `ranks` will not come any more, if that is known.
    pub(crate) fn lost(&self, ranks: &[usize]) -> Option<ErrorKind> {
        let died = |rank| ErrorKind::PeerDied {
            rank,
            last_round: 0,
        };
        self.aborted().or_else(|| self.dead(ranks).map(died))
    }

    /// Asks the program whether this rank goes on, and ends the job if not: to be called in each slice of a wait.
    pub(crate) fn slice(&self) {
        if let Some(reason) = Interrupt::reason(self.place.options.interrupt) {
            self.abort(&reason);
        }
    }

    /// Who aborted the job, and why, if somebody has. Every wait that no table ends asks this in each slice.
    pub(crate) fn aborted(&self) -> Option<ErrorKind> {
        self.slice();
        match self.place.link.ended() {
            Some(Ended::Aborted { rank, reason }) => Some(ErrorKind::Aborted { rank, reason }),
            _ => None,
        }
    }
}

/// As much of a reason as every path keeps.
pub(crate) fn cut(reason: &str) -> &str {
    let ends = reason.char_indices().map(|(at, char)| at + char.len_utf8());
    &reason[..ends
        .take_while(|end| *end <= rankpact_shm::REASON_BYTES)
        .last()
        .unwrap_or(0)]
}

impl Drop for Job {
    fn drop(&mut self) {
        let Some(fabric) = &self.place.fabric else {
            return;
        };
        if self.is_forked() {
            return;
        }
        let everybody: Vec<usize> = (0..self.place.size).collect();
        let failed = thread::panicking() || self.lost(&everybody).is_some();
        // The others shall not wait for a rank that only waits for MPI.
        self.place.link.close();
        fabric.leave(if failed {
            PARTING
        } else {
            self.place.options.timeout
        });
    }
}

/// `timeout` from now; one beyond the end of the clock is a very long one.
pub(crate) fn deadline(started: Instant, timeout: Duration) -> Instant {
    started
        .checked_add(timeout)
        .unwrap_or(started + Duration::from_secs(u32::MAX.into()))
}

/// The error of a rank that has no group yet.
pub(crate) fn join_error(rank: usize, kind: ErrorKind) -> Error {
    Error {
        group: "world".to_owned(),
        round: 0,
        operation: "join".to_owned(),
        label: String::new(),
        rank,
        kind: Box::new(kind),
    }
}

pub(crate) fn link_error(error: LinkError, by: usize, after: Duration) -> ErrorKind {
    let unseen = |rank| Silent {
        rank,
        last_round: 0,
        last_label: String::new(),
    };
    match error {
        LinkError::Missing { ranks } => ErrorKind::Timeout {
            by,
            after,
            missing: ranks.into_iter().map(unseen).collect(),
        },
        LinkError::Died { rank } => ErrorKind::PeerDied {
            rank,
            last_round: 0,
        },
        LinkError::Left { rank } => ErrorKind::PeerClosed {
            rank,
            last_round: 0,
        },
        LinkError::Members { one, other } => ErrorKind::Config {
            field: "ranks of the group".to_owned(),
            one: (one.0, format!("{:?}", one.1)),
            other: (other.0, format!("{:?}", other.1)),
        },
        LinkError::Aborted { rank, reason } => ErrorKind::Aborted { rank, reason },
        LinkError::Closed => ErrorKind::Closed,
        LinkError::Usage(what) => ErrorKind::Usage(what),
        other @ (LinkError::Unreachable { .. } | LinkError::Refused { .. } | LinkError::Io(_)) => {
            ErrorKind::Io(other.to_string())
        }
    }
}

/// The first field in which two ranks differ, as the error that all of them return.
///
/// `all` holds the fields of each rank of `ranks`; every rank has the same lists, and so finds the same difference.
pub(crate) fn compare(ranks: &[usize], all: &[Vec<(String, String)>]) -> Result<(), ErrorKind> {
    let Some(first) = all.first() else {
        return Ok(());
    };
    for (rank, fields) in ranks.iter().zip(all) {
        for (i, (name, value)) in first.iter().enumerate() {
            let theirs = fields.get(i).map_or("nothing", |field| {
                if field.0 == *name {
                    &field.1
                } else {
                    "nothing"
                }
            });
            if theirs != value {
                return Err(ErrorKind::Config {
                    field: name.clone(),
                    one: (ranks[0], value.clone()),
                    other: (*rank, theirs.to_owned()),
                });
            }
        }
    }
    Ok(())
}

/// Small values as bytes of a gather.
pub(crate) fn encode(value: &impl serde::Serialize) -> Vec<u8> {
    // Our own types have string keys and no failing implementations; an empty answer is refused by every reader.
    serde_json::to_vec(value).unwrap_or_default()
}

/// What each of `ranks` sent in a gather.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(
    ranks: &[usize],
    all: &[Vec<u8>],
) -> Result<Vec<T>, ErrorKind> {
    let one = |(rank, bytes): (&usize, &Vec<u8>)| {
        serde_json::from_slice(bytes).map_err(|error| {
            ErrorKind::Io(format!(
                "rank {rank} speaks another version of the protocol: {error}"
            ))
        })
    };
    ranks.iter().zip(all).map(one).collect()
}
