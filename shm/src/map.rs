//! Memory mapped from a file.
//!
//! The one file that knows the `shared_memory` crate. That crate reserves no space, lets an opener meet a size of 0, and
//! unlinks by name what it created; here it only maps a file that `segment` has created or checked itself.

use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::path::Path;

/// Where named segments live unless a folder is given.
const SHM: &str = "/dev/shm";

/// Memory mapped from a file. Public only in the signature of a trait that nobody else can implement for want of one.
pub struct Map(Mapping);

enum Mapping {
    Named(shared_memory::Shmem),
    File(memmap2::MmapRaw),
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

impl Map {
    pub(crate) fn base(&self) -> *mut u8 {
        match &self.0 {
            Mapping::Named(map) => map.as_ptr(),
            Mapping::File(map) => map.as_mut_ptr(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Mapping::Named(map) => map.len(),
            Mapping::File(map) => map.len(),
        }
    }

    /// Maps the file under `path` through a description of its own: a mapping keeps its description open in a forked
    /// child, and a description that carries a lock would go on carrying it there after its rank has died.
    pub(crate) fn of(path: &Path) -> std::io::Result<Self> {
        match (
            path.parent(),
            path.file_name().and_then(|name| name.to_str()),
        ) {
            (Some(folder), Some(name)) if folder == Path::new(SHM) => {
                shared_memory::ShmemConf::new()
                    .os_id(format!("/{name}"))
                    .open()
                    .map(|map| Self(Mapping::Named(map)))
                    .map_err(|error| std::io::Error::other(error.to_string()))
            }
            _ => {
                let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::open(path, flags, Mode::empty())?;
                memmap2::MmapRaw::map_raw(&file).map(|map| Self(Mapping::File(map)))
            }
        }
    }
}
