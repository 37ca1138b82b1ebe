//! What others offer for the same work, as programs in `peers/`.

use crate::{Case, Failure, Team};
use rankpact_shm::cpus;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Somebody else's reduction, ready to be started.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name in tables.
    pub name: &'static str,
    kind: Kind,
    program: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gloo,
    Torch,
    OpenMpi,
    /// As an expert sets it up for one host.
    OpenMpiTuned,
    Mpich,
}

const OPEN_MPI: (&str, &str) = ("mpicc.openmpi", "libopenmpi-dev openmpi-bin");

/// Name, kind, source and what makes a program of it: a compiler and its last words, and the packages that have them.
const PEERS: [(&str, Kind, &str, &[&str], &str); 5] = [
    (
        "gloo",
        Kind::Gloo,
        "gloo.cc",
        &["c++", "-lgloo", "-lpthread"],
        "g++ libgloo-dev",
    ),
    (
        "torch gloo",
        Kind::Torch,
        "torch_gloo.py",
        &[],
        "torch, with pip",
    ),
    (
        "Open MPI",
        Kind::OpenMpi,
        "mpi.c",
        &[OPEN_MPI.0],
        OPEN_MPI.1,
    ),
    (
        "Open MPI, tuned",
        Kind::OpenMpiTuned,
        "mpi.c",
        &[OPEN_MPI.0],
        OPEN_MPI.1,
    ),
    (
        "MPICH",
        Kind::Mpich,
        "mpi.c",
        &["mpicc.mpich"],
        "libmpich-dev mpich",
    ),
];

impl Peer {
    /// gloo in C++.
    pub const GLOO: &str = PEERS[0].0;
    /// Open MPI with its defaults, and tuned.
    pub const OPEN_MPI: [&str; 2] = [PEERS[2].0, PEERS[3].0];

    /// Those that this machine has; `missing` hears of each that it lacks, and what to install.
    ///
    /// # Errors
    ///
    /// There is no room for the programs.
    pub fn all(mut missing: impl FnMut(&str)) -> Result<Vec<Self>, Failure> {
        let mut peers = Vec::new();
        for (name, kind, source, words, packages) in PEERS {
            match made(source, words)? {
                Some(program) => peers.push(Self {
                    name,
                    kind,
                    program,
                }),
                None => missing(&format!("{name} is left out: it needs {packages}")),
            }
        }
        Ok(peers)
    }

    /// The ranks, which will do `cases`.
    ///
    /// # Errors
    ///
    /// There is no room for a folder.
    pub fn team(&self, ranks: usize, cases: &[Case]) -> Result<Team, Failure> {
        let cases = cases.iter().map(Case::to_string);
        let crowded = ranks > cpus::available();
        let mut launcher = match self.kind {
            Kind::Gloo | Kind::Torch => {
                let mut team = Team::each(self.name, ranks, |_| self.rank())?;
                let folder = team.folder().to_owned();
                for (rank, command) in team.commands().iter_mut().enumerate() {
                    command.arg(&folder).arg(rank.to_string());
                    command.arg(ranks.to_string()).args(cases.clone());
                }
                return Ok(team);
            }
            Kind::OpenMpi | Kind::OpenMpiTuned => {
                let mut launcher = Command::new("mpirun.openmpi");
                // Ranks that have a CPU each pin themselves, as ours do.
                launcher.args([
                    "--allow-run-as-root",
                    "--oversubscribe",
                    "--bind-to",
                    "none",
                ]);
                if self.kind == Kind::OpenMpiTuned {
                    launcher.args(tuning(crowded));
                }
                launcher
            }
            Kind::Mpich => Command::new("mpirun.mpich"),
        };
        launcher.args(["-np", &ranks.to_string()]);
        launcher.arg(&self.program).args(cases);
        Team::launched(self.name, ranks, launcher)
    }

    fn rank(&self) -> Command {
        if self.kind == Kind::Torch {
            let mut command = Command::new("python3");
            command.arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        }
    }
}

/// Messages through shared memory without a further layer. With a CPU for each rank, recursive doubling: every step is one
/// exchange. With fewer, one rank gathers and releases, which takes the fewest turns of the CPUs, and who waits yields.
fn tuning(crowded: bool) -> impl Iterator<Item = &'static str> {
    let algorithm = if crowded { "1" } else { "3" };
    let idle = if crowded { "1" } else { "0" };
    [
        ["pml", "ob1"],
        ["btl", "self,vader"],
        ["mpi_yield_when_idle", idle],
        ["coll_tuned_use_dynamic_rules", "1"],
        ["coll_tuned_allreduce_algorithm", algorithm],
    ]
    .into_iter()
    .flat_map(|[name, value]| ["--mca", name, value])
}

/// The program of `source`, made anew where the source has changed. `None` where what makes it is missing.
fn made(source: &str, words: &[&str]) -> Result<Option<PathBuf>, Failure> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let file = sources.join(source);
    let works = |command: &mut Command| {
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    };
    let Some((compiler, libraries)) = words.split_first() else {
        return Ok(works(Command::new("python3").args(["-c", "import torch"])).then_some(file));
    };
    // Beside this program, in whichever target folder that is.
    let own = env::current_exe()?;
    let folder = own
        .parent()
        .ok_or("a program lies in a folder")?
        .join("peers");
    fs::create_dir_all(&folder)?;
    let name = source.replace('.', "-");
    let program = folder.join(format!("{name}-{compiler}"));
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let newest = changed(&file).max(changed(&sources.join("case.h")));
    if changed(&program) > newest {
        return Ok(Some(program));
    }
    let made = works(
        Command::new(compiler)
            .args(["-O2", "-o"])
            .args([&program, &file])
            .args(libraries),
    );
    Ok(made.then_some(program))
}
