//! The processes of one contestant: started together, listened to, and ended together.

use crate::{Failure, Report};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What a rank that is this very program is to do.
const SETTINGS: &str = "RANKPACT_BENCH";

/// How long a process may take to end once it has been asked to, or has said its last.
const GRACE: Duration = Duration::from_secs(3);

/// The ranks of one contestant.
#[derive(Debug)]
pub struct Team {
    name: String,
    ranks: usize,
    commands: Vec<Command>,
    /// Where ranks of ours meet, and where those of others may; theirs alone.
    folder: TempDir,
}

impl Team {
    /// `ranks` processes, and what starts each.
    ///
    /// # Errors
    ///
    /// There is no room for a folder.
    pub fn each(
        name: &str,
        ranks: usize,
        command: impl Fn(usize) -> Command,
    ) -> Result<Self, Failure> {
        Ok(Self {
            name: name.to_owned(),
            ranks,
            commands: (0..ranks).map(command).collect(),
            folder: tempfile::tempdir()?,
        })
    }

    /// `ranks` processes that one program starts, `mpirun` say.
    ///
    /// # Errors
    ///
    /// There is no room for a folder.
    pub fn launched(name: &str, ranks: usize, launcher: Command) -> Result<Self, Failure> {
        let mut team = Self::each(name, 0, |_| Command::new(""))?;
        team.ranks = ranks;
        team.commands.push(launcher);
        Ok(team)
    }

    /// `ranks` processes of this very program, which find `settings` by [`settings`], and each other by the variables of
    /// `Join::from_env`. `words` come before the program of a rank.
    ///
    /// # Errors
    ///
    /// There is no room for a folder.
    pub fn ours<S: Serialize>(
        name: &str,
        ranks: usize,
        settings: &S,
        words: impl Fn(usize) -> Vec<String>,
    ) -> Result<Self, Failure> {
        let program = env::current_exe()?;
        let mut team = Self::each(name, ranks, |rank| match words(rank).split_first() {
            Some((first, others)) => {
                let mut command = Command::new(first);
                command.args(others).arg(&program);
                command
            }
            None => Command::new(&program),
        })?;
        let settings = serde_json::to_string(settings)?;
        let job = format!("{:016x}{:016x}", getrandom::u64()?, getrandom::u64()?);
        let place = format!("file://{}", team.folder.path().display());
        for (rank, command) in team.commands.iter_mut().enumerate() {
            command
                .env(SETTINGS, &settings)
                .env("RANKPACT_RANK", rank.to_string())
                .env("RANKPACT_WORLD_SIZE", ranks.to_string())
                .env("RANKPACT_RENDEZVOUS", &place)
                .env("RANKPACT_JOB", &job);
        }
        Ok(team)
    }

    /// A folder of the team's own, gone when it has ended.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The processes before they are started: to give them arguments that only the team knows.
    pub fn commands(&mut self) -> &mut [Command] {
        &mut self.commands
    }

    /// Runs the ranks to their end, and returns what they have reported. They are killed after `limit`, and once one of
    /// them has failed.
    ///
    /// Call it from the main thread: ranks that are this program die with the thread that starts them.
    ///
    /// # Errors
    ///
    /// One line that names the contestant. What a rank says of it is on standard error.
    pub fn run(mut self, limit: Duration) -> Result<Vec<Report>, Failure> {
        let deadline = Instant::now() + limit;
        let (say, said) = mpsc::channel();
        let mut processes = Processes(Vec::new());
        for (number, command) in self.commands.iter_mut().enumerate() {
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| format!("{}: cannot be started: {error}", self.name))?;
            listen(number, &mut child, say.clone());
            processes.0.push(child);
        }
        drop(say);
        let reports = self.hear(&said, &mut processes, deadline)?;
        let ranks = self.ranks;
        match reports.iter().find(|report| report.rank >= ranks) {
            Some(report) => {
                Err(format!("{}: rank {} is none of {ranks}", self.name, report.rank).into())
            }
            None => Ok(reports),
        }
    }

    /// What all processes say until each has ended.
    fn hear(
        &self,
        said: &Receiver<(usize, Option<String>)>,
        processes: &mut Processes,
        deadline: Instant,
    ) -> Result<Vec<Report>, Failure> {
        let mut reports = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match said.recv_timeout(left) {
                // Other lines are those of libraries that print.
                Ok((_, Some(line))) if line.starts_with("{\"case\"") => {
                    let report = serde_json::from_str(&line);
                    let wrong = |error| format!("{}: `{line:.200}`: {error}", self.name);
                    reports.push(report.map_err(wrong)?);
                }
                Ok((_, Some(_))) => {}
                Ok((number, None)) => match ended(&mut processes.0[number], GRACE) {
                    Some(status) if status.success() => {}
                    Some(_) => {
                        return Err(format!("{}: {}", self.name, processes.failures()).into());
                    }
                    None => {
                        return Err(format!("{}: process {number} does not end", self.name).into());
                    }
                },
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("{}: takes too long", self.name).into());
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(reports),
            }
        }
    }
}

/// Sends each line of a process, and `None` after the last.
fn listen(number: usize, child: &mut Child, say: Sender<(usize, Option<String>)>) {
    let Some(out) = child.stdout.take() else {
        return;
    };
    thread::spawn(move || {
        // A team that has failed listens no more.
        let _ = BufReader::new(out)
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| say.send((number, Some(line))));
        let _ = say.send((number, None));
    });
}

/// How a process has ended, if it does so in time.
fn ended(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + time;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// None of them outlives this.
#[derive(Debug)]
struct Processes(Vec<Child>);

impl Processes {
    /// Those that have failed, once the others have had time to say why.
    fn failures(&mut self) -> String {
        let deadline = Instant::now() + GRACE;
        let mut failures = Vec::new();
        for (number, child) in self.0.iter_mut().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            match ended(child, left) {
                Some(status) if status.success() => {}
                Some(status) => failures.push(format!("process {number} ended with {status}")),
                None => failures.push(format!("process {number} goes on")),
            }
        }
        failures.join(", ")
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.0
            .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        // A launcher that is asked to end takes its ranks along.
        for child in &self.0 {
            let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
        }
        let deadline = Instant::now() + GRACE;
        for child in &mut self.0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if ended(child, left).is_none() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// What this process is to do as a rank; `None` if it is none. A rank dies with the program that has started it.
///
/// # Errors
///
/// The settings are of another program.
pub fn settings<S: DeserializeOwned>() -> Result<Option<S>, Failure> {
    let Some(text) = env::var_os(SETTINGS) else {
        return Ok(None);
    };
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    Ok(Some(serde_json::from_str(&text.to_string_lossy())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(script: &str) -> Team {
        let shell = |rank: usize| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).arg(rank.to_string());
            command
        };
        Team::each("shells", 2, shell).expect("there is room for a folder")
    }

    const REPORT: &str = r#"echo a library prints; echo '{"case":"c","rank":'$0',"times_ns":[1],"wall_ns":1,"cpu_ns":1}'"#;

    #[test]
    fn every_rank_is_heard() {
        let mut reports = team(REPORT).run(Duration::from_secs(30)).expect("it works");
        reports.sort_by_key(|report| report.rank);
        let ranks: Vec<_> = reports.iter().map(|report| report.rank).collect();
        assert_eq!(ranks, [0, 1]);
    }

    #[test]
    fn a_rank_that_fails_ends_the_others() {
        let started = Instant::now();
        let failed = team("[ $0 = 0 ] && exit 7; exec sleep 100").run(Duration::from_secs(90));
        let failed = failed.expect_err("a rank failed").to_string();
        let said = "shells: process 0 ended with exit status: 7, process 1 goes on";
        assert_eq!(failed, said);
        assert!(started.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_team_that_hangs_is_killed() {
        let hangs =
            team("trap '' TERM; while :; do sleep 0.1; done").run(Duration::from_millis(300));
        let said = hangs.expect_err("it hangs").to_string();
        assert_eq!(said, "shells: takes too long");
    }
}
