//! What waiting costs, and what does not disturb it: on both paths, with real processes.

use crate::job;
use rankpact_collective::{ErrorKind, PathChoice};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

on_both_paths! {
    a_rank_that_waits_for_long_leaves_the_cpu_alone
    light_load_leaves_the_cpu_alone
    a_storm_of_signals_changes_nothing
}

fn a_rank_that_waits_for_long_leaves_the_cpu_alone(path: PathChoice) {
    let mut ranks = job(2).path(path).start(|rank| {
        let pause = ["sleep 0", "sleep 10000"][rank];
        ["group g", "min g", pause, "min g label=late", "close g"]
    });
    let waited = ranks.report(0, "min g label=late");
    waited.well();
    assert!(waited.ms >= 9_000, "{waited:?}");
    assert!(waited.cpu_ms * 20 < waited.ms, "{waited:?}");
    ranks.end();
}

fn light_load_leaves_the_cpu_alone(path: PathChoice) {
    const LOAD: &str = "min g count=400 pause=10000";
    let mut ranks = job(2)
        .path(path)
        .start(|_| ["group g", "min g", LOAD, "close g"]);
    for rank in ranks.all() {
        let report = ranks.report(rank, LOAD);
        report.well();
        assert!(report.cpu_ms * 3 < report.ms, "{report:?}");
    }
    ranks.end();
}

/// From the join to the close, with and without data beside the rows.
fn a_storm_of_signals_changes_nothing(path: PathChoice) {
    for wait in ["auto", "park"] {
        let mut ranks = job(3)
            .path(path)
            .var("RANKPACT_WAIT", wait)
            .option("--storm")
            .start(|rank| {
                let late = ["min g within=300 label=late", "sleep 3000"];
                [
                    "group g",
                    "min g count=1000",
                    "min g slots=300 count=300",
                    "broadcast g bytes=3000000 count=3",
                    "barrier g count=100",
                    late[usize::from(rank == 2)],
                    "close g",
                ]
            });
        for rank in [0, 1] {
            let report = ranks.report(rank, "min g within=300 label=late");
            let ErrorKind::Timeout { after, by, .. } = report.kind() else {
                panic!("{}", report.error());
            };
            assert!(*after >= Duration::from_millis(300), "{report:?}");
            // Who is told may have begun later than who gave up.
            assert!(report.ms >= 300 || *by != rank, "{report:?}");
            assert!(report.ms < 5_000, "{report:?}");
        }
        ranks.end();
    }
}

/// A control group of version 1 that has one CPU at most, removed in the end.
struct OneCpu(PathBuf);

impl OneCpu {
    fn new() -> Option<Self> {
        let name = format!("rankpact-test-{}", std::process::id());
        let folder = ["cpu", "cpu,cpuacct"]
            .iter()
            .map(|mount| Path::new("/sys/fs/cgroup").join(mount))
            .find(|mount| mount.join("cpu.cfs_quota_us").exists())?
            .join(name);
        fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        for file in ["cpu.cfs_period_us", "cpu.cfs_quota_us"] {
            fs::write(group.0.join(file), "100000").ok()?;
        }
        Some(group)
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        // Ranks that have just ended may still be in it.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn ranks_that_share_a_quota_of_one_cpu_get_on() {
    let Some(group) = OneCpu::new() else {
        eprintln!("SKIPPED, no control group of version 1 can be made here");
        return;
    };
    let enter = format!(
        "echo $$ > {}/cgroup.procs && exec \"$@\"",
        group.0.display()
    );
    let mut ranks = job(4)
        .path(PathChoice::Table)
        .wrapped(&["sh", "-c", &enter, "sh"])
        .start(|_| ["cpus", "group g", "min g count=5000", "close g"]);
    for rank in ranks.all() {
        assert_eq!(ranks.report(rank, "cpus").well(), "1");
        ranks.report(rank, "min g count=5000").well();
    }
    ranks.end();
}
