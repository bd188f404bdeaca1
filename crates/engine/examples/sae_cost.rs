//! Measures the steps of a sparse autoencoder on synthetic weights: each step as a share of the
//! plain matrix product of the encoder's size.
//!
//!     cargo run --release -p pellucid-engine --example sae_cost -- [tokens [rounds]]
#![allow(clippy::print_stdout)] // printing is what an example is for

use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};
use pellucid_kernels::encoding::Encoding;
use pellucid_kernels::matrix::RowBytes;
use pellucid_kernels::{DType, Matrix, Pool, matmul};
use std::cell::RefCell;
use std::time::Instant;

const D: usize = 768;
const N: usize = 24_576;
/// Active features of a token; for JumpReLU, of the first token.
const ACTIVE: usize = 20;

struct Rows(Vec<u8>, usize);

impl RowBytes for Rows {
    fn row(&self, row: usize) -> &[u8] {
        &self.0[row * self.1..][..self.1]
    }
}

/// Deterministic floats in -1..1.
fn noise(count: usize, mut state: u64) -> Vec<f32> {
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(step).collect()
}

fn autoencoder(pool: &Pool, kind: SaeKind, half: bool) -> Sae {
    let values = noise(N * D, 7);
    let (dtype, encoding) = if half { (DType::Bf16, Encoding::BF16) } else { (DType::F32, Encoding::F32) };
    let bytes = match half {
        true => values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        false => values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(),
    };
    let rows = Rows(bytes, D * encoding.block_bytes());
    Sae {
        kind,
        normalization: InputNormalization::None,
        undo_normalization: true,
        subtract_decoder_bias: true,
        encoder: Matrix::pack(pool, N, D, dtype, &|row, out| out.copy_from_slice(&values[row * D..][..D])),
        encoder_bias: vec![0.0; N],
        decoders: vec![Matrix::encoded(pool, N, D, encoding, Box::new(rows))],
        decoder_biases: vec![vec![0.01; D]],
        skip: None,
    }
}

/// Runs each step once per round, in turn, so that noise of the machine affects all alike; returns
/// their least seconds.
fn fastest<const STEPS: usize>(rounds: usize, mut steps: [(&str, &mut dyn FnMut()); STEPS]) -> Vec<(String, f64)> {
    let mut least = [f64::INFINITY; STEPS];
    for _ in 0..rounds {
        for (least, (_, step)) in least.iter_mut().zip(&mut steps) {
            let start = Instant::now();
            step();
            *least = least.min(start.elapsed().as_secs_f64());
        }
    }
    least.into_iter().zip(steps).map(|(least, (name, _))| (name.to_owned(), least)).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let tokens: usize = arguments.next().map_or(Ok(640), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(7), |text| text.parse())?;
    let pool = Pool::global();
    let x = noise(tokens * D, 11);
    // The threshold of a JumpReLU with the same number of active features on average.
    let mut sorted = vec![0.0; N];
    matmul(&pool, &x[..D], &autoencoder(&pool, SaeKind::Relu, false).encoder, None, &mut sorted);
    sorted.sort_by(|a, b| b.total_cmp(a));
    for half in [false, true] {
        let kinds = [
            SaeKind::JumpRelu { threshold: vec![sorted[ACTIVE]; N] },
            SaeKind::TopK { k: ACTIVE, by_decoder_norm: None },
        ];
        for kind in kinds {
            let name = if matches!(kind, SaeKind::TopK { .. }) { "TopK" } else { "JumpReLU" };
            let sae = autoencoder(&pool, kind, half);
            sae.check()?;
            let (mut pre, mut plain) = (vec![0.0; tokens * N], vec![0.0; tokens * N]);
            let (mut recon, mut fused) = (vec![0.0; tokens * D], vec![0.0; tokens * D]);
            let scales = sae.encode(&pool, &x, &mut pre);
            let mut acts = pre.clone();
            sae.activate(&pool, &mut acts);
            let active = acts.iter().filter(|&&a| a != 0.0).count() as f64 / tokens as f64;
            let mut d_x = vec![0.0; tokens * D];
            // `encode` refills what `activate` overwrites; one step writes what the next reads.
            let [pre, d_acts] = [pre, vec![0.0; tokens * N]].map(RefCell::new);
            let gradient = noise(tokens * D, 13);
            let results = fastest(
                rounds,
                [
                    ("plain matmul", &mut || matmul(&pool, &x, &sae.encoder, None, &mut plain)),
                    ("encode", &mut || drop(sae.encode(&pool, &x, &mut pre.borrow_mut()))),
                    ("activate", &mut || sae.activate(&pool, &mut pre.borrow_mut())),
                    ("decode", &mut || sae.decode(&pool, 0, &acts, &scales, &x, &mut recon)),
                    ("reconstruct (fused)", &mut || sae.reconstruct(&pool, &x, &mut fused)),
                    ("decode backward", &mut || {
                        let d_recon = &gradient;
                        sae.decode_backward(&pool, 0, &acts, &scales, d_recon, true, &mut d_acts.borrow_mut());
                    }),
                    ("encode backward", &mut || {
                        sae.encode_backward(&pool, &x, &acts, &scales, &d_acts.borrow(), &mut d_x);
                    }),
                ],
            );
            let base = results[0].1;
            println!(
                "{name}, {}, {tokens} tokens, {active:.1} active, {} threads",
                if half { "bf16" } else { "f32" },
                pool.threads()
            );
            for (step, seconds) in results {
                println!("  {step:<20} {:8.2} ms  {:6.1} %", seconds * 1e3, seconds / base * 100.0);
            }
        }
    }
    Ok(())
}
