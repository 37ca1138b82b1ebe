//! Tick agreement for a hierarchical KV cache.

#![forbid(unsafe_code)]

mod agreement;

pub use agreement::Ranks;
