//! The memory a table lives in: a mapped segment, the heap of one process, or the boxes of a model.

use crate::call::Stamp;
use crate::layout::{Control, Geometry, Header, Label, Member, Origin, Row};
use crate::outcome::{State, Word};
use crate::sync::Ordering::Relaxed;

/// Borrowed cells of one table. The protocol does not know where they lie.
#[derive(Debug)]
pub struct Storage {
    geometry: Geometry,
    cells: cells::Cells,
}

impl Storage {
    /// A table in the heap of this process, for ranks that are threads, whose first call is `first_round`.
    #[must_use]
    pub fn heap(geometry: Geometry, first_round: u64) -> Self {
        let storage = Self {
            geometry,
            cells: cells::Cells::heap(geometry),
        };
        storage.prepare(first_round);
        storage
    }

    /// Puts every buffer, and the outcome word, into the state they have just before `first_round`.
    ///
    /// Nobody else may have the table yet: whatever hands it over orders these writes.
    pub(crate) fn prepare(&self, first_round: u64) {
        let before = first_round.wrapping_sub(1);
        self.header().first_round.store(first_round, Relaxed);
        self.control()
            .outcome
            .store(Word::new(before, State::Complete).bits(), Relaxed);
        for rank in 0..self.geometry().ranks() {
            self.member(rank).done.store(before, Relaxed);
        }
        for back in 1..=self.geometry().buffers() as u64 {
            let tenant = first_round.wrapping_sub(back);
            for row in self.rows(tenant) {
                row.stamp.store(Stamp::vacant(tenant).0, Relaxed);
                row.partial.store(Stamp::vacant(tenant).0, Relaxed);
            }
        }
    }

    /// Lets all ranks reduce in two hops, within groups of `radix` neighbours and between them; zero lets every rank read
    /// every row. Nobody else may have the table yet.
    ///
    /// # Panics
    ///
    /// If that makes a single group, or as many groups as ranks.
    #[must_use]
    pub fn with_radix(self, radix: usize) -> Self {
        assert!(
            radix == 0 || (2..self.geometry.ranks()).contains(&radix),
            "no two hops within groups of {radix}"
        );
        self.header().radix.store(radix as u64, Relaxed);
        self
    }

    /// What [`Storage::with_radix`] has set; zero for what makes no sense.
    pub(crate) fn radix(&self) -> usize {
        usize::try_from(self.header().radix.load(Relaxed))
            .ok()
            .filter(|radix| (2..self.geometry.ranks()).contains(radix))
            .unwrap_or(0)
    }

    pub(crate) fn first_round(&self) -> u64 {
        self.header().first_round.load(Relaxed)
    }

    /// In a model, ends all sleeps as the end of a slice would, from now on.
    #[cfg(loom)]
    pub fn let_time_pass(&self) {
        self.control().futex.let_time_pass();
    }

    #[cfg(not(loom))]
    pub(crate) fn mapped(geometry: Geometry, map: crate::map::Map) -> Option<Self> {
        Some(Self {
            geometry,
            cells: cells::Cells::mapped(geometry, map)?,
        })
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn header(&self) -> &Header {
        self.cells.header()
    }

    #[inline(always)]
    pub(crate) fn control(&self) -> &Control {
        self.cells.control()
    }

    #[inline(always)]
    pub(crate) fn member(&self, rank: usize) -> &Member {
        &self.cells.members(self.geometry)[rank]
    }

    pub(crate) fn origin(&self, rank: usize) -> &Origin {
        &self.cells.origins(self.geometry)[rank]
    }

    pub(crate) fn labels(&self) -> &[Label] {
        self.cells.labels(self.geometry)
    }

    /// The rows of all ranks for one round, by rank.
    #[inline(always)]
    pub(crate) fn rows(&self, round: u64) -> &[Row] {
        let first = self.geometry.row(round, 0);
        &self.cells.rows(self.geometry)[first..first + self.geometry.ranks()]
    }
}

#[cfg(not(loom))]
mod cells {
    use super::{Control, Geometry, Header, Label, Member, Origin, Row};
    use crate::layout::{LABELS, Offsets};
    use crate::map::Map;
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
    use std::fmt;
    use std::ptr::NonNull;

    const ALIGN: usize = 128;

    /// A region of zeroed or mapped bytes.
    ///
    /// Invariant, established by the two constructors and relied on by every method: `base` is aligned to 128 bytes and
    /// at least `Offsets::of(geometry).end` bytes are readable and writable behind it for as long as `owner` lives.
    /// Every type at those offsets consists of atomics for which any bit pattern is valid, so shared references to them
    /// are sound whatever other threads and processes write.
    pub(super) struct Cells {
        base: NonNull<u8>,
        offsets: Offsets,
        owner: Owner,
    }

    enum Owner {
        Heap(Layout),
        #[expect(dead_code, reason = "held for its drop, which unmaps")]
        Map(Map),
    }

    // SAFETY: the region is reached through atomics only, and its owner is unmapped or freed only by the last holder.
    unsafe impl Send for Cells {}
    // SAFETY: as above.
    unsafe impl Sync for Cells {}

    impl fmt::Debug for Cells {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Cells")
                .field("bytes", &self.offsets.end)
                .finish_non_exhaustive()
        }
    }

    impl Cells {
        pub(super) fn heap(geometry: Geometry) -> Self {
            let offsets = Offsets::of(geometry);
            let Ok(layout) = Layout::from_size_align(offsets.end, ALIGN) else {
                unreachable!("a table is at most 64 KiB and 128 is a power of two")
            };
            // SAFETY: the layout has a size above zero: the header alone is 128 bytes.
            let base = unsafe { alloc_zeroed(layout) };
            let Some(base) = NonNull::new(base) else {
                handle_alloc_error(layout)
            };
            Self {
                base,
                offsets,
                owner: Owner::Heap(layout),
            }
        }

        pub(super) fn mapped(geometry: Geometry, map: Map) -> Option<Self> {
            let offsets = Offsets::of(geometry);
            let base = NonNull::new(map.base())?;
            let fits = map.len() >= offsets.end && base.as_ptr().addr().is_multiple_of(ALIGN);
            fits.then_some(Self {
                base,
                offsets,
                owner: Owner::Map(map),
            })
        }

        fn place<T>(&self, offset: usize) -> NonNull<T> {
            // SAFETY: offsets come from Offsets, which lie inside the region (invariant of Cells).
            unsafe { self.base.add(offset) }.cast()
        }

        fn at<T>(&self, offset: usize) -> &T {
            // SAFETY: aligned, in bounds and always valid (invariant of Cells).
            unsafe { self.place(offset).as_ref() }
        }

        fn slice<T>(&self, offset: usize, len: usize) -> &[T] {
            // SAFETY: Offsets leaves room for `len` elements there (invariant of Cells).
            unsafe { std::slice::from_raw_parts(self.place(offset).as_ptr(), len) }
        }

        pub(super) fn header(&self) -> &Header {
            self.at(0)
        }

        pub(super) fn control(&self) -> &Control {
            self.at(self.offsets.control)
        }

        pub(super) fn members(&self, geometry: Geometry) -> &[Member] {
            self.slice(self.offsets.members, geometry.ranks())
        }

        pub(super) fn origins(&self, geometry: Geometry) -> &[Origin] {
            self.slice(self.offsets.origins, geometry.ranks())
        }

        pub(super) fn labels(&self, _: Geometry) -> &[Label] {
            self.slice(self.offsets.labels, LABELS)
        }

        pub(super) fn rows(&self, geometry: Geometry) -> &[Row] {
            self.slice(self.offsets.rows, geometry.ranks() * geometry.buffers())
        }
    }

    impl Drop for Cells {
        fn drop(&mut self) {
            if let Owner::Heap(layout) = self.owner {
                // SAFETY: allocated with this layout in `heap`; no reference outlives self.
                unsafe { dealloc(self.base.as_ptr(), layout) };
            }
        }
    }
}

#[cfg(loom)]
mod cells {
    use super::{Control, Geometry, Header, Label, Member, Origin, Row};

    /// Loom's atomics have another form in memory, so a model keeps each part in a box of its own.
    #[derive(Debug)]
    pub(super) struct Cells {
        header: Header,
        control: Control,
        members: Vec<Member>,
        origins: Vec<Origin>,
        labels: Vec<Label>,
        rows: Vec<Row>,
    }

    fn many<T: Default>(n: usize) -> Vec<T> {
        std::iter::repeat_with(T::default).take(n).collect()
    }

    impl Cells {
        pub(super) fn heap(geometry: Geometry) -> Self {
            Self {
                header: Header::default(),
                control: Control::default(),
                members: many(geometry.ranks()),
                origins: many(geometry.ranks()),
                labels: many(2),
                rows: many(geometry.ranks() * geometry.buffers()),
            }
        }

        pub(super) fn header(&self) -> &Header {
            &self.header
        }

        pub(super) fn control(&self) -> &Control {
            &self.control
        }

        pub(super) fn members(&self, _: Geometry) -> &[Member] {
            &self.members
        }

        pub(super) fn origins(&self, _: Geometry) -> &[Origin] {
            &self.origins
        }

        pub(super) fn labels(&self, _: Geometry) -> &[Label] {
            &self.labels
        }

        pub(super) fn rows(&self, _: Geometry) -> &[Row] {
            &self.rows
        }
    }
}
