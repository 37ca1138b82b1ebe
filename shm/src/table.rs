//! The round protocol: all write, all read, one outcome.

use crate::call::{Announcement, Form, Kind, Stamp, Width};
use crate::label::{Interned, LabelError};
use crate::layout::{Geometry, MAX_SLOTS, Row};
use crate::liveness::Liveness;
use crate::member::Leave;
use crate::origin::{self, Failure, Missing, Reason};
use crate::outcome::{State, Word, give_up};
use crate::park::{self, Climb, Ladder, Step};
use crate::process::Process;
use crate::row::form_of;
use crate::storage::Storage;
use crate::sync::{AtomicU64, Mutex, Ordering, full_fence, weakened};
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
pub struct Table {
    seat: Arc<Seat>,
    /// The round the next call gets.
    next: u64,
    labels: Interned,
    ladder: Ladder,
    peers: Option<Box<dyn Liveness>>,
    notice: Option<Notice>,
    failure: Option<Failure>,
    closed: bool,
    timing: Option<Timing>,
}

/// What a rank's own threads share: the table, and the right to speak for the rank.
#[derive(Debug)]
struct Seat {
    storage: Arc<Storage>,
    me: usize,
    /// The oldest round this rank has not settled. Process memory: peers have no use for it.
    unsettled: AtomicU64,
    /// The process that sat down here. A forked child touches nothing.
    owner: Process,
    /// Held while this rank's origin record is written and proposed, so that two of its threads cannot mix theirs.
    speaking: Mutex<()>,
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
        let next = storage.first_round();
        let unsettled = AtomicU64::new(next);
        Self {
            seat: Arc::new(Seat {
                storage,
                me,
                unsettled,
                owner: Process::current(),
                speaking: Mutex::new(()),
            }),
            next,
            labels: Interned::default(),
            ladder,
            peers: None,
            notice: None,
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
    /// Blocks until all ranks have made the same call, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`RoundError::Failed`] if the round failed: on every rank, with the same origin. The slots are then unchanged.
    #[inline]
    pub fn all_reduce(
        &mut self,
        kind: Kind,
        label: &str,
        slots: &mut [i64],
        timeout: Duration,
    ) -> Result<(), RoundError> {
        if slots.len() > MAX_SLOTS {
            return Err(RoundError::TooWide(slots.len()));
        }
        let (round, stamp) = self.publish(
            kind,
            Width::Slots(slots.len()),
            form_of(slots),
            label,
            slots,
        )?;
        let mut buffer = [0; MAX_SLOTS];
        let total = &mut buffer[..slots.len()];
        total.copy_from_slice(slots);
        let rows = self.seat.storage.rows(round);
        let settled = self.wait_for_all(
            round,
            timeout,
            self.row_watch(rows, round),
            |peer, theirs: Stamp| {
                let same = theirs.same_call(stamp);
                if same {
                    rows[peer].fold_into(kind, theirs.form(), total);
                }
                same
            },
        );
        let settled = settled.and_then(|()| self.agree(round));
        if settled.is_ok() {
            slots.copy_from_slice(total);
        }
        self.settle(round, settled)
    }

    /// What every rank contributed to `slot` of the last row round, which must have been a reduction of that width.
    ///
    /// Valid until this rank's next call: its peers cannot reuse the rows before.
    #[must_use]
    pub fn contributions(&self, slot: usize) -> Option<Vec<i64>> {
        let read = |row: &Row| {
            let stamp = row.stamp();
            let mut slots = [0; MAX_SLOTS];
            let width = usize::try_from(stamp.width_code())
                .ok()
                .filter(|w| slot < *w && *w <= MAX_SLOTS)?;
            row.read(stamp.form(), &mut slots[..width]);
            stamp.is_round(self.round()).then_some(slots[slot])
        };
        self.seat
            .storage
            .rows(self.round())
            .iter()
            .map(read)
            .collect()
    }

    /// Announces a call that does not fit a row of slots and waits until all ranks have announced the same.
    ///
    /// `description` is compared; `travelling` is how many bytes this rank sends by another way, and `free` is for the
    /// caller's use: both can be read with [`Table::announced`]. Where no rank sends anything, the round is over when
    /// this returns `false`. Otherwise it stays open until [`Table::commit`] or [`Table::fail`].
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
    ) -> Result<bool, RoundError> {
        let words = announcement.words(description);
        let (round, stamp) = self.publish(kind, Width::Wide, Form::Short, label, &words)?;
        let rows = self.seat.storage.rows(round);
        let announced = self.wait_for_all(
            round,
            timeout,
            self.row_watch(rows, round),
            |peer, theirs: Stamp| {
                theirs.same_call(stamp) && rows[peer].description() == description
            },
        );
        // That all have announced decides nothing as long as data travels: the round completes when all have theirs.
        let open = announced.is_ok() && data_travels(rows);
        let settled = if open {
            announced
        } else {
            announced.and_then(|()| self.agree(round))
        };
        if open {
            Ok(true)
        } else {
            self.settle(round, settled).map(|()| false)
        }
    }

    /// What `rank` announced in the last round.
    #[must_use]
    pub fn announced(&self, rank: usize) -> Announcement {
        self.seat.storage.rows(self.round())[rank].announcement()
    }

    /// Says that this rank holds all data of the open round, and waits until all ranks do: only then has it completed.
    ///
    /// # Errors
    ///
    /// As [`Table::all_reduce`].
    pub fn commit(&mut self, timeout: Duration) -> Result<(), RoundError> {
        let (round, storage) = (self.round(), &self.seat.storage);
        storage.member(self.seat.me).finish(round);
        // ORDERING [F4] SeqCst fence between `done` and the scan: pairs with F3 and P2, as F1 does for stamps.
        full_fence("F4");
        let watch = |peer: usize| storage.member(peer).has_finished(round).then_some(());
        let settled = self.wait_for_all(round, timeout, watch, |_, ()| true);
        let settled = settled.and_then(|()| self.agree(round));
        self.settle(round, settled)
    }

    /// While data travels: whether the open round can still complete. Looks at the outcome word and at every peer.
    ///
    /// # Errors
    ///
    /// The failure of the open round, if somebody gave up on it, died or left.
    pub fn watch(&mut self) -> Result<(), RoundError> {
        let (round, others) = (self.round(), self.others());
        let result = match self.ended(round) {
            Some(failure) => Err(failure),
            None => self.inspect(round, others, &|peer| {
                self.seat.storage.member(peer).has_finished(round)
            }),
        };
        result.map_err(|failure| self.poison(failure))
    }

    /// Gives up on the open round because its data cannot arrive.
    pub fn fail(&mut self, why: Trouble<'_>) -> RoundError {
        let round = self.round();
        let reason = match why {
            Trouble::Died { rank } => Reason::Died { rank },
            Trouble::Closed { rank } => Reason::Closed { rank },
            Trouble::Timeout { ranks, waited } => Reason::Timeout {
                ranks: ranks.iter().fold(0, |bits, rank| bits | 1 << rank),
                waited,
            },
            Trouble::Other(text) => Reason::Aborted { text, origin: None },
        };
        match self.seat.surrender(round, &reason) {
            Err(failure) => self.poison(failure),
            // This rank has not committed, so the round cannot have completed.
            Ok(()) => self.poison(contradiction(round, self.seat.me)),
        }
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
        form: Form,
        label: &str,
        words: &[i64],
    ) -> Result<(u64, Stamp), RoundError> {
        let (round, seat) = (self.next, &*self.seat);
        if self.closed
            || !seat.owner.is_here()
            || matches!(seat.storage.control().word().state(), State::Failed { .. })
        {
            return Err(self.refuse());
        }
        let label = self.labels.id(&seat.storage, label)?;
        let stamp = Stamp::new(round, kind, width, form, label);
        let row = &seat.storage.rows(round)[seat.me];
        row.fill(words, form);
        if self.timing.is_some() {
            row.arrived_ns.store(monotonic_ns(), Ordering::Relaxed);
        }
        row.publish(stamp);
        // ORDERING [F1] SeqCst fence between the stamp and the scan: pairs with F3 and P2. A rank that gives up either
        // sees this row or is seen by this rank; a rank that sleeps either sees this row or is woken.
        full_fence("F1");
        self.next = round.wrapping_add(1);
        Ok((round, stamp))
    }

    /// Why a call cannot begin: the failure itself the first time, then the memory of it.
    #[cold]
    fn refuse(&mut self) -> RoundError {
        if !self.seat.owner.is_here() {
            return RoundError::Forked;
        }
        match (&self.failure, self.ended(self.next)) {
            (Some(failure), _) => RoundError::Poisoned(failure.clone()),
            (None, Some(failure)) => self.poison(failure),
            (None, None) => RoundError::Closed,
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

    /// Waits until `look` has found something new of every peer and `take` has accepted it.
    ///
    /// `take` is called once for each peer and answers whether the peer made the same call.
    #[inline(always)]
    fn wait_for_all<S>(
        &self,
        round: u64,
        timeout: Duration,
        look: impl Fn(usize) -> Option<S>,
        mut take: impl FnMut(usize, S) -> bool,
    ) -> Result<(), Failure> {
        let seat = &*self.seat;
        let mut pending = self.others();
        let mut scan = |pending: &mut u64| {
            for peer in bits(*pending) {
                if let Some(seen) = look(peer) {
                    if !take(peer, seen) {
                        return Some(peer);
                    }
                    *pending &= !(1 << peer);
                }
            }
            None
        };
        let mut stranger = scan(&mut pending);
        if pending == 0 {
            // Only who finds everything there at the first look can be what a sleeper waits for.
            park::wake_fenced(seat.storage.control());
        }
        let mut climb = Climb::new(&self.ladder, timeout);
        let (mut complete, mut told) = (false, false);
        while pending != 0 {
            if complete {
                return Err(contradiction(round, seat.me));
            }
            if let Some(failure) = self.ended(round) {
                return Err(failure);
            }
            let asleep = || bits(pending).any(|peer| look(peer).is_some()) || self.has_ended(round);
            if let Some(rank) = stranger {
                seat.surrender(round, &Reason::Mismatch { rank })?;
                complete = true;
            } else {
                match climb
                    .step(|slice| park::sleep(seat.storage.control(), seat.me, slice, asleep))
                {
                    Step::Again => {}
                    Step::Slice { waited } => {
                        self.inspect(round, pending, &|peer| look(peer).is_some())?;
                        if waited >= SILENCE && !std::mem::replace(&mut told, true) {
                            self.tell_silence(round, pending, waited);
                        }
                    }
                    Step::Expired { waited } => {
                        seat.surrender(
                            round,
                            &Reason::Timeout {
                                ranks: pending,
                                waited,
                            },
                        )?;
                        complete = true;
                    }
                }
            }
            stranger = scan(&mut pending);
        }
        Ok(())
    }

    /// The outcome of `round`, all of whose contributions this rank has seen: in practice one load.
    #[inline(always)]
    fn agree(&self, round: u64) -> Result<(), Failure> {
        // ORDERING [F2] SeqCst fence between the last stamp and the outcome word: pairs with F3. A rank that gave up
        // without seeing one of these stamps has closed the round before, and is seen to have.
        full_fence("F2");
        let word = self.seat.storage.control().word();
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

    /// Sees whether the missing ranks are still there, and gives up on the first that is not.
    #[cold]
    fn inspect(
        &self,
        round: u64,
        missing: u64,
        arrived: &dyn Fn(usize) -> bool,
    ) -> Result<(), Failure> {
        for rank in bits(missing) {
            // The order matters: a rank publishes, then closes, then loses its lock. Test the lock first, `closed` second,
            // the stamps last; what is still overlooked the outcome corrects.
            let alive = self.peers.as_ref().is_none_or(|peers| peers.alive(rank));
            let closed = self.seat.storage.member(rank).left().is_some();
            if (alive && !closed) || arrived(rank) {
                continue;
            }
            let reason = if closed {
                Reason::Closed { rank }
            } else {
                Reason::Died { rank }
            };
            self.seat.surrender(round, &reason)?;
        }
        Ok(())
    }

    fn tell_silence(&self, round: u64, missing: u64, waited: Duration) {
        if let Some(notice) = &self.notice {
            bits(missing).for_each(|rank| {
                notice(&origin::last_seen(&self.seat.storage, rank, round), waited);
            });
        }
    }

    fn settle(&mut self, round: u64, settled: Result<(), Failure>) -> Result<(), RoundError> {
        settled.map_err(|failure| self.poison(failure))?;
        // Relaxed: what a peer writes for a later round comes after the stamp of the next one, and so after this.
        self.seat
            .unsettled
            .store(round.wrapping_add(1), Ordering::Relaxed);
        if self.timing.is_some() {
            self.timing = Some(self.measure(round));
        }
        Ok(())
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
        let arrived = |row: &Row| row.arrived_ns.load(Ordering::Relaxed);
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

impl Seat {
    /// Whether this rank has settled `round`: proof that it completed, whatever its buffers hold by now.
    fn has_settled(&self, round: u64) -> bool {
        Word::new(round, State::Undecided).about(self.unsettled.load(Ordering::Relaxed))
            == Cmp::Less
    }

    fn failure(&self, word: Word, near: u64) -> Failure {
        match word.state() {
            State::Failed { by } => origin::read(&self.storage, by, word.round_near(near)),
            State::Undecided | State::Complete => contradiction(near, self.me),
        }
    }

    /// Gives up on `round`. Returns what holds on every rank: that it completed all the same, or why it failed.
    #[cold]
    fn surrender(&self, round: u64, reason: &Reason<'_>) -> Result<(), Failure> {
        let _speaking = self.speaking.lock();
        let complete = || {
            is_complete(&self.storage, self.me, round) || {
                // ORDERING [F5] SeqCst fence between the look at rows and `unsettled`: pairs with F1 and F4 of peers. A
                // row or `done` of a later round was written after this rank had settled the present one, and said so.
                full_fence("F5");
                // RULE [O6] What this rank has settled has completed, whatever the buffers hold by now.
                !weakened("O6") && self.has_settled(round)
            }
        };
        give_up(&self.storage, self.me, round, complete, || {
            reason.record(&self.storage, self.me, round);
        });
        self.outcome(round, self.storage.control().word())
    }

    /// The outcome of `round`, whose contributions are all there or which somebody gave up on.
    #[cold]
    fn outcome(&self, round: u64, word: Word) -> Result<(), Failure> {
        match word.verdict(round) {
            State::Complete => Ok(()),
            State::Failed { .. } => Err(self.failure(word, round)),
            State::Undecided => match self.storage.control().decide(round, State::Complete) {
                State::Complete => Ok(()),
                _ => Err(self.failure(self.storage.control().word(), round)),
            },
        }
    }
}

impl Storage {
    /// Puts every buffer, and the outcome word, into the state they have just before `first_round`.
    ///
    /// Nobody else may have the table yet: whatever hands it over orders these writes.
    pub(crate) fn prepare(&self, first_round: u64) {
        let before = first_round.wrapping_sub(1);
        self.header().first.store(first_round, Ordering::Relaxed);
        self.control()
            .outcome
            .store(Word::new(before, State::Complete).bits(), Ordering::Relaxed);
        for rank in 0..self.geometry().ranks() {
            self.member(rank).done.store(before, Ordering::Relaxed);
        }
        for back in 1..=self.geometry().buffers() as u64 {
            let tenant = first_round.wrapping_sub(back);
            for row in self.rows(tenant) {
                row.stamp.store(Stamp::vacant(tenant).0, Ordering::Relaxed);
            }
        }
    }
}

/// Whether every contribution to `round` is there: the one predicate that decides an outcome. Monotone, made of shared
/// words only, and the same on all ranks.
fn is_complete(storage: &Storage, me: usize, round: u64) -> bool {
    let rows = storage.rows(round);
    let mine = rows[me].stamp();
    if !mine.is_round(round) {
        // Either not yet published, or the buffer has a later tenant: then this rank settled `round` long ago.
        return !mine.is_round(round.wrapping_sub(storage.geometry().buffers() as u64));
    }
    let described = |row: &Row| !mine.is_wide() || row.description() == rows[me].description();
    rows.iter()
        .all(|row| row.stamp().same_call(mine) && described(row))
        && (!mine.is_wide()
            || !data_travels(rows)
            || (0..rows.len()).all(|rank| storage.member(rank).has_finished(round)))
}

/// Whether any rank sends data by another way; known once all rows of a described call are there.
fn data_travels(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.announcement().travelling != 0)
}

/// Shared memory says two things at once: only a writer outside of the protocol can bring that about.
#[cold]
fn contradiction(round: u64, me: usize) -> Failure {
    let reason = "the table contradicts itself: something else writes to it".to_owned();
    Failure {
        round,
        by: me,
        cause: origin::Cause::Aborted {
            reason,
            origin: None,
        },
    }
}

/// Aborts a group from any thread of the process.
#[derive(Clone, Debug)]
pub struct Aborter {
    seat: Arc<Seat>,
}

impl Aborter {
    /// Fails the round that this rank is in, or its next one, on all ranks, and with it every later one.
    ///
    /// Rounds that this rank has settled stay settled everywhere. Does not block. A group that has failed already keeps
    /// its first reason. Of `reason`, [`REASON_BYTES`](crate::REASON_BYTES) bytes are kept.
    pub fn abort(&self, reason: &str) {
        self.abort_for(None, reason);
    }

    /// As [`Aborter::abort`], on behalf of somebody else: `origin` is returned in [`Cause::Aborted`](crate::Cause).
    pub fn abort_for(&self, origin: Option<u32>, reason: &str) {
        if !self.seat.owner.is_here() {
            return;
        }
        let mut round = self.seat.unsettled.load(Ordering::Relaxed);
        // The owner may settle the round meanwhile; then the next one is tried. The owner cannot win often: it needs all
        // peers for each round, and this thread nobody.
        for _ in 0..1_000_000 {
            if self
                .seat
                .surrender(
                    round,
                    &Reason::Aborted {
                        text: reason,
                        origin,
                    },
                )
                .is_err()
            {
                return;
            }
            let unsettled = self.seat.unsettled.load(Ordering::Relaxed);
            round = round.wrapping_add(1);
            if Word::new(round, State::Undecided).about(unsettled) == Cmp::Less {
                round = unsettled;
            }
        }
    }
}

/// Why the data of an announced round cannot arrive. Ranks are those of the table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Trouble<'a> {
    /// A rank died.
    Died {
        /// The rank.
        rank: usize,
    },
    /// A rank has left.
    Closed {
        /// The rank.
        rank: usize,
    },
    /// The deadline passed.
    Timeout {
        /// Whose data is missing.
        ranks: &'a [usize],
        /// How long this rank has waited.
        waited: Duration,
    },
    /// Something else, in words.
    Other(&'a str),
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
