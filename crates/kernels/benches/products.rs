//! Matrix products against the `gemm` crate: `cargo bench -p pellucid-kernels`.
//!
//! Both sides use the same threads. `gemm` packs the weights at each call, Pellucid once at load:
//! that is the purpose of the layout. So with few rows this compares the cost of a decode step, not
//! two inner loops.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pellucid_kernels::{DType, Matrix, Pool, matmul};
use std::hint::black_box;

fn products(c: &mut Criterion) {
    let pool = Pool::global();
    for (columns, inner) in [(576, 1536), (3072, 768)] {
        let weights: Vec<f32> = (0..columns * inner).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
        let pack = |dtype| {
            Matrix::pack(&pool, columns, inner, dtype, &|row, out| {
                out.copy_from_slice(&weights[row * inner..][..inner])
            })
        };
        let (f32s, bf16s) = (pack(DType::F32), pack(DType::Bf16));
        for rows in [1, 4, 16, 32, 128, 512] {
            let x = vec![0.5f32; rows * inner];
            let mut y = vec![0.0f32; rows * columns];
            let mut group = c.benchmark_group(format!("{columns}x{inner}"));
            group.sample_size(20).throughput(Throughput::Elements((2 * rows * columns * inner) as u64));
            group.bench_function(BenchmarkId::new("f32", rows), |b| {
                b.iter(|| matmul(&pool, black_box(&x), &f32s, None, &mut y))
            });
            group.bench_function(BenchmarkId::new("bf16", rows), |b| {
                b.iter(|| matmul(&pool, black_box(&x), &bf16s, None, &mut y))
            });
            group.bench_function(BenchmarkId::new("gemm crate", rows), |b| {
                // SAFETY: the strides describe `y` = `x` × `weights` transposed, all of the sizes
                // above.
                b.iter(|| unsafe {
                    gemm::gemm(
                        rows,
                        columns,
                        inner,
                        y.as_mut_ptr(),
                        1,
                        columns as isize,
                        false,
                        black_box(x.as_ptr()),
                        1,
                        inner as isize,
                        weights.as_ptr(),
                        inner as isize,
                        1,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        gemm::Parallelism::Rayon(pool.threads()),
                    )
                })
            });
            group.finish();
        }
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
