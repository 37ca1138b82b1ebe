//! Segments, rows, rounds, parking and liveness.

/// Longest label in bytes.
pub const LABEL_BYTES: usize = 42;
