//! `rankpact._native`: worlds, groups and relays as Python sees them. What users import is the package `rankpact`.
//!
//! Every call that may wait gives the interpreter lock back; one round of co-located ranks keeps it for a spin of a few
//! microseconds first. Waits look after signals, as `wait.rs` tells.

#![deny(unsafe_code)]

mod argument;
mod buffer;
mod error;
mod group;
mod member;
mod notice;
mod relay;
mod wait;
mod world;

#[cfg(Py_GIL_DISABLED)]
compile_error!(
    "rankpact does not support free-threaded Python yet: build it for an interpreter with the interpreter lock"
);

/// The part of rankpact that is written in Rust.
#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::group::{Group, Started};
    #[pymodule_export]
    use crate::relay::Relay;
    #[pymodule_export]
    use crate::wait::finalize;
    #[pymodule_export]
    use crate::world::{World, connect};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::notice::to_logging();
        Ok(())
    }
}
