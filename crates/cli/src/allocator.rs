//! Allocator settings that both binaries of this package share.

/// Keeps freed memory in the process. Activations are large and short-lived: by default the
/// allocator returns their memory to the kernel after each run and faults every page in again in
/// the next, which costs more than the captures themselves.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: called before any other thread exists; both settings only control when memory returns
    // to the kernel.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
    }
}
