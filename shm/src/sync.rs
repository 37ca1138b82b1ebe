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

    /// Asks for the cache line of `word`, to be written soon. A hint: nothing is read or written, and nothing waits.
    #[inline(always)]
    pub(crate) fn fetch_to_write(word: &AtomicU64) {
        let word: *const AtomicU64 = word;
        // SAFETY: a prefetch changes nothing that a program can see, whatever the address. The compiler's own intrinsic only
        // fetches to read where the CPU is not known to have this instruction; one that lacks it ignores it.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) word, options(readonly, nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) word, options(readonly, nostack, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = word;
    }

    /// A word in shared memory on which ranks sleep.
    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        /// The value to hand to [`Futex::sleep`].
        pub(crate) fn ticket(&self) -> u32 {
            // ORDERING [P3] Acquire: pairs with the bump in wake_all; who reads the word changed sees what its waker has
            // seen, and registers after this load.
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
            // ORDERING [P3] Release: pairs with the load in ticket; what the waker has seen, and the taking of
            // registrations, come before it.
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
pub(crate) mod model;

#[cfg(loom)]
pub(crate) use model::*;
#[cfg(not(loom))]
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
