//! Ends the whole test program if a test hangs: a hung thread cannot be ended alone.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub(crate) fn watchdog<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || sender.send(body()));
    match receiver.recv_timeout(Duration::from_secs(60)) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("a worker that returned has sent its value"),
        },
        Err(mpsc::RecvTimeoutError::Timeout) => {
            eprintln!("watchdog: a test hangs");
            std::process::abort();
        }
    }
}
