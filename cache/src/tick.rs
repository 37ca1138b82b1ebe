//! The tick: everything that all ranks of a scheduler agree upon between two batches.

use rankpact_collective::{Error as CollectiveError, Op};

use crate::agreement::Ranks;
use crate::cache::Cache;
use crate::decision::Decision;
use crate::error::{Divergence, Error};
use crate::prefetch::Handle;
use crate::row::{Counts, Span, StorageCounts};

/// How many of the live handles an error names.
const NAMED: usize = 4;

/// How many reductions a scheduler thread has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reductions {
    /// MIN.
    pub min: u64,
    /// MAX.
    pub max: u64,
}

impl Reductions {
    /// The same ranks, with every reduction counted, whoever makes it.
    pub(crate) fn counting<'a>(&'a mut self, ranks: &'a mut dyn Ranks) -> Counted<'a> {
        Counted { ranks, made: self }
    }
}

pub(crate) struct Counted<'a> {
    ranks: &'a mut dyn Ranks,
    made: &'a mut Reductions,
}

impl Ranks for Counted<'_> {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn size(&self) -> usize {
        self.ranks.size()
    }

    fn reduce(&mut self, op: Op, row: &mut [i64], label: &str) -> Result<(), CollectiveError> {
        match op {
            Op::Min => self.made.min += 1,
            Op::Max => self.made.max += 1,
            _ => {}
        }
        self.ranks.reduce(op, row, label)
    }

    fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        self.ranks.contributions(slot)
    }

    fn abort(&mut self, reason: &str) {
        self.ranks.abort(reason);
    }
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TickReport {
    /// The agreed counts, all consumed.
    pub drained: Counts,
    /// Whether there was a vote.
    pub voted: bool,
    /// Prefetches whose deadline the vote found to have passed, for the first time, in table order.
    pub expired: Vec<Handle>,
}

impl Cache {
    /// Agrees with all ranks on what has finished and who is out of time, and acts on it.
    ///
    /// Call it once in every scheduler iteration, unconditionally, before the next batch is chosen: one MIN, and
    /// under policy timeout with live prefetches one MAX. Blocks until every rank ticks, at most for the group's
    /// deadline.
    ///
    /// # Errors
    ///
    /// When a round fails, when the ranks have diverged (nothing was consumed then), or when a worker of this rank
    /// has ended or is late. The job cannot go on after any of them; peers that cannot know are told.
    pub fn tick(&mut self, ranks: &mut dyn Ranks) -> Result<TickReport, Error> {
        let outcome = self.run_tick(ranks);
        if let Err(error) = &outcome
            && error.is_local()
        {
            ranks.abort(&error.to_string());
        }
        outcome
    }

    fn run_tick(&mut self, ranks: &mut dyn Ranks) -> Result<TickReport, Error> {
        if let Some(workers) = &self.workers {
            workers.check()?;
        }
        self.submit_backups();
        let drained = self.agree_on_counts(ranks)?;
        self.decide(Decision::Drained(drained.clone()));
        self.drain_copies(&drained, ranks.rank())?;
        if let Some(storage) = &drained.storage {
            self.drain_storage(storage, ranks.rank())?;
        }
        let voted = self.votes();
        let expired = if voted { self.vote(ranks)? } else { Vec::new() };
        Ok(TickReport {
            drained,
            voted,
            expired,
        })
    }

    /// What has finished here; the row of the next tick.
    #[must_use]
    pub fn ready(&self) -> Counts {
        Counts {
            write: self
                .writes
                .iter()
                .take_while(|ack| ack.done.is_done())
                .count(),
            load: self
                .loads
                .iter()
                .take_while(|ack| ack.done.is_done())
                .count(),
            storage: self.workers.as_ref().map(|workers| StorageCounts {
                hit: workers.hits.ready(),
                ack: workers.acks.ready(),
                backup: workers.written.ready(),
                release: self.release.len(),
                extra: self.extra.iter().map(|extra| extra.release.len()).collect(),
            }),
        }
    }

    fn agree_on_counts(&mut self, ranks: &mut dyn Ranks) -> Result<Counts, Error> {
        let ready = self.ready();
        let digest = self.digest();
        let mut row = ready.row(digest);
        self.reductions
            .counting(ranks)
            .reduce(Op::Min, &mut row, "counts")?;
        let (agreed, span) = ready
            .agreed(&row)
            .ok_or_else(|| Error::Config("the reduced row has another shape".into()))?;
        if span.is_only(digest.value()) {
            Ok(agreed)
        } else {
            Err(self.divergence(digest.value(), span, row.len(), ranks))
        }
    }

    fn divergence(&self, own: i64, span: Span, width: usize, ranks: &dyn Ranks) -> Error {
        // The digest is the last slot but one.
        let digests = width
            .checked_sub(2)
            .and_then(|slot| ranks.contributions(slot))
            .unwrap_or_default();
        let differing = digests
            .iter()
            .enumerate()
            .filter(|&(_, &digest)| digest != own)
            .map(|(rank, _)| rank);
        Error::Divergence(Box::new(Divergence {
            rank: ranks.rank(),
            own,
            lowest: span.lowest,
            highest: span.highest,
            differing: differing.collect(),
            live: self.live.len(),
            first: self
                .live
                .handles()
                .take(NAMED)
                .map(ToString::to_string)
                .collect(),
        }))
    }

    /// After the drain, so that nothing is voted on that the drain has retired; itself it retires nothing.
    fn vote(&mut self, ranks: &mut dyn Ranks) -> Result<Vec<Handle>, Error> {
        let now = self.clock.now();
        let mut flags: Vec<_> = self
            .live
            .entries()
            .map(|entry| self.flag(entry, now))
            .collect();
        self.vote
            .agree(&mut self.reductions.counting(ranks), &mut flags)?;
        let cut = self
            .live
            .entries()
            .zip(&flags)
            .filter(|(entry, flag)| **flag != 0 && !entry.is_expired());
        let cut: Vec<_> = cut
            .map(|(entry, _)| entry.operation.handle.clone())
            .collect();
        for handle in &cut {
            self.mark_expired(handle);
        }
        Ok(cut)
    }
}
