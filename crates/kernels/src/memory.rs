//! Storage whose first byte starts a cache line, so that a panel row is one line and never two.

use crate::pool::Pool;
pub use crate::slab::Room;
use crate::slab::{LINE, Slab};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Number types that may live in [`Aligned`] storage: any bit pattern is a value.
pub trait Plain: Copy + Send + Sync + 'static {}
impl Plain for f32 {}
impl Plain for u16 {}
impl Plain for u8 {}

/// A fixed-size zeroed array aligned to a cache line.
pub struct Aligned<T: Plain> {
    start: *mut T,
    len: usize,
    /// The slab that it is part of, if it is not an allocation of its own.
    slab: Option<Arc<Slab>>,
}

// SAFETY: `Aligned` owns its memory like a `Vec` and holds plain numbers.
unsafe impl<T: Plain> Send for Aligned<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Plain> Sync for Aligned<T> {}

impl<T: Plain> Aligned<T> {
    /// An array of `len` zeros.
    pub fn zeroed(len: usize) -> Aligned<T> {
        let Some(layout) = Self::layout(len) else {
            return Aligned { start: std::ptr::NonNull::dangling().as_ptr(), len: 0, slab: None };
        };
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Aligned { start: start.cast(), len, slab: None }
    }

    /// An array of `len` zeros that will live for long, such as weights: many of them share pages of two megabytes where the system has such,
    /// in a [`Room`] where there is one.
    pub fn lasting(pool: &Pool, len: usize) -> Aligned<T> {
        let part = Self::layout(len).and_then(|layout| Slab::part(pool, layout.size()));
        match part {
            Some((slab, start)) => Aligned { start: start.cast(), len, slab: Some(slab) },
            None => Aligned::zeroed(len),
        }
    }

    /// `None` where nothing needs to be allocated.
    fn layout(len: usize) -> Option<Layout> {
        let bytes = len.checked_mul(size_of::<T>()).expect("an array larger than the address space");
        (bytes > 0).then(|| Layout::from_size_align(bytes, LINE).expect("an array larger than the address space"))
    }
}

impl<T: Plain> Drop for Aligned<T> {
    fn drop(&mut self) {
        if let (Some(layout), None) = (Self::layout(self.len), &self.slab) {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.start.cast(), layout) };
        }
    }
}

impl<T: Plain> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `start` holds `len` initialised values for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T: Plain> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// A pointer that threads may share because each writes only its own part.
///
/// The code that shares it states why the parts are disjoint.
#[derive(Clone, Copy)]
pub struct Shared<T>(*mut T);

// SAFETY: whoever dereferences it vouches for disjoint parts.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Shares a slice that is split among threads.
    pub fn new(slice: &mut [T]) -> Shared<T> {
        Shared(slice.as_mut_ptr())
    }

    /// The pointer itself.
    pub fn get(self) -> *mut T {
        self.0
    }

    /// Part of the shared slice.
    ///
    /// # Safety
    /// The range must lie within the shared slice, and no other thread may hold an overlapping part.
    pub unsafe fn part<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller vouches for the range and for exclusiveness.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_start_on_a_cache_line_and_are_zero() {
        let pool = Pool::new(2);
        for room in [None, Some(1 << 20), Some(30 << 20), Some(200 << 20)] {
            let room = room.map(Room::new);
            arrays(&pool);
            drop(room);
            arrays(&pool);
        }
    }

    fn arrays(pool: &Pool) {
        let mut kept = Vec::new();
        for len in [0, 1, 17, 100_000, 1 << 21, 9 << 20] {
            for mut array in [Aligned::<f32>::zeroed(len), Aligned::lasting(pool, len), Aligned::lasting(pool, len)] {
                assert_eq!(array.len(), len);
                assert!(array.iter().all(|&x| x == 0.0), "{len} floats that nobody else has written");
                assert!(len == 0 || (array.as_ptr() as usize).is_multiple_of(LINE));
                array.fill(1.0);
                kept.push(array);
            }
        }
        assert!(kept.iter().all(|array| array.iter().all(|&x| x == 1.0)));
    }
}
