//! An idle process uses no CPU time. A separate test binary, because CPU time is counted for all
//! threads of a process.

#![cfg(target_os = "linux")]

use pellucid_kernels::Pool;
use std::time::Duration;

/// CPU time of this process so far, in clock ticks (10 ms).
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has /proc");
    // The name in parentheses may contain anything; user and system time are fields 12 and 13 after
    // it.
    let after = stat.rsplit(')').next().expect("fields");
    after.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn idle_threads_use_no_cpu_time() {
    let pool = Pool::new(4);
    for _ in 0..1000 {
        pool.run(8, &|task| _ = std::hint::black_box(task));
    }
    std::thread::sleep(Duration::from_millis(50));
    let before = ticks();
    std::thread::sleep(Duration::from_millis(1500));
    // Threads that kept polling would use 300 ticks or more.
    assert!(ticks() - before <= 3, "{} ticks in 1.5 idle seconds", ticks() - before);
}
