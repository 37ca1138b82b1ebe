//! The behaviours of the tick, on a script and on threads.

mod ranks;

use std::thread;
use std::time::Duration;

use rankpact_cache::conformance::{Ends, Scenario, scenarios};
use ranks::{Alone, Job, Scripted};

fn scenario(test: &str) -> Scenario {
    let name = test.replace('_', " ");
    scenarios()
        .into_iter()
        .find(|scenario| scenario.name == name)
        .unwrap_or_else(|| panic!("no scenario `{name}`"))
}

/// Each rank by itself, its peers a script.
fn on_a_script(test: &str) {
    let scenario = scenario(test);
    for rank in 0..scenario.ranks {
        let mut tick = Scripted::new(rank, scenario.script.clone());
        let worker = || Box::new(Alone { rank });
        scenario
            .run(&mut tick, worker(), worker())
            .unwrap_or_else(|why| panic!("rank {rank}: {why}"));
    }
}

/// All ranks at once.
fn on_threads(test: &str) {
    let scenario = scenario(test);
    let timeout = if scenario.ends == Ends::Timeout {
        Duration::from_millis(500)
    } else {
        Duration::from_secs(30)
    };
    let job = Job::new(scenario.ranks, &["tick", "hits", "acks"], timeout);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..scenario.ranks)
            .map(|rank| {
                let (job, scenario) = (&job, &scenario);
                scope.spawn(move || {
                    let worker = |group| Box::new(job.member(group, rank));
                    scenario.run(&mut job.member(0, rank), worker(1), worker(2))
                })
            })
            .collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            thread
                .join()
                .unwrap()
                .unwrap_or_else(|why| panic!("rank {rank}: {why}"));
        }
    });
}

macro_rules! behaviours {
    ($($name:ident)*) => {
        mod script {
            $(#[test] fn $name() { super::on_a_script(stringify!($name)); })*
        }
        mod threads {
            $(#[test] fn $name() { super::on_threads(stringify!($name)); })*
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
