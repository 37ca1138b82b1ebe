//! Errors as Python raises them: a class of `rankpact.errors` for each kind, with the fields of the Rust error.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rankpact_collective::{Described, Error, ErrorKind, Silent};

/// The exception that says what `error` says.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    raise_saying(py, error, &error.to_string())
}

/// As [`raise`], in other words.
pub(crate) fn raise_saying(py: Python<'_>, error: &Error, text: &str) -> PyErr {
    exception(py, error, text).map_or_else(|failed| failed, PyErr::from_value)
}

fn exception<'py>(py: Python<'py>, error: &Error, text: &str) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("rankpact.errors")?;
    let fields = PyDict::new(py);
    fields.set_item("group", &error.group)?;
    fields.set_item("round", error.round)?;
    fields.set_item("operation", &error.operation)?;
    fields.set_item("label", &error.label)?;
    fields.set_item("rank", error.rank)?;
    let ranks = |ranks: &[usize]| fields.set_item("ranks", PyTuple::new(py, ranks)?);
    let silent = |silent: &Silent| {
        let parts = (silent.rank, silent.last_round, silent.last_label.as_str());
        module.getattr("Silent")?.call1(parts)
    };
    let described = |call: &Described| {
        let parts = (call.rank, call.operation.as_str(), call.shape.as_str());
        let (rank, operation, shape) = parts;
        module
            .getattr("Described")?
            .call1((rank, operation, shape, call.label.as_str()))
    };
    let class = match &*error.kind {
        ErrorKind::Timeout { by, after, missing } => {
            ranks(&missing.iter().map(|silent| silent.rank).collect::<Vec<_>>())?;
            fields.set_item("by", by)?;
            fields.set_item("after", after.as_secs_f64())?;
            let missing = missing.iter().map(silent).collect::<PyResult<Vec<_>>>()?;
            fields.set_item("missing", PyTuple::new(py, missing)?)?;
            "Timeout"
        }
        ErrorKind::Unreached {
            rank,
            after,
            from,
            to,
            trouble,
        } => {
            ranks(&[*rank])?;
            fields.set_item("by", error.rank)?;
            fields.set_item("after", after.as_secs_f64())?;
            fields.set_item("source", from)?;
            fields.set_item("target", to)?;
            fields.set_item("trouble", trouble)?;
            "Unreached"
        }
        ErrorKind::PeerDied { rank, last_round } => {
            ranks(&[*rank])?;
            fields.set_item("last_round", last_round)?;
            "PeerDied"
        }
        ErrorKind::PeerClosed { rank, last_round } => {
            ranks(&[*rank])?;
            fields.set_item("last_round", last_round)?;
            "PeerClosed"
        }
        ErrorKind::Mismatch { one, other } => {
            ranks(&[one.rank, other.rank])?;
            let calls = [described(one)?, described(other)?];
            fields.set_item("calls", PyTuple::new(py, calls)?)?;
            "Mismatch"
        }
        ErrorKind::Poisoned { origin } => {
            let origin = exception(py, origin, &origin.to_string())?;
            fields.set_item("ranks", origin.getattr("ranks")?)?;
            fields.set_item("origin", origin)?;
            "Poisoned"
        }
        ErrorKind::Config { field, one, other } => {
            ranks(&[one.0, other.0])?;
            fields.set_item("field", field)?;
            fields.set_item("values", (&one.1, &other.1))?;
            "ConfigError"
        }
        ErrorKind::Aborted { rank, reason } => {
            ranks(&[*rank])?;
            fields.set_item("reason", reason)?;
            "Aborted"
        }
        ErrorKind::NoSpace { path, needed, free } => {
            fields.set_item("path", path)?;
            fields.set_item("needed", needed)?;
            fields.set_item("free", free)?;
            "NoSpace"
        }
        ErrorKind::Permission { path, owner } => {
            fields.set_item("path", path)?;
            fields.set_item("owner", owner)?;
            "Permission"
        }
        ErrorKind::Foreign { path, found } => {
            fields.set_item("path", path)?;
            fields.set_item("found", found)?;
            "Foreign"
        }
        ErrorKind::Overflow { slot } => {
            fields.set_item("slot", slot)?;
            "Overflow"
        }
        ErrorKind::Forked => "Forked",
        ErrorKind::Closed => "Closed",
        ErrorKind::Usage(_) => "UsageError",
        ErrorKind::Io(_) => "IoError",
        _ => "Error",
    };
    let class = module.getattr(class)?;
    class.call((text,), Some(&fields))
}
