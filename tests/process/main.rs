//! Real processes: groups, disagreement, crashes, segments and the cache, all on both paths.

#![cfg(not(loom))]

/// Tests that take a path, as tests over each of them.
macro_rules! on_both_paths {
    ($($name:ident)*) => {
        mod over_the_table {
            $(#[test] fn $name() { super::$name(rankpact_collective::PathChoice::Table); })*
        }
        mod over_tcp {
            $(#[test] fn $name() { super::$name(rankpact_collective::PathChoice::Tcp); })*
        }
    };
}

mod cache;
mod conformance;
mod crash;
mod disagreement;
mod hosts;
mod join;
mod liveness;
#[cfg(feature = "mpi")]
mod mpi;
mod names;
mod pair;
mod promises;
mod relay;
mod segment;
mod soak;
mod waiting;

use rankpact_collective::{Error, ErrorKind, PathChoice};
use rankpact_tests::Job;

/// Both ways that data can be told to go.
const PATHS: [PathChoice; 2] = [PathChoice::Table, PathChoice::Tcp];

fn job(size: usize) -> Job {
    Job::new(env!("CARGO_BIN_EXE_rankpact-rank"), size)
}

/// Where random moments come from: told when a test fails, and taken from the environment to repeat it.
fn seed() -> u64 {
    std::env::var("RANKPACT_SEED").map_or_else(
        |_| getrandom::u64().expect("the kernel has random numbers"),
        |text| text.parse().expect("a number"),
    )
}

/// The ranks that a timeout names.
#[track_caller]
fn missing(error: &Error) -> Vec<usize> {
    match &*error.kind {
        ErrorKind::Timeout { missing, .. } => missing.iter().map(|silent| silent.rank).collect(),
        other => panic!("no timeout: {other}"),
    }
}

/// How long the rank had waited that gave up, in milliseconds.
#[track_caller]
fn waited(error: &Error) -> u64 {
    match &*error.kind {
        ErrorKind::Timeout { after, .. } => after.as_millis().try_into().expect("no ages"),
        other => panic!("no timeout: {other}"),
    }
}

/// `later` is what a call after `first` returns: poisoned, by just that failure.
#[track_caller]
fn assert_poisoned(later: &Error, first: &Error) {
    match &*later.kind {
        ErrorKind::Poisoned { origin } => assert_eq!(origin, first),
        other => panic!("not poisoned: {other}"),
    }
}
