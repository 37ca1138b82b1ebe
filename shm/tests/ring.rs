//! Rings on threads, over the heap and over mapped segments: the same code that runs between processes and under loom.

#![cfg(not(loom))]

#[path = "harness/watchdog.rs"]
mod watchdog;

use proptest::prelude::*;
use rankpact_shm::{
    Contents, Geometry, Identity, LONGEST_MESSAGE, Ladder, Ring, RingError, RingGeometry,
    RingStorage, Segment, SegmentError,
};
use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use watchdog::watchdog;

const LONG: Duration = Duration::from_secs(50);
const SHORT: Duration = Duration::from_millis(120);

/// Header, two Controls.
const MEMBERS: usize = 384;
const MEMBER: usize = 128;

/// Four slots of one line, 48 bytes of payload each.
fn tiny(seats: usize) -> RingGeometry {
    RingGeometry::new(seats, 4, 64).expect("a valid geometry")
}

fn identity(geometry: RingGeometry) -> Identity<RingGeometry> {
    Identity {
        geometry,
        generation: 0,
        nonce: [7, 9],
    }
}

fn on_heap(geometry: RingGeometry, first: u64, ladder: Ladder) -> Vec<Ring> {
    let storage = Arc::new(RingStorage::heap(geometry, first));
    (0..geometry.seats())
        .map(|me| Ring::new(Arc::clone(&storage), me, ladder))
        .collect()
}

/// The seats of a ring in a segment at `path`, each with a mapping of its own. The name is gone when this returns.
fn mapped(path: &Path, geometry: RingGeometry, first: u64, ladder: Ladder) -> Vec<Ring> {
    let mut segments =
        vec![Segment::create(path, &identity(geometry), first, 0).expect("space for a ring")];
    segments.extend(
        (1..geometry.seats())
            .map(|me| Segment::attach(path, &identity(geometry), me).expect("a finished segment")),
    );
    segments
        .into_iter()
        .enumerate()
        .map(|(me, segment)| {
            let (storage, locks) = segment.into_parts();
            Ring::new(storage, me, ladder).with_liveness(Box::new(locks))
        })
        .collect()
}

/// The same seats over the heap, a mapped file and a named segment.
fn everywhere(geometry: RingGeometry, first: u64, ladder: Ladder) -> [Vec<Ring>; 3] {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let unique = format!(
        "rankpact-test-ring-{}-{:x}",
        std::process::id(),
        getrandom::u64().expect("random bytes")
    );
    [
        on_heap(geometry, first, ladder),
        mapped(&folder.path().join("ring"), geometry, first, ladder),
        mapped(&Path::new("/dev/shm").join(unique), geometry, first, ladder),
    ]
}

fn mix(word: u64) -> u64 {
    let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 32
}

/// Bytes that only the message of this number has.
fn message(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|place| mix(number << 32 ^ place).to_le_bytes()[3])
        .collect()
}

/// Message k of these lengths is sent by seat k mod seats and received by all others, each of which stalls now and then.
fn pass_around(rings: Vec<Ring>, senders: usize, lengths: &Arc<Vec<usize>>, stall: u64) {
    let lengths = Arc::clone(lengths);
    watchdog(move || {
        let threads: Vec<_> = rings
            .into_iter()
            .map(|mut ring| {
                let lengths = Arc::clone(&lengths);
                thread::spawn(move || {
                    let mut received = Vec::new();
                    for (number, &length) in lengths.iter().enumerate() {
                        let (from, number) = (number % senders, number as u64);
                        if from == ring.rank() {
                            ring.send(&message(number, length), LONG).expect("all read");
                        } else {
                            ring.receive(from, &mut received, LONG).expect("it is sent");
                            assert!(received == message(number, length), "message {number}");
                        }
                        let dice = mix(number << 8 ^ ring.rank() as u64);
                        if stall != 0 && dice.is_multiple_of(stall) {
                            thread::sleep(Duration::from_micros(dice % 700));
                        }
                    }
                    // Kept until all are done: who leaves ends the waits of the others.
                    ring
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no seat panics");
        }
    });
}

#[test]
fn messages_of_every_length_arrive_on_every_seat() {
    let lengths = Arc::new((0..=3 * 48 + 1).chain(7 * 48..7 * 48 + 3).collect());
    for seats in [2, 3, 6] {
        for rings in everywhere(tiny(seats), 1, Ladder::auto(seats, 2)) {
            pass_around(rings, 1, &lengths, 0);
        }
    }
}

#[test]
fn every_way_of_waiting_carries_the_same_messages() {
    let lengths = Arc::new((0..400).map(|k| (mix(k) % 500) as usize).collect());
    for ladder in [
        Ladder::spinning(),
        Ladder::yielding(),
        Ladder::parking(),
        Ladder::auto(2, 1),
    ] {
        pass_around(on_heap(tiny(2), 1, ladder), 1, &lengths, 0);
        pass_around(on_heap(tiny(3), 1, ladder), 3, &lengths, 0);
    }
}

#[test]
fn whoever_has_received_the_last_message_may_send_the_next() {
    let lengths = Arc::new((0..3000).map(|k| (mix(k) % 300) as usize).collect());
    for rings in everywhere(tiny(4), 1, Ladder::auto(4, 2)) {
        pass_around(rings, 4, &lengths, 200);
    }
}

#[test]
fn the_numbers_of_the_slots_work_across_every_wrap() {
    let lengths = Arc::new((0..60).map(|k| (mix(k) % 200) as usize).collect());
    for edge in [1 << 8, 1 << 16, 1 << 31, 1 << 32, 1 << 63, 0] {
        let first = u64::wrapping_sub(edge, 30);
        for rings in everywhere(tiny(3), first, Ladder::auto(3, 2)) {
            pass_around(rings, 3, &lengths, 0);
        }
    }
}

#[test]
fn a_long_run_through_the_usual_ring_arrives_whole() {
    let geometry = RingGeometry::of_seats(2).expect("two seats");
    let lengths = (0..20_000).map(|k| {
        let dice = mix(k);
        let most = if dice.is_multiple_of(400) {
            1 << 20
        } else {
            300
        };
        (dice >> 32) as usize % most
    });
    pass_around(
        on_heap(geometry, 1, Ladder::auto(2, 2)),
        1,
        &Arc::new(lengths.collect()),
        5000,
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_ring_carries_any_messages_past_readers_that_stall(
        seats in 2_usize..5, slots in 1_u32..5, lines in 1_usize..5, all_send: bool, first: u64,
        lengths in prop::collection::vec(0_usize..2000, 1..60), stall in 1_u64..30,
    ) {
        let geometry = RingGeometry::new(seats, 1 << slots, 64 * lines).expect("valid");
        let senders = if all_send { seats } else { 1 };
        let rings = on_heap(geometry, first, Ladder::auto(seats, 2));
        pass_around(rings, senders, &Arc::new(lengths), stall);
    }
}

#[test]
fn a_slow_reader_holds_the_sender_back_within_the_ring() {
    for mut rings in everywhere(tiny(3), 1, Ladder::auto(3, 2)) {
        let mut received = Vec::new();
        let [sender, quick, slow] = &mut rings[..] else {
            unreachable!("three seats")
        };
        assert_eq!(sender.room(), Ok(4 * 48));
        let long = message(1, 5 * 48);
        let mut sent = 0;
        assert_eq!(sender.offer(&long, &mut sent), Ok(false));
        assert_eq!((sent, sender.room()), (4 * 48, Ok(0)));
        assert_eq!(sender.offer(&long, &mut sent), Ok(false));
        assert_eq!(quick.try_receive(0, &mut received), Ok(false));
        assert_eq!(sender.room(), Ok(0), "the slowest reader counts");
        let error = sender.send(&long, SHORT).expect_err("no room");
        assert!(
            matches!(&error, RingError::Timeout { ranks, waited } if ranks == &[2] && *waited >= SHORT),
            "{error}"
        );
        assert_eq!(slow.try_receive(0, &mut received), Ok(false));
        assert_eq!(sender.offer(&long, &mut sent), Ok(true));
        assert_eq!(
            sender.offer(&long, &mut sent),
            Ok(true),
            "once out, it is out"
        );
        for reader in [quick, slow] {
            assert_eq!(reader.try_receive(0, &mut received), Ok(true));
            assert!(received == long);
            assert_eq!(reader.try_receive(0, &mut received), Ok(false));
        }
        assert_eq!(sender.room(), Ok(4 * 48));
    }
}

#[test]
fn a_message_given_up_half_way_is_withdrawn_and_the_next_one_arrives() {
    let mut rings = on_heap(tiny(2), 1, Ladder::parking());
    let (mut reader, mut sender) = (rings.remove(1), rings.remove(0));
    let mut received = b"kept".to_vec();
    let timed_out = sender.send(&message(1, 1000), SHORT);
    assert!(matches!(timed_out, Err(RingError::Timeout { .. })));
    assert!(matches!(
        reader.receive(0, &mut received, SHORT),
        Err(RingError::Timeout { ranks, .. }) if ranks == [0]
    ));
    assert_eq!(received, b"kept");
    sender.send(b"whole", LONG).expect("room");
    reader.receive(0, &mut received, LONG).expect("sent");
    assert_eq!(received, b"whole");
}

#[test]
fn what_was_sent_arrives_before_the_leaving_is_told() {
    for mut rings in everywhere(tiny(3), 1, Ladder::auto(3, 2)) {
        watchdog(move || {
            let (mut other, mut reader, mut sender) =
                (rings.remove(2), rings.remove(1), rings.remove(0));
            sender.send(&message(1, 100), LONG).expect("room");
            sender.close();
            assert_eq!(sender.send(b"late", LONG), Err(RingError::Closed));
            assert_eq!(
                sender.receive(1, &mut Vec::new(), LONG),
                Err(RingError::Closed)
            );
            let mut received = Vec::new();
            reader.receive(0, &mut received, LONG).expect("sent whole");
            assert!(received == message(1, 100));
            let next = reader.receive(0, &mut received, LONG);
            assert_eq!(next, Err(RingError::Left { rank: 0 }));
            assert_eq!(reader.inspect(), Err(RingError::Left { rank: 0 }));
            assert_eq!(
                other.send(b"to whom?", LONG),
                Err(RingError::Left { rank: 0 })
            );
        });
    }
}

#[test]
fn a_reader_that_leaves_ends_a_wait_for_room_at_once() {
    watchdog(|| {
        let mut rings = on_heap(tiny(2), 1, Ladder::parking());
        let (reader, mut sender) = (rings.remove(1), rings.remove(0));
        let leaver = thread::spawn(move || {
            thread::sleep(SHORT);
            drop(reader);
        });
        let error = sender.send(&message(1, 10_000), LONG).expect_err("no room");
        assert_eq!(error, RingError::Left { rank: 1 });
        leaver.join().expect("no panic");
    });
}

#[test]
fn a_panic_is_told_apart_from_leaving() {
    watchdog(|| {
        let mut rings = on_heap(tiny(2), 1, Ladder::auto(2, 2));
        let (mut reader, sender) = (rings.remove(1), rings.remove(0));
        let panics = thread::spawn(move || {
            let _held = sender;
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        let error = reader.receive(0, &mut Vec::new(), LONG);
        assert_eq!(error, Err(RingError::Abandoned { rank: 0 }));
        assert!(panics.join().is_err());
    });
}

#[test]
fn a_watch_ends_a_wait_with_an_error_of_its_own() {
    #[derive(Debug, PartialEq)]
    enum Mine {
        Ring(RingError),
        Failed(usize),
    }
    impl From<RingError> for Mine {
        fn from(error: RingError) -> Self {
            Self::Ring(error)
        }
    }
    watchdog(|| {
        for mut ring in on_heap(tiny(2), 1, Ladder::parking()) {
            let me = ring.rank();
            let mut looks = 0;
            let mut watch = || {
                looks += 1;
                if looks < 3 {
                    Ok(())
                } else {
                    Err(Mine::Failed(me))
                }
            };
            let began = Instant::now();
            let outcome = if me == 0 {
                ring.send_watching(&message(1, 1000), LONG, &mut watch)
            } else {
                ring.receive_watching(0, &mut Vec::new(), LONG, &mut watch)
            };
            // The sender left at the end of its turn.
            let expected = if me == 0 {
                Mine::Failed(0)
            } else {
                Mine::Ring(RingError::Left { rank: 0 })
            };
            assert_eq!(outcome, Err(expected));
            assert!(me != 0 || began.elapsed() >= Duration::from_millis(100));
        }
    });
}

#[test]
fn a_deadline_names_a_reader_even_while_it_reads_on() {
    watchdog(|| {
        let mut rings = on_heap(tiny(2), 1, Ladder::auto(2, 2));
        let (mut reader, mut sender) = (rings.remove(1), rings.remove(0));
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let reads = thread::spawn(move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                reader
                    .try_receive(0, &mut Vec::new())
                    .expect("the sender is there");
            }
        });
        let long = message(1, 960_000);
        let is_late = |_: &u32| match sender.send(&long, Duration::from_micros(5)) {
            Err(RingError::Timeout { ranks, .. }) => {
                assert_eq!(ranks, [1]);
                true
            }
            outcome => {
                assert_eq!(outcome, Ok(()), "the reader was fast");
                false
            }
        };
        assert!((0..300).filter(is_late).count() > 0);
        drop(stop);
        reads.join().expect("no panic");
    });
}

#[test]
fn a_message_that_trickles_in_meets_its_deadline_and_its_watch() {
    watchdog(|| {
        let mut rings = on_heap(tiny(2), 1, Ladder::auto(2, 2));
        let (mut reader, mut sender) = (rings.remove(1), rings.remove(0));
        // The reader takes what is there each 2 ms, of a message far too long for its deadline.
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let slow = thread::spawn(move || {
            let pause = Duration::from_millis(2);
            while stopped.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                assert_eq!(reader.try_receive(0, &mut Vec::new()), Ok(false));
            }
        });
        let mut looks = 0;
        let outcome = sender.send_watching(&vec![0; LONGEST_MESSAGE], 3 * SHORT, &mut || {
            looks += 1;
            Ok::<(), RingError>(())
        });
        drop(stop);
        slow.join().expect("no panic");
        assert!(
            matches!(&outcome, Err(RingError::Timeout { ranks, .. }) if ranks == &[1]),
            "{outcome:?}"
        );
        assert!(looks >= 3, "{looks} looks");
    });
}

/// So a wait looks at its deadline and its watch however well the other side keeps up.
#[test]
fn no_more_than_a_lap_is_sent_at_once() {
    watchdog(|| {
        let mut rings = on_heap(tiny(2), 1, Ladder::auto(2, 2));
        let (mut reader, mut sender) = (rings.remove(1), rings.remove(0));
        let lap = sender.geometry().slots() * sender.geometry().fragment_bytes();
        let greedy = thread::spawn(move || {
            while reader.try_receive(0, &mut Vec::new()) == Ok(false) {
                thread::yield_now();
            }
        });
        let (long, mut sent) = (message(1, 500 * lap), 0);
        while sent < long.len() {
            let before = sent;
            sender.offer(&long, &mut sent).expect("the reader reads");
            assert!(sent <= before + lap, "{} bytes at once", sent - before);
            if sent == before {
                thread::yield_now();
            }
        }
        greedy.join().expect("no panic");
    });
}

#[test]
fn what_cannot_be_sent_or_received_is_refused_before_anything_happens() {
    let mut rings = on_heap(tiny(2), 1, Ladder::auto(2, 2));
    let too_long = vec![0; LONGEST_MESSAGE + 1];
    assert_eq!(
        rings[0].send(&too_long, LONG),
        Err(RingError::TooLong(too_long.len()))
    );
    for stranger in [1, 2, usize::MAX] {
        let refused = rings[1].try_receive(stranger, &mut Vec::new());
        assert_eq!(refused, Err(RingError::NoPeer(stranger)));
    }
    rings[0].send(b"fine", LONG).expect("room");
    let mut received = Vec::new();
    rings[1].receive(0, &mut received, LONG).expect("sent");
    assert_eq!(received, b"fine");
    for (seats, slots, bytes) in [
        (1, 4, 64),
        (65, 4, 64),
        (2, 1, 64),
        (2, 3, 64),
        (2, 4, 0),
        (2, 4, 63),
        (2, 4, 65_600),
        (2, 1 << 17, 64),
    ] {
        assert_eq!(RingGeometry::new(seats, slots, bytes), None);
    }
}

/// A ring in a file that the test can write to.
struct OpenRing {
    rings: VecDeque<Ring>,
    file: std::fs::File,
    _folder: tempfile::TempDir,
}

fn open_ring(geometry: RingGeometry) -> OpenRing {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("ring");
    let segment = Segment::create(&path, &identity(geometry), 1, 0).expect("space for a ring");
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .open(&path)
        .expect("the segment");
    let (storage, _) = segment.into_parts();
    let rings = (0..geometry.seats())
        .map(|me| Ring::new(Arc::clone(&storage), me, Ladder::parking()))
        .collect();
    OpenRing {
        rings,
        file,
        _folder: folder,
    }
}

#[test]
fn a_changed_word_of_a_slot_is_an_error_and_no_message() {
    let slots = MEMBERS + 2 * MEMBER;
    for word in 0..8 {
        let mut ring = open_ring(tiny(2));
        let (mut sender, mut reader) = (
            ring.rings.pop_front().expect("two"),
            ring.rings.pop_front().expect("two"),
        );
        sender.send(&message(1, 48), LONG).expect("room");
        let at = (slots + 64 + 8 * word) as u64;
        let mut byte = [0];
        ring.file.read_exact_at(&mut byte, at).expect("in the file");
        ring.file
            .write_all_at(&[byte[0] ^ 0x10], at)
            .expect("in the file");
        let mut received = b"kept".to_vec();
        let error = reader
            .receive(0, &mut received, LONG)
            .expect_err("not what was sent");
        assert!(
            matches!(
                error,
                RingError::Corrupt {
                    rank: 0,
                    slot: 1,
                    ..
                }
            ),
            "word {word}: {error}"
        );
        assert_eq!(received, b"kept");
    }
}

#[test]
fn a_second_sender_is_found_out() {
    // After a message of the first and in the middle of one.
    for length in [3, 1000] {
        let mut rings = on_heap(tiny(2), 1, Ladder::auto(2, 2));
        let first = rings[0].offer(&message(1, length), &mut 0);
        assert_eq!(first, Ok(length == 3));
        let error = rings[1].send(b"two", LONG).expect_err("not its turn");
        assert!(matches!(error, RingError::Corrupt { .. }), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever lies in a ring, a call ends, and takes no more memory than came.
    #[test]
    fn any_bytes_as_a_ring_end_in_an_error_or_a_value(
        bytes in prop::collection::vec(any::<u8>(), 2 * MEMBER + 4 * 64),
        stamps: [bool; 4], places: [bool; 2], open: bool,
    ) {
        watchdog(move || {
            let mut bytes = bytes;
            // With the first words as they should be now and then, so that what lies behind them is reached.
            for (slot, stamped) in stamps.iter().enumerate() {
                if *stamped {
                    let number = if slot == 0 { 4 } else { slot as u64 };
                    bytes[2 * MEMBER + 64 * slot..][..8].copy_from_slice(&number.to_le_bytes());
                }
            }
            for (seat, sensible) in places.iter().enumerate() {
                if *sensible {
                    bytes[MEMBER * seat + 8..][..8].copy_from_slice(&0_u64.to_le_bytes());
                }
                if open {
                    bytes[MEMBER * seat + 16..][..8].copy_from_slice(&0_u64.to_le_bytes());
                }
            }
            let ring = open_ring(tiny(2));
            ring.file.write_all_at(&bytes, MEMBERS as u64).expect("in the file");
            for mut seat in ring.rings {
                let mut received = Vec::new();
                let outcome = seat.receive(1 - seat.rank(), &mut received, Duration::from_millis(1));
                assert!(received.capacity() <= 2 * 4 * 48, "{outcome:?}");
                let _ = (seat.room(), seat.inspect());
                let _ = seat.send(&message(1, 500), Duration::from_millis(1));
            }
        });
    }

    #[test]
    fn any_bytes_as_a_header_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 128), kept in 0_usize..16,
    ) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("ring");
        let wanted = identity(tiny(2));
        let _ring = Segment::create(&path, &wanted, 1, 0).expect("space for a ring");
        let mut header = std::fs::read(&path).expect("the segment");
        // All but one word as it should be: each of them counts.
        let good = header[8 * kept..][..8].to_vec();
        let spare = [3, 7, 12, 13, 14, 15];
        header[8 * kept..][..8].copy_from_slice(&bytes[8 * kept..][..8]);
        let same = good == bytes[8 * kept..][..8];
        std::fs::write(&path, &header).expect("the segment");
        let attached = Segment::attach(&path, &wanted, 1);
        match &attached {
            // The first slot is read and not compared; the radix is for tables; `ready` is any number but 0.
            Ok(_) => prop_assert!(same || kept == 8 || spare.contains(&kept)),
            Err(error) => {
                let refused = matches!(
                    error,
                    SegmentError::Foreign { .. } | SegmentError::NotReady { .. }
                );
                prop_assert!(refused, "{}", error);
            }
        }
        header[..128].copy_from_slice(&bytes);
        std::fs::write(&path, &header).expect("the segment");
        prop_assert!(Segment::attach(&path, &wanted, 1).is_err());
    }
}

#[test]
fn a_ring_is_no_table_and_another_shape_no_ring_of_ours() {
    fn what<G: Contents>(path: &Path, identity: &Identity<G>) -> String {
        Segment::attach(path, identity, 1)
            .expect_err("another segment")
            .to_string()
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("ring");
    let geometry = RingGeometry::of_seats(2).expect("two seats");
    let segment = Segment::create(&path, &identity(geometry), 1, 0).expect("space for a ring");
    let bytes = std::fs::metadata(&path).expect("the segment").len();
    assert_eq!(bytes, 256 * 1024 + 384 + 2 * 128);
    let table = Identity {
        geometry: Geometry::new(2, 4).expect("valid"),
        generation: 0,
        nonce: [7, 9],
    };
    assert!(what(&path, &table).contains("kind is"));
    assert!(what(&path, &identity(tiny(2))).contains("number of slots"));
    let two = Segment::attach(&path, &identity(geometry), 1).expect("finished");
    two.prove(1, 5);
    assert_eq!(segment.proof(1), 5);
}
