//! An idle process uses no processor time. In a process of its own, since time is counted for all its threads.

#![cfg(target_os = "linux")]

use pellucid_kernels::Pool;
use std::time::Duration;

/// Processor time of this process so far, in clock ticks (hundredths of a second).
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("linux has it");
    // The name in brackets may hold anything; user and system time are the 12th and 13th field after it.
    let after = stat.rsplit(')').next().expect("fields");
    after.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn threads_sleep_when_there_is_nothing_to_do() {
    let pool = Pool::new(4);
    for _ in 0..1000 {
        pool.run(8, &|task| _ = std::hint::black_box(task));
    }
    std::thread::sleep(Duration::from_millis(50));
    let before = ticks();
    std::thread::sleep(Duration::from_millis(1500));
    // Threads that kept looking for work would take 300 of them or more.
    assert!(ticks() - before <= 3, "{} ticks in a second and a half of nothing", ticks() - before);
}
