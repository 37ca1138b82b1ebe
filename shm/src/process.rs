//! Which process this is: a forked child does not own its parent's groups.

pub use here::Process;

#[cfg(not(loom))]
mod here {
    use crate::sync::{AtomicU64, Ordering::Relaxed};
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    use std::sync::OnceLock;

    const PAGE: usize = 4096;

    /// The process that made this value. Copied by a fork, it is no longer [here](Process::is_here).
    #[derive(Clone, Copy, Debug)]
    pub struct Process {
        mine: u64,
        /// A word that the kernel wipes in a forked child; none on a kernel that cannot.
        word: Option<&'static AtomicU64>,
    }

    impl Process {
        /// This process.
        #[must_use]
        pub fn current() -> Self {
            let id = u64::from(std::process::id());
            let word = page();
            let mine = word.map_or(id, |word| {
                let random = getrandom::u64().unwrap_or(id).max(1);
                match word.compare_exchange(0, random, Relaxed, Relaxed) {
                    Ok(_) => random,
                    Err(present) => present,
                }
            });
            Self { mine, word }
        }

        /// Whether this code runs in the process that made this value. One load, no system call.
        #[inline(always)]
        #[must_use]
        pub fn is_here(self) -> bool {
            match self.word {
                Some(word) => word.load(Relaxed) == self.mine,
                None => self.mine == u64::from(std::process::id()),
            }
        }
    }

    fn page() -> Option<&'static AtomicU64> {
        static WORD: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
        *WORD.get_or_init(map)
    }

    #[cold]
    fn map() -> Option<&'static AtomicU64> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing else.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) }
            .ok()?;
        // SAFETY: exactly the page mapped above; the advice changes what a child sees, not what lies here.
        unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.ok()?;
        // SAFETY: page-aligned, zeroed, readable and writable, never unmapped, and only ever used as this atomic.
        Some(unsafe { &*page.cast::<AtomicU64>() })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_process_knows_itself() {
            assert!(Process::current().is_here());
            assert_eq!(Process::current().mine, Process::current().mine);
            let mut other = Process::current();
            other.mine ^= 1;
            assert!(!other.is_here());
        }
    }
}

#[cfg(loom)]
mod here {
    /// Models do not fork.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Process;

    impl Process {
        /// This process.
        #[must_use]
        pub fn current() -> Self {
            Self
        }

        /// Always.
        #[must_use]
        pub fn is_here(self) -> bool {
            true
        }
    }
}
