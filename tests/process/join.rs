//! Joining: launchers, names, strangers, hosts with odd addresses, and ranks that never come.

use crate::crash::at_once;
use crate::{job, missing};
use nix::sys::signal::Signal;
use rankpact_collective::{Error, ErrorKind, PathChoice};
use rankpact_tests::{
    Job, Namespace, Network, Port, Ranks, Report, may_network, may_network_anew, may_unshare,
    unlaunched,
};
use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Long before any deadline here.
const SOON: u64 = 5_000;

/// Rounds of every way, and of both paths.
const ROUNDS: [&str; 4] = [
    "group g",
    "min g slots=8 count=50 full",
    "max g slots=40 count=20",
    "broadcast g bytes=100 count=10",
];

/// A folder as a session has it.
fn runtime_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("it is ours");
    folder
}

fn is_empty(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).expect("the folder is there");
    entries.next().is_none()
}

/// The note that lies in a session's folder.
fn note(runtime: &Path) -> Option<String> {
    let mut entries = fs::read_dir(runtime.join("rankpact")).ok()?.flatten();
    let complete = entries.find(|entry| entry.path().extension().is_none())?;
    fs::read_to_string(complete.path()).ok()
}

/// Waits for what comes sooner or later; the watchdog of the ranks ends it if not.
fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn joined(ranks: &mut Ranks) -> Vec<Report> {
    let all = ranks.all();
    all.into_iter()
        .map(|rank| ranks.report(rank, "join"))
        .collect()
}

#[test]
fn ranks_of_torchrun_meet_by_its_variables_and_leave_nothing() {
    let runtime = runtime_folder();
    // Two jobs at once, and the same again after a restart.
    for restart in 0..2 {
        let ports = [Port::free(), Port::free()];
        let jobs = ports.each_ref().map(|port| {
            job(3)
                .as_torchrun(port.number())
                .var("TORCHELASTIC_RUN_ID", "none")
                .var("TORCHELASTIC_RESTART_COUNT", restart)
                .var("XDG_RUNTIME_DIR", runtime.path().display())
                .start(|_| ROUNDS)
        });
        jobs.into_iter().for_each(Ranks::end);
        assert!(is_empty(runtime.path()));
    }
}

#[test]
fn ranks_without_a_session_meet_in_a_private_folder_in_tmp_and_leave_nothing() {
    if !may_unshare() {
        return;
    }
    let host = Namespace::new("mount -t tmpfs none /tmp");
    let words = host.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let unfinished = |runtime: &str| {
        job(3)
            .as_torchrun(29500)
            .var("XDG_RUNTIME_DIR", runtime)
            .wrapped(&words)
            .hidden()
    };
    // A session that is none, or another user's.
    for runtime in ["", "/nowhere", "/", "relative"] {
        unfinished(runtime).start(|_| ROUNDS).end();
        assert!(host.names("/tmp").is_empty(), "{:?}", host.names("/tmp"));
    }
    let trap = Namespace::new("mount -t tmpfs none /tmp; mkdir -m 777 /tmp/rankpact-0");
    let words = trap.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut ranks = job(2)
        .as_torchrun(29500)
        .var("XDG_RUNTIME_DIR", "")
        .wrapped(&words)
        .hidden()
        .start(|_| [""; 0]);
    for report in joined(&mut ranks) {
        match report.kind() {
            ErrorKind::Foreign { path, found } => {
                assert_eq!(path, "/tmp/rankpact-0");
                assert!(found.contains("0777"), "{found}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_note_of_a_killed_job_does_not_mislead_the_next_one() {
    let runtime = runtime_folder();
    let port = Port::free();
    let unfinished = |size: usize| {
        job(size)
            .as_torchrun(port.number())
            .var("XDG_RUNTIME_DIR", runtime.path().display())
    };
    let mut killed = unfinished(3).without(2).start(|_| ROUNDS);
    let old = wait_for(|| note(runtime.path()));
    killed.kill(0);
    killed.kill(1);
    assert_eq!(note(runtime.path()), Some(old.clone()));
    drop(killed);
    // Rank 1 meets the old note first.
    let slow = ["sh", "-c", "sleep 0.4; exec \"$0\" \"$@\""];
    unfinished(3).wrapped_rank(0, &slow).start(|_| ROUNDS).end();
    assert!(is_empty(runtime.path()));
    // Its port may be somebody else's by now.
    let (address, token) = old.trim().split_once(' ').expect("address and token");
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let other = old.replace(
        address,
        &silent.local_addr().expect("it is bound").to_string(),
    );
    assert!(other.contains(token));
    let mut again = unfinished(2).without(1).start(|_| ROUNDS);
    let fresh = wait_for(|| note(runtime.path()));
    let name = wait_for(|| {
        let folder = fs::read_dir(runtime.path().join("rankpact")).ok()?;
        folder.flatten().next().map(|entry| entry.path())
    });
    again.kill(0);
    assert_eq!(fs::read_to_string(&name).expect("it was left"), fresh);
    drop(again);
    fs::write(&name, other).expect("there is room for it");
    let mut ranks = unfinished(2).wrapped_rank(0, &slow).start(|_| ROUNDS);
    for report in joined(&mut ranks) {
        report.well();
        assert!(report.ms < SOON, "{report:?}");
    }
    ranks.end();
    assert!(is_empty(runtime.path()));
}

#[test]
fn two_jobs_that_cannot_be_told_apart_are_not_mixed() {
    let runtime = runtime_folder();
    let port = Port::free();
    let unfinished = || {
        job(2)
            .as_torchrun(port.number())
            .var("XDG_RUNTIME_DIR", runtime.path().display())
    };
    let mut first = unfinished().without(1).start(|_| ROUNDS);
    wait_for(|| note(runtime.path()));
    let mut second = unfinished().without(1).start(|_| ROUNDS);
    let report = second.report(0, "join");
    let line = report.error().to_string();
    assert!(matches!(report.kind(), ErrorKind::Usage(_)), "{line}");
    assert!(
        line.contains("another job") && line.contains("MASTER_PORT"),
        "{line}"
    );
    // The first one is none the worse for it.
    assert!(note(runtime.path()).is_some());
    first.kill(0);
}

#[test]
fn a_rank_that_never_comes_is_named_and_the_note_is_gone() {
    // Without rank 0 nobody serves.
    at_once(&[2, 0], |absent| {
        let runtime = runtime_folder();
        let port = Port::free();
        let mut ranks = job(4)
            .as_torchrun(port.number())
            .var("XDG_RUNTIME_DIR", runtime.path().display())
            .timeout(Duration::from_secs(5))
            .without(absent)
            .start(|_| ROUNDS);
        for report in joined(&mut ranks) {
            assert_eq!(missing(report.error()), [absent], "{}", report.error());
        }
        ranks.end();
        assert!(is_empty(runtime.path()));
    });
}

#[test]
fn a_rank_that_dies_while_others_wait_for_the_last_one_is_named() {
    let mut ranks = job(4).without(3).start(|_| ["hold end"]);
    ranks.all_met();
    ranks.kill(1);
    let killed = Instant::now();
    for rank in [0, 2] {
        let report = ranks.report(rank, "join");
        assert!(killed.elapsed() < Duration::from_millis(SOON), "{report:?}");
        assert!(
            matches!(report.kind(), ErrorKind::PeerDied { rank: 1, .. }),
            "{}",
            report.error()
        );
    }
    assert!(is_empty(ranks.folder()));
    ranks.end();
}

#[test]
fn a_rank_stopped_in_the_middle_of_the_join_is_named() {
    let mut ranks = job(3)
        .timeout(Duration::from_secs(5))
        .without(2)
        .start(|_| ROUNDS);
    let folder = ranks.folder().to_owned();
    wait_for(|| fs::exists(folder.join("rendezvous")).ok()?.then_some(()));
    ranks.signal(0, Signal::SIGSTOP);
    let report = ranks.report(1, "join");
    assert_eq!(missing(report.error())[0], 0, "{}", report.error());
    ranks.signal(0, Signal::SIGCONT);
    // Rank 2 was, and by now it has been missing itself.
    let late = missing(ranks.report(0, "join").error());
    assert!(late.contains(&2) || late == [0], "{late:?}");
}

/// Connections of all kinds of strangers, all at once, which stay.
fn strangers(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let hello = {
        // The head of an envelope, and the first byte of a hello.
        let mut bytes = 0x5250_4e01_u32.to_le_bytes().to_vec();
        bytes.extend([33, 0, 0, 0, 1, 2, 3, 4, 1]);
        bytes
    };
    (0..count)
        .map(|n| {
            let mut stream = TcpStream::connect(address).expect("the rendezvous listens");
            let said = match n % 4 {
                0 => Ok(()),
                1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
                2 => stream.write_all(&hello),
                _ => stream.write_all(&[0; 4000]),
            };
            // One that is thrown out at once cannot say all of it.
            let thrown = |error: &io::Error| {
                matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                )
            };
            assert!(said.as_ref().err().is_none_or(thrown), "{said:?}");
            stream
        })
        .collect()
}

fn hundreds_of_strangers_neither_join_nor_delay(path: PathChoice) {
    let port = Port::free();
    let place = format!("tcp://127.0.0.1:{}", port.number());
    let late = ["sh", "-c", "read line; exec \"$0\" \"$@\""];
    let mut ranks = job(3)
        .path(path)
        .var("RANKPACT_RENDEZVOUS", &place)
        .var("RANKPACT_TOKEN", "the right one")
        .wrapped_rank(2, &late)
        .start(|_| {
            ROUNDS.into_iter().chain([
                "hold joined",
                "min g slots=8 count=300",
                "max g slots=30 count=100",
                "hold end",
            ])
        });
    let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
    wait_for(|| TcpStream::connect(address).ok());
    // More than are let wait, and fewer than would take all files that a test may open.
    let crowd = strangers(address, 300);
    ranks.go(2);
    for rank in ranks.all() {
        let report = ranks.report(rank, "join");
        report.well();
        assert!(rank < 2 || report.ms < SOON, "{report:?}");
    }
    ranks.all_hold("joined");
    // A rank that knows all but the token.
    let mut wrong = job(3)
        .var("RANKPACT_RENDEZVOUS", &place)
        .var("RANKPACT_TOKEN", "a wrong one")
        .without(0)
        .without(2)
        .start(|_| ROUNDS);
    let refused = wrong.report(1, "join").error().to_string();
    assert!(refused.contains("token"), "{refused}");
    ranks.all_go();
    let more = strangers(address, 100);
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
    drop((crowd, more));
}

#[test]
fn a_wrong_setting_of_one_rank_is_told_to_all_with_both_values() {
    let port = Port::free();
    let mut ranks = job(3)
        .as_torchrun(port.number())
        .var_of(2, "RANKPACT_PATH", "tcp")
        // Each rank's own affair.
        .var_of(1, "RANKPACT_WAIT", "park")
        .start(|_| ROUNDS);
    for report in joined(&mut ranks) {
        let wanted = ErrorKind::Config {
            field: "path".to_owned(),
            one: (0, "auto".to_owned()),
            other: (2, "tcp".to_owned()),
        };
        assert_eq!(*report.kind(), wanted);
    }
}

#[test]
fn an_engine_that_cannot_be_is_refused_at_once_and_by_its_name() {
    let mut ranks = job(2).var("RANKPACT_ENGINE", "mpi").start(|_| ROUNDS);
    for report in joined(&mut ranks) {
        let refused =
            matches!(report.kind(), ErrorKind::Usage(what) if what.contains("engine `mpi`"));
        assert!(refused, "{report:?}");
    }
}

#[test]
fn ranks_of_open_mpi_meet_by_its_variables() {
    let runtime = runtime_folder();
    let started = unlaunched("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "4"])
        .arg(env!("CARGO_BIN_EXE_rankpact-rank"))
        .args(ROUNDS)
        .env("XDG_RUNTIME_DIR", runtime.path())
        .env("RANKPACT_TIMEOUT", "20")
        .output();
    let output = match started {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("SKIPPED, no mpirun: install Open MPI (Debian: openmpi-bin)");
            return;
        }
        Err(error) => panic!("mpirun: {error}"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).expect("reports are text");
    let reports: Vec<Report> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    for report in &reports {
        report.well();
    }
    assert_eq!(reports.len(), 4 * (ROUNDS.len() + 1));
    assert!(is_empty(runtime.path()));
}

/// Ranks 0 and 1 on host `a`, ranks 2 and 3 on host `b`.
fn across(network: &Network, place: &str, path: PathChoice) -> Job {
    let job = job(4)
        .path(path)
        .var("RANKPACT_RENDEZVOUS", place)
        .var("RANKPACT_TOKEN", "secret")
        .timeout(Duration::from_secs(20));
    ["a", "a", "b", "b"]
        .into_iter()
        .enumerate()
        .fold(job, |job, (rank, host)| {
            let words = network.words(host);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            job.wrapped_rank(rank, &words)
        })
}

/// Each host's own name leads it to itself only, as Debian has it.
fn old_addresses() -> Network {
    Network::of_two_hosts()
        .address("a", "10.99.0.1/24")
        .address("b", "10.99.0.2/24")
        .names("a", &["127.0.1.1 a", "10.99.0.2 b"])
        .names("b", &["10.99.0.1 a", "127.0.1.1 b"])
}

fn hosts_whose_own_name_is_loopback_find_each_other(path: PathChoice) {
    if may_network() {
        let network = old_addresses();
        across(&network, "tcp://a:4000", path)
            .start(|_| ROUNDS)
            .end();
        across(&network, "tcp://10.99.0.1:4000", path)
            .start(|_| ROUNDS)
            .end();
        across(&network, "", path)
            .as_torchrun(29500)
            .var("LOCAL_WORLD_SIZE", 2)
            .var("MASTER_ADDR", "a")
            .var("RANKPACT_PORT", 4001)
            .start(|_| ROUNDS)
            .end();
    }
}

fn hosts_with_new_addresses_only_find_each_other(path: PathChoice) {
    if may_network_anew() {
        let network = Network::of_two_hosts()
            .address("a", "fd00:99::1/64")
            .address("b", "fd00:99::2/64")
            .names("a", &["127.0.1.1 a", "fd00:99::2 b"])
            .names("b", &["fd00:99::1 a", "127.0.1.1 b"]);
        across(&network, "tcp://a:4000", path)
            .start(|_| ROUNDS)
            .end();
        across(&network, "tcp://[fd00:99::1]:4000", path)
            .start(|_| ROUNDS)
            .end();
    }
}

fn addresses_on_the_link_keep_their_interface(path: PathChoice) {
    if may_network_anew() {
        let network = Network::of_two_hosts()
            .address("a", "fe80::a/64")
            .address("b", "fe80::b/64");
        across(&network, "tcp://[fe80::a%eth0]:4000", path)
            .start(|_| ROUNDS)
            .end();
    }
}

/// What the `ready` of each rank was told.
fn unopened(job: Job) -> Vec<Error> {
    let mut ranks = job.start(|_| ["group g timeout=5000", "ready g"]);
    let all = ranks.all();
    all.into_iter()
        .map(|rank| ranks.report(rank, "ready g").error().clone())
        .collect()
}

#[test]
fn a_host_that_cannot_be_reached_is_told_with_both_addresses_and_what_to_set() {
    if !may_network() {
        return;
    }
    let network = old_addresses().names("b", &["172.17.0.9 a"]);
    let deadline = Duration::from_secs(5);
    let started = Instant::now();
    let mut ranks = across(&network, "tcp://a:4000", PathChoice::Tcp)
        .timeout(deadline)
        .start(|_| ROUNDS);
    for rank in [2, 3] {
        let report = ranks.report(rank, "join");
        let line = report.error().to_string();
        for part in [
            "rank 0 not reached",
            "from 172.17.0.1 to 172.17.0.9:4000",
            "MASTER_ADDR",
            "RANKPACT_INTERFACE",
        ] {
            assert!(line.contains(part), "no {part}: {line}");
        }
        assert!(report.error().is_timeout());
    }
    for rank in [0, 1] {
        assert_eq!(missing(ranks.report(rank, "join").error()), [2, 3]);
    }
    assert!(started.elapsed() >= deadline);
    drop(ranks);
    // The join goes well, but the peers of rank 1 seek it on the wrong interface.
    let network = network.names("b", &["10.99.0.1 a"]);
    let astray = across(&network, "tcp://a:4000", PathChoice::Tcp).var_of(
        1,
        "RANKPACT_INTERFACE",
        "docker0",
    );
    for error in unopened(astray) {
        let line = error.to_string();
        assert!(line.contains("RANKPACT_INTERFACE"), "{line}");
        assert!(
            line.contains("172.17.0.1") || line.contains("10.99.0"),
            "{line}"
        );
    }
}

#[test]
fn an_interface_can_be_chosen_and_what_is_none_is_refused_with_an_example() {
    if !may_network() {
        return;
    }
    // By its own name host a would listen where nobody arrives.
    let network = old_addresses().names("a", &["172.17.0.1 a"]);
    for interface in ["eth0", "10.99.0"] {
        let whole = |host: u8| match interface {
            "eth0" => "eth0".to_owned(),
            prefix => format!("{prefix}.{host}"),
        };
        across(&network, "tcp://a:4000", PathChoice::Tcp)
            .var_of(0, "RANKPACT_INTERFACE", whole(1))
            .var_of(3, "RANKPACT_INTERFACE", whole(2))
            .start(|_| ROUNDS)
            .end();
    }
    for wrong in ["^lo,docker", "eth9", "10.99.0.77", "eth0,docker0"] {
        let mut ranks = across(&network, "tcp://a:4000", PathChoice::Tcp)
            .var("RANKPACT_INTERFACE", wrong)
            .start(|_| ROUNDS);
        for report in joined(&mut ranks) {
            let line = report.error().to_string();
            assert!(matches!(report.kind(), ErrorKind::Usage(_)), "{line}");
            for part in [
                &format!("`{wrong}`"),
                "RANKPACT_INTERFACE=eth0",
                "docker0 172.17.0.1",
            ] {
                assert!(line.contains(part), "no {part}: {line}");
            }
        }
    }
}

on_both_paths! {
    hundreds_of_strangers_neither_join_nor_delay
    hosts_whose_own_name_is_loopback_find_each_other
    hosts_with_new_addresses_only_find_each_other
    addresses_on_the_link_keep_their_interface
}
