//! Surroundings of tests that start the program.

#[path = "../../src/watchdog.rs"]
mod watchdog;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tempfile::TempDir;

use watchdog::Watchdog;

pub(crate) const RANKPACT: &str = env!("CARGO_BIN_EXE_rankpact");
const SHM_FOLDER: &str = "/dev/shm";

/// One test's surroundings: folders of its own, and a mark on every process it starts.
pub(crate) struct Arena {
    _watchdog: Watchdog,
    pub(crate) temp: TempDir,
    pub(crate) shm: TempDir,
    /// Names in the real folder that were there before.
    foreign: BTreeSet<String>,
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self {
            _watchdog: Watchdog::default(),
            temp: tempfile::tempdir().unwrap(),
            shm: tempfile::tempdir().unwrap(),
            foreign: segments(),
        }
    }

    /// Not yet started: `rankpact ARGS...`.
    pub(crate) fn rankpact<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        // The tests themselves may run with signals ignored, as a shell's background jobs do.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=HUP,INT,TERM", RANKPACT])
            .args(args);
        self.prepare(&mut command);
        command
    }

    /// Gives the command this arena's mark and three streams.
    pub(crate) fn prepare(&self, command: &mut Command) {
        command
            .env("TMPDIR", self.temp.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    /// Processes that this arena's variables are in the environment of.
    pub(crate) fn processes(&self) -> Vec<PathBuf> {
        let mark = self.temp.path().as_os_str().as_encoded_bytes();
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                fs::read(path.join("environ"))
                    .is_ok_and(|environ| environ.windows(mark.len()).any(|part| part == mark))
            })
            .collect()
    }

    /// For what does not end with its launcher: the `sleep` of a shell, ranks of a killed launcher.
    pub(crate) fn await_stragglers(&self) {
        while !self.processes().is_empty() {
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.processes(), [] as [PathBuf; 0]);
        assert_eq!(names(self.temp.path()), [] as [String; 0]);
        assert_eq!(names(self.shm.path()), [] as [String; 0]);
        self.assert_no_segments();
    }

    /// Tests next to this one have names in the real folder too, but only while their ranks join.
    pub(crate) fn assert_no_segments(&self) {
        let mut left = &segments() - &self.foreign;
        for _ in 0..1000 {
            if left.is_empty() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
            left = &left & &segments();
        }
        panic!("left in {SHM_FOLDER}: {left:?}");
    }
}

/// Of whatever job.
fn segments() -> BTreeSet<String> {
    names(Path::new(SHM_FOLDER))
        .into_iter()
        .filter(|name| name.starts_with("rankpact-"))
        .collect()
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[track_caller]
pub(crate) fn assert_end(output: &Output, code: i32, stderr: &str) {
    assert_eq!(text(&output.stderr), stderr);
    assert_eq!(output.status.code(), Some(code));
}

pub(crate) fn send(child: &Child, signal: Signal) {
    signal::kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}
