//! Ranks that are processes: forked from the test.

use nix::unistd::{ForkResult, Pid, fork};

/// Runs `body` in a child; its exit code is 0 if it returns.
pub(crate) fn child(body: impl FnOnce()) -> Pid {
    // SAFETY: the child runs `body` and exits without returning. Locks that other threads hold at this moment are
    // theirs for ever there; nothing that `body` calls may wait for one, which is part of what is tested.
    match unsafe { fork() }.expect("a process") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
            // SAFETY: ends the child at once, without the exit handlers of the test harness.
            unsafe { nix::libc::_exit(i32::from(!good)) }
        }
    }
}
