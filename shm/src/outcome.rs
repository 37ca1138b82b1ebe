//! One outcome for each round: the word that a rank which gives up and a rank which completes both pass through.

use crate::layout::Control;
use crate::storage::Storage;
use crate::sync::{Ordering, full_fence, order, weakened};
use std::cmp::Ordering as Cmp;

/// What stands in the outcome word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody has given up yet, or somebody is about to: the round of the word can still end either way.
    Undecided,
    Complete,
    /// Final: nothing replaces it. Carries the rank whose origin record tells why.
    Failed {
        by: usize,
    },
}

const STATE_SHIFT: u32 = 8;
const ROUND_SHIFT: u32 = 10;
const ORIGIN_MASK: u64 = 0xff;

/// The outcome word.
///
/// ```text
///  63                        10 9     8 7         0
/// +----------------------------+-------+-----------+
/// |    low 54 bits of round    | state | origin    |
/// +----------------------------+-------+-----------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    pub(crate) fn new(round: u64, state: State) -> Self {
        let (code, by) = match state {
            State::Undecided => (0, 0),
            State::Complete => (1, 0),
            State::Failed { by } => (2, by as u64),
        };
        Self(round << ROUND_SHIFT | code << STATE_SHIFT | by & ORIGIN_MASK)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn state(self) -> State {
        match self.0 >> STATE_SHIFT & 3 {
            0 => State::Undecided,
            1 => State::Complete,
            _ => State::Failed {
                by: usize::try_from(self.0 & ORIGIN_MASK).unwrap_or(0),
            },
        }
    }

    /// Whether the word is about an older, this or a newer round than `round`, by wrapping difference.
    #[expect(
        clippy::cast_possible_wrap,
        reason = "the sign of the difference is what is wanted"
    )]
    pub(crate) fn about(self, round: u64) -> Cmp {
        (((self.0 >> ROUND_SHIFT).wrapping_sub(round) << ROUND_SHIFT) as i64).cmp(&0)
    }

    /// The full number of the word's round, given a round close to it.
    pub(crate) fn round_near(self, near: u64) -> u64 {
        let difference = ((self.0 >> ROUND_SHIFT).wrapping_sub(near) << ROUND_SHIFT).cast_signed()
            >> ROUND_SHIFT;
        near.wrapping_add_signed(difference)
    }
}

impl Control {
    #[inline(always)]
    pub(crate) fn word(&self) -> Word {
        // ORDERING [C2] Acquire: pairs with the swaps in close() and decide(); whoever reads `failed` sees the origin
        // record behind it.
        Word(self.outcome.load(order("C2", Ordering::Acquire)))
    }

    /// ORDERING [C1] AcqRel: pairs with the load in word(); publishes the origin record. The failure ordering is Acquire
    /// because what stands there instead is acted upon.
    fn swap(&self, from: Word, to: Word) -> Result<(), Word> {
        // RULE [O1] The word is swapped, never stored: the first proposal stands.
        if weakened("O1") {
            self.outcome.store(to.0, Ordering::SeqCst);
            return Ok(());
        }
        self.outcome
            .compare_exchange(
                from.0,
                to.0,
                order("C1", Ordering::AcqRel),
                order("C1", Ordering::Acquire),
            )
            .map(|_| ())
            .map_err(Word)
    }

    /// Moves the word forward to (`round`, undecided), from any older round and from no other.
    fn close(&self, round: u64) {
        let mut seen = self.word();
        // RULE [O2] From an older round only: what is decided about this one, or a newer one, is not reopened.
        while (seen.about(round) == Cmp::Less || weakened("O2"))
            && !matches!(seen.state(), State::Failed { .. })
        {
            match self.swap(seen, Word::new(round, State::Undecided)) {
                Ok(()) => break,
                Err(other) => seen = other,
            }
        }
    }

    /// Proposes `wanted` for `round`; returns what is true afterwards, on every rank.
    pub(crate) fn decide(&self, round: u64, wanted: State) -> State {
        match self.swap(Word::new(round, State::Undecided), Word::new(round, wanted)) {
            Ok(()) => wanted,
            Err(other) => other.verdict(round),
        }
    }
}

impl Word {
    /// What the word says about `round` once it is no longer undecided.
    ///
    /// A newer round can only be in the word if this one completed: its ranks have all settled this one, or the rank
    /// that gave up on the newer one has.
    pub(crate) fn verdict(self, round: u64) -> State {
        match self.about(round) {
            // RULE [O3] A newer round in the word says that this one completed, not what became of it.
            Cmp::Greater if weakened("O3") => self.state(),
            Cmp::Greater => State::Complete,
            Cmp::Less | Cmp::Equal => self.state(),
        }
    }
}

/// Ends `round` without waiting any longer: complete if `complete` finds every contribution there, failed otherwise.
///
/// `record` writes the origin record of rank `me` and is called only where a contribution is missing. Returns the
/// outcome that holds on every rank, which may be another rank's.
pub(crate) fn give_up(
    storage: &Storage,
    me: usize,
    round: u64,
    complete: impl Fn() -> bool,
    record: impl FnOnce(),
) -> State {
    let control = storage.control();
    control.close(round);
    // ORDERING [F3] SeqCst fence between closing the round and looking again: pairs with F2. Either this scan
    // sees the row, or whoever has seen all rows sees the closing and comes through decide() as well.
    full_fence("F3");
    let outcome = if complete() {
        control.decide(round, State::Complete)
    } else if let State::Failed { .. } = control.word().state() {
        // Failed already, perhaps by this very rank: its record is being read, and no other takes its place.
        return control.word().verdict(round);
    } else {
        record();
        control.decide(round, State::Failed { by: me })
    };
    if outcome != State::Complete {
        crate::park::wake(control);
    }
    outcome
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_returns_what_it_was_made_of(round: u64, by in 0_usize..64) {
            for state in [State::Undecided, State::Complete, State::Failed { by }] {
                let word = Word::new(round, state);
                prop_assert_eq!(word.state(), state);
                prop_assert_eq!(word.about(round), Cmp::Equal);
                prop_assert_eq!(word.about(round.wrapping_add(1)), Cmp::Less);
                prop_assert_eq!(word.about(round.wrapping_sub(1)), Cmp::Greater);
                prop_assert_eq!(word.round_near(round.wrapping_add(5)), round);
            }
        }
    }

    #[test]
    fn rounds_compare_across_every_wrap() {
        for shift in [8, 16, 31, 32, 53, 54, 63] {
            let edge = 1_u64 << shift;
            let before = Word::new(edge.wrapping_sub(1), State::Undecided);
            assert_eq!(before.about(edge), Cmp::Less);
            assert_eq!(before.round_near(edge), edge - 1);
        }
        assert_eq!(Word::new(u64::MAX, State::Complete).about(0), Cmp::Less);
    }
}
