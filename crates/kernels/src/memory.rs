//! Buffers aligned to a cache line, so that an f32 panel row is exactly one line.

use crate::pool::Pool;
pub use crate::slab::SlabReservation;
use crate::slab::{CACHE_LINE, Slab};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Element types of [`AlignedBuffer`]: every bit pattern is a valid value.
pub trait Pod: Copy + Send + Sync + 'static {}
impl Pod for f32 {}
impl Pod for u16 {}
impl Pod for u8 {}

/// Fixed-size array aligned to a cache line, zeroed on allocation.
pub struct AlignedBuffer<T: Pod> {
    start: *mut T,
    len: usize,
    /// The slab that contains it; `None` if it is a separate allocation.
    slab: Option<Arc<Slab>>,
}

// SAFETY: `AlignedBuffer` owns its memory like a `Vec`, and its elements are plain data.
unsafe impl<T: Pod> Send for AlignedBuffer<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Pod> Sync for AlignedBuffer<T> {}

impl<T: Pod> AlignedBuffer<T> {
    /// Allocates `len` zeros.
    pub fn zeroed(len: usize) -> AlignedBuffer<T> {
        let Some(layout) = Self::layout(len) else {
            return AlignedBuffer { start: std::ptr::NonNull::dangling().as_ptr(), len: 0, slab: None };
        };
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        AlignedBuffer { start: start.cast(), len, slab: None }
    }

    /// Allocates `len` zeros for long-lived data such as weights: in this thread's
    /// [`SlabReservation`] if there is one, else in a slab of huge pages that many arrays share.
    /// Falls back to [`zeroed`](Self::zeroed) for small arrays and on systems without slabs.
    pub fn zeroed_in_slab(pool: &Pool, len: usize) -> AlignedBuffer<T> {
        let part = Self::layout(len).and_then(|layout| Slab::allocate(pool, layout.size()));
        match part {
            Some((slab, start)) => AlignedBuffer { start: start.cast(), len, slab: Some(slab) },
            None => AlignedBuffer::zeroed(len),
        }
    }

    /// `None` if there is nothing to allocate.
    fn layout(len: usize) -> Option<Layout> {
        let bytes = len.checked_mul(size_of::<T>()).expect("an array larger than the address space");
        (bytes > 0).then(|| Layout::from_size_align(bytes, CACHE_LINE).expect("an array larger than the address space"))
    }
}

impl<T: Pod> Drop for AlignedBuffer<T> {
    fn drop(&mut self) {
        if let (Some(layout), None) = (Self::layout(self.len), &self.slab) {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.start.cast(), layout) };
        }
    }
}

impl<T: Pod> Deref for AlignedBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `start` holds `len` initialized elements for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T: Pod> DerefMut for AlignedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// A mutable slice whose disjoint parts are written by several threads.
///
/// Code that uses it must state in a SAFETY comment why the parts are disjoint.
pub struct DisjointMut<T>(*mut T);

// Not derived: the elements need not be `Copy`.
impl<T> Clone for DisjointMut<T> {
    fn clone(&self) -> DisjointMut<T> {
        *self
    }
}

impl<T> Copy for DisjointMut<T> {}

// SAFETY: callers of `part` guarantee that parts are disjoint.
unsafe impl<T> Send for DisjointMut<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for DisjointMut<T> {}

impl<T> DisjointMut<T> {
    /// Wraps a slice that is split among threads.
    pub fn new(slice: &mut [T]) -> DisjointMut<T> {
        DisjointMut(slice.as_mut_ptr())
    }

    /// Pointer to the first element.
    pub fn as_mut_ptr(self) -> *mut T {
        self.0
    }

    /// Returns `len` elements from `start` on.
    ///
    /// # Safety
    /// The range must lie within the slice, and no other thread may hold an overlapping part.
    pub unsafe fn part<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller guarantees the range and that it is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_start_on_a_cache_line_and_are_zero() {
        let pool = Pool::new(2);
        for reserved in [None, Some(1 << 20), Some(30 << 20), Some(200 << 20)] {
            let reservation = reserved.map(SlabReservation::new);
            check_arrays(&pool);
            drop(reservation);
            check_arrays(&pool);
        }
    }

    fn check_arrays(pool: &Pool) {
        let mut arrays = Vec::new();
        for len in [0, 1, 17, 100_000, 1 << 21, 9 << 20] {
            for mut array in [
                AlignedBuffer::<f32>::zeroed(len),
                AlignedBuffer::zeroed_in_slab(pool, len),
                AlignedBuffer::zeroed_in_slab(pool, len),
            ] {
                assert_eq!(array.len(), len);
                assert!(array.iter().all(|&x| x == 0.0), "{len} floats are zero");
                assert!(len == 0 || (array.as_ptr() as usize).is_multiple_of(CACHE_LINE));
                array.fill(1.0);
                arrays.push(array);
            }
        }
        assert!(arrays.iter().all(|array| array.iter().all(|&x| x == 1.0)));
    }
}
