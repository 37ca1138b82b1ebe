//! The physical limit of this machine: what a round would cost if it were nothing but the hand-over of cache lines.
//!
//! A measuring instrument, kept here because it needs atomics; no part of the protocol uses it.

use crate::sync::{AtomicU64, Futex, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// A pair of lines, as far from its neighbours as a row is.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct Lines {
    words: [AtomicU64; 16],
}

/// Times of `rounds` exchanges between two threads: each writes `lines` (1 or 2) cache lines of its own and polls for
/// the other's.
///
/// `prepare` is called on each thread with 0 or 1, to pin it, say. The first tenth of the rounds warms up and is not
/// returned. Never ends if a thread is not scheduled: for benches only.
#[must_use]
pub fn exchange(
    rounds: usize,
    lines: usize,
    prepare: impl Fn(usize) + Send + Sync + 'static,
) -> Vec<Duration> {
    let shared: Arc<[Lines; 2]> = Arc::default();
    let (prepare, start) = (Arc::new(prepare), Arc::new(Barrier::new(2)));
    let warm = rounds / 10;
    let side = |me: usize| {
        let (shared, prepare, start) = (
            Arc::clone(&shared),
            Arc::clone(&prepare),
            Arc::clone(&start),
        );
        move || {
            prepare(me);
            start.wait();
            let mut times = Vec::with_capacity(rounds);
            for round in 1..=(rounds + warm) as u64 {
                let before = Instant::now();
                // A line is full: payload words, then the word that publishes them. The second line is read after it.
                let mine = &shared[me].words;
                for word in &mine[8..8 * lines] {
                    word.store(round, Ordering::Relaxed);
                }
                for word in &mine[1..8] {
                    word.store(round, Ordering::Relaxed);
                }
                mine[0].store(round, Ordering::Release);
                let theirs = &shared[1 - me].words;
                while theirs[0].load(Ordering::Acquire) < round {
                    crate::sync::spin_loop();
                }
                let sum = theirs[1..8 * lines]
                    .iter()
                    .fold(0, |sum, word| sum ^ word.load(Ordering::Relaxed));
                std::hint::black_box(sum);
                if round > warm as u64 {
                    times.push(before.elapsed());
                }
            }
            times
        }
    };
    // Both on threads of their own, so that `prepare` leaves no trace on the caller.
    let threads = [side(0), side(1)].map(thread::spawn);
    let [times, _] = threads.map(|thread| thread.join().unwrap_or_default());
    times
}

/// Times that one thread needs to read `lines` cache lines that another has just written: what the last rank to arrive
/// pays where it reads the rows of `lines` peers.
///
/// `prepare` is called on each thread with 0 or 1, to pin it, say. Never ends if a thread is not scheduled: for benches
/// only.
#[must_use]
pub fn scan(
    rounds: usize,
    lines: usize,
    prepare: impl Fn(usize) + Send + Sync + 'static,
) -> Vec<Duration> {
    // Line 0 says that the others are written, line 1 that they have been read.
    let shared: Arc<Vec<Lines>> = Arc::new((0..lines + 2).map(|_| Lines::default()).collect());
    let prepare = Arc::new(prepare);
    let wait = |shared: &[Lines], line: usize, round| {
        while shared[line].words[0].load(Ordering::Acquire) < round {
            crate::sync::spin_loop();
        }
    };
    let writer = {
        let (shared, prepare) = (Arc::clone(&shared), Arc::clone(&prepare));
        thread::spawn(move || {
            prepare(0);
            for round in 1..=rounds as u64 {
                for line in &shared[2..] {
                    line.words[0].store(round, Ordering::Relaxed);
                }
                shared[0].words[0].store(round, Ordering::Release);
                wait(&shared, 1, round);
            }
        })
    };
    let reader = thread::spawn(move || {
        prepare(1);
        let mut times = Vec::with_capacity(rounds);
        for round in 1..=rounds as u64 {
            wait(&shared, 0, round);
            let before = Instant::now();
            let sum = shared[2..]
                .iter()
                .fold(0, |sum, line| sum ^ line.words[0].load(Ordering::Relaxed));
            std::hint::black_box(sum);
            times.push(before.elapsed());
            shared[1].words[0].store(round, Ordering::Release);
        }
        times
    });
    let _ = writer.join();
    reader.join().unwrap_or_default()
}

/// Times of `rounds` wakes: one thread wakes another that sleeps on a futex which processes could share, and sleeps until
/// that one wakes it. Each is half of the way there and back.
///
/// `prepare` is called on each thread with 0 or 1, to pin it, say. Never ends if a thread is not scheduled: for benches
/// only.
#[must_use]
pub fn wake(rounds: usize, prepare: impl Fn(usize) + Send + Sync + 'static) -> Vec<Duration> {
    let words: Arc<[Futex; 2]> = Arc::default();
    let (prepare, start) = (Arc::new(prepare), Arc::new(Barrier::new(2)));
    let side = |me: usize| {
        let (words, prepare, start) =
            (Arc::clone(&words), Arc::clone(&prepare), Arc::clone(&start));
        move || {
            prepare(me);
            let (mine, theirs) = (&words[me], &words[1 - me]);
            // The new ticket is drawn before the other side hears of it: it may wake this one again at once.
            let sleep = |ticket: &mut u32| {
                while mine.ticket() == *ticket {
                    mine.sleep(*ticket, Duration::from_secs(1));
                }
                *ticket = mine.ticket();
            };
            let mut ticket = mine.ticket();
            start.wait();
            let mut times = Vec::with_capacity(rounds);
            for _ in 0..rounds {
                let before = Instant::now();
                if me == 0 {
                    theirs.wake_all();
                    sleep(&mut ticket);
                } else {
                    sleep(&mut ticket);
                    theirs.wake_all();
                }
                times.push(before.elapsed() / 2);
            }
            times
        }
    };
    let threads = [side(0), side(1)].map(thread::spawn);
    let [times, _] = threads.map(|thread| thread.join().unwrap_or_default());
    times
}
