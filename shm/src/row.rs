//! One row: writing slots into its words, folding them out again.

use crate::call::{Announcement, Form, Kind, Stamp};
use crate::layout::{MAX_SLOTS, Row};
use crate::sync::{AtomicU64, Ordering::Relaxed, fetch_to_write, order};

/// The words of the second line that are neither the eighth slot nor the time of arrival.
const SPARE: std::ops::Range<usize> = 2..7;

const LOW_56: u64 = (1 << 56) - 1;

/// Whether `value` survives as 56 signed bits.
#[inline(always)]
fn fits_56(value: i64) -> bool {
    value << 8 >> 8 == value
}

/// The form a row of these slots takes.
#[inline(always)]
pub(crate) fn form_of(slots: &[i64]) -> Form {
    // All of them in any case: no branch for each.
    if slots.len() < MAX_SLOTS || slots.iter().fold(true, |fit, slot| fit & fits_56(*slot)) {
        Form::Short
    } else {
        Form::Full
    }
}

/// Eight slots of 56 bits in seven words: words 0 to 6 carry slots 0 to 6, their top bytes carry slot 7.
#[inline(always)]
#[expect(clippy::cast_sign_loss, reason = "slots travel as bit patterns")]
fn pack(slots: &[i64; MAX_SLOTS]) -> [u64; 7] {
    let eighth = slots[7] as u64;
    std::array::from_fn(|i| (slots[i] as u64 & LOW_56) | (eighth >> (8 * i) & 0xff) << 56)
}

#[inline(always)]
#[expect(clippy::cast_possible_wrap, reason = "slots travel as bit patterns")]
fn unpack(words: &[u64; 7]) -> [i64; MAX_SLOTS] {
    let eighth = words
        .iter()
        .enumerate()
        .fold(0, |slot, (i, word)| slot | word >> 56 << (8 * i));
    std::array::from_fn(|i| {
        let low = if i < 7 { words[i] } else { eighth };
        (low << 8) as i64 >> 8
    })
}

/// Stores as many slots as one line takes: seven, or eight of 56 bits.
#[inline(always)]
#[expect(clippy::cast_sign_loss, reason = "slots travel as bit patterns")]
fn fill_line(line: &[AtomicU64; 7], slots: &[i64], form: Form) {
    if let (Form::Short, Ok(eight)) = (form, <&[i64; MAX_SLOTS]>::try_from(slots)) {
        for (word, value) in line.iter().zip(pack(eight)) {
            word.store(value, Relaxed);
        }
        return;
    }
    for (word, slot) in line.iter().zip(slots) {
        word.store(*slot as u64, Relaxed);
    }
}

/// The slots of one line, as many as `slots` has room for.
#[inline(always)]
#[expect(clippy::cast_possible_wrap, reason = "slots travel as bit patterns")]
fn read_line(line: &[AtomicU64; 7], slots: &mut [i64], form: Form) {
    if let (Form::Short, Ok(eight)) = (form, <&mut [i64; MAX_SLOTS]>::try_from(&mut *slots)) {
        *eight = unpack(&std::array::from_fn(|i| line[i].load(Relaxed)));
        return;
    }
    for (slot, word) in slots.iter_mut().zip(line) {
        *slot = word.load(Relaxed) as i64;
    }
}

/// Folds the slots of one line into `totals`, as many as these have room for.
#[inline(always)]
fn fold_line(kind: Kind, line: &[AtomicU64; 7], totals: &mut [i64], form: Form) {
    // The operation is known inside each loop, not asked for each slot.
    match kind {
        Kind::Min => fold_line_with(|a, b| Kind::Min.fold(a, b), line, totals, form),
        Kind::Max => fold_line_with(|a, b| Kind::Max.fold(a, b), line, totals, form),
        Kind::Or => fold_line_with(|a, b| Kind::Or.fold(a, b), line, totals, form),
        Kind::And => fold_line_with(|a, b| Kind::And.fold(a, b), line, totals, form),
        _ => {}
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_wrap, reason = "slots travel as bit patterns")]
fn fold_line_with(
    fold: impl Fn(i64, i64) -> i64,
    line: &[AtomicU64; 7],
    totals: &mut [i64],
    form: Form,
) {
    if let (Form::Short, Ok(eight)) = (form, <&mut [i64; MAX_SLOTS]>::try_from(&mut *totals)) {
        let theirs = unpack(&std::array::from_fn(|i| line[i].load(Relaxed)));
        for (total, slot) in eight.iter_mut().zip(theirs) {
            *total = fold(*total, slot);
        }
        return;
    }
    for (total, word) in totals.iter_mut().zip(line) {
        *total = fold(*total, word.load(Relaxed) as i64);
    }
}

impl Row {
    /// Stores the slots; nobody may look at them before the stamp is published.
    ///
    /// Every payload word is a relaxed atomic: the stamp alone publishes them.
    #[inline(always)]
    #[expect(clippy::cast_sign_loss, reason = "slots travel as bit patterns")]
    pub(crate) fn fill(&self, slots: &[i64], form: Form) {
        // The line of the stamp last, in one go: a peer that polls takes it back between any two stores that are far apart.
        if let (Form::Full, Some(eighth)) = (form, slots.get(7)) {
            self.more[0].store(*eighth as u64, Relaxed);
        }
        fill_line(&self.words, slots, form);
    }

    /// Asks for the second line.
    #[inline(always)]
    pub(crate) fn touch(&self) {
        std::hint::black_box(self.more[0].load(Relaxed));
    }

    /// Asks for the line that a row is written to, or for both, ahead of writing it.
    #[inline(always)]
    pub(crate) fn fetch_to_write(&self, both: bool) {
        fetch_to_write(&self.stamp);
        if both {
            fetch_to_write(&self.partial);
        }
    }

    /// When the row was published, monotonic clock, where timing is switched on.
    #[inline(always)]
    pub(crate) fn arrived_ns(&self) -> &AtomicU64 {
        &self.more[1]
    }

    /// Makes the row visible to every rank that reads the stamp.
    #[inline(always)]
    pub(crate) fn publish(&self, stamp: Stamp) {
        // ORDERING [R1] Release: pairs with the Acquire in stamp(); publishes the words of the row, the label and
        // everything this rank did in earlier rounds.
        self.stamp
            .store(stamp.0, order("R1", crate::sync::Ordering::Release));
    }

    #[inline(always)]
    pub(crate) fn stamp(&self) -> Stamp {
        // ORDERING [R2] Acquire: pairs with the Release in publish(); whoever sees the stamp sees the row.
        Stamp(self.stamp.load(order("R2", crate::sync::Ordering::Acquire)))
    }

    /// The slots of this row, as many as `slots` has room for.
    #[inline(always)]
    #[expect(clippy::cast_possible_wrap, reason = "slots travel as bit patterns")]
    pub(crate) fn read(&self, form: Form, slots: &mut [i64]) {
        read_line(&self.words, slots, form);
        if let (Form::Full, Some(eighth)) = (form, slots.get_mut(7)) {
            *eighth = self.more[0].load(Relaxed) as i64;
        }
    }

    /// Folds this row into `totals`.
    #[inline(always)]
    #[expect(clippy::cast_possible_wrap, reason = "slots travel as bit patterns")]
    pub(crate) fn fold_into(&self, kind: Kind, form: Form, totals: &mut [i64]) {
        fold_line(kind, &self.words, totals, form);
        if let (Form::Full, Some(eighth)) = (form, totals.get_mut(7)) {
            *eighth = kind.fold(*eighth, self.more[0].load(Relaxed) as i64);
        }
    }

    /// Publishes what this rank's group of neighbours comes to, all of whose rows are short, so that this is too; or that
    /// there is no partial result.
    pub(crate) fn publish_partial(&self, stamp: Stamp, total: Option<&[i64]>) {
        let stamp = match total {
            Some(total) => {
                fill_line(&self.more, total, Form::Short);
                stamp
            }
            None => stamp.with_form(Form::Full),
        };
        // ORDERING [R3] Release: pairs with the Acquire in partial(); publishes the partial result, and that all rows of
        // the group are there.
        self.partial
            .store(stamp.0, order("R3", crate::sync::Ordering::Release));
    }

    pub(crate) fn partial(&self) -> Stamp {
        // ORDERING [R4] Acquire: pairs with the Release in publish_partial(); whoever sees the stamp sees the partial result.
        Stamp(
            self.partial
                .load(order("R4", crate::sync::Ordering::Acquire)),
        )
    }

    /// Folds the partial result in this row into `totals`.
    pub(crate) fn fold_partial_into(&self, kind: Kind, totals: &mut [i64]) {
        fold_line(kind, &self.more, totals, Form::Short);
    }

    /// The compared word of a described call.
    #[expect(clippy::cast_possible_wrap, reason = "slots travel as bit patterns")]
    pub(crate) fn description(&self) -> i64 {
        self.words[0].load(Relaxed) as i64
    }

    /// Stores a described call; the form of the row.
    pub(crate) fn describe(&self, description: i64, announcement: Announcement) -> Form {
        let (line, more) = announcement.words(description);
        let form = if more.iter().all(|word| *word == 0) {
            Form::Short
        } else {
            for (word, value) in self.more[SPARE].iter().zip(more) {
                word.store(value, Relaxed);
            }
            Form::Full
        };
        for (word, value) in self.words.iter().zip(line) {
            word.store(value, Relaxed);
        }
        form
    }

    /// The other words of a described call.
    pub(crate) fn announcement(&self, form: Form) -> Announcement {
        let line = std::array::from_fn(|i| self.words[i].load(Relaxed));
        let more = match form {
            Form::Short => Default::default(),
            Form::Full => std::array::from_fn(|i| self.more[SPARE][i].load(Relaxed)),
        };
        Announcement::from_words(line, more)
    }

    /// Bytes that this rank sends by another way in a described call.
    pub(crate) fn travelling(&self) -> u64 {
        self.words[1].load(Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_slot() -> impl Strategy<Value = i64> {
        prop_oneof![
            any::<i64>(),
            any::<i64>().prop_map(|v| v >> 8),
            Just(i64::MIN),
            Just(i64::MAX),
            Just(-1),
            Just((1 << 55) - 1),
            Just(1 << 55),
            Just(-(1 << 55)),
            Just(-(1 << 55) - 1),
        ]
    }

    proptest! {
        #[test]
        fn a_row_returns_every_slot_it_was_given(slots in prop::collection::vec(any_slot(), 0..=8)) {
            let row = Row::default();
            let form = form_of(&slots);
            row.fill(&slots, form);
            let mut back = vec![0; slots.len()];
            row.read(form, &mut back);
            prop_assert_eq!(back, slots);
        }

        #[test]
        fn eight_small_slots_leave_the_second_line_alone(slots in prop::array::uniform8(any::<i64>().prop_map(|v| v >> 8))) {
            let row = Row::default();
            prop_assert_eq!(form_of(&slots), Form::Short);
            row.fill(&slots, Form::Short);
            prop_assert_eq!(row.more[0].load(Relaxed), 0);
        }

        #[test]
        fn forms_of_different_ranks_mix(mine in prop::array::uniform8(any_slot()), theirs in prop::array::uniform8(any_slot())) {
            let row = Row::default();
            let form = form_of(&theirs);
            row.fill(&theirs, form);
            for kind in [Kind::Min, Kind::Max] {
                let mut totals = mine;
                row.fold_into(kind, form, &mut totals);
                for i in 0..8 {
                    prop_assert_eq!(totals[i], kind.fold(mine[i], theirs[i]));
                }
            }
        }
    }

    #[test]
    fn one_value_beyond_56_bits_makes_a_full_row() {
        let mut slots = [0_i64; 8];
        slots[3] = 1 << 55;
        assert_eq!(form_of(&slots), Form::Full);
        slots[3] = -(1 << 55);
        assert_eq!(form_of(&slots), Form::Short);
        assert_eq!(form_of(&[i64::MIN; 7]), Form::Short);
    }
}
