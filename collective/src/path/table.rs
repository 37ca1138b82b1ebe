//! Rounds through a table in shared memory; wider data follows over TCP, announced in the table and committed there.

use super::data::{Exchange, Stop, Wire};
use super::tcp::fits;
use super::{Round, first_sign};
use crate::error::{Described, ErrorKind, Silent};
use crate::job;
use crate::mesh::{ExchangeError, Mesh, MeshError};
use crate::op::Ops;
use rankpact_shm::{
    Aborter, Announcement, CallView, Cause, Failure, Kind, MAX_SLOTS, Missing, Open, Reduction,
    Ring, RoundError, Started, Table, Timing, Trouble, Unlock,
};
use std::time::{Duration, Instant};

/// How long a rank that knows less leaves it to one that knows more: a rank that has not committed may itself be waiting
/// for another.
const GRACE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct TablePath {
    table: Table,
    wire: Wire,
    /// The last round left its contributions on the wire, not in the table.
    wide: bool,
}

impl TablePath {
    pub(crate) fn new(table: Table, mesh: Mesh, ring: Option<Ring>) -> Self {
        Self {
            table,
            wire: Wire::new(mesh).with_ring(ring),
            wide: false,
        }
    }

    pub(crate) fn aborter(&self) -> Aborter {
        self.table.aborter()
    }

    /// The round of the last call, or the one that failed: a call that could not begin belongs to it.
    pub(crate) fn round(&self) -> u64 {
        self.table
            .failure()
            .map_or(self.table.round(), |failure| failure.round)
    }

    pub(crate) fn timing(&self) -> Option<Timing> {
        self.table.timing()
    }

    pub(crate) fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        if self.wide {
            self.wire.contributions(slot)
        } else {
            self.table.contributions(slot)
        }
    }

    pub(crate) fn close(&mut self) {
        self.table.close();
        self.wire.close();
    }

    /// What `rank` announced in the last round, which was a described one.
    pub(super) fn announced(&self, rank: usize) -> Announcement {
        self.table.announced(rank)
    }

    /// Makes sure that no later call with `label` is refused for it.
    pub(super) fn intern(&mut self, label: &str) -> Result<(), ErrorKind> {
        self.table
            .intern(label)
            .map_err(|error| kind_of(error, &[]))
    }

    /// Whether the next round can still complete; does not block.
    pub(super) fn watch(&mut self, ranks: &[usize]) -> Result<(), ErrorKind> {
        self.table.watch().map_err(|error| kind_of(error, ranks))
    }

    #[inline]
    pub(crate) fn all_reduce(
        &mut self,
        ops: Ops<'_>,
        values: &mut [i64],
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        self.wide = values.len() > MAX_SLOTS;
        if self.wide {
            return self.reduce_wide(ops, values, round);
        }
        with_kinds(ops, |reduction| {
            self.table
                .all_reduce(reduction, round.label, values, round.timeout)
        })
        .map_err(|error| kind_of(error, round.ranks))
    }

    #[inline]
    pub(crate) fn all_reduce_unlocking(
        &mut self,
        ops: Ops<'_>,
        values: &mut [i64],
        round: &Round<'_>,
        lock: impl Unlock,
    ) -> Result<(), ErrorKind> {
        if values.len() > MAX_SLOTS {
            return lock.run(|| self.all_reduce(ops, values, round));
        }
        self.wide = false;
        with_kinds(ops, |reduction| {
            self.table
                .all_reduce_unlocking(reduction, round.label, values, round.timeout, lock)
        })
        .map_err(|error| kind_of(error, round.ranks))
    }

    pub(crate) fn start(
        &mut self,
        ops: Ops<'_>,
        values: &[i64],
        round: &Round<'_>,
    ) -> Result<Started, ErrorKind> {
        self.wide = false;
        with_kinds(ops, |reduction| {
            self.table
                .start(reduction, round.label, values, round.timeout)
        })
        .map_err(|error| kind_of(error, round.ranks))
    }

    pub(crate) fn finish(
        &mut self,
        started: &Started,
        round: &Round<'_>,
    ) -> Result<Vec<i64>, ErrorKind> {
        self.table
            .finish(started, round.timeout)
            .map(|reduced| reduced.to_vec())
            .map_err(|error| kind_of(error, round.ranks))
    }

    pub(crate) fn barrier(&mut self, round: &Round<'_>) -> Result<(), ErrorKind> {
        self.wide = false;
        self.table
            .all_reduce(Kind::Barrier, round.label, &mut [], round.timeout)
            .map_err(|error| kind_of(error, round.ranks))
    }

    fn reduce_wide(
        &mut self,
        ops: Ops<'_>,
        values: &mut [i64],
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        let travelling = 8 * values.len() as u64;
        let overflow = self.described(
            ops.kind(),
            description(ops, values.len()),
            data(travelling),
            round,
            |wire, exchange, guard| wire.all_reduce(exchange, ops, values, guard),
        );
        let outcome = overflow.and_then(|overflow| fits(overflow.flatten()));
        self.wire.settle(values, outcome)
    }

    pub(crate) fn all_gather(
        &mut self,
        values: &[i64],
        into: &mut Vec<i64>,
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        self.wide = values.len() > MAX_SLOTS;
        if !self.wide {
            return self
                .table
                .all_gather(round.label, values, into, round.timeout)
                .map_err(|error| kind_of(error, round.ranks));
        }
        let width = i64::try_from(values.len()).unwrap_or(i64::MAX);
        self.described(
            Kind::Gather,
            width,
            data(8 * values.len() as u64),
            round,
            |wire, exchange, guard| wire.gather(exchange, values, guard),
        )?;
        into.extend_from_slice(self.wire.total());
        Ok(())
    }

    pub(crate) fn all_gather_bytes(
        &mut self,
        bytes: &[u8],
        round: &Round<'_>,
    ) -> Result<Vec<Vec<u8>>, ErrorKind> {
        self.wide = true;
        let travelled = self.described(
            Kind::GatherBytes,
            0,
            announce_bytes(bytes),
            round,
            |wire, exchange, guard| wire.gather_bytes(exchange, bytes, guard),
        )?;
        Ok(travelled.unwrap_or_else(|| {
            (0..self.table.ranks())
                .map(|rank| inline_bytes(&self.table.announced(rank)))
                .collect()
        }))
    }

    pub(crate) fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        round: &Round<'_>,
    ) -> Result<(), ErrorKind> {
        self.wide = true;
        let is_root = self.table.rank() == root;
        let (mine, mut got) = if is_root {
            (announce_bytes(bytes), std::mem::take(bytes))
        } else {
            Default::default()
        };
        let description = i64::try_from(root).unwrap_or(i64::MAX);
        let travelled = self.described(
            Kind::Broadcast,
            description,
            mine,
            round,
            |wire, exchange, guard| wire.broadcast(exchange, root, &mut got, guard),
        );
        if is_root {
            *bytes = got;
            return travelled.map(drop);
        }
        *bytes = match travelled? {
            Some(()) => got,
            None => inline_bytes(&self.table.announced(root)),
        };
        Ok(())
    }

    /// A described round: announce, let the data travel if there is any, commit. What that brought, if any did.
    pub(super) fn described<T>(
        &mut self,
        kind: Kind,
        description: i64,
        announcement: Announcement,
        round: &Round<'_>,
        travel: impl FnOnce(
            &mut Wire,
            &Exchange<'_>,
            &mut dyn FnMut() -> Result<(), RoundError>,
        ) -> Result<T, ExchangeError<Stop<RoundError>>>,
    ) -> Result<Option<T>, ErrorKind> {
        let started = Instant::now();
        let Self { table, wire, .. } = self;
        let in_errors = |error| kind_of(error, round.ranks);
        let Some(mut open) = table
            .announce(kind, round.label, description, announcement, round.timeout)
            .map_err(in_errors)?
        else {
            return Ok(None);
        };
        let exchange = Exchange {
            round: open.round(),
            label: round.label,
            deadline: job::deadline(started, round.timeout),
        };
        let brought = match travel(wire, &exchange, &mut || open.watch()) {
            Ok(brought) => brought,
            Err(error) => return Err(in_errors(give_up(open, error, started))),
        };
        // A little longer than the data: a rank that still waits for some knows better than this one who is missing.
        open.commit(
            round
                .timeout
                .saturating_sub(started.elapsed())
                .saturating_add(GRACE),
        )
        .map_err(in_errors)?;
        Ok(Some(brought))
    }
}

/// A reduction in one word. Which operations is compared by their checksum, and slot by slot when the data comes.
pub(super) fn description(ops: Ops<'_>, slots: usize) -> i64 {
    let width = u64::from(u32::try_from(slots).unwrap_or(u32::MAX));
    let codes = u64::from(crc32fast::hash(&ops.codes()));
    (width | codes << 32).cast_signed()
}

/// The operations in terms of the table.
#[inline]
fn with_kinds<T>(ops: Ops<'_>, call: impl FnOnce(Reduction<'_>) -> T) -> T {
    match ops {
        Ops::All(op) => call(op.kind().into()),
        Ops::Each(ops) => {
            let kinds: Vec<Kind> = ops.iter().map(|op| op.kind()).collect();
            call(kinds.as_slice().into())
        }
    }
}

fn data(travelling: u64) -> Announcement {
    Announcement {
        travelling,
        ..Announcement::default()
    }
}

fn announce_bytes(bytes: &[u8]) -> Announcement {
    let mut announcement = Announcement::default();
    let [len, words @ ..] = &mut announcement.free;
    announcement.travelling = put_inline(bytes, len, words);
    announcement
}

fn inline_bytes(announcement: &Announcement) -> Vec<u8> {
    let [len, words @ ..] = &announcement.free;
    get_inline(*len, words)
}

/// Puts `bytes` into `words` of a row, and their number into `len`; how many travel instead, all of them if they do not
/// fit.
pub(super) fn put_inline(bytes: &[u8], len: &mut u64, words: &mut [u64]) -> u64 {
    *len = bytes.len() as u64;
    if bytes.len() > 8 * words.len() {
        return *len;
    }
    for (word, eight) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..eight.len()].copy_from_slice(eight);
        *word = u64::from_le_bytes(padded);
    }
    0
}

/// What [`put_inline`] has put into `words`.
pub(super) fn get_inline(len: u64, words: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
    bytes
}

/// Ends the open round because its data did not come, for the reason that the table knows or else the wire.
fn give_up(
    mut open: Open<'_>,
    error: ExchangeError<Stop<RoundError>>,
    started: Instant,
) -> RoundError {
    let waited = started.elapsed();
    match error {
        ExchangeError::Stopped(Stop::Guard(error)) => error,
        ExchangeError::Stopped(Stop::Mismatch { peer, .. }) => open.fail(Trouble::Other(&format!(
            "rank {peer} sent data of another call than it had announced"
        ))),
        ExchangeError::Mesh(MeshError::Missing { peers }) => open.fail(Trouble::Timeout {
            ranks: &peers,
            waited,
        }),
        // Who left may have left because somebody died.
        ExchangeError::Mesh(MeshError::Left { peer }) => match open.watch() {
            Ok(()) => open.fail(Trouble::Closed { rank: peer }),
            Err(error) => error,
        },
        ExchangeError::Mesh(MeshError::Died { peer }) => {
            // A connection breaks a moment before the kernel has released the lock; an abort closes it too.
            match first_sign(|| open.watch().err()) {
                Some(error) => error,
                None => open.fail(Trouble::Died { rank: peer }),
            }
        }
        ExchangeError::Mesh(other) => open.fail(Trouble::Other(&other.to_string())),
    }
}

/// A failure in terms of world ranks.
pub(crate) fn kind_of(error: RoundError, ranks: &[usize]) -> ErrorKind {
    let world = |rank: usize| ranks.get(rank).copied().unwrap_or(rank);
    let silent = |missing: Missing| Silent {
        rank: world(missing.rank),
        last_round: missing.last_round,
        last_label: missing.last_label,
    };
    let described = |view: CallView| {
        Box::new(Described {
            rank: world(view.rank),
            operation: view
                .kind
                .map_or_else(|| "unknown call".to_owned(), |kind| kind.to_string()),
            shape: view.shape_text(),
            label: view.label,
        })
    };
    let (RoundError::Failed(Failure { by, cause, .. })
    | RoundError::Poisoned(Failure { by, cause, .. })) = error
    else {
        return match error {
            RoundError::Closed => ErrorKind::Closed,
            RoundError::Forked => ErrorKind::Forked,
            RoundError::Overflow { slot } => ErrorKind::Overflow { slot },
            other => ErrorKind::Usage(other.to_string()),
        };
    };
    match cause {
        Cause::Timeout { after, missing } => ErrorKind::Timeout {
            by: world(by),
            after,
            missing: missing.into_iter().map(silent).collect(),
        },
        Cause::Died(missing) => ErrorKind::PeerDied {
            rank: world(missing.rank),
            last_round: missing.last_round,
        },
        Cause::Closed(missing) => ErrorKind::PeerClosed {
            rank: world(missing.rank),
            last_round: missing.last_round,
        },
        Cause::Mismatch { one, other } => ErrorKind::Mismatch {
            one: described(*one),
            other: described(*other),
        },
        Cause::Aborted { reason, origin } => ErrorKind::Aborted {
            rank: origin.map_or(world(by), |rank| {
                usize::try_from(rank).unwrap_or(usize::MAX)
            }),
            reason,
        },
        other => ErrorKind::Io(format!("{other:?}")),
    }
}
