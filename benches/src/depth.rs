//! How much of a bench is to be measured.

use clap::Args;

/// The words that all benches understand: nothing for a short turn, which shows that it runs, or `full`.
#[derive(Clone, Debug, Args)]
pub struct Depth {
    /// `full` measures everything and writes it to a folder of benches/results
    #[arg(value_name = "full", value_parser = ["full"])]
    word: Option<String>,
    /// What cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

impl Depth {
    /// Whether everything is to be measured.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.word.is_some()
    }

    /// One of two numbers.
    #[must_use]
    pub fn choose<T>(&self, short: T, full: T) -> T {
        if self.is_full() { full } else { short }
    }
}
