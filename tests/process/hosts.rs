//! Groups that span several hosts. Hosts are namespaces of this machine: each with a `/dev/shm` of its own, and where it
//! matters with a network of its own.

use crate::crash::{SOON, at_once};
use crate::{assert_poisoned, job, missing, waited};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rankpact_collective::{Error, ErrorKind, PathChoice};
use rankpact_tests::{Job, Namespace, Ranks, may_unshare};
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Ranks on hosts that share a network, but no memory.
pub(crate) struct Hosts {
    spaces: Vec<Namespace>,
    /// The host of each rank.
    of: Vec<usize>,
    /// Whether no memory is shared between them.
    apart: bool,
}

const OWN_MEMORY: &str = "mount -t tmpfs -o size=1m tmpfs /dev/shm";

impl Hosts {
    /// `size` ranks, each on the host that `of` says.
    pub(crate) fn of(size: usize, of: impl Fn(usize) -> usize) -> Self {
        let of: Vec<usize> = (0..size).map(of).collect();
        let count = of.iter().max().map_or(0, |last| last + 1);
        let host = |_| Namespace::new(OWN_MEMORY);
        Self {
            spaces: (0..count).map(host).collect(),
            of,
            apart: true,
        }
    }

    /// A job of these ranks.
    pub(crate) fn job(&self) -> Job {
        let job = job(self.of.len()).path(PathChoice::Auto);
        self.of.iter().enumerate().fold(job, |job, (rank, host)| {
            let words = self.spaces[*host].words();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            job.wrapped_rank(rank, &words)
        })
    }
}

/// Two hosts with networks of their own and a cable between them.
struct Cabled(Hosts);

impl Cabled {
    /// None where this is not permitted, which is said.
    fn new(size: usize, of: impl Fn(usize) -> usize, apart: bool) -> Option<Self> {
        if !may_unshare() || !runs(&["unshare", "-n", "ip", "link", "set", "lo", "up"]) {
            eprintln!("SKIPPED, no networks of one's own");
            return None;
        }
        let memory = if apart { OWN_MEMORY } else { "true" };
        let host = |name: &str| {
            Namespace::with_network(&format!("{memory}; hostname {name}; ip link set lo up"))
        };
        let spaces = vec![host("one"), host("other")];
        let peer = spaces[1].pid().to_string();
        let inside = |host: usize, words: &str| {
            let space = spaces[host].words();
            let words: Vec<_> = space
                .iter()
                .map(String::as_str)
                .chain(words.split(' '))
                .collect();
            assert!(runs(&words), "{words:?}");
        };
        inside(
            0,
            &format!("ip link add cable type veth peer name cable netns {peer}"),
        );
        for host in 0..2 {
            inside(
                host,
                &format!("ip addr add 10.77.0.{}/24 dev cable", host + 1),
            );
            inside(host, "ip link set cable up");
        }
        let of = (0..size).map(of).collect();
        Some(Self(Hosts { spaces, of, apart }))
    }

    fn job(&self) -> Job {
        self.0
            .job()
            .var("RANKPACT_RENDEZVOUS", "tcp://10.77.0.1:4000")
            .var("RANKPACT_TOKEN", "of two hosts")
    }

    /// From now on nothing that is sent arrives, and nobody is told.
    fn cut(&self) {
        let space = self.0.spaces[0].words();
        let mut words: Vec<_> = space.iter().map(String::as_str).collect();
        words.extend(["ip", "link", "set", "cable", "down"]);
        assert!(runs(&words));
    }
}

fn runs(words: &[&str]) -> bool {
    let ran = Command::new(words[0]).args(&words[1..]).output();
    ran.is_ok_and(|output| {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        output.status.success()
    })
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for space in self.spaces.iter().filter(|_| self.apart) {
            let names = space.names("/dev/shm");
            assert!(
                thread::panicking() || names.is_empty(),
                "left behind: {names:?}"
            );
        }
    }
}

/// Four ranks on two hosts, 0 and 1 on the first; none where namespaces are not permitted.
fn two_by_two() -> Option<Hosts> {
    may_unshare().then(|| Hosts::of(4, |rank| rank / 2))
}

fn finish(mut ranks: Ranks) {
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

#[test]
fn every_rank_knows_the_path_and_its_reason() {
    let Some(hosts) = two_by_two() else { return };
    let mut ranks = hosts
        .job()
        .start(|_| ["group g", "ready g", "path g", "hold end"]);
    for rank in ranks.all() {
        let said = ranks.report(rank, "path g").well().to_owned();
        assert!(
            said.starts_with("hierarchical: ") && said.contains("[0, 1], ranks [2, 3]"),
            "{said}"
        );
    }
    finish(ranks);
}

#[test]
fn path_table_is_an_error_on_all_ranks_that_names_those_who_share() {
    let Some(hosts) = two_by_two() else { return };
    let mut ranks = hosts
        .job()
        .path(PathChoice::Table)
        .start(|_| ["group g", "min g", "min g label=later", "hold end"]);
    let mut kinds = Vec::new();
    for rank in ranks.all() {
        let failed = ranks.report(rank, "min g").error().clone();
        let text = failed.to_string();
        assert!(text.contains("[0, 1], ranks [2, 3]"), "{text}");
        assert_poisoned(ranks.report(rank, "min g label=later").error(), &failed);
        kinds.push(failed.kind);
    }
    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{kinds:?}");
    finish(ranks);
}

#[test]
fn a_host_without_room_for_its_table_means_tcp_on_all_ranks() {
    let Some(mut hosts) = two_by_two() else {
        return;
    };
    hosts.spaces[1] = Namespace::new("mount -t tmpfs -o size=4k tmpfs /dev/shm");
    let mut ranks = hosts
        .job()
        .start(|_| ["group g", "min g", "path g", "hold end"]);
    for rank in ranks.all() {
        let said = ranks.report(rank, "path g").well().to_owned();
        assert!(said.starts_with("tcp: no space for /dev/shm"), "{said}");
    }
    finish(ranks);
}

#[test]
fn groups_have_members_of_any_hosts_in_any_order() {
    let Some(hosts) = two_by_two() else { return };
    let mut ranks = hosts.job().start(|rank| {
        let mut steps = vec!["group all ranks=3,0,2,1"];
        let paths: &[&str] = match rank {
            0 => &["here ranks=1,0", "three ranks=2,3,0", "apart ranks=2,0"],
            1 => &["here ranks=1,0"],
            2 => &["three ranks=2,3,0", "apart ranks=2,0"],
            _ => &["three ranks=2,3,0"],
        };
        let mut owned: Vec<String> = paths.iter().map(|path| format!("group {path}")).collect();
        for path in paths {
            let name = path.split(' ').next().unwrap_or_default();
            for step in [
                "min NAME slots=8 count=20 full",
                "broadcast NAME root=0 bytes=64",
                "broadcast NAME root=1 bytes=90000",
                "max NAME slots=300",
                "path NAME",
            ] {
                owned.push(step.replace("NAME", name));
            }
        }
        owned.extend(
            [
                "min all slots=5 count=20",
                "broadcast all root=3 bytes=100",
                "hold end",
            ]
            .map(str::to_owned),
        );
        owned.insert(0, steps.remove(0).to_owned());
        owned
    });
    for (rank, name, path) in [
        (0, "here", "table"),
        (1, "here", "table"),
        (0, "three", "hierarchical"),
        (2, "three", "hierarchical"),
        (3, "three", "hierarchical"),
        (0, "apart", "tcp"),
        (2, "apart", "tcp"),
    ] {
        let said = ranks
            .report(rank, &format!("path {name}"))
            .well()
            .to_owned();
        assert!(said.starts_with(path), "rank {rank}, {name}: {said}");
    }
    finish(ranks);
}

/// What the ranks of a job say when each makes its own fourth call: all the same.
fn fourth_call(hosts: &Hosts, call: impl Fn(usize) -> &'static str) -> Error {
    let mut ranks = hosts.job().start(|rank| {
        [
            "group g",
            "min g slots=8 count=3",
            call(rank),
            "min g label=later",
            "max g slots=30 label=later",
            "hold end",
        ]
    });
    let mut errors = Vec::new();
    for rank in ranks.all() {
        let error = ranks.report(rank, call(rank)).error().clone();
        assert_eq!((error.round, error.rank), (4, rank), "{error}");
        for later in ["min g label=later", "max g slots=30 label=later"] {
            assert_poisoned(ranks.report(rank, later).error(), &error);
        }
        errors.push(error);
    }
    for error in &errors {
        assert_eq!(error.kind, errors[0].kind, "{error}");
    }
    finish(ranks);
    errors.remove(0)
}

const DIFFERENT: [(&str, &str, [&str; 2]); 12] = [
    (
        "min g",
        "max g",
        ["min 8 slots `test`", "max 8 slots `test`"],
    ),
    (
        "min g slots=3",
        "min g slots=4",
        ["min 3 slots", "min 4 slots"],
    ),
    (
        "min g slots=8",
        "min g slots=9",
        ["min 8 slots", "min 9 slots"],
    ),
    (
        "max g slots=100",
        "max g slots=101",
        ["max 100 slots", "max 101 slots"],
    ),
    ("min g", "barrier g", ["min 8 slots", "barrier"]),
    (
        "min g slots=64",
        "broadcast g root=0",
        ["min 64 slots", "broadcast root 0"],
    ),
    (
        "min g label=counts",
        "min g label=votes",
        ["`counts`", "`votes`"],
    ),
    (
        "barrier g label=start",
        "barrier g label=end",
        ["`start`", "`end`"],
    ),
    (
        "min g slots=50 label=one",
        "min g slots=50 label=two",
        ["`one`", "`two`"],
    ),
    (
        "broadcast g root=0 bytes=8",
        "broadcast g root=1 bytes=8",
        ["root 0", "root 1"],
    ),
    (
        "broadcast g root=2 bytes=70000",
        "broadcast g root=0 bytes=70000",
        ["root 2", "root 0"],
    ),
    (
        "broadcast g root=2 bytes=4",
        "max g slots=2",
        ["broadcast root 2", "max 2 slots"],
    ),
];

fn names_both_calls(error: &Error, says: [&str; 2], odd: &[usize]) {
    let ErrorKind::Mismatch { one, other } = &*error.kind else {
        panic!("no mismatch: {error}");
    };
    assert_ne!(
        odd.contains(&one.rank),
        odd.contains(&other.rank),
        "{error}"
    );
    for call in [one, other] {
        let says = says[usize::from(odd.contains(&call.rank))];
        assert!(call.to_string().contains(says), "{error} should say {says}");
    }
}

#[test]
fn a_host_that_makes_another_call_is_told_to_all_with_both_calls() {
    let Some(hosts) = two_by_two() else { return };
    for (common, odd, says) in DIFFERENT {
        let error = fourth_call(&hosts, |rank| if rank >= 2 { odd } else { common });
        names_both_calls(&error, says, &[2, 3]);
    }
}

#[test]
fn a_rank_that_makes_another_call_is_told_to_all_hosts_with_both_calls() {
    let Some(hosts) = two_by_two() else { return };
    for (case, (common, odd, says)) in DIFFERENT.into_iter().enumerate() {
        let who = case % 4;
        let error = fourth_call(&hosts, |rank| if rank == who { odd } else { common });
        names_both_calls(&error, says, &[who]);
    }
}

const CALLS: [&str; 4] = [
    "min g slots=8 label=more",
    "max g slots=64 label=more",
    "broadcast g root=0 bytes=4000 label=more",
    "barrier g label=more",
];

/// The deadline of a call that some ranks do not make, in milliseconds.
const DEADLINE: u64 = 1500;

/// After three rounds all but `silent` make one call more, with nothing in between: who knows best who is missing speaks
/// first only if all hosts begin at the same time. What they are told; then those who were late hear it too.
fn one_call_more(hosts: &Hosts, silent: &[usize], op: &str) -> Vec<Error> {
    let op = &format!("{op} within={DEADLINE}");
    let mut ranks = hosts.job().start(|rank| {
        let mut steps = vec!["group g", "min g slots=8 count=3"];
        if silent.contains(&rank) {
            steps.push("hold silent");
        }
        steps.extend([op, "min g label=later", "hold end"]);
        steps
    });
    let mut errors = Vec::new();
    let (late, in_time): (Vec<usize>, Vec<usize>) = ranks
        .all()
        .into_iter()
        .partition(|rank| silent.contains(rank));
    for rank in in_time {
        let report = ranks.report(rank, op);
        let error = report.error().clone();
        assert_eq!((error.round, error.rank), (4, rank), "{op}: {error}");
        assert_poisoned(ranks.report(rank, "min g label=later").error(), &error);
        errors.push(error);
    }
    for rank in &late {
        ranks.holds(*rank, "silent");
        ranks.go(*rank);
    }
    for rank in late {
        let error = ranks.report(rank, op).error().clone();
        assert!(
            errors.iter().any(|told| told.kind == error.kind),
            "{op}, late rank {rank}: {error}"
        );
        assert_poisoned(ranks.report(rank, "min g label=later").error(), &error);
    }
    finish(ranks);
    errors
}

#[test]
fn a_call_too_many_names_a_rank_of_each_host_that_does_not_come() {
    let Some(hosts) = two_by_two() else { return };
    for (silent, named) in [
        (&[1][..], [1]),
        (&[0], [0]),
        (&[3], [3]),
        (&[2], [2]),
        // A host of which nobody comes is named by its leader.
        (&[2, 3], [2]),
        (&[0, 1], [0]),
    ] {
        at_once(&CALLS, |op| {
            for error in one_call_more(&hosts, silent, op) {
                assert_eq!(missing(&error), named, "{op}, {silent:?}: {error}");
                let ErrorKind::Timeout { missing, .. } = &*error.kind else {
                    unreachable!("just seen");
                };
                let seen = (missing[0].last_round, missing[0].last_label.as_str());
                assert_eq!(seen, (3, "test"), "{op}, {silent:?}: {error}");
            }
        });
    }
}

const GRIEFS: [&str; 3] = [
    "min g slots=8",
    "max g slots=1000",
    "broadcast g root=1 bytes=50000",
];

/// What the others are told of ranks that are killed before they call, or while they wait.
fn killed(hosts: &Hosts, victims: &[usize], op: &str, waiting: bool) {
    let mut ranks = hosts.job().start(|_| {
        [
            "group g",
            "min g slots=8 count=10",
            "max g slots=20 count=10",
            "hold grief",
            op,
            "min g label=later",
            "hold end",
        ]
    });
    ranks.all_hold("grief");
    let others: Vec<usize> = ranks.all();
    let others: Vec<usize> = others
        .into_iter()
        .filter(|rank| !victims.contains(rank))
        .collect();
    let kill = |ranks: &mut Ranks| victims.iter().for_each(|rank| ranks.kill(*rank));
    if !waiting {
        kill(&mut ranks);
    }
    others.iter().for_each(|rank| ranks.go(*rank));
    if waiting {
        thread::sleep(Duration::from_millis(150));
        kill(&mut ranks);
    }
    for rank in others {
        let case = format!("{op}, {victims:?} killed, waiting {waiting}");
        let failed = ranks.report(rank, op);
        let error = failed.error();
        assert!(
            matches!(*error.kind, ErrorKind::PeerDied { rank, last_round: 20 } if victims.contains(&rank)),
            "{case}: {error}"
        );
        assert_eq!(error.round, 21, "{case}: {error}");
        assert!(failed.ms < SOON, "{case}: {failed:?}");
        assert_poisoned(ranks.report(rank, "min g label=later").error(), error);
        ranks.holds(rank, "end");
        ranks.go(rank);
    }
    ranks.end();
}

#[test]
fn a_killed_rank_is_named_on_every_host() {
    let Some(hosts) = two_by_two() else { return };
    for victims in [&[0][..], &[1], &[2], &[3], &[0, 1], &[2, 3]] {
        for waiting in [false, true] {
            at_once(&GRIEFS, |op| killed(&hosts, victims, op, waiting));
        }
    }
}

#[test]
fn a_rank_killed_in_the_midst_of_rounds_is_named_on_every_host() {
    let Some(hosts) = two_by_two() else { return };
    for op in GRIEFS {
        for victim in 0..4 {
            let op = format!("{op} count=1000000000");
            let mut ranks = hosts.job().start(|_| {
                [
                    "group g",
                    "ready g",
                    "hold grief",
                    &op,
                    "min g label=later",
                    "hold end",
                ]
                .map(str::to_owned)
            });
            ranks.all_hold("grief");
            ranks.all_go();
            thread::sleep(Duration::from_millis(200));
            ranks.kill(victim);
            let mut rounds = [Vec::new(), Vec::new()];
            for rank in ranks.all() {
                if rank == victim {
                    continue;
                }
                let failed = ranks.report(rank, &op);
                let error = failed.error();
                assert!(
                    matches!(*error.kind, ErrorKind::PeerDied { rank, .. } if rank == victim),
                    "{op}, {victim} killed: {error}"
                );
                assert!(failed.ms < SOON, "{failed:?}");
                assert_poisoned(ranks.report(rank, "min g label=later").error(), error);
                rounds[rank / 2].push(error.round);
                ranks.holds(rank, "end");
                ranks.go(rank);
            }
            ranks.end();
            // One outcome on a host; between hosts, one may have taken the last value and is told at its next call.
            for host in &rounds {
                assert!(host.iter().all(|round| *round == host[0]), "{rounds:?}");
            }
            assert!(rounds[0][0].abs_diff(rounds[1][0]) <= 1, "{rounds:?}");
        }
    }
}

#[test]
fn a_stopped_rank_is_named_on_every_host_when_the_deadline_passes() {
    let Some(hosts) = two_by_two() else { return };
    let op = &format!("min g label=more within={DEADLINE}");
    for victim in 0..4 {
        let others: Vec<usize> = (0..4).filter(|rank| *rank != victim).collect();
        let rest: Vec<_> = others.iter().map(usize::to_string).collect();
        let rest = format!("group rest ranks={}", rest.join(","));
        let mut ranks = hosts.job().start(|rank| {
            let mut steps = vec!["group g", "min g count=3"];
            if rank == victim {
                steps.push("hold grief");
            } else {
                // The others begin together.
                steps.extend([&rest, "ready rest", "hold grief", "barrier rest"]);
            }
            steps.extend([op, "min g label=later", "hold end"]);
            steps
        });
        ranks.all_hold("grief");
        ranks.signal(victim, Signal::SIGSTOP);
        ranks.all_go();
        for rank in others {
            let failed = ranks.report(rank, op);
            assert_eq!(missing(failed.error()), [victim], "{}", failed.error());
            assert!(waited(failed.error()) >= DEADLINE, "{failed:?}");
            assert_poisoned(
                ranks.report(rank, "min g label=later").error(),
                failed.error(),
            );
        }
        ranks.signal(victim, Signal::SIGCONT);
        let late = ranks.report(victim, op);
        assert_eq!(missing(late.error()), [victim], "{}", late.error());
        assert_poisoned(
            ranks.report(victim, "min g label=later").error(),
            late.error(),
        );
        finish(ranks);
    }
}

#[test]
fn the_shortest_deadline_of_a_host_counts_and_names_the_rank_of_another() {
    let Some(hosts) = two_by_two() else { return };
    // Rank 1 leads nobody, has the least time, and cannot see rank 3.
    let short = &format!("min g label=more within={DEADLINE}");
    let mut ranks = hosts.job().start(|rank| {
        let op = if rank == 1 { short } else { "min g label=more" };
        let mut steps = vec!["group g", "min g count=3"];
        if rank == 3 {
            steps.push("hold silent");
        }
        steps.extend([op, "min g label=later", "hold end"]);
        steps
    });
    for (rank, op, least) in [(1, &**short, DEADLINE), (0, "min g label=more", 0)] {
        let failed = ranks.report(rank, op);
        assert_poisoned(
            ranks.report(rank, "min g label=later").error(),
            failed.error(),
        );
        // Rank 2, the leader over there, has a long deadline: nobody but it knows of rank 3.
        assert_eq!(missing(failed.error()), [2], "{}", failed.error());
        assert!((least..SOON).contains(&failed.ms), "{failed:?}");
    }
    ranks.holds(3, "silent");
    ranks.go(3);
    for rank in [2, 3] {
        let failed = ranks.report(rank, "min g label=more");
        assert_poisoned(
            ranks.report(rank, "min g label=later").error(),
            failed.error(),
        );
        assert_eq!(missing(failed.error()), [2], "{}", failed.error());
    }
    finish(ranks);
}

#[test]
fn a_rank_that_has_left_is_named_on_every_host() {
    let Some(hosts) = two_by_two() else { return };
    for victim in 0..4 {
        for op in CALLS {
            let mut ranks = hosts.job().start(|rank| {
                let mut steps = vec!["group g", "min g count=3", "hold apart"];
                if rank == victim {
                    steps.push("close g");
                } else {
                    steps.extend([op, "min g label=later"]);
                }
                steps.push("hold end");
                steps
            });
            ranks.all_hold("apart");
            ranks.all_go();
            for rank in (0..4).filter(|rank| *rank != victim) {
                let failed = ranks.report(rank, op).error().clone();
                assert_eq!(
                    *failed.kind,
                    ErrorKind::PeerClosed {
                        rank: victim,
                        last_round: 3
                    },
                    "{op}: {failed}"
                );
                assert_poisoned(ranks.report(rank, "min g label=later").error(), &failed);
            }
            finish(ranks);
        }
    }
}

#[test]
fn an_abort_and_a_panic_reach_every_host_with_rank_and_reason() {
    let Some(hosts) = two_by_two() else { return };
    for (end, reason) in [
        ("abort out of pages", "out of pages"),
        ("panic g", "panicked"),
    ] {
        for culprit in 0..4 {
            let mut ranks = hosts.job().start(|rank| {
                let mut steps = vec!["group g", "min g count=3", "hold apart"];
                if rank == culprit {
                    steps.push(end);
                } else {
                    steps.extend(["min g label=more", "min g label=later"]);
                }
                steps.push("hold end");
                steps
            });
            ranks.all_hold("apart");
            for rank in (0..4).filter(|rank| *rank != culprit) {
                ranks.go(rank);
            }
            thread::sleep(Duration::from_millis(100));
            ranks.go(culprit);
            for rank in (0..4).filter(|rank| *rank != culprit) {
                let report = ranks.report(rank, "min g label=more");
                let failed = report.error();
                let ErrorKind::Aborted {
                    rank: by,
                    reason: why,
                } = &*failed.kind
                else {
                    panic!("{end}, {culprit}: {failed}");
                };
                assert_eq!(*by, culprit, "{end}: {failed}");
                assert!(why.contains(reason), "{failed}");
                assert!(report.ms < SOON, "{report:?}");
                assert_poisoned(ranks.report(rank, "min g label=later").error(), failed);
            }
            finish(ranks);
        }
    }
}

#[test]
fn a_fast_rank_may_leave_while_a_slow_one_still_reads_its_result() {
    let Some(hosts) = two_by_two() else { return };
    for last in [
        "min g slots=8",
        "max g slots=5000",
        "broadcast g root=0 bytes=1000000",
        "barrier g",
    ] {
        for fast in 0..4 {
            let mut ranks = hosts.job().start(|rank| {
                let mut steps = vec!["group g", "min g slots=8 count=100", last];
                if rank != fast {
                    steps.push("sleep 300");
                }
                steps
            });
            for rank in ranks.all() {
                ranks.report(rank, last).well();
            }
            ranks.end();
        }
    }
}

#[test]
fn hosts_with_networks_of_their_own_agree_and_name_a_dead_rank() {
    // Rank 0, who serves, on either; members of a host are no neighbours.
    for side in 0..2 {
        let Some(hosts) = Cabled::new(5, |rank| (rank + side) % 2, true) else {
            return;
        };
        let job = match side {
            0 => hosts.job(),
            _ => hosts
                .job()
                .var("RANKPACT_RENDEZVOUS", "tcp://10.77.0.2:4000"),
        };
        let mut ranks = job.start(|_| {
            [
                "group g",
                "min g slots=8 count=100 full",
                "max g slots=3000 count=10",
                "broadcast g root=3 bytes=300000 count=10",
                "soak g count=500",
                "path g",
                "hold grief",
                "min g label=more",
                "hold end",
            ]
        });
        for rank in ranks.all() {
            let said = ranks.report(rank, "path g").well().to_owned();
            assert!(said.starts_with("hierarchical"), "{said}");
        }
        ranks.all_hold("grief");
        ranks.kill(3);
        for rank in [0, 1, 2, 4] {
            ranks.go(rank);
        }
        for rank in [0, 1, 2, 4] {
            let failed = ranks.report(rank, "min g label=more");
            assert!(
                matches!(failed.kind(), ErrorKind::PeerDied { rank: 3, .. }),
                "{}",
                failed.error()
            );
            assert!(failed.ms < SOON, "{failed:?}");
            ranks.holds(rank, "end");
            ranks.go(rank);
        }
        ranks.end();
    }
}

/// Of the connections that a process of an idle job sees: whether each is to another host, and kept alive by probes.
fn connections(pid: Pid) -> Vec<(bool, bool)> {
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines
        // Established ones.
        .filter(|words| words[3] == "01")
        .map(|words| {
            let host = |word: &str| word.split(':').next().unwrap().to_owned();
            let other = host(words[1]) != host(words[2]);
            (other, words[5].starts_with("02:"))
        })
        .collect()
}

#[test]
fn idle_connections_are_probed_between_hosts_and_not_within_one() {
    let Some(hosts) = Cabled::new(4, |rank| rank / 2, true) else {
        return;
    };
    let job = hosts.job().path(PathChoice::Tcp);
    let mut ranks = job.start(|_| ["group g", "min g count=3", "hold idle"]);
    ranks.all_hold("idle");
    let pid = ranks.pid(0);
    // An acknowledgement may still be on its way.
    let until = Instant::now() + Duration::from_secs(5);
    let mut seen = connections(pid);
    while seen.iter().any(|(other, probed)| other != probed) && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
        seen = connections(pid);
    }
    assert!(
        seen.iter().all(|(other, probed)| other == probed),
        "{seen:?}"
    );
    for other in [false, true] {
        assert!(seen.iter().any(|one| one.0 == other), "{seen:?}");
    }
    ranks.all_go();
    ranks.end();
}

#[test]
fn a_network_that_vanishes_is_an_error_on_all_ranks_by_their_deadline() {
    for op in [
        "min g label=more",
        "broadcast g root=1 bytes=5000000 label=more",
    ] {
        let Some(hosts) = Cabled::new(4, |rank| rank / 2, true) else {
            return;
        };
        let op = format!("{op} within={DEADLINE}");
        let mut ranks = hosts.job().start(|rank| {
            let (host, members) = [("one", "0,1"), ("other", "2,3")][rank / 2];
            [
                "group g",
                "min g count=3",
                &format!("group {host} ranks={members}"),
                &format!("ready {host}"),
                "hold grief",
                // The ranks of a host begin together.
                &format!("barrier {host}"),
                &op,
                "min g label=later",
            ]
            .map(str::to_owned)
        });
        ranks.all_hold("grief");
        hosts.cut();
        ranks.all_go();
        for rank in ranks.all() {
            let failed = ranks.report(rank, &op);
            let other = if rank < 2 { 2 } else { 0 };
            assert_eq!(missing(failed.error()), [other], "{}", failed.error());
            // In 0.5 s more; the machine of a test may be busy.
            let waited = waited(failed.error());
            assert!((DEADLINE..SOON).contains(&waited), "{failed:?}");
            assert_poisoned(
                ranks.report(rank, "min g label=later").error(),
                failed.error(),
            );
        }
        ranks.end();
    }
}

/// Every rank of `jobs`, each in namespaces of its own as well, takes `path`.
fn all_take(path: &str, job: impl Fn(usize) -> Job + Sync) {
    let own = ["-p -f --kill-child", "-u", "-i"];
    at_once(&[0, 1, 2, 3, 4, 5, 6, 7], |which: usize| {
        let kinds = own
            .iter()
            .enumerate()
            .filter(|(bit, _)| which >> bit & 1 == 1);
        let mut words: Vec<&str> = kinds.flat_map(|(_, words)| words.split(' ')).collect();
        if !words.is_empty() {
            words.insert(0, "unshare");
        }
        // Some ranks have namespaces of their own, others not.
        let job = [0, 3]
            .into_iter()
            .fold(job(which), |job, rank| job.wrapped_rank(rank, &words));
        let mut ranks = job.start(|_| {
            [
                "group g",
                "min g count=20",
                "max g slots=50",
                "path g",
                "hold end",
            ]
        });
        for rank in ranks.all() {
            let said = ranks.report(rank, "path g").well().to_owned();
            assert!(said.starts_with(path), "{words:?}, rank {rank}: {said}");
        }
        finish(ranks);
    });
}

#[test]
fn all_ranks_take_the_same_path_in_every_combination_of_namespaces() {
    let Some(memory) = two_by_two() else { return };
    all_take("table", |_| job(4).path(PathChoice::Auto));
    all_take("hierarchical", |_| memory.job());
    for (apart, path) in [(false, "table"), (true, "hierarchical")] {
        let Some(network) = Cabled::new(4, |rank| rank / 2, apart) else {
            return;
        };
        let at = |which| format!("tcp://10.77.0.1:{}", 4000 + which);
        all_take(path, |which| {
            network.job().var("RANKPACT_RENDEZVOUS", at(which))
        });
    }
}

#[test]
fn groups_opened_again_and_again_keep_neither_memory_nor_connections() {
    let Some(hosts) = two_by_two() else { return };
    let mut ranks = hosts.job().start(|_| {
        [
            "reopen r count=45",
            "holdings",
            "reopen r count=45",
            "holdings",
            "hold end",
        ]
    });
    for rank in ranks.all() {
        let [before, after] = [(); 2].map(|()| ranks.report(rank, "holdings").well().to_owned());
        assert_eq!(before, after, "rank {rank}");
    }
    finish(ranks);
}
