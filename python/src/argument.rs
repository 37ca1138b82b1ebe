//! What callers hand in: values, operations, labels and deadlines, bytes.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use rankpact_collective::{Call, Op, Ops};
use rankpact_shm::MAX_SLOTS;
use std::time::Duration;

/// The values of a call. Those of a row need no memory of their own.
pub(crate) enum Values {
    Row([i64; MAX_SLOTS], usize),
    Wide(Vec<i64>),
}

impl Values {
    /// So many zeros.
    pub(crate) fn zeros(count: usize) -> Self {
        if count <= MAX_SLOTS {
            Self::Row([0; MAX_SLOTS], count)
        } else {
            Self::Wide(vec![0; count])
        }
    }

    /// The integers of a list or tuple.
    #[inline]
    pub(crate) fn read(values: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(list) = values.cast::<PyList>() {
            return Self::read_each(list.len(), |at| list.get_item(at));
        }
        if let Ok(tuple) = values.cast::<PyTuple>() {
            return Self::read_each(tuple.len(), |at| tuple.get_item(at));
        }
        let name = values.get_type().name()?;
        let what = format!(
            "values are a list or tuple of ints, not {name}: all_reduce_() takes arrays and tensors"
        );
        Err(PyTypeError::new_err(what))
    }

    #[inline]
    fn read_each<'py>(
        count: usize,
        item: impl Fn(usize) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let mut values = Self::zeros(count);
        for (at, value) in values.as_mut().iter_mut().enumerate() {
            let item = item(at)?;
            *value = item.extract().map_err(|error| refused(&item, at, error))?;
        }
        Ok(values)
    }

    #[inline]
    pub(crate) fn as_ref(&self) -> &[i64] {
        match self {
            Self::Row(row, count) => &row[..*count],
            Self::Wide(values) => values,
        }
    }

    #[inline]
    pub(crate) fn as_mut(&mut self) -> &mut [i64] {
        match self {
            Self::Row(row, count) => &mut row[..*count],
            Self::Wide(values) => values,
        }
    }
}

/// Why the value at `at` is none.
#[cold]
fn refused(item: &Bound<'_, PyAny>, at: usize, error: PyErr) -> PyErr {
    let py = item.py();
    if error.is_instance_of::<PyOverflowError>(py) {
        return PyOverflowError::new_err(format!("values[{at}] does not fit 64 signed bits"));
    }
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    match item.get_type().name() {
        Ok(name) => PyTypeError::new_err(format!("values[{at}] is an int, not {name}")),
        Err(error) => error,
    }
}

/// One operation, or one for each slot.
pub(crate) enum Operations {
    All(Op),
    Each(Vec<Op>),
}

impl Operations {
    #[inline]
    pub(crate) fn read(op: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(name) = op.cast::<PyString>() {
            return operation(name).map(Self::All);
        }
        let each = |op: PyResult<Bound<'_, PyAny>>| operation(op?.cast::<PyString>()?);
        if op.is_instance_of::<PyList>() || op.is_instance_of::<PyTuple>() {
            return op
                .try_iter()?
                .map(each)
                .collect::<PyResult<_>>()
                .map(Self::Each);
        }
        let name = op.get_type().name()?;
        let what =
            format!("an operation is a string, or a list with one for each slot, not {name}");
        Err(PyTypeError::new_err(what))
    }

    #[inline]
    pub(crate) fn as_ops(&self) -> Ops<'_> {
        match self {
            Self::All(op) => Ops::All(*op),
            Self::Each(ops) => Ops::Each(ops),
        }
    }
}

#[inline]
fn operation(name: &Bound<'_, PyString>) -> PyResult<Op> {
    match name.to_str()? {
        "min" => Ok(Op::Min),
        "max" => Ok(Op::Max),
        "sum" => Ok(Op::Sum),
        "or" => Ok(Op::Or),
        "and" => Ok(Op::And),
        other => Err(PyValueError::new_err(format!(
            "`{other}` is no operation: min, max, sum, or, and"
        ))),
    }
}

/// The call site and deadline of a call; `timeout` is in seconds.
#[inline]
pub(crate) fn call(label: &str, timeout: Option<f64>) -> PyResult<Call<'_>> {
    let timeout = timeout.map(seconds).transpose()?;
    Ok(Call { label, timeout })
}

pub(crate) fn seconds(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout)
        .map_err(|_| PyValueError::new_err(format!("timeout={timeout}: seconds, none for ever")))
}

/// A copy of what is like bytes.
pub(crate) fn bytes(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    let buffer = PyBuffer::<u8>::get(data).map_err(|_| {
        let name = data.get_type().name();
        let name = name.map_or_else(|_| "this".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "data is bytes, or a contiguous buffer of bytes, not {name}"
        ))
    })?;
    buffer.to_vec(data.py())
}
