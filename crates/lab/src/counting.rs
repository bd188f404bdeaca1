//! A global allocator that counts allocations while [`during`] runs.
//!
//! Only `pellucid-lab-worker` and tests install it. Counting disturbs timing, so no time is taken from a run that counts; between such runs
//! an allocation costs one relaxed load more than the system's.

use crate::protocol::Allocations;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static ON: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
/// Bytes alive above what was alive at the start; below zero where older memory was freed meanwhile.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// The system's allocator with counters. An executable installs it with `#[global_allocator]`.
pub struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches atomics only and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system's.
        let made = unsafe { System.alloc(layout) };
        if ON.load(Relaxed) {
            grown(layout.size(), 0);
        }
        made
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system's.
        let made = unsafe { System.alloc_zeroed(layout) };
        if ON.load(Relaxed) {
            grown(layout.size(), 0);
        }
        made
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are the system's.
        let made = unsafe { System.realloc(old, layout, size) };
        if ON.load(Relaxed) {
            grown(size, layout.size());
        }
        made
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(old, layout) };
        if ON.load(Relaxed) {
            LIVE.fetch_sub(layout.size() as i64, Relaxed);
        }
    }
}

#[cold]
fn grown(size: usize, instead_of: usize) {
    COUNT.fetch_add(1, Relaxed);
    BYTES.fetch_add(size as u64, Relaxed);
    let change = size as i64 - instead_of as i64;
    let live = LIVE.fetch_add(change, Relaxed) + change;
    PEAK.fetch_max(live, Relaxed);
}

/// Runs something and counts what it allocates, on all threads. None where the executable did not install [`Counting`].
pub fn during<T>(run: impl FnOnce() -> T) -> (T, Option<Allocations>) {
    COUNT.store(0, Relaxed);
    BYTES.store(0, Relaxed);
    LIVE.store(0, Relaxed);
    PEAK.store(0, Relaxed);
    ON.store(true, Relaxed);
    // Something is always allocated here, so a count of zero means that the allocator is not installed.
    drop(std::hint::black_box(Box::new(0u8)));
    let (own_count, own_bytes) = (COUNT.load(Relaxed), BYTES.load(Relaxed));
    let made = run();
    ON.store(false, Relaxed);
    let found = Allocations {
        count: COUNT.load(Relaxed).saturating_sub(own_count),
        bytes: BYTES.load(Relaxed).saturating_sub(own_bytes),
        peak_live: PEAK.load(Relaxed).max(0) as u64,
    };
    (made, (own_count > 0).then_some(found))
}
