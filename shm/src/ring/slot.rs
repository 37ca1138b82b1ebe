//! One slot of a ring: how a fragment is written, and what a reader believes of it.

use crate::layout::LONGEST_FRAGMENT;
use crate::sync::Ordering::{self, Relaxed};
use crate::sync::{AtomicU64, order};

/// Words of a slot before its payload: the stamp, which publishes it, and the head.
pub(super) const HEAD_WORDS: usize = 2;
const WORD: usize = size_of::<u64>();

const LENGTH_SHIFT: u32 = 32;
const LENGTH_MASK: u64 = (1 << 20) - 1;
const FIRST: u64 = 1 << 52;
const LAST: u64 = 1 << 53;
const FROM_SHIFT: u32 = 56;
const _: () = assert!(LONGEST_FRAGMENT as u64 <= LENGTH_MASK);

/// Where a fragment stands in its message, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) from: usize,
    pub(super) first: bool,
    pub(super) last: bool,
}

/// The head of a slot.
///
/// ```text
///  63      56 55 54   53    52   51       32 31            0
/// +----------+-----+------+-------+----------+---------------+
/// |  sender  |  0  | last | first |  length  |     crc32     |
/// +----------+-----+------+-------+----------+---------------+
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) struct Head(u64);

impl Head {
    fn new(fragment: Fragment, length: usize) -> Self {
        let first = if fragment.first { FIRST } else { 0 };
        let last = if fragment.last { LAST } else { 0 };
        Self((fragment.from as u64) << FROM_SHIFT | last | first | (length as u64) << LENGTH_SHIFT)
    }

    /// With the checksum of these bytes as the fragment in slot `number`: an older tenant's do not pass for it.
    fn sealed(self, number: u64, bytes: &[u8]) -> Self {
        let folded = number ^ number >> 32 ^ self.0 >> 32;
        let mut hasher = crc32fast::Hasher::new_with_initial(folded as u32);
        hasher.update(bytes);
        Self(self.0 & !u64::from(u32::MAX) | u64::from(hasher.finalize()))
    }

    pub(super) fn fragment(self) -> Fragment {
        Fragment {
            from: (self.0 >> FROM_SHIFT) as usize,
            first: self.0 & FIRST != 0,
            last: self.0 & LAST != 0,
        }
    }

    pub(super) fn length(self) -> usize {
        (self.0 >> LENGTH_SHIFT & LENGTH_MASK) as usize
    }
}

/// One slot, as wide as the ring's geometry says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<'a>(pub(super) &'a [AtomicU64]);

impl Slot<'_> {
    /// The number of the slot that lies here: one past, or one to come.
    #[inline(always)]
    pub(super) fn stamp(self) -> u64 {
        // ORDERING [S2] Acquire: pairs with publish(); head and payload are read after it.
        self.0[0].load(order("S2", Ordering::Acquire))
    }

    /// Makes this the slot `number`, with all that was written to it before.
    #[inline(always)]
    pub(super) fn publish(self, number: u64) {
        // ORDERING [S1] Release: pairs with stamp(); publishes head and payload, and that the sender has read all before.
        self.0[0].store(number, order("S1", Ordering::Release));
    }

    /// As [`Slot::publish`], before anybody else has the ring.
    pub(super) fn prepare(self, number: u64) {
        self.0[0].store(number, Relaxed);
    }

    /// Writes head and payload of the slot that will be `number`.
    pub(super) fn fill(self, number: u64, fragment: Fragment, bytes: &[u8]) {
        let head = Head::new(fragment, bytes.len()).sealed(number, bytes);
        self.0[1].store(head.0, Relaxed);
        let mut whole = bytes.chunks_exact(WORD);
        let mut words = self.0[HEAD_WORDS..].iter();
        for (piece, word) in whole.by_ref().zip(words.by_ref()) {
            word.store(u64_of(piece), Relaxed);
        }
        if let (false, Some(word)) = (whole.remainder().is_empty(), words.next()) {
            word.store(u64_of(whole.remainder()), Relaxed);
        }
    }

    pub(super) fn head(self) -> Head {
        Head(self.0[1].load(Relaxed))
    }

    /// How many bytes of payload a slot holds.
    pub(super) fn capacity(self) -> usize {
        WORD * (self.0.len() - HEAD_WORDS)
    }

    /// Appends the payload of the slot `number`; whether it is what its sender wrote there. The length of `head` must be
    /// within [`Slot::capacity`].
    pub(super) fn read(self, number: u64, head: Head, message: &mut Vec<u8>) -> bool {
        let start = message.len();
        message.resize(start + head.length(), 0);
        let bytes = &mut message[start..];
        let mut words = self.0[HEAD_WORDS..].iter();
        let mut whole = bytes.chunks_exact_mut(WORD);
        for (piece, word) in whole.by_ref().zip(words.by_ref()) {
            piece.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        let rest = whole.into_remainder();
        if let (false, Some(word)) = (rest.is_empty(), words.next()) {
            rest.copy_from_slice(&word.load(Relaxed).to_le_bytes()[..rest.len()]);
        }
        head.sealed(number, bytes).0 == head.0
    }
}

/// A word of up to eight bytes, the first in its lowest byte.
fn u64_of(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot() -> [AtomicU64; 10] {
        Default::default()
    }

    proptest! {
        #[test]
        fn a_fragment_comes_back_as_it_was_written(
            number: u64, from in 0_usize..64, first: bool, last: bool,
            bytes in prop::collection::vec(any::<u8>(), 0..=64),
        ) {
            let words = slot();
            let slot = Slot(&words);
            let fragment = Fragment { from, first, last };
            slot.fill(number, fragment, &bytes);
            slot.publish(number);
            let mut message = b"before".to_vec();
            prop_assert_eq!(slot.stamp(), number);
            prop_assert_eq!(slot.head().fragment(), fragment);
            prop_assert!(slot.read(number, slot.head(), &mut message));
            prop_assert_eq!(&message[..6], b"before");
            prop_assert_eq!(&message[6..], &bytes);
        }

        #[test]
        fn a_changed_bit_or_another_number_is_seen(
            number: u64, bit in 0_usize..5 * 64, bytes in prop::collection::vec(any::<u8>(), 32),
        ) {
            let words = slot();
            let slot = Slot(&words);
            slot.fill(number, Fragment { from: 1, first: true, last: true }, &bytes);
            let number = if bit < 64 { number ^ 1 << bit } else { number };
            if bit >= 64 {
                let word = &words[bit / 64];
                word.store(word.load(Relaxed) ^ 1 << (bit % 64), Relaxed);
            }
            let head = slot.head();
            prop_assert!(head.length() > slot.capacity() || !slot.read(number, head, &mut Vec::new()));
        }
    }
}
