//! Slabs: large memory mappings that many weights share.
//!
//! A matrix of a small model takes less than one huge page, so the allocator would put it on 4 KiB
//! pages. Streaming through the weights then needs a page-table lookup every 4 KiB, which under
//! virtualization costs as much as the arithmetic. So weights are allocated one after the other
//! from slabs that the kernel may back with huge pages. A slab is unmapped when the last weight in
//! it is dropped. If the total size is known, reserve it with [`SlabReservation`]; all threads then
//! pre-fault its pages.

use crate::pool::Pool;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Bytes per cache line.
pub(crate) const CACHE_LINE: usize = 64;
/// Bytes per slab; larger arrays get a slab of their own.
const SLAB_BYTES: usize = 64 << 20;
/// Bytes per huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Smaller arrays are left to the allocator.
const MIN_BYTES: usize = 16 << 10;
/// How many bytes of a [`SlabReservation`] are pre-faulted ahead of the current allocation.
const PREFAULT_AHEAD: usize = 32 << 20;

/// A memory mapping, zero until written.
pub(crate) struct Slab {
    start: *mut u8,
    size: usize,
    /// Address and size of the whole mapping, for `munmap`.
    mapped: (*mut u8, usize),
}

// SAFETY: a slab only owns the memory; each part of it is handed out once.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// The slab from which a thread currently allocates. Holds only a weak reference: the arrays in the
/// slab keep it alive.
#[derive(Default)]
struct CurrentSlab {
    slab: Weak<Slab>,
    used: usize,
    /// End of the pre-faulted pages, in bytes.
    faulted: usize,
    /// Bytes that are certain to be used, so pages up to here may be pre-faulted.
    reserved: usize,
}

thread_local! {
    /// Per thread, because one thread loads a model's weights one after the other: models that are
    /// loaded concurrently get separate slabs.
    static CURRENT_SLAB: RefCell<CurrentSlab> = RefCell::default();
}

impl Slab {
    /// Allocates `bytes` zeroed bytes at the start of a cache line. Returns them with the slab,
    /// which must be kept alive as long as they are used; `None` for small arrays and where slabs
    /// are not available.
    pub fn allocate(pool: &Pool, bytes: usize) -> Option<(Arc<Slab>, *mut u8)> {
        if bytes < MIN_BYTES {
            return None;
        }
        CURRENT_SLAB.with_borrow_mut(|current| {
            let slab = match current.slab.upgrade() {
                Some(slab) if current.used + bytes <= slab.size => slab,
                _ if bytes > SLAB_BYTES / 2 => {
                    let slab = Arc::new(Slab::map(bytes)?);
                    let start = slab.start;
                    return Some((slab, start));
                }
                _ => {
                    let slab = Arc::new(Slab::map(SLAB_BYTES)?);
                    *current = CurrentSlab { slab: Arc::downgrade(&slab), ..CurrentSlab::default() };
                    slab
                }
            };
            // SAFETY: the allocation lies within the slab.
            let start = unsafe { slab.start.add(current.used) };
            current.used += bytes.next_multiple_of(CACHE_LINE);
            if current.used.min(current.reserved) > current.faulted {
                let upto = (current.used + PREFAULT_AHEAD).min(current.reserved);
                slab.prefault(pool, current.faulted..upto);
                current.faulted = upto.next_multiple_of(HUGE_PAGE);
            }
            Some((slab, start))
        })
    }

    /// Pre-faults the pages of a range, on all threads, one huge page per task. If several threads
    /// first wrote to the same huge page, each of them would clear it, and all but one of these
    /// copies would be discarded.
    fn prefault(&self, pool: &Pool, bytes: Range<usize>) {
        pool.run(bytes.len().div_ceil(HUGE_PAGE), &|page| self.fault_page(bytes.start + page * HUGE_PAGE));
    }

    /// Writes a zero, which maps the page without changing its content.
    fn fault_page(&self, at: usize) {
        assert!(at < self.size, "byte {at} of a slab of {}", self.size);
        // SAFETY: the byte lies within the slab, in a part that is not allocated or not yet written
        // to.
        unsafe { self.start.add(at).write_volatile(0) };
    }

    #[cfg(target_os = "linux")]
    fn map(bytes: usize) -> Option<Slab> {
        let size = bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping does not affect existing memory.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, kind, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let mapped = mapped.cast::<u8>();
        let start = mapped.wrapping_add(mapped.align_offset(HUGE_PAGE));
        // SAFETY: the range is within the mapping; the advice changes no content, and its failure
        // is harmless.
        unsafe { libc::madvise(start.cast(), size - HUGE_PAGE, libc::MADV_HUGEPAGE) };
        Some(Slab { start, size: size - HUGE_PAGE, mapped: (mapped, size) })
    }

    #[cfg(not(target_os = "linux"))]
    fn map(_bytes: usize) -> Option<Slab> {
        None
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: mapped in `map` with this size, and no array uses it any more.
        unsafe {
            libc::munmap(self.mapped.0.cast(), self.mapped.1);
        }
    }
}

/// Reserves one slab for the weights that the calling thread is about to allocate
/// ([`AlignedBuffer::zeroed_in_slab`](crate::memory::AlignedBuffer::zeroed_in_slab)). All threads
/// of the pool pre-fault its pages. Drop it after the last of these weights.
pub struct SlabReservation(Option<Arc<Slab>>);

impl SlabReservation {
    /// Reserves `bytes` bytes, all of which will be used. Allocations beyond them go to other
    /// slabs.
    pub fn new(bytes: usize) -> SlabReservation {
        let slab = (bytes >= HUGE_PAGE).then(|| Slab::map(bytes)).flatten().map(Arc::new);
        if let Some(slab) = &slab {
            CURRENT_SLAB.set(CurrentSlab { slab: Arc::downgrade(slab), reserved: bytes, ..CurrentSlab::default() });
        }
        SlabReservation(slab)
    }
}

impl Drop for SlabReservation {
    /// Later allocations must not keep this slab alive.
    fn drop(&mut self) {
        if self.0.is_some() {
            CURRENT_SLAB.take();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_holds_its_bytes_and_no_later_allocation() {
        let pool = Pool::new(2);
        let allocate = |bytes| Slab::allocate(&pool, bytes).unwrap();
        let reservation = SlabReservation::new(100 << 20);
        let (first, at) = allocate(40 << 20);
        let (second, next) = allocate(50 << 20);
        assert!(Arc::ptr_eq(&first, &second) && next == at.wrapping_add(40 << 20));
        // Beyond the reservation: another slab.
        let (third, _) = allocate(20 << 20);
        assert!(!Arc::ptr_eq(&first, &third));
        drop(reservation);
        let later = SlabReservation::new(4 << 20);
        let (slab, _) = allocate(1 << 20);
        drop(later);
        let (other, _) = allocate(1 << 20);
        assert!(!Arc::ptr_eq(&slab, &other), "a later weight would keep a whole model's memory");
    }

    #[test]
    fn threads_allocate_from_separate_slabs() {
        let _reservation = SlabReservation::new(8 << 20);
        let pool = Pool::new(1);
        let (mine, _) = Slab::allocate(&pool, 1 << 20).unwrap();
        let theirs = std::thread::spawn(|| Slab::allocate(&Pool::new(1), 1 << 20).unwrap().0).join().unwrap();
        assert!(!Arc::ptr_eq(&mine, &theirs));
    }
}
