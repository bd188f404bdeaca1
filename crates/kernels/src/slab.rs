//! Large pieces of memory that many weights share.
//!
//! A matrix of a small model takes less than one huge page, and the allocator would put each on small pages of its own. Streaming
//! through a model then means a lookup in the page tables every four kilobytes, which under virtualisation costs as much as
//! the arithmetic on these. So weights are laid one after the other into slabs that the system may back with huge pages. A slab is given
//! back when the last weight in it is dropped. Who knows how much is coming makes a [`Room`] for it, whose pages the threads make ready together.

use crate::pool::Pool;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Bytes in a cache line.
pub(crate) const LINE: usize = 64;
/// Bytes of a slab; what is larger has one of its own.
const SIZE: usize = 64 << 20;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Arrays below this size are not worth it.
const LEAST: usize = 16 << 10;
/// Bytes of a [`Room`] that are made ready ahead of their use.
const AHEAD: usize = 32 << 20;

/// Memory from the system, zero until written.
pub(crate) struct Slab {
    start: *mut u8,
    size: usize,
    /// What the system was asked for, to give it back.
    mapped: (*mut u8, usize),
}

// SAFETY: a slab is only an owner; its parts are handed out once each.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// The slab that a thread fills, and how far. It is not kept alive from here.
#[derive(Default)]
struct Filling {
    slab: Weak<Slab>,
    used: usize,
    /// How far its pages are there.
    ready: usize,
    /// How much of it is certain to be used.
    wanted: usize,
}

thread_local! {
    /// A model's weights are made one after the other by one thread, so models that are loaded at the same time have slabs of their own.
    static FILLING: RefCell<Filling> = RefCell::default();
}

impl Slab {
    /// Room for `bytes` bytes on a cache line of its own, and the slab that must be kept for as long as it is used. `None` where slabs
    /// are not to be had.
    pub fn part(pool: &Pool, bytes: usize) -> Option<(Arc<Slab>, *mut u8)> {
        if bytes < LEAST {
            return None;
        }
        FILLING.with_borrow_mut(|filling| {
            let slab = match filling.slab.upgrade() {
                Some(slab) if filling.used + bytes <= slab.size => slab,
                _ if bytes > SIZE / 2 => {
                    let slab = Arc::new(Slab::map(bytes)?);
                    let start = slab.start;
                    return Some((slab, start));
                }
                _ => {
                    let slab = Arc::new(Slab::map(SIZE)?);
                    *filling = Filling { slab: Arc::downgrade(&slab), ..Filling::default() };
                    slab
                }
            };
            // SAFETY: the part lies within the slab.
            let start = unsafe { slab.start.add(filling.used) };
            filling.used += bytes.next_multiple_of(LINE);
            if filling.used.min(filling.wanted) > filling.ready {
                let upto = (filling.used + AHEAD).min(filling.wanted);
                slab.make_ready(pool, filling.ready..upto);
                filling.ready = upto.next_multiple_of(HUGE);
            }
            Some((slab, start))
        })
    }

    /// Has the system put pages where there are none yet, on all threads at once, each on pages of its own. Threads that first write to one
    /// huge page at the same time would each have it cleared, for nothing but one of them.
    fn make_ready(&self, pool: &Pool, bytes: Range<usize>) {
        pool.run(bytes.len().div_ceil(HUGE), &|page| self.touch(bytes.start + page * HUGE));
    }

    /// Writes the zero that is there already.
    fn touch(&self, at: usize) {
        assert!(at < self.size, "byte {at} of a slab of {}", self.size);
        // SAFETY: the byte lies within the slab, in a part that nobody has been given or has written to.
        unsafe { self.start.add(at).write_volatile(0) };
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
        Some(Slab { start, size: size - HUGE, mapped: (mapped, size) })
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

/// Room for weights that the calling thread is about to make: one slab for all, whose pages are made ready by all threads of a pool.
pub struct Room(Option<Arc<Slab>>);

impl Room {
    /// Room for this many bytes, all of which will be used. What turns out to be more is put elsewhere.
    pub fn new(bytes: usize) -> Room {
        let slab = (bytes >= HUGE).then(|| Slab::map(bytes)).flatten().map(Arc::new);
        if let Some(slab) = &slab {
            FILLING.set(Filling { slab: Arc::downgrade(slab), wanted: bytes, ..Filling::default() });
        }
        Room(slab)
    }
}

impl Drop for Room {
    /// What other weights come later shall not keep this slab alive.
    fn drop(&mut self) {
        if self.0.is_some() {
            FILLING.take();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_room_holds_what_was_said_and_nothing_that_comes_later() {
        let pool = Pool::new(2);
        let part = |bytes| Slab::part(&pool, bytes).unwrap();
        let room = Room::new(100 << 20);
        let (first, at) = part(40 << 20);
        let (second, next) = part(50 << 20);
        assert!(Arc::ptr_eq(&first, &second) && next == at.wrapping_add(40 << 20));
        // More than was said: elsewhere.
        let (third, _) = part(20 << 20);
        assert!(!Arc::ptr_eq(&first, &third));
        drop(room);
        let later = Room::new(4 << 20);
        let (slab, _) = part(1 << 20);
        drop(later);
        let (other, _) = part(1 << 20);
        assert!(!Arc::ptr_eq(&slab, &other), "a later weight would keep a whole model's memory");
    }

    #[test]
    fn threads_that_load_have_rooms_of_their_own() {
        let _room = Room::new(8 << 20);
        let pool = Pool::new(1);
        let (mine, _) = Slab::part(&pool, 1 << 20).unwrap();
        let theirs = std::thread::spawn(|| Slab::part(&Pool::new(1), 1 << 20).unwrap().0).join().unwrap();
        assert!(!Arc::ptr_eq(&mine, &theirs));
    }
}
