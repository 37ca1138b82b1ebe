//! What the cache is told at its start; all of it must be the same on every rank.

use std::time::Duration;

use crate::error::Error;
use crate::policy::Policy;
use crate::retry::Pacing;

/// Where the deadline of a prefetch is agreed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Agreement {
    /// Once a tick for all live prefetches; polls are silent.
    #[default]
    Tick,
    /// In each poll, as it used to be; for comparison only.
    Poll,
}

/// Sizes, policy and limits. Start from [`Config::new`] and change what differs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Tokens of one page.
    pub page_tokens: usize,
    /// Bytes of one page.
    pub page_bytes: usize,
    /// Pages of the host pool.
    pub host_pages: usize,
    /// Pages of the device.
    pub device_pages: usize,
    /// Slots of each extra pool, in the order of the row.
    pub extra_pools: Vec<usize>,
    /// How long requests wait for their prefetch.
    pub policy: Policy,
    /// Where the deadline is agreed.
    pub agreement: Agreement,
    /// Fewer tokens than this are not worth a transfer.
    pub threshold_tokens: usize,
    /// No further prefetch is issued while this many pages are asked of storage.
    pub prefetch_pages: usize,
    /// When a prefetch that came to nothing is tried again.
    pub retry: Pacing,
    /// How long to wait for items that all ranks have agreed to consume.
    pub drain_timeout: Duration,
    /// Whether the digest covers the live table. Off only to show what happens then.
    #[doc(hidden)]
    pub fold: bool,
}

impl Config {
    /// A configuration with the usual limits: policy timeout, 256 tokens at least, half the host pool at once.
    #[must_use]
    pub fn new(
        page_tokens: usize,
        page_bytes: usize,
        host_pages: usize,
        device_pages: usize,
    ) -> Self {
        Self {
            page_tokens,
            page_bytes,
            host_pages,
            device_pages,
            extra_pools: Vec::new(),
            policy: Policy::default(),
            agreement: Agreement::default(),
            threshold_tokens: 256,
            prefetch_pages: host_pages / 2,
            retry: Pacing::default(),
            drain_timeout: Duration::from_secs(300),
            fold: true,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.page_tokens == 0 || self.page_bytes == 0 {
            return Err(Error::Config(
                "a page needs at least one token and one byte".into(),
            ));
        }
        Ok(())
    }

    /// What this many pages are in tokens.
    pub(crate) fn tokens(&self, pages: usize) -> u64 {
        (pages as u64).saturating_mul(self.page_tokens as u64)
    }
}
