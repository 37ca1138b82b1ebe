//! A forked child may drop everything its parent holds, and ask for anything: nothing of it reaches the job.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use rankpact_collective::{ErrorKind, Group, Join, Op, Options, PathChoice, Rendezvous, World};
use std::path::Path;
use std::time::Duration;

/// Runs `body` in a child; its exit code is 0 if it returns.
fn child(body: impl FnOnce()) -> Pid {
    // SAFETY: the child runs `body` and exits without returning. Locks that other threads hold at this moment are
    // theirs for ever there; nothing that `body` calls may wait for one, which is part of what is tested.
    match unsafe { fork() }.expect("a process") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
            // SAFETY: ends the child at once, without the exit handlers of the test harness.
            unsafe { nix::libc::_exit(i32::from(!good)) }
        }
    }
}

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
    }
    let (mut world, mut groups) = (Some(world), Some(groups));
    if rank == 0 {
        // By reference, or the parent would drop what it hands over.
        ended(child(|| {
            forked(world.take().expect("held"), groups.take().expect("held"));
        }));
    }
    let (world, mut groups) = (
        world.expect("the child took a copy"),
        groups.expect("the child took a copy"),
    );
    for group in &mut groups {
        round(group, 8);
        round(group, 100);
    }
    round(&mut world.everybody("later").expect("a group"), 8);
}

fn forked(world: World, mut groups: Vec<Group>) {
    for group in &mut groups {
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
    drop((new, groups, world));
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
