//! Locks that the kernel releases when their holder dies.

use crate::liveness::Liveness;
use crate::process::Process;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};

/// One byte of a file for each rank, write-locked by its owner for as long as it lives.
///
/// Open-file-description locks belong to the opened file, not to a process number: they hold across PID namespaces, are
/// immune to the reuse of numbers, and end with the last descriptor, however the process ends. A forked child inherits
/// descriptors and would keep its parent's locks; it closes its copies before it runs anything else.
#[derive(Debug)]
pub struct Locks {
    /// Closed by this value in the process that opened it, by the fork handler in a child.
    file: ManuallyDrop<OwnedFd>,
    owner: Process,
}

fn byte(rank: usize, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind.try_into().unwrap_or_default(),
        l_whence: libc::SEEK_SET.try_into().unwrap_or_default(),
        l_start: rank.try_into().unwrap_or(libc::off_t::MAX),
        l_len: 1,
        l_pid: 0,
    }
}

impl Locks {
    /// Takes the lock of `rank` on `file`, which must have been opened for this rank alone.
    ///
    /// # Errors
    ///
    /// Another holder of the same rank, a file system without such locks, or more than 1024 groups in this process.
    pub fn hold(file: OwnedFd, rank: usize) -> std::io::Result<Self> {
        fcntl(&file, FcntlArg::F_OFD_SETLK(&byte(rank, libc::F_WRLCK)))?;
        handler::register(file.as_raw_fd())?;
        Ok(Self {
            file: ManuallyDrop::new(file),
            owner: Process::current(),
        })
    }

    /// The file that carries them.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        // In a child the number may mean another file by now.
        if self.owner.is_here() {
            handler::unregister(self.file.as_raw_fd());
            // SAFETY: dropped once, here; nothing uses the descriptor afterwards.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

impl Liveness for Locks {
    fn alive(&self, rank: usize) -> bool {
        let mut lock = byte(rank, libc::F_WRLCK);
        // A lock that cannot be asked for proves nothing, and a false death is worse than a late one.
        fcntl(&*self.file, FcntlArg::F_OFD_GETLK(&mut lock)).is_err()
            || i32::from(lock.l_type) != libc::F_UNLCK
    }
}

/// Closes inherited descriptors in a forked child.
mod handler {
    use crate::sync::{AtomicU32, Ordering::Relaxed};
    use nix::libc;
    use std::io;
    use std::os::fd::RawFd;
    use std::sync::OnceLock;

    const SLOTS: usize = 1024;

    /// One more than a descriptor, or zero. Read by the handler, which may neither lock nor allocate.
    static HELD: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];

    fn code(fd: RawFd) -> u32 {
        u32::try_from(fd).map_or(0, |fd| fd + 1)
    }

    pub(super) fn register(fd: RawFd) -> io::Result<()> {
        static INSTALLED: OnceLock<i32> = OnceLock::new();
        let failed = *INSTALLED.get_or_init(|| {
            // SAFETY: the handler only reads atomics and closes descriptors, both allowed in a child of threads.
            unsafe { libc::pthread_atfork(None, None, Some(close_all)) }
        });
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        let free = HELD
            .iter()
            .any(|slot| slot.compare_exchange(0, code(fd), Relaxed, Relaxed).is_ok());
        if free {
            Ok(())
        } else {
            Err(io::Error::other("more than 1024 groups in one process"))
        }
    }

    pub(super) fn unregister(fd: RawFd) {
        let _ = HELD
            .iter()
            .any(|slot| slot.compare_exchange(code(fd), 0, Relaxed, Relaxed).is_ok());
    }

    unsafe extern "C" fn close_all() {
        for slot in &HELD {
            let code = slot.swap(0, Relaxed);
            if let Some(fd) = code.checked_sub(1).and_then(|fd| RawFd::try_from(fd).ok()) {
                // SAFETY: a descriptor of a Locks that was copied here by the fork; that copy never uses it again.
                unsafe { libc::close(fd) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn a_lock_is_seen_by_others_until_its_holder_is_gone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("locks");
        let open = || {
            let mut options = OpenOptions::new();
            OwnedFd::from(
                options
                    .create(true)
                    .read(true)
                    .write(true)
                    .truncate(false)
                    .open(&path)
                    .expect("a file"),
            )
        };
        let one = Locks::hold(open(), 0).expect("free");
        let two = Locks::hold(open(), 1).expect("free");
        assert!(one.alive(1) && two.alive(0) && !one.alive(2));
        assert!(Locks::hold(open(), 1).is_err(), "one holder for each rank");
        drop(two);
        assert!(!one.alive(1));
    }
}
