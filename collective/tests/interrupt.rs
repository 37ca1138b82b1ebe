//! Whatever a rank waits for, the program can end it: the job ends on all ranks, with its reason.

use rankpact_collective::{
    Error, ErrorKind, Group, Interrupt, Join, Op, Options, PathChoice, Rendezvous, World,
};
use std::cell::Cell;
use std::path::Path;
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const REASON: &str = "somebody pressed a key";

/// Beyond a few slices, and long before any deadline.
const SOON: Duration = Duration::from_secs(5);

thread_local! {
    /// When this rank has had enough.
    static ENOUGH: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn asked() -> Option<String> {
    let enough = ENOUGH.get().is_some_and(|at| Instant::now() >= at);
    enough.then(|| REASON.to_owned())
}

/// What a rank waits for in vain.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Joining,
    Opening,
    Row(PathChoice),
    Wide(PathChoice),
    Broadcast(PathChoice),
    Message,
    FirstMessage,
    Relay,
}

fn join(rank: usize, folder: &Path) -> Result<World, Error> {
    let mut join = Join::new(rank, 2, Rendezvous::Folder(folder.to_owned()));
    join.options.timeout = Duration::from_secs(60);
    join.options.interrupt = Some(Interrupt(asked));
    World::connect(join)
}

fn group(world: &World, path: PathChoice) -> Group {
    let options = Options {
        path,
        ..world.options().clone()
    };
    let mut group = world.everybody_with("group", options).expect("a name");
    group.barrier("together").expect("both call");
    group
}

/// The wait, which calls what it is given when it is over and before anything closes.
type Waiting<'a> = Box<dyn FnOnce(&dyn Fn()) -> Error + 'a>;

/// What both do before one of them waits, and then the wait.
fn prepare(world: &World, wait: Wait) -> Waiting<'_> {
    fn with<'a, T: 'a>(
        mut state: T,
        call: impl Fn(&mut T) -> Result<(), Error> + 'a,
    ) -> Waiting<'a> {
        Box::new(move |over| {
            let error = call(&mut state).expect_err("it waits in vain");
            over();
            error
        })
    }
    match wait {
        Wait::Joining => unreachable!("it has joined"),
        Wait::Opening => with(world.everybody("late").expect("a name"), Group::ready),
        Wait::Row(path) => with(group(world, path), |group| {
            group.all_reduce(Op::Min, &mut [1], "row")
        }),
        Wait::Wide(path) => with(group(world, path), |group| {
            group.all_reduce(Op::Min, &mut [1; 5000], "wide")
        }),
        Wait::Broadcast(path) => with(group(world, path), |group| {
            group.broadcast(0, &mut vec![7; 10_000], "bytes")
        }),
        Wait::FirstMessage => with(group(world, PathChoice::Auto), |group| {
            group.recv(1 - group.rank(), &mut Vec::new(), "message")
        }),
        Wait::Message => {
            let mut group = group(world, PathChoice::Auto);
            let peer = 1 - group.rank();
            if peer == 1 {
                group.send(peer, b"there", "first").expect("both call");
            } else {
                let mut bytes = Vec::new();
                group.recv(peer, &mut bytes, "first").expect("both call");
            }
            with(group, move |group| {
                group.recv(peer, &mut Vec::new(), "message")
            })
        }
        Wait::Relay => {
            let first = world.rank() == 0;
            let (upstream, downstream) = if first {
                (None, Some(1))
            } else {
                (Some(0), None)
            };
            let mut relay = world.relay("relay", upstream, downstream).expect("a name");
            relay.ready().expect("both come");
            with(relay, move |relay| {
                if first {
                    relay.post(&[1], "vector")?;
                    return relay.finish("end");
                }
                // What was posted before the abort may still arrive, until that has been heard of.
                relay.next(&mut Vec::new(), "vector")?;
                relay.next(&mut Vec::new(), "vector")
            })
        }
    }
}

/// What one rank tells the other: that it has had enough.
enum Signal {
    Tell(mpsc::Sender<()>),
    Await(mpsc::Receiver<()>),
}

/// One rank waits alone and has had enough soon after, the other one comes when that is over.
fn rank(rank: usize, wait: Wait, folder: &Path, signal: Signal) -> Error {
    let had_enough = || ENOUGH.set(Some(Instant::now() + Duration::from_millis(200)));
    if matches!(wait, Wait::Joining) {
        had_enough();
        return join(rank, folder).expect_err("nobody comes");
    }
    let world = join(rank, folder).expect("both come");
    let call = prepare(&world, wait);
    match signal {
        Signal::Tell(tell) => {
            had_enough();
            call(&move || tell.send(()).expect("it waits for that"))
        }
        Signal::Await(told) => {
            told.recv().expect("told at last");
            call(&|| ())
        }
    }
}

fn check(error: &Error, tired: usize, wait: Wait) {
    let told = matches!(&*error.kind, ErrorKind::Aborted { rank, reason } if (*rank, &**reason) == (tired, REASON));
    assert!(told, "{wait:?} of rank {tired}: {error}");
}

fn ends(tired: usize, wait: Wait) {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let alone = matches!(wait, Wait::Joining);
        let other = (!alone)
            .then(|| scope.spawn(move || rank(1 - tired, wait, folder, Signal::Await(told))));
        let ended = scope.spawn(move || {
            let error = rank(tired, wait, folder, Signal::Tell(tell));
            (error, ENOUGH.get().map(|at| at.elapsed()))
        });
        let (error, after) = ended.join().expect("its assertions hold");
        check(&error, tired, wait);
        assert!(after < Some(SOON), "{wait:?} of rank {tired}: {after:?}");
        if let Some(other) = other {
            check(&other.join().expect("its assertions hold"), tired, wait);
        }
    });
}

#[test]
fn every_wait_can_be_ended_by_the_program_and_all_are_told() {
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(60));
        eprintln!("a wait was not ended");
        process::exit(1);
    });
    for tired in [0, 1] {
        for wait in [
            Wait::Opening,
            Wait::Row(PathChoice::Table),
            Wait::Row(PathChoice::Tcp),
            Wait::Wide(PathChoice::Table),
            Wait::Wide(PathChoice::Tcp),
            Wait::Broadcast(PathChoice::Table),
            Wait::FirstMessage,
            Wait::Message,
            Wait::Relay,
        ] {
            ends(tired, wait);
        }
    }
    ends(1, Wait::Joining);
    ends(0, Wait::Joining);
}
