//! One rank: it makes the rounds of a case, times them, and checks every one.

use crate::case::{Case, Path, What};
use rankpact_benches::{Failure, Report, nanoseconds};
use rankpact_cache::{Counts, Digest, StorageCounts};
use rankpact_collective::{Group, Join, Op, Options, Relay, World};
use rankpact_shm::cpus;
use serde::{Deserialize, Serialize};
use std::thread;
use std::time::{Duration, Instant};

/// What a rank is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) cases: Vec<Case>,
    pub(crate) pinned: bool,
    /// For how long each case is measured.
    pub(crate) time: Duration,
}

const PACE: Duration = Duration::from_millis(5);
const MOST: u32 = 200_000;
/// A paced case needs more time for as many rounds.
const PATIENCE: u32 = 4;
/// Of the time for a case, what its second turn gets, in which rounds say where their time went.
const SECOND: u32 = 4;

/// The groups of one path.
struct Seats {
    path: Path,
    plain: Group,
    /// Says where the time of a round went, which itself costs some.
    timed: Group,
}

/// A pipeline of all ranks, and the way back from the last to the first.
struct Pipeline {
    there: Relay,
    back: Option<Relay>,
}

/// The part of one rank.
pub(crate) fn rank(orders: &Orders) -> Result<(), Failure> {
    let world = World::connect(Join::from_env()?)?;
    let mut seats: Vec<Seats> = Vec::new();
    let mut pipeline = None;
    for case in &orders.cases {
        if !seats.iter().any(|seats| seats.path == case.path) {
            seats.push(open(&world, case.path)?);
        }
        if case.what == What::Relay && pipeline.is_none() {
            pipeline = Some(Pipeline::of(&world)?);
        }
    }
    if orders.pinned {
        cpus::pin(world.rank() % cpus::allowed()?.len().max(1))?;
    }
    for case in &orders.cases {
        let Some(seats) = seats.iter_mut().find(|seats| seats.path == case.path) else {
            continue;
        };
        let time = orders.time * if case.paced { PATIENCE } else { 1 };
        let mut report = turn(*case, &mut seats.plain, pipeline.as_mut(), time)?;
        if case.what.is_round() {
            let timed = turn(*case, &mut seats.timed, None, time / SECOND)?;
            (report.skew_ns, report.transport_ns) = (timed.skew_ns, timed.transport_ns);
        }
        report.say()?;
    }
    Ok(())
}

fn open(world: &World, path: Path) -> Result<Seats, Failure> {
    let group = |name: &str, timing| -> Result<Group, Failure> {
        let options = Options {
            path: path.choice(),
            timeout: Duration::from_secs(60),
            timing,
            ..world.options().clone()
        };
        let mut group = world.everybody_with(&format!("{name} {path:?}"), options)?;
        group.ready()?;
        match group.path() {
            Some((kind, _)) if kind == path.kind() => Ok(group),
            other => Err(format!("the path was to be {:?}: {other:?}", path.kind()).into()),
        }
    };
    Ok(Seats {
        path,
        plain: group("plain", false)?,
        timed: group("timed", true)?,
    })
}

impl Pipeline {
    fn of(world: &World) -> Result<Self, Failure> {
        let (me, last) = (world.rank(), world.size() - 1);
        let mut there = world.relay("there", me.checked_sub(1), (me < last).then_some(me + 1))?;
        there.ready()?;
        let ends = me == 0 || me == last;
        let back = || world.relay("back", (me == 0).then_some(last), (me == last).then_some(0));
        let mut back = ends.then(back).transpose()?;
        back.as_mut().map(Relay::ready).transpose()?;
        Ok(Self { there, back })
    }

    /// Once around.
    fn around(&mut self, values: &mut Vec<i64>) -> Result<(), Failure> {
        // Whoever has nothing yet is not the first stage.
        match (&mut self.back, values.is_empty()) {
            (Some(back), false) => {
                self.there.post(values, "bench")?;
                back.next(values, "bench")?;
            }
            (Some(back), true) => {
                self.there.next(values, "bench")?;
                back.post(values, "bench")?;
            }
            (None, _) => self.there.next(values, "bench")?,
        }
        Ok(())
    }
}

/// Measures a case for about `time`.
fn turn(
    case: Case,
    group: &mut Group,
    mut pipeline: Option<&mut Pipeline>,
    time: Duration,
) -> Result<Report, Failure> {
    let mut work = Work::new(case, group)?;
    // So many rounds take a part of the time; all ranks make as many as the slowest can.
    let mut fitting = |work: &mut Work, group: &mut Group, tried: u32, part: Duration| {
        let before = Instant::now();
        for _ in 0..tried {
            work.round(group, pipeline.as_deref_mut())?;
        }
        let mut slowest = [i64::try_from((before.elapsed() / tried).as_nanos())?];
        group.all_reduce(Op::Max, &mut slowest, "rounds")?;
        let rounds = part.as_nanos() / u128::from(slowest[0].max(1).unsigned_abs());
        Ok::<_, Failure>(u32::try_from(rounds)?.clamp(3, MOST))
    };
    // The first ones have things to set up.
    let warm = fitting(&mut work, group, 3, time / 10)?;
    let rounds = fitting(&mut work, group, warm, time)? as usize;
    let (mut skew_ns, mut transport_ns) = (Vec::new(), Vec::new());
    group.barrier("start")?;
    let report = Report::of(case.to_string(), group.rank(), rounds, || {
        let time = work.round(group, pipeline.as_deref_mut())?;
        if let Some(timing) = group.timing() {
            skew_ns.push(nanoseconds(timing.skew));
            transport_ns.push(nanoseconds(timing.transport));
        }
        Ok::<_, Failure>(time)
    })?;
    Ok(Report {
        skew_ns,
        transport_ns,
        ..report
    })
}

/// So many rounds differ in their values; a row that a table has kept from an earlier round is never like the right one,
/// for its buffers are a power of two.
const VARIANTS: usize = 3;

/// What this rank gives to a round and what must come of it, as slots and as bytes.
struct Variant {
    mine: Vec<i64>,
    mine_bytes: Vec<u8>,
    all: Vec<i64>,
    all_bytes: Vec<u8>,
}

/// A case, with what its rounds work on.
struct Work {
    case: Case,
    me: usize,
    size: usize,
    variants: [Variant; VARIANTS],
    ops: Vec<Op>,
    round: usize,
    values: Vec<i64>,
    gathered: Vec<i64>,
    bytes: Vec<u8>,
    gathered_bytes: Vec<Vec<u8>>,
}

/// What a rank contributes. Sums of 64 full values still fit.
fn row(case: Case, rank: usize, variant: usize) -> Vec<i64> {
    let count = |slot: usize| variant + rank + slot % 7;
    if case.what == What::Product {
        let storage = StorageCounts {
            hit: count(2),
            ack: count(3),
            backup: count(4),
            release: count(5),
            extra: Vec::new(),
        };
        let counts = Counts {
            write: count(0),
            load: count(1),
            storage: Some(storage),
        };
        // Digests have 42 bits.
        let digest = (0..100).fold(Digest::default(), |digest, node| {
            digest.reclaimed(node, 0, 1)
        });
        return counts.row(digest);
    }
    let base = if case.full { 1 << 56 } else { 0 };
    (0..case.width)
        .map(|slot| base + count(slot) as i64)
        .collect()
}

impl Variant {
    fn new(case: Case, me: usize, size: usize, variant: usize) -> Result<Self, Failure> {
        let rows = || (0..size).map(|rank| row(case, rank, variant));
        let first = || row(case, 0, variant);
        let all = match case.what {
            What::Gather | What::GatherBytes => rows().flatten().collect(),
            What::Broadcast | What::Message | What::Relay | What::Barrier => first(),
            what => {
                let mut all: Vec<i128> = first().into_iter().map(i128::from).collect();
                for row in rows().skip(1) {
                    for (slot, value) in row.into_iter().enumerate() {
                        all[slot] = what.reduction(slot).fold(all[slot], value);
                    }
                }
                all.into_iter()
                    .map(i64::try_from)
                    .collect::<Result<_, _>>()?
            }
        };
        let mine = row(case, me, variant);
        let bytes = |values: &[i64]| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        Ok(Self {
            mine_bytes: bytes(&mine),
            all_bytes: bytes(&all),
            mine,
            all,
        })
    }
}

impl Work {
    fn new(case: Case, group: &Group) -> Result<Self, Failure> {
        let (me, size) = (group.rank(), group.size());
        let [a, b, c] = [0, 1, 2].map(|variant| Variant::new(case, me, size, variant));
        Ok(Self {
            case,
            me,
            size,
            variants: [a?, b?, c?],
            ops: (0..case.width)
                .map(|slot| case.what.reduction(slot))
                .collect(),
            round: 0,
            values: Vec::new(),
            gathered: Vec::new(),
            bytes: Vec::new(),
            gathered_bytes: Vec::new(),
        })
    }

    /// One round; returns its time.
    fn round(
        &mut self,
        group: &mut Group,
        pipeline: Option<&mut Pipeline>,
    ) -> Result<Duration, Failure> {
        self.round += 1;
        let variant = &self.variants[self.round % VARIANTS];
        // What replaces a rank's own must not be right before.
        self.values.clone_from(&variant.mine);
        if self.me == 0 {
            self.bytes.clone_from(&variant.mine_bytes);
        } else if self.case.what == What::Relay {
            self.values.clear();
        }
        if self.case.paced {
            thread::sleep(PACE);
        }
        let before = Instant::now();
        self.call(group, pipeline)?;
        let time = before.elapsed();
        if !self.is_right() {
            let Self {
                case, me, round, ..
            } = self;
            return Err(format!("{case}: a wrong value in round {round} of rank {me}").into());
        }
        Ok(match self.case.what {
            // There and back.
            What::Message => time / 2,
            // Once around.
            What::Relay => time / self.size as u32,
            _ => time,
        })
    }

    #[inline]
    fn call(&mut self, group: &mut Group, pipeline: Option<&mut Pipeline>) -> Result<(), Failure> {
        let variant = &self.variants[self.round % VARIANTS];
        match self.case.what {
            What::Each => group.all_reduce(&self.ops, &mut self.values, "bench")?,
            What::Split => {
                let started = group.start_all_reduce(Op::Min, &self.values, "bench")?;
                self.values = group.finish(&started, "bench")?;
            }
            What::Gather => group.all_gather(&variant.mine, &mut self.gathered, "bench")?,
            What::GatherBytes => {
                self.gathered_bytes = group.all_gather_bytes(&variant.mine_bytes, "bench")?;
            }
            What::Broadcast => group.broadcast(0, &mut self.bytes, "bench")?,
            What::Barrier => group.barrier("bench")?,
            What::Message if self.me == 0 => {
                group.send(1, &self.bytes, "bench")?;
                group.recv(1, &mut self.bytes, "bench")?;
            }
            What::Message => {
                group.recv(0, &mut self.bytes, "bench")?;
                group.send(0, &self.bytes, "bench")?;
            }
            What::Relay => {
                let pipeline = pipeline.ok_or("there is a pipeline")?;
                pipeline.around(&mut self.values)?;
            }
            _ => group.all_reduce(self.ops[0], &mut self.values, "bench")?,
        }
        Ok(())
    }

    /// Whether the round came to what it must.
    fn is_right(&self) -> bool {
        let variant = &self.variants[self.round % VARIANTS];
        match self.case.what {
            What::Gather => self.gathered == variant.all,
            What::GatherBytes => {
                let parts = self.gathered_bytes.iter().map(Vec::as_slice);
                parts.eq(variant.all_bytes.chunks(8 * self.case.width))
            }
            What::Broadcast | What::Message => self.bytes == variant.all_bytes,
            What::Barrier => true,
            _ => self.values == variant.all,
        }
    }
}
