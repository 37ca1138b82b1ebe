//! The memory a table lives in: a mapped segment, the heap of one process, or the boxes of a model.

use crate::call::Stamp;
use crate::header::Preamble;
use crate::layout::{Control, Geometry, Header, Label, Member, Origin, Row};
use crate::outcome::{State, Word};
use crate::park::Awaited;
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
        self.header().first.store(first_round, Relaxed);
        self.control()
            .outcome
            .store(Word::new(before, State::Complete).bits(), Relaxed);
        self.control()
            .woken
            .store(Awaited::Data(before).number(), Relaxed);
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
        self.set_radix(radix);
        self
    }

    /// As [`Storage::with_radix`], in place.
    ///
    /// # Panics
    ///
    /// As [`Storage::with_radix`].
    pub fn set_radix(&self, radix: usize) {
        assert!(
            radix == 0 || (2..self.geometry.ranks()).contains(&radix),
            "no two hops within groups of {radix}"
        );
        self.header().radix.store(radix as u64, Relaxed);
    }

    /// What [`Storage::with_radix`] has set; zero for what makes no sense.
    pub(crate) fn radix(&self) -> usize {
        usize::try_from(self.header().radix.load(Relaxed))
            .ok()
            .filter(|radix| (2..self.geometry.ranks()).contains(radix))
            .unwrap_or(0)
    }

    /// In a model, the bytes of a segment before its creator has written any.
    #[cfg(loom)]
    #[must_use]
    pub fn blank(geometry: Geometry) -> Self {
        Self {
            geometry,
            cells: cells::Cells::heap(geometry),
        }
    }

    /// In a model, what a creator writes before it announces the segment.
    #[cfg(loom)]
    pub fn fill(&self, first_round: u64) {
        self.prepare(first_round);
    }

    /// In a model, whether an opener sees all of what [`Storage::fill`] has written.
    #[cfg(loom)]
    #[must_use]
    pub fn is_filled(&self, first_round: u64) -> bool {
        let before = first_round.wrapping_sub(1);
        self.first_round() == first_round
            && self.control().word().about(before).is_eq()
            && (0..self.geometry.ranks()).all(|rank| self.member(rank).has_finished(before))
            && (1..=self.geometry.buffers() as u64).all(|back| {
                let tenant = first_round.wrapping_sub(back);
                self.rows(tenant)
                    .iter()
                    .all(|row| row.stamp().is_round(tenant))
            })
    }

    pub(crate) fn first_round(&self) -> u64 {
        self.header().first.load(Relaxed)
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

    /// What every segment begins with.
    pub fn preamble(&self) -> Preamble<'_> {
        Preamble {
            header: self.header(),
            members: self.cells.members(self.geometry),
        }
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
    use crate::region::Region;

    /// The parts of a table in one region.
    ///
    /// Invariant, established by the two constructors: the region holds at least `offsets.end` bytes, and `offsets` are
    /// those of the geometry that every call passes.
    #[derive(Debug)]
    pub(super) struct Cells {
        region: Region,
        offsets: Offsets,
    }

    impl Cells {
        pub(super) fn heap(geometry: Geometry) -> Self {
            let offsets = Offsets::of(geometry);
            Self {
                region: Region::heap(offsets.end),
                offsets,
            }
        }

        pub(super) fn mapped(geometry: Geometry, map: Map) -> Option<Self> {
            let offsets = Offsets::of(geometry);
            let region = Region::mapped(map, offsets.end)?;
            Some(Self { region, offsets })
        }

        fn slice<T>(&self, offset: usize, len: usize) -> &[T] {
            // SAFETY: Offsets leaves room for `len` aligned elements there (invariant of Cells), and every structure of
            // the layout consists of atomics.
            unsafe { self.region.slice(offset, len) }
        }

        pub(super) fn header(&self) -> &Header {
            &self.slice(0, 1)[0]
        }

        pub(super) fn control(&self) -> &Control {
            &self.slice(self.offsets.control, 1)[0]
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
