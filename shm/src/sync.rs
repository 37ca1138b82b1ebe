//! The only file that names atomic types: the machine's own, or those of a model checker under `cfg(loom)`.
//!
//! Orderings carry a tag (`R1`, `F2`, ...) that PROTOCOL.md explains. In models, `RANKPACT_WEAKEN=TAG` weakens one of
//! them, so that the model which needs it can be seen to fail.

#[cfg(not(loom))]
mod real {
    use std::time::Duration;

    pub(crate) use std::sync::Mutex;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::{hint::spin_loop, thread::yield_now};

    /// Whether a model asked for this tag to be weakened: never outside of models.
    #[inline(always)]
    pub(crate) const fn weakened(_tag: &str) -> bool {
        false
    }

    /// A word in shared memory on which ranks sleep.
    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        /// The value to hand to [`Futex::sleep`].
        pub(crate) fn ticket(&self) -> u32 {
            // ORDERING [P3] Acquire: pairs with the bump in wake_all; the registration comes after it, so that who takes
            // the registration changes the word after this load.
            self.0.load(super::order("P3", Ordering::Acquire))
        }

        /// Sleeps until the word differs from `ticket`, a wake, a signal, or `slice` has passed.
        pub(crate) fn sleep(&self, ticket: u32, slice: Duration) {
            let timeout = rustix::time::Timespec {
                tv_sec: i64::try_from(slice.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: slice.subsec_nanos().into(),
            };
            // The shared kind: a process-private futex never hears a wake from another process. Every way this call
            // can return, errors included, means the same to the caller: look again.
            let _ = rustix::thread::futex::wait(
                &self.0,
                rustix::thread::futex::Flags::empty(),
                ticket,
                Some(&timeout),
            );
        }

        /// Wakes all sleepers.
        pub(crate) fn wake_all(&self) {
            // ORDERING [P3] Release: pairs with the load in ticket; the taking of the registrations comes before it.
            self.0.fetch_add(1, super::order("P3", Ordering::Release));
            let _ = rustix::thread::futex::wake(
                &self.0,
                rustix::thread::futex::Flags::empty(),
                i32::MAX as u32,
            );
        }
    }
}

#[cfg(loom)]
mod real {
    use std::sync::OnceLock;
    use std::time::Duration;

    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::thread::yield_now;

    pub(crate) fn weakened(tag: &str) -> bool {
        static TAG: OnceLock<String> = OnceLock::new();
        TAG.get_or_init(|| std::env::var("RANKPACT_WEAKEN").unwrap_or_default()) == tag
    }

    /// A futex as the kernel describes it: the comparison and the going to sleep are one step. It never times out, so
    /// that a lost wake-up is a deadlock, which loom reports.
    #[derive(Debug, Default)]
    pub(crate) struct Futex {
        word: AtomicU32,
        lock: loom::sync::Mutex<()>,
        bell: loom::sync::Condvar,
    }

    impl Futex {
        pub(crate) fn ticket(&self) -> u32 {
            self.word.load(super::order("P3", Ordering::Acquire))
        }

        pub(crate) fn sleep(&self, ticket: u32, _slice: Duration) {
            let guard = self.lock.lock().expect("no thread panics with the lock");
            if self.word.load(Ordering::Relaxed) == ticket {
                drop(
                    self.bell
                        .wait(guard)
                        .expect("no thread panics with the lock"),
                );
            }
        }

        pub(crate) fn wake_all(&self) {
            self.word
                .fetch_add(1, super::order("P3", Ordering::Release));
            let guard = self.lock.lock().expect("no thread panics with the lock");
            self.bell.notify_all();
            drop(guard);
        }
    }
}

pub(crate) use real::*;

/// `ordering`, or Relaxed where a model weakens `tag`.
#[inline(always)]
pub(crate) fn order(tag: &str, ordering: Ordering) -> Ordering {
    if weakened(tag) {
        Ordering::Relaxed
    } else {
        ordering
    }
}

/// A sequentially consistent fence, or nothing where a model weakens `tag`.
#[inline(always)]
pub(crate) fn full_fence(tag: &str) {
    if !weakened(tag) {
        fence(Ordering::SeqCst);
    }
}
