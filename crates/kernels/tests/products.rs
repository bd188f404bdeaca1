//! Matrix products against naive loops, and the guarantee that a row's bits do not depend on its
//! neighbors.

use pellucid_kernels::encoding::{self, Encoding};
use pellucid_kernels::matrix::RowBytes;
use pellucid_kernels::{DType, Matrix, Pool, matmul};
use proptest::prelude::*;

fn value(seed: u64, index: usize) -> f32 {
    let mixed = (index as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed >> 40) as f32 / (1 << 23) as f32) - 1.0
}

/// Rows of whole blocks of an encoding, filled with small finite values.
struct Encoded {
    row_bytes: usize,
    bytes: Vec<u8>,
}

impl RowBytes for Encoded {
    fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }
}

/// Random blocks: `scales` small f16 scales, then random codes.
fn encoded_rows(encoding: Encoding, scales: usize, rows: usize, cols: usize, seed: u64) -> Encoded {
    let mut bytes = Vec::new();
    for block in 0..rows * cols / encoding.block_len() {
        (0..scales).for_each(|i| bytes.extend(half::f16::from_f32(value(seed, block * 2 + i) * 0.05).to_le_bytes()));
        let codes = encoding.block_bytes() - 2 * scales;
        bytes.extend((0..codes).map(|i| (value(seed ^ 3, block * 64 + i) * 1e6) as i32 as u8));
        if encoding == Encoding::Q6_K {
            // Its scale comes last.
            let end = bytes.len();
            bytes[end - 2..].copy_from_slice(&half::f16::from_f32(value(seed, block) * 0.05).to_le_bytes());
        }
    }
    Encoded { row_bytes: cols / encoding.block_len() * encoding.block_bytes(), bytes }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn products_agree_with_naive_loops(rows in 0usize..70, inner in 1usize..600, columns in 1usize..90, bias: bool, seed: u64, kind in 0u8..4) {
        let pool = Pool::new(2);
        let dtype = [DType::F32, DType::Bf16, DType::F16, DType::Q8][kind as usize];
        let w = Matrix::pack(&pool, columns, inner, dtype, &|row, out| {
            out.iter_mut().enumerate().for_each(|(i, x)| *x = value(seed, row * inner + i));
        });
        let x: Vec<f32> = (0..rows * inner).map(|i| value(seed ^ 77, i)).collect();
        let b: Vec<f32> = (0..columns).map(|i| value(seed ^ 99, i)).collect();
        let mut out = vec![f32::NAN; rows * columns];
        matmul(&pool, &x, &w, bias.then_some(&b[..]), &mut out);
        let mut weights = vec![0.0; inner];
        for column in 0..columns {
            w.row(column, &mut weights);
            for row in 0..rows {
                let terms = x[row * inner..][..inner].iter().zip(&weights).map(|(a, b)| *a as f64 * *b as f64);
                let bias = if bias { b[column] as f64 } else { 0.0 };
                let (truth, size) = terms.fold((bias, bias.abs()), |(sum, size), term| (sum + term, size + term.abs()));
                let y = out[row * columns + column];
                // Upper bound on the rounding error of a chain of `inner + 1` operations.
                let bound = (inner + 1) as f64 * 2f64.powi(-24) * size;
                prop_assert!((y as f64 - truth).abs() <= bound, "row {row} column {column}: {y} instead of {truth}");
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_for_any_batch_threads_and_storage() {
    let (inner, columns) = (768, 77);
    let pools = [Pool::new(1), Pool::new(3)];
    let x: Vec<f32> = (0..500 * inner).map(|i| value(9, i)).collect();
    // The formats that are repacked into panels, and one that is decoded in place.
    let formats = [
        (Encoding::Q4_0, 1),
        (Encoding::Q4_1, 2),
        (Encoding::Q5_0, 1),
        (Encoding::Q5_1, 2),
        (Encoding::Q8_0, 1),
        (Encoding::Q4_K, 2),
        (Encoding::Q5_K, 2),
        (Encoding::Q6_K, 0),
        (Encoding::IQ4_NL, 1),
    ];
    for (encoding, scales) in formats {
        let encoded = encoded_rows(encoding, scales, columns, inner, 5);
        let mut plain = vec![0.0; columns * inner];
        for row in 0..columns {
            encoding::decode(encoding, encoded.row(row), &mut plain[row * inner..][..inner]);
        }
        let fill = |row: usize, out: &mut [f32]| out.copy_from_slice(&plain[row * inner..][..inner]);
        let packed = Matrix::pack(&pools[0], columns, inner, DType::F32, &fill);
        let blocks = Matrix::encoded(&pools[1], columns, inner, encoding, Box::new(encoded));
        let mut row = vec![0.0; inner];
        blocks.row(columns - 1, &mut row);
        assert_eq!(row, plain[(columns - 1) * inner..], "{encoding}");
        let mut reference = vec![0.0; 500 * columns];
        matmul(&pools[0], &x, &packed, None, &mut reference);
        for w in [&packed, &blocks] {
            for pool in &pools {
                for rows in [1, 2, 3, 4, 5, 6, 7, 13, 24, 25, 48, 49, 100, 500] {
                    let first = 500 - rows;
                    let mut out = vec![0.0; rows * columns];
                    matmul(pool, &x[first * inner..], w, None, &mut out);
                    assert_eq!(
                        out,
                        reference[first * columns..],
                        "{rows} rows, {} threads, {}",
                        pool.threads(),
                        w.format()
                    );
                }
            }
        }
    }
}

/// The order of every sum: chains of 256 fused multiply-adds, chain sums added in order.
#[test]
fn every_product_is_a_sum_of_chains_of_256() {
    let pool = Pool::new(2);
    for inner in [1, 255, 256, 257, 512, 800, 1536] {
        let (rows, columns) = (60, 40);
        let x: Vec<f32> = (0..rows * inner).map(|i| value(21, i)).collect();
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::Q8] {
            let w = Matrix::pack(&pool, columns, inner, dtype, &|row, out| {
                out.iter_mut().enumerate().for_each(|(i, x)| *x = value(22, row * inner + i));
            });
            let mut weights = vec![0.0; inner];
            let mut expected = vec![0.0; rows * columns];
            for column in 0..columns {
                w.row(column, &mut weights);
                for row in 0..rows {
                    let chain =
                        |(x, w): (&[f32], &[f32])| x.iter().zip(w).fold(0.0f32, |sum, (x, w)| x.mul_add(*w, sum));
                    let chains = x[row * inner..][..inner].chunks(256).zip(weights.chunks(256)).map(chain);
                    expected[row * columns + column] = chains.reduce(|total, sum| total + sum).unwrap_or(0.0);
                }
            }
            for count in [1, 2, 7, 60] {
                let mut out = vec![0.0; count * columns];
                matmul(&pool, &x[..count * inner], &w, None, &mut out);
                assert!(out == expected[..count * columns], "{count} rows of {inner} inputs, {dtype:?}");
            }
        }
    }
}

#[test]
fn q8_rounds_each_value_to_half_a_step() {
    let pool = Pool::new(1);
    let (rows, cols) = (40, 96);
    let stored = |row: usize, col: usize| value(3, row * cols + col) * if row == 7 { 0.0 } else { 4.0 };
    let matrix = Matrix::pack(&pool, rows, cols, DType::Q8, &|row, out| {
        out.iter_mut().enumerate().for_each(|(col, x)| *x = stored(row, col));
    });
    assert_eq!(matrix.format(), "Q8_0");
    assert!(matrix.bytes() < rows.next_multiple_of(16) * cols * 9 / 8);
    let mut out = vec![0.0; cols];
    for row in 0..rows {
        matrix.row(row, &mut out);
        for (block, values) in out.chunks(32).enumerate() {
            let largest = (0..32).map(|i| stored(row, block * 32 + i).abs()).fold(0.0, f32::max);
            for (i, x) in values.iter().enumerate() {
                let truth = stored(row, block * 32 + i);
                // Half a step, and the rounding of the scale to f16.
                let most = largest / 127.0 * 0.5 + truth.abs() * 5e-4;
                assert!((x - truth).abs() <= most, "row {row} block {block}: {x} for {truth}");
            }
        }
    }
    // Rows that are not whole blocks fall back to bf16.
    assert_eq!(Matrix::pack(&pool, 2, 33, DType::Q8, &|_, out| out.fill(1.0)).format(), "bf16");
}
