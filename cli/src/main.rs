//! The `rankpact` program.

#![forbid(unsafe_code)]

mod builtin;
mod launch;
mod outcome;
mod run;
mod signals;
#[cfg_attr(not(test), expect(dead_code, reason = "replay will read traces"))]
mod trace;
#[cfg(test)]
mod watchdog;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Agreement between the ranks of one machine
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start N ranks of a command on this machine; the first to fail ends all
    Run(run::RunArgs),
    #[command(name = run::RANK, hide = true)]
    ExecRank(run::RankArgs),
}

/// Why the program ends, as one line, and its exit code.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            code: 1,
            message: error.to_string(),
        }
    }
}

fn main() -> ExitCode {
    let notices =
        EnvFilter::try_from_env("RANKPACT_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(notices)
        .with_writer(std::io::stderr)
        .init();
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::ExecRank(args) => run::exec_rank(args).map(|never| match never {}),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            eprintln!("rankpact: {message}");
            code.into()
        }
    }
}
