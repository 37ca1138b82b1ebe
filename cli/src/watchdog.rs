//! Ends a test that hangs.

use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;
use std::{process, thread};

/// Aborts the whole test program unless dropped in time.
#[derive(Debug)]
pub(crate) struct Watchdog {
    _alive: Sender<()>,
}

impl Default for Watchdog {
    fn default() -> Self {
        let (alive, gone) = mpsc::channel::<()>();
        let test = thread::current().name().unwrap_or("?").to_owned();
        thread::spawn(move || {
            if gone.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                // Not eprintln: the test harness would keep it to itself.
                let _ = writeln!(io::stderr(), "{test}: hangs");
                process::abort();
            }
        });
        Self { _alive: alive }
    }
}
