//! Groups: the calls of `rankpact.Group`.

use crate::argument::{self, Operations, Values, bytes};
use crate::buffer::Elements;
use crate::error::{raise, raise_saying};
use crate::member::Member;
use crate::wait::{Lock, settle, without_lock};
use crate::world::World;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use rankpact_collective::{Error, ErrorKind};
use std::sync::Arc;

/// An ordered set of ranks that agree in rounds.
///
/// Every call waits for all members, and all must make the same calls in the same order; one that does not is an error
/// on every rank, in that round. After a failure every later call fails at once with its origin. Only send() and recv()
/// concern two ranks alone. One thread at a time may use a group.
///
/// label names the call site: errors show it, and the ranks compare it. timeout is in seconds, and that of the group if
/// it is not given. A call that Ctrl-C or another signal handler ends by an exception ends the job on all ranks.
#[pyclass(module = "rankpact", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct Group {
    member: Arc<Member<rankpact_collective::Group>>,
    me: usize,
    ranks: Vec<usize>,
    /// A world closes at the end of the program if it is still there.
    _world: Py<World>,
}

impl Group {
    pub(crate) fn new(
        member: Arc<Member<rankpact_collective::Group>>,
        me: usize,
        ranks: Vec<usize>,
        world: Py<World>,
    ) -> Self {
        Self {
            member,
            me,
            ranks,
            _world: world,
        }
    }

    /// Makes a call without the interpreter lock.
    fn waiting<T: Send>(
        &self,
        py: Python<'_>,
        names: (&str, &str),
        body: impl FnOnce(&mut rankpact_collective::Group) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        without_lock(py, || self.member.call(names, body))
    }

    /// Looks at something without waiting.
    fn look<T>(
        &self,
        py: Python<'_>,
        what: &str,
        look: impl FnOnce(&rankpact_collective::Group) -> T,
    ) -> PyResult<T> {
        let seen = self.member.call((what, ""), |group| Ok(look(group)));
        seen.map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl Group {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.member.name
    }

    /// This rank within the group.
    #[getter]
    fn rank(&self) -> usize {
        self.me
    }

    /// How many ranks the group has.
    #[getter]
    fn size(&self) -> usize {
        self.ranks.len()
    }

    /// The world ranks of the members, in the order of the group.
    #[getter]
    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.ranks)
    }

    /// The round of the last call; 0 before the first.
    #[getter]
    fn round(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, "round", rankpact_collective::Group::round)
    }

    /// How rounds travel: "table", "tcp", "hierarchical", "alone"; None before the first call.
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.look(py, "path", |group| {
            group.path().map(|(kind, _)| kind.to_string())
        })
    }

    /// Why it is that path; None before the first call.
    #[getter]
    fn path_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.look(py, "path", |group| {
            group.path().map(|(_, reason)| reason.to_owned())
        })
    }

    /// Opens the group: waits for all members. The first call does this by itself.
    fn ready(&self, py: Python<'_>) -> PyResult<()> {
        self.waiting(py, ("open", ""), rankpact_collective::Group::ready)
    }

    /// Reduces a list or tuple of ints over all ranks, slot by slot, and returns the list of results.
    ///
    /// op is "min", "max", "sum", "or" or "and", or a list with one for each slot. Values are signed 64-bit integers; a
    /// sum that does not fit is an Overflow on every rank, which fails nothing.
    #[pyo3(signature = (values, op, *, label = "all_reduce", timeout = None))]
    fn all_reduce<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        op: &Bound<'py, PyAny>,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut values = Values::read(values)?;
        let operations = Operations::read(op)?;
        let call = argument::call(label, timeout)?;
        let reduced = self.member.call(("all_reduce", label), |group| {
            group.all_reduce_unlocking(operations.as_ops(), values.as_mut(), call, Lock(py))
        });
        settle(py, reduced)?;
        PyList::new(py, values.as_ref())
    }

    /// Reduces a buffer over all ranks, element by element and in place.
    ///
    /// buffer is a numpy array, an array.array, a memoryview or a torch tensor in host memory: writable, contiguous, of
    /// int64, int32 or bool. All ranks give as many elements. A result that does not fit an element is an Overflow, which
    /// fails nothing and leaves the buffer as it was; it is the same on all ranks whose elements are of the same type.
    #[pyo3(signature = (buffer, op, *, label = "all_reduce", timeout = None))]
    fn all_reduce_(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        op: &Bound<'_, PyAny>,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let elements = Elements::of(buffer)?;
        let mut values = elements.read(py)?;
        let operations = Operations::read(op)?;
        let call = argument::call(label, timeout)?;
        let reduced = self.member.call(("all_reduce", label), |group| {
            group.all_reduce_unlocking(operations.as_ops(), values.as_mut(), call, Lock(py))?;
            Ok(group.round())
        });
        let round = settle(py, reduced)?;
        let Some(slot) = elements.write(py, values.as_ref())? else {
            return Ok(());
        };
        let error = Error {
            group: self.member.name.clone(),
            round,
            operation: "all_reduce".to_owned(),
            label: label.to_owned(),
            rank: self.ranks[self.me],
            kind: Box::new(ErrorKind::Overflow { slot }),
        };
        let total = values.as_ref()[slot];
        let what = format!(
            "group {}, round {round}, all_reduce `{label}`, rank {}: the result of slot {slot}, {total}, does not fit \
             the elements of the buffer",
            error.group, error.rank
        );
        Err(raise_saying(py, &error, &what))
    }

    /// Starts a reduction of up to 8 slots, to be finished later: other work can be done, and other rounds started,
    /// in between. It matches an all_reduce() of the other ranks.
    #[pyo3(signature = (values, op, *, label = "all_reduce", timeout = None))]
    fn start_all_reduce(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        op: &Bound<'_, PyAny>,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<Started> {
        let values = Values::read(values)?;
        let operations = Operations::read(op)?;
        let call = argument::call(label, timeout)?;
        let started = self.waiting(py, ("all_reduce", label), |group| {
            group.start_all_reduce(operations.as_ops(), values.as_ref(), call)
        })?;
        Ok(Started {
            member: Arc::clone(&self.member),
            started,
            label: label.to_owned(),
        })
    }

    /// Gives the bytes of root, a rank of the group, to all ranks. What the others hand in is not looked at.
    #[pyo3(signature = (data = None, *, root = 0, label = "broadcast", timeout = None))]
    fn broadcast<'py>(
        &self,
        py: Python<'py>,
        data: Option<&Bound<'py, PyAny>>,
        root: usize,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut data = match data {
            Some(data) if root == self.me => bytes(data)?,
            None if root == self.me => {
                let what = "the root of a broadcast has to hand in data";
                return Err(pyo3::exceptions::PyTypeError::new_err(what));
            }
            _ => Vec::new(),
        };
        let call = argument::call(label, timeout)?;
        self.waiting(py, ("broadcast", label), |group| {
            group.broadcast(root, &mut data, call)
        })?;
        Ok(PyBytes::new(py, &data))
    }

    /// Gives an object of root to all ranks, pickled; root gets its own back.
    #[pyo3(signature = (object = None, *, root = 0, label = "broadcast_object", timeout = None))]
    fn broadcast_object<'py>(
        &self,
        py: Python<'py>,
        object: Option<Bound<'py, PyAny>>,
        root: usize,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let object = object.unwrap_or_else(|| py.None().into_bound(py));
        if root == self.me {
            let pickled = pickled(&object)?;
            self.broadcast(py, Some(&pickled), root, label, timeout)?;
            return Ok(object);
        }
        let pickled = self.broadcast(py, None, root, label, timeout)?;
        unpickled(&pickled)
    }

    /// Gives the ints of every rank to all: one list for each rank of the group. All ranks give as many.
    #[pyo3(signature = (values, *, label = "all_gather", timeout = None))]
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let values = Values::read(values)?;
        let call = argument::call(label, timeout)?;
        let mut all = Vec::new();
        self.waiting(py, ("gather", label), |group| {
            group.all_gather(values.as_ref(), &mut all, call)
        })?;
        let width = values.as_ref().len();
        let rows = (0..self.ranks.len()).map(|rank| &all[rank * width..][..width]);
        PyList::new(py, rows)
    }

    /// Gives the bytes of every rank to all, in the order of the group. Lengths may differ.
    #[pyo3(signature = (data, *, label = "all_gather_bytes", timeout = None))]
    fn all_gather_bytes<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let data = bytes(data)?;
        let call = argument::call(label, timeout)?;
        let all = self.waiting(py, ("gather bytes", label), |group| {
            group.all_gather_bytes(&data, call)
        })?;
        PyList::new(py, all.iter().map(|bytes| PyBytes::new(py, bytes)))
    }

    /// Gives an object of every rank to all, pickled, in the order of the group; each gets its own back.
    #[pyo3(signature = (object, *, label = "all_gather_object", timeout = None))]
    fn all_gather_object<'py>(
        &self,
        py: Python<'py>,
        object: Bound<'py, PyAny>,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let all = self.all_gather_bytes(py, &pickled(&object)?, label, timeout)?;
        for (rank, pickled) in all.clone().iter().enumerate() {
            let theirs = if rank == self.me {
                object.clone()
            } else {
                unpickled(pickled.cast()?)?
            };
            all.set_item(rank, theirs)?;
        }
        Ok(all)
    }

    /// Waits until all ranks have come here.
    #[pyo3(signature = (*, label = "barrier", timeout = None))]
    fn barrier(&self, py: Python<'_>, label: &str, timeout: Option<f64>) -> PyResult<()> {
        let call = argument::call(label, timeout)?;
        self.waiting(py, ("barrier", label), |group| group.barrier(call))
    }

    /// Sends bytes to another rank of the group: a message off the round counter, which only that rank receives.
    #[pyo3(signature = (data, to, *, label = "message", timeout = None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: usize,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let data = bytes(data)?;
        let call = argument::call(label, timeout)?;
        self.waiting(py, ("send", label), |group| group.send(to, &data, call))
    }

    /// Receives the next message of another rank of the group.
    #[pyo3(signature = (source, *, label = "message", timeout = None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        source: usize,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let call = argument::call(label, timeout)?;
        let mut data = Vec::new();
        self.waiting(py, ("recv", label), |group| {
            group.recv(source, &mut data, call)
        })?;
        Ok(PyBytes::new(py, &data))
    }

    /// What each rank contributed to a slot of the last reduction; None where that is not known.
    ///
    /// Known until this rank's next call, for up to 64 slots; not in a group that spans several hosts.
    fn contributions(&self, py: Python<'_>, slot: usize) -> PyResult<Option<Vec<i64>>> {
        self.look(py, "contributions", |group| group.contributions(slot))
    }

    /// Leaves in good order; the other ranks still get every result this one took part in. The world does this too.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        without_lock(py, || self.member.leave("close"))
    }

    fn __repr__(&self) -> String {
        let Self { me, ranks, .. } = self;
        format!(
            "<rankpact.Group {}: rank {me} of {}>",
            self.member.name,
            ranks.len()
        )
    }
}

/// A reduction that has been started. Dropping it withdraws nothing.
#[pyclass(module = "rankpact", frozen)]
#[derive(Debug)]
pub(crate) struct Started {
    member: Arc<Member<rankpact_collective::Group>>,
    started: rankpact_collective::Started,
    label: String,
}

#[pymethods]
impl Started {
    /// Its round.
    #[getter]
    fn round(&self) -> u64 {
        self.started.round()
    }

    /// Waits for the list of results; reductions that were started before are settled first.
    #[pyo3(signature = (*, timeout = None))]
    fn finish<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyList>> {
        let label = self.label.as_str();
        let call = argument::call(label, timeout)?;
        let values = without_lock(py, || {
            self.member.call(("all_reduce", label), |group| {
                group.finish(&self.started, call)
            })
        })?;
        PyList::new(py, values)
    }

    fn __repr__(&self) -> String {
        format!(
            "<rankpact.Started round {} of {}>",
            self.round(),
            self.member.name
        )
    }
}

/// Protocol 5, which every interpreter has that this package runs on.
fn pickled<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let pickle = object.py().import("pickle")?;
    pickle.getattr("dumps")?.call1((object, 5))
}

fn unpickled<'py>(pickled: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyAny>> {
    let pickle = pickled.py().import("pickle")?;
    pickle.getattr("loads")?.call1((pickled,))
}
