//! Groups of ranks without processes: one rank alone, a script, threads.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::result_large_err,
    reason = "each test binary uses a part of it, and the error type is given"
)]

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rankpact_cache::Ranks;
use rankpact_cache::conformance::Call;
use rankpact_collective::{Described, Error, ErrorKind, Op, Silent};

fn error(group: &str, rank: usize, op: Op, label: &str, kind: ErrorKind) -> Error {
    Error {
        group: group.into(),
        round: 1,
        operation: op.to_string(),
        label: label.into(),
        rank,
        kind: Box::new(kind),
    }
}

fn described(rank: usize, op: Op, label: &str, row: &[i64]) -> Box<Described> {
    Box::new(Described {
        rank,
        operation: op.to_string(),
        shape: row.len().to_string(),
        label: label.into(),
    })
}

fn column(rows: &[Vec<i64>], slot: usize) -> Option<Vec<i64>> {
    rows.iter().map(|row| row.get(slot).copied()).collect()
}

fn fold(op: Op, rows: &[Vec<i64>], row: &mut [i64]) {
    for (slot, value) in row.iter_mut().enumerate() {
        *value = rows
            .iter()
            .map(|row| row[slot])
            .reduce(|a, b| i64::try_from(op.fold(a.into(), b)).unwrap())
            .unwrap();
    }
}

/// A group of one.
#[derive(Debug, Default)]
pub struct Alone {
    pub rank: usize,
}

impl Ranks for Alone {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        1
    }

    fn reduce(&mut self, _op: Op, _row: &mut [i64], _label: &str) -> Result<(), Error> {
        Ok(())
    }

    fn contributions(&self, _slot: usize) -> Option<Vec<i64>> {
        None
    }

    fn abort(&mut self, _reason: &str) {}
}

/// One rank whose peers follow a script; so must it.
#[derive(Debug)]
pub struct Scripted {
    pub rank: usize,
    pub script: Vec<Vec<Call>>,
    round: usize,
    last: Vec<Vec<i64>>,
}

impl Scripted {
    pub fn new(rank: usize, script: Vec<Vec<Call>>) -> Self {
        Self {
            rank,
            script,
            round: 0,
            last: Vec::new(),
        }
    }

    fn outcome(&self, op: Op, row: &[i64], label: &str) -> Result<Vec<Vec<i64>>, ErrorKind> {
        let own = self.script[self.rank].get(self.round);
        if own.is_none_or(|call| call.op != op || call.label != label || call.row != row) {
            return Err(ErrorKind::Usage(format!(
                "{op} `{label}` {row:?} is not in the script, {own:?} is"
            )));
        }
        let silent = |rank| Silent {
            rank,
            last_round: self.round as u64,
            last_label: String::new(),
        };
        let calls: Vec<_> = self
            .script
            .iter()
            .map(|calls| calls.get(self.round))
            .collect();
        let missing: Vec<_> = (0..calls.len())
            .filter(|&rank| calls[rank].is_none())
            .map(silent)
            .collect();
        if !missing.is_empty() {
            return Err(ErrorKind::Timeout {
                by: self.rank,
                after: Duration::ZERO,
                missing,
            });
        }
        for (rank, call) in calls.iter().flatten().enumerate() {
            if (call.op, call.label, call.row.len()) != (op, label, row.len()) {
                let one = described(self.rank, op, label, row);
                return Err(ErrorKind::Mismatch {
                    one,
                    other: described(rank, call.op, call.label, &call.row),
                });
            }
        }
        Ok(calls
            .into_iter()
            .flatten()
            .map(|call| call.row.clone())
            .collect())
    }
}

impl Ranks for Scripted {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.script.len()
    }

    fn reduce(&mut self, op: Op, row: &mut [i64], label: &str) -> Result<(), Error> {
        self.last = self
            .outcome(op, row, label)
            .map_err(|kind| error("script", self.rank, op, label, kind))?;
        self.round += 1;
        fold(op, &self.last, row);
        Ok(())
    }

    fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        column(&self.last, slot)
    }

    fn abort(&mut self, _reason: &str) {}
}

/// A job of threads with several groups.
#[derive(Clone, Debug)]
pub struct Job {
    groups: Arc<Vec<Group>>,
}

#[derive(Debug)]
struct Group {
    name: &'static str,
    timeout: Duration,
    round: Mutex<Round>,
    changed: Condvar,
}

type Announced = (Op, String, Vec<i64>);

#[derive(Debug, Default)]
struct Round {
    number: u64,
    arrived: Vec<Option<Announced>>,
    /// The rows of the round before: it stays until all have arrived in this one.
    rows: Vec<Vec<i64>>,
    failed: Option<Error>,
}

impl Job {
    pub fn new(ranks: usize, groups: &[&'static str], timeout: Duration) -> Self {
        let group = |&name| Group {
            name,
            timeout,
            round: Mutex::new(Round {
                arrived: vec![None; ranks],
                ..Round::default()
            }),
            changed: Condvar::new(),
        };
        Self {
            groups: Arc::new(groups.iter().map(group).collect()),
        }
    }

    pub fn member(&self, group: usize, rank: usize) -> Member {
        Member {
            job: self.clone(),
            group,
            rank,
            last: Vec::new(),
        }
    }
}

/// One thread's end of a group.
#[derive(Debug)]
pub struct Member {
    job: Job,
    group: usize,
    rank: usize,
    last: Vec<Vec<i64>>,
}

impl Member {
    fn group(&self) -> &Group {
        &self.job.groups[self.group]
    }

    fn round(&self, op: Op, row: &[i64], label: &str) -> Result<Vec<Vec<i64>>, Error> {
        let group = self.group();
        let fail = |kind| error(group.name, self.rank, op, label, kind);
        let mut round = group.round.lock().unwrap();
        if let Some(origin) = &round.failed {
            return Err(fail(ErrorKind::Poisoned {
                origin: origin.clone(),
            }));
        }
        let other = round
            .arrived
            .iter()
            .enumerate()
            .find_map(|(rank, call)| Some((rank, call.as_ref()?)));
        let other = other
            .filter(|(_, call)| (call.0, call.1.as_str(), call.2.len()) != (op, label, row.len()));
        if let Some((rank, (other_op, other_label, other_row))) = other {
            let one = described(self.rank, op, label, row);
            let other = described(rank, *other_op, other_label, other_row);
            let error = fail(ErrorKind::Mismatch { one, other });
            round.failed = Some(error.clone());
            group.changed.notify_all();
            return Err(error);
        }
        let number = round.number;
        round.arrived[self.rank] = Some((op, label.to_owned(), row.to_vec()));
        if round.arrived.iter().all(Option::is_some) {
            round.rows = round
                .arrived
                .iter_mut()
                .filter_map(Option::take)
                .map(|(_, _, row)| row)
                .collect();
            round.number += 1;
            group.changed.notify_all();
        } else {
            let pending = |round: &mut Round| round.number == number && round.failed.is_none();
            round = group
                .changed
                .wait_timeout_while(round, group.timeout, pending)
                .unwrap()
                .0;
        }
        if round.number != number {
            return Ok(round.rows.clone());
        }
        if round.failed.is_none() {
            let silent = |rank| Silent {
                rank,
                last_round: number,
                last_label: String::new(),
            };
            let missing = (0..round.arrived.len())
                .filter(|&rank| round.arrived[rank].is_none())
                .map(silent);
            let missing = missing.collect();
            round.failed = Some(fail(ErrorKind::Timeout {
                by: self.rank,
                after: group.timeout,
                missing,
            }));
            group.changed.notify_all();
        }
        Err(round.failed.clone().unwrap())
    }
}

impl Ranks for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group().round.lock().unwrap().arrived.len()
    }

    fn reduce(&mut self, op: Op, row: &mut [i64], label: &str) -> Result<(), Error> {
        self.last = self.round(op, row, label)?;
        fold(op, &self.last, row);
        Ok(())
    }

    fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        column(&self.last, slot)
    }

    fn abort(&mut self, reason: &str) {
        for group in self.job.groups.iter() {
            let aborted = ErrorKind::Aborted {
                rank: self.rank,
                reason: reason.to_owned(),
            };
            let aborted = error(group.name, self.rank, Op::Min, "", aborted);
            group.round.lock().unwrap().failed.get_or_insert(aborted);
            group.changed.notify_all();
        }
    }
}
