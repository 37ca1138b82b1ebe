//! A caller that holds a lock of its process, and what it does between two slices of a wait.

use super::*;
use rankpact_shm::Unlock;
use std::sync::mpsc;

/// Counts how often it was given back.
struct Lock<'a>(&'a Cell<u32>);

impl Unlock for Lock<'_> {
    fn run<T: Send>(self, body: impl FnOnce() -> T + Send) -> T {
        self.0.set(self.0.get() + 1);
        body()
    }
}

fn reduce(table: &mut Table, slots: &mut [i64]) -> u32 {
    let given_back = Cell::new(0);
    table
        .all_reduce_unlocking(Kind::Min, "m", slots, LONG, Lock(&given_back))
        .expect("both call");
    given_back.get()
}

#[test]
fn a_lock_is_given_back_if_a_rank_has_to_be_waited_for_and_else_kept() {
    let mut tables = tables(2, 1, Ladder::yielding());
    let mut last = tables.pop().expect("two");
    let mut first = tables.pop().expect("two");
    watchdog(move || {
        let (tell, told) = mpsc::channel();
        let waiting = thread::spawn(move || {
            tell.send(()).expect("somebody listens");
            let mut slots = [3, 9];
            let given_back = reduce(&mut first, &mut slots);
            assert_eq!((given_back, slots), (1, [3, 7]));
        });
        told.recv().expect("it starts");
        thread::sleep(SHORT);
        let mut slots = [4, 7];
        assert_eq!((reduce(&mut last, &mut slots), slots), (0, [3, 7]));
        waiting.join().expect("its assertions hold");
    });
}

#[test]
fn a_lock_is_given_back_behind_a_round_in_flight() {
    let mut alone = tables(1, 1, Ladder::yielding()).pop().expect("one");
    let started = alone.start(Kind::Sum, "s", &[5], LONG).expect("a round");
    let mut slots = [6];
    assert_eq!((reduce(&mut alone, &mut slots), slots), (1, [6]));
    assert_eq!(*alone.finish(&started, LONG).expect("settled"), [5]);
}

#[test]
fn refusals_need_no_lock() {
    let mut alone = tables(1, 1, Ladder::yielding()).pop().expect("one");
    let given_back = Cell::new(0);
    let mut reduce = |kind, slots: &mut [i64]| {
        alone.all_reduce_unlocking(kind, "m", slots, LONG, Lock(&given_back))
    };
    assert_eq!(reduce(Kind::Min, &mut [0; 9]), Err(RoundError::TooWide(9)));
    let barred = Err(RoundError::NotAReduction(Kind::Gather));
    assert_eq!(reduce(Kind::Gather, &mut [0]), barred);
    assert_eq!(given_back.get(), 0);
}

#[test]
fn what_is_aborted_in_a_slice_ends_the_wait_and_all_are_told() {
    let tables: Vec<Table> = tables(2, 1, Ladder::parking())
        .into_iter()
        .map(|table| {
            let aborter = table.aborter();
            table.with_slice(Box::new(move || aborter.abort("enough")))
        })
        .collect();
    let reasons = on_threads(tables, |mut table| {
        if table.rank() == 1 {
            // Rank 0 waits for several slices.
            thread::sleep(SHORT);
        }
        let error = table.all_reduce(Kind::Min, "m", &mut [1], LONG);
        failure(error.expect_err("rank 0 has had enough"))
    });
    assert_eq!(reasons[0], reasons[1]);
    assert_eq!(reasons[0].by, 0);
    let reason = |cause: &Cause| match cause {
        Cause::Aborted { reason, .. } => reason.clone(),
        other => format!("{other:?}"),
    };
    assert_eq!(reason(&reasons[0].cause), "enough");
}
