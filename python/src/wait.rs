//! Waits without the interpreter lock, which signals can end.
//!
//! Python's signal handlers run in its main thread, between two steps of the interpreter. A wait in that thread therefore
//! asks for them about every slice. What a handler raises ends the job on all ranks, for a round that this rank has begun
//! cannot be taken back, and is raised here once the call has returned.

use crate::error::raise;
use pyo3::prelude::*;
use rankpact_collective::{Error, Interrupt, Unlock};
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Between two looks for signals. A little less than a slice, which would else often come a moment too early.
const LOOK: Duration = Duration::from_millis(40);

/// What waits ask.
pub(crate) const INTERRUPT: Interrupt = Interrupt(interrupted);

thread_local! {
    /// When the call of this thread looks for signals again; `None` before it has waited for long.
    static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What a handler has raised while the call of this thread waited, and the same in words.
    static RAISED: RefCell<Option<(PyErr, String)>> = const { RefCell::new(None) };
}

/// The thread that ends the interpreter, once it has begun to.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

/// Says that the calling thread ends the interpreter: no other one may enter it any more.
#[pyfunction]
pub(crate) fn finalize() {
    ENDING.get_or_init(|| thread::current().id());
}

fn is_shut_out() -> bool {
    ENDING
        .get()
        .is_some_and(|ending| *ending != thread::current().id())
}

/// Runs `body` in the interpreter, unless that is about to end.
pub(crate) fn attached<T>(body: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    if is_shut_out() {
        return None;
    }
    Python::try_attach(body)
}

/// The interpreter lock, which waits give back.
pub(crate) struct Lock<'py>(pub(crate) Python<'py>);

impl Unlock for Lock<'_> {
    fn run<T: Send>(self, body: impl FnOnce() -> T + Send) -> T {
        self.0.detach(|| {
            let brought = body();
            // The interpreter would tear a daemon thread down on its way back, through the middle of this program.
            while is_shut_out() {
                thread::park();
            }
            brought
        })
    }
}

/// Runs `call` without the interpreter lock.
pub(crate) fn without_lock<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    settle(py, Lock(py).run(call))
}

/// What a call has brought, or what is to be raised.
pub(crate) fn settle<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    // Only who has looked for signals has found one.
    if NEXT.take().is_some()
        && let Some((raised, _)) = RAISED.take()
    {
        return Err(raised);
    }
    result.map_err(|error| raise(py, &error))
}

/// An exception in a few words.
pub(crate) fn in_words(py: Python<'_>, raised: &PyErr) -> String {
    let name = raised.get_type(py).qualname();
    let name = name.map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
    let text = raised.value(py).to_string();
    if text.is_empty() {
        name
    } else {
        format!("{name}: {text}")
    }
}

fn interrupted() -> Option<String> {
    let reason = RAISED.with_borrow(|raised| raised.as_ref().map(|(_, reason)| reason.clone()));
    if reason.is_some() {
        return reason;
    }
    let now = Instant::now();
    let due = NEXT.get();
    if due.is_none_or(|due| now >= due) {
        NEXT.set(Some(now + LOOK));
    }
    if due.is_none_or(|due| now < due) {
        return None;
    }
    let (raised, reason) = attached(|py| {
        let raised = py.check_signals().err()?;
        let reason = in_words(py, &raised);
        Some((raised, reason))
    })??;
    RAISED.set(Some((raised, reason.clone())));
    Some(reason)
}
