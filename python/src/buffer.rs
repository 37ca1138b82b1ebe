//! Buffers that are reduced in place: numpy arrays, array.array, memoryviews, tensors in host memory.

use crate::argument::Values;
use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyMemoryView;

/// A writable, contiguous buffer. While this lives, its owner cannot resize it.
pub(crate) enum Elements {
    Long(PyBuffer<i64>),
    Int(PyBuffer<i32>),
    /// One byte each, 0 or 1.
    Bool(PyBuffer<u8>),
}

impl Elements {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = shared(object)?;
        if buffer.readonly() {
            return Err(PyValueError::new_err("the buffer is read-only"));
        }
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the buffer is not contiguous"));
        }
        // Not left to PyO3, which takes the other byte order for this machine's. After `=` all is native but the alignment.
        let format = match buffer.format().to_bytes() {
            [b'@' | b'=', format @ ..] | format => format,
        };
        let typed = match (format, buffer.item_size()) {
            (b"q" | b"l", 8) => buffer.into_typed().map(Self::Long),
            (b"i" | b"l", 4) => buffer.into_typed().map(Self::Int),
            (b"?", 1) => {
                let owner = buffer.obj(object.py()).unwrap_or(object);
                let bytes = PyMemoryView::from(owner)?.call_method1("cast", ("B",))?;
                PyBuffer::get(&bytes).map(Self::Bool)
            }
            (other, _) => {
                return Err(PyTypeError::new_err(format!(
                    "the elements of the buffer are `{}`, but int64, int32 or bool in the byte order of this machine are needed",
                    String::from_utf8_lossy(other)
                )));
            }
        };
        // What is left is that it is not aligned.
        typed.map_err(|error| PyValueError::new_err(error.value(object.py()).to_string()))
    }

    pub(crate) fn read(&self, py: Python<'_>) -> PyResult<Values> {
        match self {
            Self::Long(buffer) => {
                let mut values = Values::zeros(buffer.item_count());
                buffer.copy_to_slice(py, values.as_mut())?;
                Ok(values)
            }
            Self::Int(buffer) => widened(py, buffer),
            Self::Bool(buffer) => widened(py, buffer),
        }
    }

    /// Writes all `values`, or none if one does not fit: its slot.
    pub(crate) fn write(&self, py: Python<'_>, values: &[i64]) -> PyResult<Option<usize>> {
        let flag = |value| u8::try_from(value).ok().filter(|flag| *flag <= 1);
        match self {
            Self::Long(buffer) => buffer.copy_from_slice(py, values).map(|()| None),
            Self::Int(buffer) => narrow(py, buffer, values, |value| value.try_into().ok()),
            Self::Bool(buffer) => narrow(py, buffer, values, flag),
        }
    }
}

/// The class of torch's tensors, once one has been seen.
static TENSOR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The memory of `object`. Tensors have no buffer, but share theirs with an array.
fn shared(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let py = object.py();
    let is_tensor = TENSOR
        .get(py)
        .is_some_and(|class| object.get_type().is(class));
    if !is_tensor {
        let refusal = match PyUntypedBuffer::get(object) {
            Ok(buffer) => return Ok(buffer),
            Err(refusal) => refusal,
        };
        let tensors = py.import("rankpact._tensor")?;
        let class = tensors.getattr("class_of")?.call1((object, refusal))?;
        // The first one is as good as any later: this only saves the detour.
        TENSOR.get_or_init(py, || class.unbind());
    }
    let array = object.call_method0(intern!(py, "numpy"));
    let in_words = |refusal: PyErr| PyTypeError::new_err(refusal.value(py).to_string());
    PyUntypedBuffer::get(&array.map_err(in_words)?)
}

fn widened<T: Element + Into<i64>>(py: Python<'_>, buffer: &PyBuffer<T>) -> PyResult<Values> {
    let mut values = Values::zeros(buffer.item_count());
    for (value, element) in values.as_mut().iter_mut().zip(buffer.to_vec(py)?) {
        *value = element.into();
    }
    Ok(values)
}

fn narrow<T: Element>(
    py: Python<'_>,
    buffer: &PyBuffer<T>,
    values: &[i64],
    fit: impl Fn(i64) -> Option<T>,
) -> PyResult<Option<usize>> {
    let mut elements = Vec::with_capacity(values.len());
    for (slot, value) in values.iter().enumerate() {
        match fit(*value) {
            Some(element) => elements.push(element),
            None => return Ok(Some(slot)),
        }
    }
    buffer.copy_from_slice(py, &elements).map(|()| None)
}
