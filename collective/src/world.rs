//! The world: all ranks of a job, and how one of them joins.

use crate::error::{Error, ErrorKind};
use crate::group::Group;
use crate::job::{self, Job, Place, join_error};
use crate::join::{Join, Meeting, Reach};
use crate::options::{Crowd, EngineChoice, Options, Spot};
use crate::pair::Venue;
use crate::path::fabric::Fabric;
use crate::relay::Relay;
use crate::rendezvous::LinkError;
use serde::{Deserialize, Serialize};
use std::mem::take;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// All ranks of a job, as one of them sees it.
///
/// Groups outlive it: the connection to the rendezvous closes with the last of them.
#[derive(Debug)]
pub struct World {
    job: Arc<Job>,
}

/// How long rank 0 goes on serving after a join that has failed.
const LATECOMERS: Duration = Duration::from_secs(1);

/// What a rank tells all others when it joins.
#[derive(Serialize, Deserialize)]
struct Hello {
    fields: Vec<(String, String)>,
    nonce: [u64; 2],
    reach: Reach,
    spot: Spot,
}

impl World {
    /// Joins, and waits until all ranks have joined, at most for the timeout of the options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] names all ranks that are missing, [`ErrorKind::Config`] a setting that differs,
    /// [`ErrorKind::PeerDied`] a rank that died meanwhile, [`ErrorKind::Unreached`] both addresses where the network does not
    /// lead to rank 0. [`ErrorKind::Usage`], [`ErrorKind::Foreign`] and [`ErrorKind::Io`] say what is wrong with the place.
    pub fn connect(join: Join) -> Result<Self, Error> {
        let rank = join.rank;
        Self::join(join).map_err(|kind| join_error(rank, kind))
    }

    fn join(join: Join) -> Result<Self, ErrorKind> {
        let (rank, size) = (join.rank, join.size);
        if rank >= size {
            return Err(ErrorKind::Usage(format!(
                "rank {rank} is not among {size} ranks"
            )));
        }
        let deadline = job::deadline(Instant::now(), join.options.timeout);
        let over_mpi = join.options.engine == EngineChoice::Mpi;
        if over_mpi {
            Fabric::check()?;
        }
        let own_nonce = match &join.job {
            Some(digits) => parse_nonce(digits)?,
            None => [random()?, random()?],
        };
        let mut meeting = Meeting::find(&join, deadline)?;
        let everybody: Vec<usize> = (0..size).collect();
        let hello = Hello {
            fields: join.options.agreement(size),
            nonce: own_nonce,
            reach: meeting.reach(),
            spot: Spot::here(),
        };
        let started = Instant::now();
        let all = meeting
            .link
            .gather("world", &everybody, &job::encode(&hello), deadline)
            .inspect_err(|error| {
                let by_itself = matches!(error, LinkError::Aborted { rank: by, .. } if *by == rank);
                if meeting.server.is_some() && !by_itself {
                    // The others shall hear it too, also those who are a moment late.
                    thread::sleep(LATECOMERS);
                }
            })
            .map_err(|error| match error {
                // Who counts the ranks differently waits for other ranks.
                LinkError::Members { one, other } => ErrorKind::Config {
                    field: "world size".to_owned(),
                    one: (one.0, one.1.len().to_string()),
                    other: (other.0, other.1.len().to_string()),
                },
                other => job::link_error(other, rank, started.elapsed()),
            })?;
        // Everybody is in; a name that nobody needs any more is one less to leave behind.
        meeting.note = None;
        let mut all = job::decode::<Hello>(&everybody, &all)?;
        let fields: Vec<_> = all
            .iter_mut()
            .map(|hello| take(&mut hello.fields))
            .collect();
        job::compare(&everybody, &fields)?;
        let nonce = all[0].nonce;
        let reaches: Vec<_> = all.iter().map(|hello| hello.reach).collect();
        let ip = meeting.ip(&reaches)?;
        let spots: Vec<_> = all.into_iter().map(|hello| hello.spot).collect();
        let crowd = Crowd::of(&spots[rank], &spots);
        // Together: MPI starts on all ranks or on none.
        let fabric = over_mpi.then(|| Fabric::start(deadline)).transpose()?;
        let job = Job::new(Place {
            rank,
            size,
            options: join.options,
            crowd,
            nonce,
            ip,
            fabric,
            token: meeting.token,
            link: meeting.link,
            _server: Mutex::new(meeting.server),
        });
        Ok(Self { job })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.job.place.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.job.place.size
    }

    /// The settings of this world.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.job.place.options
    }

    /// A group of `ranks`, in that order: the first is rank 0 of the group.
    ///
    /// Returns at once. The members find each other at the group's first call, or at [`Group::ready`], so they may open
    /// their groups in any order. Every group has its own table and round counter: one for each thread that
    /// calls.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Usage`] if this rank is not a member, or a rank is named twice or does not exist.
    pub fn group(&self, name: &str, ranks: &[usize]) -> Result<Group, Error> {
        self.group_with(name, ranks, self.job.place.options.clone())
    }

    /// A group with settings of its own.
    ///
    /// # Errors
    ///
    /// As [`World::group`].
    pub fn group_with(
        &self,
        name: &str,
        ranks: &[usize],
        options: Options,
    ) -> Result<Group, Error> {
        let usage = |what: String| Error {
            group: name.to_owned(),
            operation: "group".to_owned(),
            ..join_error(self.job.place.rank, ErrorKind::Usage(what))
        };
        if name.is_empty() || name.len() > 64 || name.contains('/') {
            return Err(usage(
                "the name of a group has 1 to 64 bytes and no slash".to_owned(),
            ));
        }
        if let Some(rank) = ranks.iter().find(|rank| **rank >= self.job.place.size) {
            return Err(usage(format!(
                "there is no rank {rank} among {}",
                self.job.place.size
            )));
        }
        if let Some(rank) = ranks
            .iter()
            .enumerate()
            .find_map(|(i, rank)| ranks[..i].contains(rank).then_some(rank))
        {
            return Err(usage(format!("rank {rank} is named twice")));
        }
        if ranks.len() > rankpact_shm::MAX_RANKS {
            return Err(usage(format!(
                "a group has at most {} ranks",
                rankpact_shm::MAX_RANKS
            )));
        }
        let Some(me) = ranks.iter().position(|rank| *rank == self.job.place.rank) else {
            return Err(usage(format!("this rank is not among {ranks:?}")));
        };
        Ok(Group::new(
            name,
            ranks.to_vec(),
            me,
            Arc::clone(&self.job),
            options,
        ))
    }

    /// A group of all ranks.
    ///
    /// # Errors
    ///
    /// As [`World::group`].
    pub fn everybody(&self, name: &str) -> Result<Group, Error> {
        self.everybody_with(name, self.job.place.options.clone())
    }

    /// A group of all ranks with settings of its own.
    ///
    /// # Errors
    ///
    /// As [`World::group`].
    pub fn everybody_with(&self, name: &str, options: Options) -> Result<Group, Error> {
        self.group_with(name, &(0..self.job.place.size).collect::<Vec<_>>(), options)
    }

    /// This rank's place in a pipeline: it hears from rank `upstream`, and hands on to rank `downstream`. The first stage
    /// has nobody before it, the last one nobody after it.
    ///
    /// Returns at once. Neighbours find each other at [`Relay::ready`], or at the first call. A name may be used by
    /// several pipelines, say by one for each rank of a stage.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Usage`] for a neighbour that is this rank, does not exist, or is on both sides.
    pub fn relay(
        &self,
        name: &str,
        upstream: Option<usize>,
        downstream: Option<usize>,
    ) -> Result<Relay, Error> {
        let Place { rank, size, .. } = self.job.place;
        let usage = |what: String| Error {
            group: name.to_owned(),
            operation: "relay".to_owned(),
            ..join_error(rank, ErrorKind::Usage(what))
        };
        if name.is_empty() || name.len() > 64 || name.contains('/') {
            return Err(usage(
                "the name of a relay has 1 to 64 bytes and no slash".to_owned(),
            ));
        }
        for neighbour in [upstream, downstream].into_iter().flatten() {
            if neighbour >= size || neighbour == rank {
                return Err(usage(format!(
                    "rank {neighbour} is no neighbour of rank {rank} among {size} ranks"
                )));
            }
        }
        if upstream.is_some() && upstream == downstream {
            return Err(usage("a neighbour is on one side".to_owned()));
        }
        let venue = Venue::Job(Arc::clone(&self.job));
        let timeout = self.job.place.options.timeout;
        Ok(Relay::new(name, rank, upstream, downstream, venue, timeout))
    }

    /// Ends the job on every rank: all its groups fail with this rank and `reason`, at once. Does not block.
    pub fn abort(&self, reason: &str) {
        self.job.abort(reason);
    }
}

fn random() -> Result<u64, ErrorKind> {
    getrandom::u64().map_err(|error| ErrorKind::io("random numbers", error))
}

fn parse_nonce(digits: &str) -> Result<[u64; 2], ErrorKind> {
    let wrong = || {
        ErrorKind::Usage(format!(
            "the job number `{digits}` is not 32 hexadecimal digits"
        ))
    };
    match (digits.get(..16), digits.get(16..)) {
        (Some(high), Some(low)) if low.len() == 16 => {
            let parse = |half| u64::from_str_radix(half, 16).map_err(|_| wrong());
            Ok([parse(high)?, parse(low)?])
        }
        _ => Err(wrong()),
    }
}
