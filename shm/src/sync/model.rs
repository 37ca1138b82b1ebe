//! What the facade is in models: loom's atomics, a futex as the kernel describes it, and processes that die.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) use loom::sync::Mutex;
pub(crate) use loom::sync::atomic::{Ordering, fence};
pub(crate) use loom::thread::yield_now as spin_loop;
pub(crate) use loom::thread::yield_now;

/// Models have no caches.
pub(crate) fn fetch_to_write(_: &AtomicU64) {}

pub(crate) fn weakened(tag: &str) -> bool {
    static TAG: OnceLock<String> = OnceLock::new();
    TAG.get_or_init(|| std::env::var("RANKPACT_WEAKEN").unwrap_or_default()) == tag
}

loom::thread_local! {
    /// Writes that this thread has left, if it is [`mortal`].
    static WRITES_LEFT: Cell<Option<usize>> = Cell::new(None);
}

/// What unwinds a thread at its death.
struct Death;

/// Runs `body` as a process that dies before its write number `writes` to shared memory, counted from zero; whether it
/// outlived `body`.
///
/// A dead process runs no destructors: hand `body` references, and forget what they refer to.
pub fn mortal(writes: usize, body: impl FnOnce()) -> bool {
    WRITES_LEFT.with(|left| left.set(Some(writes)));
    let ended = catch_unwind(AssertUnwindSafe(body));
    WRITES_LEFT.with(|left| left.set(None));
    match ended {
        Ok(()) => true,
        Err(death) if death.is::<Death>() => false,
        Err(panic) => resume_unwind(panic),
    }
}

/// One write of this thread to shared memory is about to happen.
fn write() {
    WRITES_LEFT.with(|left| match left.get() {
        None => {}
        Some(0) => resume_unwind(Box::new(Death)),
        Some(more) => left.set(Some(more - 1)),
    });
}

macro_rules! atomic {
    ($name:ident, $word:ty) => {
        /// A word of loom's whose writes count.
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "each width has the calls it needs")]
        impl $name {
            pub(crate) fn new(value: $word) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $word {
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $word, order: Ordering) {
                write();
                self.0.store(value, order);
            }

            pub(crate) fn swap(&self, value: $word, order: Ordering) -> $word {
                write();
                self.0.swap(value, order)
            }

            pub(crate) fn fetch_or(&self, value: $word, order: Ordering) -> $word {
                write();
                self.0.fetch_or(value, order)
            }

            pub(crate) fn fetch_and(&self, value: $word, order: Ordering) -> $word {
                write();
                self.0.fetch_and(value, order)
            }

            pub(crate) fn fetch_add(&self, value: $word, order: Ordering) -> $word {
                write();
                self.0.fetch_add(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                write();
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

/// A futex as the kernel describes it: the comparison and the going to sleep are one step. A sleep never times out, so
/// that a lost wake-up is a deadlock, which loom reports; unless time is let pass.
#[derive(Debug, Default)]
pub(crate) struct Futex {
    word: AtomicU32,
    /// Whether time passes: from then on every sleep is over at once.
    passing: loom::sync::Mutex<bool>,
    bell: loom::sync::Condvar,
}

impl Futex {
    pub(crate) fn ticket(&self) -> u32 {
        self.word.load(super::order("P3", Ordering::Acquire))
    }

    pub(crate) fn sleep(&self, ticket: u32, _slice: Duration) {
        let passing = self.passing.lock().expect("no thread panics with the lock");
        if !*passing && self.word.load(Ordering::Relaxed) == ticket {
            drop(
                self.bell
                    .wait(passing)
                    .expect("no thread panics with the lock"),
            );
        } else if *passing {
            drop(passing);
            yield_now();
        }
    }

    pub(crate) fn wake_all(&self) {
        self.word
            .fetch_add(1, super::order("P3", Ordering::Release));
        self.ring();
    }

    /// Ends all sleeps, now and from now on, as the end of their slices would.
    pub(crate) fn let_time_pass(&self) {
        *self.passing.lock().expect("no thread panics with the lock") = true;
        self.ring();
    }

    fn ring(&self) {
        let passing = self.passing.lock().expect("no thread panics with the lock");
        self.bell.notify_all();
        drop(passing);
    }
}
