//! How two ranks find each other: at the rendezvous, or, as threads of one process, at a hub.

use super::Pair;
use crate::envelope::Inbox;
use crate::error::{ErrorKind, Silent};
use crate::job::{self, Job, locked};
use crate::mesh::{Mesh, MeshError};
use crate::socket::{Stream, tune};
use rankpact_shm::Process;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Where ranks find each other.
#[derive(Clone, Debug)]
pub(crate) enum Venue {
    /// They have joined a job.
    Job(Arc<Job>),
    /// They are threads of this process.
    Threads(Arc<Hub>),
}

/// What one rank says when it opens a pair.
#[derive(Serialize, Deserialize)]
struct Offer {
    /// Must be equal on both.
    fields: Vec<(String, String)>,
    address: SocketAddr,
}

impl Venue {
    /// The pair of `me` and `peer` in whatever has the name `key`; `fields` must be the same on both.
    ///
    /// Waits until the other has come, at most until `deadline`.
    pub(crate) fn open(
        &self,
        key: &str,
        (me, peer): (usize, usize),
        fields: &[(String, String)],
        deadline: Instant,
    ) -> Result<Pair, ErrorKind> {
        match self {
            Self::Job(job) => meet(job, key, (me, peer), fields, deadline),
            Self::Threads(hub) => hub.open(me, peer),
        }
    }

    /// Whether this is a forked child of the process in which the ranks met.
    pub(crate) fn is_forked(&self) -> bool {
        match self {
            Self::Job(job) => job.is_forked(),
            Self::Threads(hub) => !hub.owner.is_here(),
        }
    }

    /// Who aborted the job, and why, if somebody has.
    pub(crate) fn aborted(&self) -> Option<ErrorKind> {
        match self {
            Self::Job(job) => job.aborted(),
            Self::Threads(_) => None,
        }
    }

    /// Pairs that others have opened and `me`, which leaves, has not; by the other rank.
    pub(crate) fn leave(&self, me: usize) -> BTreeMap<usize, Pair> {
        match self {
            Self::Job(_) => BTreeMap::new(),
            Self::Threads(hub) => hub.leave(me),
        }
    }
}

fn meet(
    job: &Job,
    key: &str,
    (me, peer): (usize, usize),
    fields: &[(String, String)],
    deadline: Instant,
) -> Result<Pair, ErrorKind> {
    let started = Instant::now();
    let ranks = [me.min(peer), me.max(peer)];
    let listener = Mesh::listen(job.place.ip)
        .map_err(|error| ErrorKind::Io(format!("cannot listen on {}: {error}", job.place.ip)))?;
    let address = listener.local_addr().map_err(io_error)?;
    let offer = job::encode(&Offer {
        fields: fields.to_vec(),
        address,
    });
    let step = format!("pair {} {}", ranks[0], ranks[1]);
    let offers = job.gather(key, &step, &ranks, &offer, deadline)?;
    let offers: Vec<Offer> = job::decode(&ranks, &offers)?;
    let all_fields: Vec<_> = offers.iter().map(|offer| offer.fields.clone()).collect();
    job::compare(&ranks, &all_fields)?;
    let addresses: Vec<SocketAddr> = offers.iter().map(|offer| offer.address).collect();
    let token = job.place.token.derive(&format!("{key}/{step} {fields:?}"));
    let alive = || job.lost(&ranks).is_none();
    let place = usize::from(me == ranks[1]);
    let mesh = Mesh::connect(listener, &addresses, place, &token, deadline, &alive);
    let only = mesh.map(Mesh::into_only).map_err(|error| {
        let unreached = matches!(error, MeshError::Unreached { .. });
        job.lost(&ranks).unwrap_or_else(|| {
            if unreached {
                ErrorKind::Timeout {
                    by: me,
                    after: started.elapsed(),
                    missing: vec![Silent {
                        rank: peer,
                        last_round: 0,
                        last_label: String::new(),
                    }],
                }
            } else {
                ErrorKind::Io(format!("the connection to rank {peer}: {error}"))
            }
        })
    })?;
    let (stream, inbox) =
        only.ok_or_else(|| ErrorKind::Io(format!("no connection to rank {peer}")))?;
    Ok(Pair::new(stream, inbox))
}

/// Where threads of one process find each other: whoever comes first leaves the other end here.
#[derive(Debug)]
pub(crate) struct Hub {
    desk: Mutex<Desk>,
    owner: Process,
}

#[derive(Debug, Default)]
struct Desk {
    /// By whom they are for, and whom they lead to.
    ends: BTreeMap<(usize, usize), Stream>,
    left: BTreeSet<usize>,
}

impl Hub {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            desk: Mutex::default(),
            owner: Process::current(),
        })
    }

    fn open(&self, me: usize, peer: usize) -> Result<Pair, ErrorKind> {
        let mut desk = locked(&self.desk);
        if let Some(stream) = desk.ends.remove(&(me, peer)) {
            return Ok(Pair::new(stream, Inbox::new(0)));
        }
        if desk.left.contains(&peer) {
            return Err(ErrorKind::PeerClosed {
                rank: peer,
                last_round: 0,
            });
        }
        let (mine, theirs) = loopback().map_err(io_error)?;
        desk.ends.insert((peer, me), theirs);
        Ok(Pair::new(mine, Inbox::new(0)))
    }

    fn leave(&self, me: usize) -> BTreeMap<usize, Pair> {
        let mut desk = locked(&self.desk);
        desk.left.insert(me);
        let mut mine = desk.ends.split_off(&(me, 0));
        let mut others = mine.split_off(&(me + 1, 0));
        desk.ends.append(&mut others);
        mine.into_iter()
            .map(|((_, peer), stream)| (peer, Pair::new(stream, Inbox::new(0))))
            .collect()
    }
}

/// Both ends of one connection.
fn loopback() -> io::Result<(Stream, Stream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let other = loop {
        // Anybody on this host may connect here.
        let (other, from) = listener.accept()?;
        if from == one.local_addr()? {
            break other;
        }
    };
    for end in [&one, &other] {
        tune(end)?;
        end.set_nonblocking(true)?;
    }
    Ok((Stream::new(one)?, Stream::new(other)?))
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err wants")]
fn io_error(error: io::Error) -> ErrorKind {
    ErrorKind::Io(error.to_string())
}
