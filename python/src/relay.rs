//! Relays: the calls of `rankpact.Relay`.

use crate::argument::{self, Values};
use crate::member::Member;
use crate::wait::without_lock;
use crate::world::World;
use pyo3::prelude::*;
use rankpact_collective::{Error, Pending};
use std::sync::Arc;

/// One stage's place in a pipeline: it takes vectors from the stage before it and hands them on to the stage after it.
///
/// The first stage decides: it calls post(). Every later stage gets exactly these vectors, in this order, by next(), which
/// hands a copy on before it returns. Whatever ends the relay on one stage ends it on all, and names its origin.
#[pyclass(module = "rankpact", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct Relay {
    member: Arc<Member<rankpact_collective::Relay>>,
    _world: Py<World>,
}

impl Relay {
    pub(crate) fn new(member: Arc<Member<rankpact_collective::Relay>>, world: Py<World>) -> Self {
        Self {
            member,
            _world: world,
        }
    }

    fn waiting<T: Send>(
        &self,
        py: Python<'_>,
        names: (&str, &str),
        body: impl FnOnce(&mut rankpact_collective::Relay) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        without_lock(py, || self.member.call(names, body))
    }
}

#[pymethods]
impl Relay {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.member.name
    }

    /// Waits until both neighbours have come; the first call does this by itself.
    fn ready(&self, py: Python<'_>) -> PyResult<()> {
        self.waiting(py, ("open", ""), rankpact_collective::Relay::ready)
    }

    /// Hands a copy of a list of ints to the next stage, without waiting for it while the work list has room.
    #[pyo3(signature = (values, *, label = "vector", timeout = None))]
    fn post(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        label: &str,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let values = Values::read(values)?;
        let call = argument::call(label, timeout)?;
        self.waiting(py, ("post", label), |relay| {
            relay.post(values.as_ref(), call)
        })
    }

    /// Receives the next vector of the first stage, and hands a copy on if there is a next stage.
    #[pyo3(signature = (*, label = "vector", timeout = None))]
    fn next(&self, py: Python<'_>, label: &str, timeout: Option<f64>) -> PyResult<Vec<i64>> {
        let call = argument::call(label, timeout)?;
        let mut values = Vec::new();
        self.waiting(py, ("next", label), |relay| relay.next(&mut values, call))?;
        Ok(values)
    }

    /// Forgets what the next stage has taken, without waiting; how many vectors and bytes are left. For every tick.
    fn settle(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let settled = self.waiting(py, ("settle", ""), rankpact_collective::Relay::settle);
        settled.map(|Pending { vectors, bytes }| (vectors, bytes))
    }

    /// Waits until the next stage has taken everything.
    #[pyo3(signature = (*, label = "end", timeout = None))]
    fn finish(&self, py: Python<'_>, label: &str, timeout: Option<f64>) -> PyResult<()> {
        let call = argument::call(label, timeout)?;
        self.waiting(py, ("finish", label), |relay| relay.finish(call))
    }

    /// Leaves in good order; the neighbours still get what this stage has handed on. The world does this too.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        without_lock(py, || self.member.leave("close"))
    }

    fn __repr__(&self) -> String {
        format!("<rankpact.Relay {}>", self.member.name)
    }
}
