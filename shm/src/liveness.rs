//! Whether a peer is alive.

/// Tells whether a rank of the group is alive.
pub trait Liveness: std::fmt::Debug + Send {
    /// Whether `rank` is alive now. Does not block.
    fn alive(&self, rank: usize) -> bool;
}
