//! Rings: whole messages or an error, no lost wake-up, however short the ring and whoever dies.

use crate::death::{Lock, Locks, watchful};
use crate::{PATIENT, explore, polls};
use loom::sync::atomic::Ordering;
use loom::thread;
use rankpact_shm::{Ladder, Ring, RingError, RingGeometry, RingStorage, mortal};
use std::mem::forget;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Counted, Ordering::Relaxed};

/// Of a slot: stamp, head, one word of payload.
const SLOT: usize = 24;
const FRAGMENT: usize = 8;

fn storage(seats: usize, first: u64) -> Arc<RingStorage> {
    let geometry = RingGeometry::new(seats, 2, SLOT).expect("a valid geometry");
    assert_eq!(geometry.fragment_bytes(), FRAGMENT);
    Arc::new(RingStorage::heap(geometry, first))
}

fn rings(seats: usize, ladder: Ladder) -> impl Iterator<Item = Ring> {
    // The numbers of the slots wrap in each model.
    let storage = storage(seats, u64::MAX);
    (0..seats).map(move |me| Ring::new(Arc::clone(&storage), me, ladder))
}

/// A message that no other is a part of.
fn message(number: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| 16 * (number + 1) + u8::try_from(place).expect("short"))
        .collect()
}

fn send(ring: &mut Ring, number: u8, length: usize) {
    ring.send(&message(number, length), polls(PATIENT))
        .expect("every reader reads");
}

fn receive(ring: &mut Ring, from: usize, number: u8, length: usize) {
    let mut received = Vec::new();
    let outcome = ring.receive(from, &mut received, polls(PATIENT));
    assert_eq!(
        outcome.map(|()| received),
        Ok(message(number, length)),
        "a torn or foreign message"
    );
}

/// Rank 0 sends messages of these lengths to `readers` others.
fn relay(ladder: Ladder, readers: usize, lengths: &'static [usize]) {
    let mut rings = rings(readers + 1, ladder);
    let mut sender = rings.next().expect("a seat");
    let readers: Vec<_> = rings
        .map(|mut ring| {
            thread::spawn(move || {
                for (number, length) in (0..).zip(lengths) {
                    receive(&mut ring, 0, number, *length);
                }
                // Left at the end of the model: a reader that leaves early would end the sending.
                ring
            })
        })
        .collect();
    for (number, length) in (0..).zip(lengths) {
        send(&mut sender, number, *length);
    }
    for reader in readers {
        reader.join().expect("no seat panics");
    }
}

/// 2 threads, 3 messages of one slot through 2 slots, spinning: empty, full, wrap-around. Controls: S1, S2.
#[test]
fn messages_arrive_whole_around_the_ring() {
    explore(4, || relay(Ladder::spinning(), 1, &[8, 0, 5]));
}

/// 2 threads, 4 messages through 2 slots, both sleep as soon as they must wait: a lost wake-up is a deadlock. Controls: S3,
/// T3.
#[test]
fn no_wake_up_is_lost_at_an_empty_or_a_full_ring() {
    explore(3, || relay(Ladder::parking(), 1, &[8, 0, 5, 1]));
}

/// 2 threads, a message of 4 fragments through 2 slots and a short one behind it, sleeping.
#[test]
fn a_message_larger_than_the_ring_arrives_whole() {
    explore(2, || relay(Ladder::parking(), 1, &[3 * FRAGMENT + 3, 1]));
}

/// 3 threads, 3 messages through 2 slots, sleeping: the slower reader holds the sender back.
#[test]
fn two_readers_get_every_message() {
    explore(1, || relay(Ladder::parking(), 2, &[8, 0, 5]));
}

/// 3 threads, sleeping: whoever has the message may send the next one, through a ring that is full of the last.
#[test]
fn whoever_has_the_message_may_send_the_next() {
    explore(2, || {
        let mut rings = rings(3, Ladder::parking());
        let mut first = rings.next().expect("a seat");
        let mut second = rings.next().expect("a seat");
        let mut third = rings.next().expect("a seat");
        let third = thread::spawn(move || {
            receive(&mut third, 0, 0, 2 * FRAGMENT);
            receive(&mut third, 1, 1, 3);
            third
        });
        let second = thread::spawn(move || {
            receive(&mut second, 0, 0, 2 * FRAGMENT);
            send(&mut second, 1, 3);
            second
        });
        send(&mut first, 0, 2 * FRAGMENT);
        receive(&mut first, 1, 1, 3);
        for other in [second, third] {
            other.join().expect("no seat panics");
        }
    });
}

/// 2 threads, sleeping: what was sent before the sender left arrives, then that it left. Control: K2.
#[test]
fn a_late_message_is_received_before_the_leaving_is_told() {
    explore(3, || {
        let mut rings = rings(2, Ladder::parking());
        let mut sender = rings.next().expect("a seat");
        let mut reader = rings.next().expect("a seat");
        let reader = thread::spawn(move || {
            receive(&mut reader, 0, 0, 8);
            let next = reader.receive(0, &mut Vec::new(), polls(PATIENT));
            assert_eq!(next, Err(RingError::Left { rank: 0 }));
        });
        send(&mut sender, 0, 8);
        sender.close();
        reader.join().expect("no seat panics");
    });
}

/// 2 threads, sleeping: a sender before a full ring is woken when its reader leaves.
#[test]
fn a_reader_that_leaves_ends_the_wait_for_room() {
    explore(3, || {
        let mut rings = rings(2, Ladder::parking());
        let mut sender = rings.next().expect("a seat");
        let mut reader = rings.next().expect("a seat");
        let reader = thread::spawn(move || reader.close());
        let error = (0..3)
            .map(|number| sender.send(&message(number, 8), polls(PATIENT)))
            .find_map(Result::err);
        assert_eq!(error, Some(RingError::Left { rank: 1 }));
        reader.join().expect("no seat panics");
    });
}

/// 2 threads: a sender that gives up in the middle of a message takes it back, and the next one arrives whole.
#[test]
fn a_message_given_up_half_way_is_withdrawn() {
    explore(3, || {
        let mut rings = rings(2, Ladder::spinning());
        let mut sender = rings.next().expect("a seat");
        let mut reader = rings.next().expect("a seat");
        let reader = thread::spawn(move || {
            let mut received = Vec::new();
            let outcome = reader.receive(0, &mut received, polls(PATIENT));
            if received == message(0, 4 * FRAGMENT) {
                receive(&mut reader, 0, 1, 3);
            } else {
                assert_eq!(
                    outcome.map(|()| received),
                    Ok(message(1, 3)),
                    "a torn message"
                );
            }
            reader
        });
        let _ = sender.send(&message(0, 4 * FRAGMENT), polls(1));
        send(&mut sender, 1, 3);
        reader.join().expect("no seat panics");
    });
}

/// Tries every step at which rank 0 can die in `fate`; the others run `witnesses`, which check what they get.
fn at_every_step(preemptions: usize, fate: fn(&mut Ring), witnesses: &'static [fn(Ring)]) {
    for step in 0.. {
        assert!(step < 64, "rank 0 writes for ever");
        let died = Arc::new(Counted::new(0));
        let seen = Arc::clone(&died);
        explore(preemptions, move || {
            let lock = Arc::new(Lock::default());
            let storage = storage(witnesses.len() + 1, u64::MAX);
            let seat = |me| Ring::new(Arc::clone(&storage), me, watchful());
            let mut doomed = seat(0);
            let threads: Vec<_> = (1..)
                .zip(witnesses)
                .map(|(me, witness)| {
                    let ring = seat(me).with_liveness(Box::new(Locks(0, Arc::clone(&lock))));
                    thread::spawn(move || witness(ring))
                })
                .collect();
            if !mortal(step, || fate(&mut doomed)) {
                seen.fetch_add(1, Relaxed);
            }
            forget(doomed);
            lock.0.store(true, Ordering::Release);
            storage.let_time_pass();
            for thread in threads {
                thread.join().expect("no seat panics");
            }
        });
        if died.load(Relaxed) == 0 {
            assert!(step > 3, "rank 0 hardly wrote anything");
            return;
        }
    }
}

/// Receives whole messages of `from` until rank 0 is dead.
fn receive_until_the_death(mut ring: Ring, from: usize) {
    for number in 0..4 {
        let mut received = Vec::new();
        match ring.receive(from, &mut received, polls(PATIENT)) {
            Ok(()) => assert_eq!(received, long_and_short(number), "a torn message"),
            Err(error) => {
                assert_eq!(error, RingError::Died { rank: 0 });
                break;
            }
        }
    }
}

/// Messages of 3 slots and of one.
fn long_and_short(number: u8) -> Vec<u8> {
    let length = if number == 0 { 2 * FRAGMENT + 1 } else { 1 };
    message(number, length)
}

fn send_both(ring: &mut Ring) {
    for number in 0..2 {
        if ring.send(&long_and_short(number), polls(PATIENT)).is_err() {
            return;
        }
    }
}

/// 2 threads: what a sender has sent whole before it died arrives, then its death is told. Control: L1.
#[test]
fn a_message_sent_whole_before_a_death_arrives() {
    explore(3, || {
        let lock = Arc::new(Lock::default());
        let storage = storage(2, u64::MAX);
        let mut sender = Ring::new(Arc::clone(&storage), 0, watchful());
        let mut reader = Ring::new(Arc::clone(&storage), 1, watchful())
            .with_liveness(Box::new(Locks(0, Arc::clone(&lock))));
        let reader = thread::spawn(move || {
            receive(&mut reader, 0, 0, 8);
            let next = reader.receive(0, &mut Vec::new(), polls(PATIENT));
            assert_eq!(next, Err(RingError::Died { rank: 0 }));
        });
        send(&mut sender, 0, 8);
        forget(sender);
        lock.0.store(true, Ordering::Release);
        storage.let_time_pass();
        reader.join().expect("no seat panics");
    });
}

/// 2 threads, messages of 3 slots and 1 through 2 slots: the sender dies before any of its writes.
#[test]
fn a_sender_that_dies_at_any_step_leaves_whole_messages() {
    at_every_step(2, send_both, &[|ring| receive_until_the_death(ring, 0)]);
}

/// 3 threads, a message of 2 slots: as above, with two readers.
#[test]
fn a_sender_that_dies_at_any_step_is_told_to_both_readers() {
    fn witness(mut ring: Ring) {
        let mut received = Vec::new();
        match ring.receive(0, &mut received, polls(PATIENT)) {
            Ok(()) => assert_eq!(received, message(0, 9), "a torn message"),
            Err(error) => assert_eq!(error, RingError::Died { rank: 0 }),
        }
    }
    at_every_step(
        2,
        |ring| {
            let _ = ring.send(&message(0, 9), polls(PATIENT));
        },
        &[witness, witness],
    );
}

/// 3 threads that look around: one dies, another is told and leaves, and the third is told the death. Control: L2.
#[test]
fn a_death_is_told_and_not_the_leaving_on_its_account() {
    explore(2, || {
        let lock = Arc::new(Lock::default());
        let storage = storage(3, u64::MAX);
        let seat = |me| {
            let ring = Ring::new(Arc::clone(&storage), me, Ladder::spinning());
            ring.with_liveness(Box::new(Locks(0, Arc::clone(&lock))))
        };
        let doomed = seat(0);
        let others = [1, 2].map(|me| {
            let ring = seat(me);
            thread::spawn(move || match ring.inspect() {
                Ok(()) => forget(ring),
                Err(error) => assert_eq!(error, RingError::Died { rank: 0 }),
            })
        });
        forget(doomed);
        lock.0.store(true, Ordering::Release);
        for other in others {
            other.join().expect("no seat panics");
        }
    });
}

/// 2 threads: a reader dies before any of its writes; the sender, who cannot send all it has, is told.
#[test]
fn a_reader_that_dies_at_any_step_ends_the_sending() {
    at_every_step(
        2,
        |ring| {
            let _ = ring.receive(1, &mut Vec::new(), polls(PATIENT));
        },
        &[|mut ring| {
            let error = (0..4)
                .map(|number| ring.send(&long_and_short(number), polls(PATIENT)))
                .find_map(Result::err);
            assert_eq!(error, Some(RingError::Died { rank: 0 }));
            forget(ring);
        }],
    );
}

/// 3 threads: as above, with a second reader, who gets whole messages and is told as well.
#[test]
fn a_reader_that_dies_at_any_step_is_told_to_the_other() {
    at_every_step(
        1,
        |ring| {
            let _ = ring.receive(1, &mut Vec::new(), polls(PATIENT));
        },
        &[
            |mut ring| {
                send_both(&mut ring);
                forget(ring);
            },
            |ring| receive_until_the_death(ring, 1),
        ],
    );
}
