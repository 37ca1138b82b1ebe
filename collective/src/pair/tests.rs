//! Pairs and relays whose ranks are threads of this process.

use super::{LONGEST, Pair};
use crate::envelope::{Inbox, seal};
use crate::error::ErrorKind;
use crate::pairs::Pairs;
use crate::watchdog::within_a_minute;
use crate::{Call, Error, Group, Options, Pending, Relay};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Nothing here takes that long.
fn options() -> Options {
    Options {
        timeout: Duration::from_secs(20),
        ..Options::default()
    }
}

fn two() -> [Group; 2] {
    let groups = Group::threads("g", 2, &options()).expect("threads can be ranks");
    groups.try_into().expect("two")
}

fn relay<const STAGES: usize>() -> [Relay; STAGES] {
    let stages = Relay::threads("r", STAGES, &options());
    stages.try_into().expect("so many")
}

fn recv(group: &mut Group, from: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = b"before".to_vec();
    group.recv(from, &mut bytes, "m")?;
    Ok(bytes)
}

fn next(relay: &mut Relay) -> Result<Vec<i64>, Error> {
    let mut values = vec![-1];
    relay.next(&mut values, "v")?;
    Ok(values)
}

/// Closes both at once: neither waits for the other then.
fn close(one: impl Send, other: impl Send) {
    thread::scope(|scope| {
        scope.spawn(move || drop(one));
        scope.spawn(move || drop(other));
    });
}

/// A pair, and what is at its other end.
fn and_a_socket() -> (Pair, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let stream = crate::socket::Stream::new(stream).unwrap();
    (Pair::new(stream, Inbox::new(0)), other)
}

fn pumped(pair: &mut Pair) -> ErrorKind {
    loop {
        pair.pump();
        if let Some(kind) = pair.ended(1) {
            return kind;
        }
        thread::yield_now();
    }
}

#[test]
fn messages_of_any_length_arrive_in_order_with_their_bytes() {
    within_a_minute(|| {
        let [mut one, mut other] = two();
        let lengths = [0, 1, 95, 4096, 1 << 20, 0, 3 << 20, 7];
        let sender = thread::spawn(move || {
            for (n, length) in (0..).zip(lengths) {
                one.send(1, &vec![n; length], "m").unwrap();
            }
            one
        });
        for (n, length) in (0..).zip(lengths) {
            assert!(
                recv(&mut other, 0).unwrap() == vec![n; length],
                "message {n}"
            );
        }
        close(sender.join().unwrap(), other);
    });
}

#[test]
fn a_message_that_is_too_long_is_refused_and_costs_nothing() {
    let [mut one, mut other] = two();
    let error = one.send(1, &vec![0; LONGEST + 1], "m").unwrap_err();
    assert!(matches!(*error.kind, ErrorKind::Usage(_)), "{error}");
    for (to, label) in [(0, "m"), (2, "m"), (1, ""), (1, &*"l".repeat(43))] {
        let error = one.send(to, b"x", label).unwrap_err();
        assert!(matches!(*error.kind, ErrorKind::Usage(_)), "{error}");
    }
    one.send(1, b"x", "m").unwrap();
    assert_eq!(recv(&mut other, 0).unwrap(), b"x");
    close(one, other);
}

#[test]
fn who_leaves_is_known_to_have_left_and_what_it_sent_arrives() {
    let [mut one, mut other] = two();
    one.send(1, b"last", "m").unwrap();
    let leaver = thread::spawn(move || {
        one.close();
        assert_eq!(
            *one.send(1, b"more", "m").unwrap_err().kind,
            ErrorKind::Closed
        );
    });
    assert_eq!(recv(&mut other, 0).unwrap(), b"last");
    for _ in 0..2 {
        let error = recv(&mut other, 0).unwrap_err();
        let kind = &error.root().kind;
        assert!(
            matches!(**kind, ErrorKind::PeerClosed { rank: 0, .. }),
            "{error}"
        );
    }
    drop(other);
    leaver.join().unwrap();
}

#[test]
fn who_leaves_without_having_opened_a_pair_keeps_nobody_waiting() {
    for waits in [false, true] {
        let [one, mut other] = two();
        let leaver = thread::spawn(move || {
            if waits {
                thread::sleep(Duration::from_millis(100));
            }
            drop(one);
        });
        let error = recv(&mut other, 0).unwrap_err();
        let left = ErrorKind::PeerClosed {
            rank: 0,
            last_round: 0,
        };
        assert_eq!(*error.kind, left);
        drop(other);
        leaver.join().unwrap();
    }
}

#[test]
fn a_message_that_was_read_ahead_of_the_end_is_delivered_after_a_send_has_failed() {
    let [mut one, mut other] = two();
    one.send(1, b"last", "m").unwrap();
    let leaver = thread::spawn(move || drop(one));
    let error = loop {
        if let Err(error) = other.send(0, b"x", "m") {
            break error;
        }
        thread::yield_now();
    };
    assert!(
        matches!(*error.kind, ErrorKind::PeerClosed { rank: 0, .. }),
        "{error}"
    );
    assert_eq!(recv(&mut other, 0).unwrap(), b"last");
    let later = recv(&mut other, 0).unwrap_err();
    assert_eq!(*later.kind, ErrorKind::Poisoned { origin: error });
    drop(other);
    leaver.join().unwrap();
}

#[test]
fn another_label_is_told_to_both_and_ends_the_pair() {
    let [mut one, mut other] = two();
    one.send(1, b"12345", "a").unwrap();
    one.send(1, b"12345", "b").unwrap();
    let error = recv(&mut other, 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "group g, round 1, recv `m`, rank 1: ranks made different calls: rank 0 send 5 bytes `a`; rank 1 recv from \
         rank 0 `m`"
    );
    let told = recv(&mut one, 1).unwrap_err();
    assert_eq!(told.kind, error.kind);
    for group in [&mut one, &mut other] {
        let peer = 1 - group.rank();
        let later = recv(group, peer).unwrap_err();
        assert_eq!(later.root().kind, error.kind, "{later}");
        assert!(matches!(*later.kind, ErrorKind::Poisoned { .. }), "{later}");
        group.send(peer, b"x", "m").unwrap_err();
    }
    close(one, other);
}

#[test]
fn an_abort_of_threads_ends_their_pairs() {
    let [mut one, mut other] = two();
    one.send(1, b"x", "m").unwrap();
    assert_eq!(recv(&mut other, 0).unwrap(), b"x");
    one.abort("why");
    let aborted = ErrorKind::Aborted {
        rank: 0,
        reason: "why".to_owned(),
    };
    assert_eq!(*recv(&mut other, 0).unwrap_err().kind, aborted);
    assert_eq!(*recv(&mut one, 1).unwrap_err().kind, aborted);
    close(one, other);
}

#[test]
fn a_message_that_came_with_the_end_of_the_handshake_is_not_left_lying() {
    let (pair, _other) = and_a_socket();
    let message = super::Frame {
        label: "m",
        ..super::Frame::bare(super::Kind::Message, 1)
    };
    let mut inbox = Inbox::new(1 << 10);
    inbox.fill(&mut &message.seal()[..]).unwrap();
    let mut pair = Pair::new(pair.stream, inbox);
    assert_eq!(pair.take().expect("it has arrived").label, "m");
}

#[test]
fn a_message_that_was_taken_is_sent_although_the_other_rank_left_at_once() {
    let (mut pair, mut other) = and_a_socket();
    pair.push("m", b"x");
    other
        .write_all(&super::Frame::bare(super::Kind::Bye, 0).seal())
        .unwrap();
    let left = ErrorKind::PeerClosed {
        rank: 1,
        last_round: 0,
    };
    assert_eq!(pumped(&mut pair), left);
    assert!(pair.is_sent());
    pair.push("m", b"x");
    pair.pump();
    assert!(!pair.is_sent(), "nobody takes that");
}

#[test]
fn what_is_no_frame_ends_the_pair_and_names_the_other_rank() {
    let mut out_of_order = super::Frame::bare(super::Kind::Message, 2).seal();
    out_of_order.extend(b"more");
    for bytes in [
        b"no envelope at all".to_vec(),
        seal(b"no frame"),
        out_of_order,
        super::Frame::bare(super::Kind::Taken, 1).seal(),
    ] {
        let (mut pair, mut other) = and_a_socket();
        other.write_all(&bytes).unwrap();
        match pumped(&mut pair) {
            ErrorKind::Io(what) => assert!(what.starts_with("rank 1 sent garbage"), "{what}"),
            kind => panic!("{kind}"),
        }
    }
}

#[test]
fn half_a_message_and_then_the_end_is_a_death() {
    let (mut pair, mut other) = and_a_socket();
    let whole = super::Frame {
        label: "m",
        payload: &[7; 100],
        ..super::Frame::bare(super::Kind::Message, 1)
    }
    .seal();
    other.write_all(&whole).unwrap();
    let next = super::Frame {
        number: 2,
        ..super::Frame::decode(&whole[12..]).unwrap()
    };
    other.write_all(&next.seal()[..99]).unwrap();
    drop(other);
    let died = ErrorKind::PeerDied {
        rank: 1,
        last_round: 1,
    };
    assert_eq!(pumped(&mut pair), died);
    assert_eq!(pair.take().expect("it came whole").bytes, [7; 100]);
    assert!(pair.take().is_none());
    assert!(pair.socket().is_none(), "nothing to poll: that would spin");
}

#[test]
fn both_may_send_the_longest_message_before_they_receive_and_are_held_up_after_that() {
    within_a_minute(|| {
        let flood = |mut group: Group| {
            let peer = 1 - group.rank();
            let longest = vec![7; LONGEST];
            group.send(peer, &longest, "m").unwrap();
            // Soon more than sockets hold, and nobody receives.
            let error = (0..64).find_map(|_| {
                let call = Call::within("more", Duration::from_millis(500));
                group.send(peer, &longest, call).err()
            });
            (error, group)
        };
        let [one, other] = two().map(|group| thread::spawn(move || flood(group)));
        let [(one_held_up, one), (other_held_up, other)] =
            [one, other].map(|end| end.join().unwrap());
        // Who gives up throws away what arrives, so that it can say so: the other may get rid of its messages by that.
        let errors: Vec<_> = [one_held_up, other_held_up].into_iter().flatten().collect();
        assert!(
            !errors.is_empty() && errors.iter().all(Error::is_timeout),
            "{errors:?}"
        );
        close(one, other);
    });
}

fn missing(error: &Error) -> Vec<usize> {
    match &*error.root().kind {
        ErrorKind::Timeout { missing, .. } => missing.iter().map(|silent| silent.rank).collect(),
        kind => panic!("{kind}"),
    }
}

#[test]
fn a_relay_gives_every_stage_the_same_vectors_in_order() {
    within_a_minute(|| {
        let stages = relay::<3>();
        let stages: Vec<_> = stages
            .into_iter()
            .enumerate()
            .map(|(at, mut stage)| {
                thread::spawn(move || {
                    for n in 0..200 {
                        let wanted: Vec<i64> = (0..n % 7).map(|slot| n << 8 | slot).collect();
                        if at == 0 {
                            stage.settle().unwrap();
                            stage.post(&wanted, "v").unwrap();
                        } else {
                            assert_eq!(next(&mut stage).unwrap(), wanted);
                        }
                    }
                    stage.finish("end").unwrap();
                    assert_eq!(stage.pending(), Pending::default());
                })
            })
            .collect();
        stages.into_iter().for_each(|stage| stage.join().unwrap());
    });
}

#[test]
fn a_stage_that_lags_holds_up_the_first_one_when_the_list_is_full() {
    within_a_minute(|| {
        let options = Options {
            timeout: Duration::from_millis(300),
            ..options()
        };
        let [first, mut last] = Relay::threads("r", 2, &options).try_into().expect("two");
        let mut first = first.with_room(3, 100);
        for n in 1..=3 {
            let started = Instant::now();
            first.post(&[n], "v").unwrap();
            assert!(started.elapsed() < options.timeout, "there was room");
        }
        let full = Pending {
            vectors: 3,
            bytes: 24,
        };
        assert_eq!(first.settle().unwrap(), full);
        assert_eq!(next(&mut last).unwrap(), [1]);
        // Room for one again, but not for one that is too long.
        first.post(&[4], "v").unwrap();
        assert_eq!(first.pending(), full);
        next(&mut last).unwrap();
        let started = Instant::now();
        let error = first.post(&[0; 20], "v").unwrap_err();
        assert!(started.elapsed() >= options.timeout);
        assert_eq!(missing(&error), [1], "{error}");
        // The late stage gets what it has not taken, and then hears that it was missing.
        assert_eq!(next(&mut last).unwrap(), [3]);
        assert_eq!(next(&mut last).unwrap(), [4]);
        assert_eq!(next(&mut last).unwrap_err().kind, error.kind);
        close(first, last);
    });
}

#[test]
fn one_vector_always_has_room() {
    let [first, mut last] = relay::<2>();
    let mut first = first.with_room(0, 0);
    first.post(&[5; 40], "v").unwrap();
    assert_eq!(next(&mut last).unwrap(), [5; 40]);
    first.finish("end").unwrap();
    first.post(&[6; 40], "v").unwrap();
    assert_eq!(first.pending().bytes, 320);
    close(first, last);
}

#[test]
fn a_pipeline_of_one_stage_has_nobody_to_hand_on_to() {
    let [mut only] = relay::<1>();
    only.post(&[1], "v").unwrap();
    only.finish("end").unwrap();
    assert_eq!(only.settle().unwrap(), Pending::default());
    let error = next(&mut only).unwrap_err();
    assert!(matches!(*error.kind, ErrorKind::Usage(_)), "{error}");
}

#[test]
fn only_the_first_stage_posts() {
    let [mut first, mut last] = relay::<2>();
    for error in [
        last.post(&[1], "v").unwrap_err(),
        next(&mut first).unwrap_err(),
    ] {
        assert!(matches!(*error.kind, ErrorKind::Usage(_)), "{error}");
    }
    first.post(&[1], "v").unwrap();
    assert_eq!(next(&mut last).unwrap(), [1], "a wrong use costs nothing");
    close(first, last);
}

#[test]
fn a_panic_of_one_end_is_told_as_an_abort() {
    let [one, mut other] = two();
    let [first, mut last] = relay::<2>();
    let panicked = thread::spawn(move || {
        let (mut one, mut first) = (one, first);
        one.send(1, b"x", "m").unwrap();
        first.post(&[1], "v").unwrap();
        panic!("a test wants it so");
    });
    assert_eq!(recv(&mut other, 0).unwrap(), b"x");
    assert_eq!(next(&mut last).unwrap(), [1]);
    let errors = [
        recv(&mut other, 0).unwrap_err(),
        next(&mut last).unwrap_err(),
    ];
    for error in errors {
        let aborted = matches!(*error.kind, ErrorKind::Aborted { rank: 0, .. });
        assert!(aborted, "{error}");
    }
    close(other, last);
    panicked.join().unwrap_err();
}

#[test]
fn pairs_and_relays_may_change_their_thread() {
    fn goes<T: Send>() {}
    goes::<Pairs>();
    goes::<Relay>();
}
