use std::convert::Infallible;
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;

use super::*;
use crate::gate::{Claim, Purpose, Visitor};
use crate::ip::Ip;
use crate::token::Token;
use crate::watchdog::within_a_minute;

const LOOPBACK: Ip = Ip::LOOPBACK;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

fn token() -> Token {
    Token::from_text("the group")
}

/// Keeps what it is shown.
#[derive(Default)]
struct Keep(Vec<(usize, u64, String, Vec<u8>)>);

impl Watch for Keep {
    type Stop = Infallible;

    fn frame(&mut self, peer: usize, frame: &Frame<'_>) -> Result<(), Infallible> {
        self.0.push((
            peer,
            frame.round,
            frame.label.to_owned(),
            frame.payload.to_vec(),
        ));
        Ok(())
    }

    fn slice(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

fn round(round: u64, payload: &[u8]) -> Frame<'_> {
    Frame {
        round,
        label: "test",
        payload,
        ..Frame::default()
    }
}

/// One exchange of which only the outcome matters.
fn exchange(mesh: &mut Mesh, number: u64, deadline: Instant) -> Result<(), MeshError> {
    match mesh.exchange(&round(number, &[1; 16]), &mut Keep::default(), deadline) {
        Err(ExchangeError::Mesh(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// Bytes that any place, round and position can be told from.
fn bytes(me: usize, round: u64, size: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15u64
        .wrapping_mul(u64::try_from(me).unwrap() + 1)
        .wrapping_add(round);
    (0..size)
        .map(|_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.to_be_bytes()[0]
        })
        .collect()
}

/// 0 B to 4 MiB, small ones more often, different for every place and round.
fn size(me: usize, round: u64) -> usize {
    let seed = bytes(me, round ^ 0xabcd, 8);
    let most = 1usize << (usize::from(seed[0]) % 23);
    (usize::from(seed[1]) << 16 | usize::from(seed[2]) << 8 | usize::from(seed[3])) % most
}

fn in_threads(meshes: Vec<Mesh>, work: impl Fn(Mesh) + Send + Sync + Copy) {
    thread::scope(|scope| {
        for mesh in meshes {
            scope.spawn(move || work(mesh));
        }
    });
}

/// A mesh at place 0 of two, and the bare socket of its peer at place 1.
fn beside_a_socket() -> (Mesh, Stream) {
    let listener = Mesh::listen(LOOPBACK).unwrap();
    let addresses = [listener.local_addr().unwrap(); 2];
    let claim = Claim {
        purpose: Purpose::Mesh,
        rank: 1,
        size: 2,
    };
    let visitor = Visitor::new(addresses[0], &token(), claim);
    let visit = thread::spawn(move || visitor.enter(soon(), None));
    let mesh = Mesh::connect(listener, &addresses, 0, &token(), soon(), &|| true).unwrap();
    let (stream, _) = visit.join().unwrap().unwrap().unwrap();
    stream.set_nonblocking(false).unwrap();
    (mesh, stream)
}

fn wire(kind: Kind, frame: &Frame<'_>) -> Vec<u8> {
    [&frame.header(kind)[..], frame.payload].concat()
}

#[test]
fn every_byte_arrives_for_every_number_of_members_and_every_size() {
    within_a_minute(|| {
        for members in [1, 2, 3, 5, 8] {
            in_threads(Mesh::pairs(members).unwrap(), move |mut mesh| {
                let me = mesh.me();
                for number in 1..=12 {
                    let mut keep = Keep::default();
                    let payload = bytes(me, number, size(me, number));
                    mesh.exchange(&round(number, &payload), &mut keep, soon())
                        .unwrap();
                    keep.0.sort_unstable();
                    assert!(
                        keep.0
                            .iter()
                            .map(|seen| seen.0)
                            .eq((0..members).filter(|&peer| peer != me))
                    );
                    for (peer, seen, label, payload) in keep.0 {
                        assert_eq!((seen, label.as_str()), (number, "test"));
                        assert!(
                            payload == bytes(peer, number, size(peer, number)),
                            "{peer} to {me} in {number}"
                        );
                    }
                }
            });
        }
    });
}

#[test]
fn large_frames_do_not_block_each_other_even_without_spinning() {
    within_a_minute(|| {
        in_threads(Mesh::pairs(3).unwrap(), |mut mesh| {
            mesh.climb(Ladder::parking());
            let payload = vec![u8::try_from(mesh.me()).unwrap(); 24 << 20];
            for number in 1..=2 {
                let mut keep = Keep::default();
                mesh.exchange(&round(number, &payload), &mut keep, soon())
                    .unwrap();
                for (peer, _, _, seen) in keep.0 {
                    assert!(
                        seen.len() == payload.len()
                            && seen.iter().all(|&byte| usize::from(byte) == peer)
                    );
                }
            }
        });
    });
}

#[test]
fn a_scatter_gives_every_member_its_own_part() {
    within_a_minute(|| {
        in_threads(Mesh::pairs(4).unwrap(), |mut mesh| {
            let me = mesh.me();
            let part = |from: usize, to: usize| {
                bytes(from, u64::try_from(to).unwrap(), (from * 4 + to) * 50_000)
            };
            let parts: Vec<Vec<u8>> = (0..4).map(|to| part(me, to)).collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut keep = Keep::default();
            mesh.scatter(&round(1, b"not sent"), &parts, &mut keep, soon())
                .unwrap();
            assert_eq!(keep.0.len(), 3);
            assert!(
                keep.0
                    .iter()
                    .all(|(from, _, _, seen)| *seen == part(*from, me))
            );
            exchange(&mut mesh, 2, soon()).unwrap();
            let few = mesh.scatter(&round(3, b""), &parts[1..], &mut keep, soon());
            assert!(matches!(few, Err(ExchangeError::Mesh(MeshError::Usage(_)))));
        });
    });
}

#[test]
fn frames_of_later_rounds_wait_for_their_exchange() {
    within_a_minute(|| {
        let (mut mesh, mut peer) = beside_a_socket();
        for number in 1..=3 {
            peer.write_all(&wire(
                Kind::Data,
                &round(number, &[u8::try_from(number).unwrap(); 8]),
            ))
            .unwrap();
        }
        peer.write_all(&wire(Kind::Bye, &Frame::default())).unwrap();
        for number in 1..=3 {
            let mut keep = Keep::default();
            mesh.exchange(&round(number, b""), &mut keep, soon())
                .unwrap();
            assert_eq!(
                keep.0,
                [(
                    1,
                    number,
                    "test".to_owned(),
                    vec![u8::try_from(number).unwrap(); 8]
                )]
            );
        }
        assert_eq!(
            exchange(&mut mesh, 4, soon()),
            Err(MeshError::Left { peer: 1 })
        );
    });
}

#[test]
fn a_frame_of_a_later_round_does_not_stand_for_this_one() {
    within_a_minute(|| {
        let (mut mesh, mut peer) = beside_a_socket();
        peer.write_all(&wire(Kind::Data, &round(2, b""))).unwrap();
        assert_eq!(
            exchange(&mut mesh, 1, shortly()),
            Err(MeshError::Missing { peers: vec![1] })
        );
    });
}

#[test]
fn a_frame_of_a_past_round_is_garbage() {
    within_a_minute(|| {
        let (mut mesh, mut peer) = beside_a_socket();
        peer.write_all(&wire(Kind::Data, &round(6, b""))).unwrap();
        let garbage = MeshError::Garbage {
            peer: 1,
            what: "a frame of a past round",
        };
        assert_eq!(exchange(&mut mesh, 7, soon()), Err(garbage));
    });
}

#[test]
fn a_peer_killed_in_the_middle_of_a_frame_has_died() {
    within_a_minute(|| {
        let (mut mesh, mut peer) = beside_a_socket();
        let bytes = wire(Kind::Data, &round(1, &[5; 1000]));
        peer.write_all(&bytes[..600]).unwrap();
        drop(peer);
        assert_eq!(
            exchange(&mut mesh, 1, soon()),
            Err(MeshError::Died { peer: 1 })
        );
        assert_eq!(exchange(&mut mesh, 2, soon()), Err(MeshError::Closed));
    });
}

#[test]
fn a_peer_that_dies_after_its_frame_does_not_fail_the_round() {
    within_a_minute(|| {
        let (mut mesh, mut peer) = beside_a_socket();
        peer.write_all(&wire(Kind::Data, &round(1, b"last")))
            .unwrap();
        // Unread bytes at its end make the close a reset: the hard case.
        mesh.peers[1]
            .as_mut()
            .unwrap()
            .stream
            .write_all(b"never read")
            .unwrap();
        drop(peer);
        thread::sleep(Duration::from_millis(50));
        let mut keep = Keep::default();
        mesh.exchange(&round(1, &[0; 100_000]), &mut keep, soon())
            .unwrap();
        assert_eq!(keep.0[0].3, b"last");
        assert_eq!(
            exchange(&mut mesh, 2, soon()),
            Err(MeshError::Died { peer: 1 })
        );
    });
}

#[test]
fn a_fast_member_may_leave_while_a_slow_one_reads_its_last_result() {
    within_a_minute(|| {
        in_threads(Mesh::pairs(3).unwrap(), |mut mesh| {
            for number in 1..=100 {
                if mesh.me() == 1 && number == 100 {
                    thread::sleep(Duration::from_millis(300));
                }
                exchange(&mut mesh, number, soon()).unwrap();
            }
            mesh.close();
        });
    });
}

#[test]
fn a_member_that_left_is_told_from_one_that_died() {
    within_a_minute(|| {
        let mut meshes = Mesh::pairs(2).unwrap();
        let mut other = meshes.pop().unwrap();
        let leaving = thread::spawn(move || {
            exchange(&mut other, 1, soon()).unwrap();
            drop(other);
        });
        exchange(&mut meshes[0], 1, soon()).unwrap();
        assert_eq!(
            exchange(&mut meshes[0], 2, soon()),
            Err(MeshError::Left { peer: 1 })
        );
        drop(meshes);
        leaving.join().unwrap();
    });
}

/// The end of a member whose thread panics.
fn panic_with(mesh: Mesh) {
    let panicked = thread::spawn(move || {
        let _mesh = mesh;
        std::panic::resume_unwind(Box::new("a test panics"));
    });
    assert!(panicked.join().is_err());
}

#[test]
fn a_death_is_told_and_not_the_leaving_on_its_account() {
    within_a_minute(|| {
        let mut meshes = Mesh::pairs(3).unwrap();
        let [doomed, leaver] = [(); 2].map(|()| meshes.pop().unwrap());
        panic_with(doomed);
        // It says goodbye at once, and waits a while for this one to hang up.
        let leaving = thread::spawn(move || drop(leaver));
        thread::sleep(Duration::from_millis(50));
        assert_eq!(
            exchange(&mut meshes[0], 1, soon()),
            Err(MeshError::Died { peer: 2 })
        );
        drop(meshes);
        leaving.join().unwrap();
    });
}

#[test]
fn a_panic_in_one_member_is_a_death_for_the_others() {
    within_a_minute(|| {
        let mut meshes = Mesh::pairs(2).unwrap();
        let other = meshes.pop().unwrap();
        panic_with(other);
        assert_eq!(
            exchange(&mut meshes[0], 1, soon()),
            Err(MeshError::Died { peer: 1 })
        );
    });
}

#[test]
fn all_missing_members_are_named() {
    within_a_minute(|| {
        let mut meshes = Mesh::pairs(4).unwrap();
        let (mut two, mut zero) = (meshes.remove(2), meshes.remove(0));
        let waiting = thread::spawn(move || (exchange(&mut two, 1, shortly()), two));
        let missing = exchange(&mut zero, 1, shortly());
        assert_eq!(missing, Err(MeshError::Missing { peers: vec![1, 3] }));
        let (missing, _two) = waiting.join().unwrap();
        assert_eq!(missing, Err(MeshError::Missing { peers: vec![1, 3] }));
    });
}

#[test]
fn a_peer_that_sends_but_never_reads_is_missing() {
    within_a_minute(|| {
        let (mut mesh, mut peer) = beside_a_socket();
        peer.write_all(&wire(Kind::Data, &round(1, b""))).unwrap();
        let large = vec![0; 64 << 20];
        let outcome = mesh.exchange(&round(1, &large), &mut Keep::default(), shortly());
        assert_eq!(
            outcome,
            Err(ExchangeError::Mesh(MeshError::Missing { peers: vec![1] }))
        );
    });
}

#[test]
fn garbage_and_a_broken_checksum_are_named() {
    within_a_minute(|| {
        let good = wire(Kind::Data, &round(1, b"payload"));
        for at in [0, 9, HEADER - 1, HEADER] {
            let (mut mesh, mut peer) = beside_a_socket();
            let mut broken = good.clone();
            broken[at] ^= 4;
            peer.write_all(&broken).unwrap();
            assert!(
                matches!(
                    exchange(&mut mesh, 1, soon()),
                    Err(MeshError::Garbage { peer: 1, .. })
                ),
                "byte {at}"
            );
        }
    });
}

#[test]
fn a_poison_reaches_all_with_its_payload() {
    within_a_minute(|| {
        in_threads(Mesh::pairs(3).unwrap(), |mut mesh| {
            if mesh.me() == 1 {
                mesh.poison(1, b"why");
                assert_eq!(exchange(&mut mesh, 1, soon()), Err(MeshError::Closed));
            } else {
                let poisoned = MeshError::Poisoned {
                    peer: 1,
                    payload: b"why".to_vec(),
                };
                assert_eq!(exchange(&mut mesh, 1, soon()), Err(poisoned));
            }
        });
    });
}

#[test]
fn a_poison_is_seen_even_from_a_peer_whose_frame_has_arrived() {
    within_a_minute(|| {
        let mut meshes = Mesh::pairs(3).unwrap();
        let _silent = meshes.pop().unwrap();
        let mut other = meshes.pop().unwrap();
        let giving_up = thread::spawn(move || {
            assert_eq!(
                exchange(&mut other, 1, shortly()),
                Err(MeshError::Missing { peers: vec![2] })
            );
            other.poison(1, b"late");
        });
        let poisoned = MeshError::Poisoned {
            peer: 1,
            payload: b"late".to_vec(),
        };
        assert_eq!(exchange(&mut meshes[0], 1, soon()), Err(poisoned));
        drop(meshes);
        giving_up.join().unwrap();
    });
}

/// Stops at the first frame.
struct Refuse;

impl Watch for Refuse {
    type Stop = &'static str;

    fn frame(&mut self, _: usize, _: &Frame<'_>) -> Result<(), &'static str> {
        Err("mismatch")
    }

    fn slice(&mut self) -> Result<(), &'static str> {
        Ok(())
    }
}

#[test]
fn a_poison_follows_the_rest_of_a_frame_that_was_half_sent() {
    within_a_minute(|| {
        let mut meshes = Mesh::pairs(2).unwrap();
        let mut other = meshes.pop().unwrap();
        let large = vec![3; 4 << 20];
        let reading = thread::spawn(move || {
            let mut keep = Keep::default();
            // Its own frame stops the other at once, in the middle of sending.
            other.exchange(&round(1, b""), &mut keep, soon()).unwrap();
            assert!(keep.0[0].3.len() == 4 << 20);
            exchange(&mut other, 2, soon())
        });
        thread::sleep(Duration::from_millis(20));
        let outcome = meshes[0].exchange(&round(1, &large), &mut Refuse, soon());
        assert_eq!(outcome, Err(ExchangeError::Stopped("mismatch")));
        meshes[0].poison(2, b"mismatch");
        let poisoned = MeshError::Poisoned {
            peer: 0,
            payload: b"mismatch".to_vec(),
        };
        assert_eq!(reading.join().unwrap(), Err(poisoned));
    });
}

#[test]
fn who_is_silent_for_long_is_told_once_and_may_still_come() {
    within_a_minute(|| {
        let mut meshes = Mesh::pairs(3).unwrap();
        let mut late = meshes.pop().unwrap();
        let waiting: Vec<_> = meshes
            .into_iter()
            .map(|mut mesh| {
                thread::spawn(move || {
                    let (tell, told) = std::sync::mpsc::channel();
                    mesh.tell_silence(Box::new(move |silent, waited| {
                        tell.send((silent.rank, silent.last_round, waited)).unwrap();
                    }));
                    exchange(&mut mesh, 1, soon()).unwrap();
                    told.try_iter().collect::<Vec<_>>()
                })
            })
            .collect();
        thread::sleep(2 * super::SILENCE + Duration::from_millis(300));
        exchange(&mut late, 1, soon()).unwrap();
        for mesh in waiting {
            assert_eq!(mesh.join().unwrap(), [(2, 0, super::SILENCE)]);
        }
    });
}

#[test]
fn who_comes_late_completes_no_round_that_a_peer_has_given_up() {
    within_a_minute(|| {
        for size in [2, 3, 5] {
            let mut meshes = Mesh::pairs(size).unwrap();
            let mut late = meshes.pop().unwrap();
            let given_up = Arc::new(Barrier::new(size));
            let early: Vec<_> = meshes
                .into_iter()
                .map(|mut mesh| {
                    let given_up = Arc::clone(&given_up);
                    thread::spawn(move || {
                        exchange(&mut mesh, 1, soon()).unwrap();
                        exchange(&mut mesh, 2, Instant::now() + Duration::from_millis(50))
                            .unwrap_err();
                        mesh.poison(2, b"gave up");
                        given_up.wait();
                    })
                })
                .collect();
            exchange(&mut late, 1, soon()).unwrap();
            given_up.wait();
            let error = exchange(&mut late, 2, soon()).unwrap_err();
            assert!(
                matches!(error, MeshError::Poisoned { .. }),
                "{size} members: {error}"
            );
            early.into_iter().for_each(|mesh| mesh.join().unwrap());
        }
    });
}

/// Stops after a few slices.
struct Slices(usize);

impl Watch for Slices {
    type Stop = &'static str;

    fn frame(&mut self, _: usize, _: &Frame<'_>) -> Result<(), &'static str> {
        Ok(())
    }

    fn slice(&mut self) -> Result<(), &'static str> {
        self.0 += 1;
        if self.0 > 3 { Err("aborted") } else { Ok(()) }
    }
}

#[test]
fn the_watch_can_end_a_wait_that_nothing_else_ends() {
    within_a_minute(|| {
        for ladder in [Ladder::parking(), Ladder::spinning()] {
            let mut meshes = Mesh::pairs(2).unwrap();
            meshes[0].climb(ladder);
            let started = Instant::now();
            let outcome = meshes[0].exchange(&round(1, b""), &mut Slices(0), soon());
            assert_eq!(outcome, Err(ExchangeError::Stopped("aborted")));
            assert!(started.elapsed() >= 3 * SLICE);
        }
    });
}

#[test]
fn a_frame_too_large_or_with_too_long_a_label_is_refused_by_the_caller() {
    within_a_minute(|| {
        let (mut mesh, _peer) = beside_a_socket();
        let label = "l".repeat(LABEL + 1);
        let outcome = mesh.exchange(
            &Frame {
                label: &label,
                ..Frame::default()
            },
            &mut Keep::default(),
            soon(),
        );
        assert!(matches!(
            outcome,
            Err(ExchangeError::Mesh(MeshError::Usage(_)))
        ));
    });
}

#[test]
fn connected_and_accepted_sockets_have_no_delay() {
    within_a_minute(|| {
        for mesh in Mesh::pairs(3).unwrap() {
            for (_, peer) in mesh.numbered() {
                assert!(peer.stream.nodelay().unwrap());
            }
        }
    });
}

#[test]
fn members_that_do_not_come_are_named_to_all_who_did() {
    within_a_minute(|| {
        let listeners: Vec<_> = (0..5).map(|_| Mesh::listen(LOOPBACK).unwrap()).collect();
        let addresses: Vec<SocketAddr> = listeners
            .iter()
            .map(|listener| listener.local_addr().unwrap())
            .collect();
        let deadline = Instant::now() + Duration::from_millis(500);
        thread::scope(|scope| {
            for (me, listener) in listeners
                .into_iter()
                .enumerate()
                .filter(|(me, _)| me % 2 == 0)
            {
                let addresses = &addresses;
                scope.spawn(move || {
                    let outcome =
                        Mesh::connect(listener, addresses, me, &token(), deadline, &|| true);
                    let Err(MeshError::Unreached { peers, trouble }) = outcome.map(drop) else {
                        panic!("member {me}")
                    };
                    assert_eq!(peers, [1, 3], "member {me}: {trouble}");
                });
            }
        });
    });
}

#[test]
fn strangers_do_not_delay_a_mesh_and_a_wrong_token_is_refused() {
    within_a_minute(|| {
        let listeners: Vec<_> = (0..2).map(|_| Mesh::listen(LOOPBACK).unwrap()).collect();
        let addresses: Vec<SocketAddr> = listeners
            .iter()
            .map(|listener| listener.local_addr().unwrap())
            .collect();
        let mut strangers: Vec<_> = (0..60)
            .map(|_| TcpStream::connect(addresses[0]).unwrap())
            .collect();
        strangers
            .iter_mut()
            .step_by(2)
            .for_each(|stranger| stranger.write_all(b"half a hello").unwrap());
        let mut listeners = listeners.into_iter();
        let (first, second) = (listeners.next().unwrap(), listeners.next().unwrap());
        thread::scope(|scope| {
            let addresses = &addresses;
            let zero =
                scope.spawn(move || Mesh::connect(first, addresses, 0, &token(), soon(), &|| true));
            let wrong = Token::from_text("another group");
            let spare = Mesh::listen(LOOPBACK).unwrap();
            let refused = Mesh::connect(spare, addresses, 1, &wrong, soon(), &|| true).map(drop);
            assert!(
                matches!(refused, Err(MeshError::Refused { peer: 0, .. })),
                "{refused:?}"
            );
            let one = scope
                .spawn(move || Mesh::connect(second, addresses, 1, &token(), soon(), &|| true));
            let meshes = vec![zero.join().unwrap().unwrap(), one.join().unwrap().unwrap()];
            in_threads(meshes, |mut mesh| exchange(&mut mesh, 1, soon()).unwrap());
        });
    });
}
