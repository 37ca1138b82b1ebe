//! A region of memory that ranks share: mapped from a file, or of the heap for ranks that are threads.

use crate::map::Map;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

/// Every structure in a region may be so aligned.
const ALIGN: usize = 128;

/// Zeroed or mapped bytes.
///
/// Invariant, established by the two constructors: `base` is aligned to 128 bytes, and `bytes` bytes are readable and
/// writable behind it for as long as `owner` lives.
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

enum Owner {
    Heap(Layout),
    #[expect(dead_code, reason = "held for its drop, which unmaps")]
    Map(Map),
}

// SAFETY: the region is reached through atomics only, and its owner is unmapped or freed only by the last holder.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Region {
    /// `bytes` zeroed bytes of the heap, at least one of them.
    pub(crate) fn heap(bytes: usize) -> Self {
        let bytes = bytes.max(1);
        let Ok(layout) = Layout::from_size_align(bytes, ALIGN) else {
            unreachable!("a table or a ring is far smaller than the address space")
        };
        // SAFETY: the layout has a size above zero.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            handle_alloc_error(layout)
        };
        Self {
            base,
            bytes,
            owner: Owner::Heap(layout),
        }
    }

    /// A mapping, if it holds `bytes` bytes.
    pub(crate) fn mapped(map: Map, bytes: usize) -> Option<Self> {
        let base = NonNull::new(map.base())?;
        let fits = map.len() >= bytes && base.as_ptr().addr().is_multiple_of(ALIGN);
        fits.then_some(Self {
            base,
            bytes,
            owner: Owner::Map(map),
        })
    }

    /// `len` values of type `T` that begin `offset` bytes into the region.
    ///
    /// # Safety
    ///
    /// - They end within the region, and `offset` is a multiple of the alignment of `T`.
    /// - `T` consists of atomics for which any bit pattern is valid, so that a shared reference to it is sound whatever
    ///   other threads and processes write.
    #[inline(always)]
    pub(crate) unsafe fn slice<T>(&self, offset: usize, len: usize) -> &[T] {
        debug_assert!(
            offset.is_multiple_of(align_of::<T>()) && offset + len * size_of::<T>() <= self.bytes
        );
        // SAFETY: in bounds by the caller's promise.
        let first = unsafe { self.base.add(offset) };
        // SAFETY: aligned, in bounds and valid by the caller's promise; `owner` lives as long as the reference.
        unsafe { std::slice::from_raw_parts(first.cast::<T>().as_ptr(), len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Owner::Heap(layout) = self.owner {
            // SAFETY: allocated with this layout in `heap`; no reference outlives self.
            unsafe { dealloc(self.base.as_ptr(), layout) };
        }
    }
}
