//! Locks whose data outlives a panicking holder.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a holder panicked: every critical section here leaves its data valid at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
