//! What is measured: one operation of a group, with so many slots, on one path.

use clap::ValueEnum;
use rankpact_collective::{Op, PathChoice, PathKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum What {
    Min,
    Max,
    Sum,
    Or,
    And,
    /// An operation for each slot.
    Each,
    /// A minimum that is started, then finished.
    Split,
    Gather,
    GatherBytes,
    Broadcast,
    Barrier,
    /// The row of the cache layer: six counts, a digest and its negative.
    Product,
    /// A message between two ranks, one way.
    Message,
    /// A vector from one stage to the next, one hop.
    Relay,
}

/// How the data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Path {
    Table,
    Tcp,
    /// Two hosts: a table on each, TCP between their leaders.
    Hosts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) path: Path,
    pub(crate) what: What,
    /// Slots; of bytes there are eight times as many.
    pub(crate) width: usize,
    /// The values need more than 56 bits.
    pub(crate) full: bool,
    /// A round every 5 ms, as a scheduler has them, instead of one after the other.
    pub(crate) paced: bool,
}

/// Which processes are the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) ranks: usize,
    /// Each rank keeps to one CPU; they take turns where there are more ranks.
    pub(crate) pinned: bool,
    pub(crate) hosts: bool,
}

impl What {
    const ALL: [Self; 12] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Or,
        Self::And,
        Self::Each,
        Self::Split,
        Self::Gather,
        Self::GatherBytes,
        Self::Broadcast,
        Self::Barrier,
        Self::Product,
    ];

    /// Whether rounds of that width exist.
    pub(crate) fn has(self, width: usize) -> bool {
        match self {
            Self::Split => width <= 8,
            // It has none, and is measured once.
            Self::Barrier => width == 1,
            Self::Product => width == 8,
            _ => true,
        }
    }

    /// How the ranks' values of a slot become one.
    pub(crate) fn reduction(self, slot: usize) -> Op {
        match self {
            Self::Max => Op::Max,
            Self::Sum => Op::Sum,
            Self::Or => Op::Or,
            Self::And => Op::And,
            Self::Each => [Op::Min, Op::Sum, Op::Or][slot % 3],
            _ => Op::Min,
        }
    }

    /// Whether it is a round, that is, waits for all ranks.
    pub(crate) fn is_round(self) -> bool {
        !matches!(self, Self::Message | Self::Relay)
    }
}

impl Path {
    pub(crate) fn choice(self) -> PathChoice {
        match self {
            Self::Table => PathChoice::Table,
            Self::Tcp => PathChoice::Tcp,
            Self::Hosts => PathChoice::Auto,
        }
    }

    /// What the group must say of itself.
    pub(crate) fn kind(self) -> PathKind {
        match self {
            Self::Table => PathKind::Table,
            Self::Tcp => PathKind::Tcp,
            Self::Hosts => PathKind::Hierarchical,
        }
    }
}

/// As on the command line.
fn name<T: ValueEnum>(value: &T) -> String {
    value
        .to_possible_value()
        .map_or(String::new(), |value| value.get_name().to_owned())
}

impl Case {
    /// A round of small values, one after the other.
    pub(crate) fn new(path: Path, what: What, width: usize) -> Self {
        Self {
            path,
            what,
            width,
            full: false,
            paced: false,
        }
    }

    fn full(self) -> Self {
        Self { full: true, ..self }
    }

    fn paced(self) -> Self {
        Self {
            paced: true,
            ..self
        }
    }

    /// Path, operation, width and pace.
    pub(crate) fn cells(&self) -> [String; 4] {
        [
            name(&self.path),
            name(&self.what),
            format!("{}{}", self.width, if self.full { " full" } else { "" }),
            if self.paced { "5 ms" } else { "" }.to_owned(),
        ]
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.cells().join(" ").trim_end())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pinned = if self.pinned { "pinned" } else { "not pinned" };
        let hosts = if self.hosts { ", on two hosts" } else { "" };
        write!(f, "{} ranks, {pinned}{hosts}", self.ranks)
    }
}

const WIDTHS: [usize; 7] = [1, 7, 8, 9, 64, 1024, 65536];

pub(crate) type Plan = Vec<(Setting, Vec<Case>)>;

fn existing(path: Path, whats: &[What], widths: &[usize]) -> Vec<Case> {
    let cases = whats.iter().flat_map(|what| {
        let widths = widths.iter().filter(|width| what.has(**width));
        widths.map(|width| Case::new(path, *what, *width))
    });
    cases.collect()
}

/// A little of everything.
pub(crate) fn few() -> Plan {
    let pair = Setting {
        ranks: 2,
        pinned: true,
        hosts: false,
    };
    let min = Case::new(Path::Table, What::Min, 8);
    let mut table = existing(Path::Table, &What::ALL, &[1, 8]);
    table.retain(|case| case.what == What::Min || case.width == 8 || case.what == What::Barrier);
    table.extend([min.full(), min.paced()]);
    table.extend(existing(
        Path::Tcp,
        &[What::Min, What::Message, What::Relay],
        &[8, 1024],
    ));
    let crowd = Setting {
        ranks: 4,
        pinned: false,
        ..pair
    };
    let crowded = vec![min, Case::new(Path::Tcp, What::Min, 1024)];
    let apart = Setting {
        hosts: true,
        ..crowd
    };
    let hosts = existing(Path::Hosts, &[What::Min, What::Broadcast], &[8]);
    vec![(pair, table), (crowd, crowded), (apart, hosts)]
}

/// Everything.
pub(crate) fn all() -> Plan {
    let mut plan = Plan::new();
    for ranks in [2, 4, 8, 16, 32, 64] {
        for pinned in [true, false] {
            let setting = Setting {
                ranks,
                pinned,
                hosts: false,
            };
            let few = ranks <= 8;
            let mut cases = Vec::new();
            // How it grows: on either path, with all widths that so many ranks can have in some milliseconds.
            if few || pinned {
                let widths = if few { &WIDTHS[..] } else { &[8, 1024] };
                cases.extend(existing(Path::Tcp, &[What::Min], widths));
            }
            let widths = &WIDTHS[..if few { 7 } else { 6 }];
            cases.extend(existing(Path::Table, &[What::Min], widths));
            cases.push(Case::new(Path::Table, What::Min, 8).full());
            cases.push(Case::new(Path::Table, What::Product, 8));
            if pinned {
                let others: Vec<_> = What::ALL
                    .into_iter()
                    .filter(|what| *what != What::Min)
                    .collect();
                let widths = if few { &WIDTHS[..] } else { &[1, 8, 1024] };
                cases.extend(existing(Path::Table, &others, widths));
                if few {
                    cases.push(Case::new(Path::Table, What::Sum, 8).full());
                    cases.push(Case::new(Path::Table, What::Gather, 8).full());
                    cases.extend(existing(Path::Tcp, &others, &[1, 8, 64, 1024]));
                    cases.extend(existing(Path::Tcp, &[What::Relay], &WIDTHS));
                }
                if ranks == 2 {
                    cases.extend(existing(Path::Tcp, &[What::Message], &WIDTHS));
                }
            }
            if few {
                let paced = existing(Path::Table, &[What::Min], &[1, 8, 64, 1024]);
                cases.extend(paced.into_iter().map(Case::paced));
                let paced = existing(Path::Tcp, &[What::Min], &[8, 1024]);
                cases.extend(paced.into_iter().map(Case::paced));
                cases.push(Case::new(Path::Table, What::Product, 8).paced());
            }
            // What comes twice by the lists above.
            let mut once = Vec::new();
            cases.retain(|case| {
                !once.contains(case) && {
                    once.push(*case);
                    true
                }
            });
            plan.push((setting, cases));
        }
    }
    let hosts = Setting {
        ranks: 4,
        pinned: false,
        hosts: true,
    };
    plan.push((hosts, existing(Path::Hosts, &What::ALL, &[1, 8, 64, 1024])));
    plan
}
