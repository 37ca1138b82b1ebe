//! Pages that storage refuses: one notice for a kind of trouble, not one for each page.

use std::io;
use std::sync::Once;

/// What a worker has told of its storage.
#[derive(Debug)]
pub(crate) struct Trouble(Once);

impl Trouble {
    pub(crate) const fn new() -> Self {
        Self(Once::new())
    }

    /// Tells of the first page that could not be `done`; counters and the ledger know of all.
    pub(crate) fn tell(&self, key: u64, error: &io::Error, done: &str) {
        self.0.call_once(|| {
            tracing::warn!(key, %error, "a page could not be {done}; no more is said of pages like it");
        });
    }
}
