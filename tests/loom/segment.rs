//! The life of a segment: what an opener sees, what a proof proves, when a name may go.
//!
//! Loom has no files: here a segment is a box, its name a flag, and the rendezvous a mutex with a condition.

use crate::explore;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use rankpact_shm::{Geometry, Identity, Storage};
use std::sync::Arc;

fn identity() -> Identity {
    Identity {
        geometry: Geometry::new(3, 1).expect("a valid geometry"),
        generation: 3,
        nonce: [7, 9],
    }
}

/// A path of the file system: the segment under it, and whether the name is there.
struct File {
    storage: Storage,
    linked: AtomicBool,
}

impl File {
    fn blank() -> Arc<Self> {
        Arc::new(Self {
            storage: Storage::blank(identity().geometry),
            linked: AtomicBool::new(true),
        })
    }

    /// What `Segment::create` does once the file is there.
    fn make(&self) {
        self.storage.fill(5);
        self.storage.preamble().announce(&identity());
    }
}

/// 2 threads: an opener that meets the segment while it is made sees that it is not ready, or all of it. Controls: H1, H2.
#[test]
fn an_opener_finds_a_segment_whole_or_not_ready() {
    explore(4, || {
        let file = File::blank();
        let made = Arc::clone(&file);
        let creator = thread::spawn(move || made.make());
        match file.storage.preamble().check(&identity()) {
            Ok(()) => assert!(file.storage.is_filled(5), "a segment without its contents"),
            Err(found) => assert_eq!(found, None, "a segment taken for another"),
        }
        creator.join().expect("no panic");
        assert_eq!(file.storage.preamble().check(&identity()), Ok(()));
    });
}

/// Messages of the rendezvous: one step, in which each rank says something and gets what all have said.
struct Gather<T> {
    said: Mutex<Vec<Option<T>>>,
    all: Condvar,
}

impl<T: Clone> Gather<T> {
    fn new(ranks: usize) -> Self {
        Self {
            said: Mutex::new(vec![None; ranks]),
            all: Condvar::new(),
        }
    }

    fn say(&self, rank: usize, what: T) -> Vec<T> {
        let mut said = self.said.lock().expect("no panic");
        said[rank] = Some(what);
        self.all.notify_all();
        while said.iter().any(Option::is_none) {
            said = self.all.wait(said).expect("no panic");
        }
        said.iter().flatten().cloned().collect()
    }
}

/// 3 threads: rank 0 makes a segment, tells its name, and takes the name away as soon as all have voted. Nobody who was
/// told the name finds it gone, everybody reads every proof, though both are relaxed words.
#[test]
fn nobody_who_was_told_the_name_finds_it_gone() {
    const RANKS: usize = 3;
    explore(2, || {
        let file = Arc::new(File {
            storage: Storage::blank(identity().geometry),
            linked: AtomicBool::new(false),
        });
        let told = Arc::new((Gather::new(RANKS), Gather::new(RANKS)));
        let join = |me: usize| {
            let (file, told) = (Arc::clone(&file), Arc::clone(&told));
            move || {
                let preamble = file.storage.preamble();
                if me == 0 {
                    file.linked.store(true, Ordering::Relaxed);
                    file.make();
                }
                told.0.say(me, 0);
                assert!(file.linked.load(Ordering::Relaxed), "the name is gone");
                assert_eq!(preamble.check(&identity()), Ok(()), "not the segment");
                preamble.prove(me, 100 + me as u64);
                let votes = told.1.say(me, 100 + me as u64);
                if me == 0 {
                    file.linked.store(false, Ordering::Relaxed);
                }
                for (rank, vote) in votes.iter().enumerate() {
                    assert_eq!(preamble.proof(rank), *vote, "no proof");
                }
            }
        };
        let others: Vec<_> = (1..RANKS).map(|me| thread::spawn(join(me))).collect();
        join(0)();
        for other in others {
            other.join().expect("no panic");
        }
    });
}
