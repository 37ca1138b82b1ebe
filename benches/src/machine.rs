//! The machine, the state of the source, and the command that a result comes from.

use rankpact_shm::cpus;
use serde::Serialize;
use std::env;
use std::fmt;
use std::fs;
use std::process::Command;

/// What must be known to measure the same again.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of the CPUs.
    pub cpu: String,
    /// How many this process may use.
    pub cpus: usize,
    /// Kernel and its release.
    pub kernel: String,
    /// Commit of the source; `-dirty` if files differ from it.
    pub commit: String,
    /// Day, in UTC.
    pub date: String,
    /// Program and arguments.
    pub command: String,
}

impl Machine {
    /// This one, now. What cannot be found out is `unknown`.
    #[must_use]
    pub fn here() -> Self {
        let source = env!("CARGO_MANIFEST_DIR");
        let commit = say("git", &["-C", source, "rev-parse", "--short=12", "HEAD"]);
        let clean = say("git", &["-C", source, "status", "--porcelain", "-uno"])
            .is_none_or(|changes| changes.is_empty());
        let model = fs::read_to_string("/proc/cpuinfo").ok().and_then(|info| {
            let line = info.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let program = env::args().next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default();
        // Cargo adds a hash to the name of the program.
        let name = name.rsplit_once('-').map_or(name, |(name, _)| name);
        let words = env::args().skip(1).filter(|word| word != "--bench");
        let words: Vec<_> = words.collect();
        let unknown = || "unknown".to_owned();
        Self {
            cpu: model.unwrap_or_else(unknown),
            cpus: cpus::available(),
            kernel: say("uname", &["-sr"]).unwrap_or_else(unknown),
            commit: commit.map_or_else(unknown, |commit| {
                format!("{commit}{}", if clean { "" } else { "-dirty" })
            }),
            date: say("date", &["-u", "+%F"]).unwrap_or_else(unknown),
            command: format!(
                "cargo bench -p rankpact-benches --bench {name} -- {}",
                words.join(" ")
            )
            .trim_end_matches([' ', '-'])
            .to_owned(),
        }
    }

    /// A name for a folder: day, model and number of CPUs.
    #[must_use]
    pub fn slug(&self) -> String {
        let model = self.cpu.replace("(R)", "").replace("(TM)", "");
        let words: Vec<_> = model
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .map(str::to_ascii_lowercase)
            .collect();
        format!("{}-{}-{}cpus", self.date, words.join("-"), self.cpus)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cpu,
            cpus,
            kernel,
            commit,
            date,
            command,
        } = self;
        write!(
            f,
            "{cpu}, {cpus} CPUs, {kernel}, commit {commit}, {date}\n{command}"
        )
    }
}

/// What a program says, if it ends well.
fn say(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned())
}
