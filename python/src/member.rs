//! What a Python object shares with its world: a group or a relay, used by one thread at a time, until it is closed.

use crate::wait::attached;
use rankpact_collective::{Error, ErrorKind};
use rankpact_shm::Process;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// Between two attempts to close what another thread uses.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A group or a relay. Dropping what is inside closes it.
#[derive(Debug)]
pub(crate) struct Member<T: Send> {
    pub(crate) name: String,
    /// This rank, within the world.
    rank: usize,
    /// Nothing once it is closed.
    inner: Mutex<Option<T>>,
    owner: Process,
}

/// What a world closes.
pub(crate) trait Close: Send + Sync {
    /// Leaves in good order, and waits a while for the other ranks to do so too. Whether that could be done before
    /// `until`: another thread may be in a call.
    fn close(&self, until: Instant) -> bool;
}

impl<T: Send> Member<T> {
    pub(crate) fn new(name: &str, rank: usize, inner: T) -> Self {
        Self {
            name: name.to_owned(),
            rank,
            inner: Mutex::new(Some(inner)),
            owner: Process::current(),
        }
    }

    /// Makes a call, unless another thread is in one.
    #[inline]
    pub(crate) fn call<R>(
        &self,
        (operation, label): (&str, &str),
        body: impl FnOnce(&mut T) -> Result<R, Error>,
    ) -> Result<R, Error> {
        match self.enter().map(|mut inner| inner.as_mut().map(body)) {
            Ok(Some(result)) => result,
            Ok(None) => Err(self.error(operation, label, ErrorKind::Closed)),
            Err(kind) => Err(self.error(operation, label, kind)),
        }
    }

    #[inline]
    fn enter(&self) -> Result<MutexGuard<'_, Option<T>>, ErrorKind> {
        // Of a forked child's copy even the lock means nothing: its holder may be in the parent.
        if !self.owner.is_here() {
            return Err(ErrorKind::Forked);
        }
        match self.inner.try_lock() {
            Ok(inner) => Ok(inner),
            // A call that panicked has failed its round; what it left behind says so at the next one.
            Err(TryLockError::Poisoned(inner)) => Ok(inner.into_inner()),
            Err(TryLockError::WouldBlock) => Err(ErrorKind::Usage(format!(
                "{} is in a call already: give each thread a group of its own",
                self.name
            ))),
        }
    }

    /// Leaves in good order now; nothing happens if that was done before.
    pub(crate) fn leave(&self, operation: &str) -> Result<(), Error> {
        match self.enter() {
            Ok(mut inner) => drop(inner.take()),
            Err(ErrorKind::Forked) => {}
            Err(kind) => return Err(self.error(operation, "", kind)),
        }
        Ok(())
    }

    fn error(&self, operation: &str, label: &str, kind: ErrorKind) -> Error {
        Error {
            group: self.name.clone(),
            round: 0,
            operation: operation.to_owned(),
            label: label.to_owned(),
            rank: self.rank,
            kind: Box::new(kind),
        }
    }
}

impl<T: Send> Close for Member<T> {
    fn close(&self, until: Instant) -> bool {
        loop {
            match self.enter() {
                Ok(mut inner) => {
                    drop(inner.take());
                    return true;
                }
                Err(ErrorKind::Forked) => return true,
                Err(_) if Instant::now() >= until => return false,
                Err(_) => thread::sleep(LOOK_AGAIN),
            }
        }
    }
}

impl<T: Send> Drop for Member<T> {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if inner.is_some() {
            // Python drops its objects with the interpreter lock, and a close may wait for other ranks.
            attached(|py| py.detach(|| drop(inner.take())));
        }
    }
}
