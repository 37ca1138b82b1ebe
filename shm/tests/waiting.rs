//! What waits cost: who sleeps, who is woken, and by how many calls.

#![cfg(not(loom))]

use rankpact_shm::{Effort, Geometry, Kind, Ladder, Storage, Table, cpus};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// Runs `body` for each rank on a thread of its own, at most for a minute; results by rank.
fn on_threads<T: Send + 'static>(
    ranks: usize,
    ladder: Ladder,
    body: impl Fn(Table) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let geometry = Geometry::new(ranks, 4).expect("a valid geometry");
    let storage = Arc::new(Storage::heap(geometry, 1));
    let (body, (say, ended)) = (Arc::new(body), mpsc::channel());
    for me in 0..ranks {
        let table = Table::new(Arc::clone(&storage), me, ladder).with_timing();
        let (body, say) = (Arc::clone(&body), say.clone());
        thread::spawn(move || say.send((me, body(table))));
    }
    drop(say);
    let mut results: Vec<_> = (0..ranks)
        .map(|_| match ended.recv_timeout(LONG) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("a rank panicked"),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                eprintln!("watchdog: a test hangs");
                std::process::abort();
            }
        })
        .collect();
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

fn round(table: &mut Table) {
    table
        .all_reduce(Kind::Min, "round", &mut [1, 2, 3], LONG)
        .expect("all ranks call alike");
}

/// Sleeps and wake calls of all ranks together.
fn rounds(ranks: usize, ladder: Ladder, rounds: u64) -> (u64, u64) {
    let efforts = on_threads(ranks, ladder, move |mut table| {
        (0..rounds).for_each(|_| round(&mut table));
        table.effort()
    });
    let sum = |of: fn(&Effort) -> u64| efforts.iter().map(of).sum();
    (sum(|effort| effort.sleeps), sum(|effort| effort.wakes))
}

#[test]
fn a_round_of_sleepers_takes_one_wake_call_at_most() {
    for ranks in [2, 3, 5, 8] {
        let total = 4000;
        let (sleeps, wakes) = rounds(ranks, Ladder::parking(), total);
        assert!(wakes <= total, "{ranks} ranks: {wakes} calls");
        assert!(sleeps >= total / 2, "{ranks} ranks: {sleeps} sleeps");
    }
}

#[test]
fn where_nobody_sleeps_nobody_is_woken() {
    for ladder in [Ladder::spinning(), Ladder::yielding()] {
        assert_eq!(rounds(2, ladder, 4000), (0, 0));
    }
}

/// Rounds in which the ranks were close together, sleeps in these, and CPUs lost to something else.
#[derive(Debug, Default)]
struct Seen {
    close: u64,
    slept: u64,
    lost: u64,
}

/// A round each 10 ms, the ranks up to 200 us apart.
fn light_load(mut table: Table) -> Seen {
    const APART: Duration = Duration::from_micros(200);
    cpus::pin(table.rank()).expect("a thread may pin itself");
    let mut seen = Seen::default();
    for turn in 0..100_u32 {
        thread::sleep(Duration::from_millis(10));
        // Together first: timers of a busy machine are late.
        round(&mut table);
        let late = Instant::now() + APART * (turn % 5) / 5;
        while turn % 2 == u32::try_from(table.rank()).expect("0 or 1") && Instant::now() < late {
            std::hint::spin_loop();
        }
        let before = table.effort().sleeps;
        round(&mut table);
        if table.timing().expect("it is measured").skew <= APART {
            seen.close += 1;
            seen.slept += table.effort().sleeps - before;
        }
    }
    seen.lost = table.effort().lost;
    seen
}

#[test]
fn steady_light_load_on_free_cpus_does_not_put_the_ranks_to_sleep() {
    let ladder = Ladder::auto(1, cpus::available());
    for _ in 0..10 {
        let all = on_threads(2, ladder, light_load);
        // Another process may take the CPU between an arrival and its measurement.
        let stays_awake = |seen: &Seen| seen.close >= 20 && seen.slept * 10 <= seen.close;
        if all.iter().all(stays_awake) {
            return;
        }
        assert!(all.iter().any(|seen| seen.lost > 1), "{all:?}");
        eprintln!("once more, for the CPUs were not free: {all:?}");
    }
    eprintln!("SKIPPED, other processes use the CPUs all the time");
}
