//! The world: all ranks of a job, and how one of them joins.

use crate::error::{Error, ErrorKind};
use crate::group::Group;
use crate::job::{self, Job, Place, join_error};
use crate::options::{Crowd, Options, Spot};
use crate::pair::Meeting;
use crate::relay::Relay;
use crate::rendezvous::{Link, LinkError, Server};
use crate::token::Token;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::mem::take;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Where the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// A folder that only this user can write and that belongs to this job alone: rank 0 leaves port and token in it.
    Folder(PathBuf),
    /// `host:port` on which rank 0 listens; all ranks know the token.
    Address {
        /// The address.
        address: String,
        /// What a rank must know to be let in.
        token: String,
    },
}

/// How one rank joins a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
    pub size: usize,
    /// Where they meet.
    pub rendezvous: Rendezvous,
    /// The random number of the job, 32 hexadecimal digits, where a launcher has chosen one.
    pub job: Option<String>,
    /// Settings.
    pub options: Options,
}

/// All ranks of a job, as one of them sees it.
///
/// Groups outlive it: the connection to the rendezvous closes with the last of them.
#[derive(Debug)]
pub struct World {
    job: Arc<Job>,
}

const RENDEZVOUS_FILE: &str = "rendezvous";
/// Between two looks at a file that is not there yet.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long one attempt to reach the address of a file may take before the file is read again.
const ATTEMPT: Duration = Duration::from_millis(500);
/// How long a refusal may be that of an earlier job, whose file is about to be replaced.
const INSIST: Duration = Duration::from_secs(2);

/// How long rank 0 goes on serving after a join that has failed.
const LATECOMERS: Duration = Duration::from_secs(1);

/// What a rank tells all others when it joins.
#[derive(Serialize, Deserialize)]
struct Hello {
    fields: Vec<(String, String)>,
    nonce: [u64; 2],
    spot: Spot,
}

impl Join {
    /// A join by explicit arguments, with default settings.
    #[must_use]
    pub fn new(rank: usize, size: usize, rendezvous: Rendezvous) -> Self {
        Self {
            rank,
            size,
            rendezvous,
            job: None,
            options: Options::default(),
        }
    }

    /// The join that `rankpact run` describes in `RANKPACT_RANK`, `RANKPACT_WORLD_SIZE`, `RANKPACT_RENDEZVOUS`
    /// (`file:///folder` or `tcp://host:port`), `RANKPACT_TOKEN` and `RANKPACT_JOB`.
    ///
    /// Settings come from `RANKPACT_TIMEOUT` (seconds), `RANKPACT_PATH`, `RANKPACT_WAIT`, `RANKPACT_SPIN_US` and
    /// `RANKPACT_YIELD_US` (microseconds) and `RANKPACT_SHM_DIR`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Usage`] names the variable that is missing or wrong.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// As [`Join::from_env`], from any source of variables.
    ///
    /// # Errors
    ///
    /// As [`Join::from_env`].
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let usage = |what: String| join_error(0, ErrorKind::Usage(what));
        let need = |name: &str| {
            var(name).ok_or_else(|| {
                usage(format!(
                    "{name} is not set: start this program with `rankpact run`"
                ))
            })
        };
        let number = |name: &str| {
            let text = need(name)?;
            text.parse::<usize>()
                .map_err(|_| usage(format!("{name} is `{text}`, not a number")))
        };
        let place = need("RANKPACT_RENDEZVOUS")?;
        let rendezvous = match (place.strip_prefix("file://"), place.strip_prefix("tcp://")) {
            (Some(folder), _) if folder.starts_with('/') => Rendezvous::Folder(folder.into()),
            (_, Some(address)) => Rendezvous::Address {
                address: address.to_owned(),
                token: need("RANKPACT_TOKEN")?,
            },
            _ => {
                return Err(usage(format!(
                    "RANKPACT_RENDEZVOUS is `{place}`: file:///folder or tcp://host:port is needed"
                )));
            }
        };
        let mut options = Options::default();
        if let Some(text) = var("RANKPACT_TIMEOUT") {
            let seconds = text
                .parse()
                .ok()
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            options.timeout = seconds
                .ok_or_else(|| usage(format!("RANKPACT_TIMEOUT is `{text}`, not seconds")))?;
        }
        if let Some(text) = var("RANKPACT_PATH") {
            options.path = text
                .parse()
                .map_err(|error| usage(format!("RANKPACT_PATH: {error}")))?;
        }
        if let Some(text) = var("RANKPACT_WAIT") {
            options.waiting = text
                .parse()
                .map_err(|error| usage(format!("RANKPACT_WAIT: {error}")))?;
        }
        let budget = |name: &str| {
            let micros = |text: String| {
                text.parse()
                    .map(Duration::from_micros)
                    .map_err(|_| usage(format!("{name} is `{text}`, not a number of microseconds")))
            };
            var(name).map(micros).transpose()
        };
        options.spin = budget("RANKPACT_SPIN_US")?;
        options.yields = budget("RANKPACT_YIELD_US")?;
        if let Some(folder) = var("RANKPACT_SHM_DIR") {
            options.folder = folder.into();
        }
        Ok(Self {
            rank: number("RANKPACT_RANK")?,
            size: number("RANKPACT_WORLD_SIZE")?,
            rendezvous,
            job: var("RANKPACT_JOB"),
            options,
        })
    }
}

impl World {
    /// Joins, and waits until all ranks have joined, at most for the timeout of the options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] names all ranks that are missing, [`ErrorKind::Config`] a setting that differs,
    /// [`ErrorKind::PeerDied`] a rank that died meanwhile.
    pub fn connect(join: Join) -> Result<Self, Error> {
        let rank = join.rank;
        Self::join(join).map_err(|kind| join_error(rank, kind))
    }

    fn join(join: Join) -> Result<Self, ErrorKind> {
        let Join {
            rank,
            size,
            rendezvous,
            job,
            options,
        } = join;
        if rank >= size {
            return Err(ErrorKind::Usage(format!(
                "rank {rank} is not among {size} ranks"
            )));
        }
        let deadline = job::deadline(Instant::now(), options.timeout);
        let own_nonce = match &job {
            Some(digits) => parse_nonce(digits)?,
            None => [random()?, random()?],
        };
        let (link, server, ip, token) = match &rendezvous {
            Rendezvous::Folder(folder) => meet_in_folder(folder, rank, size, deadline)?,
            Rendezvous::Address { address, token } => {
                meet_at(address, token, rank, size, deadline)?
            }
        };
        let everybody: Vec<usize> = (0..size).collect();
        let hello = Hello {
            fields: options.agreement(size),
            nonce: own_nonce,
            spot: Spot::here(),
        };
        let started = Instant::now();
        let all = link
            .gather("world", &everybody, &job::encode(&hello), deadline)
            .inspect_err(|_| {
                if server.is_some() {
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
        if let (0, Rendezvous::Folder(folder)) = (rank, &rendezvous) {
            // Everybody is in; a name that nobody needs any more is one less to leave behind.
            let _ = fs::remove_file(folder.join(RENDEZVOUS_FILE));
        }
        let mut all = job::decode::<Hello>(&everybody, &all)?;
        let fields: Vec<_> = all
            .iter_mut()
            .map(|hello| take(&mut hello.fields))
            .collect();
        job::compare(&everybody, &fields)?;
        let nonce = all[0].nonce;
        let spots: Vec<_> = all.into_iter().map(|hello| hello.spot).collect();
        let crowd = Crowd::of(&spots[rank], &spots);
        let job = Job::new(Place {
            rank,
            size,
            options,
            crowd,
            nonce,
            ip,
            token,
            link,
            _server: Mutex::new(server),
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
        let meeting = Meeting::Job(Arc::clone(&self.job));
        let timeout = self.job.place.options.timeout;
        Ok(Relay::new(
            name, rank, upstream, downstream, meeting, timeout,
        ))
    }

    /// Ends the job on every rank: all its groups fail with this rank and `reason`, at once. Does not block.
    pub fn abort(&self, reason: &str) {
        self.job.abort(reason);
    }
}

fn io(what: &str, error: impl std::fmt::Display) -> ErrorKind {
    ErrorKind::Io(format!("{what}: {error}"))
}

fn random() -> Result<u64, ErrorKind> {
    getrandom::u64().map_err(|error| io("random numbers", error))
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

type Met = (Link, Option<Server>, IpAddr, Token);

fn meet_in_folder(
    folder: &Path,
    rank: usize,
    size: usize,
    deadline: Instant,
) -> Result<Met, ErrorKind> {
    let started = Instant::now();
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let file = folder.join(RENDEZVOUS_FILE);
    if rank == 0 {
        let token = Token::random().map_err(|error| io("random numbers", error))?;
        let (server, address) = serve(SocketAddr::new(ip, 0), &token, size)?;
        publish(&file, &format!("{address} {}\n", token.to_hex()))?;
        let link = Link::connect(address, &token, rank, size, deadline)
            .map_err(|error| unreached(error, rank, started))?;
        return Ok((link, Some(server), ip, token));
    }
    let mut refusal = None;
    loop {
        if let Some((address, token)) = read(&file)? {
            match Link::connect(
                address,
                &token,
                rank,
                size,
                deadline.min(Instant::now() + ATTEMPT),
            ) {
                Ok(link) => return Ok((link, None, ip, token)),
                // The file of an earlier job in this folder, perhaps, whose port is closed or somebody else's now.
                Err(LinkError::Unreachable { .. }) => {}
                Err(error @ LinkError::Refused { .. }) => {
                    let (first, _) = refusal.get_or_insert((Instant::now(), error));
                    if first.elapsed() >= INSIST {
                        break;
                    }
                }
                Err(error) => return Err(unreached(error, rank, started)),
            }
        }
        if Instant::now() >= deadline {
            break;
        }
        thread::sleep(LOOK_AGAIN);
    }
    let missing = LinkError::Missing { ranks: vec![0] };
    Err(unreached(
        refusal.map_or(missing, |(_, refusal)| refusal),
        rank,
        started,
    ))
}

fn meet_at(
    address: &str,
    token: &str,
    rank: usize,
    size: usize,
    deadline: Instant,
) -> Result<Met, ErrorKind> {
    let started = Instant::now();
    let token = Token::from_text(token);
    let resolved = address
        .to_socket_addrs()
        .map_err(|error| io(&format!("rendezvous {address}"), error))?
        .next()
        .ok_or_else(|| ErrorKind::Io(format!("rendezvous {address}: no such host")))?;
    let server = if rank == 0 {
        Some(serve(resolved, &token, size)?.0)
    } else {
        None
    };
    let link = Link::connect(resolved, &token, rank, size, deadline)
        .map_err(|error| unreached(error, rank, started))?;
    Ok((link, server, route_to(resolved)?, token))
}

fn serve(
    address: SocketAddr,
    token: &Token,
    size: usize,
) -> Result<(Server, SocketAddr), ErrorKind> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        let bound = listener.local_addr()?;
        Ok((Server::start(listener, token.clone(), size)?, bound))
    };
    listen().map_err(|error: std::io::Error| {
        io(&format!("cannot serve the rendezvous on {address}"), error)
    })
}

/// The address of the interface that leads to the rendezvous, which is the one peers can reach too.
fn route_to(address: SocketAddr) -> Result<IpAddr, ErrorKind> {
    let any: SocketAddr = if address.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let route = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        Ok(socket.local_addr()?.ip())
    };
    route().map_err(|error: std::io::Error| io(&format!("no interface leads to {address}"), error))
}

fn unreached(error: LinkError, rank: usize, started: Instant) -> ErrorKind {
    match error {
        // Nobody serves there: that is rank 0's task.
        LinkError::Unreachable { .. } => job::link_error(
            LinkError::Missing { ranks: vec![0] },
            rank,
            started.elapsed(),
        ),
        other => job::link_error(other, rank, started.elapsed()),
    }
}

/// Puts `text` under `file` in one step, readable by this user only.
fn publish(file: &Path, text: &str) -> Result<(), ErrorKind> {
    let new = file.with_extension(format!("{:016x}", random()?));
    let write = || {
        let mut open = fs::OpenOptions::new();
        open.write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?
            .write_all(text.as_bytes())?;
        fs::rename(&new, file)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&new);
        io(&format!("cannot write {}", file.display()), error)
    })
}

/// Address and token in `file`, once it is there.
fn read(file: &Path) -> Result<Option<(SocketAddr, Token)>, ErrorKind> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(&format!("cannot read {}", file.display()), error)),
    };
    let owner = fs::metadata(file).map_or(0, |found| found.uid());
    if owner != nix::unistd::geteuid().as_raw() {
        return Err(ErrorKind::Foreign {
            path: file.display().to_string(),
            found: format!("owned by uid {owner}"),
        });
    }
    let parsed = text
        .trim()
        .split_once(' ')
        .and_then(|(address, token)| Some((address.parse().ok()?, token)));
    let (address, token) = parsed.ok_or_else(|| ErrorKind::Foreign {
        path: file.display().to_string(),
        found: "not the address of a rendezvous".to_owned(),
    })?;
    Ok(Some((address, Token::from_text(token))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Waiting;

    fn join(settings: &[(&str, &str)]) -> Result<Join, Error> {
        let needed = [
            ("RANKPACT_RANK", "1"),
            ("RANKPACT_WORLD_SIZE", "2"),
            ("RANKPACT_RENDEZVOUS", "file:///there"),
        ];
        let all: Vec<_> = needed.iter().chain(settings).collect();
        Join::from_vars(|wanted| {
            let found = all.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_sets_how_a_rank_waits() {
        let options = join(&[]).expect("nothing else is needed").options;
        assert_eq!(options, Options::default());
        let options = join(&[
            ("RANKPACT_WAIT", "park"),
            ("RANKPACT_SPIN_US", "15"),
            ("RANKPACT_YIELD_US", "0"),
        ])
        .expect("all are right")
        .options;
        assert_eq!(options.waiting, Waiting::Park);
        assert_eq!(options.spin, Some(Duration::from_micros(15)));
        assert_eq!(options.yields, Some(Duration::ZERO));
    }

    #[test]
    fn a_setting_that_makes_no_sense_is_named_with_its_value() {
        for (name, value) in [
            ("RANKPACT_WAIT", "dozing"),
            ("RANKPACT_SPIN_US", "20us"),
            ("RANKPACT_SPIN_US", ""),
            ("RANKPACT_YIELD_US", "-1"),
            ("RANKPACT_YIELD_US", "1.5"),
            ("RANKPACT_TIMEOUT", "soon"),
            ("RANKPACT_PATH", "pigeon"),
        ] {
            let error = join(&[(name, value)]).expect_err(name);
            assert!(matches!(*error.kind, ErrorKind::Usage(_)), "{error}");
            let line = error.to_string();
            assert!(
                line.contains(name) && line.contains(&format!("`{value}`")),
                "{line}"
            );
        }
    }
}
