//! Debris under the name of a segment, or written into one: attaching and calling end in an error or a value, soon.

#![cfg(not(loom))]

use proptest::prelude::*;
use rankpact_shm::{
    Announcement, Geometry, Identity, Kind, Ladder, RoundError, Segment, SegmentError, Table,
    Trouble,
};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The deadline of every call. Some of them run into it.
const SHORT: Duration = Duration::from_millis(8);
/// After that long a case hangs.
const HANGS: Duration = Duration::from_secs(30);

const RANKS: usize = 2;
const HEADER_BYTES: usize = 128;
/// The layout version is the second word of the header, the ready word its ninth.
const VERSION: usize = 1;
const READY: usize = 8;
/// The outcome word comes first after the header.
const OUTCOME: usize = HEADER_BYTES / 8;

fn identity() -> Identity {
    Identity {
        geometry: Geometry::new(RANKS, 4).expect("a valid geometry"),
        generation: 3,
        nonce: [7, 9],
    }
}

/// A segment made by rank 0, and its file.
struct Made {
    _folder: tempfile::TempDir,
    path: PathBuf,
    segment: Segment,
    file: File,
}

impl Made {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("segment");
        let segment = Segment::create(&path, &identity(), 1, 0).expect("space for a table");
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .open(&path)
            .expect("just made");
        Self {
            _folder: folder,
            path,
            segment,
            file,
        }
    }

    fn words(&self) -> usize {
        usize::try_from(self.file.metadata().expect("a file").len()).expect("small") / 8
    }

    fn write(&self, word: usize, value: u64) {
        self.file
            .write_all_at(&value.to_le_bytes(), 8 * word as u64)
            .expect("in the file");
    }

    fn attach(&self) -> Result<Segment, SegmentError> {
        Segment::attach(&self.path, &identity(), 1)
    }
}

/// Ends the whole test program if `body` hangs: a hung thread cannot be ended alone.
fn watched<T>(body: impl FnOnce() -> T) -> T {
    let (over, watch) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if watch.recv_timeout(HANGS) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("watchdog: a case hangs");
                std::process::abort();
            }
        });
        let value = body();
        drop(over);
        value
    })
}

/// Any word, and more often those that look like a stamp, an outcome, a bit of a mask or nothing.
fn word() -> impl Strategy<Value = u64> {
    let stamp = (
        0_u64..20,
        0_u64..64,
        0_u64..16,
        0_u64..2,
        any::<u16>(),
        0_u64..16,
    )
        .prop_map(|(round, kind, width, form, label, place)| {
            round | kind << 32 | width << 38 | form << 42 | u64::from(label) << 44 | place << 60
        });
    let outcome = (0_u64..20, 0_u64..4, 0_u64..256)
        .prop_map(|(round, state, origin)| round << 10 | state << 8 | origin);
    prop_oneof![
        any::<u64>(),
        0_u64..8,
        Just(u64::MAX),
        (0_u32..64).prop_map(|bit| 1 << bit),
        stamp,
        outcome,
    ]
}

/// Where to write, as a fraction of all words behind the header, the outcome word being one in three.
fn place() -> impl Strategy<Value = Option<prop::sample::Index>> {
    prop_oneof![
        1 => Just(None),
        2 => any::<prop::sample::Index>().prop_map(Some),
    ]
}

fn ladder(number: u8) -> Ladder {
    match number % 3 {
        0 => Ladder::parking(),
        1 => Ladder::yielding(),
        _ => Ladder::auto(RANKS, RANKS),
    }
}

/// Whatever comes back can be shown.
fn shown<T>(result: Result<T, RoundError>) -> bool {
    result
        .map_err(|error| assert!(!error.to_string().is_empty()))
        .is_ok()
}

/// A call of every kind, one after another from `first` on: all go well, or one fails and so do those after it.
fn calls(segment: Segment, rank: usize, first: u8, ladder: Ladder) {
    let (storage, locks) = segment.into_parts();
    let mut table = Table::new(storage, rank, ladder)
        .with_liveness(Box::new(locks))
        .with_notice(Box::new(|missing, _| drop(missing.to_string())))
        .with_timing();
    for call in first..first.saturating_add(8) {
        match call % 5 {
            0 => drop(shown(table.all_reduce(
                Kind::Min,
                "narrow",
                &mut [1, -2, 3],
                SHORT,
            ))),
            1 => drop(shown(table.all_reduce(
                Kind::Max,
                "full",
                &mut [i64::MIN; 8],
                SHORT,
            ))),
            2 => drop(shown(table.all_reduce(
                Kind::Barrier,
                "barrier",
                &mut [],
                SHORT,
            ))),
            travelling => {
                let announcement = Announcement {
                    travelling: u64::from(travelling) - 3,
                    ..Announcement::default()
                };
                let open = table.announce(Kind::Broadcast, "wide", 0, announcement, SHORT);
                let closed = open.and_then(|open| {
                    let Some(mut open) = open else { return Ok(()) };
                    if shown(open.watch()) {
                        open.commit(SHORT)
                    } else {
                        Err(open.fail(Trouble::Died { rank: 1 - rank }))
                    }
                });
                shown(closed);
                let started = table.start(Kind::Min, "split", &[1, 2], SHORT);
                shown(started.and_then(|started| table.finish(&started, SHORT)));
            }
        }
        (0..=8).for_each(|slot| drop(table.contributions(slot)));
        (0..RANKS).for_each(|peer| assert!(!format!("{:?}", table.announced(peer)).is_empty()));
        assert!(table.timing().is_some());
    }
    table.aborter().abort("enough");
    shown(table.all_reduce(Kind::Min, "after", &mut [1], SHORT));
    let failure = table.failure().map(ToString::to_string);
    assert!(failure.is_none_or(|text| !text.is_empty()));
}

/// Rank 1 attaches and calls; rank 0, the creator, does the same if it is `awake`.
fn exercise(made: Made, awake: bool, first: u8) {
    let attached = made.attach();
    let Made {
        segment, _folder, ..
    } = made;
    watched(|| {
        thread::scope(|scope| {
            if awake {
                scope.spawn(|| calls(segment, 0, first, ladder(first)));
            }
            match attached {
                Ok(attached) => calls(attached, 1, first, ladder(first / 3)),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        });
    });
}

#[test]
fn a_half_made_segment_is_not_ready_never_stale_and_never_removed() {
    let made = Made::new();
    let len = made.file.metadata().expect("a file").len();
    let whole: Vec<u8> = {
        let mut bytes = vec![0; usize::try_from(len).expect("small")];
        made.file.read_exact_at(&mut bytes, 0).expect("readable");
        bytes
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("half-made");
    // Stopped after the creation, within the reservation, after it, and within the header, whose ready word comes last.
    let created = [0, 1, 4096, len - 1].map(|size| vec![0; usize::try_from(size).expect("small")]);
    let header = (0..=HEADER_BYTES).step_by(4).map(|written| {
        let mut bytes = whole.clone();
        bytes[written..HEADER_BYTES].fill(0);
        bytes[8 * READY..8 * READY + 8].fill(0);
        bytes
    });
    for bytes in created.into_iter().chain(header) {
        std::fs::write(&path, &bytes).expect("writable");
        for _ in 0..2 {
            let error = Segment::attach(&path, &identity(), 1).expect_err("half-made");
            assert_eq!(error, SegmentError::NotReady { path: path.clone() });
            assert_eq!(std::fs::read(&path).expect("still there"), bytes);
        }
        let error = Segment::create(&path, &identity(), 1, 0).expect_err("the name is taken");
        assert!(matches!(error, SegmentError::Foreign { .. }), "{error}");
        assert_eq!(std::fs::read(&path).expect("still there"), bytes);
    }
    std::fs::write(&path, &whole).expect("writable");
    Segment::attach(&path, &identity(), 1).expect("finished now");
}

#[test]
fn a_segment_of_another_layout_is_refused_with_both_numbers() {
    let made = Made::new();
    let own = rankpact_shm::LAYOUT_VERSION;
    for other in [0, own + 1, u64::MAX] {
        made.write(VERSION, other);
        let error = made.attach().expect_err("another layout");
        assert!(matches!(error, SegmentError::Foreign { .. }), "{error}");
        let text = error.to_string();
        let said = format!("layout version is {other:#x}, not {own:#x}");
        assert!(text.contains(&said), "{text}");
    }
    made.write(VERSION, own);
    made.attach().expect("the layout of this version");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_are_no_segment(
        bytes in prop::collection::vec(any::<u8>(), 0..10_000),
        ready: bool,
    ) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("segment");
        let mut bytes = bytes;
        if let Some(word) = bytes.get_mut(8 * READY..8 * READY + 8) {
            word.fill(u8::from(ready));
        }
        std::fs::write(&path, &bytes).expect("writable");
        let error = Segment::attach(&path, &identity(), 1).expect_err("no magic");
        prop_assert!(!error.to_string().is_empty());
        prop_assert_eq!(std::fs::read(&path).expect("still there"), bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn arbitrary_words_behind_a_valid_header_end_in_an_error_or_a_value(
        words in prop::collection::vec(word(), 64),
        awake: bool,
        first in 0_u8..5,
    ) {
        let made = Made::new();
        // Seven does not divide the size of anything, so every field gets every kind of word.
        for at in OUTCOME..made.words() {
            made.write(at, words[(at - OUTCOME) * 7 / 3 % words.len()]);
        }
        exercise(made, awake, first);
    }

    #[test]
    fn single_words_changed_in_a_valid_table_end_in_an_error_or_a_value(
        changes in prop::collection::vec((place(), word()), 1..5),
        awake: bool,
        first in 0_u8..5,
    ) {
        let made = Made::new();
        for (place, value) in changes {
            let behind = made.words() - OUTCOME;
            made.write(OUTCOME + place.map_or(0, |place| place.index(behind)), value);
        }
        exercise(made, awake, first);
    }

    #[test]
    fn words_changed_under_running_rounds_end_in_an_error_or_a_value(
        changes in prop::collection::vec((place(), word()), 64),
        first in 0_u8..5,
    ) {
        let made = Made::new();
        let file = made.file.try_clone().expect("a descriptor");
        let behind = made.words() - OUTCOME;
        let (over, watch) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                for (place, value) in changes.iter().cycle() {
                    let at = OUTCOME + place.map_or(0, |place| place.index(behind));
                    file.write_all_at(&value.to_le_bytes(), 8 * at as u64).expect("in the file");
                    if watch.try_recv() == Err(mpsc::TryRecvError::Disconnected) {
                        return;
                    }
                    thread::yield_now();
                }
            });
            exercise(made, true, first);
            drop(over);
        });
    }
}
