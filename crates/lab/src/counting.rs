//! An allocator that can count. It is inert until a worker that was asked to count turns it on for one run.
//!
//! Counting disturbs timing, so no time is ever taken from a process that counts; in all others the cost is one relaxed load of a
//! flag that nobody writes.

use crate::protocol::Allocations;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

/// The environment variable that asks a worker to count the allocations of one run.
pub const ASK: &str = "PELLUCID_LAB_ALLOCATIONS";

static ON: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
/// Bytes alive above what was alive at the start; below zero where older memory was freed meanwhile.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counted while [`during`] runs. An executable installs it with `#[global_allocator]`.
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

/// Whether this process was started to count.
pub fn is_asked() -> bool {
    std::env::var_os(ASK).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Runs something and counts what it allocates, on all threads. None where the executable did not install [`Counting`].
pub fn during<T>(run: impl FnOnce() -> T) -> (T, Option<Allocations>) {
    COUNT.store(0, Relaxed);
    BYTES.store(0, Relaxed);
    LIVE.store(0, Relaxed);
    PEAK.store(0, Relaxed);
    ON.store(true, Relaxed);
    // Something is always allocated here, so that nothing counted means nobody counts.
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
