//! Hosts that exchange over MPI: real processes below mpirun, with a `/dev/shm` for each host.

use crate::crash::SOON;
use crate::{assert_poisoned, job, missing, waited};
use rankpact_collective::ErrorKind;
use rankpact_tests::{Namespace, Report, may_unshare, unlaunched};
use std::fs;
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::PermissionsExt;

/// What each of four ranks does, and what mpirun is told besides.
struct Job<F> {
    words: &'static [&'static str],
    timeout: f64,
    steps: F,
}

impl<'a, F: Fn(usize) -> Vec<&'a str>> Job<F> {
    /// The reports of all ranks, 0 and 1 of which are on one host, 2 and 3 on another; with whether mpirun was content.
    /// None where that cannot be, which is said.
    fn run(&self) -> Option<(Vec<Vec<Report>>, bool)> {
        if !may_unshare() {
            return None;
        }
        let hosts = [(), ()].map(|()| Namespace::new("mount -t tmpfs -o size=1m tmpfs /dev/shm"));
        let runtime = tempfile::tempdir().expect("there is room for a folder");
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(runtime.path(), private).expect("it is ours");
        // Two minutes: what hangs is ended by mpirun.
        let mut mpirun = unlaunched("mpirun");
        mpirun
            .args(["--allow-run-as-root", "--oversubscribe", "--tag-output"])
            .args(["--timeout", "120"])
            // Between hosts there is no memory, whatever MPI thinks of this machine.
            .args([
                "--mca",
                "btl",
                "tcp,self",
                "--mca",
                "btl_tcp_if_include",
                "lo",
            ])
            .args(self.words)
            .env("XDG_RUNTIME_DIR", runtime.path())
            .env("RANKPACT_TIMEOUT", self.timeout.to_string())
            .env("RANKPACT_ENGINE", "mpi");
        for rank in 0..4 {
            if rank > 0 {
                mpirun.arg(":");
            }
            mpirun
                .args(["-n", "1"])
                .args(hosts[rank / 2].words())
                .arg(env!("CARGO_BIN_EXE_rankpact-rank"))
                .args((self.steps)(rank));
        }
        let output = match mpirun.output() {
            Err(error) if error.kind() == NotFound => {
                eprintln!("SKIPPED, no mpirun: install Open MPI (Debian: openmpi-bin)");
                return None;
            }
            output => output.expect("mpirun can be started"),
        };
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        let mut reports = vec![Vec::new(); 4];
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            // [1,RANK]<stdout>:{...}
            let tagged = line.split_once("]<stdout>:").and_then(|(tag, line)| {
                let rank: usize = tag.rsplit_once(',')?.1.parse().ok()?;
                Some((rank, serde_json::from_str(line).ok()?))
            });
            let (rank, report): (usize, Report) = tagged.unwrap_or_else(|| panic!("{line}"));
            reports[rank].push(report);
        }
        for host in &hosts {
            let names = host.names("/dev/shm");
            assert!(names.is_empty(), "left behind: {names:?}");
        }
        Some((reports, output.status.success()))
    }
}

#[track_caller]
fn find<'a>(reports: &'a [Report], step: &str) -> &'a Report {
    let found = reports.iter().find(|report| report.step == step);
    found.unwrap_or_else(|| panic!("no `{step}` in {reports:?}"))
}

#[test]
fn ranks_that_choose_other_engines_are_told_apart() {
    let mut ranks = job(2)
        .var_of(1, "RANKPACT_ENGINE", "mpi")
        .var_of(1, "PMIX_RANK", "1")
        .start(|_| ["group g"]);
    for rank in 0..2 {
        let wanted = ErrorKind::Config {
            field: "between hosts".to_owned(),
            one: (0, "tcp".to_owned()),
            other: (1, "mpi".to_owned()),
        };
        assert_eq!(*ranks.report(rank, "join").kind(), wanted);
    }
}

#[test]
fn hosts_exchange_over_mpi_what_they_exchange_over_tcp() {
    let below = Job {
        words: &[],
        timeout: 60.0,
        steps: |rank| {
            let mut steps = vec!["group g", "min g", "path g"];
            // Two groups at once do not mix; nor do those of one name, one after the other.
            steps.extend(["group h", "parallel g,h min slots=8 count=50"]);
            steps.extend(["max g slots=300 count=5", "sum g slots=8 count=5"]);
            steps.extend(["gather g slots=8", "gather-bytes g bytes=1000"]);
            steps.extend([
                "broadcast g root=0 bytes=64",
                "broadcast g root=3 bytes=9000000",
            ]);
            steps.extend([
                "barrier g",
                "close g",
                "group g",
                "or g count=20",
                "close g",
            ]);
            // One leaves early: the others go on.
            if rank != 3 {
                steps.extend(["sleep 300", "group rest ranks=2,0,1", "sum rest count=3"]);
            }
            steps
        },
    };
    let Some((reports, content)) = below.run() else {
        return;
    };
    for (rank, reports) in reports.iter().enumerate() {
        for report in reports {
            report.well();
        }
        // The join, and one report more for the second of two parallel groups.
        assert_eq!(reports.len(), (below.steps)(rank).len() + 2, "{reports:?}");
        let path = find(reports, "path g").well();
        assert!(path.starts_with("hierarchical"), "{path}");
    }
    assert!(content);
}

#[test]
fn a_host_that_makes_another_call_is_told_over_mpi_with_both_calls() {
    let call = |rank| if rank < 2 { "min g" } else { "max g slots=5" };
    let below = Job {
        words: &[],
        timeout: 60.0,
        steps: |rank| vec!["group g", "min g count=3", call(rank), "min g label=later"],
    };
    let Some((reports, content)) = below.run() else {
        return;
    };
    let told = find(&reports[0], call(0)).error();
    assert!(matches!(*told.kind, ErrorKind::Mismatch { .. }), "{told}");
    assert!(told.to_string().contains("max 5 slots"), "{told}");
    for (rank, reports) in reports.iter().enumerate() {
        let error = find(reports, call(rank)).error();
        assert_eq!((error.round, error.rank), (4, rank), "{error}");
        assert_eq!(error.kind, told.kind);
        assert_poisoned(find(reports, "min g label=later").error(), error);
    }
    assert!(content);
}

#[test]
fn a_leader_that_takes_nothing_over_mpi_is_missing_at_the_deadline() {
    // More than all buffers on the way hold, and nobody takes it while the whole process is stopped.
    let call = "broadcast g root=0 bytes=30000000 within=4000";
    let below = Job {
        words: &[],
        timeout: 60.0,
        steps: |rank| {
            let mut steps = vec!["group g", "min g count=3"];
            if rank == 2 {
                steps.push("freeze 5.5");
            }
            steps.extend([call, "min g label=later"]);
            steps
        },
    };
    let Some((reports, _)) = below.run() else {
        return;
    };
    for (rank, reports) in reports.iter().enumerate() {
        let report = find(reports, call);
        // Who was late hears the same.
        assert_eq!(missing(report.error()), [2], "{report:?}");
        if rank != 2 {
            let waited = waited(report.error());
            assert!((4000..4000 + SOON).contains(&waited), "{report:?}");
        }
    }
}

#[test]
fn a_leader_that_dies_is_named_on_hosts_that_reach_it_over_mpi() {
    let below = Job {
        // As on clusters that go on without a process; else mpirun ends all of them.
        words: &[
            "--enable-recovery",
            "--mca",
            "orte_abort_on_non_zero_status",
            "0",
        ],
        timeout: 20.0,
        steps: |rank| {
            let mut steps = vec!["group g", "min g count=3"];
            if rank == 2 {
                steps.extend(["sleep 500", "crash"]);
            }
            steps.extend(["max g", "min g label=later"]);
            steps
        },
    };
    let Some((reports, _)) = below.run() else {
        return;
    };
    for rank in [0, 1, 3] {
        let report = find(&reports[rank], "max g");
        let died = matches!(report.kind(), ErrorKind::PeerDied { rank: 2, .. });
        assert!(died, "{report:?}");
        assert!(report.ms < SOON, "{report:?}");
    }
}
