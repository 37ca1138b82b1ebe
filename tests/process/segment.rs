//! Where the memory of a group comes from: folders too small, read-only or not shared, and names left behind.

use crate::crash::at_once;
use crate::{PATHS, job, missing};
use nix::sys::signal::Signal;
use rankpact_collective::{Error, ErrorKind, PathChoice};
use rankpact_tests::{Job, Namespace, Port, Ranks, may_unshare};
use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// The path of a group of each rank, as it says itself, after some rounds of every kind.
fn path_after_rounds(job: Job) -> (Ranks, Vec<String>) {
    let mut ranks = job.start(|_| {
        [
            "group g",
            "min g slots=8 count=20 full",
            "max g slots=100 count=3",
            "broadcast g root=1 bytes=10000",
            "path g",
            "hold end",
        ]
    });
    let said = ranks
        .all()
        .into_iter()
        .map(|rank| ranks.report(rank, "path g").well().to_owned())
        .collect();
    (ranks, said)
}

fn finish(mut ranks: Ranks) {
    ranks.all_hold("end");
    ranks.all_go();
    ranks.end();
}

fn within(namespace: &Namespace, job: Job) -> Job {
    let words = namespace.words();
    job.wrapped(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_folder_one_page_too_small_means_tcp_on_all_ranks_or_an_error_on_all() {
    if !may_unshare() {
        return;
    }
    let tiny = Namespace::new("mount -t tmpfs -o size=4k tmpfs /dev/shm");
    for size in [2, 4] {
        let (ranks, said) = path_after_rounds(within(&tiny, job(size).path(PathChoice::Auto)));
        let first = said[0].clone();
        for said in &said {
            assert!(said.starts_with("tcp: no space for /dev/shm/"), "{said}");
            assert_eq!(*said, first, "the reason is the same on all ranks");
        }
        finish(ranks);

        let mut ranks = within(&tiny, job(size).path(PathChoice::Table))
            .start(|_| ["group g", "min g", "min g label=later", "hold end"]);
        for rank in ranks.all() {
            let failed = ranks.report(rank, "min g");
            let ErrorKind::NoSpace { path, needed, free } = failed.kind() else {
                panic!("{}", failed.error());
            };
            assert!(path.starts_with("/dev/shm/"), "{path}");
            assert!(
                needed > free && *free <= 4096,
                "{needed} needed, {free} free"
            );
            crate::assert_poisoned(
                ranks.report(rank, "min g label=later").error(),
                failed.error(),
            );
        }
        finish(ranks);
        assert!(tiny.names("/dev/shm").is_empty());
    }
}

#[test]
fn a_folder_that_fills_up_means_tcp_for_the_groups_that_come_too_late() {
    if !may_unshare() {
        return;
    }
    for path in [PathChoice::Auto, PathChoice::Table] {
        let small = Namespace::new("mount -t tmpfs -o size=64k tmpfs /dev/shm");
        // Tables of eight ranks take 12 KiB and more each, and live as long as their groups.
        let names: Vec<_> = (0..6).map(|n| format!("g{n}")).collect();
        let mut ranks = within(&small, job(8).path(path)).start(|_| {
            let mut steps = Vec::new();
            for name in &names {
                steps.push(format!("group {name}"));
                steps.push(format!("min {name} count=3 full"));
                steps.push(format!("path {name}"));
            }
            // Those that have a table still have it.
            steps.push("max g0 count=10 full".to_owned());
            steps.push("hold end".to_owned());
            steps
        });
        let mut kinds = Vec::new();
        for rank in ranks.all() {
            let mut row = String::new();
            for name in &names {
                let opened = loop {
                    let report = ranks.next(rank).expect("the rank is alive");
                    if report.step.starts_with("min") {
                        break report;
                    }
                };
                let path = ranks.next(rank).expect("the rank is alive");
                row.push(match (&opened.outcome, &path.outcome) {
                    (Ok(_), Ok(said)) if said.starts_with("table") => 't',
                    (Ok(_), Ok(said)) if said.starts_with("tcp: no space") => 's',
                    (Err(_), _) if matches!(opened.kind(), ErrorKind::NoSpace { .. }) => 'n',
                    other => panic!("{name}: {other:?}"),
                });
            }
            kinds.push(row);
        }
        let late = if path == PathChoice::Auto { 's' } else { 'n' };
        assert!(
            kinds[0].starts_with('t') && kinds[0].ends_with(late),
            "{kinds:?}"
        );
        assert!(kinds.iter().all(|row| *row == kinds[0]), "{kinds:?}");
        for rank in ranks.all() {
            ranks.holds(rank, "end");
        }
        assert!(small.names("/dev/shm").is_empty());
        ranks.all_go();
        ranks.end();
    }
}

#[test]
fn a_read_only_folder_means_tcp_on_all_ranks_or_an_error_on_all() {
    if !may_unshare() {
        return;
    }
    let read_only = Namespace::new("mount -t tmpfs -o size=1m,ro tmpfs /dev/shm");
    let (reason, error) = refused_alike(|| within(&read_only, job(3)));
    for text in [reason, error.to_string()] {
        assert!(text.contains("/dev/shm"), "{text}");
    }
}

/// All ranks take TCP for the same reason, or fail with the same error where they must not; returns both.
fn refused_alike(job: impl Fn() -> Job) -> (String, Error) {
    let (ranks, said) = path_after_rounds(job().path(PathChoice::Auto));
    for reason in &said {
        assert!(reason.starts_with("tcp: "), "{reason}");
        assert_eq!(*reason, said[0]);
    }
    finish(ranks);

    let mut ranks = job()
        .path(PathChoice::Table)
        .start(|_| ["group g", "min g", "min g label=later", "hold end"]);
    let mut errors = Vec::new();
    for rank in ranks.all() {
        let failed = ranks.report(rank, "min g");
        let later = ranks.report(rank, "min g label=later");
        crate::assert_poisoned(later.error(), failed.error());
        errors.push(failed.error().clone());
    }
    for error in &errors {
        assert_eq!(error.kind, errors[0].kind);
    }
    finish(ranks);
    (said[0].clone(), errors.remove(0))
}

/// The program of `nobody`, who may do nothing.
const NOBODY: [&str; 6] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--bounding-set=-all",
    "--no-new-privs",
];

/// Whether there can be such a program, and may be seen by its user; says so if not.
fn may_be_nobody() -> bool {
    let rank = env!("CARGO_BIN_EXE_rankpact-rank");
    let tried = Command::new(NOBODY[0])
        .args(&NOBODY[1..])
        .args(["test", "-x", rank])
        .output();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("SKIPPED, the user nobody cannot start {rank}");
    }
    may && may_unshare()
}

fn may_meet(job: Job) -> Job {
    chown(job.folder(), Some(65534), Some(65534)).expect("this is root");
    job
}

/// A `/dev` in which there is no folder for segments.
const NO_SHM: &str =
    "umount -l /dev/shm || true; mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3";

#[test]
fn no_dev_shm_at_all_means_tcp_on_all_ranks_or_an_error_on_all() {
    if !may_unshare() {
        return;
    }
    let bare = Namespace::new(NO_SHM);
    let (reason, error) = refused_alike(|| within(&bare, job(3)));
    for text in [reason, error.to_string()] {
        assert!(
            text.contains("/dev/shm/") && text.contains("does not exist"),
            "{text}"
        );
    }
}

#[test]
fn a_folder_that_belongs_to_another_user_means_tcp_on_all_ranks_or_an_error_on_all() {
    if !may_be_nobody() {
        return;
    }
    let roots = Namespace::new("mount -t tmpfs -o size=1m,mode=755 tmpfs /dev/shm");
    let (reason, error) = refused_alike(|| may_meet(within(&roots, job(3)).wrapped(&NOBODY)));
    assert!(reason.contains("no permission for /dev/shm"), "{reason}");
    let ErrorKind::Permission { path, owner } = &*error.kind else {
        panic!("{error}");
    };
    assert_eq!((path.as_str(), owner.as_str()), ("/dev/shm", "uid 0"));
    assert!(roots.names("/dev/shm").is_empty());
}

#[test]
fn a_folder_that_fails_one_rank_means_tcp_on_all_ranks_or_an_error_on_all() {
    if !may_unshare() {
        return;
    }
    let troubles = [
        "mount -t tmpfs -o size=4k tmpfs /dev/shm",
        "mount -t tmpfs -o size=1m,ro tmpfs /dev/shm",
        "mount --bind /dev/shm /dev/shm; mount -o remount,bind,ro /dev/shm",
        NO_SHM,
    ];
    thread::scope(|scope| {
        for trouble in troubles {
            scope.spawn(move || {
                let namespace = Namespace::new(trouble);
                let words = namespace.words();
                let words: Vec<_> = words.iter().map(String::as_str).collect();
                for rank in 0..3 {
                    let (reason, error) = refused_alike(|| job(3).wrapped_rank(rank, &words));
                    for text in [reason, error.to_string()] {
                        assert!(text.contains("/dev/shm"), "{trouble}, rank {rank}: {text}");
                    }
                }
            });
        }
    });
}

#[test]
fn one_rank_of_another_user_means_tcp_on_all_ranks_or_an_error_on_all() {
    if !may_be_nobody() {
        return;
    }
    for stranger in [0, 1] {
        // A folder of one user is no place to meet for two.
        let port = Port::free();
        let (reason, error) = refused_alike(|| {
            let place = format!("tcp://127.0.0.1:{}", port.number());
            job(3)
                .var("RANKPACT_RENDEZVOUS", place)
                .var("RANKPACT_TOKEN", "of two users")
                .wrapped_rank(stranger, &NOBODY)
        });
        let owner = if stranger == 0 { "uid 65534" } else { "uid 0" };
        for text in [reason, error.to_string()] {
            assert!(text.contains("/dev/shm/") && text.contains(owner), "{text}");
        }
        // One who may open the file of another user does not take it for its own.
        match (&*error.kind, stranger) {
            (ErrorKind::Foreign { .. }, 0) | (ErrorKind::Permission { .. }, 1) => {}
            _ => panic!("{error}"),
        }
    }
}

#[test]
fn no_folder_at_all_means_tcp_on_all_ranks_or_an_error_on_all() {
    let (reason, error) = refused_alike(|| job(2).var("RANKPACT_SHM_DIR", "/no/such/folder"));
    for text in [reason, error.to_string()] {
        assert!(text.contains("/no/such/folder"), "{text}");
    }
}

/// Every rank with a `/dev/shm` of its own, as in two containers of one pod.
const OWN_MOUNTS: [&str; 6] = [
    "unshare",
    "-m",
    "sh",
    "-ec",
    "mount -t tmpfs -o size=1m tmpfs /dev/shm; exec \"$@\"",
    "sh",
];

#[test]
fn ranks_that_do_not_share_a_folder_use_tcp_on_all_sides() {
    if !may_unshare() {
        return;
    }
    for size in [2, 3] {
        let (mut ranks, said) =
            path_after_rounds(job(size).path(PathChoice::Auto).wrapped(&OWN_MOUNTS));
        for said in &said {
            assert!(said.starts_with("tcp: "), "{said}");
        }
        ranks.all_hold("end");
        ranks.all_go();
        ranks.end();

        let mut ranks = job(size)
            .path(PathChoice::Table)
            .wrapped(&OWN_MOUNTS)
            .start(|_| ["group g", "min g", "hold end"]);
        let mut errors = Vec::new();
        for rank in ranks.all() {
            errors.push(ranks.report(rank, "min g").kind().clone());
        }
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        finish(ranks);
    }
}

#[test]
fn ranks_in_their_own_pid_namespaces_share_a_table_and_notice_a_death() {
    if !may_unshare() {
        return;
    }
    let wrapped = ["unshare", "-p", "-f", "--kill-child"];
    let (ranks, said) = path_after_rounds(job(3).path(PathChoice::Auto).wrapped(&wrapped));
    for said in &said {
        assert!(said.starts_with("table"), "{said}");
    }
    finish(ranks);

    for path in PATHS {
        let mut ranks = job(3)
            .path(path)
            .wrapped(&wrapped)
            .start(|_| ["group g", "ready g", "hold waiting", "min g", "hold end"]);
        ranks.all_hold("waiting");
        ranks.go(0);
        ranks.go(2);
        thread::sleep(Duration::from_millis(150));
        ranks.signal(1, Signal::SIGKILL);
        for rank in [0, 2] {
            let failed = ranks.report(rank, "min g");
            assert!(
                matches!(failed.kind(), ErrorKind::PeerDied { rank: 1, .. }),
                "{}",
                failed.error()
            );
            assert!(failed.ms < 5_000, "{failed:?}");
            ranks.holds(rank, "end");
            ranks.go(rank);
        }
        ranks.end();
    }
}

#[test]
fn the_folder_of_the_segments_can_be_another_one() {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let (ranks, said) = path_after_rounds(
        job(3)
            .path(PathChoice::Auto)
            .var("RANKPACT_SHM_DIR", folder.path().display()),
    );
    for said in &said {
        assert!(said.starts_with("table"), "{said}");
    }
    let left: Vec<_> = fs::read_dir(folder.path())
        .expect("it is still there")
        .collect();
    assert!(left.is_empty(), "{left:?}");
    finish(ranks);
}

#[test]
fn a_shared_volume_serves_ranks_whose_shm_is_not_shared() {
    if !may_unshare() {
        return;
    }
    let volume = tempfile::tempdir().expect("there is room for a folder");
    let job = job(2)
        .path(PathChoice::Auto)
        .wrapped(&OWN_MOUNTS)
        .var("RANKPACT_SHM_DIR", volume.path().display());
    let (ranks, said) = path_after_rounds(job);
    for said in &said {
        assert!(said.starts_with("table"), "{said}");
    }
    finish(ranks);
    let pod = Namespace::new(&format!(
        "mount -t tmpfs -o size=4k tmpfs /dev/shm; mount -t tmpfs -o size=1m tmpfs {}",
        volume.path().display()
    ));
    let job = within(&pod, crate::job(2).path(PathChoice::Table))
        .var("RANKPACT_SHM_DIR", volume.path().display());
    let (ranks, said) = path_after_rounds(job);
    for said in &said {
        assert!(said.starts_with("table"), "{said}");
    }
    assert!(pod.names(&volume.path().display().to_string()).is_empty());
    finish(ranks);
}

#[test]
fn what_others_left_in_the_folder_is_neither_followed_nor_removed() {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let victim = folder.path().join("precious");
    fs::write(&victim, "precious").expect("it can be written");
    let job = job(2)
        .path(PathChoice::Table)
        .var("RANKPACT_SHM_DIR", folder.path().display());
    for name in [
        "rankpact-0-0-g",
        "rankpact-0-leftover",
        "rankpact-1234-g-00",
    ] {
        std::os::unix::fs::symlink(&victim, folder.path().join(name)).expect("it can be linked");
    }
    let (ranks, said) = path_after_rounds(job);
    assert!(
        said.iter().all(|said| said.starts_with("table")),
        "{said:?}"
    );
    finish(ranks);
    assert_eq!(
        fs::read_to_string(&victim).expect("it is still there"),
        "precious"
    );
    let left = fs::read_dir(folder.path())
        .expect("it is still there")
        .count();
    assert_eq!(left, 4);
}

#[test]
fn two_jobs_with_the_same_names_at_the_same_instant_never_share() {
    for path in [PathChoice::Auto, PathChoice::Tcp] {
        let start = |salt: u64| {
            job(2)
                .path(path)
                .option(format!("--salt={salt}"))
                .start(|_| {
                    [
                        "group g",
                        "group h",
                        "min g slots=8 count=300 full",
                        "max h slots=8 count=300",
                        "min g slots=30 count=100",
                        "path g",
                    ]
                })
        };
        let (one, other) = (start(1), start(2));
        one.end();
        other.end();
    }
}

#[test]
fn a_join_with_one_rank_missing_names_it() {
    at_once(&[1, 3], |absent| {
        let mut ranks = job(4)
            .without(absent)
            .timeout(Duration::from_secs(5))
            .start(|_| ["hold end"]);
        for rank in ranks.all() {
            let failed = ranks.report(rank, "join");
            assert_eq!(
                missing(failed.error()),
                [absent],
                "rank {rank}: {}",
                failed.error()
            );
        }
        ranks.end();
    });
}

#[test]
fn a_group_with_one_member_missing_names_it() {
    for path in PATHS {
        let mut ranks = job(3).path(path).start(|rank| {
            let mut steps = vec!["group g", "hold apart"];
            if rank != 1 {
                steps.push("min g within=1500");
            }
            steps.push("hold end");
            steps
        });
        ranks.all_hold("apart");
        ranks.go(0);
        ranks.go(2);
        for rank in [0, 2] {
            let failed = ranks.report(rank, "min g within=1500");
            assert_eq!(missing(failed.error()), [1], "{path}: {}", failed.error());
        }
        ranks.go(1);
        finish(ranks);
    }
}

/// All ranks are told of a setting of rank 1 that differs.
pub(crate) fn refused(job: Job, field: &str, values: [&str; 2]) {
    let mut ranks = job.start(|_| ["hold end"]);
    for rank in ranks.all() {
        let failed = ranks.report(rank, "join");
        let ErrorKind::Config {
            field: named,
            one,
            other,
        } = failed.kind()
        else {
            panic!("rank {rank}: {}", failed.error());
        };
        assert_eq!(named, field);
        assert_eq!((one.0, other.0), (0, 1), "{}", failed.error());
        assert!(
            one.1.contains(values[0]) && other.1.contains(values[1]),
            "{}",
            failed.error()
        );
    }
    ranks.end();
}

#[test]
fn settings_that_differ_are_refused_at_the_join_with_both_values() {
    refused(
        job(3).var_of(1, "RANKPACT_TIMEOUT", 31),
        "timeout",
        ["30", "31"],
    );
    refused(
        job(3)
            .path(PathChoice::Auto)
            .var_of(1, "RANKPACT_PATH", "tcp"),
        "path",
        ["auto", "tcp"],
    );
}

#[test]
fn no_privilege_is_needed() {
    if !may_be_nobody() {
        return;
    }
    let job = job(2).path(PathChoice::Table).wrapped(&NOBODY);
    let (ranks, said) = path_after_rounds(may_meet(job));
    assert!(
        said.iter().all(|said| said.starts_with("table")),
        "{said:?}"
    );
    finish(ranks);
}

#[test]
fn settings_of_one_rank_may_differ_where_they_are_its_own_affair() {
    let (ranks, said) = path_after_rounds(
        job(3)
            .path(PathChoice::Table)
            .var_of(0, "RANKPACT_WAIT", "park")
            .var_of(1, "RANKPACT_WAIT", "yield"),
    );
    assert!(
        said.iter().all(|said| said.starts_with("table")),
        "{said:?}"
    );
    finish(ranks);
}

#[test]
fn deadlines_of_a_group_that_differ_are_refused_when_it_opens() {
    for path in PATHS {
        let mut ranks = job(2).path(path).start(|rank| {
            let seconds = [7, 8][rank];
            vec![
                format!("group g timeout={seconds}000"),
                "min g".to_owned(),
                "hold end".into(),
            ]
        });
        for rank in ranks.all() {
            let failed = ranks.report(rank, "min g");
            let ErrorKind::Config { one, other, .. } = failed.kind() else {
                panic!("{path}: {}", failed.error());
            };
            assert!(
                one.1.contains('7') && other.1.contains('8'),
                "{path}: {}",
                failed.error()
            );
        }
        finish(ranks);
    }
}
