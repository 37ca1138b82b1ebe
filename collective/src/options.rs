//! How a rank's groups behave: what all ranks must agree on, and what each may choose for itself.

use rankpact_shm::{Geometry, Ladder, Storage, Table, cpus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How the data of a group is to travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// Through shared memory if every rank can, or every rank of a host with those of its host; else over TCP.
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

/// What carries the data of a group between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// TCP connections of our own.
    #[default]
    Tcp,
    /// The MPI that has started the ranks; only where this crate is built with feature `mpi`. It starts when the world is
    /// joined, once in the life of a process, and ends with the last group: that waits for the other ranks, at most
    /// for the timeout of the world, or 2 s where one is known as dead.
    Mpi,
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Mpi => "mpi",
        })
    }
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Tcp, Self::Mpi]
            .into_iter()
            .find(|choice| choice.to_string() == text)
            .ok_or_else(|| format!("`{text}` is no engine: tcp or mpi"))
    }
}

/// How a rank waits for its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Spin if every waiting thread of the job on this host can have a CPU, then yield, then sleep.
    #[default]
    Auto,
    /// Never leave the CPU.
    Spin,
    /// Never sleep, but yield.
    Yield,
    /// Sleep at once.
    Park,
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

/// A question to the program that every wait asks, about every 50 ms and in the thread that waits: why this rank should go
/// on no longer. A reason ends the job as [`World::abort`](crate::World::abort) does, and so the wait.
///
/// For programs whose signals are only looked after between two steps, such as interpreters. It may block for a moment. A
/// reason that was given once must be given again until the call has returned.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt(pub fn() -> Option<String>);

impl Interrupt {
    /// The reason, if there is something to ask and one is given.
    pub(crate) fn reason(this: Option<Self>) -> Option<String> {
        this.and_then(|Self(ask)| ask())
    }
}

impl PartialEq for Interrupt {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for Interrupt {}

/// How many ranks of the job wait on which CPUs: those of this host, and what they may use together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowd {
    pub(crate) processes: usize,
    pub(crate) cpus: usize,
}

impl Crowd {
    /// All ranks are threads of this process.
    pub(crate) fn threads() -> Self {
        Self {
            processes: 1,
            cpus: cpus::available(),
        }
    }

    /// This rank, whose place is `mine`, and all of `places` on the same host.
    pub(crate) fn of(mine: &Spot, places: &[Spot]) -> Self {
        let here = || places.iter().filter(|spot| spot.host == mine.host);
        // Ranks that are pinned apart do not share: together they have the CPUs of all.
        let cpus: BTreeSet<usize> = here().flat_map(|spot| &spot.cpus).copied().collect();
        let quota = cpus::quota().map_or(usize::MAX, cpus::Quota::whole);
        Self {
            processes: here().count().max(1),
            cpus: cpus.len().min(quota).max(1),
        }
    }
}

/// Where a rank runs, as all are told when they join. Only waits depend on it: it proves nothing, and nothing that ranks
/// agree on may follow from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spot {
    /// The same for all processes that share a kernel.
    host: String,
    cpus: Vec<usize>,
}

impl Spot {
    pub(crate) fn here() -> Self {
        Self {
            host: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            cpus: cpus::allowed().unwrap_or_default(),
        }
    }
}

/// The settings of a world and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The deadline of joining, and of every call that has none of its own. Must be equal on all ranks.
    pub timeout: Duration,
    /// How data travels. Must be equal on all ranks.
    pub path: PathChoice,
    /// What carries data between hosts, for groups that span several. Must be equal on all ranks, and `Mpi` is for all
    /// groups of a world or for none.
    pub engine: EngineChoice,
    /// Rounds in flight: 1, 2, 4 or 8. Must be equal on all ranks.
    pub depth: usize,
    /// How this rank waits. The three below change what that means, where given.
    pub waiting: Waiting,
    /// For how long a wait spins.
    pub spin: Option<Duration>,
    /// For how long it then yields, before it sleeps.
    pub yields: Option<Duration>,
    /// How often a wait looks after its peers, asleep or not: 1 to 50 ms, and what lies outside is taken for the nearer
    /// of the two. A dead peer is told after that time.
    pub slice: Option<Duration>,
    /// The folder of the segments, for pods whose containers share a volume but not `/dev/shm`.
    pub folder: PathBuf,
    /// Whether rounds measure skew and transport ([`crate::Group::timing`]).
    pub timing: bool,
    /// What waits ask the program; nothing if nobody is to be asked.
    pub interrupt: Option<Interrupt>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(300),
            path: PathChoice::default(),
            engine: EngineChoice::default(),
            depth: 4,
            waiting: Waiting::default(),
            spin: None,
            yields: None,
            slice: None,
            folder: PathBuf::from("/dev/shm"),
            timing: false,
            interrupt: None,
        }
    }
}

impl Options {
    /// The table of a group of `ranks`; none for numbers that no table has.
    pub(crate) fn geometry(&self, ranks: usize) -> Option<Geometry> {
        Geometry::new(1, self.depth)?;
        // A table takes at most 64 KiB: many ranks have fewer rounds in flight.
        [self.depth, 4, 2]
            .into_iter()
            .filter(|depth| *depth <= self.depth)
            .find_map(|depth| Geometry::new(ranks, depth))
    }

    /// How a rank waits among so many.
    pub(crate) fn ladder(&self, crowd: Crowd) -> Ladder {
        let ladder = match self.waiting {
            Waiting::Auto => Ladder::auto(crowd.processes, crowd.cpus),
            Waiting::Spin => Ladder::spinning(),
            Waiting::Yield => Ladder::yielding(),
            Waiting::Park => Ladder::parking(),
        };
        Ladder {
            spin: self.spin.unwrap_or(ladder.spin),
            yields: self.yields.unwrap_or(ladder.yields),
            slice: self
                .slice
                .unwrap_or(ladder.slice)
                .clamp(Duration::from_millis(1), Ladder::SLICE),
            ..ladder
        }
    }

    /// The seat of `me` at a table.
    pub(crate) fn seat(&self, storage: Arc<Storage>, me: usize, ladder: Ladder) -> Table {
        let table = Table::new(storage, me, ladder);
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
            field("between hosts", &self.engine),
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

    fn spot(host: &str, cpus: &[usize]) -> Spot {
        Spot {
            host: host.to_owned(),
            cpus: cpus.to_vec(),
        }
    }

    #[test]
    fn ranks_of_one_host_count_with_all_their_cpus() {
        let apart = [spot("a", &[0]), spot("a", &[1]), spot("b", &[0, 1])];
        let crowd = Crowd::of(&apart[0], &apart);
        assert_eq!(crowd.processes, 2);
        assert_eq!(crowd.cpus, 2.min(cpus::available()));
        let together = [spot("a", &[0]), spot("a", &[0])];
        let crowd = Crowd::of(&together[0], &together);
        assert_eq!((crowd.processes, crowd.cpus), (2, 1));
        // What cannot be found out is a crowd.
        let crowd = Crowd::of(&spot("", &[]), &[spot("", &[]), spot("", &[])]);
        assert_eq!((crowd.processes, crowd.cpus), (2, 1));
    }

    #[test]
    fn budgets_replace_those_of_the_strategy_and_slices_stay_short() {
        let crowd = Crowd {
            processes: 4,
            cpus: 2,
        };
        let options = Options::default();
        assert_eq!(options.ladder(crowd), Ladder::auto(4, 2));
        let options = Options {
            waiting: Waiting::Spin,
            spin: Some(Duration::from_micros(70)),
            yields: Some(Duration::from_micros(80)),
            slice: Some(Duration::from_secs(1)),
            ..options
        };
        let ladder = options.ladder(crowd);
        assert_eq!(ladder.spin_among(100), Duration::from_micros(70));
        assert_eq!(ladder.yields, Duration::from_micros(80));
        assert_eq!(ladder.slice, Duration::from_millis(50));
        let options = Options {
            slice: Some(Duration::ZERO),
            ..options
        };
        assert_eq!(options.ladder(crowd).slice, Duration::from_millis(1));
    }
}
