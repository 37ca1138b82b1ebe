//! Ranks that are processes: forked from the test, and ended with it.

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Runs `body` in a child; its exit code is 0 if it returns true.
pub(crate) fn child(body: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the child runs `body` and exits without returning; the harness' other thread only waits for this one.
    match unsafe { fork() }.expect("a process") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            // Nobody outlives the test for long, whatever fails.
            nix::unistd::alarm::set(60);
            let good =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: ends the child at once, without the exit handlers of the test harness.
            unsafe { nix::libc::_exit(i32::from(!good)) }
        }
    }
}

pub(crate) fn ended(pid: Pid) {
    assert_eq!(
        waitpid(pid, None),
        Ok(WaitStatus::Exited(pid, 0)),
        "an assertion of a child failed"
    );
}
