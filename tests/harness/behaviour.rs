//! The behaviours that every group must show, whatever its ranks are and whatever path they take.

use crate::values::{Range, Values, bytes, mix};
use rankpact_collective::{
    Call, Error, ErrorKind, Group, Op, Ops, Options, PathChoice, PathKind, Started, Timing,
};
use rankpact_shm::monotonic_ns;
use std::thread;
use std::time::Duration;

/// What was not as it should be.
pub type Checked<T = ()> = Result<T, String>;

/// What all ranks of a group do together, each checking what it gets.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// The behaviour, as a sentence.
    pub name: &'static str,
    /// The sizes of groups that must show it.
    pub sizes: &'static [usize],
    /// Whether the group measures its rounds.
    pub timing: bool,
    /// The part of one rank.
    pub run: fn(&mut Group) -> Checked,
}

/// The behaviour of that name.
#[must_use]
pub fn behaviour(name: &str) -> Behaviour {
    behaviours()
        .into_iter()
        .find(|behaviour| behaviour.name == name)
        .unwrap_or_else(|| panic!("no behaviour `{name}`"))
}

/// Runs `behaviour` with ranks that are threads of this process.
pub fn on_threads(behaviour: &Behaviour, size: usize, path: PathChoice) {
    let options = Options {
        path,
        timing: behaviour.timing,
        timeout: Duration::from_secs(30),
        ..Options::default()
    };
    let groups = Group::threads("threads", size, &options).expect("threads can always be ranks");
    let ranks: Vec<_> = groups
        .into_iter()
        .map(|mut group| {
            let run = behaviour.run;
            // Closes in its own thread: it waits a while for the others to leave as well.
            thread::spawn(move || run(&mut group))
        })
        .collect();
    let ended: Vec<_> = ranks.into_iter().map(thread::JoinHandle::join).collect();
    for (rank, ended) in ended.into_iter().enumerate() {
        if let Err(why) = ended.expect("no rank panics") {
            panic!("rank {rank} of {size}: {why}");
        }
    }
}

/// All of them.
#[must_use]
pub fn behaviours() -> Vec<Behaviour> {
    let plain = |name, sizes, run| Behaviour {
        name,
        sizes,
        timing: false,
        run,
    };
    vec![
        plain(
            "min and max are right at every width",
            &[2, 3, 4, 8],
            every_width,
        ),
        plain(
            "every operation is right at every width and an overflow fails nothing",
            &[2, 3, 4],
            every_operation,
        ),
        plain(
            "rounds in flight come to what their own rows do",
            &[2, 3, 4],
            in_flight,
        ),
        plain(
            "every rank gets the values and the bytes of all",
            &[2, 3, 8],
            gathers,
        ),
        plain(
            "the smallest and the largest integer survive in every slot",
            &[2, 3],
            extremes_in_every_slot,
        ),
        plain(
            "nobody leaves a barrier before the last has come",
            &[2, 3, 4, 8],
            barriers,
        ),
        plain(
            "every rank gets what any root broadcasts",
            &[2, 3, 8],
            broadcasts,
        ),
        plain(
            "mixed operations keep their order and their results",
            &[2, 4],
            mixed,
        ),
        plain(
            "every call is one round whatever path it takes",
            &[2, 3],
            counted,
        ),
        plain(
            "the contributions of the last reduction can be asked for",
            &[2, 4],
            contributed,
        ),
        Behaviour {
            timing: true,
            ..plain(
                "a late rank shows in the skew of those who waited",
                &[2, 3],
                timed,
            )
        },
        plain("without timing nothing is measured", &[2], untimed),
        plain(
            "slots are not reused before the slowest rank has read them",
            &[4],
            one_rank_lags,
        ),
        plain("a sleeping rank is woken by the last one", &[2], parked),
        plain(
            "a call has its own deadline and the late rank learns that it was missing",
            &[2, 3],
            own_deadline,
        ),
        plain("a wrong use costs nobody anything", &[2, 3], wrong_use),
        plain("after a close every call says closed", &[2, 3], closed),
        plain(
            "messages between two ranks leave the rounds alone",
            &[2, 4],
            messages,
        ),
    ]
}

const SMALL: Values = Values {
    salt: 0,
    range: Range::Small,
};
const FULL: Values = Values {
    salt: 1,
    range: Range::Full,
};
const MIXED: Values = Values {
    salt: 2,
    range: Range::Mixed,
};

fn reduce(group: &mut Group, op: Op, slots: usize, values: Values) -> Checked {
    reduce_at(group, "reduce", op, slots, values)
}

/// One reduction with the values of its round. A total that does not fit is an error, and no more than that.
pub(crate) fn reduce_at<'a>(
    group: &mut Group,
    label: &str,
    ops: impl Into<Ops<'a>>,
    slots: usize,
    values: Values,
) -> Checked {
    let (ops, round) = (ops.into(), group.round() + 1);
    let mut row = values.row(group.rank(), round, slots);
    let done = group.all_reduce(ops, &mut row, label);
    let row = done.map(|()| row);
    right(row, values.reduced(ops, group.size(), round, slots))
        .map_err(|why| format!("round {round}, {ops:?} of {slots} slots: {why}"))
}

/// Whether a reduction came to `wanted`: the totals, or the slot whose total does not fit.
fn right(got: Result<Vec<i64>, Error>, wanted: Result<Vec<i64>, usize>) -> Checked {
    match (got, wanted) {
        (Ok(got), Ok(wanted)) => match (0..wanted.len()).find(|slot| got[*slot] != wanted[*slot]) {
            None => Ok(()),
            Some(slot) => Err(format!(
                "slot {slot} is {}, not {}",
                got[slot], wanted[slot]
            )),
        },
        (Err(error), Err(slot)) if *error.kind == (ErrorKind::Overflow { slot }) => Ok(()),
        (Err(error), _) => Err(error.to_string()),
        (Ok(_), Err(slot)) => Err(format!("no overflow in slot {slot}")),
    }
}

fn broadcast(group: &mut Group, root: usize, len: usize) -> Checked {
    broadcast_at(group, "broadcast", root, len)
}

/// One broadcast with the bytes of its round.
pub(crate) fn broadcast_at(group: &mut Group, label: &str, root: usize, len: usize) -> Checked {
    let round = group.round() + 1;
    let wanted = bytes(root, round, len);
    // What the others bring is replaced, be it longer or shorter.
    let mut got = if group.rank() == root {
        wanted.clone()
    } else {
        vec![0xee; len / 2 + group.rank() * 40]
    };
    said(group.broadcast(root, &mut got, label))?;
    same(
        &format!("round {round}, {len} bytes from {root}"),
        &(got.len(), got == wanted),
        &(len, true),
    )
}

/// Every rank with every other, in both directions, between rounds.
fn messages(group: &mut Group) -> Checked {
    let (me, size) = (group.rank(), group.size());
    for length in [0, 8, 5000, 300_000] {
        for peer in (0..size).filter(|peer| *peer != me) {
            let sent = bytes(me, length, usize::try_from(length).unwrap_or(0));
            let mut got = vec![0xee; 9];
            // The lower one sends first, and more than it receives before.
            if me < peer {
                said(group.send(peer, &sent, "there"))?;
                said(group.send(peer, &sent, "there"))?;
                said(group.recv(peer, &mut got, "back"))?;
            } else {
                said(group.recv(peer, &mut got, "there"))?;
                said(group.recv(peer, &mut got, "there"))?;
                said(group.send(peer, &sent, "back"))?;
            }
            let wanted = bytes(peer, length, sent.len());
            same(
                &format!("{length} bytes of rank {peer}"),
                &(got == wanted),
                &true,
            )?;
        }
        reduce(group, Op::Min, 8, SMALL)?;
    }
    same("rounds", &group.round(), &4)
}

pub(crate) fn said<T>(result: Result<T, Error>) -> Checked<T> {
    result.map_err(|error| error.to_string())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, wanted: &T) -> Checked {
    if got == wanted {
        Ok(())
    } else {
        Err(format!("{what}: got {got:?}, not {wanted:?}"))
    }
}

fn every_width(group: &mut Group) -> Checked {
    for op in [Op::Min, Op::Max] {
        for slots in [0, 1, 7, 8, 9, 64, 1024, 65_536] {
            for values in [SMALL, FULL, MIXED] {
                // The widest one costs megabytes a round, and eight ranks share two cores.
                let rounds = if slots > 1024 { 1 } else { 3 };
                for _ in 0..rounds {
                    reduce(group, op, slots, values)?;
                }
            }
        }
    }
    Ok(())
}

fn extremes_in_every_slot(group: &mut Group) -> Checked {
    for width in [1, 7, 8, 9] {
        for slot in 0..width {
            for extreme in [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX] {
                for owner in 0..group.size() {
                    for op in [Op::Min, Op::Max] {
                        let mut row = vec![5; width];
                        if group.rank() == owner {
                            row[slot] = extreme;
                        }
                        said(group.all_reduce(op, &mut row, "extreme"))?;
                        let mut wanted = vec![5; width];
                        wanted[slot] = match op {
                            Op::Min => extreme.min(5),
                            _ => extreme.max(5),
                        };
                        same(
                            &format!("{op}, slot {slot} of {width}, {extreme} from {owner}"),
                            &row,
                            &wanted,
                        )?;
                    }
                }
            }
        }
    }
    Ok(())
}

const OPS: [Op; 5] = [Op::Min, Op::Max, Op::Sum, Op::Or, Op::And];

fn every_operation(group: &mut Group) -> Checked {
    // Below the half of what a slot can hold most sums fit, beyond it most do not.
    for values in [SMALL, FULL, MIXED] {
        for slots in [0, 1, 7, 8, 9, 64, 300, 10_000] {
            for op in OPS {
                reduce_at(group, "all", op, slots, values)?;
            }
            let each: Vec<Op> = (0..slots).map(|slot| OPS[slot % 5]).collect();
            reduce_at(group, "each", &each, slots, values)?;
        }
    }
    let wrong = group.all_reduce(&[Op::Min], &mut [1, 2], "each");
    match wrong {
        Err(error) if matches!(*error.kind, ErrorKind::Usage(_)) => Ok(()),
        other => Err(format!("one operation for two slots: {other:?}")),
    }
}

fn in_flight(group: &mut Group) -> Checked {
    let mut held: Vec<(Started, usize, u64)> = Vec::new();
    let each = [Op::Sum, Op::Min, Op::Or];
    for turn in 0..200_u64 {
        // The operations are drawn alike on all ranks, what is started and when it is finished by each for itself.
        let (shared, own) = (mix(turn), mix(turn << 8 | group.rank() as u64));
        let ops = ops_of(&each, shared);
        let slots = if shared % 6 == 5 {
            3
        } else {
            (shared >> 8) as usize % 9
        };
        if own % 3 == 0 {
            reduce_at(group, "flight", ops, slots, SMALL)?;
        } else {
            let round = group.round() + 1;
            let row = SMALL.row(group.rank(), round, slots);
            let started = said(group.start_all_reduce(ops, &row, "flight"))?;
            same("the round that was started", &started.round(), &round)?;
            if own % 3 == 1 {
                held.push((started, slots, shared));
            }
        }
        if own % 7 == 0 && !held.is_empty() {
            let one = held.remove((own >> 16) as usize % held.len());
            finished(group, &one, ops_of(&each, one.2))?;
        }
        if shared % 11 == 0 {
            // Wide rounds and barriers settle what is in flight.
            reduce(group, Op::Min, 20, FULL)?;
            said(group.barrier("flight"))?;
        }
    }
    for one in held {
        finished(group, &one, ops_of(&each, one.2))?;
    }
    if matches!(group.path(), Some((PathKind::Hierarchical, _))) {
        // Between hosts what was started moves only in calls: some rank may have started the last round and let it go.
        said(group.barrier("flight"))?;
    }
    Ok(())
}

fn ops_of(each: &[Op], drawn: u64) -> Ops<'_> {
    match drawn % 6 {
        5 => Ops::Each(each),
        op => Ops::All(OPS[op as usize]),
    }
}

fn finished(
    group: &mut Group,
    (started, slots, _): &(Started, usize, u64),
    ops: Ops<'_>,
) -> Checked {
    let got = group.finish(started, "flight");
    let round = started.round();
    right(got, SMALL.reduced(ops, group.size(), round, *slots))
        .map_err(|why| format!("round {round}, started and finished later: {why}"))
}

fn gathers(group: &mut Group) -> Checked {
    let mut all = vec![1, 2, 3];
    for slots in [0, 1, 7, 8, 9, 300, 5000] {
        let (size, round) = (group.size(), group.round() + 1);
        let row = FULL.row(group.rank(), round, slots);
        said(group.all_gather(&row, &mut all, "values"))?;
        let wanted: Vec<i64> = (0..size)
            .flat_map(|rank| FULL.row(rank, round, slots))
            .collect();
        same(
            &format!("the {slots} values of all"),
            &(all == wanted),
            &true,
        )?;
    }
    for len in [0, 1, 8, 71, 72, 73, 4096, 300_000] {
        // Lengths may differ, also between what rides in a row and what does not.
        let (size, round) = (group.size(), group.round() + 1);
        let of = |rank: usize| bytes(rank, round, len / (1 + rank % 3));
        let got = said(group.all_gather_bytes(&of(group.rank()), "bytes"))?;
        let wanted: Vec<_> = (0..size).map(of).collect();
        same(
            &format!("the bytes of all, up to {len}"),
            &(got == wanted),
            &true,
        )?;
    }
    Ok(())
}

fn barriers(group: &mut Group) -> Checked {
    for turn in 0..6 {
        // Another rank is the last one each time.
        let late = (group.rank() + turn) % group.size();
        thread::sleep(Duration::from_millis(late as u64 * 3));
        let came = monotonic_ns().cast_signed();
        said(group.barrier("barrier"))?;
        let left = monotonic_ns().cast_signed();
        let mut last = [came];
        said(group.all_reduce(Op::Max, &mut last, "last to come"))?;
        if left < last[0] {
            return Err(format!(
                "left {} ns before the last rank came",
                last[0] - left
            ));
        }
    }
    Ok(())
}

fn broadcasts(group: &mut Group) -> Checked {
    for root in 0..group.size() {
        for len in [0, 1, 31, 32, 33, 63, 64, 65, 4096, 1 << 20] {
            broadcast(group, root, len)?;
        }
    }
    Ok(())
}

fn mixed(group: &mut Group) -> Checked {
    for turn in 0..300_u64 {
        // Drawn alike on all ranks.
        let drawn = mix(turn ^ 77);
        let slots = [1, 3, 7, 8, 9, 40, 300][(drawn >> 8) as usize % 7];
        let op = [Op::Min, Op::Max][(drawn >> 16) as usize % 2];
        let values = [SMALL, FULL, MIXED][(drawn >> 24) as usize % 3];
        match drawn % 5 {
            0 => said(group.barrier("barrier"))?,
            1 => broadcast(
                group,
                (drawn >> 32) as usize % group.size(),
                [0, 5, 32, 33, 5000][(drawn >> 40) as usize % 5],
            )?,
            _ => reduce(group, op, slots, values)?,
        }
    }
    Ok(())
}

fn counted(group: &mut Group) -> Checked {
    said(group.ready())?;
    same("the round before the first call", &group.round(), &0)?;
    let mut wanted = 0;
    for _ in 0..3 {
        for slots in [0, 1, 8, 9, 1024] {
            wanted += 1;
            reduce(group, Op::Min, slots, FULL)?;
            same("the round after a reduction", &group.round(), &wanted)?;
        }
        for len in [0, 32, 33, 100_000] {
            wanted += 1;
            broadcast(group, 1, len)?;
            same("the round after a broadcast", &group.round(), &wanted)?;
        }
        wanted += 1;
        said(group.barrier("barrier"))?;
        same("the round after a barrier", &group.round(), &wanted)?;
    }
    Ok(())
}

fn contributed(group: &mut Group) -> Checked {
    said(group.ready())?;
    // Rows do not leave their host.
    let known = !matches!(group.path(), Some((PathKind::Hierarchical, _)));
    for slots in [1, 7, 8, 9, 64] {
        for values in [SMALL, FULL, MIXED] {
            let round = group.round() + 1;
            reduce(group, Op::Max, slots, values)?;
            for slot in 0..slots {
                let wanted = (0..group.size())
                    .map(|rank| values.of(rank, round, slot))
                    .collect();
                same(
                    &format!("the contributions to slot {slot} of {slots}"),
                    &group.contributions(slot),
                    &known.then_some(wanted),
                )?;
            }
            same(
                &format!("the contributions to slot {slots} of {slots}"),
                &group.contributions(slots),
                &None,
            )?;
        }
    }
    Ok(())
}

fn timed(group: &mut Group) -> Checked {
    const LATE: Duration = Duration::from_millis(60);
    for slots in [8, 1024] {
        let mut seen = Vec::new();
        // A busy machine may hold up any rank, so that another one is late: not each time.
        for _ in 0..4 {
            let mut row = vec![1; slots];
            said(group.barrier("together"))?;
            if group.rank() + 1 == group.size() {
                thread::sleep(LATE);
            }
            said(group.all_reduce(Op::Min, &mut row, "late"))?;
            seen.push(group.timing().ok_or("nothing was measured")?);
        }
        // Those who waited were held up by almost as much; the late rank by nobody that long.
        let waits = group.rank() + 1 < group.size();
        let alike = |timing: &Timing| (timing.skew > LATE / 2) == waits;
        same(
            &format!("whether any of {seen:?} tells if this rank waited, {slots} slots"),
            &seen.iter().any(alike),
            &true,
        )?;
    }
    Ok(())
}

fn untimed(group: &mut Group) -> Checked {
    reduce(group, Op::Min, 3, SMALL)?;
    same("the timing", &group.timing().is_none(), &true)
}

fn one_rank_lags(group: &mut Group) -> Checked {
    for turn in 0..400_u64 {
        reduce(group, Op::Min, if turn % 10 == 9 { 20 } else { 8 }, MIXED)?;
        if group.rank() == 3 && turn % 3 == 0 {
            thread::sleep(Duration::from_micros(mix(turn) % 2500));
        }
    }
    Ok(())
}

fn parked(group: &mut Group) -> Checked {
    for turn in 0..60_u64 {
        // Around the moment at which a waiting rank goes to sleep, and well past it.
        if (turn % 2 == 0) == (group.rank() == 0) {
            thread::sleep(Duration::from_micros(mix(turn) % 2000 * (1 + turn % 7)));
        }
        reduce(group, Op::Max, 4, SMALL)?;
    }
    Ok(())
}

fn own_deadline(group: &mut Group) -> Checked {
    // Ranks that a busy machine wakes one after another from the round before still take part in the next one.
    const SHORT: Duration = Duration::from_secs(1);
    reduce(group, Op::Min, 2, SMALL)?;
    let late = group.size() - 1;
    let mut row = vec![3, 4];
    let failed = if group.rank() == late {
        thread::sleep(SHORT * 5 / 2);
        group.all_reduce(Op::Min, &mut row, "patient")
    } else {
        group.all_reduce(Op::Min, &mut row, Call::within("patient", SHORT))
    };
    let Err(error) = failed else {
        return Err("a round completed without its last rank".to_owned());
    };
    let ErrorKind::Timeout { by, after, missing } = &*error.kind else {
        return Err(format!("no timeout: {error}"));
    };
    let missing: Vec<_> = missing.iter().map(|silent| silent.rank).collect();
    same("who is missing", &missing, &vec![group.ranks()[late]])?;
    same(
        "whether the late rank gave up",
        &(*by == group.ranks()[late]),
        &false,
    )?;
    same("whether it waited that long", &(*after >= SHORT), &true)?;
    same("the round", &error.round, &2)?;
    same("the row", &row, &vec![3, 4])?;
    match group.all_reduce(Op::Min, &mut row, "again") {
        Err(again) if matches!(&*again.kind, ErrorKind::Poisoned { origin } if *origin == error) => {
            Ok(())
        }
        other => Err(format!("the call after it: {other:?}")),
    }
}

fn wrong_use(group: &mut Group) -> Checked {
    let wrong = |what: &str, result: Result<(), Error>| match result {
        Err(error) if matches!(*error.kind, ErrorKind::Usage(_)) => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    };
    reduce(group, Op::Min, 2, SMALL)?;
    let size = group.size();
    for width in [1, 8, 9] {
        wrong(
            "no label",
            group.all_reduce(Op::Min, &mut vec![1; width], ""),
        )?;
        let long = "x".repeat(rankpact_shm::LABEL_BYTES + 1);
        wrong(
            "a long label",
            group.all_reduce(Op::Min, &mut vec![1; width], long.as_str()),
        )?;
    }
    wrong("no such root", group.broadcast(size, &mut vec![1], "root"))?;
    wrong("no label", group.barrier(""))?;
    reduce(group, Op::Max, 8, FULL)?;
    let longest = "y".repeat(rankpact_shm::LABEL_BYTES);
    said(group.all_reduce(Op::Min, &mut [1], longest.as_str()))?;
    // The labels of a group are interned in a table of fixed size: a full one is a wrong use, and no more than that.
    let table = matches!(
        group.path(),
        Some((PathKind::Table | PathKind::Hierarchical, _))
    );
    let mut refused = 0;
    for n in 0..80 {
        match group.all_reduce(Op::Min, &mut [n], format!("label {n}").as_str()) {
            Ok(()) => {}
            Err(error) if matches!(*error.kind, ErrorKind::Usage(_)) => refused += 1,
            Err(error) => return Err(error.to_string()),
        }
    }
    same("whether labels were refused", &(refused > 0), &table)?;
    reduce(group, Op::Min, 9, FULL)
}

fn closed(group: &mut Group) -> Checked {
    reduce(group, Op::Min, 2, SMALL)?;
    broadcast(group, 0, 100_000)?;
    group.close();
    for _ in 0..2 {
        match group.barrier("late") {
            Err(error) if *error.kind == ErrorKind::Closed => {}
            other => return Err(format!("a call after close: {other:?}")),
        }
    }
    group.close();
    Ok(())
}
