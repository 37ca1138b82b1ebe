//! Signals never shorten or lengthen a wait, and never come out as an error.

#![cfg(not(loom))]
#![expect(
    clippy::disallowed_types,
    reason = "a signal handler may do little but count"
)]

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rankpact_shm::{Cause, Geometry, Kind, Ladder, RoundError, Storage, Table};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);
/// Of both timers, in nanoseconds.
const EVERY: i64 = 1_000_000;

static ALARMS: AtomicU64 = AtomicU64::new(0);
static PROFILES: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(signal: libc::c_int) {
    let counter = if signal == libc::SIGALRM {
        &ALARMS
    } else {
        &PROFILES
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Interrupts this process each millisecond of CPU time, as a profiler does.
fn profile() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Without SA_RESTART: every system call that can be interrupted is.
        let action = SigAction::new(
            SigHandler::Handler(count),
            SaFlags::empty(),
            SigSet::empty(),
        );
        for signal in [Signal::SIGALRM, Signal::SIGPROF] {
            // SAFETY: the handler only adds to an atomic.
            unsafe { sigaction(signal, &action) }.expect("a handler");
        }
        let every = libc::timeval {
            tv_sec: 0,
            tv_usec: EVERY / 1000,
        };
        let timer = libc::itimerval {
            it_interval: every,
            it_value: every,
        };
        // SAFETY: reads one valid structure, and is to write nothing.
        let set =
            unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
        assert_eq!(set, 0);
    });
}

/// A timer that interrupts the thread which made it, each millisecond.
struct Alarm(libc::timer_t);

impl Alarm {
    fn here() -> Self {
        // SAFETY: for this structure all zeroes are a valid value.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = nix::unistd::gettid().as_raw();
        let mut timer = std::ptr::null_mut();
        // SAFETY: both are valid for the call, which reads one and writes the other.
        let made =
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        assert_eq!(made, 0);
        let every = libc::timespec {
            tv_sec: 0,
            tv_nsec: EVERY,
        };
        let period = libc::itimerspec {
            it_interval: every,
            it_value: every,
        };
        // SAFETY: a timer that exists; reads one valid structure, and is to write nothing.
        let set = unsafe { libc::timer_settime(timer, 0, &raw const period, std::ptr::null_mut()) };
        assert_eq!(set, 0);
        Self(timer)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: made by `here`, and deleted only once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Runs `body` for each rank on a thread of its own that is interrupted each millisecond; results by rank.
fn in_a_storm<T: Send + 'static>(
    ladders: &[Ladder],
    body: impl Fn(Table) -> T + Send + Sync + 'static,
) -> Vec<T> {
    profile();
    let geometry = Geometry::new(ladders.len(), 4).expect("a valid geometry");
    let storage = Arc::new(Storage::heap(geometry, 1));
    let (body, (say, ended)) = (Arc::new(body), mpsc::channel());
    let before = ALARMS.load(Ordering::Relaxed);
    for (me, ladder) in ladders.iter().enumerate() {
        let table = Table::new(Arc::clone(&storage), me, *ladder);
        let (body, say) = (Arc::clone(&body), say.clone());
        thread::spawn(move || {
            let _alarm = Alarm::here();
            say.send((me, body(table)))
        });
    }
    drop(say);
    let mut results: Vec<_> = ladders
        .iter()
        .map(|_| match ended.recv_timeout(LONG) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("a rank panicked"),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                eprintln!("watchdog: a test hangs");
                std::process::abort();
            }
        })
        .collect();
    let alarms = ALARMS.load(Ordering::Relaxed) - before;
    assert!(alarms > 20, "no storm: {alarms} signals");
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

#[test]
fn rounds_in_a_storm_of_signals_are_all_right() {
    for ladder in [Ladder::parking(), Ladder::auto(1, 2), Ladder::auto(2, 1)] {
        in_a_storm(&[ladder; 3], |mut table| {
            let me = i64::try_from(table.rank()).expect("small");
            for round in 0..4000 {
                let mut row = [round + me, me - round];
                table
                    .all_reduce(Kind::Max, "storm", &mut row, LONG)
                    .expect("a signal is no failure");
                assert_eq!(row, [round + 2, 2 - round]);
                if round % 400 == me * 100 {
                    // The others sleep meanwhile.
                    thread::sleep(Duration::from_millis(5));
                }
            }
        });
    }
    assert!(PROFILES.load(Ordering::Relaxed) > 20, "no profiler");
}

#[test]
fn a_deadline_in_a_storm_of_signals_is_neither_early_nor_forgotten() {
    for ladder in [Ladder::parking(), Ladder::auto(1, 2), Ladder::spinning()] {
        in_a_storm(&[ladder; 2], |mut table| {
            if table.rank() == 1 {
                thread::sleep(2 * SHORT);
                return;
            }
            let started = Instant::now();
            let error = table.all_reduce(Kind::Min, "late", &mut [1], SHORT);
            let took = started.elapsed();
            let Err(RoundError::Failed(failure)) = error else {
                panic!("{error:?}");
            };
            let Cause::Timeout { after, .. } = failure.cause else {
                panic!("{failure:?}");
            };
            assert!(after >= SHORT && took >= SHORT, "{after:?} {took:?}");
            // A wait that each signal began anew would last for ever.
            assert!(took < Duration::from_secs(5), "{took:?}");
        });
    }
}
