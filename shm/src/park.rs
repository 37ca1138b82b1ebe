//! Waiting: bare polls, a spin bounded in time, yields, then sleep on a shared futex in slices.

use crate::layout::Control;
use crate::sync::{Ordering, full_fence};
use std::time::Duration;

/// How a rank waits. A local field: ranks of one group may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// Spin for so long; zero where more threads wait than there are CPUs, for a spin then only delays its peer.
    pub spin: Duration,
    /// Then yield the CPU between polls for so long.
    pub yields: Duration,
    /// Then sleep, looking up each time so much has passed: a dead peer is reported within one slice.
    pub slice: Duration,
}

/// Between two checks on the peers of a wait that never sleeps, and the longest sleep.
const SLICE: Duration = Duration::from_millis(50);
/// Beyond what ranks of a steady job lag behind each other, so that light load adds no wake-up to each round.
const YIELDS: Duration = Duration::from_micros(500);
const SPIN: Duration = Duration::from_micros(20);

impl Ladder {
    /// Spin only if every waiter can have a CPU of its own, then yield, then sleep.
    #[must_use]
    pub fn auto(waiters: usize, cpus: usize) -> Self {
        Self {
            spin: if waiters <= cpus {
                SPIN
            } else {
                Duration::ZERO
            },
            yields: YIELDS,
            slice: SLICE,
        }
    }

    /// Never leave the CPU.
    #[must_use]
    pub fn spinning() -> Self {
        Self {
            spin: Duration::MAX,
            yields: Duration::ZERO,
            slice: SLICE,
        }
    }

    /// Never sleep, but yield between polls.
    #[must_use]
    pub fn yielding() -> Self {
        Self {
            spin: Duration::ZERO,
            yields: Duration::MAX,
            slice: SLICE,
        }
    }

    /// Sleep at once.
    #[must_use]
    pub fn parking() -> Self {
        Self {
            spin: Duration::ZERO,
            yields: Duration::ZERO,
            slice: SLICE,
        }
    }
}

/// What to do after a poll that found somebody missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again.
    Again,
    /// A slice has passed: see whether the missing are still alive, then look again.
    Slice { waited: Duration },
    /// The deadline has passed.
    Expired { waited: Duration },
}

#[cfg(not(loom))]
mod climb {
    use super::{Ladder, Step};
    use crate::sync::{spin_loop, yield_now};
    use std::time::{Duration, Instant};

    /// Polls between two looks at the clock while spinning, and before the first.
    const CLOCK_EVERY: u32 = 64;

    /// One wait, climbing the ladder. Costs nothing until the first poll has failed.
    #[derive(Debug)]
    pub(crate) struct Climb<'a> {
        ladder: &'a Ladder,
        timeout: Duration,
        /// Polls left before the next look at the clock; none once the spin is over.
        bare: u32,
        started: Option<Instant>,
        next_slice: Duration,
    }

    impl<'a> Climb<'a> {
        #[inline(always)]
        pub(crate) fn new(ladder: &'a Ladder, timeout: Duration) -> Self {
            let bare = if ladder.spin.is_zero() {
                0
            } else {
                CLOCK_EVERY
            };
            Self {
                ladder,
                timeout,
                bare,
                started: None,
                next_slice: ladder.slice,
            }
        }

        /// Waits a little, `sleep`ing where the ladder has come to that.
        #[inline(always)]
        pub(crate) fn step(&mut self, sleep: impl FnOnce(Duration)) -> Step {
            if self.bare > 0 {
                self.bare -= 1;
                spin_loop();
                return Step::Again;
            }
            self.climb(sleep)
        }

        #[cold]
        fn climb(&mut self, sleep: impl FnOnce(Duration)) -> Step {
            let waited = self.started.get_or_insert_with(Instant::now).elapsed();
            if waited >= self.timeout {
                return Step::Expired { waited };
            }
            if waited >= self.next_slice {
                self.next_slice = waited + self.ladder.slice;
                return Step::Slice { waited };
            }
            if waited < self.ladder.spin {
                self.bare = CLOCK_EVERY;
            } else if waited < self.ladder.spin.saturating_add(self.ladder.yields) {
                yield_now();
            } else {
                sleep((self.next_slice - waited).min(self.timeout - waited));
            }
            Step::Again
        }
    }
}

#[cfg(loom)]
mod climb {
    use super::{Ladder, Step};
    use std::time::Duration;

    /// In models time does not pass: `timeout` in nanoseconds is how many polls may fail, and a ladder that neither
    /// spins nor yields sleeps, for as long as nobody wakes it. A slice of no time has passed after every poll.
    #[derive(Debug)]
    pub(crate) struct Climb<'a> {
        ladder: &'a Ladder,
        polls_left: u128,
    }

    impl<'a> Climb<'a> {
        pub(crate) fn new(ladder: &'a Ladder, timeout: Duration) -> Self {
            Self {
                ladder,
                polls_left: timeout.as_nanos(),
            }
        }

        pub(crate) fn step(&mut self, sleep: impl FnOnce(Duration)) -> Step {
            self.polls_left = self.polls_left.saturating_sub(1);
            if self.polls_left == 0 {
                return Step::Expired {
                    waited: Duration::ZERO,
                };
            }
            if self.ladder.spin.is_zero() && self.ladder.yields.is_zero() {
                sleep(self.ladder.slice);
            } else {
                crate::sync::yield_now();
            }
            if self.ladder.slice.is_zero() {
                Step::Slice {
                    waited: Duration::ZERO,
                }
            } else {
                Step::Again
            }
        }
    }
}

pub(crate) use climb::Climb;

/// Sleeps for at most `slice` unless `look` finds something new after this rank has registered.
///
/// No wake-up is lost: the sleeper registers (a), fences, looks (b); the waker writes (c), fences, reads the waiters (d).
/// Of two sequentially consistent fences one comes first. If the sleeper's does, (d) sees (a) and wakes; if the waker's
/// does, (b) sees (c) and does not sleep. A wake between (b) and the system call has changed the futex word since the
/// ticket was read, and the kernel returns at once.
pub(crate) fn sleep(control: &Control, me: usize, slice: Duration, look: impl FnOnce() -> bool) {
    let ticket = control.futex.ticket();
    control.waiters.fetch_or(1 << me, Ordering::Relaxed);
    // ORDERING [P2] SeqCst fence between registering and looking: pairs with F1, F4, W1, S3 and T3.
    full_fence("P2");
    if !look() {
        control.futex.sleep(ticket, slice);
    }
    control.waiters.fetch_and(!(1 << me), Ordering::Relaxed);
}

/// Wakes whoever sleeps, after a word was written that can end somebody's wait.
pub(crate) fn wake(control: &Control) {
    // ORDERING [W1] SeqCst fence between that word and the look at the waiters: pairs with P2.
    full_fence("W1");
    wake_fenced(control);
}

/// As [`wake`], where a full fence already lies between the word and this call.
///
/// Whoever takes the bits makes the one call; a second waker finds none.
#[inline(always)]
pub(crate) fn wake_fenced(control: &Control) {
    if control.waiters.load(Ordering::Relaxed) != 0
        && control.waiters.swap(0, Ordering::Relaxed) != 0
    {
        control.futex.wake_all();
    }
}
