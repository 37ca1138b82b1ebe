//! Rank processes of this very program: given settings, they say on their standard output how they are getting on.

use crate::Failure;
use crate::launch::{self, Launch, Output};
use crate::outcome::{Verdict, in_words};
use rankpact_collective::{Join, World};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::ChildStdout;
use std::thread;
use std::time::Duration;

const SETTINGS: &str = "RANKPACT_SETTINGS";

/// How long ranks may take to say what they have seen, once one of them has failed.
const GRACE: Duration = Duration::from_millis(900);

/// One line of a rank.
#[derive(Debug, Serialize, Deserialize)]
enum Line<R> {
    /// So much is done.
    Progress(u64),
    /// What it has found out.
    Report(R),
    /// Why it ends.
    Error(String),
}

/// The program's ranks, all with the same settings.
#[derive(Debug)]
pub(crate) struct Team<'a> {
    /// Hidden subcommand of the rank processes.
    pub(crate) subcommand: &'a str,
    pub(crate) ranks: usize,
    /// The whole job may take so long.
    pub(crate) timeout: Option<Duration>,
}

impl Team<'_> {
    /// Runs the ranks to their end. Reports by rank; `progress` hears what rank 0 says on the way.
    ///
    /// # Errors
    ///
    /// One line: who failed first and, in the words of the ranks that noticed, why.
    pub(crate) fn run<S: Serialize, R: DeserializeOwned + Send>(
        &self,
        settings: &S,
        progress: impl Fn(u64) + Sync,
    ) -> Result<Vec<R>, Failure> {
        let mut launch = Launch::new(self.ranks, env::current_exe()?);
        launch.args = vec![self.subcommand.into()];
        launch.env = vec![(
            SETTINGS.into(),
            OsString::from(serde_json::to_string(settings)?),
        )];
        launch.stdout = Output::Pipe;
        launch.timeout = self.timeout;
        launch.grace = GRACE;
        let mut job = launch.start()?;
        let pipes: Vec<_> = (0..self.ranks).map(|rank| job.take_stdout(rank)).collect();
        let (outcome, said) = thread::scope(|scope| {
            let listen = |(rank, pipe): (usize, Option<ChildStdout>)| {
                let progress = &progress;
                scope.spawn(move || {
                    hear::<R>(pipe, |done| {
                        if rank == 0 {
                            progress(done);
                        }
                    })
                })
            };
            let listeners: Vec<_> = pipes.into_iter().enumerate().map(listen).collect();
            let outcome = job.wait();
            let said: Vec<_> = listeners
                .into_iter()
                .map(|listener| listener.join().ok().flatten())
                .collect();
            (outcome, said)
        });
        let mut reports = Vec::new();
        let mut errors = Vec::new();
        for (rank, last) in said.into_iter().enumerate() {
            match last {
                Some(Line::Report(report)) => reports.push(report),
                Some(Line::Error(error)) => errors.push((rank, error)),
                Some(Line::Progress(_)) | None => {}
            }
        }
        match outcome.cause() {
            Verdict::Success if reports.len() == self.ranks => Ok(reports),
            verdict => Err(Failure {
                code: 1,
                message: explain(&verdict, &errors),
            }),
        }
    }
}

/// The last word of a rank.
fn hear<R: DeserializeOwned>(pipe: Option<ChildStdout>, progress: impl Fn(u64)) -> Option<Line<R>> {
    let mut last = None;
    for line in BufReader::new(pipe?).lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Line::Progress(done)) => progress(done),
            Ok(other) => last = Some(other),
            // Not ours: a library that prints.
            Err(_) => {}
        }
    }
    last
}

/// One line: how the job ended, and what the ranks said of it.
fn explain(verdict: &Verdict, errors: &[(usize, String)]) -> String {
    let Some((_, first)) = errors.first() else {
        return verdict.to_string();
    };
    let others: Vec<usize> = errors.iter().skip(1).map(|(rank, _)| *rank).collect();
    let told = if others.is_empty() {
        String::new()
    } else {
        format!(" (also told by {})", in_words(&others))
    };
    match verdict {
        // A rank that ends with an error has said why.
        Verdict::Failed { rank, .. } if errors.iter().any(|(teller, _)| teller == rank) => {
            format!("{first}{told}")
        }
        verdict => format!("{verdict}; {first}{told}"),
    }
}

/// The settings of this rank process; it dies with the program that started it.
pub(crate) fn settings<S: DeserializeOwned>() -> Result<S, Failure> {
    launch::die_with_parent()?;
    let text = env::var(SETTINGS).map_err(|_| Failure {
        code: 1,
        message: "this subcommand is for the program itself".to_owned(),
    })?;
    Ok(serde_json::from_str(&text)?)
}

/// Tells how far this rank has come.
pub(crate) fn say_progress(done: u64) {
    say(&Line::<()>::Progress(done));
}

/// The life of a rank process: it joins, opens its `state`, does its `work`, and says its report, or its error as one line.
pub(crate) fn take_part<S, R: Serialize>(
    join: Join,
    open: impl FnOnce(&World) -> Result<S, Failure>,
    work: impl FnOnce(&mut S) -> Result<R, Failure>,
) -> Result<(), Failure> {
    let tell = |failure: Failure| {
        say(&Line::<()>::Error(failure.message.clone()));
        // The program that started this rank puts it into its own line.
        Failure {
            message: String::new(),
            ..failure
        }
    };
    let world = World::connect(join).map_err(|error| tell(error.into()))?;
    // Before anything is dropped: a group that is left waits a while for the others, who do not know yet.
    let abort = |failure: Failure| {
        world.abort(&failure.message);
        tell(failure)
    };
    let mut state = open(&world).map_err(abort)?;
    say(&Line::Report(work(&mut state).map_err(abort)?));
    Ok(())
}

fn say<R: Serialize>(line: &Line<R>) {
    let mut out = std::io::stdout().lock();
    // A program that no longer listens is ending, and this rank with it.
    let _ = serde_json::to_string(line)
        .map(|text| writeln!(out, "{text}"))
        .map(|_| out.flush());
}
