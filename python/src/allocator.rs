//! Returns the memory of freed activations to the system.
//!
//! glibc keeps freed blocks of up to 32 MB in the process. A cache of activations is hundreds of
//! such blocks, so without this most of its memory would stay resident after the cache is freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The system's allocator, which trims its heap after every [`TRIM_BYTES`] of large blocks that
/// were freed and not allocated again.
struct TrimmingAllocator;

#[global_allocator]
static ALLOCATOR: TrimmingAllocator = TrimmingAllocator;

/// Blocks of at least this size are counted; smaller ones cost nothing.
const LARGE_BYTES: usize = 64 << 10;
const TRIM_BYTES: usize = 64 << 20;

/// Bytes of large blocks that were freed and not allocated again, since the last trim.
static FREED: AtomicUsize = AtomicUsize::new(0);

/// Whether freed memory stays in the process.
static KEEPS_FREED: AtomicBool = AtomicBool::new(false);

/// Keeps freed memory in the process from now on, for the command, which reuses it in the next run.
pub fn keep_freed_memory() {
    KEEPS_FREED.store(true, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged; the counter and the trim
// around it touch no block that is in use.
unsafe impl GlobalAlloc for TrimmingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocated(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocated(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) };
        if layout.size() >= LARGE_BYTES {
            count_freed(layout.size());
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}

fn count_allocated(bytes: usize) {
    if bytes >= LARGE_BYTES {
        let _ = FREED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |freed| Some(freed.saturating_sub(bytes)));
    }
}

fn count_freed(bytes: usize) {
    if FREED.fetch_add(bytes, Ordering::Relaxed) + bytes >= TRIM_BYTES {
        FREED.store(0, Ordering::Relaxed);
        if !KEEPS_FREED.load(Ordering::Relaxed) {
            trim();
        }
    }
}

fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: returns unused pages of the heap to the system; blocks in use are not touched.
    unsafe {
        libc::malloc_trim(0);
    }
}
