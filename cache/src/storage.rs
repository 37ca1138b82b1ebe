//! Pages in storage: what the workers need of it, and page files in a folder.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Where pages survive the host pool. Every call returns within a time of its own and leaves the buffer alone after.
pub trait Storage: Send + Sync {
    /// Whether a page can be expected to be readable.
    fn exists(&self, key: u64) -> bool;

    /// Fills `page` with a stored page.
    ///
    /// # Errors
    ///
    /// When the page is absent, unreadable, damaged or of another size; `page` is then unspecified.
    fn read(&self, key: u64, page: &mut [u8]) -> io::Result<()>;

    /// Stores a page, whole or not at all.
    ///
    /// # Errors
    ///
    /// When storage does not take it.
    fn write(&self, key: u64, page: &[u8]) -> io::Result<()>;
}

const MAGIC: [u8; 4] = *b"rkpg";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 28;

/// One file for each page in a folder of its own; a torn or damaged page counts as absent.
///
/// Only one rank at a time may write to a folder.
#[derive(Clone, Debug)]
pub struct PageFiles {
    folder: PathBuf,
}

impl PageFiles {
    /// Page files in `folder`, which is made if missing.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// The file of a page.
    #[must_use]
    pub fn path(&self, key: u64) -> PathBuf {
        self.folder.join(format!("{key:016x}.page"))
    }

    /// Opens a page up to its payload.
    fn payload(&self, key: u64) -> io::Result<(File, Header)> {
        let mut file = File::open(self.path(key))?;
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact(&mut bytes)?;
        let header = Header::decode(&bytes).filter(|header| header.key == key);
        let header = header.ok_or_else(|| damaged("not a page of this key"))?;
        if file.metadata()?.len() != header.length.saturating_add(HEADER_BYTES as u64) {
            return Err(damaged("torn page"));
        }
        Ok((file, header))
    }

    fn read_verified(&self, key: u64, page: &mut [u8]) -> io::Result<()> {
        let (mut file, header) = self.payload(key)?;
        if header.length != page.len() as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "page of another size",
            ));
        }
        file.read_exact(page)?;
        if crc32fast::hash(page) == header.crc {
            Ok(())
        } else {
            Err(damaged("checksum mismatch"))
        }
    }
}

impl Storage for PageFiles {
    fn exists(&self, key: u64) -> bool {
        self.payload(key).is_ok()
    }

    fn read(&self, key: u64, page: &mut [u8]) -> io::Result<()> {
        let outcome = self.read_verified(key, page);
        if outcome
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::InvalidData)
        {
            // Otherwise `exists` would promise it again; if the removal fails, so will the next read.
            let _ = fs::remove_file(self.path(key));
        }
        outcome
    }

    fn write(&self, key: u64, page: &[u8]) -> io::Result<()> {
        let header = Header {
            key,
            length: page.len() as u64,
            crc: crc32fast::hash(page),
        };
        let temporary = self
            .folder
            .join(format!(".{key:016x}.{}.tmp", std::process::id()));
        // The name appears only with the whole page under it.
        let outcome = write_file(&temporary, &header, page)
            .and_then(|()| fs::rename(&temporary, self.path(key)));
        if outcome.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        outcome
    }
}

fn write_file(path: &Path, header: &Header, page: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&header.encode())?;
    file.write_all(page)
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Magic, version, key, length, crc; little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    key: u64,
    length: u64,
    crc: u32,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.key.to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes.extend_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (crc, _) = rest.split_first_chunk()?;
        (*magic == MAGIC && u32::from_le_bytes(*version) == VERSION).then(|| Self {
            key: u64::from_le_bytes(*key),
            length: u64::from_le_bytes(*length),
            crc: u32::from_le_bytes(*crc),
        })
    }
}
