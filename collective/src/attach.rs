//! How the members of a group find their path: offer a segment, attach, prove it, vote; nobody decides alone.

use crate::error::ErrorKind;
use crate::job::{self, Job};
use crate::mesh::{Mesh, MeshError};
use crate::options::{Options, PathChoice};
use crate::path::Path;
use crate::path::table::TablePath;
use crate::path::tcp::TcpPath;
use rankpact_shm::{Identity, Segment, SegmentError};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The most that is kept back of a deadline for the last vote.
const VOTE: Duration = Duration::from_secs(1);

/// What a member says first.
#[derive(Serialize, Deserialize)]
struct Offer {
    /// The first member's counts: how often a group of this name has been made.
    generation: u64,
    fields: Vec<(String, String)>,
    address: SocketAddr,
}

/// Why a member cannot use the segment. Becomes the error on every rank where shared memory was demanded.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Refusal(ErrorKind);

impl From<SegmentError> for Refusal {
    fn from(error: SegmentError) -> Self {
        let text = |path: PathBuf| path.display().to_string();
        Self(match error {
            SegmentError::NoSpace { path, needed, free } => ErrorKind::NoSpace {
                path: text(path),
                needed,
                free,
            },
            SegmentError::Permission { path, owner } => ErrorKind::Permission {
                path: text(path),
                owner: owner.map_or("unknown".to_owned(), |uid| format!("uid {uid}")),
            },
            SegmentError::Foreign { path, found } => ErrorKind::Foreign {
                path: text(path),
                found,
            },
            other => ErrorKind::Io(other.to_string()),
        })
    }
}

/// What a group is attached as.
pub(crate) struct Members<'a> {
    pub(crate) name: &'a str,
    pub(crate) ranks: &'a [usize],
    pub(crate) me: usize,
    pub(crate) options: &'a Options,
    /// That of the call which opens the group.
    pub(crate) timeout: Duration,
}

/// The path all members have agreed on, and why it is that one.
pub(crate) fn attach(job: &Job, members: &Members<'_>) -> Result<(Path, String), ErrorKind> {
    let Members {
        name,
        ranks,
        me,
        options,
        timeout,
    } = *members;
    let deadline = job::deadline(Instant::now(), timeout);
    let gather = |step: &str, payload: &[u8]| {
        job.gather(&format!("group {name}"), step, ranks, payload, deadline)
    };
    let mut identity = Identity {
        geometry: options.geometry(ranks.len()).ok_or_else(|| {
            ErrorKind::Usage(format!("{} rounds in flight: 1, 2, 4 or 8", options.depth))
        })?,
        generation: job.generation(name),
        nonce: job.place.nonce,
    };

    let listener = Mesh::listen(job.place.ip)
        .map_err(|error| ErrorKind::Io(format!("cannot listen on {}: {error}", job.place.ip)))?;
    let address = listener
        .local_addr()
        .map_err(|error| ErrorKind::Io(error.to_string()))?;
    let wants_table = options.path != PathChoice::Tcp;
    let fields = options.agreement(job.place.size);
    let offer = job::encode(&Offer {
        generation: identity.generation,
        fields,
        address,
    });
    let offers: Vec<Offer> = job::decode(ranks, &gather("offer", &offer)?)?;
    let all_fields: Vec<_> = offers.iter().map(|offer| offer.fields.clone()).collect();
    job::compare(ranks, &all_fields)?;
    identity.generation = offers[0].generation;
    job.made(name, identity.generation);

    let held = if wants_table {
        // Only now that every member is here: the name of a segment exists for the blink of an eye.
        let created =
            (me == 0).then(|| create(job, options, name, &identity).map_err(Refusal::from));
        let path = created.as_ref().map(|created| match created {
            Ok(segment) => Ok(segment.path().to_owned()),
            Err(refusal) => Err(refusal.clone()),
        });
        let paths: Vec<Option<Result<PathBuf, Refusal>>> =
            job::decode(ranks, &gather("segment", &job::encode(&path))?)?;
        match (created, paths.into_iter().next().flatten()) {
            (_, Some(Err(refusal))) => Err(refusal),
            (Some(created), _) => prove(ranks, me, created, &gather)?,
            (None, Some(Ok(path))) => {
                let attached = Segment::attach(&path, &identity, me).map_err(Refusal::from);
                prove(ranks, me, attached, &gather)?
            }
            (None, None) => Err(Refusal(ErrorKind::Io(
                "the first member offers no segment".to_owned(),
            ))),
        }
    } else {
        Err(Refusal(ErrorKind::Io("TCP was asked for".to_owned())))
    };
    let addresses: Vec<SocketAddr> = offers.iter().map(|offer| offer.address).collect();
    let token = job
        .place
        .token
        .derive(&format!("group {name} {}", identity.generation));
    let alone = || job.lost(ranks).is_none();
    // Why it failed is told by a vote, for which there must be time left.
    let until = deadline - (timeout / 10).min(VOTE);
    let mesh = Mesh::connect(listener, &addresses, me, &token, until, &alone);
    let mut mesh = unanimous(
        ranks,
        mesh.map_err(|error| unconnected(&error)),
        "connected",
        &gather,
    )?
    .map_err(|Refusal(kind)| kind)?;
    let ladder = options.ladder(job.place.crowd);
    mesh.climb(ladder);
    match held {
        Ok(segment) => {
            let (storage, locks) = segment.into_parts();
            let label = name.to_owned();
            let world = ranks.to_vec();
            let table = options
                .seat(storage, me, ladder)
                .with_liveness(Box::new(locks))
                .with_notice(Box::new(move |silent, waited| {
                    tracing::warn!(
                        "group {label}: rank {} alive, silent {:.0} s, last round {} `{}`",
                        world.get(silent.rank).copied().unwrap_or(silent.rank),
                        waited.as_secs_f64(),
                        silent.last_round,
                        silent.last_label
                    );
                }));
            Ok((
                Path::Table(TablePath::new(table, mesh)),
                "every rank attached and proved it".to_owned(),
            ))
        }
        Err(Refusal(kind)) if options.path == PathChoice::Table => Err(kind),
        Err(Refusal(kind)) => {
            if wants_table && me == 0 {
                job.tell_once(&format!("groups use TCP: {kind}"));
            }
            Ok((
                Path::Tcp(TcpPath::new(mesh, options.timing)),
                kind.to_string(),
            ))
        }
    }
}

fn create(
    job: &Job,
    options: &Options,
    name: &str,
    identity: &Identity,
) -> Result<Segment, SegmentError> {
    let readable: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(40)
        .collect();
    let unique = getrandom::u32().map_err(|error| SegmentError::Io {
        path: options.folder.clone(),
        what: error.to_string(),
    })?;
    let file = format!(
        "rankpact-{}-{:016x}{:016x}-{readable}-{unique:08x}",
        nix::unistd::geteuid(),
        job.place.nonce[0],
        job.place.nonce[1],
    );
    Segment::create(&options.folder.join(file), identity, 1, 0)
}

/// One step of the agreement: what every member says, in their order.
type Gather<'a> = dyn Fn(&str, &[u8]) -> Result<Vec<Vec<u8>>, ErrorKind> + 'a;

/// The segment if every member has attached it and has seen the proof of every other; else the first refusal.
fn prove(
    ranks: &[usize],
    me: usize,
    mut attached: Result<Segment, Refusal>,
    gather: &Gather<'_>,
) -> Result<Result<Segment, Refusal>, ErrorKind> {
    let token = getrandom::u64().map_err(|error| ErrorKind::Io(error.to_string()))?;
    if let Ok(segment) = &attached {
        segment.prove(me, token);
    }
    let vote = attached.as_ref().map(|_| token).map_err(Clone::clone);
    let votes: Vec<Result<u64, Refusal>> =
        job::decode(ranks, &gather("attached", &job::encode(&vote))?)?;
    if let Ok(segment) = &mut attached {
        // Whoever could attach has: nobody needs the name any more.
        segment.unlink();
    }
    if let Some(refusal) = votes.iter().find_map(|vote| vote.as_ref().err()) {
        return Ok(Err(refusal.clone()));
    }
    let seen = attached.and_then(|segment| {
        let stranger = votes
            .iter()
            .enumerate()
            .find(|(rank, vote)| vote.as_ref().ok() != Some(&segment.proof(*rank)));
        match stranger {
            None => Ok(segment),
            Some((rank, _)) => {
                let what = format!(
                    "rank {} does not share the memory of rank {}",
                    ranks[rank], ranks[me]
                );
                Err(Refusal(ErrorKind::Io(what)))
            }
        }
    });
    unanimous(ranks, seen, "proved", gather)
}

/// What this member holds, if every member holds its own; else the refusal of the first that does not.
fn unanimous<T>(
    ranks: &[usize],
    own: Result<T, Refusal>,
    step: &str,
    gather: &Gather<'_>,
) -> Result<Result<T, Refusal>, ErrorKind> {
    let vote = own.as_ref().map(|_| ()).map_err(Clone::clone);
    let votes: Vec<Result<(), Refusal>> = job::decode(ranks, &gather(step, &job::encode(&vote))?)?;
    Ok(match votes.into_iter().find_map(Result::err) {
        Some(refusal) => Err(refusal),
        None => own,
    })
}

fn unconnected(error: &MeshError) -> Refusal {
    Refusal(ErrorKind::Io(format!(
        "the connections of the group: {error}"
    )))
}
