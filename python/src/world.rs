//! Worlds: joining, groups, and how it all ends.

use crate::argument::seconds;
use crate::error::raise;
use crate::group::Group;
use crate::member::{Close, Member};
use crate::relay::Relay;
use crate::wait::{INTERRUPT, attached, in_words, without_lock};
use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;
use pyo3::types::PyType;
use rankpact_collective::{Error, ErrorKind, Join};
use rankpact_shm::Process;
use std::collections::BTreeMap;
use std::env;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long an abort waits for other threads to come out of their calls.
const PARTING: Duration = Duration::from_secs(1);

/// All ranks of a job, as one of them sees it. Made by rankpact.connect().
///
/// As a context manager it closes at the end of the block, and aborts the job on all ranks if an exception leaves it.
#[pyclass(module = "rankpact", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct World {
    rank: usize,
    size: usize,
    /// Nothing once it is closed.
    world: Mutex<Option<Arc<rankpact_collective::World>>>,
    members: Mutex<Members>,
    owner: Process,
}

/// What a world closes; what nobody has any more has closed by itself.
#[derive(Default)]
struct Members(Vec<Weak<dyn Close>>);

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Members").field(&self.0.len()).finish()
    }
}

/// Never held while a rank waits for others.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins the job that the environment describes, with `variables` before those of the process.
#[pyfunction]
pub(crate) fn connect(py: Python<'_>, variables: BTreeMap<String, String>) -> PyResult<World> {
    let var = |name: &str| variables.get(name).cloned().or_else(|| env::var(name).ok());
    let mut join = Join::from_vars(var).map_err(|error| raise(py, &error))?;
    join.options.interrupt = Some(INTERRUPT);
    let (rank, size) = (join.rank, join.size);
    let world = without_lock(py, || rankpact_collective::World::connect(join))?;
    Ok(World {
        rank,
        size,
        world: Mutex::new(Some(Arc::new(world))),
        members: Mutex::default(),
        owner: Process::current(),
    })
}

impl World {
    fn open(&self, operation: &str) -> Result<Arc<rankpact_collective::World>, Error> {
        let kind = if self.owner.is_here() {
            if let Some(world) = &*locked(&self.world) {
                return Ok(Arc::clone(world));
            }
            ErrorKind::Closed
        } else {
            ErrorKind::Forked
        };
        Err(self.error(operation, kind))
    }

    fn error(&self, operation: &str, kind: ErrorKind) -> Error {
        Error {
            group: "world".to_owned(),
            round: 0,
            operation: operation.to_owned(),
            label: String::new(),
            rank: self.rank,
            kind: Box::new(kind),
        }
    }

    /// Shares a member with its object.
    fn keep<T: Send + 'static>(&self, name: &str, inner: T) -> Arc<Member<T>> {
        let member = Arc::new(Member::new(name, self.rank, inner));
        let closing: Arc<dyn Close> = Arc::clone(&member) as _;
        let mut members = locked(&self.members);
        members.0.retain(|member| member.strong_count() > 0);
        members.0.push(Arc::downgrade(&closing));
        member
    }

    fn give_up_or_leave(&self, reason: Option<&str>, patience: Duration) {
        if let (Some(reason), Ok(world)) = (reason, self.open("abort")) {
            world.abort(reason);
        }
        self.leave(patience);
    }

    /// Closes all members side by side, for each may wait for other ranks, and then the world. What another thread still
    /// uses after `patience` stays open; whether there is such a thing.
    fn leave(&self, patience: Duration) -> bool {
        if !self.owner.is_here() {
            return false;
        }
        let members = std::mem::take(&mut locked(&self.members).0);
        let members: Vec<_> = members.iter().filter_map(Weak::upgrade).collect();
        let until = Instant::now() + patience;
        let busy: Vec<_> = thread::scope(|scope| {
            let closing: Vec<_> = members
                .iter()
                .map(|member| {
                    let close = || member.close(until);
                    // Without a thread, one after the other.
                    thread::Builder::new()
                        .spawn_scoped(scope, close)
                        .map_err(|_| member.close(until))
                })
                .collect();
            let closed = closing.into_iter().map(|closing| match closing {
                Ok(closing) => closing.join().unwrap_or(true),
                Err(closed) => closed,
            });
            members
                .iter()
                .zip(closed)
                .filter(|(_, closed)| !closed)
                .map(|(member, _)| Arc::downgrade(member))
                .collect()
        });
        let is_busy = !busy.is_empty();
        locked(&self.members).0.extend(busy);
        if !is_busy {
            // Outside of the lock: the last to go says goodbye to rank 0, and that may take a moment.
            let world = locked(&self.world).take();
            drop(world);
        }
        is_busy
    }
}

#[pymethods]
impl World {
    /// This rank.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.owner.is_here() && locked(&self.world).is_none()
    }

    /// A group of ranks, in that order, or of all ranks. The first one is rank 0 of the group.
    ///
    /// Returns at once: the members find each other at the group's first call, or at ready(). A group has a table and a
    /// round counter of its own; each thread that makes calls needs one. timeout, in seconds, and path, "auto", "table" or
    /// "tcp", are those of the world if they are not given; all members give the same.
    #[pyo3(signature = (name, ranks = None, *, timeout = None, path = None))]
    fn group(
        slf: &Bound<'_, Self>,
        name: &str,
        ranks: Option<Vec<usize>>,
        timeout: Option<f64>,
        path: Option<&str>,
    ) -> PyResult<Group> {
        let (py, this) = (slf.py(), slf.get());
        let world = this.open("group").map_err(|error| raise(py, &error))?;
        let ranks = ranks.unwrap_or_else(|| (0..this.size).collect());
        let mut options = world.options().clone();
        if let Some(timeout) = timeout {
            options.timeout = seconds(timeout)?;
        }
        if let Some(path) = path {
            let parsed = path.parse();
            options.path = parsed.map_err(pyo3::exceptions::PyValueError::new_err::<String>)?;
        }
        let group = world.group_with(name, &ranks, options);
        let group = group.map_err(|error| raise(py, &error))?;
        let me = group.rank();
        let member = this.keep(name, group);
        Ok(Group::new(member, me, ranks, slf.clone().unbind()))
    }

    /// This rank's place in a pipeline: it hears from rank upstream, and hands on to rank downstream. The first stage has
    /// nobody before it, the last one nobody after it. Returns at once.
    #[pyo3(signature = (name, *, upstream = None, downstream = None))]
    fn relay(
        slf: &Bound<'_, Self>,
        name: &str,
        upstream: Option<usize>,
        downstream: Option<usize>,
    ) -> PyResult<Relay> {
        let (py, this) = (slf.py(), slf.get());
        let world = this.open("relay").map_err(|error| raise(py, &error))?;
        let relay = world.relay(name, upstream, downstream);
        let relay = relay.map_err(|error| raise(py, &error))?;
        Ok(Relay::new(this.keep(name, relay), slf.clone().unbind()))
    }

    /// Ends the job on every rank: all groups and relays fail with this rank and reason, at once.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let abort = || self.open("abort").map(|world| world.abort(reason));
        without_lock(py, abort)
    }

    /// Leaves in good order, with all groups and relays. Waits up to 2 s for the other ranks to leave too.
    ///
    /// Raises UsageError if a call is under way, say in another thread; what it uses stays open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !py.detach(|| self.leave(Duration::ZERO)) {
            return Ok(());
        }
        let what = "a call is under way: end it first, or abort the world".to_owned();
        Err(raise(py, &self.error("close", ErrorKind::Usage(what))))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: Option<&Bound<'_, PyType>>,
        error: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let Some(error) = error.filter(|error| !is_a_good_end(error)) else {
            return self.close(py);
        };
        let reason = in_words(py, &PyErr::from_value(error.clone()));
        py.detach(|| self.give_up_or_leave(Some(&reason), PARTING));
        Ok(())
    }

    /// What the end of the program does: as close(), or an abort for the sake of an exception that nobody caught. What a
    /// daemon thread uses ends with its process.
    fn _end(&self, py: Python<'_>, uncaught: Option<&Bound<'_, PyAny>>) {
        let reason = uncaught.map(|error| in_words(py, &PyErr::from_value(error.clone())));
        py.detach(|| self.give_up_or_leave(reason.as_deref(), Duration::ZERO));
    }

    fn __repr__(&self) -> String {
        format!("<rankpact.World: rank {} of {}>", self.rank, self.size)
    }
}

/// Whether `error` is `sys.exit()` with nothing to complain of.
fn is_a_good_end(error: &Bound<'_, PyAny>) -> bool {
    let is_nothing = |code: Bound<'_, PyAny>| code.is_none() || code.eq(0).unwrap_or(false);
    error.is_instance_of::<PySystemExit>() && error.getattr("code").is_ok_and(is_nothing)
}

impl Drop for World {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // Python drops its objects with the interpreter lock.
            attached(|py| py.detach(|| self.leave(Duration::ZERO)));
        }
    }
}
