use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::*;
use crate::envelope::seal;
use crate::gate::{Admitted, Gate, Purpose};
use crate::token::Token;
use crate::watchdog::within_a_minute;

fn token() -> Token {
    Token::from_text("the job")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

fn serve(size: usize) -> (Server, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (Server::start(listener, token(), size).unwrap(), address)
}

fn link(address: SocketAddr, rank: usize, size: usize) -> Link {
    Link::connect(address, &token(), rank, size, soon(), None).unwrap()
}

/// A server and the links of all ranks.
fn world(size: usize) -> (Server, Vec<Arc<Link>>) {
    let (server, address) = serve(size);
    (
        server,
        (0..size)
            .map(|rank| Arc::new(link(address, rank, size)))
            .collect(),
    )
}

/// Gathers in a thread of its own.
fn gather(
    link: &Arc<Link>,
    key: &str,
    members: &[usize],
    payload: &str,
    deadline: Instant,
) -> JoinHandle<Result<Vec<Vec<u8>>, LinkError>> {
    let (link, key, members) = (Arc::clone(link), key.to_owned(), members.to_vec());
    let payload = payload.to_owned();
    thread::spawn(move || link.gather(&key, &members, payload.as_bytes(), deadline))
}

fn texts(parts: Vec<Vec<u8>>) -> Vec<String> {
    parts
        .into_iter()
        .map(|part| String::from_utf8(part).unwrap())
        .collect()
}

/// A link whose process was killed: its socket closes without a goodbye.
fn kill(link: Arc<Link>) {
    let link = Arc::into_inner(link).unwrap();
    link.kill();
}

#[test]
fn every_member_gets_what_every_member_gave_in_the_order_of_the_members() {
    within_a_minute(|| {
        let (_server, links) = world(4);
        let members = [3, 0, 2];
        let threads: Vec<_> = members
            .iter()
            .map(|&rank| gather(&links[rank], "k", &members, &format!("from {rank}"), soon()))
            .collect();
        for thread in threads {
            assert_eq!(
                texts(thread.join().unwrap().unwrap()),
                ["from 3", "from 0", "from 2"]
            );
        }
    });
}

#[test]
fn a_key_can_be_used_again_and_the_nth_gathers_pair() {
    within_a_minute(|| {
        let (_server, links) = world(2);
        let threads: Vec<_> = links
            .iter()
            .map(|link| {
                let link = Arc::clone(link);
                thread::spawn(move || {
                    for n in 0..200 {
                        let mine = format!("{n}");
                        let parts = link.gather("k", &[0, 1], mine.as_bytes(), soon()).unwrap();
                        assert_eq!(texts(parts), [mine.clone(), mine]);
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn gathers_run_in_several_threads_at_once() {
    within_a_minute(|| {
        let (_server, links) = world(3);
        let mut threads = Vec::new();
        for key in 0..8 {
            for link in &links {
                let link = Arc::clone(link);
                threads.push(thread::spawn(move || {
                    for n in 0..20 {
                        let payload = vec![u8::try_from(key * 20 + n).unwrap(); 3000 * key + n];
                        let parts = link
                            .gather(&format!("k{key}"), &[0, 1, 2], &payload, soon())
                            .unwrap();
                        assert!(parts.iter().all(|part| *part == payload));
                    }
                }));
            }
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_large_payload_passes_and_one_too_large_is_refused_by_the_caller() {
    within_a_minute(|| {
        let (_server, links) = world(2);
        let payload = "x".repeat(1_000_000);
        let threads: Vec<_> = links
            .iter()
            .map(|link| gather(link, "k", &[0, 1], &payload, soon()))
            .collect();
        for thread in threads {
            assert!(
                texts(thread.join().unwrap().unwrap())
                    .iter()
                    .all(|part| *part == payload)
            );
        }
        let large = vec![0; BODY + 1];
        assert!(matches!(
            links[0].gather("k", &[0, 1], &large, soon()),
            Err(LinkError::Usage(_))
        ));
        assert_eq!(links[0].ended(), None);
    });
}

#[test]
fn members_that_cannot_be_are_refused_by_the_caller() {
    within_a_minute(|| {
        let (_server, links) = world(2);
        for members in [&[][..], &[1], &[0, 0], &[0, 2]] {
            assert!(
                matches!(
                    links[0].gather("k", members, b"", soon()),
                    Err(LinkError::Usage(_))
                ),
                "{members:?}"
            );
        }
    });
}

#[test]
fn all_missing_ranks_are_named_to_all_who_wait_and_to_the_late() {
    within_a_minute(|| {
        let (_server, links) = world(5);
        let all = [0, 1, 2, 3, 4];
        let patient: Vec<_> = [2, 4]
            .iter()
            .map(|&rank| gather(&links[rank], "k", &all, "", soon()))
            .collect();
        let hasty = gather(&links[0], "k", &all, "", shortly());
        let missing = Err(LinkError::Missing { ranks: vec![1, 3] });
        for thread in patient.into_iter().chain([hasty]) {
            assert_eq!(thread.join().unwrap(), missing);
        }
        assert_eq!(links[1].gather("k", &all, b"", soon()), missing);
        assert_eq!(links[3].gather("k", &all, b"", soon()), missing);
        // After that the key is as good as new.
        let again: Vec<_> = links
            .iter()
            .map(|link| gather(link, "k", &all, "again", soon()))
            .collect();
        for thread in again {
            assert_eq!(texts(thread.join().unwrap().unwrap()), ["again"; 5]);
        }
    });
}

#[test]
fn a_rank_that_never_joined_is_missing() {
    within_a_minute(|| {
        let (_server, address) = serve(3);
        let link = link(address, 0, 3);
        assert_eq!(
            link.gather("k", &[0, 1, 2], b"", shortly()),
            Err(LinkError::Missing { ranks: vec![1, 2] })
        );
    });
}

#[test]
fn a_dead_member_ends_the_wait_at_once_and_later_gathers_too() {
    within_a_minute(|| {
        let (_server, mut links) = world(3);
        let waiting = gather(
            &links[0],
            "k",
            &[0, 1, 2],
            "",
            Instant::now() + Duration::from_secs(3600),
        );
        let last = links.pop().unwrap();
        kill(last);
        assert_eq!(waiting.join().unwrap(), Err(LinkError::Died { rank: 2 }));
        assert_eq!(
            links[1].gather("k", &[0, 1, 2], b"", soon()),
            Err(LinkError::Died { rank: 2 })
        );
        assert_eq!(
            links[1].gather("other", &[1, 2], b"", soon()),
            Err(LinkError::Died { rank: 2 })
        );
        let others: Vec<_> = links
            .iter()
            .map(|link| gather(link, "k", &[0, 1], "x", soon()))
            .collect();
        for thread in others {
            assert_eq!(texts(thread.join().unwrap().unwrap()), ["x", "x"]);
        }
    });
}

#[test]
fn a_member_that_left_in_order_is_told_from_a_dead_one() {
    within_a_minute(|| {
        let (_server, mut links) = world(2);
        let waiting = gather(&links[0], "k", &[0, 1], "", soon());
        drop(links.pop());
        assert_eq!(waiting.join().unwrap(), Err(LinkError::Left { rank: 1 }));
    });
}

#[test]
fn a_death_is_told_before_a_leaving() {
    within_a_minute(|| {
        let (_server, mut links) = world(3);
        let doomed = links.pop().unwrap();
        drop(links.pop());
        kill(doomed);
        while links[0].dead().is_empty() {
            thread::yield_now();
        }
        assert_eq!(
            links[0].gather("k", &[0, 1, 2], b"", soon()),
            Err(LinkError::Died { rank: 2 })
        );
    });
}

#[test]
fn a_member_may_leave_as_soon_as_it_has_its_result() {
    within_a_minute(|| {
        for _ in 0..20 {
            let (_server, links) = world(3);
            let threads: Vec<_> = links
                .into_iter()
                .map(|link| {
                    thread::spawn(move || {
                        assert_eq!(link.gather("k", &[0, 1, 2], b"x", soon()).unwrap().len(), 3);
                        drop(link);
                    })
                })
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        }
    });
}

#[test]
fn different_members_under_one_key_are_told_to_all_with_both_lists() {
    within_a_minute(|| {
        let (_server, links) = world(3);
        let first = gather(&links[0], "k", &[0, 1, 2], "", soon());
        let second = links[1].gather("k", &[0, 1], b"", soon());
        let (zero, one) = ((0, vec![0, 1, 2]), (1, vec![0, 1]));
        let error = first.join().unwrap();
        assert!(
            error
                == Err(LinkError::Members {
                    one: zero.clone(),
                    other: one.clone()
                })
                || error == Err(LinkError::Members { one, other: zero }),
            "{error:?}"
        );
        assert_eq!(second, error);
        assert_eq!(links[2].gather("k", &[0, 1, 2], b"", soon()), error);
    });
}

#[test]
fn an_abort_ends_every_gather_and_is_told_to_every_rank_that_is_or_will_be_there() {
    within_a_minute(|| {
        let (_server, address) = serve(4);
        let links: Vec<_> = (0..3)
            .map(|rank| Arc::new(link(address, rank, 4)))
            .collect();
        let (told, hears) = mpsc::channel();
        links[0].on_abort(Box::new(move |rank, reason| {
            told.send((rank, reason.to_owned())).unwrap();
        }));
        let waiting: Vec<_> = links
            .iter()
            .map(|link| gather(link, "k", &[0, 1, 2, 3], "", soon()))
            .collect();
        thread::sleep(Duration::from_millis(100));
        links[1].abort("because");
        let reason = "because".to_owned();
        for thread in waiting {
            assert_eq!(
                thread.join().unwrap(),
                Err(LinkError::Aborted {
                    rank: 1,
                    reason: reason.clone()
                })
            );
        }
        assert_eq!(hears.recv().unwrap(), (1, reason.clone()));
        assert!(hears.recv().is_err(), "called once and dropped");
        for link in &links {
            assert_eq!(
                link.ended(),
                Some(Ended::Aborted {
                    rank: 1,
                    reason: reason.clone()
                })
            );
        }
        let late = link(address, 3, 4);
        assert_eq!(
            late.gather("k", &[0, 1, 2, 3], b"", soon()),
            Err(LinkError::Aborted {
                rank: 1,
                reason: reason.clone()
            })
        );
        let (told, hears) = mpsc::channel();
        late.on_abort(Box::new(move |rank, reason| {
            told.send((rank, reason.to_owned())).unwrap();
        }));
        assert_eq!(
            hears.try_recv(),
            Ok((1, reason)),
            "called when registered after the abort"
        );
    });
}

#[test]
fn a_thread_that_panics_aborts_the_job() {
    within_a_minute(|| {
        let (_server, mut links) = world(2);
        let doomed = Arc::into_inner(links.pop().unwrap()).unwrap();
        let waiting = gather(&links[0], "k", &[0, 1], "", soon());
        let panicked = thread::spawn(move || {
            let _doomed = doomed;
            std::panic::resume_unwind(Box::new("a test panics"));
        });
        assert!(panicked.join().is_err());
        assert_eq!(
            waiting.join().unwrap(),
            Err(LinkError::Aborted {
                rank: 1,
                reason: "panicked".to_owned()
            })
        );
    });
}

#[test]
fn an_abort_right_before_the_server_closes_still_arrives() {
    within_a_minute(|| {
        for _ in 0..20 {
            let (server, links) = world(3);
            links[0].abort("first");
            drop(server);
            for link in &links[1..] {
                assert!(matches!(
                    link.gather("k", &[0, 1, 2], b"", soon()),
                    Err(LinkError::Aborted { rank: 0, .. })
                ));
            }
        }
    });
}

#[test]
fn a_server_closed_in_order_has_left() {
    within_a_minute(|| {
        let (server, links) = world(2);
        let waiting = gather(&links[1], "k", &[0, 1], "", soon());
        thread::sleep(Duration::from_millis(50));
        drop(server);
        assert_eq!(waiting.join().unwrap(), Err(LinkError::Left { rank: 0 }));
        assert_eq!(
            links[1].gather("k", &[0, 1], b"", soon()),
            Err(LinkError::Left { rank: 0 })
        );
        assert_eq!(links[1].ended(), Some(Ended::Left { rank: 0 }));
    });
}

#[test]
fn a_rank_number_is_given_once() {
    within_a_minute(|| {
        let (_server, address) = serve(2);
        let mut first = link(address, 1, 2);
        let refused = |what: &str| match Link::connect(address, &token(), 1, 2, soon(), None) {
            Err(LinkError::Refused { reason }) => assert!(reason.contains(what), "{reason}"),
            other => panic!("{other:?}"),
        };
        refused("live");
        first.close();
        assert_eq!(first.gather("k", &[1], b"", soon()), Err(LinkError::Closed));
        refused("left");
    });
}

#[test]
fn a_wrong_token_and_a_rank_beyond_the_world_are_refused_with_the_reason() {
    within_a_minute(|| {
        let (_server, address) = serve(2);
        for (text, rank, size, what) in [("other", 0, 2, "token"), ("the job", 2, 2, "no rank 2")] {
            match Link::connect(address, &Token::from_text(text), rank, size, soon(), None) {
                Err(LinkError::Refused { reason }) => assert!(reason.contains(what), "{reason}"),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn ranks_started_for_different_worlds_are_told_so_at_their_first_gather() {
    within_a_minute(|| {
        let (_server, address) = serve(2);
        let other = thread::spawn(move || {
            let larger = link(address, 1, 3);
            larger.gather("world", &[0, 1, 2], b"", soon())
        });
        let error = link(address, 0, 2)
            .gather("world", &[0, 1], b"", soon())
            .unwrap_err();
        assert_eq!(other.join().unwrap(), Err(error.clone()));
        let LinkError::Members { one, other } = error else {
            panic!("{error:?}")
        };
        let mut lists = [one.1, other.1];
        lists.sort();
        assert_eq!(lists, [vec![0, 1], vec![0, 1, 2]]);
    });
}

#[test]
fn a_link_waits_for_a_server_that_comes_late() {
    within_a_minute(|| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let joining = thread::spawn(move || Link::connect(address, &token(), 0, 1, soon(), None));
        thread::sleep(Duration::from_millis(200));
        let _server = Server::start(TcpListener::bind(address).unwrap(), token(), 1).unwrap();
        assert_eq!(
            joining
                .join()
                .unwrap()
                .unwrap()
                .gather("k", &[0], b"x", soon()),
            Ok(vec![b"x".to_vec()])
        );
    });
}

#[test]
fn nobody_there_is_unreachable_with_the_address() {
    within_a_minute(|| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = Link::connect(address, &token(), 0, 1, shortly(), None).unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    });
}

#[test]
fn strangers_of_every_kind_do_not_delay_a_join() {
    within_a_minute(|| {
        let (_server, address) = serve(2);
        let mut strangers = Vec::new();
        let hello = seal(&[&[1u8][..], &[7; 32]].concat());
        for kind in 0..1000 {
            let mut stranger = TcpStream::connect(address).unwrap();
            // A stranger that was dropped already cannot write, which is as it should be.
            let _ = match kind % 5 {
                0 => Ok(()),
                1 => stranger.write_all(b"GET / HTTP/1.1\r\n\r\n"),
                2 => stranger.write_all(&hello[..20]),
                3 => stranger.write_all(&hello),
                _ => stranger.write_all(&[0xff; 4096]),
            };
            strangers.push(stranger);
            if kind == 500 {
                let early = link(address, 0, 2);
                assert_eq!(
                    early.gather("k", &[0], b"x", soon()),
                    Ok(vec![b"x".to_vec()])
                );
            }
        }
        assert_eq!(
            link(address, 1, 2).gather("k", &[1], b"x", soon()),
            Ok(vec![b"x".to_vec()])
        );
    });
}

/// A rank 0 that lets one link in, and then does nothing, or dies.
fn admit(listener: TcpListener) -> Admitted {
    let mut gate = Gate::new(listener, token(), Purpose::Rendezvous, 2).unwrap();
    loop {
        if let Some(admitted) = gate.serve(|_| Ok(())).pop() {
            return admitted;
        }
        thread::yield_now();
    }
}

#[test]
fn the_death_of_rank_0_ends_every_wait() {
    within_a_minute(|| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || admit(listener));
        let link = Arc::new(link(address, 1, 2));
        let admitted = server.join().unwrap();
        let waiting = gather(&link, "k", &[0, 1], "", soon());
        thread::sleep(Duration::from_millis(50));
        drop(admitted);
        assert_eq!(waiting.join().unwrap(), Err(LinkError::Died { rank: 0 }));
        assert_eq!(link.ended(), Some(Ended::Died { rank: 0 }));
        assert_eq!(
            link.gather("k", &[0, 1], b"", soon()),
            Err(LinkError::Died { rank: 0 })
        );
    });
}

#[test]
fn a_rank_0_that_lives_but_does_not_answer_is_missing_and_delays_no_close() {
    within_a_minute(|| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || admit(listener));
        let mut link = link(address, 1, 2);
        let _admitted = server.join().unwrap();
        assert_eq!(
            link.gather("k", &[0, 1], b"", shortly()),
            Err(LinkError::Missing { ranks: vec![0] })
        );
        assert_eq!(link.ended(), None);
        link.close();
    });
}
