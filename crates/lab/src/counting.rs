//! A global allocator that counts heap allocations while [`during`] runs.
//!
//! Only `pellucid-lab-worker` and tests install it. Counting slows a run down, so counted runs are
//! never timed. While counting is off, an allocation costs one more relaxed atomic load than with
//! the system allocator.

use crate::protocol::Allocations;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static ENABLED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
/// Live bytes relative to the start; negative if older memory is freed meanwhile.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// The system allocator with counters. An executable installs it with `#[global_allocator]`.
pub struct CountingAllocator;

// SAFETY: every call goes to the system's allocator unchanged; counting touches atomics only and
// never allocates.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system's.
        let pointer = unsafe { System.alloc(layout) };
        if ENABLED.load(Relaxed) {
            record_allocation(layout.size(), 0);
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system's.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if ENABLED.load(Relaxed) {
            record_allocation(layout.size(), 0);
        }
        pointer
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are the system's.
        let pointer = unsafe { System.realloc(old, layout, size) };
        if ENABLED.load(Relaxed) {
            record_allocation(size, layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(old, layout) };
        if ENABLED.load(Relaxed) {
            LIVE.fetch_sub(layout.size() as i64, Relaxed);
        }
    }
}

#[cold]
fn record_allocation(size: usize, freed: usize) {
    COUNT.fetch_add(1, Relaxed);
    BYTES.fetch_add(size as u64, Relaxed);
    let change = size as i64 - freed as i64;
    let live = LIVE.fetch_add(change, Relaxed) + change;
    PEAK.fetch_max(live, Relaxed);
}

/// Calls `run` and counts the allocations of all threads. `None` if the executable does not install
/// [`CountingAllocator`].
pub fn during<T>(run: impl FnOnce() -> T) -> (T, Option<Allocations>) {
    COUNT.store(0, Relaxed);
    BYTES.store(0, Relaxed);
    LIVE.store(0, Relaxed);
    PEAK.store(0, Relaxed);
    ENABLED.store(true, Relaxed);
    // This allocates once, so a count of zero means that the allocator is not installed.
    drop(std::hint::black_box(Box::new(0u8)));
    let (own_count, own_bytes) = (COUNT.load(Relaxed), BYTES.load(Relaxed));
    let result = run();
    ENABLED.store(false, Relaxed);
    let found = Allocations {
        count: COUNT.load(Relaxed).saturating_sub(own_count),
        bytes: BYTES.load(Relaxed).saturating_sub(own_bytes),
        peak_live: PEAK.load(Relaxed).max(0) as u64,
    };
    (result, (own_count > 0).then_some(found))
}
