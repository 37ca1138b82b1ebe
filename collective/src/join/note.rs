//! The note that rank 0 leaves for the other ranks of its host: address and token of the rendezvous.

use crate::error::ErrorKind;
use crate::token::Token;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{ErrorKind as Io, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the longest note; a longer file is none.
const NOTE: u64 = 256;

/// How often a folder is made again that another job of this user has found empty and removed.
const REMOVALS: usize = 100;

/// Where the note of a job lies.
#[derive(Debug)]
pub(super) struct Place {
    file: PathBuf,
    /// The folder of the user, shared by the jobs that are joining: made when needed, removed when empty.
    shared: Option<PathBuf>,
}

/// A note that lies there until this is dropped.
#[derive(Debug)]
pub(crate) struct Note {
    place: Place,
    text: String,
}

impl Place {
    /// In a folder that belongs to the job.
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self {
            file: folder.join("rendezvous"),
            shared: None,
        }
    }

    /// In the folder of this user, under a name that stands for `key`.
    pub(super) fn of_key(key: &str) -> Self {
        Self::below(users_folder(), key)
    }

    fn below(folder: PathBuf, key: &str) -> Self {
        let hash = blake3::derive_key("rankpact 1 name of a note", key.as_bytes());
        let name = blake3::Hash::from_bytes(hash).to_hex();
        Self {
            file: folder.join(&name.as_str()[..32]),
            shared: Some(folder),
        }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Puts the note there in one step, readable by this user only, instead of one that lies there already.
    pub(super) fn leave(self, address: SocketAddr, token: &Token) -> Result<Note, ErrorKind> {
        let text = format!("{address} {}\n", token.to_hex());
        let random = getrandom::u64().map_err(|error| ErrorKind::io("random numbers", error))?;
        let new = self.file.with_extension(format!("{random:016x}"));
        let write = || {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?
                .write_all(text.as_bytes())?;
            fs::rename(&new, &self.file)
        };
        for turn in 0.. {
            self.make_folder()?;
            match write() {
                Ok(()) => break,
                Err(error) if error.kind() == Io::NotFound && self.may_retry(turn) => {}
                Err(error) => {
                    let _ = fs::remove_file(&new);
                    return Err(ErrorKind::io(
                        &format!("cannot write {}", self.file.display()),
                        error,
                    ));
                }
            }
        }
        Ok(Note { place: self, text })
    }

    fn may_retry(&self, turn: usize) -> bool {
        self.shared.is_some() && turn < REMOVALS
    }

    fn make_folder(&self) -> Result<(), ErrorKind> {
        let Some(folder) = &self.shared else {
            return Ok(());
        };
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != Io::AlreadyExists => Err(ErrorKind::io(
                &format!("cannot make {}", folder.display()),
                error,
            )),
            _ => self.is_private().map(drop),
        }
    }

    /// Whether the folder is there; if it is, nobody else can have put anything into it.
    fn is_private(&self) -> Result<bool, ErrorKind> {
        let Some(folder) = &self.shared else {
            return Ok(true);
        };
        match fs::symlink_metadata(folder) {
            Ok(found) => private(folder, &found).map(|()| true),
            Err(error) if error.kind() == Io::NotFound => Ok(false),
            Err(error) => Err(ErrorKind::io(
                &format!("cannot look at {}", folder.display()),
                error,
            )),
        }
    }

    /// Address and token of the note, once it is there.
    pub(super) fn read(&self) -> Result<Option<(SocketAddr, Token)>, ErrorKind> {
        if !self.is_private()? {
            return Ok(None);
        }
        let mut text = String::new();
        let opened = OpenOptions::new()
            .read(true)
            // A link is an error, and a pipe does not keep us waiting.
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
            .open(&self.file)
            .and_then(|file| {
                let found = file.metadata()?;
                Read::take(file, NOTE).read_to_string(&mut text)?;
                Ok(found)
            });
        let found = match opened {
            Ok(found) => found,
            Err(error) if error.kind() == Io::NotFound => return Ok(None),
            Err(error) => {
                return Err(ErrorKind::io(
                    &format!("cannot read {}", self.file.display()),
                    error,
                ));
            }
        };
        ours(&self.file, &found)?;
        let parsed = text
            .trim()
            .split_once(' ')
            .and_then(|(address, token)| Some((address.parse().ok()?, token)));
        let (address, token) =
            parsed.ok_or_else(|| foreign(&self.file, "not the address of a rendezvous"))?;
        Ok(Some((address, Token::from_text(token))))
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        // Another job that has the same place may have replaced it.
        if fs::read_to_string(&self.place.file).is_ok_and(|text| text == self.text) {
            let _ = fs::remove_file(&self.place.file);
        }
        if let Some(folder) = &self.place.shared {
            // Refused as long as notes of other jobs lie there.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Below the runtime folder of this user's session, if there is one, else in `/tmp`: all ranks of this user on this host
/// choose alike.
fn users_folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usable = |folder: &PathBuf| {
        let found = File::open(folder).and_then(|folder| folder.metadata());
        // A session that became another user's may still name the folder of its first one.
        folder.is_absolute() && found.is_ok_and(|found| private(folder, &found).is_ok())
    };
    match runtime.filter(usable) {
        Some(folder) => folder.join("rankpact"),
        None => format!("/tmp/rankpact-{}", nix::unistd::geteuid()).into(),
    }
}

fn private(folder: &Path, found: &Metadata) -> Result<(), ErrorKind> {
    if !found.is_dir() {
        return Err(foreign(folder, "not a folder"));
    }
    ours(folder, found)?;
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(foreign(
            folder,
            &format!("mode {mode:04o}, open to other users"),
        ));
    }
    Ok(())
}

fn ours(path: &Path, found: &Metadata) -> Result<(), ErrorKind> {
    let owner = found.uid();
    if owner == nix::unistd::geteuid().as_raw() {
        Ok(())
    } else {
        Err(foreign(path, &format!("owned by uid {owner}")))
    }
}

fn foreign(path: &Path, found: &str) -> ErrorKind {
    ErrorKind::Foreign {
        path: path.display().to_string(),
        found: found.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn address() -> SocketAddr {
        "127.0.0.1:4000".parse().unwrap()
    }

    fn modes(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_note_is_read_by_this_user_alone_and_nothing_of_it_stays() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("user");
        let place = || Place::below(folder.clone(), "job 7");
        assert!(place().read().unwrap().is_none());
        let token = Token::random().unwrap();
        let note = place().leave(address(), &token).unwrap();
        assert_eq!(modes(&folder), 0o700);
        assert_eq!(modes(&place().file), 0o600);
        let (read, its) = place().read().unwrap().unwrap();
        assert_eq!((read, its.to_hex()), (address(), token.to_hex()));
        let other = Place::below(folder.clone(), "job 8");
        assert!(other.read().unwrap().is_none());
        let other = other.leave(address(), &token).unwrap();
        drop(note);
        assert!(place().read().unwrap().is_none() && folder.exists());
        drop(other);
        assert!(!folder.exists());
    }

    #[test]
    fn a_note_of_an_earlier_job_is_replaced_and_its_end_does_not_remove_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = || Place::in_folder(folder.path());
        let old = Token::random().unwrap();
        let old = place().leave(address(), &old).unwrap();
        let token = Token::random().unwrap();
        let _new = place().leave(address(), &token).unwrap();
        drop(old);
        let (_, read) = place().read().unwrap().unwrap();
        assert_eq!(read.to_hex(), token.to_hex());
    }

    #[test]
    fn a_folder_that_others_could_write_or_that_is_a_link_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("open");
        let place = || Place::below(folder.clone(), "job 7");
        let refused = |wanted: &str| {
            let token = Token::random().unwrap();
            let left = place().leave(address(), &token).map(drop);
            for outcome in [left, place().read().map(drop)] {
                let Err(ErrorKind::Foreign { path, found }) = &outcome else {
                    panic!("{wanted}: {outcome:?}");
                };
                assert!(found.contains(wanted), "{found}");
                assert_eq!(*path, folder.display().to_string());
            }
        };
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        refused("mode 0770");
        fs::remove_dir(&folder).unwrap();
        symlink(parent.path(), &folder).unwrap();
        refused("not a folder");
        fs::remove_file(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        refused("not a folder");
    }

    #[test]
    fn a_note_that_is_a_link_or_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::in_folder(folder.path());
        fs::write(folder.path().join("elsewhere"), "127.0.0.1:1 token\n").unwrap();
        symlink(folder.path().join("elsewhere"), &place.file).unwrap();
        assert!(matches!(place.read(), Err(ErrorKind::Io(_))));
        fs::remove_file(&place.file).unwrap();
        fs::write(&place.file, "127.0.0.1:1\n").unwrap();
        assert!(matches!(place.read(), Err(ErrorKind::Foreign { .. })));
    }
}
