//! The ways of waiting, side by side: what a round costs in wall time and in CPU time, and how far `auto` is from the
//! best that can be chosen by hand.
//!
//! `cargo bench -p rankpact-benches --bench waiting -- [full]`; the short form only shows that it runs.
//!
//! Ranks are processes and wait on one table for each strategy. The strategies take turns, so that whatever else goes on
//! meets them all.

use comfy_table::{CellAlignment, Table as Printed, presets};
use nix::time::ClockId;
use rankpact_shm::{Geometry, Identity, Kind, Ladder, Segment, Table, cpus};
use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const STRATEGIES: [&str; 4] = ["spin", "yield", "park", "auto"];
const AUTO: usize = 3;
const LIMIT: Duration = Duration::from_secs(120);

/// How much to measure.
#[derive(Clone, Copy)]
struct Effort {
    turns: usize,
    rounds: usize,
}

impl Effort {
    fn of(full: bool) -> Self {
        if full {
            Self {
                turns: 15,
                rounds: 4000,
            }
        } else {
            Self {
                turns: 2,
                rounds: 200,
            }
        }
    }

    /// Ranks that never leave the CPU to those they wait for need a time slice of the scheduler for each hand-over.
    fn rounds(self, strategy: usize, ranks: usize) -> usize {
        let stuck = STRATEGIES[strategy] == "spin" && ranks > cpus::available();
        if stuck {
            self.rounds / 200 + 1
        } else {
            self.rounds
        }
    }
}

fn ladder(strategy: usize, ranks: usize) -> Ladder {
    match STRATEGIES[strategy] {
        "spin" => Ladder::spinning(),
        "yield" => Ladder::yielding(),
        "park" => Ladder::parking(),
        _ => Ladder::auto(ranks, cpus::available()),
    }
}

fn identity(strategy: usize, ranks: usize) -> Option<Identity> {
    Some(Identity {
        geometry: Geometry::new(ranks, 4)?,
        generation: strategy as u64,
        nonce: [1, 2],
    })
}

/// What one strategy has cost: the wall time of a round for each turn, and CPU time of all ranks for one round.
#[derive(Clone, Default)]
struct Cost {
    walls: Vec<Duration>,
    cpu: Duration,
    rounds: usize,
}

impl Cost {
    /// In microseconds.
    fn wall(&mut self) -> f64 {
        self.walls.sort_unstable();
        self.walls
            .get(self.walls.len() / 2)
            .map_or(0.0, |wall| wall.as_secs_f64() * 1e6)
    }
}

fn round(table: &mut Table, value: i64) -> Result<(), Box<dyn Error>> {
    let mut row = [value];
    Ok(table.all_reduce(Kind::Max, "round", &mut row, LIMIT)?)
}

/// The part of one rank. What rank 0 returns holds for all.
fn rank(mut tables: Vec<Table>, effort: Effort) -> Result<Vec<Cost>, Box<dyn Error>> {
    let cpu_time = || ClockId::CLOCK_PROCESS_CPUTIME_ID.now().map(Duration::from);
    let mut costs = vec![Cost::default(); STRATEGIES.len()];
    for _ in 0..effort.turns {
        for (strategy, table) in tables.iter_mut().enumerate() {
            let rounds = effort.rounds(strategy, table.ranks());
            for _ in 0..rounds / 20 + 1 {
                round(table, 0)?;
            }
            let (wall, cpu) = (Instant::now(), cpu_time()?);
            for _ in 0..rounds {
                round(table, 0)?;
            }
            let cpu = cpu_time()? - cpu;
            let cost = &mut costs[strategy];
            cost.walls.push(wall.elapsed() / u32::try_from(rounds)?);
            round(table, i64::try_from(cpu.as_nanos())?)?;
            let all = table.contributions(0).ok_or("a round has contributions")?;
            cost.cpu += Duration::from_nanos(all.into_iter().sum::<i64>().cast_unsigned());
            cost.rounds += rounds;
        }
    }
    Ok(costs)
}

fn seat(segment: Segment, me: usize, strategy: usize, ranks: usize) -> Table {
    let (storage, locks) = segment.into_parts();
    Table::new(storage, me, ladder(strategy, ranks)).with_liveness(Box::new(locks))
}

/// A process that is a rank: attaches to what rank 0 has made, and says so.
fn take_part(words: &[String]) -> Result<(), Box<dyn Error>> {
    let [folder, me, ranks, full] = words else {
        return Err("a rank has four words".into());
    };
    let (me, ranks): (usize, usize) = (me.parse()?, ranks.parse()?);
    let mut tables = Vec::new();
    for (strategy, name) in STRATEGIES.iter().enumerate() {
        let identity = identity(strategy, ranks).ok_or("too many ranks")?;
        let segment = Segment::attach(&Path::new(folder).join(name), &identity, me)?;
        tables.push(seat(segment, me, strategy, ranks));
    }
    println!("attached");
    rank(tables, Effort::of(full == "true")).map(drop)
}

/// Ends with its owner.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails only for one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure(ranks: usize, full: bool) -> Result<Vec<Cost>, Box<dyn Error>> {
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let mut segments = Vec::new();
    for (strategy, name) in STRATEGIES.iter().enumerate() {
        let identity = identity(strategy, ranks).ok_or("too many ranks")?;
        segments.push(Segment::create(&folder.path().join(name), &identity, 1, 0)?);
    }
    let mut peers = Vec::new();
    for me in 1..ranks {
        let child = Command::new(env::current_exe()?)
            .arg("rank")
            .arg(folder.path())
            .args([me.to_string(), ranks.to_string(), full.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut peer = Peer(child);
        let out = peer.0.stdout.take().ok_or("it is piped")?;
        BufReader::new(out).read_line(&mut String::new())?;
        peers.push(peer);
    }
    let tables = segments
        .into_iter()
        .enumerate()
        .map(|(strategy, segment)| seat(segment, 0, strategy, ranks))
        .collect();
    let costs = rank(tables, Effort::of(full))?;
    for mut peer in peers {
        if !peer.0.wait()?.success() {
            return Err("a rank failed".into());
        }
    }
    Ok(costs)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    if let Some((first, words)) = words.split_first()
        && first == "rank"
    {
        return take_part(words);
    }
    let full = words.iter().any(|word| word == "full");
    let mut table = Printed::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "ranks", "CPUs", "wait", "rounds", "wall us", "x best", "CPU us",
    ]);
    for ranks in [2, 4, 8] {
        let mut costs = measure(ranks, full)?;
        let walls: Vec<f64> = costs.iter_mut().map(Cost::wall).collect();
        let by_hand = walls[..AUTO].iter().copied().fold(f64::INFINITY, f64::min);
        for (strategy, cost) in costs.iter().enumerate() {
            let cpu = cost.cpu.as_secs_f64() * 1e6 / f64::from(u32::try_from(cost.rounds)?);
            table.add_row([
                ranks.to_string(),
                cpus::available().to_string(),
                STRATEGIES[strategy].to_owned(),
                cost.rounds.to_string(),
                format!("{:.2}", walls[strategy]),
                format!("{:.2}", walls[strategy] / by_hand),
                format!("{cpu:.2}"),
            ]);
        }
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    Ok(())
}
