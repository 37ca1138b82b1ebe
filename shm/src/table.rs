//! The round protocol: all write, all read, one outcome.

mod flight;
mod open;
mod radix;
#[cfg(not(loom))]
mod unlock;

pub use flight::{Reduced, Started};
pub use open::{Open, Trouble};
#[cfg(not(loom))]
pub use unlock::Unlock;

use crate::call::{Announcement, Form, Kind, Reduction, Stamp, Width};
use crate::label::{self, Interned, LabelError};
use crate::layout::{Control, Geometry, MAX_SLOTS, Row};
use crate::liveness::Liveness;
use crate::member::Leave;
use crate::origin::{self, Failure, Missing, Reason};
use crate::outcome::State;
use crate::park::{self, Awaited, Climb, Effort, Ladder, Step, Waits};
use crate::place::Place;
use crate::row::form_of;
use crate::seat::{Aborter, Seat, contradiction, data_travels};
use crate::storage::Storage;
use crate::sync::{Ordering, full_fence, spin_loop, weakened};
use flight::Flight;
use std::cmp::Ordering as Cmp;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a call on a table did not return a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoundError {
    /// The round of this call failed.
    Failed(Failure),
    /// An earlier round failed and this rank has been told so before; nothing more can be agreed here.
    Poisoned(Failure),
    /// The table was closed by this rank.
    Closed,
    /// The table belongs to the parent of this process.
    Forked,
    /// The label has no number.
    Label(LabelError),
    /// More slots than a row has: such data travels elsewhere.
    TooWide(usize),
    /// The round of this handle was started at another table.
    NotStarted,
    /// The total of a slot does not fit 64 signed bits. The round has completed, and nothing has failed.
    Overflow {
        /// The slot.
        slot: usize,
    },
    /// Slots cannot be reduced with this.
    NotAReduction(Kind),
    /// Not one operation for each slot.
    Operations {
        /// How many operations.
        operations: usize,
        /// How many slots.
        slots: usize,
    },
}

impl fmt::Display for RoundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::Poisoned(failure) => write!(f, "the group failed earlier: {failure}"),
            Self::Closed => f.write_str("the table is closed"),
            Self::Forked => f.write_str("the table belongs to the parent of this process"),
            Self::Label(error) => error.fmt(f),
            Self::TooWide(slots) => write!(f, "{slots} slots do not fit a row of {MAX_SLOTS}"),
            Self::Overflow { slot } => write!(f, "the total of slot {slot} does not fit 64 bits"),
            Self::NotAReduction(kind) => write!(f, "{kind} is no operation on slots"),
            Self::Operations { operations, slots } => {
                write!(f, "{operations} operations for {slots} slots")
            }
            Self::NotStarted => f.write_str("this round was started at another table"),
        }
    }
}

impl std::error::Error for RoundError {}

impl From<LabelError> for RoundError {
    fn from(error: LabelError) -> Self {
        Self::Label(error)
    }
}

/// What a rank was doing, told when a peer has been silent for long. Not an error: compilation takes minutes.
pub type Notice = Box<dyn Fn(&Missing, Duration) + Send>;

/// Called in each slice of a wait, by the thread that waits.
pub type Slice = Box<dyn Fn() + Send>;

/// A peer that is alive and silent for so long is worth a notice, once for each wait.
const SILENCE: Duration = Duration::from_secs(5);

/// Where the time of the last round went, as this rank saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From this rank's arrival to the last rank's.
    pub skew: Duration,
    /// From the last rank's arrival to this rank's return.
    pub transport: Duration,
}

/// One rank's end of a table.
///
/// Every round waits for all ranks; all of them see the same outcome. Two threads cannot interleave rounds: every call
/// takes `&mut self`.
///
/// ```compile_fail,E0499
/// # use rankpact_shm::{Announcement, Kind, Table};
/// # fn misuse(table: &mut Table, second: std::time::Duration) {
/// let open = table.announce(Kind::Broadcast, "b", 0, Announcement::default(), second).unwrap();
/// // The announced round is still open: no other call can begin.
/// table.all_reduce(Kind::Min, "m", &mut [1], second).unwrap();
/// drop(open);
/// # }
/// ```
pub struct Table {
    seat: Arc<Seat>,
    /// The round the next call gets.
    next: u64,
    /// The round that was settled last.
    last: u64,
    /// Rounds that were started and are not settled.
    flight: Flight,
    labels: Interned,
    waits: Waits,
    /// Ranks of one group of the exchange in two hops; zero where every rank reads every row.
    radix: usize,
    peers: Option<Box<dyn Liveness>>,
    notice: Option<Notice>,
    slice: Option<Slice>,
    failure: Option<Failure>,
    closed: bool,
    timing: Option<Timing>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("me", &self.seat.me)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// The seat of rank `me` at a table.
    ///
    /// # Panics
    ///
    /// If `me` is not a rank of the table.
    #[must_use]
    pub fn new(storage: Arc<Storage>, me: usize, ladder: Ladder) -> Self {
        assert!(
            me < storage.geometry().ranks(),
            "rank {me} has no seat at this table"
        );
        let (next, radix) = (storage.first_round(), storage.radix());
        Self {
            seat: Arc::new(Seat::new(storage, me, next)),
            next,
            last: next.wrapping_sub(1),
            flight: Flight::default(),
            labels: Interned::default(),
            waits: Waits::new(ladder),
            radix,
            peers: None,
            notice: None,
            slice: None,
            failure: None,
            closed: false,
            timing: None,
        }
    }

    /// Lets waits find out about dead peers.
    #[must_use]
    pub fn with_liveness(mut self, peers: Box<dyn Liveness>) -> Self {
        self.peers = Some(peers);
        self
    }

    /// Calls `notice` when a peer is alive but has been silent for 5 s.
    #[must_use]
    pub fn with_notice(mut self, notice: Notice) -> Self {
        self.notice = Some(notice);
        self
    }

    /// Calls `slice` in each slice of a wait: what it aborts ends the wait.
    #[must_use]
    pub fn with_slice(mut self, slice: Slice) -> Self {
        self.slice = Some(slice);
        self
    }

    /// Switches the measurement of skew on: two clock reads and a second line for each row.
    #[must_use]
    pub fn with_timing(mut self) -> Self {
        self.timing = Some(Timing::default());
        self
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.seat.me
    }

    /// How many ranks share the table.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.geometry().ranks()
    }

    /// The round of the last call; the round before the first for none.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.next.wrapping_sub(1)
    }

    /// Why the group has failed, once this rank has been told.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Where the time of the last row round went, if switched on.
    #[must_use]
    pub fn timing(&self) -> Option<Timing> {
        self.timing
    }

    /// What the rounds so far have cost in system calls.
    #[must_use]
    pub fn effort(&self) -> Effort {
        self.waits.effort()
    }

    /// A handle that any thread of this process may use to abort the group.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        Aborter {
            seat: Arc::clone(&self.seat),
        }
    }

    fn geometry(&self) -> Geometry {
        self.seat.storage.geometry()
    }

    /// Reduces up to eight slots over all ranks, in place.
    ///
    /// Blocks until all ranks have made the same call, at most for `timeout`. With an operation for each slot, a label has
    /// that many bytes less, and one.
    ///
    /// # Errors
    ///
    /// [`RoundError::Failed`] if the round failed: on every rank, with the same origin. [`RoundError::Overflow`] if a sum
    /// does not fit, on every rank alike; that fails nothing. The slots are then unchanged.
    #[inline]
    pub fn all_reduce<'a>(
        &mut self,
        reduction: impl Into<Reduction<'a>>,
        label: &str,
        slots: &mut [i64],
        timeout: Duration,
    ) -> Result<(), RoundError> {
        match reduction.into() {
            Reduction::All(kind) if kind.folds_row_by_row() && self.flight.is_empty() => {
                self.reduce(kind, label, slots, timeout)
            }
            other => self.reduce_otherwise(other, label, slots, timeout),
        }
    }

    /// The reductions that happen millions of times: nothing in flight, and row by row.
    #[inline(always)]
    fn reduce(
        &mut self,
        kind: Kind,
        label: &str,
        slots: &mut [i64],
        timeout: Duration,
    ) -> Result<(), RoundError> {
        let posted = self.post_row(kind, label, slots)?;
        // Folded where they lie, and put back if the round fails.
        let mine = copied(slots);
        let settled = self.gather(posted, slots, timeout);
        if settled.is_err() {
            slots.copy_from_slice(&mine[..slots.len()]);
        }
        self.settle(posted.round, settled)
    }

    #[cold]
    fn reduce_otherwise(
        &mut self,
        reduction: Reduction<'_>,
        label: &str,
        slots: &mut [i64],
        timeout: Duration,
    ) -> Result<(), RoundError> {
        if !self.flight.is_empty() {
            return self.reduce_behind(reduction, label, slots, timeout);
        }
        let posted = self.post(reduction, label, slots)?;
        let mut totals = copied(slots);
        let totals = &mut totals[..slots.len()];
        let settled = self.gather_all(posted, reduction, totals, timeout);
        self.settle(posted.round, settled)??;
        slots.copy_from_slice(totals);
        Ok(())
    }

    /// Publishes a row of slots.
    fn post(
        &mut self,
        reduction: Reduction<'_>,
        label: &str,
        slots: &[i64],
    ) -> Result<Posted, RoundError> {
        match reduction {
            Reduction::All(kind) if kind.reduces() => self.post_row(kind, label, slots),
            Reduction::All(kind) => Err(RoundError::NotAReduction(kind)),
            Reduction::Each(kinds) => self.post_each(kinds, label, slots),
        }
    }

    fn post_each(
        &mut self,
        kinds: &[Kind],
        label: &str,
        slots: &[i64],
    ) -> Result<Posted, RoundError> {
        if kinds.len() != slots.len() {
            return Err(RoundError::Operations {
                operations: kinds.len(),
                slots: slots.len(),
            });
        }
        if label.is_empty() {
            return Err(LabelError::Length.into());
        }
        if let Some(kind) = kinds.iter().find(|kind| !kind.reduces()) {
            return Err(RoundError::NotAReduction(*kind));
        }
        self.post_row(Kind::Each, &label::with_kinds(label, kinds), slots)
    }

    #[inline(always)]
    fn post_row(&mut self, kind: Kind, label: &str, slots: &[i64]) -> Result<Posted, RoundError> {
        if slots.len() > MAX_SLOTS {
            return Err(RoundError::TooWide(slots.len()));
        }
        let (round, stamp) = self.publish(kind, Width::Slots(slots.len()), label, |row| {
            let form = form_of(slots);
            row.fill(slots, form);
            form
        })?;
        Ok(Posted { round, stamp, kind })
    }

    /// Gives the slots of every rank, up to eight, to all: those of rank 0 first.
    ///
    /// Blocks until all ranks have made the same call, at most for `timeout`. Rounds in flight are settled first.
    ///
    /// # Errors
    ///
    /// As [`Table::all_reduce`]. `into` is then empty.
    pub fn all_gather(
        &mut self,
        label: &str,
        slots: &[i64],
        into: &mut Vec<i64>,
        timeout: Duration,
    ) -> Result<(), RoundError> {
        into.clear();
        let timeout = self.land_all(timeout)?;
        let posted = self.post_row(Kind::Gather, label, slots)?;
        let settled = self.gather(posted, &mut [], timeout);
        self.settle(posted.round, settled)?;
        let mut buffer = [0; MAX_SLOTS];
        let row = &mut buffer[..slots.len()];
        for peer in self.seat.storage.rows(posted.round) {
            peer.read(peer.stamp().form(), row);
            into.extend_from_slice(row);
        }
        Ok(())
    }

    /// Folds the rows of all ranks for a posted round into `totals`, which hold this rank's, as far as that can be done row
    /// by row.
    #[inline(always)]
    fn gather(&self, posted: Posted, totals: &mut [i64], timeout: Duration) -> Result<(), Failure> {
        let missing = if self.radix == 0 {
            self.hurry(posted, self.others(), totals)
        } else if self.two_hops(posted, totals, timeout) {
            0
        } else {
            self.others()
        };
        self.gather_rest(posted, missing, totals, timeout)
    }

    /// Folds the rows that are `missing`, and comes to the outcome.
    #[inline(always)]
    fn gather_rest(
        &self,
        posted: Posted,
        missing: u64,
        totals: &mut [i64],
        timeout: Duration,
    ) -> Result<(), Failure> {
        let control = self.seat.storage.control();
        if missing != 0 {
            self.wait_for_rows(posted, missing, totals, timeout)?;
        }
        self.seen_all(control, Awaited::Rows(posted.round));
        self.agree(control, posted.round)
    }

    /// As [`Table::gather`], for any reduction. The inner result is about the totals of a round that has completed.
    fn gather_all(
        &self,
        posted: Posted,
        reduction: Reduction<'_>,
        totals: &mut [i64],
        timeout: Duration,
    ) -> Result<Result<(), Overflow>, Failure> {
        self.gather(posted, totals, timeout)?;
        Ok(self.total_up(posted, reduction, totals))
    }

    /// Folds in the rows of the `pending` that come within the first polls, as long as they are all of this call. Who is
    /// missing then.
    ///
    /// All there is to a round that goes well. Everything else, another call among it, is left to [`Table::wait_for_all`].
    #[inline(always)]
    fn hurry(&self, posted: Posted, mut pending: u64, totals: &mut [i64]) -> u64 {
        let rows = self.seat.storage.rows(posted.round);
        let full = posted.stamp.form() == Form::Full;
        let (first, mut polls) = (self.waits.first_looked_at(), self.waits.polls());
        loop {
            let first_pending = pending & first;
            let looked_at = if first_pending == 0 {
                pending
            } else {
                first_pending
            };
            for peer in bits(looked_at) {
                if full {
                    // Peers are likely to have full rows too: both lines come at once, not one after the other.
                    rows[peer].touch();
                }
                let theirs = rows[peer].stamp();
                if theirs.same_call(posted.stamp) {
                    rows[peer].fold_into(posted.kind, theirs.form(), totals);
                    pending &= !(1 << peer);
                } else if first_pending != 0 {
                    return pending;
                }
            }
            if pending == 0 {
                return 0;
            }
            if first_pending == 0 {
                if polls == 0 {
                    return pending;
                }
                polls -= 1;
                spin_loop();
            }
        }
    }

    /// Folds in the rows that are `missing`, however long they take.
    #[cold]
    fn wait_for_rows(
        &self,
        posted: Posted,
        mut missing: u64,
        totals: &mut [i64],
        timeout: Duration,
    ) -> Result<(), Failure> {
        let Posted { round, stamp, kind } = posted;
        if !timeout.is_zero() && self.waits.gives_way(round, missing) {
            missing = self.hurry(posted, missing, totals);
            if missing == 0 {
                return Ok(());
            }
        }
        let rows = self.seat.storage.rows(round);
        let watch = self.row_watch(rows, round);
        let hurried = self.radix == 0;
        self.wait_for_all(
            round,
            missing,
            hurried,
            timeout,
            watch,
            |peer, theirs: Stamp| {
                let same = theirs.same_call(stamp);
                if same {
                    rows[peer].fold_into(kind, theirs.form(), totals);
                }
                same
            },
        )
    }

    /// Folds what could not be folded row by row.
    fn total_up(
        &self,
        posted: Posted,
        reduction: Reduction<'_>,
        totals: &mut [i64],
    ) -> Result<(), Overflow> {
        if posted.kind.folds_row_by_row() {
            return Ok(());
        }
        let rows = self.seat.storage.rows(posted.round);
        let read = |row: &Row, slots: &mut [i64]| row.read(row.stamp().form(), slots);
        let mut wide = [0; MAX_SLOTS];
        read(&rows[0], totals);
        for (slot, value) in wide.iter_mut().zip(&*totals) {
            *slot = i128::from(*value);
        }
        for row in &rows[1..] {
            read(row, totals);
            for (at, (slot, value)) in wide.iter_mut().zip(&*totals).enumerate() {
                *slot = reduction.of(at).fold_wide(*slot, *value);
            }
        }
        for (at, (slot, wide)) in totals.iter_mut().zip(wide).enumerate() {
            *slot = i64::try_from(wide).map_err(|_| Overflow { slot: at })?;
        }
        Ok(())
    }

    /// What every rank contributed to `slot` of the round settled last, which must have been a reduction of that width.
    ///
    /// Valid until this rank's next call: its peers cannot reuse the rows before. `None` too while as many rounds are in
    /// flight as may be: a peer may be ahead by so many, and has the rows of the settled one by then.
    #[must_use]
    pub fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        if self.is_full_flight() {
            return None;
        }
        let read = |row: &Row| {
            let stamp = row.stamp();
            let mut slots = [0; MAX_SLOTS];
            let width = usize::try_from(stamp.width_code())
                .ok()
                .filter(|w| slot < *w && *w <= MAX_SLOTS)?;
            row.read(stamp.form(), &mut slots[..width]);
            stamp.is_round(self.last).then_some(slots[slot])
        };
        self.seat.storage.rows(self.last).iter().map(read).collect()
    }

    /// Announces a call that does not fit a row of slots and waits until all ranks have announced the same.
    ///
    /// `description` is compared; `travelling` is how many bytes this rank sends by another way, and `free` is for the
    /// caller's use: both can be read with [`Table::announced`]. Where no rank sends anything, the round is over when
    /// this returns `None`. Otherwise it is open, and no other call can begin. Rounds in flight are settled first.
    ///
    /// # Errors
    ///
    /// As [`Table::all_reduce`].
    pub fn announce(
        &mut self,
        kind: Kind,
        label: &str,
        description: i64,
        announcement: Announcement,
        timeout: Duration,
    ) -> Result<Option<Open<'_>>, RoundError> {
        let timeout = self.land_all(timeout)?;
        let (round, stamp) = self.publish(kind, Width::Wide, label, |row| {
            row.describe(description, announcement)
        })?;
        let rows = self.seat.storage.rows(round);
        let announced = self.wait_for_all(
            round,
            self.others(),
            false,
            timeout,
            self.row_watch(rows, round),
            |peer, theirs: Stamp| {
                theirs.same_call(stamp) && rows[peer].description() == description
            },
        );
        if announced.is_ok() {
            self.seen_all(self.seat.storage.control(), Awaited::Rows(round));
        }
        // That all have announced decides nothing as long as data travels: the round completes when all have theirs.
        if announced.is_ok() && data_travels(rows) {
            return Ok(Some(Open::new(self, round)));
        }
        let settled = announced.and_then(|()| self.agree(self.seat.storage.control(), round));
        self.settle(round, settled).map(|()| None)
    }

    /// Gives `label` its number, so that no later call with it is refused for want of one.
    ///
    /// # Errors
    ///
    /// [`RoundError::Label`] if there is no number for it, [`RoundError::Forked`] in a forked child.
    pub fn intern(&mut self, label: &str) -> Result<(), RoundError> {
        self.owned()?;
        self.labels.id(&self.seat.storage, label)?;
        Ok(())
    }

    /// Whether the oldest round that is not settled, in flight or the next, can still complete: looks at the outcome word,
    /// and after every peer that has not published its row. Does not block. For ranks that do something else, elsewhere,
    /// while the others wait for them.
    ///
    /// # Errors
    ///
    /// The failure of that round, if somebody gave up on it, died or left.
    pub fn watch(&mut self) -> Result<(), RoundError> {
        if self.closed || !self.seat.owner.is_here() || self.failure.is_some() {
            return Err(self.refuse());
        }
        // With rounds in flight, the oldest: giving up is always about that one (rule O7).
        let round = self.last.wrapping_add(1);
        let result = {
            let published = self.row_watch(self.seat.storage.rows(round), round);
            self.look_after(round, &|peer| published(peer).is_some())
        };
        result.map_err(|failure| self.poison(failure))
    }

    /// Whether `round` can still complete, as far as its outcome word and every peer that has not `arrived` tell.
    fn look_after(&self, round: u64, arrived: &dyn Fn(usize) -> bool) -> Result<(), Failure> {
        if let Some(slice) = &self.slice {
            slice();
        }
        match self.ended(round) {
            Some(failure) => Err(failure),
            None => self.inspect(round, self.others(), arrived),
        }
    }

    /// What `rank` announced in the last round.
    #[must_use]
    pub fn announced(&self, rank: usize) -> Announcement {
        let row = &self.seat.storage.rows(self.round())[rank];
        row.announcement(row.stamp().form())
    }

    /// Leaves in good order: peers that need this rank later are told that it has left.
    pub fn close(&mut self) {
        if !self.closed && self.seat.owner.is_here() {
            self.closed = true;
            self.seat.storage.member(self.seat.me).leave(Leave::Closed);
            park::wake(self.seat.storage.control());
        }
    }

    #[inline(always)]
    fn publish(
        &mut self,
        kind: Kind,
        width: Width,
        label: &str,
        fill: impl FnOnce(&Row) -> Form,
    ) -> Result<(u64, Stamp), RoundError> {
        let (round, seat) = (self.next, &*self.seat);
        if self.closed
            || !seat.owner.is_here()
            || matches!(seat.storage.control().word().state(), State::Failed { .. })
            || self.has_left_a_round()
        {
            return Err(self.refuse());
        }
        let label = self.labels.id(&seat.storage, label)?;
        let row = &seat.storage.rows(round)[seat.me];
        if self.timing.is_some() {
            row.arrived_ns().store(monotonic_ns(), Ordering::Relaxed);
        }
        let stamp = Stamp::new(round, kind, width, fill(row), label).at(self.waits.place.get());
        row.publish(stamp);
        // The next row's line comes while this rank waits: its peers had it last, and publishing would wait for it.
        let both = self.radix != 0 || stamp.form() == Form::Full;
        seat.storage.rows(round.wrapping_add(1))[seat.me].fetch_to_write(both);
        if self.radix != 0 && width == Width::Wide {
            row.publish_partial(stamp, None);
        }
        self.next = round.wrapping_add(1);
        Ok((round, stamp))
    }

    /// Why a call cannot begin: the failure itself the first time, then the memory of it.
    #[cold]
    fn refuse(&mut self) -> RoundError {
        if let Err(forked) = self.owned() {
            return forked;
        }
        match (&self.failure, self.ended(self.next)) {
            (Some(failure), _) => RoundError::Poisoned(failure.clone()),
            (None, Some(failure)) => self.poison(failure),
            (None, None) if self.closed => RoundError::Closed,
            (None, None) => self.fail_what_was_left(),
        }
    }

    /// Whether a round of this rank is published, not settled and not in flight: its call ended by a panic that somebody
    /// caught, or it was announced and forgotten. Nobody may go on behind it, for its outcome is open.
    #[inline(always)]
    fn has_left_a_round(&self) -> bool {
        self.next.wrapping_sub(self.last) != self.flight.len() as u64 + 1
    }

    #[cold]
    fn fail_what_was_left(&mut self) -> RoundError {
        // If it has completed elsewhere, the next one fails.
        self.aborter()
            .abort("a call of this rank was left before its end");
        let failure = self.ended(self.next);
        self.poison(failure.unwrap_or_else(|| contradiction(self.next, self.seat.me)))
    }

    /// Whether this is the process that sat down here.
    fn owned(&self) -> Result<(), RoundError> {
        if self.seat.owner.is_here() {
            Ok(())
        } else {
            Err(RoundError::Forked)
        }
    }

    /// Tells whether a peer's row for `round` has replaced the previous tenant of its buffer.
    #[inline(always)]
    fn row_watch<'a>(
        &self,
        rows: &'a [Row],
        round: u64,
    ) -> impl Fn(usize) -> Option<Stamp> + use<'a> {
        let tenant = round.wrapping_sub(self.geometry().buffers() as u64);
        move |peer| Some(rows[peer].stamp()).filter(|stamp| !stamp.is_round(tenant))
    }

    fn others(&self) -> u64 {
        self.geometry().everybody() & !(1 << self.seat.me)
    }

    /// Waits until `look` has found something new of every peer that is `pending` and `take` has accepted it. Where the
    /// caller `has_looked`, as often as there are bare polls, it begins with the climb.
    ///
    /// `take` is called once for each peer and answers whether the peer made the same call.
    fn wait_for_all<S>(
        &self,
        round: u64,
        mut pending: u64,
        mut has_looked: bool,
        timeout: Duration,
        look: impl Fn(usize) -> Option<S>,
        mut take: impl FnMut(usize, S) -> bool,
    ) -> Result<(), Failure> {
        let mut climb = Climb::new(&self.waits, round, timeout);
        if has_looked {
            climb.skip_polls();
        }
        let mut patience = Patience::default();
        loop {
            let mut stranger = None;
            let unseen = if std::mem::take(&mut has_looked) {
                0
            } else {
                pending
            };
            for peer in bits(unseen) {
                if let Some(seen) = look(peer) {
                    if !take(peer, seen) {
                        stranger = Some(peer);
                        break;
                    }
                    pending &= !(1 << peer);
                }
            }
            if pending == 0 {
                return Ok(());
            }
            if stranger.is_some() || !climb.polls() {
                let arrived = |peer| look(peer).is_some();
                self.wait_on(&mut climb, &mut patience, pending, stranger, &arrived)?;
            }
        }
    }

    /// What a wait does that is not over within the first polls: look after the round and the `pending`, then climb.
    #[cold]
    fn wait_on(
        &self,
        climb: &mut Climb<'_>,
        patience: &mut Patience,
        pending: u64,
        stranger: Option<usize>,
        arrived: &dyn Fn(usize) -> bool,
    ) -> Result<(), Failure> {
        let (seat, round) = (&*self.seat, climb.round());
        if patience.complete {
            return Err(contradiction(round, seat.me));
        }
        if let Some(failure) = self.ended(round) {
            return Err(failure);
        }
        let asleep = || bits(pending).any(arrived) || self.has_ended(round);
        let ranks = pending;
        let why = match (stranger, patience.expired) {
            (Some(rank), _) => Some(Reason::Mismatch { rank }),
            (None, Some(waited)) => Some(Reason::Timeout { ranks, waited }),
            (None, None) => None,
        };
        if let Some(reason) = why {
            patience.complete = true;
            return seat.surrender(round, &reason);
        }
        let sleep = |slice| {
            self.waits
                .sleep(seat.storage.control(), seat.me, round, slice, asleep);
        };
        match climb.step(pending, |here| self.beside(here, round), sleep) {
            Step::Again => {}
            Step::Slice { waited } => {
                if let Some(slice) = &self.slice {
                    slice();
                }
                self.inspect(round, pending, arrived)?;
                if waited >= SILENCE && !std::mem::replace(&mut patience.told, true) {
                    self.tell_silence(round, pending, waited);
                }
            }
            // One more look: a rank that has come with another call is not missing.
            Step::Expired { waited } => patience.expired = Some(waited),
        }
        Ok(())
    }

    /// The peers that may be on the CPU `here`. Where they were in an earlier round, as a rule: the rows of `round` tell even
    /// before they are replaced.
    fn beside(&self, here: Place, round: u64) -> u64 {
        let rows = self.seat.storage.rows(round);
        let beside = |peer: &usize| here.may_be(rows[*peer].stamp().place());
        mask(bits(self.others()).filter(beside))
    }

    /// This rank has seen what it waited for of every peer, and whoever sleeps can.
    #[inline(always)]
    fn seen_all(&self, control: &Control, awaited: Awaited) {
        // ORDERING [F2] SeqCst fence between this rank's own word and the last peer's, and the outcome word and the
        // waiters: pairs with F3 and P2. A rank that gave up without seeing one of these words has closed the round
        // before, and is seen to have; a rank that fell asleep without seeing one has registered before, and is woken.
        full_fence("F2");
        // RULE [O9] Whoever has seen all wakes: no rank can know that another will.
        if !weakened("O9") {
            self.waits.wake(control, awaited);
        }
    }

    /// The outcome of `round`, all of whose contributions this rank has [seen](Self::seen_all): in practice one load.
    #[inline(always)]
    fn agree(&self, control: &Control, round: u64) -> Result<(), Failure> {
        let word = control.word();
        if word.about(round) == Cmp::Less && !matches!(word.state(), State::Failed { .. }) {
            return Ok(());
        }
        self.seat.outcome(round, word)
    }

    fn has_ended(&self, round: u64) -> bool {
        let word = self.seat.storage.control().word();
        // RULE [O4] A failure of a newer round is not this round's: its rows are all there or on their way.
        matches!(word.state(), State::Failed { .. })
            && (word.about(round) != Cmp::Greater || weakened("O4"))
    }

    /// The failure that ended `round` or an earlier one, if one did.
    fn ended(&self, round: u64) -> Option<Failure> {
        self.has_ended(round)
            .then(|| self.seat.failure(self.seat.storage.control().word(), round))
    }

    /// Sees whether the missing ranks are still there, and gives up on the first that died, else on the first that left.
    #[cold]
    fn inspect(
        &self,
        round: u64,
        missing: u64,
        arrived: &dyn Fn(usize) -> bool,
    ) -> Result<(), Failure> {
        let left = |rank| self.seat.storage.member(rank).left().is_some();
        let dead = |rank| (self.peers.as_ref()).is_some_and(|peers| !peers.alive(rank));
        // RULE [L2] Leavers first, locks last: whoever left may have been told of a death in another group.
        let leaver = bits(missing).find(|rank| left(*rank) && !arrived(*rank));
        // RULE [L1] A rank publishes, then closes, then loses its lock. Test the lock first, `closed` second, the stamps last;
        // what is still overlooked the outcome corrects.
        let died = bits(missing).find(|rank| dead(*rank) && !left(*rank) && !arrived(*rank));
        let reason = match (died, leaver) {
            (Some(rank), _) => Reason::Died { rank },
            (None, Some(rank)) => Reason::Closed { rank },
            (None, None) => return Ok(()),
        };
        self.seat.surrender(round, &reason)
    }

    fn tell_silence(&self, round: u64, missing: u64, waited: Duration) {
        if let Some(notice) = &self.notice {
            bits(missing).for_each(|rank| {
                notice(&origin::last_seen(&self.seat.storage, rank, round), waited);
            });
        }
    }

    fn settle<T>(&mut self, round: u64, settled: Result<T, Failure>) -> Result<T, RoundError> {
        let settled = settled.map_err(|failure| self.poison(failure))?;
        // Relaxed: what a peer writes for a later round comes after the stamp of the next one, and so after this.
        self.seat
            .unsettled
            .store(round.wrapping_add(1), Ordering::Relaxed);
        self.last = round;
        if self.timing.is_some() {
            self.timing = Some(self.measure(round));
        }
        Ok(settled)
    }

    #[cold]
    fn poison(&mut self, failure: Failure) -> RoundError {
        // Where the table contradicts itself, its outcome word may not say so.
        self.closed |= !self.has_ended(failure.round);
        self.failure = Some(failure.clone());
        RoundError::Failed(failure)
    }

    fn measure(&self, round: u64) -> Timing {
        let now = monotonic_ns();
        let rows = self.seat.storage.rows(round);
        let arrived = |row: &Row| row.arrived_ns().load(Ordering::Relaxed);
        let mine = arrived(&rows[self.seat.me]);
        // Peers may not measure: what they leave then is no arrival of this round.
        let last = rows
            .iter()
            .map(arrived)
            .filter(|at| *at <= now)
            .max()
            .unwrap_or(mine)
            .max(mine);
        Timing {
            skew: Duration::from_nanos(last - mine),
            transport: Duration::from_nanos(now.saturating_sub(last)),
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if std::thread::panicking() && !cfg!(loom) {
            self.aborter().abort("a thread of this rank panicked");
        }
        self.close();
    }
}

/// A row that this rank has published for a reduction.
#[derive(Clone, Copy, Debug)]
struct Posted {
    round: u64,
    stamp: Stamp,
    kind: Kind,
}

/// What a wait remembers beyond its first polls.
#[derive(Debug, Default)]
struct Patience {
    /// The deadline has passed, after so long.
    expired: Option<Duration>,
    /// This rank wanted to give up, and found that all have come.
    complete: bool,
    /// The silence has been told.
    told: bool,
}

/// A total that does not fit its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Overflow {
    slot: usize,
}

impl From<Overflow> for RoundError {
    fn from(Overflow { slot }: Overflow) -> Self {
        Self::Overflow { slot }
    }
}

/// Slot by slot: no call for a few words, and no larger piece is read than was written.
#[inline(always)]
fn copied(slots: &[i64]) -> [i64; MAX_SLOTS] {
    std::array::from_fn(|at| slots.get(at).copied().unwrap_or(0))
}

#[inline(always)]
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let rank = mask.trailing_zeros() as usize;
        (mask != 0).then(|| {
            mask &= mask - 1;
            rank
        })
    })
}

/// The ranks as [`bits`] of one word.
fn mask(ranks: impl Iterator<Item = usize>) -> u64 {
    ranks.fold(0, |mask, rank| mask | 1 << rank)
}

/// The monotonic clock that all processes of this machine share, in nanoseconds.
#[cfg(not(loom))]
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The clock of a model, in which time does not pass.
#[cfg(loom)]
#[must_use]
pub fn monotonic_ns() -> u64 {
    0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rows_tell_who_may_be_beside() {
        let storage = Arc::new(Storage::heap(Geometry::new(4, 4).expect("small"), 1));
        let [unknown, here, there] = [0, 3, 4].map(Place);
        let places = [here, there, unknown, here];
        let mut tables: Vec<_> = (0..4)
            .map(|me| Table::new(Arc::clone(&storage), me, Ladder::yielding()))
            .collect();
        assert_eq!(tables[0].beside(here, 1), 0b1110, "anybody, before a call");
        for (table, place) in tables.iter_mut().zip(places) {
            table.waits.place.set(place);
            table
                .post_row(Kind::Min, "m", &[1])
                .expect("nothing has failed");
        }
        let masks = tables.iter().zip(places);
        let masks: Vec<_> = masks.map(|(table, place)| table.beside(place, 1)).collect();
        assert_eq!(masks, [0b1100, 0b0100, 0b1011, 0b0101]);
    }
}
