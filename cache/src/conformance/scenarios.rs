//! The behaviours of the tick, each with the rows that every rank contributes.

use rankpact_collective::{ErrorKind, Op};

use super::{Call, Checked, Ends, Scenario, Seat, same};
use crate::config::{Agreement, Config};
use crate::decision::Decision;
use crate::digest::Digest;
use crate::error::{Divergence, Error};
use crate::policy::Policy;
use crate::prefetch::{Handle, Wait};
use crate::row::{Counts, StorageCounts};
use crate::tick::Reductions;

/// All scenarios.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    [votes(), uneven_polls(), old_shape(), rows(), tables()]
        .into_iter()
        .flatten()
        .collect()
}

fn votes() -> Vec<Scenario> {
    let tick = |flags: [i64; 5]| [counts(&[0; 6], live(5)), vote(&flags)];
    let before = tick([0; 5]);
    let after = tick([1, 1, 1, 1, 0]);
    vec![
        Scenario {
            script: vec![vec![]],
            ..timeout(
                "first polls start waits and say nothing to anyone",
                |seat| first_polls(seat).map(drop),
            )
        },
        Scenario {
            script: vec![before.to_vec()],
            ..timeout("a tick votes once over all live prefetches", one_vote)
        },
        Scenario {
            script: vec![before.to_vec()],
            ..timeout(
                "polls stay blocked past the budget until a tick",
                blocked_past_the_budget,
            )
        },
        Scenario {
            script: vec![[before.clone(), after.clone()].concat()],
            ..timeout("the vote cuts what is overdue and nothing else", |seat| {
                cut(seat).map(drop)
            })
        },
        Scenario {
            script: vec![[before, after].concat()],
            ..timeout(
                "a cut request is retired by its next poll and not tried again",
                retired_by_polls,
            )
        },
        Scenario {
            script: vec![vec![counts(&[0; 6], 0)]],
            ..with_policy(
                "under best effort nobody votes",
                Policy::BestEffort,
                |seat| no_vote(seat, true),
            )
        },
        Scenario {
            script: vec![vec![counts(&[0; 6], 0)]],
            ..with_policy(
                "under wait complete nobody votes",
                Policy::WaitComplete,
                |seat| no_vote(seat, false),
            )
        },
        Scenario {
            script: vec![vec![counts(&[0; 6], 0)]],
            ..timeout("with an empty table nobody votes", empty_table)
        },
        Scenario {
            script: vec![vec![
                counts(&[0; 6], live(1)),
                vote(&[1]),
                counts(&[0; 6], live(1)),
                vote(&[1]),
            ]],
            ..timeout("a verdict marked again changes nothing", marked_again)
        },
    ]
}

fn uneven_polls() -> Vec<Scenario> {
    let agreed =
        |flags: [[i64; 2]; 2]| flags.map(|flags| vec![counts(&[0; 6], live(2)), vote(&flags)]);
    let then = |calls: [Vec<Call>; 2], last: [&[Call]; 2]| {
        calls
            .into_iter()
            .zip(last)
            .map(|(calls, last)| [calls, last.to_vec()].concat())
            .collect()
    };
    let left = Digest::default().folded([request(1)].iter()).value();
    let blind = || [counts(&[0; 6], 0), vote(&[1, 1])].to_vec();
    let unfolded = |name, body| {
        let mut scenario = timeout(name, body);
        scenario.config.fold = false;
        scenario
    };
    vec![
        Scenario {
            ranks: 2,
            script: vec![
                vec![counts(&[0; 6], live(1)), vote(&[1])],
                vec![counts(&[0; 6], live(1)), vote(&[0])],
            ],
            ..timeout(
                "a rank that has not started to wait learns the verdict of one that has",
                one_waits,
            )
        },
        Scenario {
            ranks: 2,
            script: agreed([[1, 1]; 2]).to_vec(),
            ..timeout("uneven polls before a verdict do no harm", uneven_before)
        },
        Scenario {
            ranks: 2,
            ends: Ends::Diverged,
            script: then(
                agreed([[1, 1]; 2]),
                [&[counts(&[0; 6], 0)], &[counts(&[0; 6], left)]],
            ),
            ..timeout(
                "uneven polls after a verdict raise on both ranks before a second vote",
                uneven_after,
            )
        },
        Scenario {
            ranks: 2,
            ends: Ends::Timeout,
            script: then(
                [blind(), blind()],
                [&[counts(&[0; 6], 0)], &[counts(&[0; 6], 0), vote(&[1])]],
            ),
            ..unfolded(
                "without the fold a rank waits alone in its vote",
                unfolded_alone,
            )
        },
        Scenario {
            ranks: 2,
            ends: Ends::Mismatch,
            script: then(
                [blind(), blind()],
                [
                    &[counts(&[0; 6], 0), counts(&[0; 6], 0)],
                    &[counts(&[0; 6], 0), vote(&[1])],
                ],
            ),
            ..unfolded(
                "without the fold a vote meets the next tick of the other rank",
                unfolded_mismatch,
            )
        },
    ]
}

fn old_shape() -> Vec<Scenario> {
    let mut scenario = timeout(
        "in the old shape each blocked poll is a vote and the tick has none",
        votes_in_polls,
    );
    scenario.config.agreement = Agreement::Poll;
    let poll = |flag| Call {
        op: Op::Max,
        label: "poll",
        row: vec![flag],
    };
    scenario.ranks = 2;
    scenario.script = vec![
        vec![poll(0), counts(&[0; 6], 0), poll(1), counts(&[0; 6], 0)],
        vec![poll(0), counts(&[0; 6], 0), poll(0), counts(&[0; 6], 0)],
    ];
    vec![scenario]
}

fn rows() -> Vec<Scenario> {
    let reclaimed = Digest::default().reclaimed(1, 0, 1).value();
    let width = |name, extra: Option<usize>| {
        let zeros = [0; 8];
        let zeros = &zeros[..extra.map_or(2, |extra| 6 + extra)];
        let mut one_write = zeros.to_vec();
        one_write[0] = 1;
        let mut scenario = timeout(name, reclaim_on_one_rank);
        scenario.ranks = 2;
        scenario.ends = Ends::Diverged;
        scenario.storage = extra.is_some();
        scenario.config.host_pages = 1;
        scenario.config.extra_pools = vec![4; extra.unwrap_or(0)];
        let mut before = vec![counts(&one_write, 0)];
        if scenario.storage {
            let mut one_backup = zeros.to_vec();
            one_backup[4] = 1;
            before.push(counts(&one_backup, 0));
        }
        scenario.script = [(zeros, 0), (&one_write, reclaimed)]
            .map(|(ready, digest)| [before.clone(), vec![counts(ready, digest)]].concat())
            .to_vec();
        scenario
    };
    let without_storage = |name, body, script| Scenario {
        storage: false,
        script,
        ..timeout(name, body)
    };
    let mut full = with_policy(
        "with storage and an extra pool the row has nine values",
        Policy::BestEffort,
        full_row,
    );
    full.ranks = 2;
    full.config.extra_pools = vec![8];
    full.script = vec![
        vec![
            counts(&[0, 0, 1, 0, 0, 0, 0], 0),
            counts(&[1, 0, 1, 7, 0, 0, 0], 0),
            counts(&[1, 0, 3, 4, 5, 6, 7], 0),
        ];
        2
    ];
    let (started, none) = ([0, 0], counts(&[0, 0], 0));
    vec![
        without_storage(
            "without storage the row has four values",
            row_without_storage,
            vec![vec![
                counts(&[1, 0], 0),
                counts(&started, 0),
                counts(&started, 0),
                counts(&[1, 2], 0),
            ]],
        ),
        full,
        width(
            "four values raise when one rank reclaims another page",
            None,
        ),
        width(
            "eight values raise when one rank reclaims another page",
            Some(0),
        ),
        width(
            "nine values raise when one rank reclaims another page",
            Some(1),
        ),
        width(
            "ten values raise when one rank reclaims another page",
            Some(2),
        ),
        Scenario {
            ranks: 2,
            ..without_storage(
                "the shorter leading run decides for all ranks",
                shorter_run,
                vec![
                    vec![none.clone(), none.clone(), none.clone(), counts(&[3, 0], 0)],
                    vec![none.clone(), none.clone(), none, counts(&[1, 0], 0)],
                ],
            )
        },
    ]
}

fn tables() -> Vec<Scenario> {
    let digest = |table: &[Handle]| Digest::default().folded(table.iter()).value();
    let raises = |name, body, tables: [Vec<Handle>; 2]| Scenario {
        ranks: 2,
        ends: Ends::Diverged,
        script: tables
            .map(|table| vec![counts(&[0; 6], digest(&table))])
            .to_vec(),
        ..timeout(name, body)
    };
    let tolerates = |name, body| Scenario {
        ranks: 2,
        script: vec![vec![counts(&[0; 6], 0)]; 2],
        ..with_policy(name, Policy::WaitComplete, body)
    };
    let mut consumed = raises(
        "a divergence consumes nothing",
        nothing_consumed,
        ORDER.map(|table| table()),
    );
    consumed.config.extra_pools = vec![4];
    for (rank, calls) in consumed.script.iter_mut().enumerate() {
        *calls = vec![counts(&[1, 0, 0, 0, 0, 0, 3], digest(&ORDER[rank]()))];
    }
    vec![
        raises(
            "tables in another order raise on every rank",
            |seat| raised(seat, ORDER),
            ORDER.map(|table| table()),
        ),
        raises(
            "tables with other attempts raise on every rank",
            |seat| raised(seat, ATTEMPT),
            ATTEMPT.map(|t| t()),
        ),
        raises(
            "an empty and a filled table raise on every rank",
            |seat| raised(seat, EMPTY),
            EMPTY.map(|t| t()),
        ),
        tolerates(
            "under wait complete the order of the table is free",
            |seat| tolerated(seat, ORDER),
        ),
        tolerates("under wait complete the attempts are free", |seat| {
            tolerated(seat, ATTEMPT)
        }),
        tolerates(
            "under wait complete a table may be empty on one rank",
            |seat| tolerated(seat, EMPTY),
        ),
        consumed,
    ]
}

/// The tables of two ranks.
type Tables = [fn() -> Vec<Handle>; 2];

const ORDER: Tables = [
    || vec![request(0), request(1)],
    || vec![request(1), request(0)],
];
const ATTEMPT: Tables = [|| vec![request(0)], || vec![Handle::new("r0", 1)]];
const EMPTY: Tables = [Vec::new, || vec![request(0)]];

fn timeout(name: &'static str, body: fn(&mut Seat<'_>) -> Checked) -> Scenario {
    with_policy(name, Policy::default(), body)
}

fn with_policy(name: &'static str, policy: Policy, body: fn(&mut Seat<'_>) -> Checked) -> Scenario {
    let config = Config {
        policy,
        ..Config::new(256, 64, 64, 64)
    };
    Scenario {
        name,
        ranks: 1,
        ends: Ends::Well,
        script: Vec::new(),
        config,
        storage: true,
        body,
    }
}

fn counts(ready: &[i64], digest: i64) -> Call {
    Call {
        op: Op::Min,
        label: "counts",
        row: [ready, &[digest, -digest]].concat(),
    }
}

fn vote(flags: &[i64]) -> Call {
    Call {
        op: Op::Max,
        label: "vote",
        row: flags.to_vec(),
    }
}

fn request(n: u64) -> Handle {
    Handle::new(format!("r{n}"), 0)
}

fn requests(count: u64) -> Vec<Handle> {
    (0..count).map(request).collect()
}

/// The digest with the first `count` requests live.
fn live(count: u64) -> i64 {
    Digest::default().folded(requests(count).iter()).value()
}

fn prefetch_all(seat: &mut Seat<'_>, handles: &[Handle]) -> Checked {
    handles.iter().try_for_each(|handle| {
        let key = handle
            .rid
            .bytes()
            .fold(0, |key, byte| key * 256 + u64::from(byte))
            * 16;
        seat.prefetch(handle, &[key, key + 1, key + 2, key + 3])
    })
}

fn first_polls(seat: &mut Seat<'_>) -> Checked<Vec<Handle>> {
    let mut handles = requests(5);
    prefetch_all(seat, &handles)?;
    handles.pop();
    same("the polls", &seat.poll(&handles), &vec![false; 4])?;
    let waits = seat.waits();
    same(
        "the started waits",
        &waits
            .iter()
            .filter(|wait| matches!(wait, Wait::Started(_)))
            .count(),
        &4,
    )?;
    same("the last wait", &waits.last(), &Some(&Wait::NotStarted))?;
    same(
        "the reductions",
        &seat.cache.reductions(),
        &Reductions { min: 0, max: 0 },
    )?;
    Ok(handles)
}

fn one_vote(seat: &mut Seat<'_>) -> Checked {
    first_polls(seat)?;
    let report = seat.tick()?;
    same(
        "the vote",
        &(report.voted, report.expired),
        &(true, Vec::new()),
    )?;
    same(
        "the reductions",
        &seat.cache.reductions(),
        &Reductions { min: 1, max: 1 },
    )?;
    seat.shut_down()
}

fn blocked_past_the_budget(seat: &mut Seat<'_>) -> Checked {
    let handles = first_polls(seat)?;
    seat.tick()?;
    seat.let_budgets_run_out();
    same("the polls", &seat.poll(&handles), &vec![false; 4])?;
    seat.shut_down()
}

fn cut(seat: &mut Seat<'_>) -> Checked<Vec<Handle>> {
    let handles = first_polls(seat)?;
    seat.tick()?;
    seat.let_budgets_run_out();
    same("the polls", &seat.poll(&handles), &vec![false; 4])?;
    same("the verdicts", &seat.tick()?.expired, &handles)?;
    let waits = seat.waits();
    same(
        "the cut waits",
        &waits.iter().filter(|wait| **wait == Wait::Expired).count(),
        &4,
    )?;
    same("the last wait", &waits.last(), &Some(&Wait::NotStarted))?;
    Ok(handles)
}

fn retired_by_polls(seat: &mut Seat<'_>) -> Checked {
    let handles = cut(seat)?;
    same("the polls", &seat.poll(&handles), &vec![true; 4])?;
    same("what is live", &seat.waits().len(), &1)?;
    let fired: usize = (0..20)
        .map(|_| seat.cache.due_retries(&requests(5)).len())
        .sum();
    same("the second tries", &fired, &0)?;
    let counters = *seat.cache.counters();
    same(
        "issued and revoked",
        &(counters.issued, counters.revoked),
        &(5, 4),
    )?;
    seat.shut_down()
}

fn no_vote(seat: &mut Seat<'_>, passes: bool) -> Checked {
    let handles = requests(3);
    prefetch_all(seat, &handles)?;
    same("the poll", &seat.poll(&handles[..1]), &vec![passes])?;
    seat.let_budgets_run_out();
    same("a vote", &seat.tick()?.voted, &false)?;
    seat.shut_down()
}

fn empty_table(seat: &mut Seat<'_>) -> Checked {
    same(
        "the poll of an unknown request",
        &seat.poll(&requests(1)),
        &vec![true],
    )?;
    same("a vote", &seat.tick()?.voted, &false)?;
    seat.shut_down()
}

fn marked_again(seat: &mut Seat<'_>) -> Checked {
    let handles = requests(1);
    prefetch_all(seat, &handles)?;
    seat.poll(&handles);
    seat.let_budgets_run_out();
    same("the verdicts", &seat.tick()?.expired, &handles)?;
    same(
        "the verdicts of the second vote",
        &seat.tick()?.expired,
        &Vec::new(),
    )?;
    seat.cache.mark_expired(&handles[0]);
    let expired = Decision::Expired { handle: request(0) };
    same(
        "the recorded verdicts",
        &seat
            .decisions()
            .iter()
            .filter(|seen| **seen == expired)
            .count(),
        &1,
    )?;
    same("the wait", &seat.waits(), &vec![Wait::Expired])?;
    seat.shut_down()
}

fn one_waits(seat: &mut Seat<'_>) -> Checked {
    let handles = requests(1);
    prefetch_all(seat, &handles)?;
    if seat.rank() == 0 {
        seat.poll(&handles);
        seat.let_budgets_run_out();
        same("the poll", &seat.poll(&handles), &vec![false])?;
    }
    same("the verdicts", &seat.tick()?.expired, &handles)?;
    same("the later poll", &seat.poll(&handles), &vec![true])?;
    seat.shut_down()
}

/// Two requests whose waits have started on both ranks and have run out.
fn two_overdue(seat: &mut Seat<'_>) -> Checked<Vec<Handle>> {
    let handles = requests(2);
    prefetch_all(seat, &handles)?;
    same("the first polls", &seat.poll(&handles), &vec![false; 2])?;
    seat.let_budgets_run_out();
    Ok(handles)
}

fn uneven_before(seat: &mut Seat<'_>) -> Checked {
    let handles = two_overdue(seat)?;
    let polled = 2 - seat.rank();
    same(
        "the uneven polls",
        &seat.poll(&handles[..polled]),
        &vec![false; polled],
    )?;
    same("the verdicts", &seat.tick()?.expired, &handles)?;
    same("the later polls", &seat.poll(&handles), &vec![true; 2])?;
    seat.shut_down()
}

/// Rank 0 retires both of two cut requests, rank 1 only the first.
fn retire_unevenly(seat: &mut Seat<'_>) -> Checked {
    let handles = two_overdue(seat)?;
    same("the verdicts", &seat.tick()?.expired, &handles)?;
    let polled = 2 - seat.rank();
    same(
        "the uneven polls",
        &seat.poll(&handles[..polled]),
        &vec![true; polled],
    )
}

fn uneven_after(seat: &mut Seat<'_>) -> Checked {
    retire_unevenly(seat)?;
    let divergence = diverged(seat)?;
    same("what is live", &divergence.live, &seat.rank())
}

fn unfolded_alone(seat: &mut Seat<'_>) -> Checked {
    retire_unevenly(seat)?;
    if seat.rank() == 0 {
        return same("a vote", &seat.tick()?.voted, &false);
    }
    match seat.tick_fails()? {
        Error::Agreement(error) if error.is_timeout() => Ok(()),
        other => Err(format!("no timeout: {other}")),
    }
}

fn unfolded_mismatch(seat: &mut Seat<'_>) -> Checked {
    retire_unevenly(seat)?;
    if seat.rank() == 0 {
        same("a vote", &seat.tick()?.voted, &false)?;
    }
    match seat.tick_fails()? {
        Error::Agreement(error) if matches!(*error.root().kind, ErrorKind::Mismatch { .. }) => {
            Ok(())
        }
        other => Err(format!("no mismatch: {other}")),
    }
}

fn votes_in_polls(seat: &mut Seat<'_>) -> Checked {
    let handles = requests(1);
    prefetch_all(seat, &handles)?;
    same("the first poll", &seat.poll_agreeing(&handles[0])?, &false)?;
    same("a vote", &seat.tick()?.voted, &false)?;
    if seat.rank() == 0 {
        seat.let_budgets_run_out();
    }
    same(
        "the poll past the budget",
        &seat.poll_agreeing(&handles[0])?,
        &true,
    )?;
    same("what is live", &seat.waits(), &Vec::new())?;
    seat.tick()?;
    same(
        "the reductions",
        &seat.cache.reductions(),
        &Reductions { min: 2, max: 2 },
    )?;
    seat.shut_down()
}

fn row_without_storage(seat: &mut Seat<'_>) -> Checked {
    let (a, b) = (requests(1), [request(1)]);
    seat.compute("a", &[1])?;
    seat.compute("b", &[2])?;
    same("the first copy", &seat.tick()?.drained.write, &1)?;
    seat.cache.evict_device(2);
    seat.device.hold();
    for (rid, pages) in [("c", [3]), ("d", [4])] {
        seat.compute(rid, &pages)?;
        same(
            "an unfinished copy",
            &seat.tick()?.drained,
            &Counts::default(),
        )?;
    }
    for (handle, page) in [(&a[0], 1), (&b[0], 2)] {
        let admission = seat.cache.admit(handle, &[page]).ok_or("no room")?;
        same("the loaded pages", &admission.loaded, &1)?;
    }
    seat.device.complete(&[0, 2, 3]);
    same(
        "the drained copies",
        &seat.tick()?.drained,
        &Counts {
            write: 1,
            load: 2,
            storage: None,
        },
    )?;
    same("what is left", &seat.cache.ready(), &Counts::default())?;
    seat.device.complete(&[1]);
    same("what came later", &seat.cache.ready().write, &1)
}

fn full_row(seat: &mut Seat<'_>) -> Checked {
    let ready = |hit, ack, backup, release, extra| Counts {
        storage: Some(StorageCounts {
            hit,
            ack,
            backup,
            release,
            extra: vec![extra],
        }),
        ..Counts::default()
    };
    seat.storage
        .put([10, 11, 12, 20, 21, 22, 23, 24, 25, 30, 40, 50]);
    seat.storage.open();
    // Cut before anything is known to have landed: all six pages are released once the seven acknowledgements came.
    let long = Handle::new("long", 0);
    seat.prefetch(&long, &[20, 21, 22, 23, 24, 25])?;
    seat.until_ready(&ready(1, 0, 0, 0, 0))?;
    seat.tick()?;
    same("the cut", &seat.poll(&[long]), &vec![true])?;
    seat.prefetch(&Handle::new("short", 0), &[10, 11, 12])?;
    for n in 0..5 {
        seat.compute(&format!("b{n}"), &[60 + n])?;
    }
    seat.until_ready(&ready(1, 7, 0, 0, 0))?;
    seat.tick()?;
    for page in [30, 40, 50] {
        seat.prefetch(&Handle::new(format!("h{page}"), 0), &[page])?;
    }
    seat.compute("last", &[70])?;
    for _ in 0..7 {
        let slot = seat.cache.take_extra(0).ok_or("the extra pool is empty")?;
        seat.cache.release_extra(0, slot);
    }
    let wanted = ready(3, 4, 5, 6, 7);
    seat.until_ready(&wanted)?;
    same("the extra pool before", &seat.cache.extra_available(0), &1)?;
    same(
        "what was drained",
        &seat.tick()?.drained,
        &Counts { write: 1, ..wanted },
    )?;
    same("the extra pool after", &seat.cache.extra_available(0), &8)?;
    same(
        "the pages in storage",
        &seat.cache.counters().backup_written,
        &5,
    )?;
    seat.shut_down()?;
    same("the ledger", &seat.cache.ledger().is_closed(), &true)
}

/// The host has one page; only rank 1 needs it twice.
fn reclaim_on_one_rank(seat: &mut Seat<'_>) -> Checked {
    seat.compute("a", &[1])?;
    seat.tick()?;
    if let Some(mut storage) = seat.cache.ready().storage {
        // The write-through holds the page until a tick has seen its end.
        seat.storage.open();
        storage.backup = 1;
        seat.until_ready(&Counts {
            storage: Some(storage),
            ..Counts::default()
        })?;
        seat.tick()?;
    }
    if seat.rank() == 1 {
        seat.compute("b", &[2])?;
    }
    diverged(seat)?;
    same(
        "the unconsumed copies",
        &seat.cache.ready().write,
        &seat.rank(),
    )
}

fn shorter_run(seat: &mut Seat<'_>) -> Checked {
    seat.device.hold();
    for (rid, page) in [("a", 1), ("b", 2), ("c", 3)] {
        seat.compute(rid, &[page])?;
        seat.tick()?;
    }
    // A run ends at the first copy that is not done.
    seat.device.complete(if seat.rank() == 0 {
        &[0, 1, 2]
    } else {
        &[0, 2]
    });
    same("the consumed copies", &seat.tick()?.drained.write, &1)?;
    same(
        "what is left",
        &seat.cache.ready().write,
        &(2 - 2 * seat.rank()),
    )
}

fn diverged(seat: &mut Seat<'_>) -> Checked<Divergence> {
    match seat.tick_fails()? {
        Error::Divergence(found) => {
            same("the own digest", &found.own, &seat.cache.digest().value())?;
            same(
                "whether the digests differ",
                &(found.lowest < found.highest),
                &true,
            )?;
            same("the rank", &found.rank, &seat.rank())?;
            // A path that cannot tell names nobody; one that can names the other.
            if !found.differing.is_empty() {
                same("the other rank", &found.differing, &vec![1 - seat.rank()])?;
            }
            Ok(*found)
        }
        other => Err(format!("no divergence: {other}")),
    }
}

fn raised(seat: &mut Seat<'_>, tables: Tables) -> Checked {
    let table = tables[seat.rank()]();
    prefetch_all(seat, &table)?;
    let divergence = diverged(seat)?;
    same("what is live", &divergence.live, &table.len())
}

fn tolerated(seat: &mut Seat<'_>, tables: Tables) -> Checked {
    let table = tables[seat.rank()]();
    prefetch_all(seat, &table)?;
    same("a vote", &seat.tick()?.voted, &false)
}

fn nothing_consumed(seat: &mut Seat<'_>) -> Checked {
    let table = ORDER[seat.rank()]();
    prefetch_all(seat, &table)?;
    seat.compute("a", &[1])?;
    for _ in 0..3 {
        let slot = seat.cache.take_extra(0).ok_or("the extra pool is empty")?;
        seat.cache.release_extra(0, slot);
    }
    diverged(seat)?;
    let left = StorageCounts {
        extra: vec![3],
        ..StorageCounts::default()
    };
    same(
        "what is left",
        &seat.cache.ready(),
        &Counts {
            write: 1,
            load: 0,
            storage: Some(left),
        },
    )?;
    same("the extra pool", &seat.cache.extra_available(0), &1)?;
    same("the decisions", &seat.decisions(), &Vec::new())
}
