//! The `rankpact` program.

#![forbid(unsafe_code)]

mod bench;
mod builtin;
mod launch;
mod outcome;
mod replay;
mod run;
mod signals;
mod team;
mod trace;
#[cfg(test)]
mod watchdog;

use std::error::Error;
use std::io::Write;
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
    /// Replay a request trace through N real rank processes
    Replay(replay::ReplayArgs),
    /// Measure reductions between real rank processes, beside the floor of this machine
    Bench(bench::BenchArgs),
    #[command(name = run::RANK, hide = true)]
    ExecRank(run::RankArgs),
    #[command(name = replay::RANK, hide = true)]
    ReplayRank,
    #[command(name = bench::RANK, hide = true)]
    BenchRank,
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

/// Prints a result; a standard output that is full or closed is a failure like any other.
fn print(result: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{result}")
        .and_then(|()| out.flush())
        .map_err(|error| Failure {
            code: 1,
            message: format!("standard output: {error}"),
        })
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
        Command::Replay(args) => replay::replay(args),
        Command::ReplayRank => replay::rank::main(),
        Command::Bench(args) => bench::bench(&args),
        Command::BenchRank => bench::rank::main(),
        Command::ExecRank(args) => run::exec_rank(args).map(|never| match never {}),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            // A rank of our own has told its parent, which prints the line.
            if !message.is_empty() {
                eprintln!("rankpact: {message}");
            }
            code.into()
        }
    }
}
