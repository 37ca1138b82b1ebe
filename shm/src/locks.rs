//! Locks that the kernel releases when their holder dies.

use crate::close_on_fork::CloseOnFork;
use crate::liveness::Liveness;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::os::fd::OwnedFd;

/// One byte of a file for each rank, write-locked by its owner for as long as it lives.
///
/// Open-file-description locks belong to the opened file, not to a process number: they hold across PID namespaces, are
/// immune to the reuse of numbers, and end with the last descriptor, however the process ends. A forked child would
/// inherit the descriptors and keep its parent's locks, so it must not.
#[derive(Debug)]
pub struct Locks {
    file: CloseOnFork<OwnedFd>,
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
    /// Another holder of the same rank, a file system without such locks, or too many descriptors in this process.
    pub fn hold(file: OwnedFd, rank: usize) -> std::io::Result<Self> {
        fcntl(&file, FcntlArg::F_OFD_SETLK(&byte(rank, libc::F_WRLCK)))?;
        Ok(Self {
            file: CloseOnFork::new(file)?,
        })
    }

    /// The file that carries them.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
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
