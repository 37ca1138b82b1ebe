//! Descriptors that a forked child does not inherit: there, a lock or a connection of its parent would hide its death.

use crate::sync::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use nix::libc;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

/// As many descriptors as a process may have unless the limit of the whole system has been raised.
const DESCRIPTORS: usize = 1 << 20;

/// One bit for each descriptor. Read by the fork handler, which may neither lock nor allocate.
static KEPT: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

/// How many words of `KEPT` have ever had a bit.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Leads nowhere: whoever reads meets the end, whoever writes an error.
static NOWHERE: OnceLock<UnixStream> = OnceLock::new();

/// A descriptor that belongs to this process and to no child that it forks.
///
/// In a child the number stays taken, by a descriptor that leads nowhere, so that a copy of this value can be dropped
/// there without harm to a file that has the number by then.
#[derive(Debug)]
pub struct CloseOnFork<T: AsFd>(T);

impl<T: AsFd> CloseOnFork<T> {
    /// Keeps `inner` from being inherited.
    ///
    /// # Errors
    ///
    /// No descriptor is left for the one that leads nowhere, or the number is beyond a million.
    pub fn new(inner: T) -> io::Result<Self> {
        install()?;
        let fd = inner.as_fd().as_raw_fd();
        let (word, bit) = place(fd).ok_or_else(|| {
            io::Error::other(format!("descriptor {fd} is not below {DESCRIPTORS}"))
        })?;
        USED.fetch_max(word + 1, Relaxed);
        KEPT[word].fetch_or(bit, Relaxed);
        Ok(Self(inner))
    }
}

impl<T: AsFd> Drop for CloseOnFork<T> {
    fn drop(&mut self) {
        // Before the number is free for others.
        if let Some((word, bit)) = place(self.0.as_fd().as_raw_fd()) {
            KEPT[word].fetch_and(!bit, Relaxed);
        }
    }
}

impl<T: AsFd> Deref for CloseOnFork<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsFd> DerefMut for CloseOnFork<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok().filter(|fd| *fd < DESCRIPTORS)?;
    Some((fd / 64, 1 << (fd % 64)))
}

fn install() -> io::Result<()> {
    static FAILED: OnceLock<i32> = OnceLock::new();
    if NOWHERE.get().is_none() {
        let (nowhere, _closed) = UnixStream::pair()?;
        // Another thread's is as good.
        let _ = NOWHERE.set(nowhere);
    }
    // SAFETY: the handler only reads atomics and replaces descriptors, both allowed in a child of threads.
    let install = || unsafe { libc::pthread_atfork(None, None, Some(let_go)) };
    match *FAILED.get_or_init(install) {
        0 => Ok(()),
        failed => Err(io::Error::from_raw_os_error(failed)),
    }
}

unsafe extern "C" fn let_go() {
    let Some(nowhere) = NOWHERE.get() else {
        return;
    };
    for (at, word) in KEPT[..USED.load(Relaxed)].iter().enumerate() {
        let mut bits = word.swap(0, Relaxed);
        while bits != 0 {
            let fd = RawFd::try_from(64 * at).unwrap_or(RawFd::MAX)
                + bits.trailing_zeros().cast_signed();
            bits &= bits - 1;
            // SAFETY: the number belongs to a value of this module that the fork has copied; it will close what is
            // there, and nothing else of this process uses the number.
            unsafe { libc::dup3(nowhere.as_raw_fd(), fd, libc::O_CLOEXEC) };
        }
    }
}
