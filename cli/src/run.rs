//! `rankpact run`: any program as the ranks of a job.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, io};

use clap::Args;
use nix::unistd::{AccessFlags, access};

use crate::Failure;
use crate::launch::{self, Launch};
use crate::outcome::Verdict;

/// Name of the hidden subcommand that a rank goes through.
pub(crate) const RANK: &str = "exec-rank";

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,
    /// End the job after so many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    job_timeout: Option<Duration>,
    #[command(flatten)]
    rank: RankArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RankArgs {
    /// The program of each rank, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err("must be more than zero".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

pub(crate) fn run(args: RunArgs) -> Result<(), Failure> {
    let command = args.rank.command;
    // Once, here, instead of once by every rank.
    find(&command[0])?;
    let this_program = env::current_exe().map_err(|error| Failure {
        code: 1,
        message: format!("cannot find this program: {error}"),
    })?;
    let mut launch = Launch::new(args.ranks.into(), this_program);
    launch.args = [RANK.into(), "--".into()]
        .into_iter()
        .chain(command)
        .collect();
    launch.timeout = args.job_timeout;
    let outcome = launch.start()?.wait();
    match outcome.verdict {
        Verdict::Success => Ok(()),
        _ => Err(Failure {
            code: outcome.exit_code(),
            message: outcome.verdict.to_string(),
        }),
    }
}

/// Becomes the command of the user. Between fork and exec only unsafe code can run; a program in
/// between can do the same, and no rank survives a launcher that is killed.
pub(crate) fn exec_rank(args: RankArgs) -> Result<Infallible, Failure> {
    launch::die_with_parent()?;
    let [program, arguments @ ..] = args.command.as_slice() else {
        unreachable!("clap requires a command");
    };
    let error = Command::new(program).args(arguments).exec();
    Err(cannot_start(program, &error))
}

/// Looks for `program` as `execvp` will.
fn find(program: &OsStr) -> Result<(), Failure> {
    let candidates: Vec<PathBuf> = if program.as_encoded_bytes().contains(&b'/') {
        vec![program.into()]
    } else {
        let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        env::split_paths(&path)
            .map(|folder| folder.join(program))
            .collect()
    };
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    for file in candidates.iter().filter(|path| path.is_file()) {
        match access(file, AccessFlags::X_OK) {
            Ok(()) => return Ok(()),
            Err(errno) => error = errno.into(),
        }
    }
    Err(cannot_start(program, &error))
}

/// With the exit codes of a shell.
fn cannot_start(program: &OsStr, error: &io::Error) -> Failure {
    let program = Path::new(program).display();
    match error.kind() {
        io::ErrorKind::NotFound => Failure {
            code: 127,
            message: format!("{program}: command not found"),
        },
        _ => Failure {
            code: 126,
            message: format!("{program}: cannot start: {error}"),
        },
    }
}
