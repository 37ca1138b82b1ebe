//! One number for what must be the same on every rank: the reclaim order and the live prefetch table.

use crate::prefetch::Handle;

/// 42 bits: the product with the multiplier stays below 2^62, and a digest and its negative are both exact.
const MASK: u64 = (1 << 42) - 1;
const MULTIPLIER: u64 = 1_000_003;

/// A running digest of 42 bits; order matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// The digest after one more event.
    #[must_use]
    fn after(self, event: u64) -> Self {
        Self(self.0.wrapping_mul(MULTIPLIER).wrapping_add(event) & MASK)
    }

    /// The digest after a host copy of `node` was reclaimed, for one of `components` kinds of state.
    #[must_use]
    pub fn reclaimed(self, node: u64, component: u64, components: u64) -> Self {
        self.after(
            node.wrapping_add(1)
                .wrapping_mul(components)
                .wrapping_add(component),
        )
    }

    /// The digest with the live table folded in, in the table's order; an empty table leaves it unchanged.
    #[must_use]
    pub fn folded<'a>(self, live: impl ExactSizeIterator<Item = &'a Handle>) -> Self {
        if live.len() == 0 {
            return self;
        }
        let mut bytes = Vec::with_capacity(live.len() * 32);
        for handle in live {
            frame(handle, &mut bytes);
        }
        self.after(u64::from(crc32fast::hash(&bytes)))
    }

    /// The digest as a slot value, never negative.
    #[must_use]
    pub fn value(self) -> i64 {
        self.0.cast_signed()
    }
}

/// Length, rid, attempt: without the length ("a", 11) and ("a1", 1) could read alike.
fn frame(handle: &Handle, out: &mut Vec<u8>) {
    out.extend_from_slice(&(handle.rid.len() as u64).to_le_bytes());
    out.extend_from_slice(handle.rid.as_bytes());
    out.extend_from_slice(&handle.attempt.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handles() -> impl Strategy<Value = Vec<Handle>> {
        prop::collection::vec(
            ("[a-c0-2]{0,3}", 0u32..30).prop_map(|(rid, attempt)| Handle::new(rid, attempt)),
            0..6,
        )
    }

    fn framed(live: &[Handle]) -> Vec<u8> {
        let mut out = Vec::new();
        live.iter().for_each(|handle| frame(handle, &mut out));
        out
    }

    #[test]
    fn the_recurrence_is_multiply_add_and_keep_42_bits() {
        let once = Digest::default().reclaimed(6, 1, 3);
        assert_eq!(once.value(), 22);
        assert_eq!(once.reclaimed(0, 0, 1).value(), 22 * 1_000_003 + 1);
        let long = (0..100).fold(Digest::default(), |d, node| d.reclaimed(node, 0, 1));
        assert!(long.value() < 1 << 42);
    }

    #[test]
    fn an_empty_table_leaves_the_digest_alone() {
        let base = Digest::default().reclaimed(1, 0, 1);
        assert_eq!(base.folded([].iter()), base);
    }

    proptest! {
        #[test]
        fn the_framing_is_injective(a in handles(), b in handles()) {
            prop_assert_eq!(a == b, framed(&a) == framed(&b));
        }

        #[test]
        fn the_fold_sees_the_order(live in handles(), shift in 1usize..6) {
            let mut moved = live.clone();
            moved.rotate_left(shift % live.len().max(1));
            let equal = Digest::default().folded(live.iter()) == Digest::default().folded(moved.iter());
            prop_assert_eq!(live == moved, equal);
        }

        #[test]
        fn a_digest_and_its_negative_are_exact(events in prop::collection::vec(any::<u64>(), 0..20), live in handles()) {
            let d = events.iter().fold(Digest::default(), |d, &e| d.after(e)).folded(live.iter()).value();
            prop_assert!((0..1 << 42).contains(&d));
            prop_assert_eq!(-(-d), d);
        }

        #[test]
        fn both_inputs_of_the_fold_count(a in 0u64..1 << 40, b in 0u64..1 << 40, live in handles()) {
            prop_assume!(a != b);
            let (a, b) = (Digest::default().reclaimed(a, 0, 1), Digest::default().reclaimed(b, 0, 1));
            prop_assert_ne!(a.folded(live.iter()), b.folded(live.iter()));
        }
    }
}
