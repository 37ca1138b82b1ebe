//! Ends a test that hangs.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Runs `test` in a thread of its own and fails if it has not ended after a minute.
pub(crate) fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let _done = done;
        test();
    });
    if ended.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("the test hangs");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
