//! A forked child may drop everything its parent holds, and ask for anything: nothing of it reaches the job.

#[path = "harness/process.rs"]
mod process;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use process::child;
use rankpact_collective::{
    ErrorKind, Group, Join, Op, Options, PathChoice, Relay, Rendezvous, World,
};
use std::path::Path;
use std::time::Duration;

fn ended(pid: Pid) {
    assert_eq!(
        waitpid(pid, None),
        Ok(WaitStatus::Exited(pid, 0)),
        "an assertion of a child failed"
    );
}

fn round(group: &mut Group, slots: usize) {
    let mut values = vec![3 + i64::try_from(group.rank()).expect("small"); slots];
    group
        .all_reduce(Op::Max, &mut values, "round")
        .expect("the group is whole");
    assert_eq!(values, vec![4; slots]);
}

/// A message from rank 0 to rank 1 and one back.
fn messages(group: &mut Group) {
    let peer = 1 - group.rank();
    let mut got = Vec::new();
    if peer == 1 {
        group.send(peer, b"there", "there").expect("both call");
    } else {
        group.recv(peer, &mut got, "there").expect("both call");
        group.send(peer, &got, "back").expect("both call");
    }
    if peer == 1 {
        group.recv(peer, &mut got, "back").expect("both call");
    }
    assert_eq!(got, b"there");
}

fn handed_on(relay: &mut Relay, rank: usize) {
    let mut values = vec![7, 8];
    if rank == 0 {
        relay.post(&values, "vector").expect("both call");
        relay.finish("end").expect("both call");
    } else {
        relay.next(&mut values, "vector").expect("both call");
    }
    assert_eq!(values, [7, 8]);
}

fn rank(rank: usize, folder: &Path) {
    let mut join = Join::new(rank, 2, Rendezvous::Folder(folder.to_owned()));
    join.options.timeout = Duration::from_secs(15);
    let world = World::connect(join).expect("both come");
    let tcp = Options {
        path: PathChoice::Tcp,
        ..world.options().clone()
    };
    let mut groups = vec![
        world.everybody("table").expect("a group"),
        world.everybody_with("tcp", tcp).expect("a group"),
    ];
    for group in &mut groups {
        round(group, 8);
        round(group, 100);
        messages(group);
    }
    let (upstream, downstream) = if rank == 0 {
        (None, Some(1))
    } else {
        (Some(0), None)
    };
    let mut relay = world.relay("relay", upstream, downstream).expect("a relay");
    handed_on(&mut relay, rank);
    let (mut world, mut groups, mut relay) = (Some(world), Some(groups), Some(relay));
    if rank == 0 {
        // By reference, or the parent would drop what it hands over.
        ended(child(|| {
            forked(
                world.take().expect("held"),
                groups.take().expect("held"),
                relay.take().expect("held"),
            );
        }));
    }
    let (world, mut groups, mut relay) = (
        world.expect("the child took a copy"),
        groups.expect("the child took a copy"),
        relay.expect("the child took a copy"),
    );
    for group in &mut groups {
        round(group, 8);
        round(group, 100);
        messages(group);
    }
    handed_on(&mut relay, rank);
    round(&mut world.everybody("later").expect("a group"), 8);
}

fn forked(world: World, mut groups: Vec<Group>, mut relay: Relay) {
    let forked = relay.post(&[9], "vector").expect_err("a child");
    assert_eq!(*forked.kind, ErrorKind::Forked);
    assert_eq!(
        *relay.settle().expect_err("a child").kind,
        ErrorKind::Forked
    );
    for group in &mut groups {
        for error in [
            group
                .send(1, b"not from a child", "there")
                .expect_err("a child"),
            group.recv(1, &mut Vec::new(), "back").expect_err("a child"),
        ] {
            assert_eq!(*error.kind, ErrorKind::Forked);
        }
        for slots in [8, 100] {
            let error = group
                .all_reduce(Op::Max, &mut vec![9; slots], "round")
                .expect_err("a child");
            assert_eq!(*error.kind, ErrorKind::Forked);
        }
        group.abort("not from a child");
    }
    let mut new = world.everybody("new").expect("only a name");
    assert_eq!(*new.ready().expect_err("a child").kind, ErrorKind::Forked);
    world.abort("not from a child");
    drop((new, groups, relay, world));
}

// One test in this program: a fork beside other tests' threads would copy their locks in whatever state they are.
#[test]
fn a_child_that_drops_everything_takes_nothing_from_its_parent() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ranks = [0, 1].map(|me| child(|| rank(me, folder.path())));
    // A watchdog: whoever hangs is ended, and the assertions below say so.
    let dog = child(|| {
        std::thread::sleep(Duration::from_secs(30));
        for pid in ranks {
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    for rank in ranks {
        ended(rank);
    }
    kill(dog, Signal::SIGKILL).expect("ours");
    waitpid(dog, None).expect("ours");
}
