//! Attention of SmolLM2-135M's shape: `cargo bench -p pellucid-kernels --bench attention`.
//!
//! A whole prompt, and one query with a long KV cache. Throughput counts the operations of both
//! products over the visible keys.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pellucid_kernels::Pool;
use pellucid_kernels::attention::{AttentionShape, CausalMask, HeadBiases, KvCache, KvFormat, Queries, attend};
use std::hint::black_box;

const SHAPE: AttentionShape = AttentionShape {
    heads: 9,
    kv_heads: 3,
    key_dim: 64,
    value_dim: 64,
    scale: 0.125,
    soft_cap: None,
    mask: CausalMask { window: None, chunk: None },
};

fn attention(c: &mut Criterion) {
    let pool = Pool::global();
    let mut group = c.benchmark_group("attention");
    group.sample_size(20);
    for (name, past, count) in [("prompt", 0, 128), ("prompt", 0, 512), ("prompt", 0, 2048), ("step", 4095, 1)] {
        let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
        let mut kv = KvCache::new(SHAPE.kv_layout(KvFormat::F32), past + count);
        let numbers = wave((past + count) * SHAPE.kv_heads * SHAPE.key_dim);
        kv.append(&numbers, &numbers);
        let q = wave(count * SHAPE.heads * SHAPE.key_dim);
        let mut out = vec![0.0; count * SHAPE.heads * SHAPE.value_dim];
        let pairs: usize = (0..count).map(|i| SHAPE.visible(past + i).len()).sum();
        let products = 2 * pairs * SHAPE.heads * (SHAPE.key_dim + SHAPE.value_dim);
        group.throughput(Throughput::Elements(products as u64));
        group.bench_function(BenchmarkId::new(name, past + count), |b| {
            let queries = |_| Queries { kv: &kv, position: past, count, packed_offset: 0 };
            b.iter(|| attend(&pool, &SHAPE, HeadBiases::default(), black_box(&q), 1, &queries, &mut out))
        });
    }
    group.finish();
}

criterion_group!(benches, attention);
criterion_main!(benches);
