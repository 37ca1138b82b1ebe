//! What others offer for the same work, and what it takes at least, as programs in `peers/`.

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
    source: &'static Source,
    program: PathBuf,
}

#[derive(Debug)]
struct Source {
    name: &'static str,
    file: &'static str,
    /// What makes a program of the file, and what comes after its name.
    compiler: &'static [&'static str],
    /// The packages that have all of it.
    packages: &'static str,
    launch: Launch,
}

#[derive(Clone, Copy, Debug)]
enum Launch {
    /// Each rank is told the folder where they meet, its number, and how many there are. The words come first.
    Each(&'static [&'static str]),
    Mpirun(&'static str),
    /// Open MPI with its defaults, or as an expert sets it up for one host.
    OpenMpi {
        tuned: bool,
    },
}

const fn bare(name: &'static str, file: &'static str) -> Source {
    Source {
        name,
        file,
        compiler: &["cc"],
        packages: "gcc",
        launch: Launch::Each(&[]),
    }
}

const fn open_mpi(name: &'static str, tuned: bool) -> Source {
    Source {
        name,
        file: "mpi.c",
        compiler: &["mpicc.openmpi"],
        packages: "libopenmpi-dev openmpi-bin",
        launch: Launch::OpenMpi { tuned },
    }
}

static SOURCES: [Source; 7] = [
    bare(Peer::BARE, "bare.c"),
    bare(Peer::BARE_TCP, "bare_tcp.c"),
    Source {
        name: Peer::GLOO,
        file: "gloo.cc",
        compiler: &["c++", "-lgloo", "-lpthread"],
        packages: "g++ libgloo-dev",
        launch: Launch::Each(&[]),
    },
    Source {
        name: "torch gloo",
        file: "torch_gloo.py",
        compiler: &[],
        packages: "torch, with pip",
        launch: Launch::Each(&["python3"]),
    },
    open_mpi(Peer::OPEN_MPI[0], false),
    open_mpi(Peer::OPEN_MPI[1], true),
    Source {
        name: "MPICH",
        file: "mpi.c",
        compiler: &["mpicc.mpich"],
        packages: "libmpich-dev mpich",
        launch: Launch::Mpirun("mpirun.mpich"),
    },
];

impl Peer {
    /// No library: the least that a row of small integers takes on this machine.
    pub const BARE: &str = "bare lines";
    /// No library: the least that a vector takes over loopback TCP.
    pub const BARE_TCP: &str = "bare sockets";
    /// gloo in C++.
    pub const GLOO: &str = "gloo";
    /// Open MPI with its defaults, and tuned.
    pub const OPEN_MPI: [&str; 2] = ["Open MPI", "Open MPI, tuned"];

    /// Those that this machine has; `missing` hears of each that it lacks, and what to install.
    ///
    /// # Errors
    ///
    /// There is no room for the programs.
    pub fn all(mut missing: impl FnMut(&str)) -> Result<Vec<Self>, Failure> {
        let mut peers = Vec::new();
        for source in &SOURCES {
            let &Source { name, packages, .. } = source;
            match source.make()? {
                Some(program) => peers.push(Self {
                    name,
                    source,
                    program,
                }),
                None => missing(&format!("{name} is left out: install {packages}")),
            }
        }
        Ok(peers)
    }

    /// Ranks that do `cases`.
    ///
    /// # Errors
    ///
    /// There is no room for a folder.
    pub fn team(&self, ranks: usize, cases: &[Case]) -> Result<Team, Failure> {
        let cases = cases.iter().map(Case::to_string);
        let mut launcher = match self.source.launch {
            Launch::Each(words) => {
                let words = words.iter().map(Path::new).chain([&*self.program]);
                let words: Vec<_> = words.collect();
                let mut team = Team::each(self.name, ranks, |_| Command::new(words[0]))?;
                let folder = team.folder().to_owned();
                for (rank, command) in team.commands().iter_mut().enumerate() {
                    command.args(&words[1..]).arg(&folder);
                    command.args([rank, ranks].map(|number| number.to_string()));
                    command.args(cases.clone());
                }
                return Ok(team);
            }
            Launch::Mpirun(program) => Command::new(program),
            Launch::OpenMpi { tuned } => {
                let mut launcher = Command::new("mpirun.openmpi");
                launcher.args(["--allow-run-as-root", "--oversubscribe"]);
                // Ranks that can have a CPU each pin themselves, as ours do.
                launcher.args(["--bind-to", "none"]);
                for [name, value] in tuning(ranks).into_iter().filter(|_| tuned) {
                    launcher.args(["--mca", name, value]);
                }
                launcher
            }
        };
        launcher.args(["-np", &ranks.to_string()]);
        launcher.arg(&self.program).args(cases);
        Team::launched(self.name, ranks, launcher)
    }
}

/// Messages through shared memory without a further layer. With a CPU for each rank, recursive doubling: each step is one
/// exchange. With fewer, one rank gathers and releases, which takes the fewest turns of the CPUs, and who waits yields. The
/// component `sm` takes 20 times as long.
fn tuning(ranks: usize) -> [[&'static str; 2]; 5] {
    let crowded = ranks > cpus::available();
    [
        ["pml", "ob1"],
        ["btl", "self,vader"],
        ["mpi_yield_when_idle", if crowded { "1" } else { "0" }],
        ["coll_tuned_use_dynamic_rules", "1"],
        [
            "coll_tuned_allreduce_algorithm",
            if crowded { "1" } else { "3" },
        ],
    ]
}

impl Source {
    /// The program, made anew where a source has changed. `None` where what makes it is missing.
    fn make(&self) -> Result<Option<PathBuf>, Failure> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let source = folder.join(self.file);
        let works = |command: &mut Command| {
            let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
            quiet.status().is_ok_and(|status| status.success())
        };
        let Some((compiler, libraries)) = self.compiler.split_first() else {
            let imports = works(Command::new("python3").args(["-c", "import torch"]));
            return Ok(imports.then_some(source));
        };
        // Beside this program, in whichever target folder that is.
        let own = env::current_exe()?;
        let made = own
            .parent()
            .ok_or("a program lies in a folder")?
            .join("peers");
        fs::create_dir_all(&made)?;
        let program = made.join(format!("{}-{compiler}", self.file.replace('.', "-")));
        let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
        if changed(&program) > changed(&source).max(changed(&folder.join("case.h"))) {
            return Ok(Some(program));
        }
        let mut compile = Command::new(compiler);
        compile
            .args(["-O2", "-o"])
            .args([&program, &source])
            .args(libraries);
        Ok(works(&mut compile).then_some(program))
    }
}
