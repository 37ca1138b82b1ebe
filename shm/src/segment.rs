//! The named segment a table or a ring lives in: created whole, attached with proof, unlinked as soon as all have it.

use crate::header::{Identity, Preamble, Shape};
use crate::layout::{Geometry, Offsets};
use crate::locks::Locks;
use crate::map::Map;
use crate::process::Process;
use crate::storage::Storage;
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a segment could not be made or attached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentError {
    /// The folder is full or too small.
    NoSpace {
        /// Where the segment was to be.
        path: PathBuf,
        /// Bytes it needs.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The system refused access.
    Permission {
        /// The folder or file.
        path: PathBuf,
        /// The user who owns it, where that is known.
        owner: Option<u32>,
    },
    /// Something else lies under that name.
    Foreign {
        /// The name.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// Nothing lies under that name: another mount, or a login manager has cleaned up.
    Missing {
        /// The name.
        path: PathBuf,
    },
    /// Its creator has not finished it.
    NotReady {
        /// The name.
        path: PathBuf,
    },
    /// The system refused something else.
    Io {
        /// The name.
        path: PathBuf,
        /// What the system said.
        what: String,
    },
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSpace { path, needed, free } => {
                write!(
                    f,
                    "no space for {}: {needed} bytes needed, {free} free",
                    path.display()
                )
            }
            Self::Permission { path, owner } => {
                write!(f, "no permission for {}", path.display())?;
                owner.map_or(Ok(()), |owner| write!(f, " (owned by uid {owner})"))
            }
            Self::Foreign { path, found } => write!(f, "{} is not ours: {found}", path.display()),
            Self::Missing { path } => write!(f, "{} does not exist here", path.display()),
            Self::NotReady { path } => write!(f, "{} is not ready yet", path.display()),
            Self::Io { path, what } => write!(f, "{}: {what}", path.display()),
        }
    }
}

impl std::error::Error for SegmentError {}

/// What a segment can hold, told by its geometry: a table ([`Geometry`]) or a ring
/// ([`RingGeometry`](crate::RingGeometry)).
pub trait Contents: Shape {
    /// The memory, as the seats of its ranks want it.
    type Storage;

    /// How many bytes it takes.
    fn bytes(self) -> usize;

    /// The contents of a mapping that is large enough.
    fn mapped(self, map: Map) -> Option<Self::Storage>;

    /// What the contents begin with.
    fn preamble(storage: &Self::Storage) -> Preamble<'_>;

    /// Writes all that must be there before anybody else has the segment. `first` is the first round or slot.
    fn prepare(storage: &Self::Storage, first: u64);
}

impl Contents for Geometry {
    type Storage = Storage;

    fn bytes(self) -> usize {
        Offsets::of(self).end
    }

    fn mapped(self, map: Map) -> Option<Storage> {
        Storage::mapped(self, map)
    }

    fn preamble(storage: &Storage) -> Preamble<'_> {
        storage.preamble()
    }

    fn prepare(storage: &Storage, first: u64) {
        storage.prepare(first);
    }
}

/// One rank's hold on a segment of its group.
pub struct Segment<G: Contents = Geometry> {
    /// Dropped before the locks: while the name is there, so is its holder.
    name: Option<Name>,
    storage: Arc<G::Storage>,
    locks: Locks,
    path: PathBuf,
}

impl<G: Contents> fmt::Debug for Segment<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// A name in the file system that this process made: removed once, by this value, if it still means the same file.
#[derive(Debug)]
struct Name {
    path: PathBuf,
    inode: u64,
    owner: Process,
}

impl Name {
    fn remove(&self) {
        // Not in a forked child: the name is the parent's affair.
        let ours = self.owner.is_here()
            && rustix::fs::lstat(&self.path).is_ok_and(|found| found.st_ino == self.inode);
        if ours {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.remove();
    }
}

impl<G: Contents> Segment<G> {
    /// Makes a segment under a name that must be free, with all its space reserved, and takes the lock of `rank` in it.
    ///
    /// `first` is the first round of a table, the first slot of a ring. The segment is removed when this value is dropped,
    /// unless it was [unlinked](Segment::unlink) before.
    ///
    /// # Errors
    ///
    /// A full folder is [`SegmentError::NoSpace`] here and never a signal later.
    pub fn create(
        path: &Path,
        identity: &Identity<G>,
        first: u64,
        rank: usize,
    ) -> Result<Self, SegmentError> {
        Self::create_with(path, identity, first, rank, |_| ())
    }

    /// As [`Segment::create`]; `finish` may change the contents before anybody else can have them.
    ///
    /// # Errors
    ///
    /// As [`Segment::create`].
    pub fn create_with(
        path: &Path,
        identity: &Identity<G>,
        first: u64,
        rank: usize,
        finish: impl FnOnce(&G::Storage),
    ) -> Result<Self, SegmentError> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let io = |error: rustix::io::Errno| SegmentError::Io {
            path: path.into(),
            what: error.to_string(),
        };
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| refused(path, error))?;
        let inode = rustix::fs::fstat(&file).map_err(io)?.st_ino;
        let name = Name {
            path: path.into(),
            inode,
            owner: Process::current(),
        };
        // Before the file has a size: who meets the name later can tell whether its creator lives.
        let locks = Locks::hold(file, rank).map_err(|error| io_error(path, &error))?;
        let file = locks.file();
        let needed = identity.geometry.bytes() as u64;
        let reserve = || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, needed);
        rustix::io::retry_on_intr(reserve).map_err(|error| match error {
            rustix::io::Errno::NOSPC => SegmentError::NoSpace {
                path: path.into(),
                needed,
                free: free_bytes(file),
            },
            other => io(other),
        })?;
        let storage = map(path, file, identity.geometry)?;
        G::prepare(&storage, first);
        finish(&storage);
        G::preamble(&storage).announce(identity);
        Ok(Self {
            storage: Arc::new(storage),
            locks,
            name: Some(name),
            path: path.into(),
        })
    }

    /// Maps the segment that a peer has made, and takes the lock of `rank` in it.
    ///
    /// # Errors
    ///
    /// Anything but a finished segment of this job, this layout and this user.
    pub fn attach(path: &Path, identity: &Identity<G>, rank: usize) -> Result<Self, SegmentError> {
        // A FIFO must not block the opener, hence NONBLOCK.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| refused(path, error))?;
        let found = rustix::fs::fstat(&file).map_err(|error| refused(path, error))?;
        let foreign = |found: String| SegmentError::Foreign {
            path: path.into(),
            found,
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(foreign("not a regular file".to_owned()));
        }
        if found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(foreign(format!("owned by uid {}", found.st_uid)));
        }
        if found.st_size.cast_unsigned() < identity.geometry.bytes() as u64 {
            return Err(SegmentError::NotReady { path: path.into() });
        }
        let storage = map(path, &file, identity.geometry)?;
        G::preamble(&storage)
            .check(identity)
            .map_err(|what| match what {
                Some(found) => foreign(found),
                None => SegmentError::NotReady { path: path.into() },
            })?;
        let locks = Locks::hold(file, rank).map_err(|error| io_error(path, &error))?;
        Ok(Self {
            storage: Arc::new(storage),
            locks,
            name: None,
            path: path.into(),
        })
    }

    /// Where the segment is, or was before it was unlinked.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the proof that `rank` sees this memory.
    pub fn prove(&self, rank: usize, token: u64) {
        G::preamble(&self.storage).prove(rank, token);
    }

    /// The proof that `rank` has written, to be compared with what it says by another way.
    ///
    /// What it says by that other way, a message received, orders the write before this read.
    #[must_use]
    pub fn proof(&self, rank: usize) -> u64 {
        G::preamble(&self.storage).proof(rank)
    }

    /// Removes the name; the memory lives on in those who have it. Does nothing for those who did not create it.
    pub fn unlink(&mut self) {
        self.name = None;
    }

    /// The memory and the locks of its ranks. A name still linked is removed.
    #[must_use]
    pub fn into_parts(self) -> (Arc<G::Storage>, Locks) {
        (self.storage, self.locks)
    }
}

fn map<G: Contents>(path: &Path, file: &OwnedFd, geometry: G) -> Result<G::Storage, SegmentError> {
    let map = Map::of(path).map_err(|error| io_error(path, &error))?;
    // Mapped by name: it must still mean the file that was checked and carries the locks.
    let same = rustix::fs::lstat(path)
        .is_ok_and(|named| rustix::fs::fstat(file).is_ok_and(|held| held.st_ino == named.st_ino));
    if !same {
        return Err(SegmentError::Foreign {
            path: path.into(),
            found: "it was replaced".to_owned(),
        });
    }
    geometry
        .mapped(map)
        .ok_or_else(|| SegmentError::NotReady { path: path.into() })
}

fn refused(path: &Path, error: rustix::io::Errno) -> SegmentError {
    use rustix::io::Errno;
    let path_buf = path.to_path_buf();
    match error {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            let parent = path.parent().unwrap_or(path);
            let culprit = if path.exists() { path } else { parent };
            let owner = rustix::fs::stat(culprit).ok().map(|found| found.st_uid);
            SegmentError::Permission {
                path: culprit.into(),
                owner,
            }
        }
        Errno::EXIST => SegmentError::Foreign {
            path: path_buf,
            found: "the name is taken".to_owned(),
        },
        Errno::LOOP => SegmentError::Foreign {
            path: path_buf,
            found: "a symbolic link".to_owned(),
        },
        Errno::ISDIR => SegmentError::Foreign {
            path: path_buf,
            found: "a directory".to_owned(),
        },
        Errno::NXIO => SegmentError::Foreign {
            path: path_buf,
            found: "not a regular file".to_owned(),
        },
        Errno::NOENT | Errno::NOTDIR => SegmentError::Missing { path: path_buf },
        Errno::NOSPC => SegmentError::NoSpace {
            path: path_buf,
            needed: 0,
            free: 0,
        },
        other => SegmentError::Io {
            path: path_buf,
            what: other.to_string(),
        },
    }
}

fn io_error(path: &Path, error: &std::io::Error) -> SegmentError {
    SegmentError::Io {
        path: path.into(),
        what: error.to_string(),
    }
}

fn free_bytes(file: impl AsFd) -> u64 {
    rustix::fs::fstatvfs(file).map_or(0, |found| found.f_bavail * found.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHM: &str = "/dev/shm";
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn identity() -> Identity {
        Identity {
            geometry: Geometry::new(2, 4).expect("a valid geometry"),
            generation: 0,
            nonce: [1, 2],
        }
    }

    fn unique(folder: &Path) -> PathBuf {
        folder.join(format!(
            "rankpact-test-{}-{:x}",
            std::process::id(),
            getrandom::u64().expect("random bytes")
        ))
    }

    #[test]
    fn two_ranks_attach_prove_it_and_leave_no_name() {
        let other_folder = tempfile::tempdir().expect("a temporary folder");
        for folder in [Path::new(SHM), other_folder.path()] {
            let path = unique(folder);
            let mut one = Segment::create(&path, &identity(), 1, 0).expect("space for a table");
            let found = std::fs::metadata(&path).expect("the segment");
            assert_eq!(found.permissions().mode() & 0o777, 0o600);
            assert!(
                found.blocks() * 512 >= found.len(),
                "space is reserved, not only promised"
            );
            let two = Segment::attach(&path, &identity(), 1).expect("a finished segment");
            two.prove(1, 77);
            one.prove(0, 66);
            assert_eq!((one.proof(1), two.proof(0)), (77, 66));
            one.unlink();
            assert!(!path.exists());
            let (storage, locks) = one.into_parts();
            assert!(crate::Liveness::alive(&locks, 1));
            drop(two);
            assert!(!crate::Liveness::alive(&locks, 1));
            assert_eq!(storage.preamble().proof(1), 77);
        }
    }

    #[test]
    fn a_creator_that_fails_or_leaves_early_takes_its_name_with_it() {
        let path = unique(Path::new(SHM));
        drop(Segment::create(&path, &identity(), 1, 0).expect("space for a table"));
        assert!(!path.exists());
    }

    #[test]
    fn a_name_has_a_holder_from_the_moment_that_it_has_a_size() {
        let path = unique(Path::new(SHM));
        std::thread::scope(|scope| {
            let creator = scope.spawn(|| {
                for _ in 0..1000 {
                    drop(Segment::create(&path, &identity(), 1, 0).expect("space for a table"));
                }
            });
            while !creator.is_finished() {
                let Ok(file) = std::fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(&path)
                else {
                    continue;
                };
                let found = file.metadata().expect("an open file");
                let observer = Locks::hold(file.into(), 1).expect("nobody has the second byte");
                let held = crate::Liveness::alive(&observer, 0);
                let named = std::fs::metadata(&path).is_ok_and(|now| now.ino() == found.ino());
                assert!(held || !named || found.len() == 0, "nobody holds {found:?}");
            }
        });
    }

    #[test]
    fn whatever_else_lies_under_the_name_is_refused_and_stays() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("directory")).expect("a directory");
        symlink("/etc/passwd", at("link")).expect("a link");
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
        std::fs::write(at("empty"), b"").expect("a file");
        std::fs::write(at("garbage"), vec![0xa5; 1 << 16]).expect("a file");
        std::fs::write(at("zeros"), vec![0; 1 << 16]).expect("a file");
        for name in ["directory", "link", "fifo", "empty", "garbage", "zeros"] {
            let error =
                Segment::create(&at(name), &identity(), 1, 0).expect_err("the name is taken");
            assert!(
                matches!(error, SegmentError::Foreign { .. }),
                "{name}: {error}"
            );
            let error = Segment::attach(&at(name), &identity(), 1).expect_err("no segment");
            let half_made = matches!(error, SegmentError::NotReady { .. });
            assert_eq!(
                half_made,
                ["empty", "zeros"].contains(&name),
                "{name}: {error}"
            );
            assert!(at(name).symlink_metadata().is_ok(), "{name} must stay");
        }
        let error = Segment::attach(&at("nothing"), &identity(), 1).expect_err("no segment");
        assert!(matches!(error, SegmentError::Missing { .. }));
    }

    #[test]
    fn a_segment_of_another_job_or_shape_is_refused_by_name_of_the_field() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("segment");
        let _one = Segment::create(&path, &identity(), 1, 0).expect("space for a table");
        let attach = |change: fn(&mut Identity)| {
            let mut other = identity();
            change(&mut other);
            Segment::attach(&path, &other, 1)
                .expect_err("another segment")
                .to_string()
        };
        assert!(attach(|i| i.nonce = [1, 3]).contains("job"));
        assert!(attach(|i| i.generation = 9).contains("generation"));
        assert!(
            attach(|i| i.geometry = Geometry::new(1, 4).expect("valid"))
                .contains("number of ranks")
        );
    }
}
