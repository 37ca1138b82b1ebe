//! How one rank joins a world: which it is, where the ranks meet, and its settings.

mod launcher;
mod meeting;
mod note;

use crate::error::{Error, ErrorKind};
use crate::job::join_error;
use crate::options::Options;
use launcher::{Launched, Vars};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use meeting::{Meeting, Reach};

/// Where the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// A folder that only this user can write and that belongs to this job alone: rank 0 leaves port and token in it.
    Folder(PathBuf),
    /// A text that all ranks of the job know and no other job of this user on this host has: they meet in a folder of the
    /// user, below `XDG_RUNTIME_DIR` or `/tmp/rankpact-UID`, which is gone once all have joined.
    Key(String),
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
    /// The interface, or the address of this host, on which the others reach this rank, where the way to the rendezvous is
    /// not the right one. Not for ranks that meet in a folder: those use loopback.
    pub interface: Option<String>,
    /// Settings.
    pub options: Options,
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
            interface: None,
            options: Options::default(),
        }
    }

    /// The join that the launcher of this process describes.
    ///
    /// Which rank this is comes from the first of `rankpact run` (`RANKPACT_RANK`, `RANKPACT_WORLD_SIZE`), torchrun
    /// (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), Open MPI, PMI and Slurm that has set its variables.
    ///
    /// The ranks meet where `RANKPACT_RENDEZVOUS` says: `file:///folder`, or `tcp://host:port` with `RANKPACT_TOKEN`.
    /// Without it, ranks that are all on this host meet in a folder of the user, under a name made of what only this job
    /// has. Ranks of several hosts meet at `MASTER_ADDR` and `RANKPACT_PORT`.
    ///
    /// Settings come from `RANKPACT_TIMEOUT` (seconds), `RANKPACT_PATH`, `RANKPACT_ENGINE`, `RANKPACT_WAIT`,
    /// `RANKPACT_SPIN_US` and `RANKPACT_YIELD_US` (microseconds), `RANKPACT_SHM_DIR` and `RANKPACT_INTERFACE`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Usage`] names the variables that are missing or wrong.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// As [`Join::from_env`], from any source of variables.
    ///
    /// # Errors
    ///
    /// As [`Join::from_env`].
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let usage = |what| join_error(0, ErrorKind::Usage(what));
        let launched = Launched::find(&var).map_err(usage)?;
        let usage = |what| join_error(launched.rank, ErrorKind::Usage(what));
        Ok(Self {
            rank: launched.rank,
            size: launched.size,
            rendezvous: place(&launched, &var).map_err(usage)?,
            job: given(&var, "RANKPACT_JOB"),
            interface: given(&var, "RANKPACT_INTERFACE"),
            options: options(&var).map_err(usage)?,
        })
    }
}

fn given(var: &Vars<'_>, name: &str) -> Option<String> {
    var(name).filter(|value| !value.is_empty())
}

fn place(launched: &Launched, var: &Vars<'_>) -> Result<Rendezvous, String> {
    if let Some(place) = given(var, "RANKPACT_RENDEZVOUS") {
        return match (place.strip_prefix("file://"), place.strip_prefix("tcp://")) {
            (Some(folder), _) if folder.starts_with('/') => Ok(Rendezvous::Folder(folder.into())),
            (_, Some(address)) => Ok(Rendezvous::Address {
                address: address.to_owned(),
                token: token(launched, var)?,
            }),
            _ => Err(format!(
                "RANKPACT_RENDEZVOUS is `{place}`: file:///folder or tcp://host:port is needed"
            )),
        };
    }
    let master = given(var, "MASTER_ADDR");
    if launched.one_host || master.as_deref().is_some_and(is_this_host) {
        return Ok(Rendezvous::Key(launched.here.clone()));
    }
    let by = launched.by;
    let host = master.or_else(|| launched.first_host.clone()).ok_or_else(|| {
        format!("{by} does not say where rank 0 is: set MASTER_ADDR to the host of rank 0, on all ranks")
    })?;
    let port = given(var, "RANKPACT_PORT").ok_or_else(|| {
        format!(
            "{by} does not say that all ranks are on one host: set RANKPACT_PORT to a port that is free on {host}, or, if \
             they are, RANKPACT_RENDEZVOUS=file:///folder or LOCAL_WORLD_SIZE as torchrun does"
        )
    })?;
    let port: u16 = port
        .parse()
        .map_err(|_| format!("RANKPACT_PORT is `{port}`, not a port"))?;
    let address = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let token = token(launched, var)?;
    Ok(Rendezvous::Address { address, token })
}

/// Whether that can only be this host, on every rank.
fn is_this_host(name: &str) -> bool {
    name == "localhost"
        || name
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
}

fn token(launched: &Launched, var: &Vars<'_>) -> Result<String, String> {
    if let Some(token) = given(var, "RANKPACT_TOKEN") {
        return Ok(token);
    }
    if launched.job.is_empty() {
        return Err("RANKPACT_TOKEN is not set: give all ranks the same secret".to_owned());
    }
    if launched.rank == 0 {
        tracing::warn!(
            "RANKPACT_TOKEN is not set: a token made of the job's variables keeps strays out, but no attacker"
        );
    }
    Ok(format!("{} {}", launched.by, launched.job))
}

fn options(var: &Vars<'_>) -> Result<Options, String> {
    let mut options = Options::default();
    if let Some(text) = var("RANKPACT_TIMEOUT") {
        let seconds = text
            .parse()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        options.timeout =
            seconds.ok_or_else(|| format!("RANKPACT_TIMEOUT is `{text}`, not seconds"))?;
    }
    if let Some(text) = var("RANKPACT_PATH") {
        options.path = text
            .parse()
            .map_err(|error| format!("RANKPACT_PATH: {error}"))?;
    }
    if let Some(text) = var("RANKPACT_ENGINE") {
        options.engine = text
            .parse()
            .map_err(|error| format!("RANKPACT_ENGINE: {error}"))?;
    }
    if let Some(text) = var("RANKPACT_WAIT") {
        options.waiting = text
            .parse()
            .map_err(|error| format!("RANKPACT_WAIT: {error}"))?;
    }
    let budget = |name: &str| {
        let micros = |text: String| {
            text.parse()
                .map(Duration::from_micros)
                .map_err(|_| format!("{name} is `{text}`, not a number of microseconds"))
        };
        var(name).map(micros).transpose()
    };
    options.spin = budget("RANKPACT_SPIN_US")?;
    options.yields = budget("RANKPACT_YIELD_US")?;
    if let Some(folder) = var("RANKPACT_SHM_DIR") {
        options.folder = folder.into();
    }
    Ok(options)
}

#[cfg(test)]
mod tests;
