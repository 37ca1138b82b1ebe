//! How a rank's groups behave: what all ranks must agree on, and what each may choose for itself.

use rankpact_shm::{Geometry, Ladder, Storage, Table};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How the data of a group is to travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// Through shared memory if every rank can, else over TCP.
    #[default]
    Auto,
    /// Through shared memory, or not at all.
    Table,
    /// Over TCP; no segment is made.
    Tcp,
}

impl fmt::Display for PathChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Table => "table",
            Self::Tcp => "tcp",
        })
    }
}

impl FromStr for PathChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Auto, Self::Table, Self::Tcp]
            .into_iter()
            .find(|choice| choice.to_string() == text)
            .ok_or_else(|| format!("`{text}` is no path: auto, table or tcp"))
    }
}

/// How a rank waits for its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Spin if every rank of the group can have a CPU, then yield, then sleep.
    #[default]
    Auto,
    /// Never leave the CPU.
    Spin,
    /// Never sleep, but yield.
    Yield,
    /// Sleep at once.
    Park,
}

impl Waiting {
    /// The ladder of a group of `ranks` on this machine. CPUs are those of this process: affinity and quota count.
    pub(crate) fn ladder(self, ranks: usize) -> Ladder {
        match self {
            Self::Auto => Ladder::auto(ranks, cpus()),
            Self::Spin => Ladder::spinning(),
            Self::Yield => Ladder::yielding(),
            Self::Park => Ladder::parking(),
        }
    }
}

impl FromStr for Waiting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "spin" => Ok(Self::Spin),
            "yield" => Ok(Self::Yield),
            "park" => Ok(Self::Park),
            _ => Err(format!(
                "`{text}` is no way of waiting: auto, spin, yield or park"
            )),
        }
    }
}

/// CPUs that this process may really use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The settings of a world and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The deadline of joining, and of every call that has none of its own. Must be equal on all ranks.
    pub timeout: Duration,
    /// How data travels. Must be equal on all ranks.
    pub path: PathChoice,
    /// Rounds in flight: 1, 2, 4 or 8. Must be equal on all ranks.
    pub depth: usize,
    /// How this rank waits.
    pub waiting: Waiting,
    /// The folder of the segments, for pods whose containers share a volume but not `/dev/shm`.
    pub folder: PathBuf,
    /// Whether rounds measure skew and transport ([`crate::Group::timing`]).
    pub timing: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(300),
            path: PathChoice::default(),
            depth: 4,
            waiting: Waiting::default(),
            folder: PathBuf::from("/dev/shm"),
            timing: false,
        }
    }
}

impl Options {
    /// The table of a group of `ranks`; none for numbers that no table has.
    pub(crate) fn geometry(&self, ranks: usize) -> Option<Geometry> {
        let wanted = Geometry::new(ranks, self.depth)?;
        // A table takes at most 64 KiB.
        let fits = ranks <= 32 || self.depth <= 2;
        if fits {
            Some(wanted)
        } else {
            Geometry::new(ranks, 2)
        }
    }

    /// The seat of `me` among `ranks` at a table.
    pub(crate) fn seat(&self, storage: Arc<Storage>, me: usize, ranks: usize) -> Table {
        let table = Table::new(storage, me, self.waiting.ladder(ranks));
        if self.timing {
            table.with_timing()
        } else {
            table
        }
    }

    /// The fields that all ranks must share, by name.
    pub(crate) fn agreement(&self, size: usize) -> Vec<(String, String)> {
        let field = |name: &str, value: &dyn fmt::Display| (name.to_owned(), value.to_string());
        vec![
            field("version", &env!("CARGO_PKG_VERSION")),
            field("layout version", &rankpact_shm::LAYOUT_VERSION),
            field("world size", &size),
            field("slots", &rankpact_shm::MAX_SLOTS),
            field("timeout", &format_args!("{} s", self.timeout.as_secs_f64())),
            field("path", &self.path),
            field("rounds in flight", &self.depth),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_another_layout_of_the_table_are_told_apart() {
        let fields = Options::default().agreement(2);
        let layout = rankpact_shm::LAYOUT_VERSION.to_string();
        assert!(
            fields.contains(&("layout version".to_owned(), layout)),
            "{fields:?}"
        );
    }
}
