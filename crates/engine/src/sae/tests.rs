//! Every kind and normalization against double precision; gradients against finite differences;
//! the same bits for a token alone, among others and on several threads.

use super::backward::{BLOCK_ROWS, matmul_in_blocks};
use super::fold::in_place_f32;
use super::{InputNormalization, Sae, SaeKind};
use pellucid_kernels::encoding::Encoding;
use pellucid_kernels::matrix::RowBytes;
use pellucid_kernels::{DType, Matrix, Pool, matmul};

const D: usize = 21;
const N: usize = 150;

/// Deterministic floats in -1..1 without a pattern.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(step).collect()
}

fn kinds() -> Vec<SaeKind> {
    let positive = |seed| noise(N, seed).iter().map(|x| x.abs() + 0.1).collect::<Vec<f32>>();
    vec![
        SaeKind::Relu,
        SaeKind::JumpRelu { threshold: positive(20) },
        // Some thresholds below zero, where activations must still not be negative.
        SaeKind::JumpRelu { threshold: noise(N, 21) },
        SaeKind::TopK { k: 7, by_decoder_norm: None },
        SaeKind::TopK { k: 7, by_decoder_norm: Some(positive(22)) },
        // More than there are positive pre-activations.
        SaeKind::TopK { k: 140, by_decoder_norm: None },
        SaeKind::AbsTopK { k: 9 },
        SaeKind::GroupMax { k: 10 },
        SaeKind::Gated { gate_bias: noise(N, 23), magnitude_bias: noise(N, 24), log_scale: noise(N, 25) },
    ]
}

const NORMALIZATIONS: [InputNormalization; 4] = [
    InputNormalization::None,
    InputNormalization::UnitNorm,
    InputNormalization::LayerNorm,
    InputNormalization::Constant(0.6),
];

fn rows(pool: &Pool, rows: usize, cols: usize, seed: u64) -> Matrix {
    let values = noise(rows * cols, seed);
    in_place_f32(pool, rows, cols, &|row, out| out.copy_from_slice(&values[row * cols..][..cols]))
}

fn packed(pool: &Pool, n: usize, cols: usize, seed: u64) -> Matrix {
    let values = noise(n * cols, seed);
    Matrix::pack(pool, n, cols, DType::F32, &|row, out| out.copy_from_slice(&values[row * cols..][..cols]))
}

fn autoencoder(pool: &Pool, kind: SaeKind, normalization: InputNormalization) -> Sae {
    Sae {
        kind,
        normalization,
        undo_normalization: true,
        subtract_decoder_bias: true,
        encoder: packed(pool, N, D, 1),
        encoder_bias: noise(N, 2),
        decoders: vec![rows(pool, N, D, 3)],
        decoder_biases: vec![noise(D, 4)],
        skip: None,
    }
}

/// Two decoders, or one and a skip path; another output width; normalization is not undone.
fn transcoder(pool: &Pool, normalization: InputNormalization, skip: bool) -> Sae {
    let width = D + 4;
    let count = if skip { 1 } else { 2 };
    Sae {
        undo_normalization: false,
        subtract_decoder_bias: false,
        decoders: (0..count).map(|i| rows(pool, N, width, 5 + i)).collect(),
        decoder_biases: (0..count).map(|i| noise(width, 8 + i)).collect(),
        skip: skip.then(|| packed(pool, width, D, 11)),
        ..autoencoder(pool, SaeKind::Relu, normalization)
    }
}

/// Every combination that the tests go through.
fn all(pool: &Pool) -> Vec<Sae> {
    let mut all: Vec<Sae> = kinds().into_iter().map(|kind| autoencoder(pool, kind, InputNormalization::None)).collect();
    for normalization in NORMALIZATIONS {
        all.push(autoencoder(pool, SaeKind::Relu, normalization));
        all.push(transcoder(pool, normalization, false));
        all.push(transcoder(pool, normalization, true));
    }
    all
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// `out[r] = Σ matrix[r] · x`
fn product(matrix: &Matrix, x: &[f64]) -> Vec<f64> {
    let mut row = vec![0.0; matrix.cols()];
    let dot = |index| {
        matrix.row(index, &mut row);
        wide(&row).iter().zip(x).map(|(a, b)| a * b).sum()
    };
    (0..matrix.rows()).map(dot).collect()
}

/// One token in double precision, written from the definitions: pre-activations, activations and
/// the reconstruction of decoder `index`.
fn reference(sae: &Sae, x: &[f64], index: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let count = x.len() as f64;
    let mean = x.iter().sum::<f64>() / count;
    let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt();
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    // u = (x - shift) · size; y is scaled back as y · back + shift.
    let (shift, size, back) = match sae.normalization {
        InputNormalization::None => (0.0, 1.0, 1.0),
        InputNormalization::UnitNorm => (0.0, count.sqrt() / norm, norm / count.sqrt()),
        InputNormalization::LayerNorm => (mean, 1.0 / (deviation + 1e-5), deviation),
        InputNormalization::Constant(c) => (0.0, f64::from(c), 1.0 / f64::from(c)),
    };
    let mut u: Vec<f64> = x.iter().map(|x| (x - shift) * size).collect();
    if sae.subtract_decoder_bias {
        u.iter_mut().zip(&sae.decoder_biases[0]).for_each(|(u, &b)| *u -= f64::from(b));
    }
    let mut pre = product(&sae.encoder, &u);
    if !matches!(sae.kind, SaeKind::Gated { .. }) {
        pre.iter_mut().zip(&sae.encoder_bias).for_each(|(p, &b)| *p += f64::from(b));
    }
    let best = |score: &dyn Fn(usize) -> f64, k: usize| {
        let mut order: Vec<usize> = (0..pre.len()).collect();
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        order.truncate(k);
        order
    };
    let only = |chosen: Vec<usize>| {
        let of = |i: usize| if chosen.contains(&i) { pre[i].max(0.0) } else { 0.0 };
        (0..pre.len()).map(of).collect::<Vec<f64>>()
    };
    let acts: Vec<f64> = match &sae.kind {
        SaeKind::Relu => pre.iter().map(|p| p.max(0.0)).collect(),
        SaeKind::JumpRelu { threshold } => {
            pre.iter().zip(threshold).map(|(&p, &t)| if p > f64::from(t) { p.max(0.0) } else { 0.0 }).collect()
        }
        SaeKind::TopK { k, by_decoder_norm: None } => only(best(&|i| pre[i], *k)),
        SaeKind::TopK { k, by_decoder_norm: Some(norms) } => only(best(&|i| pre[i] * f64::from(norms[i]), *k)),
        SaeKind::AbsTopK { k } => {
            let chosen = best(&|i| pre[i].abs(), *k);
            (0..pre.len()).map(|i| if chosen.contains(&i) { pre[i] } else { 0.0 }).collect()
        }
        SaeKind::GroupMax { k } => {
            let size = pre.len() / k;
            let largest = |group: usize| (0..size).map(|i| group * size + i).max_by(|&a, &b| pre[a].total_cmp(&pre[b]));
            only((0..*k).filter_map(largest).collect())
        }
        SaeKind::Gated { gate_bias, magnitude_bias, log_scale } => {
            let of = |i: usize| {
                let open = pre[i] + f64::from(gate_bias[i]) > 0.0;
                let magnitude = pre[i] * f64::from(log_scale[i]).exp() + f64::from(magnitude_bias[i]);
                if open { magnitude.max(0.0) } else { 0.0 }
            };
            (0..pre.len()).map(of).collect()
        }
    };
    let mut recon = wide(&sae.decoder_biases[index]);
    let mut row = vec![0.0; recon.len()];
    for (feature, act) in acts.iter().enumerate() {
        sae.decoders[index].row(feature, &mut row);
        recon.iter_mut().zip(&row).for_each(|(y, &w)| *y += act * f64::from(w));
    }
    if sae.undo_normalization {
        recon.iter_mut().for_each(|y| *y = *y * back + shift);
    }
    if let Some(skip) = &sae.skip {
        recon.iter_mut().zip(product(skip, x)).for_each(|(y, skipped)| *y += skipped);
    }
    (pre, acts, recon)
}

fn close(ours: &[f32], truth: &[f64], tolerance: f64, what: &str) {
    assert_eq!(ours.len(), truth.len(), "{what}");
    let size = truth.iter().fold(1.0f64, |most, x| most.max(x.abs()));
    for (i, (&ours, truth)) in ours.iter().zip(truth).enumerate() {
        assert!((f64::from(ours) - truth).abs() <= tolerance * size, "{what}: {ours} instead of {truth} at {i}");
    }
}

/// Pre-activations, activations and the reconstruction of decoder `index`.
fn forward(sae: &Sae, pool: &Pool, x: &[f32], index: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let tokens = x.len() / sae.d_in();
    let mut pre = vec![0.0; tokens * sae.n_features()];
    let scales = sae.encode(pool, x, &mut pre);
    let mut acts = pre.clone();
    sae.activate(pool, &mut acts);
    let mut recon = vec![0.0; tokens * sae.decoders[index].cols()];
    sae.decode(pool, index, &acts, &scales, x, &mut recon);
    (pre, acts, recon)
}

#[test]
fn every_kind_and_normalization_agrees_with_double_precision() {
    let pool = Pool::new(2);
    let x = noise(5 * D, 40);
    for sae in all(&pool) {
        sae.check().unwrap();
        for index in 0..sae.decoders.len() {
            let (pre, acts, recon) = forward(&sae, &pool, &x, index);
            let (n, width) = (sae.n_features(), sae.d_out());
            for (token, x) in x.chunks(D).enumerate() {
                let truth = reference(&sae, &wide(x), index);
                let name = format!("{:?} {:?}", sae.kind, sae.normalization);
                close(&pre[token * n..][..n], &truth.0, 1e-6, &name);
                close(&acts[token * n..][..n], &truth.1, 1e-6, &name);
                close(&recon[token * width..][..width], &truth.2, 1e-6, &name);
            }
        }
    }
}

#[test]
fn the_fused_path_has_the_bits_of_the_separate_steps() {
    let pool = Pool::new(2);
    // More than one chunk of tokens.
    let x = noise(150 * D, 41);
    for sae in all(&pool) {
        let (_, acts, recon) = forward(&sae, &pool, &x, 0);
        let mut fused = vec![f32::NAN; recon.len()];
        sae.reconstruct(&pool, &x, &mut fused);
        assert_eq!(fused, recon);
        let counts = std::sync::Mutex::new(vec![0; 150]);
        sae.encode_active(&pool, &x, &|token, active| {
            let dense = &acts[token * N..][..N];
            assert!(active.iter().all(|(i, value)| dense[i] == value));
            counts.lock().unwrap()[token] += active.indices.len();
        });
        let expected: Vec<usize> = acts.chunks(N).map(|acts| acts.iter().filter(|&&a| a != 0.0).count()).collect();
        assert_eq!(counts.into_inner().unwrap(), expected);
    }
}

/// Gradient of `Σ weight · recon` with respect to `x`, by all backward steps.
fn input_gradient(sae: &Sae, pool: &Pool, x: &[f32], weight: &[f32], index: usize, active_only: bool) -> Vec<f32> {
    let mut acts = vec![0.0; x.len() / sae.d_in() * sae.n_features()];
    let scales = sae.encode(pool, x, &mut acts);
    sae.activate(pool, &mut acts);
    let (mut d_acts, mut d_x) = (vec![f32::NAN; acts.len()], vec![0.0; x.len()]);
    sae.decode_backward(pool, index, &acts, &scales, weight, active_only, &mut d_acts);
    sae.encode_backward(pool, x, &acts, &scales, &d_acts, &mut d_x);
    sae.undo_backward(pool, index, x, &acts, &scales, weight, &mut d_x);
    sae.skip_backward(pool, weight, &mut d_x);
    // The same through the separate gradient of the pre-activations.
    let (mut d_pre, mut again) = (vec![f32::NAN; acts.len()], vec![0.0; x.len()]);
    sae.activate_backward(pool, &acts, &d_acts, &mut d_pre);
    sae.pre_backward(pool, x, &scales, &d_pre, &mut again);
    sae.undo_backward(pool, index, x, &acts, &scales, weight, &mut again);
    sae.skip_backward(pool, weight, &mut again);
    assert_eq!(d_x, again);
    d_x
}

#[test]
fn input_gradients_agree_with_finite_differences() {
    let pool = Pool::new(2);
    let tokens = 3;
    let x = noise(tokens * D, 42);
    let mut all = all(&pool);
    // Few active features: their encoder rows are summed. Many: a product with the whole encoder.
    let few = SaeKind::TopK { k: 3, by_decoder_norm: None };
    all.extend(NORMALIZATIONS.map(|normalization| autoencoder(&pool, few.clone(), normalization)));
    for sae in all {
        for (index, active_only) in (0..sae.decoders.len()).flat_map(|i| [(i, true), (i, false)]) {
            let width = sae.d_out();
            let weight = noise(tokens * width, 43);
            let ours = input_gradient(&sae, &pool, &x, &weight, index, active_only);
            for token in 0..tokens {
                let x = wide(&x[token * D..][..D]);
                let weight = wide(&weight[token * width..][..width]);
                let loss =
                    |x: &[f64]| -> f64 { reference(&sae, x, index).2.iter().zip(&weight).map(|(y, w)| y * w).sum() };
                let slope = |i: usize| {
                    let (mut up, mut down) = (x.clone(), x.clone());
                    (up[i], down[i]) = (up[i] + 1e-6, down[i] - 1e-6);
                    (loss(&up) - loss(&down)) / 2e-6
                };
                let truth: Vec<f64> = (0..D).map(slope).collect();
                let name = format!("{:?} {:?} {active_only}", sae.kind, sae.normalization);
                close(&ours[token * D..][..D], &truth, 1e-5, &name);
            }
        }
    }
}

#[test]
fn gradients_of_activations_are_products_with_decoder_rows() {
    let pool = Pool::new(2);
    let x = noise(2 * D, 44);
    for normalization in NORMALIZATIONS {
        let sae = autoencoder(&pool, SaeKind::TopK { k: 5, by_decoder_norm: None }, normalization);
        let (_, acts, recon) = forward(&sae, &pool, &x, 0);
        let mut scratch = vec![0.0; acts.len()];
        let scales = sae.encode(&pool, &x, &mut scratch);
        let d_recon = noise(2 * D, 45);
        let [mut dense, mut sparse] = [vec![f32::NAN; acts.len()], vec![f32::NAN; acts.len()]];
        sae.decode_backward(&pool, 0, &acts, &scales, &d_recon, false, &mut dense);
        sae.decode_backward(&pool, 0, &acts, &scales, &d_recon, true, &mut sparse);
        for feature in 0..2 * N {
            // recon is linear in each activation, so a difference of any size is exact.
            let mut edited = acts.clone();
            edited[feature] += 1.0;
            let mut changed = vec![0.0; recon.len()];
            sae.decode(&pool, 0, &edited, &scales, &x, &mut changed);
            let effect = (0..2 * D).map(|i| f64::from(changed[i] - recon[i]) * f64::from(d_recon[i])).sum::<f64>();
            assert!((f64::from(dense[feature]) - effect).abs() < 1e-4, "{normalization:?} {feature}");
            let expected = if acts[feature] == 0.0 { 0.0 } else { dense[feature] };
            assert!((sparse[feature] - expected).abs() < 1e-5, "{normalization:?} {feature}");
        }
    }
}

#[test]
fn a_token_has_the_same_bits_alone_among_others_and_on_any_number_of_threads() {
    let pools = [Pool::new(1), Pool::new(3)];
    let tokens = 70;
    let x = noise(tokens * D, 46);
    let mut all = all(&pools[0]);
    let few = SaeKind::TopK { k: 3, by_decoder_norm: None };
    all.push(autoencoder(&pools[0], few, InputNormalization::LayerNorm));
    for sae in all {
        let weight = noise(tokens * sae.d_out(), 47);
        let run = |pool: &Pool, x: &[f32], weight: &[f32]| {
            let (pre, acts, recon) = forward(&sae, pool, x, 0);
            let gradients = [true, false].map(|active_only| input_gradient(&sae, pool, x, weight, 0, active_only));
            (pre, acts, recon, gradients)
        };
        let together = run(&pools[0], &x, &weight);
        assert!(together == run(&pools[1], &x, &weight), "{:?}", sae.kind);
        for token in [0, 33, 69] {
            let part = |values: &[f32]| {
                let width = values.len() / tokens;
                values[token * width..][..width].to_vec()
            };
            let alone = run(&pools[1], &part(&x), &part(&weight));
            let ours = (&alone.0, &alone.1, &alone.2);
            assert_eq!(ours, (&part(&together.0), &part(&together.1), &part(&together.2)), "{:?}", sae.kind);
            assert_eq!(alone.3, [part(&together.3[0]), part(&together.3[1])], "{:?}", sae.kind);
        }
    }
}

/// Activations of an autoencoder of six features whose pre-activations are given.
fn activations(kind: SaeKind, pre: [f32; 6]) -> [f32; 6] {
    let pool = Pool::new(1);
    let sae = Sae {
        encoder: packed(&pool, 6, 2, 1),
        encoder_bias: vec![0.0; 6],
        decoders: vec![rows(&pool, 6, 2, 2)],
        decoder_biases: vec![vec![0.0; 2]],
        ..autoencoder(&pool, kind, InputNormalization::None)
    };
    sae.check().unwrap();
    let mut acts = pre;
    sae.activate(&pool, &mut acts);
    acts
}

#[test]
fn ties_thresholds_and_nan_follow_the_definitions() {
    let top = |k| SaeKind::TopK { k, by_decoder_norm: None };
    assert_eq!(activations(top(2), [1.0, 2.0, 1.0, 2.0, 2.0, 0.0]), [0.0, 2.0, 0.0, 2.0, 0.0, 0.0]);
    assert_eq!(activations(top(4), [1.0, 2.0, 1.0, 2.0, 1.0, 0.0]), [1.0, 2.0, 1.0, 2.0, 0.0, 0.0]);
    // Fewer than k positive pre-activations: no negative one becomes active.
    assert_eq!(activations(top(5), [-1.0, 2.0, -3.0, 0.0, -0.0, 0.5]), [0.0, 2.0, 0.0, 0.0, 0.0, 0.5]);
    let norms = vec![3.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    let by_norm = SaeKind::TopK { k: 1, by_decoder_norm: Some(norms) };
    assert_eq!(activations(by_norm, [1.0, 2.0, 0.0, 0.0, 0.0, 0.0]), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    // At its threshold a feature is inactive; a negative threshold lets no negative value pass.
    let jump = SaeKind::JumpRelu { threshold: vec![0.5, 0.5, 0.5, -1.0, -1.0, 0.0] };
    let above = f32::from_bits(0.5f32.to_bits() + 1);
    assert_eq!(activations(jump, [0.5, above, 0.4, -0.5, 0.1, 0.0]), [0.0, above, 0.0, 0.0, 0.1, 0.0]);
    let absolute = SaeKind::AbsTopK { k: 2 };
    assert_eq!(activations(absolute, [-3.0, 2.0, 3.0, -3.0, 0.0, 0.0]), [-3.0, 0.0, 3.0, 0.0, 0.0, 0.0]);
    let groups = SaeKind::GroupMax { k: 2 };
    assert_eq!(activations(groups, [1.0, 1.0, 0.5, -1.0, -2.0, -3.0]), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    for kind in [SaeKind::Relu, top(1), SaeKind::AbsTopK { k: 1 }, SaeKind::GroupMax { k: 1 }] {
        let acts = activations(kind.clone(), [1.0, f32::NAN, 2.0, -1.0, 0.0, 3.0]);
        assert!(acts[1].is_nan(), "{kind:?} loses NaN");
    }
}

#[test]
fn decoders_in_half_precision_are_decoded_row_by_row() {
    struct Halves(Vec<u8>);
    impl RowBytes for Halves {
        fn row(&self, row: usize) -> &[u8] {
            &self.0[row * D * 2..][..D * 2]
        }
    }
    let pool = Pool::new(2);
    let values = noise(N * D, 3);
    for (encoding, bits) in [
        (Encoding::BF16, (|x: f32| (x.to_bits() >> 16) as u16) as fn(f32) -> u16),
        (Encoding::F16, |x: f32| half::f16::from_f32(x).to_bits()),
    ] {
        let bytes = values.iter().flat_map(|&x| bits(x).to_le_bytes()).collect();
        let decoder = Matrix::encoded(&pool, N, D, encoding, Box::new(Halves(bytes)));
        assert!(decoder.is_in_place());
        let base = autoencoder(&pool, SaeKind::Relu, InputNormalization::LayerNorm);
        let sae = Sae { decoders: vec![decoder], ..base };
        let x = noise(D, 48);
        close(&forward(&sae, &pool, &x, 0).2, &reference(&sae, &wide(&x), 0).2, 1e-6, &encoding.to_string());
    }
}

#[test]
fn decoders_read_on_demand_change_no_bit() {
    let pool = Pool::new(2);
    let tokens = 3;
    let x = noise(tokens * D, 49);
    for mut sae in all(&pool) {
        let weight = noise(tokens * sae.d_out(), 50);
        let results = |sae: &Sae| {
            let gradients = [true, false].map(|active_only| input_gradient(sae, &pool, &x, &weight, 0, active_only));
            (forward(sae, &pool, &x, 0), gradients)
        };
        let in_memory = results(&sae);
        sae.read_decoders_on_demand();
        assert!(sae.decoders[0].is_on_demand());
        assert!(results(&sae) == in_memory, "{:?} {:?}", sae.kind, sae.normalization);
    }
    // A product in several blocks.
    let decoder = rows(&pool, BLOCK_ROWS + 40, 5, 51);
    let (x, mut whole) = (noise(10, 52), vec![0.0; 2 * decoder.rows()]);
    let mut blocks = vec![1.0; whole.len()];
    matmul(&pool, &x, &decoder, None, &mut whole);
    matmul_in_blocks(&pool, &x, &decoder, &mut blocks);
    assert_eq!(whole, blocks);
}

#[test]
fn folding_decoder_norms_scales_activations_and_keeps_reconstructions() {
    let pool = Pool::new(2);
    let x = noise(4 * D, 49);
    for kind in kinds() {
        let mut sae = autoencoder(&pool, kind, InputNormalization::LayerNorm);
        let mut row = vec![0.0; D];
        let norms: Vec<f64> = (0..N)
            .map(|feature| {
                sae.decoders[0].row(feature, &mut row);
                wide(&row).iter().map(|w| w * w).sum::<f64>().sqrt()
            })
            .collect();
        if let SaeKind::TopK { by_decoder_norm: Some(own), .. } = &mut sae.kind {
            *own = norms.iter().map(|&norm| norm as f32).collect();
        }
        let ranks = matches!(
            sae.kind,
            SaeKind::TopK { by_decoder_norm: None, .. } | SaeKind::AbsTopK { .. } | SaeKind::GroupMax { .. }
        );
        let folded = match sae.fold_decoder_norms(&pool) {
            Ok(folded) => folded,
            Err(error) => {
                assert!(ranks, "{error}");
                continue;
            }
        };
        assert!(!ranks, "{:?} would rank other features", sae.kind);
        folded.check().unwrap();
        let (before, after) = (forward(&sae, &pool, &x, 0), forward(&folded, &pool, &x, 0));
        let scaled: Vec<f64> = before.1.iter().enumerate().map(|(i, &a)| f64::from(a) * norms[i % N]).collect();
        close(&after.1, &scaled, 1e-6, "activations");
        close(&after.2, &wide(&before.2), 2e-6, "reconstruction");
    }
    assert!(transcoder(&pool, InputNormalization::None, false).fold_decoder_norms(&pool).is_err());
}

#[test]
fn inconsistent_parts_are_named() {
    let pool = Pool::new(1);
    let base = || autoencoder(&pool, SaeKind::Relu, InputNormalization::None);
    let bad_bias = |index: usize, value: f32| {
        let mut bias = vec![0.0; N];
        bias[index] = value;
        bias
    };
    let top = |k| SaeKind::TopK { k, by_decoder_norm: None };
    let cases = [
        (Sae { encoder_bias: vec![0.0; 3], ..base() }, "encoder bias has 3 elements instead of 150"),
        (Sae { encoder_bias: bad_bias(7, f32::NAN), ..base() }, "encoder bias is NaN at index 7"),
        (Sae { decoders: vec![rows(&pool, D, N, 1)], decoder_biases: vec![vec![0.0; N]], ..base() }, "[21, 150]"),
        (Sae { decoders: vec![], ..base() }, "no decoder"),
        (Sae { decoder_biases: vec![], ..base() }, "1 decoders and 0 decoder biases"),
        (Sae { kind: top(0), ..base() }, "k is 0"),
        (Sae { kind: top(N + 1), ..base() }, "k is 151"),
        (Sae { kind: SaeKind::GroupMax { k: 7 }, ..base() }, "7 equal groups"),
        (Sae { kind: SaeKind::JumpRelu { threshold: bad_bias(0, f32::INFINITY) }, ..base() }, "threshold is inf"),
        (Sae { normalization: InputNormalization::Constant(0.0), ..base() }, "scaled by 0"),
        (Sae { skip: Some(packed(&pool, D, D + 1, 1)), ..base() }, "skip path is [21, 22]"),
        (Sae { subtract_decoder_bias: true, ..transcoder(&pool, InputNormalization::None, true) }, "width 25"),
    ];
    for (sae, expected) in cases {
        let error = sae.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let sae = autoencoder(&pool, SaeKind::JumpRelu { threshold: vec![0.0; N] }, InputNormalization::None);
    // The encoder is packed for 160 features.
    assert_eq!(sae.bytes(), 4 * (160 * D + N * D + N + N + D));
}
