//! The setting of the system's allocator that both binaries of this package share.

/// Keeps freed memory in the process. Activations are large and short-lived: the system's allocator would return their memory after each
/// run and fault every page in again at the next, which costs more than the captures themselves.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: called before any other thread exists; both settings only say when memory goes back to the system.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
    }
}
