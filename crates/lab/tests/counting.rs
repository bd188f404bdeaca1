//! Tests of the counting allocator. A separate test binary, because allocations of other tests
//! would be counted too.

use pellucid_lab::counting::{CountingAllocator, during};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn only_allocations_of_the_run_are_counted() {
    drop(std::hint::black_box(vec![1u8; 1 << 16]));
    let (_, idle) = during(|| ());
    let (made, found) = during(|| {
        drop(std::hint::black_box(vec![0u8; 1 << 20]));
        let mut kept = std::hint::black_box(Vec::<u8>::with_capacity(1 << 10));
        kept.reserve_exact(1 << 12);
        kept
    });
    assert!(made.capacity() >= 1 << 12);
    let (idle, found) = (idle.expect("counted"), found.expect("counted"));
    assert!(idle.bytes < 1 << 16, "earlier allocations do not count: {idle:?}");
    assert!(found.count >= 2 && found.bytes >= (1 << 20) + (1 << 12), "{found:?}");
    assert!(found.peak_live >= 1 << 20, "{found:?}");
}
