//! Large pieces of memory that many weights share.
//!
//! A matrix of a small model takes less than one huge page, and the allocator would put each on small pages of its own. Streaming
//! through a model then means a lookup in the page tables every four kilobytes, which under virtualisation costs as much as
//! the arithmetic on these. So weights are laid one after the other into slabs that the system may back with huge pages. A slab is given
//! back when the last weight in it is dropped.

use crate::memory::LINE;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of a slab; what is larger has one of its own.
const SIZE: usize = 64 << 20;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Arrays below this size are not worth it.
const LEAST: usize = 16 << 10;

/// Memory from the system, zero until written.
pub(crate) struct Slab {
    start: *mut u8,
    /// What the system was asked for, to give it back.
    mapped: (*mut u8, usize),
}

// SAFETY: a slab is only an owner; its parts are handed out once each.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// The slab that is being filled, and how far. It is not kept alive from here.
static FILLING: Mutex<(Weak<Slab>, usize)> = Mutex::new((Weak::new(), 0));

impl Slab {
    /// Room for `bytes` bytes on a cache line of its own, and the slab that must be kept for as long as it is used. `None` where slabs
    /// are not to be had.
    pub fn part(bytes: usize) -> Option<(Arc<Slab>, *mut u8)> {
        if bytes < LEAST {
            return None;
        }
        if bytes > SIZE / 2 {
            let slab = Arc::new(Slab::map(bytes)?);
            let start = slab.start;
            return Some((slab, start));
        }
        // Nothing can panic while it is held.
        let mut filling = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
        let slab = match filling.0.upgrade() {
            Some(slab) if filling.1 + bytes <= SIZE => slab,
            _ => {
                let slab = Arc::new(Slab::map(SIZE)?);
                *filling = (Arc::downgrade(&slab), 0);
                slab
            }
        };
        // SAFETY: the part lies within the slab.
        let start = unsafe { slab.start.add(filling.1) };
        filling.1 += bytes.next_multiple_of(LINE);
        Some((slab, start))
    }

    #[cfg(target_os = "linux")]
    fn map(bytes: usize) -> Option<Slab> {
        let size = bytes.next_multiple_of(HUGE) + HUGE;
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), size, rights, kind, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let mapped = mapped.cast::<u8>();
        let start = mapped.wrapping_add(mapped.align_offset(HUGE));
        // SAFETY: the range is within the mapping; the advice changes no content and its failure no behaviour.
        unsafe { libc::madvise(start.cast(), size - HUGE, libc::MADV_HUGEPAGE) };
        Some(Slab { start, mapped: (mapped, size) })
    }

    #[cfg(not(target_os = "linux"))]
    fn map(_bytes: usize) -> Option<Slab> {
        None
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: mapped in `map` with this size, and no part of it is in use any more.
        unsafe {
            libc::munmap(self.mapped.0.cast(), self.mapped.1);
        }
    }
}
