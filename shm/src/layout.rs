//! What lies where in a table: every structure, size, magic and version.
//!
//! All-zero bytes are a valid value of every structure here, and every field is an atomic word: what a peer writes, even
//! a dying or a hostile one, is a wrong number and never undefined behaviour.

use crate::sync::{AtomicU64, Futex};

/// Most ranks of one table.
pub const MAX_RANKS: usize = 64;
/// Most bytes of a table.
const TABLE_BYTES: usize = 64 * 1024;
/// Most slots of a row.
pub const MAX_SLOTS: usize = 8;
/// Most bytes of one slot of a ring, and so of a fragment.
pub(crate) const LONGEST_FRAGMENT: usize = 1 << 16;
/// Longest label in bytes.
pub const LABEL_BYTES: usize = 42;

/// Bytes of the reason of an abort that are kept.
pub const REASON_BYTES: usize = 8 * TEXT_WORDS;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"rankpact");
/// Version of the layout of a segment. Ranks of one job must have the same.
pub const LAYOUT_VERSION: u64 = 4;
/// Numbers that a geometry is made of.
pub(crate) const SHAPE_WORDS: usize = 3;
pub(crate) const LABELS: usize = 64;
pub(crate) const LABEL_WORDS: usize = if cfg!(loom) { 2 } else { 6 };
pub(crate) const TEXT_WORDS: usize = if cfg!(loom) { 1 } else { 22 };

/// What a segment is, written once by its creator before `ready`.
///
/// Magic, version and ready stay where they are in every version, so that two versions know each other for what they are.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    /// A table or a ring.
    pub(crate) kind: AtomicU64,
    /// The first round of a table, the first slot of a ring.
    pub(crate) first: AtomicU64,
    pub(crate) generation: AtomicU64,
    pub(crate) nonce: [AtomicU64; 2],
    /// Ranks of one group of an exchange in two hops; zero where every rank reads every row.
    pub(crate) radix: AtomicU64,
    /// Non-zero once everything else in this header, and behind it, is in place.
    pub(crate) ready: AtomicU64,
    /// The numbers of its geometry.
    pub(crate) shape: [AtomicU64; SHAPE_WORDS],
}

/// The line that stays shared in every cache while nobody sleeps and nobody gives up. A ring has no outcome word.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// The outcome word: round, state, origin.
    pub(crate) outcome: AtomicU64,
    /// One bit for each rank that sleeps or is about to, apart for even and odd rounds: a rank that is late to wake those
    /// of its round must not wake those of the next.
    pub(crate) waiters: [AtomicU64; 2],
    /// For what somebody last set out to wake all sleepers: nobody else needs to.
    pub(crate) woken: AtomicU64,
    pub(crate) futex: Futex,
}

/// What one rank says of itself.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// Proof of attachment: a random word that its peers learn by another way too.
    pub(crate) token: AtomicU64,
    /// The last round whose data, travelling elsewhere, this rank holds in full; in a ring, the last slot it has read.
    pub(crate) done: AtomicU64,
    /// Non-zero once this rank has left.
    pub(crate) closed: AtomicU64,
}

/// Why a rank gave up; read only by those whom the outcome word sends here.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub(crate) struct Origin {
    pub(crate) cause: AtomicU64,
    /// The ranks it is about, one bit each; of an abort, one more than on whose behalf.
    pub(crate) ranks: AtomicU64,
    pub(crate) waited_ns: AtomicU64,
    pub(crate) calls: [OriginCall; 2],
    pub(crate) text: [AtomicU64; TEXT_WORDS],
}

/// One side of a mismatch.
#[cfg_attr(not(loom), repr(C))]
#[derive(Debug, Default)]
pub(crate) struct OriginCall {
    pub(crate) stamp: AtomicU64,
    pub(crate) rank: AtomicU64,
    pub(crate) shape: AtomicU64,
}

/// The text of a label, seven bytes a word.
#[cfg_attr(not(loom), repr(C))]
#[derive(Debug, Default)]
pub(crate) struct Label {
    pub(crate) words: [AtomicU64; LABEL_WORDS],
}

/// What one rank contributes to one round: the first line carries all of a short row; the second the rest of a full
/// one, or what the rank's group of neighbours comes to.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) stamp: AtomicU64,
    pub(crate) words: [AtomicU64; 7],
    /// Publishes a partial result in `more`, or says that there is none.
    pub(crate) partial: AtomicU64,
    /// A partial result; else the eighth full slot, and where timing is switched on when the row was published.
    pub(crate) more: [AtomicU64; 7],
}

/// How many ranks, and how many rounds may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    ranks: usize,
    depth: usize,
}

impl Geometry {
    /// The geometry of a table, or `None` outside of 1 to [`MAX_RANKS`] ranks and 1, 2, 4 or 8 rounds in flight, or if it
    /// took more than 64 KiB: of 64 ranks 2 rounds may be in flight, of 32 ranks 4.
    #[must_use]
    pub const fn new(ranks: usize, depth: usize) -> Option<Self> {
        if ranks == 0 || ranks > MAX_RANKS || depth > 8 || !depth.is_power_of_two() {
            return None;
        }
        // The parts of a table, in their order; `Offsets` asserts the sum.
        let bytes = 256 + ranks * (128 + 256) + 64 * 48 + ranks * 2 * depth * 128;
        if bytes > TABLE_BYTES {
            return None;
        }
        Some(Self { ranks, depth })
    }

    /// How many ranks share the table.
    #[must_use]
    pub const fn ranks(self) -> usize {
        self.ranks
    }

    /// How many rounds may be in flight.
    #[must_use]
    pub const fn depth(self) -> usize {
        self.depth
    }

    /// Ranks of one group of an exchange in two hops, for [`Storage::with_radix`](crate::Storage::with_radix); zero where
    /// reading every row is faster.
    ///
    /// The last rank to arrive reads the rows of all others: 0.37 us for 31 and 0.66 us for 63 where a hand-over takes
    /// 0.11 us (measured, `benches/floor.rs`). In groups of eight it reads 7, hands over, and 7 are read: 0.42 us. So two
    /// hops pay above 32 ranks, and only if each of them can wait on a CPU of its own.
    #[must_use]
    pub const fn radix(self, cpus: usize) -> usize {
        if self.ranks > 32 && self.ranks <= cpus {
            8
        } else {
            0
        }
    }

    /// Row buffers of each rank: while `depth` rounds are in flight, a peer may still read as many older ones.
    pub(crate) const fn buffers(self) -> usize {
        2 * self.depth
    }

    /// Where the row of `rank` for `round` lies among all rows: the rows of one round side by side.
    #[inline(always)]
    pub(crate) const fn row(self, round: u64, rank: usize) -> usize {
        // The number of buffers is a power of two, so that the mapping survives the wrap of the round counter.
        ((round as usize) & (self.buffers() - 1)) * self.ranks + rank
    }

    /// Bits of all ranks.
    pub(crate) const fn everybody(self) -> u64 {
        u64::MAX >> (64 - self.ranks)
    }
}

#[cfg(not(loom))]
pub(crate) use offsets::Offsets;

#[cfg(not(loom))]
mod offsets {
    use super::{Control, Geometry, Header, LABELS, Label, Member, Origin, OriginCall, Row};
    use std::mem::{align_of, offset_of, size_of};

    /// Byte offsets of the parts of a table.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Offsets {
        pub(crate) control: usize,
        pub(crate) members: usize,
        pub(crate) origins: usize,
        pub(crate) labels: usize,
        pub(crate) rows: usize,
        pub(crate) end: usize,
    }

    impl Offsets {
        pub(crate) const fn of(geometry: Geometry) -> Self {
            let control = size_of::<Header>();
            let members = control + size_of::<Control>();
            let origins = members + geometry.ranks * size_of::<Member>();
            let labels = origins + geometry.ranks * size_of::<Origin>();
            let rows = labels + LABELS * size_of::<Label>();
            let end = rows + geometry.ranks * geometry.buffers() * size_of::<Row>();
            Self {
                control,
                members,
                origins,
                labels,
                rows,
                end,
            }
        }
    }

    // A change here is a change of the layout: raise LAYOUT_VERSION.
    const _: () = {
        assert!(
            size_of::<Header>() == 128
                && align_of::<Header>() == 128
                && offset_of!(Header, version) == 8
                && offset_of!(Header, ready) == 64
        );
        assert!(
            size_of::<Control>() == 128
                && offset_of!(Control, waiters) == 8
                && offset_of!(Control, woken) == 24
                && offset_of!(Control, futex) == 32
        );
        assert!(
            size_of::<Member>() == 128
                && offset_of!(Member, done) == 8
                && offset_of!(Member, closed) == 16
        );
        assert!(
            size_of::<OriginCall>() == 24
                && size_of::<Origin>() == 256
                && offset_of!(Origin, text) == 72
        );
        assert!(size_of::<Label>() == 48 && (LABELS * size_of::<Label>()).is_multiple_of(128));
        assert!(
            size_of::<Row>() == 128
                && offset_of!(Row, words) == 8
                && offset_of!(Row, partial) == 64
        );
        let widest = Offsets::of(Geometry {
            ranks: 64,
            depth: 2,
        });
        assert!(widest.end == 256 + 64 * (128 + 256) + 64 * 48 + 64 * 4 * 128);
        assert!(widest.end <= super::TABLE_BYTES && widest.rows.is_multiple_of(128));
        let usual = Offsets::of(Geometry {
            ranks: 32,
            depth: 4,
        });
        assert!(usual.end <= super::TABLE_BYTES);
    };
}
