//! How the members of a group find their path: offer a segment, attach, prove it, vote; nobody decides alone.

use crate::error::ErrorKind;
use crate::job::{self, Job};
use crate::mesh::{Mesh, MeshError};
use crate::options::{EngineChoice, Options, PathChoice};
use crate::path::Path;
use crate::path::engine::{Engine, Sockets};
use crate::path::fabric::Leaders;
use crate::path::hosts::{Hosts, HostsPath};
use crate::path::table::TablePath;
use crate::path::tcp::TcpPath;
use rankpact_shm::{
    Contents, Geometry, Identity, Missing, Notice, Ring, RingGeometry, RingStorage, Segment,
    SegmentError, Storage,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
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
    /// The same for members that may share memory; a hint, nothing more.
    memory: String,
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
pub(crate) fn attach(job: &Arc<Job>, members: &Members<'_>) -> Result<(Path, String), ErrorKind> {
    let Members {
        name,
        ranks,
        me,
        options,
        timeout,
    } = *members;
    geometry(options, ranks.len())?;
    let deadline = job::deadline(Instant::now(), timeout);
    let gather = |step: &str, payload: &[u8]| {
        job.gather(&format!("group {name}"), step, ranks, payload, deadline)
    };
    let (listener, address) = listen(job)?;
    let wants_table = options.path != PathChoice::Tcp;
    let offer = job::encode(&Offer {
        generation: job.generation(name),
        fields: options.agreement(job.place.size),
        address,
        memory: memory(options),
    });
    let offers: Vec<Offer> = job::decode(ranks, &gather("offer", &offer)?)?;
    let all_fields: Vec<_> = offers.iter().map(|offer| offer.fields.clone()).collect();
    job::compare(ranks, &all_fields)?;
    let generation = offers[0].generation;
    job.made(name, generation);

    let parts = parts(&offers);
    let radix = |table: &Storage, geometry: Geometry| {
        table.set_radix(geometry.radix(job.place.crowd.cpus));
    };
    let tables = Kind {
        what: "",
        geometry: &|seats| geometry(options, seats),
        finish: &radix,
    };
    let everybody: Vec<usize> = (0..ranks.len()).collect();
    let together = if wants_table {
        let one = std::slice::from_ref(&everybody);
        share(job, members, generation, one, &tables, &gather)?
    } else {
        Err(Refusal(ErrorKind::Io("TCP was asked for".to_owned())))
    };
    // Only hosts that have something to gain from a table of their own.
    let apart = parts.len() > 1 && parts.len() < ranks.len();
    let (held, hosts) = match together {
        Err(_) if apart && options.path == PathChoice::Auto => {
            let tables = Kind {
                what: " of each host",
                ..tables
            };
            let each = share(job, members, generation, &parts, &tables, &gather)?;
            let hosts = each.is_ok().then(|| Hosts::new(parts.clone(), me));
            (each, hosts)
        }
        together => (together, None),
    };

    // A ring besides is worth having, and no group fails for the want of it.
    let ring = if held.is_ok() && hosts.is_none() {
        let rings = Kind {
            what: " of the ring",
            geometry: &|seats| {
                let none = || ErrorKind::Usage(format!("no ring has {seats} seats"));
                RingGeometry::of_seats(seats).ok_or_else(none)
            },
            finish: &|_: &RingStorage, _| (),
        };
        let one = std::slice::from_ref(&everybody);
        share(job, members, generation, one, &rings, &gather)?.ok()
    } else {
        None
    };

    let addresses: Vec<SocketAddr> = offers.iter().map(|offer| offer.address).collect();
    // Why it failed is told by a vote, for which there must be time left.
    let until = deadline - (timeout / 10).min(VOTE);
    let meet = |listener, addresses: &[SocketAddr], me, of: &str| {
        let purpose = format!("group {name} {generation}{of}");
        let token = job.place.token.derive(&purpose);
        let alone = || job.lost(ranks).is_none();
        Mesh::connect(listener, addresses, me, &token, until, &alone)
            .map_err(|error| unconnected(&error))
    };
    let ladder = options.ladder(job.place.crowd);
    // Every two members of the group; or every two of a host, and every two leaders.
    let connected = match &hosts {
        None => meet(listener, &addresses, me, "").map(|mesh| (mesh, None)),
        Some(hosts) => {
            // With its members: their first counts how often, and two groups may differ in it alone.
            let purpose = format!("group {name} {generation} of {ranks:?}");
            let between = leaders(job, members, hosts, &purpose, &gather)?;
            let here = hosts.places().iter().map(|place| addresses[*place]);
            let here: Vec<SocketAddr> = here.collect();
            let inside = format!(" host {}", hosts.here());
            meet(listener, &here, hosts.seat(), &inside).and_then(|mesh| {
                let engine = match between {
                    Between::Nothing => None,
                    Between::Sockets(listener, leaders) => {
                        let mut mesh = meet(listener, &leaders, hosts.here(), " leaders")?;
                        mesh.climb(ladder);
                        Some(Box::new(Sockets(mesh)) as Box<dyn Engine>)
                    }
                    Between::Engine(engine) => Some(engine),
                };
                Ok((mesh, engine))
            })
        }
    };
    let (mut mesh, engine) =
        unanimous(ranks, connected, "connected", &gather)?.map_err(|Refusal(kind)| kind)?;
    mesh.climb(ladder);
    let table = |segment: Segment, seat: usize, notice: Notice| {
        let (storage, locks) = segment.into_parts();
        let table = options
            .seat(storage, seat, ladder)
            .with_liveness(Box::new(locks))
            .with_notice(notice);
        if job.place.options.interrupt.is_none() {
            return table;
        }
        let job = Arc::clone(job);
        table.with_slice(Box::new(move || job.slice()))
    };
    let ring = ring.map(|segment| {
        let (storage, locks) = segment.into_parts();
        Ring::new(storage, me, ladder).with_liveness(Box::new(locks))
    });
    match (held, hosts) {
        (Ok(segment), None) => {
            let table = table(segment, me, told_of_silence(name, ranks.to_vec()));
            Ok((
                Path::Table(TablePath::new(table, mesh, ring)),
                "every rank attached and proved it".to_owned(),
            ))
        }
        (Ok(segment), Some(hosts)) => {
            let here = hosts.ranks(ranks);
            let table = table(segment, hosts.seat(), told_of_silence_on_a_host(name, here));
            let table = TablePath::new(table, mesh, None);
            let reason = format!("one table for each of {}", listed(&parts, ranks));
            let path = HostsPath::new(table, hosts, ranks, engine, options);
            Ok((Path::Hosts(path), reason))
        }
        (Err(Refusal(kind)), _) if options.path == PathChoice::Table => Err(match kind {
            ErrorKind::Io(what) if apart => ErrorKind::Io(format!(
                "path `table` needs memory that all ranks share; it seems to be shared only within each of {}: {what}",
                listed(&parts, ranks)
            )),
            kind => kind,
        }),
        (Err(Refusal(kind)), _) => {
            if wants_table && me == 0 {
                job.tell_once(&format!("groups use TCP: {kind}"));
            }
            mesh.tell_silence(told_of_silence(name, ranks.to_vec()));
            Ok((Path::Tcp(TcpPath::new(mesh, options)), kind.to_string()))
        }
    }
}

fn geometry(options: &Options, ranks: usize) -> Result<Geometry, ErrorKind> {
    options.geometry(ranks).ok_or_else(|| {
        ErrorKind::Usage(format!("{} rounds in flight: 1, 2, 4 or 8", options.depth))
    })
}

fn listen(job: &Job) -> Result<(TcpListener, SocketAddr), ErrorKind> {
    let listener = Mesh::listen(job.place.ip)
        .map_err(|error| ErrorKind::Io(format!("cannot listen on {}: {error}", job.place.ip)))?;
    let address = listener
        .local_addr()
        .map_err(|error| ErrorKind::Io(error.to_string()))?;
    Ok((listener, address))
}

/// What a member has of the exchange between hosts before its leaders meet.
enum Between {
    /// It is no leader.
    Nothing,
    /// Where it listens, and where all leaders do.
    Sockets(TcpListener, Vec<SocketAddr>),
    Engine(Box<dyn Engine>),
}

/// Tells the leaders where they find each other.
#[cfg_attr(
    not(feature = "mpi"),
    allow(
        unused_variables,
        reason = "nobody has a port then, and nothing that follows from one"
    )
)]
fn leaders(
    job: &Arc<Job>,
    members: &Members<'_>,
    hosts: &Hosts,
    purpose: &str,
    gather: &Gather<'_>,
) -> Result<Between, ErrorKind> {
    let ranks = members.ranks;
    if members.options.engine == EngineChoice::Tcp {
        let own = hosts.leads().then(|| listen(job));
        let (own, addresses) = addressed(ranks, own, gather)?;
        return Ok(own.map_or(Between::Nothing, |own| Between::Sockets(own, addresses)));
    }
    // It listens before the others know of it, and so misses nothing.
    let own = hosts.leads().then(|| {
        let fabric = job.place.fabric.as_ref().ok_or_else(|| {
            let what = "engine `mpi` for a group, but not for its world";
            ErrorKind::Usage(what.to_owned())
        })?;
        let port = fabric.listen(job.place.token.derive(purpose).number());
        let address = port.address();
        Ok((port, address))
    });
    let (own, addresses) = addressed(ranks, own, gather)?;
    Ok(own.map_or(Between::Nothing, |port| {
        let leaders = hosts.all().iter().map(|places| ranks[places[0]]).collect();
        let here = hosts.here();
        let engine = Leaders::new(port, addresses, leaders, here, Arc::clone(job));
        Between::Engine(Box::new(engine))
    }))
}

/// Where all leaders are, by host; with what this member has there, if it is one.
fn addressed<T, A: Clone + Serialize + DeserializeOwned>(
    ranks: &[usize],
    own: Option<Result<(T, A), ErrorKind>>,
    gather: &Gather<'_>,
) -> Result<(Option<T>, Vec<A>), ErrorKind> {
    let address = own.as_ref().map(|own| match own {
        Ok((_, address)) => Ok(address.clone()),
        Err(kind) => Err(kind.clone()),
    });
    let said = gather("leaders", &job::encode(&address))?;
    let said: Vec<Option<Result<A, ErrorKind>>> = job::decode(ranks, &said)?;
    let addresses = said.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
    Ok((own.transpose()?.map(|(own, _)| own), addresses))
}

/// What two members have in common if they may share memory, and a clock: kernel, device of the folder of segments, time
/// namespace. It proves nothing; where it is wrong, the vote says so.
fn memory(options: &Options) -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let device = fs::metadata(&options.folder).map_or(0, |folder| folder.dev());
    let clock = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{} {device} {}", kernel.trim(), clock.display())
}

/// The members that may share memory, by place; each part, and the list of parts, in the order of the group.
fn parts(offers: &[Offer]) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = Vec::new();
    for (place, offer) in offers.iter().enumerate() {
        let shares = |part: &&mut Vec<usize>| offers[part[0]].memory == offer.memory;
        match parts.iter_mut().find(shares) {
            Some(part) => part.push(place),
            None => parts.push(vec![place]),
        }
    }
    parts
}

/// The world ranks of each part, in words.
fn listed(parts: &[Vec<usize>], ranks: &[usize]) -> String {
    let part = |part: &Vec<usize>| {
        let ranks: Vec<usize> = part.iter().map(|place| ranks[*place]).collect();
        format!("ranks {ranks:?}")
    };
    parts.iter().map(part).collect::<Vec<_>>().join(", ")
}

/// Tells of a member that is silent for long.
fn told_of_silence(name: &str, ranks: Vec<usize>) -> Notice {
    let label = name.to_owned();
    Box::new(move |silent, waited| {
        tracing::warn!(
            "group {label}: rank {} alive, silent {:.0} s, last round {}{}",
            ranks.get(silent.rank).copied().unwrap_or(silent.rank),
            waited.as_secs_f64(),
            silent.last_round,
            if silent.last_label.is_empty() {
                String::new()
            } else {
                format!(" `{}`", silent.last_label)
            }
        );
    })
}

/// As [`told_of_silence`], where a round is two of the table: between them a leader waits for other hosts.
fn told_of_silence_on_a_host(name: &str, ranks: Vec<usize>) -> Notice {
    let label = name.to_owned();
    let tell = told_of_silence(name, ranks);
    Box::new(move |silent, waited| {
        let round = silent.last_round.div_ceil(2);
        if silent.rank == 0 && silent.last_round % 2 == 1 {
            tracing::warn!(
                "group {label}: round {round} `{}` waits for another host, {:.0} s",
                silent.last_label,
                waited.as_secs_f64()
            );
        } else {
            let silent = Missing {
                last_round: round,
                ..silent.clone()
            };
            tell(&silent, waited);
        }
    })
}

/// What segments hold that are made alike.
#[derive(Clone, Copy)]
struct Kind<'a, G: Contents> {
    /// Tells the steps of its agreement from those of another.
    what: &'a str,
    /// For so many members.
    geometry: &'a dyn Fn(usize) -> Result<G, ErrorKind>,
    /// What its creator still does to it.
    finish: &'a dyn Fn(&G::Storage, G),
}

/// A segment for the members of each of `parts`: this member holds that of its own. All parts have theirs, or none has.
fn share<G: Contents>(
    job: &Job,
    members: &Members<'_>,
    generation: u64,
    parts: &[Vec<usize>],
    kind: &Kind<'_, G>,
    gather: &Gather<'_>,
) -> Result<Result<Segment<G>, Refusal>, ErrorKind> {
    let of = kind.what;
    let Members {
        name,
        ranks,
        me,
        options,
        ..
    } = *members;
    let hosts = Hosts::new(parts.to_vec(), me);
    let part = hosts.places();
    let identity = Identity {
        geometry: (kind.geometry)(part.len())?,
        generation,
        nonce: job.place.nonce,
    };
    // Only now that every member is here: the name of a segment exists for the blink of an eye.
    let created = hosts
        .leads()
        .then(|| create(job, options, name, &identity, kind).map_err(Refusal::from));
    let path = created.as_ref().map(|created| match created {
        Ok(segment) => Ok(segment.path().to_owned()),
        Err(refusal) => Err(refusal.clone()),
    });
    let paths = gather(&format!("segment{of}"), &job::encode(&path))?;
    let paths: Vec<Option<Result<PathBuf, Refusal>>> = job::decode(ranks, &paths)?;
    let refusal = |path: &Option<Result<PathBuf, Refusal>>| path.clone()?.err();
    if let Some(refusal) = paths.iter().find_map(refusal) {
        return Ok(Err(refusal));
    }
    let attached = match (created, &paths[part[0]]) {
        (Some(created), _) => created,
        (None, Some(Ok(path))) => {
            Segment::attach(path, &identity, hosts.seat()).map_err(Refusal::from)
        }
        (None, _) => Err(Refusal(ErrorKind::Io(
            "the first member offers no segment".to_owned(),
        ))),
    };
    prove(ranks, &hosts, attached, of, gather)
}

fn create<G: Contents>(
    job: &Job,
    options: &Options,
    name: &str,
    identity: &Identity<G>,
    kind: &Kind<'_, G>,
) -> Result<Segment<G>, SegmentError> {
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
    Segment::create_with(&options.folder.join(file), identity, 1, 0, |storage| {
        (kind.finish)(storage, identity.geometry);
    })
}

/// One step of the agreement: what every member says, in their order.
type Gather<'a> = dyn Fn(&str, &[u8]) -> Result<Vec<Vec<u8>>, ErrorKind> + 'a;

/// The segment if every member has attached that of its part, and has seen the proof of every other there; else the
/// first refusal.
fn prove<G: Contents>(
    ranks: &[usize],
    hosts: &Hosts,
    mut attached: Result<Segment<G>, Refusal>,
    of: &str,
    gather: &Gather<'_>,
) -> Result<Result<Segment<G>, Refusal>, ErrorKind> {
    let token = getrandom::u64().map_err(|error| ErrorKind::Io(error.to_string()))?;
    if let Ok(segment) = &attached {
        segment.prove(hosts.seat(), token);
    }
    let vote = attached.as_ref().map(|_| token).map_err(Clone::clone);
    let votes = gather(&format!("attached{of}"), &job::encode(&vote))?;
    let votes: Vec<Result<u64, Refusal>> = job::decode(ranks, &votes)?;
    if let Ok(segment) = &mut attached {
        // Whoever could attach has: nobody needs the name any more.
        segment.unlink();
    }
    if let Some(refusal) = votes.iter().find_map(|vote| vote.as_ref().err()) {
        return Ok(Err(refusal.clone()));
    }
    let seen = attached.and_then(|segment| {
        let stranger = hosts
            .places()
            .iter()
            .enumerate()
            .find(|(seat, place)| votes[**place].as_ref().ok() != Some(&segment.proof(*seat)));
        match stranger {
            None => Ok(segment),
            Some((_, place)) => {
                let what = format!(
                    "rank {} does not share the memory of rank {}",
                    ranks[*place],
                    ranks[hosts.places()[hosts.seat()]]
                );
                Err(Refusal(ErrorKind::Io(what)))
            }
        }
    });
    unanimous(ranks, seen, &format!("proved{of}"), gather)
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
