//! The tick of the cache over real groups, each rank a process or a thread, on both paths.

use crate::{job, missing};
use rankpact_cache::conformance::{Ends, Scenario, scenarios};
use rankpact_collective::{Error, ErrorKind, Group, Options, PathChoice};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

fn scenario(test: &str) -> (usize, Scenario) {
    let name = test.replace('_', " ");
    scenarios()
        .into_iter()
        .enumerate()
        .find(|(_, scenario)| scenario.name == name)
        .unwrap_or_else(|| panic!("no scenario `{name}`"))
}

fn deadline(scenario: &Scenario) -> Duration {
    // A rank that waits alone does so until the end.
    if scenario.ends == Ends::Timeout {
        Duration::from_secs(3)
    } else {
        Duration::from_secs(30)
    }
}

fn on_processes(test: &str, path: PathChoice) {
    let (number, scenario) = scenario(test);
    let play = format!("scenario {number}");
    let deadline = deadline(&scenario).as_millis();
    let mut ranks = job(scenario.ranks).path(path).start(|_| {
        vec![
            format!("group tick timeout={deadline}"),
            format!("group hits timeout={deadline}"),
            format!("group acks timeout={deadline}"),
            // Opening is no part of a scenario; and a rank that ends while a worker of its cache still opens a group
            // leaves the name of the segment behind.
            "ready tick".into(),
            "ready hits".into(),
            "ready acks".into(),
            play.clone(),
            "hold ended".into(),
            "min tick label=after".into(),
            "hold end".into(),
        ]
    });
    for rank in ranks.all() {
        ranks.report(rank, &play).well();
    }
    ranks.all_hold("ended");
    ranks.all_go();
    for rank in ranks.all() {
        let after = ranks.report(rank, "min tick label=after");
        match scenario.ends {
            // The ranks are still in step.
            Ends::Well => {
                after.well();
            }
            Ends::Diverged => {
                assert!(
                    matches!(*after.error().root().kind, ErrorKind::Aborted { .. }),
                    "{}",
                    after.error()
                );
            }
            Ends::Timeout => assert_eq!(missing(after.error().root()), [0]),
            Ends::Mismatch => both_calls(after.error()),
        }
    }
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[track_caller]
fn both_calls(error: &Error) {
    let ErrorKind::Mismatch { one, other } = &*error.root().kind else {
        panic!("no mismatch: {error}");
    };
    let mut calls =
        [one, other].map(|call| (call.rank, call.operation.as_str(), call.label.as_str()));
    calls.sort_unstable();
    assert_eq!(calls, [(0, "min", "counts"), (1, "max", "vote")], "{error}");
}

fn on_threads(test: &str, path: PathChoice) {
    let (_, scenario) = scenario(test);
    let options = Options {
        path,
        timeout: deadline(&scenario),
        ..Options::default()
    };
    let make =
        |name| Group::threads(name, scenario.ranks, &options).expect("threads can always be ranks");
    let ended = Barrier::new(scenario.ranks);
    thread::scope(|scope| {
        let (scenario, ended) = (&scenario, &ended);
        let ranks: Vec<_> = make("tick")
            .into_iter()
            .zip(make("hits"))
            .zip(make("acks"))
            .map(|((mut tick, hits), acks)| {
                scope.spawn(move || {
                    let played = scenario.run(&mut tick, Box::new(hits), Box::new(acks));
                    // Nobody closes before the last has ended.
                    ended.wait();
                    played
                })
            })
            .collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            if let Err(why) = thread.join().expect("no rank panics") {
                panic!("rank {rank}: {why}");
            }
        }
    });
}

macro_rules! behaviours {
    ($($name:ident)*) => {
        mod processes_over_the_table {
            $(#[test] fn $name() { super::on_processes(stringify!($name), super::PathChoice::Table); })*
        }
        mod processes_over_tcp {
            $(#[test] fn $name() { super::on_processes(stringify!($name), super::PathChoice::Tcp); })*
        }
        mod threads_over_the_table {
            $(#[test] fn $name() { super::on_threads(stringify!($name), super::PathChoice::Table); })*
        }
        mod threads_over_tcp {
            $(#[test] fn $name() { super::on_threads(stringify!($name), super::PathChoice::Tcp); })*
        }
        #[test]
        fn every_scenario_has_its_tests() {
            let tests = [$(stringify!($name).replace('_', " ")),*];
            let names: Vec<_> = scenarios().into_iter().map(|scenario| scenario.name).collect();
            assert_eq!(names, tests);
        }
    };
}

rankpact_cache::for_each_scenario!(behaviours);
