//! The umbrella error: one value, one line a tired person can act on.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Why a call failed, with everything needed to find the cause: group, round, operation, label, this rank.
///
/// Ranks are world ranks. Through a table the error of a failed round is the same on every rank: its kind and its ranks
/// come from the rank that ended the round. Over TCP, where ranks share no word, each tells what it has seen or been told;
/// a rank that has taken a value which another gave up on is told at its next call. Of several hosts, each is as one table,
/// and between them it is as over TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// Name of the group or relay; `world` while joining.
    pub group: String,
    /// Round of the group in which the call failed, or number of the message among those that go the same way between
    /// two ranks; 0 outside of both.
    pub round: u64,
    /// What this rank was doing: `min`, `max`, `broadcast`, `barrier`, `send`, `recv`, `post`, `next`, `join`, ...
    pub operation: String,
    /// The caller's label; empty outside of rounds.
    pub label: String,
    /// This rank.
    pub rank: usize,
    /// What went wrong.
    pub kind: Box<ErrorKind>,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The deadline passed and some ranks had not arrived.
    Timeout {
        /// The rank whose deadline passed.
        by: usize,
        /// How long that rank waited.
        after: Duration,
        /// Who was missing then.
        missing: Vec<Silent>,
    },
    /// A rank could not be reached over the network before the deadline.
    Unreached {
        /// The rank that was sought.
        rank: usize,
        /// For how long.
        after: Duration,
        /// The address of this host that the last attempt came from, where it got one.
        from: Option<String>,
        /// Where it went.
        to: String,
        /// Why it failed.
        trouble: String,
    },
    /// A rank died: the kernel released its lock or reset its connection.
    PeerDied {
        /// The dead rank.
        rank: usize,
        /// The last round it took part in.
        last_round: u64,
    },
    /// A rank left in good order while others still needed it.
    PeerClosed {
        /// The rank that left.
        rank: usize,
        /// The last round it took part in.
        last_round: u64,
    },
    /// Two ranks made different calls in the same round.
    Mismatch {
        /// The call of the rank that saw it.
        one: Box<Described>,
        /// The call of the other rank.
        other: Box<Described>,
    },
    /// The group, pair or relay failed earlier; nothing more can be done with it.
    Poisoned {
        /// The failure that ended it.
        origin: Error,
    },
    /// Two ranks were started with different settings.
    Config {
        /// The setting.
        field: String,
        /// What the lower rank has.
        one: (usize, String),
        /// What the higher rank has.
        other: (usize, String),
    },
    /// A rank aborted the job.
    Aborted {
        /// The rank that called abort.
        rank: usize,
        /// Its reason.
        reason: String,
    },
    /// The folder of the segments is full.
    NoSpace {
        /// Where the segment was to be.
        path: String,
        /// Bytes it needs.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The system refused access.
    Permission {
        /// What was to be opened.
        path: String,
        /// Who owns it, where that is known.
        owner: String,
    },
    /// What lies under the name is not ours.
    Foreign {
        /// What was to be opened.
        path: String,
        /// What was found.
        found: String,
    },
    /// The total of a slot does not fit 64 signed bits.
    Overflow {
        /// The slot.
        slot: usize,
    },
    /// The group belongs to the parent of this forked process.
    Forked,
    /// The group was closed by this rank.
    Closed,
    /// The caller did something that can never work.
    Usage(String),
    /// The system refused something, or what it delivered cannot be used.
    Io(String),
}

/// A rank that had not arrived when a deadline passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silent {
    /// The rank.
    pub rank: usize,
    /// The last round it took part in; 0 for none.
    pub last_round: u64,
    /// The label of that round; empty where it is not known.
    pub last_label: String,
}

/// One rank's side of a mismatch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// The rank.
    pub rank: usize,
    /// Its operation.
    pub operation: String,
    /// The width of its contribution in slots, its root, or the length of its message.
    pub shape: String,
    /// Its label.
    pub label: String,
}

impl Error {
    /// Whether a deadline passed, here or as the origin of a poisoned group.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(
            *self.root().kind,
            ErrorKind::Timeout { .. } | ErrorKind::Unreached { .. }
        )
    }

    /// Whether a rank died, here or as the origin of a poisoned group.
    #[must_use]
    pub fn is_peer_dead(&self) -> bool {
        matches!(*self.root().kind, ErrorKind::PeerDied { .. })
    }

    /// The failure that started it all: the origin of a poisoned group, else this error itself.
    #[must_use]
    pub fn root(&self) -> &Error {
        match &*self.kind {
            ErrorKind::Poisoned { origin } => origin.root(),
            _ => self,
        }
    }
}

impl ErrorKind {
    /// The system refused something.
    pub(crate) fn io(what: &str, error: impl fmt::Display) -> Self {
        Self::Io(format!("{what}: {error}"))
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            round,
            operation,
            label,
            rank,
            kind,
        } = self;
        write!(f, "group {group}, ")?;
        if *round > 0 {
            write!(f, "round {round}, ")?;
        }
        write!(f, "{operation}")?;
        if !label.is_empty() {
            write!(f, " `{label}`")?;
        }
        write!(f, ", rank {rank}: {kind}")
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { by, after, missing } => {
                write!(
                    f,
                    "rank {by} gave up after {:.1} s; missing: ",
                    after.as_secs_f64()
                )?;
                for (i, silent) in missing.iter().enumerate() {
                    write!(f, "{}{silent}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("; look at what these ranks are doing, or raise the timeout")
            }
            Self::Unreached {
                rank,
                after,
                from,
                to,
                trouble,
            } => write!(
                f,
                "rank {rank} not reached in {:.1} s, from {} to {to}: {trouble}; set RANKPACT_RENDEZVOUS or MASTER_ADDR to \
                 an address of its host that leads there, or RANKPACT_INTERFACE there to the interface that others reach",
                after.as_secs_f64(),
                from.as_deref().unwrap_or("no interface"),
            ),
            Self::PeerDied { rank, last_round } => {
                write!(
                    f,
                    "rank {rank} died (last round {last_round}); restart the job"
                )
            }
            Self::PeerClosed { rank, last_round } => {
                write!(
                    f,
                    "rank {rank} has left (last round {last_round}), but this rank made one call more"
                )
            }
            Self::Mismatch { one, other } => {
                write!(f, "ranks made different calls: {one}; {other}")
            }
            Self::Poisoned { origin } => write!(f, "it failed earlier: {origin}"),
            Self::Config { field, one, other } => write!(
                f,
                "setting `{field}` differs: rank {} has {}, rank {} has {}; give every rank the same",
                one.0, one.1, other.0, other.1
            ),
            Self::Aborted { rank, reason } => write!(f, "rank {rank} aborted: {reason}"),
            Self::NoSpace { path, needed, free } => write!(
                f,
                "no space for {path}: {needed} bytes needed, {free} free; enlarge it, set RANKPACT_SHM_DIR to another folder, or RANKPACT_PATH=tcp"
            ),
            Self::Permission { path, owner } => {
                write!(f, "no permission for {path} (owner {owner})")
            }
            Self::Foreign { path, found } => {
                write!(
                    f,
                    "{path} is not ours: {found}; remove it or choose another folder"
                )
            }
            Self::Overflow { slot } => write!(f, "the total of slot {slot} does not fit 64 bits"),
            Self::Forked => {
                f.write_str("not usable after fork: a child must connect by itself (use spawn)")
            }
            Self::Closed => f.write_str("the group is closed"),
            Self::Usage(what) | Self::Io(what) => f.write_str(what),
        }
    }
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (last round {}", self.rank, self.last_round)?;
        if !self.last_label.is_empty() {
            write!(f, " `{}`", self.last_label)?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} {} {} `{}`",
            self.rank, self.operation, self.shape, self.label
        )
    }
}
