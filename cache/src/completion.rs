//! The event at the end of a copy between device and host.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::guard::lock;

/// An event that happens once; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    shared: Arc<(Mutex<bool>, Condvar)>,
}

impl Completion {
    /// An event that has not happened.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An event that has happened already.
    #[must_use]
    pub fn done() -> Self {
        let event = Self::new();
        event.complete();
        event
    }

    /// Lets the event happen; later calls have no effect.
    pub fn complete(&self) {
        let (done, changed) = &*self.shared;
        *lock(done) = true;
        changed.notify_all();
    }

    /// Whether the event has happened; once true it stays true.
    #[must_use]
    pub fn is_done(&self) -> bool {
        *lock(&self.shared.0)
    }

    /// Blocks until the event happens, at most for `timeout`; says whether it happened.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let (done, changed) = &*self.shared;
        *changed
            .wait_timeout_while(lock(done), timeout, |done| !*done)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_event_or_with_the_deadline() {
        let event = Completion::new();
        assert!(!event.wait(Duration::from_millis(5)));
        let other = event.clone();
        let waiter = std::thread::spawn(move || other.wait(Duration::from_secs(30)));
        event.complete();
        assert!(waiter.join().unwrap());
        assert!(event.is_done() && Completion::done().is_done());
    }
}
