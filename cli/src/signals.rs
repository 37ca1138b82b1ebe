//! Signals that ask the program to end, handed to whoever runs a job.
//!
//! One thread serves the whole program, for ever: a handler that is removed leaves the signal
//! ignored, and a program that runs one job after another must not be deaf in between.

use std::sync::{Mutex, PoisonError};
use std::{fs, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Takes a signal; `false` means that it has no more use for signals.
type Listener = Box<dyn Fn(i32) -> bool + Send>;

/// `None` until the thread runs.
static LISTENERS: Mutex<Option<Vec<Listener>>> = Mutex::new(None);

/// Has `listener` told of every SIGHUP, SIGINT and SIGTERM until it answers `false`. With nobody
/// left to tell, a signal does what it does by default.
pub(crate) fn subscribe(listener: impl Fn(i32) -> bool + Send + 'static) -> io::Result<()> {
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    if listeners.is_none() {
        // `nohup` and shells without job control have signals ignored on purpose.
        let ignored = ignored_signals();
        let wanted = [SIGHUP, SIGINT, SIGTERM];
        let mut signals = Signals::new(wanted.iter().filter(|&s| ignored & (1 << (s - 1)) == 0))?;
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || signals.forever().for_each(deliver))?;
    }
    listeners.get_or_insert_default().push(Box::new(listener));
    Ok(())
}

fn deliver(signal: i32) {
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    let listeners = listeners.get_or_insert_default();
    listeners.retain(|tell| tell(signal));
    if listeners.is_empty() {
        // Fails only for signals that we did not ask for.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
}

/// Bit n-1 stands for signal n. Asking the kernel by `sigaction` would need unsafe code.
fn ignored_signals() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status
                .lines()
                .find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        })
        .unwrap_or(0)
}
