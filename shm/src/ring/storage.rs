//! The memory a ring lives in: a mapped segment, the heap of one process, or the boxes of a model.

use super::slot::{HEAD_WORDS, Slot};
#[cfg(not(loom))]
use crate::header::Preamble;
use crate::header::Shape;
use crate::layout::{Control, Header, LONGEST_FRAGMENT, MAX_RANKS, Member, SHAPE_WORDS};
use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;

const WORD: usize = size_of::<u64>();
/// A slot is a whole number of lines, so that no two share one.
const LINE: usize = if cfg!(loom) { WORD } else { 64 };
/// By measurement: smaller slots cost more for each byte of a long message, larger ones let the peer wait for the first.
const SLOT_BYTES: usize = 4096;
/// Of all slots of a ring, unless the caller wants it otherwise.
const RING_BYTES: usize = 256 * 1024;

/// How many seats a ring has, how many slots, and how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingGeometry {
    seats: usize,
    slots: usize,
    slot_bytes: usize,
}

impl RingGeometry {
    /// The geometry of a ring, or `None` outside of 2 to [`MAX_RANKS`] seats, a power of two from 2 to 65,536 slots, and
    /// slots of a multiple of 64 up to 65,536 bytes. Of a slot, 16 bytes are no payload.
    #[must_use]
    pub const fn new(seats: usize, slots: usize, slot_bytes: usize) -> Option<Self> {
        let good = seats >= 2
            && seats <= MAX_RANKS
            && slots >= 2
            && slots <= 1 << 16
            && slots.is_power_of_two()
            && slot_bytes > HEAD_WORDS * WORD
            && slot_bytes <= LONGEST_FRAGMENT
            && slot_bytes.is_multiple_of(LINE);
        if good {
            Some(Self {
                seats,
                slots,
                slot_bytes,
            })
        } else {
            None
        }
    }

    /// The usual ring of so many seats, 64 slots of 4 KiB, or `None` outside of 2 to [`MAX_RANKS`] seats.
    #[must_use]
    pub const fn of_seats(seats: usize) -> Option<Self> {
        Self::new(seats, RING_BYTES / SLOT_BYTES, SLOT_BYTES)
    }

    /// How many ranks share the ring.
    #[must_use]
    pub const fn seats(self) -> usize {
        self.seats
    }

    /// How many slots it has.
    #[must_use]
    pub const fn slots(self) -> usize {
        self.slots
    }

    /// How many bytes of a message a slot holds.
    #[must_use]
    pub const fn fragment_bytes(self) -> usize {
        self.slot_bytes - HEAD_WORDS * WORD
    }

    const fn slot_words(self) -> usize {
        self.slot_bytes / WORD
    }

    const fn words(self) -> usize {
        self.slots * self.slot_words()
    }
}

impl Shape for RingGeometry {
    const KIND: u64 = u64::from_le_bytes(*b"ring\0\0\0\0");

    fn words(self) -> [(&'static str, u64); SHAPE_WORDS] {
        [
            ("number of seats", self.seats as u64),
            ("number of slots", self.slots as u64),
            ("bytes of a slot", self.slot_bytes as u64),
        ]
    }
}

/// Borrowed cells of one ring. The protocol does not know where they lie.
#[derive(Debug)]
pub struct RingStorage {
    geometry: RingGeometry,
    cells: cells::Cells,
}

impl RingStorage {
    /// A ring in the heap of this process, for seats that are threads, whose first slot has the number `first`.
    #[must_use]
    pub fn heap(geometry: RingGeometry, first: u64) -> Self {
        let storage = Self {
            geometry,
            cells: cells::Cells::heap(geometry),
        };
        storage.prepare(first);
        storage
    }

    /// In a model, ends all sleeps as the end of a slice would, from now on.
    #[cfg(loom)]
    pub fn let_time_pass(&self) {
        self.readers().futex.let_time_pass();
        self.senders().futex.let_time_pass();
    }

    #[cfg(not(loom))]
    pub(crate) fn preamble(&self) -> Preamble<'_> {
        Preamble {
            header: self.cells.header(),
            members: self.cells.members(self.geometry),
        }
    }

    pub(super) fn geometry(&self) -> RingGeometry {
        self.geometry
    }

    pub(super) fn first(&self) -> u64 {
        self.cells.header().first.load(Relaxed)
    }

    /// Where those sleep who wait for the next slot.
    #[inline(always)]
    pub(super) fn readers(&self) -> &Control {
        &self.cells.controls()[0]
    }

    /// Where those sleep who wait for room.
    #[inline(always)]
    pub(super) fn senders(&self) -> &Control {
        &self.cells.controls()[1]
    }

    #[inline(always)]
    pub(super) fn member(&self, rank: usize) -> &Member {
        &self.cells.members(self.geometry)[rank]
    }

    /// Where the slot with this number lies.
    #[inline(always)]
    pub(super) fn slot(&self, number: u64) -> Slot<'_> {
        // The number of slots is a power of two, so that the mapping survives the wrap of the numbers.
        let place = (number as usize) & (self.geometry.slots - 1);
        let words = self.geometry.slot_words();
        Slot(&self.cells.words(self.geometry)[place * words..][..words])
    }

    /// Puts every slot into the state it has just before `first` is written. Nobody else may have the ring yet.
    pub(crate) fn prepare(&self, first: u64) {
        self.cells.header().first.store(first, Relaxed);
        for member in self.cells.members(self.geometry) {
            member.done.store(first.wrapping_sub(1), Relaxed);
        }
        for back in 1..=self.geometry.slots as u64 {
            let tenant = first.wrapping_sub(back);
            self.slot(tenant).prepare(tenant);
        }
    }
}

#[cfg(not(loom))]
mod cells {
    use super::{AtomicU64, Control, Header, Member, RingGeometry, RingStorage, WORD};
    use crate::header::Preamble;
    use crate::map::Map;
    use crate::region::Region;
    use crate::segment::Contents;

    const CONTROLS: usize = size_of::<Header>();
    const MEMBERS: usize = CONTROLS + 2 * size_of::<Control>();

    const fn slots(geometry: RingGeometry) -> usize {
        MEMBERS + geometry.seats * size_of::<Member>()
    }

    const _: () = assert!(MEMBERS == 384 && size_of::<Member>() == 128);

    impl Contents for RingGeometry {
        type Storage = RingStorage;

        fn bytes(self) -> usize {
            slots(self) + self.slots * self.slot_bytes
        }

        fn mapped(self, map: Map) -> Option<RingStorage> {
            let region = Region::mapped(map, self.bytes())?;
            Some(RingStorage {
                geometry: self,
                cells: Cells(region),
            })
        }

        fn preamble(storage: &RingStorage) -> Preamble<'_> {
            storage.preamble()
        }

        fn prepare(storage: &RingStorage, first: u64) {
            storage.prepare(first);
        }
    }

    /// The parts of a ring in one region.
    ///
    /// Invariant: the region holds the bytes of the geometry that every call passes.
    #[derive(Debug)]
    pub(super) struct Cells(Region);

    impl Cells {
        pub(super) fn heap(geometry: RingGeometry) -> Self {
            Self(Region::heap(geometry.bytes()))
        }

        fn slice<T>(&self, offset: usize, len: usize) -> &[T] {
            // SAFETY: the parts lie one behind the other within the bytes of the geometry (invariant of Cells), header,
            // controls and members are 128 bytes each, and every structure consists of atomics.
            unsafe { self.0.slice(offset, len) }
        }

        pub(super) fn header(&self) -> &Header {
            &self.slice(0, 1)[0]
        }

        pub(super) fn controls(&self) -> &[Control] {
            self.slice(CONTROLS, 2)
        }

        pub(super) fn members(&self, geometry: RingGeometry) -> &[Member] {
            self.slice(MEMBERS, geometry.seats)
        }

        pub(super) fn words(&self, geometry: RingGeometry) -> &[AtomicU64] {
            debug_assert_eq!(geometry.slot_bytes % WORD, 0);
            self.slice(slots(geometry), geometry.words())
        }
    }
}

#[cfg(loom)]
mod cells {
    use super::{AtomicU64, Control, Header, Member, RingGeometry};

    /// Loom's atomics have another form in memory, so a model keeps each part in a box of its own.
    #[derive(Debug)]
    pub(super) struct Cells {
        header: Header,
        controls: Vec<Control>,
        members: Vec<Member>,
        words: Vec<AtomicU64>,
    }

    fn many<T: Default>(n: usize) -> Vec<T> {
        std::iter::repeat_with(T::default).take(n).collect()
    }

    impl Cells {
        pub(super) fn heap(geometry: RingGeometry) -> Self {
            Self {
                header: Header::default(),
                controls: many(2),
                members: many(geometry.seats),
                words: many(geometry.words()),
            }
        }

        pub(super) fn header(&self) -> &Header {
            &self.header
        }

        pub(super) fn controls(&self) -> &[Control] {
            &self.controls
        }

        pub(super) fn members(&self, _: RingGeometry) -> &[Member] {
            &self.members
        }

        pub(super) fn words(&self, _: RingGeometry) -> &[AtomicU64] {
            &self.words
        }
    }
}
