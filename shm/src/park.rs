//! Waiting: bare polls, a spin bounded in time, yields, then sleep on a shared futex in slices.

use crate::habit::Habit;
use crate::layout::Control;
use crate::place::Place;
use crate::sync::{AtomicU64, Ordering, full_fence, yield_now};
use std::cell::Cell;
use std::time::Duration;

/// How a rank waits. A local field: ranks of one group may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// Spin for so long.
    pub spin: Duration,
    /// But only while at most so many threads of this process wait awake: where more threads wait than there are CPUs, a
    /// spin delays the very peer it waits for.
    pub spinners: usize,
    /// Then yield the CPU between polls for so long; where no rank that is missing can be on it, after some polls.
    pub yields: Duration,
    /// Then sleep, looking up each time so much has passed: a dead peer is reported within one slice.
    pub slice: Duration,
    /// Leave out for a while what turns out to be in vain.
    pub adapts: bool,
}

impl Ladder {
    /// The longest slice of a built-in ladder, and between two checks on the peers of a wait that never sleeps.
    pub const SLICE: Duration = Duration::from_millis(50);
    /// Beyond what ranks of a steady job lag behind each other, so that light load adds no wake-up to each round.
    const YIELDS: Duration = Duration::from_micros(500);
    const SPIN: Duration = Duration::from_micros(20);

    /// About what a change of turns takes: who waits for ranks on other CPUs alone does not give up its own sooner.
    const TURN: Duration = Duration::from_micros(1);

    /// A yield that takes so long has not been shared by ranks of this job alone: something else has had the CPU.
    pub const LOST: Duration = Duration::from_micros(500);

    const PARKING: Self = Self {
        spin: Duration::ZERO,
        spinners: usize::MAX,
        yields: Duration::ZERO,
        slice: Self::SLICE,
        adapts: false,
    };

    /// Spin if every thread that waits can have a CPU of its own, then yield, then sleep; adapt to what else uses the CPUs.
    ///
    /// `processes` share `cpus`, and by symmetry each has as many waiting threads as this one.
    #[must_use]
    pub fn auto(processes: usize, cpus: usize) -> Self {
        Self {
            spin: Self::SPIN,
            spinners: cpus / processes.max(1),
            yields: Self::YIELDS,
            adapts: true,
            ..Self::PARKING
        }
    }

    /// Never leave the CPU.
    #[must_use]
    pub fn spinning() -> Self {
        Self {
            spin: Duration::MAX,
            ..Self::PARKING
        }
    }

    /// Never sleep, but yield.
    #[must_use]
    pub fn yielding() -> Self {
        Self {
            yields: Duration::MAX,
            ..Self::PARKING
        }
    }

    /// Sleep at once.
    #[must_use]
    pub fn parking() -> Self {
        Self::PARKING
    }

    /// How long to spin while so many threads of this process wait awake.
    #[must_use]
    pub fn spin_among(&self, awake: usize) -> Duration {
        if awake <= self.spinners {
            self.spin
        } else {
            Duration::ZERO
        }
    }
}

/// What the rounds of a table have cost this rank in system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// How often it went to sleep.
    pub sleeps: u64,
    /// How often it woke others.
    pub wakes: u64,
    /// How often it was seen to have yielded the CPU to something that kept it for long.
    pub lost: u64,
}

/// Polls between two looks at the clock while spinning, and before the first.
const CLOCK_EVERY: u32 = 64;

/// In one of so many waits a rank looks where it is and where the others are, and times even the first yield.
const SELDOM: u32 = 8;

/// Polls of a rank that waits for other CPUs alone and has none of its own to spin on: less than a turn.
const POLLS_OF_A_TURN: u32 = 32;

/// The waits of one table: how they go, what they teach, what they have cost.
///
/// Other jobs on the same CPUs cannot be counted, only be noticed, by spins in vain and by yields that last. Nothing of it
/// reaches a peer.
#[derive(Debug)]
pub(crate) struct Waits {
    ladder: Ladder,
    /// Whether ranks share CPUs, so that who waits yields and never spins.
    crowded: bool,
    /// Polls of the next wait before it first looks at the clock.
    bare: Cell<u32>,
    /// Where this rank was when it last looked. A hint for others.
    pub(crate) place: Cell<Place>,
    /// Which ranks may have been there too.
    beside: Cell<u64>,
    /// Waits until the next look.
    next_look: Cell<u32>,
    spins: Habit,
    yields: Habit,
    effort: Cell<Effort>,
}

impl Waits {
    pub(crate) fn new(ladder: Ladder) -> Self {
        let waits = Self {
            ladder,
            // In models every yield is a step of the climb.
            crowded: !cfg!(loom) && ladder.spin_among(1).is_zero() && !ladder.yields.is_zero(),
            bare: Cell::default(),
            place: Cell::default(),
            beside: Cell::new(u64::MAX),
            next_look: Cell::default(),
            spins: Habit::default(),
            yields: Habit::default(),
            effort: Cell::default(),
        };
        waits.prepare(ladder.spin_among(1));
        waits
    }

    pub(crate) fn effort(&self) -> Effort {
        self.effort.get()
    }

    /// How often the next wait may poll before it climbs, once nobody is missing whom it [gives way](Self::gives_way) to. In
    /// models every poll is a step of the climb.
    #[inline(always)]
    pub(crate) fn polls(&self) -> u32 {
        match self.crowded {
            true => POLLS_OF_A_TURN,
            false if cfg!(loom) => 0,
            false => self.bare.get(),
        }
    }

    /// How long the next wait may spin, as far as is known before it.
    pub(crate) fn spin(&self) -> Duration {
        if self.bare.get() == 0 {
            Duration::ZERO
        } else {
            self.ladder.spin
        }
    }

    /// Whom a rank looks at first, and does not poll for: those beside it, where ranks share CPUs. As long as one of them is
    /// missing it must give way, and the lines that others are about to write stay with them.
    #[inline(always)]
    pub(crate) fn first_looked_at(&self) -> u64 {
        if self.crowded { self.beside.get() } else { 0 }
    }

    fn prepare(&self, spin: Duration) {
        self.bare.set(if spin.is_zero() { 0 } else { CLOCK_EVERY });
    }

    /// How long a wait in `round` spins, and until when it yields, while so many threads of this process wait awake.
    fn budgets(&self, round: u64, awake: usize) -> (Duration, Duration) {
        let ladder = &self.ladder;
        let goes_on = |habit: &Habit| !ladder.adapts || habit.tries(round);
        let spin = if goes_on(&self.spins) {
            ladder.spin_among(awake)
        } else {
            Duration::ZERO
        };
        // A spin that was left out is yielded instead: the sleep begins when it would have.
        let yields = if goes_on(&self.yields) {
            ladder.spin.saturating_add(ladder.yields)
        } else {
            spin
        };
        self.prepare(spin);
        (spin, yields)
    }

    /// Yields to the `missing` ranks beside this one, if a wait in `round` may begin so without a look at the clock, which is
    /// half of what it costs besides the yield. Whether it did.
    ///
    /// Seldom it may not, but is to look around. Waits count, not rounds: ranks that take turns on a CPU also take turns in
    /// which of them need not wait, and one might never do so in the round in question.
    #[inline(always)]
    pub(crate) fn gives_way(&self, round: u64, missing: u64) -> bool {
        let left = self.next_look.get();
        let gives = self.crowded
            && left > 0
            && missing & self.beside.get() != 0
            && !(self.ladder.adapts && self.yields.doubts(round));
        self.next_look.set(left.saturating_sub(1));
        if gives {
            yield_now();
        }
        gives
    }

    /// Looks where this rank is, and by `places` who may be there too, if it is time to.
    fn look_around(&self, places: impl FnOnce(Place) -> u64) -> bool {
        let looks = self.next_look.get() == 0;
        if looks {
            self.next_look.set(SELDOM - 1);
            self.place.set(Place::here());
            self.beside.set(places(self.place.get()));
        }
        looks
    }

    fn spun_in_vain(&self, round: u64) {
        self.spins.failed(round, Habit::CHEAP);
    }

    /// Something else had the CPU for long. Who sleeps instead gets it back as soon as it is woken.
    fn lost_the_cpu(&self, round: u64) {
        self.count(|effort| effort.lost += 1);
        self.yields.failed(round, Habit::DEAR);
    }

    /// Sleeps for at most `slice` unless `look` finds something new after this rank has registered.
    ///
    /// No wake-up is lost: the sleeper registers (a), fences, looks (b); the waker writes (c), fences, reads the waiters
    /// (d). Of two sequentially consistent fences one comes first. If the sleeper's does, (d) sees (a) and wakes; if the
    /// waker's does, (b) sees (c) and does not sleep. A wake between (b) and the system call has changed the futex word
    /// since the ticket was read, and the kernel returns at once.
    pub(crate) fn sleep(
        &self,
        control: &Control,
        me: usize,
        round: u64,
        slice: Duration,
        look: impl FnOnce() -> bool,
    ) {
        let (futex, waiters) = (&control.futex, waiters(control, round));
        let ticket = futex.ticket();
        waiters.fetch_or(1 << me, Ordering::Relaxed);
        // ORDERING [P2] SeqCst fence between registering and looking: pairs with F1, F2, W1, S3 and T3.
        full_fence("P2");
        if !look() {
            self.count(|effort| effort.sleeps += 1);
            futex.sleep(ticket, slice);
            self.place.set(Place::here());
        }
        waiters.fetch_and(!(1 << me), Ordering::Relaxed);
    }

    /// Wakes whoever sleeps for what this rank has seen in full, if nobody else has set out to. A full fence lies between
    /// that and this call.
    ///
    /// One call is enough, whoever makes it: it changes the futex word after all was seen. Who reads its ticket before that
    /// is woken by it, or does not fall asleep; who reads it after that sees all, too.
    #[inline(always)]
    pub(crate) fn wake(&self, control: &Control, awaited: Awaited) {
        let (waiters, number) = (waiters(control, awaited.round()), awaited.number());
        // The bits stay: who sleeps for the data of a round may have registered while somebody still wakes for its rows.
        if waiters.load(Ordering::Relaxed) != 0
            && control.woken.load(Ordering::Relaxed) != number
            && control.woken.swap(number, Ordering::Relaxed) != number
        {
            control.futex.wake_all();
            self.count(|effort| effort.wakes += 1);
        }
    }

    /// Whether anybody sleeps in `round`; a full fence lies between what this rank wrote for it and this call.
    pub(crate) fn anybody_sleeps(control: &Control, round: u64) -> bool {
        waiters(control, round).load(Ordering::Relaxed) != 0
    }

    fn count(&self, what: impl FnOnce(&mut Effort)) {
        let mut effort = self.effort.get();
        what(&mut effort);
        self.effort.set(effort);
    }
}

/// What the ranks of a round wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaited {
    /// The rows of all.
    Rows(u64),
    /// That all hold the data that travels elsewhere.
    Data(u64),
}

impl Awaited {
    #[inline(always)]
    fn round(self) -> u64 {
        match self {
            Self::Rows(round) | Self::Data(round) => round,
        }
    }

    /// A number of its own, as good as for ever.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Rows(round) => round.wrapping_mul(2),
            Self::Data(round) => round.wrapping_mul(2).wrapping_add(1),
        }
    }
}

/// What to do after a poll that found somebody missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again.
    Again,
    /// A slice has passed: see whether the missing are still alive, then look again.
    Slice { waited: Duration },
    /// The deadline has passed.
    Expired { waited: Duration },
}

#[cfg(not(loom))]
mod climb {
    use super::{CLOCK_EVERY, Ladder, Step, Waits};
    use crate::place::Place;
    use crate::sync::{AtomicUsize, Ordering::Relaxed, spin_loop, yield_now};
    use std::time::{Duration, Instant};

    /// Threads of this process that wait without sleeping. Only a hint: it orders nothing.
    static AWAKE: AtomicUsize = AtomicUsize::new(0);

    /// A thread that waits without sleeping, and so wants a CPU. It counts until this is dropped.
    #[derive(Debug)]
    pub struct Awake(());

    impl Awake {
        /// The calling thread, and how many threads of this process there are now, itself included.
        #[must_use]
        pub fn here() -> (Self, usize) {
            (Self(()), AWAKE.fetch_add(1, Relaxed) + 1)
        }
    }

    impl Drop for Awake {
        fn drop(&mut self) {
            AWAKE.fetch_sub(1, Relaxed);
        }
    }

    /// One wait, climbing the ladder. Costs nothing until the first polls have failed.
    #[derive(Debug)]
    pub(crate) struct Climb<'a> {
        waits: &'a Waits,
        round: u64,
        timeout: Duration,
        /// Polls left before the next look at the clock; none once the spin is over.
        bare: u32,
        /// Whether it has made its first step.
        begun: bool,
        height: Option<Height>,
    }

    /// How far a wait has come that has looked at the clock.
    #[derive(Debug)]
    struct Height {
        started: Instant,
        /// How long ago that is, where nothing has taken time since the last look at the clock.
        waited: Option<Duration>,
        /// How long to spin; nothing once that is over.
        spin: Duration,
        /// Until when to yield.
        yields: Duration,
        /// When this rank got the CPU, as far as it knows.
        turn: Duration,
        next_slice: Duration,
        /// Until the first sleep.
        awake: Option<Awake>,
    }

    impl<'a> Climb<'a> {
        #[inline(always)]
        pub(crate) fn new(waits: &'a Waits, round: u64, timeout: Duration) -> Self {
            Self {
                waits,
                round,
                timeout,
                bare: waits.bare.get(),
                begun: false,
                height: None,
            }
        }

        /// The round this is a wait in.
        pub(crate) fn round(&self) -> u64 {
            self.round
        }

        /// Goes on where somebody else has made the bare polls.
        pub(crate) fn skip_polls(&mut self) {
            self.bare = 0;
        }

        /// Whether it is too early for anything but another poll.
        #[inline(always)]
        pub(crate) fn polls(&mut self) -> bool {
            let polls = self.bare > 0;
            if polls {
                self.bare -= 1;
                spin_loop();
            }
            polls
        }

        /// Waits a little, `sleep`ing where the ladder has come to that. Yields at once where one of the `missing` ranks may be
        /// on the CPU of this one: `places` finds out who may.
        #[cold]
        pub(crate) fn step(
            &mut self,
            missing: u64,
            places: impl FnOnce(Place) -> u64,
            sleep: impl FnOnce(Duration),
        ) -> Step {
            let (waits, round) = (self.waits, self.round);
            let ladder = &waits.ladder;
            let begins = !std::mem::replace(&mut self.begun, true) && !self.timeout.is_zero();
            if begins && !waits.look_around(places) && waits.gives_way(round, missing) {
                return Step::Again;
            }
            let beside = missing & waits.beside.get() != 0;
            let height = self.height.get_or_insert_with(|| {
                let (awake, threads) = Awake::here();
                let (spin, yields) = waits.budgets(round, threads);
                Height {
                    started: Instant::now(),
                    waited: Some(Duration::ZERO),
                    spin,
                    yields,
                    turn: Duration::ZERO,
                    next_slice: ladder.slice,
                    awake: Some(awake),
                }
            });
            let waited = height
                .waited
                .take()
                .unwrap_or_else(|| height.started.elapsed());
            if waited >= self.timeout {
                return Step::Expired { waited };
            }
            if waited >= height.next_slice {
                height.next_slice = waited + ladder.slice;
                return Step::Slice { waited };
            }
            if waited < height.spin {
                self.bare = CLOCK_EVERY;
                return Step::Again;
            }
            if !std::mem::take(&mut height.spin).is_zero() {
                waits.spun_in_vain(round);
            }
            if waited < height.yields {
                if waited < height.turn + Ladder::TURN && !beside {
                    spin_loop();
                    return Step::Again;
                }
                yield_now();
                let after = height.started.elapsed();
                if after >= waited + Ladder::LOST {
                    waits.lost_the_cpu(round);
                }
                height.waited = Some(after);
                height.turn = after;
            } else {
                height.awake = None;
                sleep((height.next_slice - waited).min(self.timeout - waited));
            }
            Step::Again
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_ladder_spins_only_while_every_waiting_thread_can_have_a_cpu() {
            let spins = |processes, cpus, threads| {
                !Ladder::auto(processes, cpus).spin_among(threads).is_zero()
            };
            assert!(spins(2, 2, 1) && spins(2, 5, 2) && spins(1, 2, 2));
            assert!(!spins(3, 2, 1) && !spins(2, 5, 3) && !spins(2, 2, 2));
            assert!(!Ladder::spinning().spin_among(usize::MAX).is_zero());
            assert!(Ladder::parking().spin_among(1).is_zero());
        }

        #[test]
        fn auto_leaves_out_what_is_in_vain_and_the_others_do_not() {
            let tried = |ladder| {
                let waits = Waits::new(ladder);
                let (mut spun, mut yielded) = (0, 0);
                for round in 1..=50 {
                    let (spin, yields) = waits.budgets(round, 1);
                    if !spin.is_zero() {
                        spun += 1;
                        waits.spun_in_vain(round);
                    }
                    if yields > spin {
                        yielded += 1;
                        waits.lost_the_cpu(round);
                    }
                }
                (spun, yielded)
            };
            let (spun, yielded) = tried(Ladder::auto(1, 1));
            assert!((5..20).contains(&spun) && (2..5).contains(&yielded));
            assert_eq!(tried(Ladder::yielding()), (0, 50));
            let stubborn = Ladder {
                adapts: false,
                ..Ladder::auto(1, 1)
            };
            assert_eq!(tried(stubborn), (50, 50));
        }

        #[test]
        fn who_waits_gives_way_where_ranks_share_cpus_and_no_yield_was_lost_of_late() {
            let crowded = Waits::new(Ladder::auto(4, 2));
            let begins = |round| !crowded.look_around(|_| 0b10) && crowded.gives_way(round, 0b10);
            let given =
                |rounds: std::ops::Range<u64>| rounds.filter(|round| begins(*round)).count();
            assert_eq!(given(1..81), 70);
            assert!(!crowded.gives_way(81, 0b01), "nobody beside");
            crowded.lost_the_cpu(80);
            assert_eq!(given(81..81 + u64::from(crate::Habit::DEAR) - 1), 0);
            assert_eq!(given(97..113), 14);
            // Several in a row: yields rest, and nobody gives way until one has been tried again.
            (113..116).for_each(|round| crowded.lost_the_cpu(round));
            assert_eq!(given(200..300), 0);

            let gives = |ladder| {
                let waits = Waits::new(ladder);
                waits.look_around(|_| 0b10) && waits.gives_way(1, 0b10)
            };
            assert!(gives(Ladder::yielding()));
            assert!(!gives(Ladder::auto(2, 2)) && !gives(Ladder::spinning()));
            assert!(!gives(Ladder::parking()));
        }

        /// The first step of a wait for rank 1, where the ranks of the mask `beside` are on this CPU; whether it took the time.
        fn first_step(waits: &Waits, beside: u64, timeout: Duration) -> (Step, bool) {
            let mut climb = Climb::new(waits, 1, timeout);
            let step = climb.step(0b10, |_| beside, |_| unreachable!("it does not sleep"));
            (step, climb.height.is_some())
        }

        #[test]
        fn who_waits_for_a_rank_beside_yields_at_once_and_takes_the_time_in_one_wait_of_eight() {
            let stubborn = Ladder {
                yields: Duration::MAX,
                adapts: false,
                ..Ladder::auto(4, 2)
            };
            let waits = Waits::new(stubborn);
            for wait in 0..24 {
                let timed = wait % 8 == 0;
                let taken = first_step(&waits, 0b11, Duration::MAX);
                assert_eq!(taken, (Step::Again, timed), "wait {wait}");
            }
            // Without time to yield it does not.
            let (step, timed) = first_step(&waits, 0b11, Duration::ZERO);
            assert!(timed && matches!(step, Step::Expired { .. }));
        }

        #[test]
        fn who_waits_for_other_cpus_alone_polls_for_a_turn_before_it_yields() {
            let waits = Waits::new(Ladder::yielding());
            let mut climb = Climb::new(&waits, 1, Duration::MAX);
            let mut turn = |beside| {
                climb.step(0b10, |_| beside, |_| unreachable!("it yields"));
                climb.height.as_ref().map(|height| height.turn)
            };
            assert_eq!(turn(0b101), Some(Duration::ZERO), "it has not yielded");
            std::thread::sleep(Ladder::TURN);
            // Looked up once a wait.
            assert!(turn(0b111) > Some(Duration::ZERO));
            assert_eq!(waits.beside.get(), 0b101);
        }

        #[test]
        fn a_rank_knows_its_place_from_its_first_wait_on() {
            let waits = Waits::new(Ladder::yielding());
            assert_eq!(waits.place.get(), Place::default());
            first_step(&waits, u64::MAX, Duration::MAX);
            assert!((1..16).contains(&waits.place.get().0));
        }

        #[test]
        fn a_thread_counts_as_awake_until_it_sleeps() {
            let waits = Waits::new(Ladder::parking());
            let mut climb = Climb::new(&waits, 1, Duration::from_secs(1));
            let awake = |climb: &Climb<'_>| {
                climb
                    .height
                    .as_ref()
                    .is_some_and(|height| height.awake.is_some())
            };
            assert!(!awake(&climb));
            let mut slept = false;
            // A parking ladder sleeps at its first step.
            assert_eq!(climb.step(1, |_| 1, |_| slept = true), Step::Again);
            assert!(slept && !awake(&climb));
            let waits = Waits::new(Ladder::yielding());
            let mut climb = Climb::new(&waits, 1, Duration::from_secs(1));
            // The first yield takes no notice of anything.
            for _ in 0..2 {
                let step = climb.step(1, |_| 1, |_| unreachable!("it yields"));
                assert_eq!(step, Step::Again);
            }
            assert!(awake(&climb));
        }
    }
}

#[cfg(loom)]
mod climb {
    use super::{Step, Waits};
    use crate::place::Place;
    use std::time::Duration;

    /// In models time does not pass: `timeout` in nanoseconds is how many polls may fail, and a ladder that neither
    /// spins for ever nor yields sleeps, for as long as nobody wakes it. A slice of no time has passed after every poll.
    #[derive(Debug)]
    pub(crate) struct Climb<'a> {
        waits: &'a Waits,
        round: u64,
        polls_left: u128,
    }

    impl<'a> Climb<'a> {
        pub(crate) fn new(waits: &'a Waits, round: u64, timeout: Duration) -> Self {
            Self {
                waits,
                round,
                polls_left: timeout.as_nanos(),
            }
        }

        pub(crate) fn round(&self) -> u64 {
            self.round
        }

        pub(crate) fn skip_polls(&mut self) {}

        pub(crate) fn polls(&mut self) -> bool {
            false
        }

        pub(crate) fn step(
            &mut self,
            _: u64,
            _: impl FnOnce(Place) -> u64,
            sleep: impl FnOnce(Duration),
        ) -> Step {
            self.polls_left = self.polls_left.saturating_sub(1);
            if self.polls_left == 0 {
                return Step::Expired {
                    waited: Duration::ZERO,
                };
            }
            let ladder = &self.waits.ladder;
            if ladder.spin < Duration::MAX && ladder.yields.is_zero() {
                sleep(ladder.slice);
            } else {
                crate::sync::yield_now();
            }
            if ladder.slice.is_zero() {
                Step::Slice {
                    waited: Duration::ZERO,
                }
            } else {
                Step::Again
            }
        }
    }
}

#[cfg(not(loom))]
pub use climb::Awake;
pub(crate) use climb::Climb;

/// Who sleeps in `round`. Without rounds in flight no rank is two rounds ahead of another that has yet to wake somebody;
/// with them, such a rank may wake those of a later round for nothing.
#[inline(always)]
fn waiters(control: &Control, round: u64) -> &AtomicU64 {
    &control.waiters[usize::from(round % 2 == 1)]
}

/// Wakes whoever sleeps in any round, after a word was written that can end all waits.
pub(crate) fn wake(control: &Control) {
    // ORDERING [W1] SeqCst fence between that word and the look at the waiters: pairs with P2.
    full_fence("W1");
    let [even, odd] = control.waiters.each_ref().map(take);
    if even || odd {
        control.futex.wake_all();
    }
}

/// Wakes whoever sleeps in `round`, if anybody does; a full fence lies between what this rank wrote for it and this call.
#[inline(always)]
pub(crate) fn wake_fenced(control: &Control, round: u64) {
    if take(waiters(control, round)) {
        control.futex.wake_all();
    }
}

/// Takes the bits of all `waiters`; whether there were any. A full fence lies between the word that ends their wait and
/// this call.
///
/// Of those who take bits, one makes the call; the others find none.
#[inline(always)]
fn take(waiters: &AtomicU64) -> bool {
    waiters.load(Ordering::Relaxed) != 0 && waiters.swap(0, Ordering::Relaxed) != 0
}
