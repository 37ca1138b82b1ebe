//! Time, as the scheduler thread sees it.

use std::time::{Duration, Instant};

/// A monotonic clock; only the waits of requests read it, and only the vote makes its readings common.
pub trait Clock: Send {
    /// Time since an arbitrary but fixed start.
    fn now(&self) -> Duration;
}

/// The monotonic clock of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
