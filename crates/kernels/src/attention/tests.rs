use super::*;
use crate::Pool;
use crate::softmax::softmax;
use proptest::prelude::*;

fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as f32 / (1u64 << 30) as f32) - 1.0
        })
        .collect()
}

fn layout(kv_heads: usize, key_dim: usize, value_dim: usize, format: KvFormat) -> KvLayout {
    KvLayout { kv_heads, key_dim, value_dim, format }
}

/// Rounds to bfloat16 (eight significant bits), ties to even.
fn bfloat16(x: f64) -> f64 {
    if x == 0.0 {
        return x;
    }
    let unit = 2f64.powi(x.abs().log2().floor() as i32 - 7);
    (x / unit).round_ties_even() * unit
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x as f64).collect()
}

/// Attention by its definition, in double precision.
fn naive(shape: &AttentionShape, biases: HeadBiases, q: &[f64], k: &[f64], v: &[f64], tokens: usize) -> Vec<f64> {
    let group = shape.heads / shape.kv_heads;
    let mut out = vec![0.0; tokens * shape.heads * shape.value_dim];
    for t in 0..tokens {
        for h in 0..shape.heads {
            let kv = h / group;
            let score = |j: usize| {
                let a = &q[(t * shape.heads + h) * shape.key_dim..][..shape.key_dim];
                let b = &k[(j * shape.kv_heads + kv) * shape.key_dim..][..shape.key_dim];
                let mut x = a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() * shape.scale as f64;
                if let Some(cap) = shape.soft_cap {
                    x = cap as f64 * (x / cap as f64).tanh();
                }
                x + biases.slopes.map_or(0.0, |s| match s.bf16_scale {
                    None => s.per_head[h] as f64 * j as f64,
                    Some(by) => bfloat16(bfloat16(s.per_head[h] as f64) * bfloat16(j as f64)) * by as f64,
                })
            };
            let visible: Vec<usize> = (0..=t)
                .filter(|j| {
                    shape.mask.window.is_none_or(|w| t - j < w) && shape.mask.chunk.is_none_or(|c| t / c == j / c)
                })
                .collect();
            let weights: Vec<f64> = visible.iter().map(|&j| score(j).exp()).collect();
            let total = weights.iter().sum::<f64>() + biases.sinks.map_or(0.0, |s| (s[h] as f64).exp());
            for (&j, w) in visible.iter().zip(&weights) {
                for d in 0..shape.value_dim {
                    out[(t * shape.heads + h) * shape.value_dim + d] +=
                        w / total * v[(j * shape.kv_heads + kv) * shape.value_dim + d];
                }
            }
        }
    }
    out
}

fn fused(shape: &AttentionShape, biases: HeadBiases, q: &[f32], k: &[f32], v: &[f32], chunks: &[usize]) -> Vec<f32> {
    let pool = Pool::new(2);
    let mut kv = KvCache::new(shape.kv_layout(KvFormat::F32), 1);
    let (kw, vw) = (shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim);
    let mut out = vec![0.0; q.len() / shape.key_dim * shape.value_dim];
    let mut position = 0;
    for &count in chunks {
        kv.append(&k[position * kw..(position + count) * kw], &v[position * vw..(position + count) * vw]);
        attend(
            &pool,
            shape,
            biases,
            q,
            1,
            &|_| Queries { kv: &kv, position, count, packed_offset: position },
            &mut out,
        );
        position += count;
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn fused_and_unfused_attention_agree_with_the_definition(
        tokens in 1usize..150, kv_heads in 1usize..3, group in 1usize..5, key_dim in 1usize..20, value_dim in 1usize..20,
        window in prop::option::of(1usize..80), chunk in prop::option::of(1usize..90), cap in prop::option::of(0.5f32..5.0), alibi: bool, rounded in prop::option::of(0.2f32..1.5), sinks: bool, seed: u64,
    ) {
        let heads = kv_heads * group;
        let shape = AttentionShape { heads, kv_heads, key_dim, value_dim, scale: 0.7, soft_cap: cap, mask: CausalMask { window, chunk } };
        let (slopes, sink) = (noise(seed ^ 1, heads), noise(seed ^ 2, heads));
        let biases = HeadBiases { slopes: alibi.then_some(AlibiSlopes { per_head: &slopes, bf16_scale: rounded }), sinks: sinks.then_some(&sink[..]) };
        let q = noise(seed ^ 3, tokens * heads * key_dim);
        let k = noise(seed ^ 4, tokens * kv_heads * key_dim);
        let v = noise(seed ^ 5, tokens * kv_heads * value_dim);
        let truth = naive(&shape, biases, &wide(&q), &wide(&k), &wide(&v), tokens);

        let whole = fused(&shape, biases, &q, &k, &v, &[tokens]);
        for (y, t) in whole.iter().zip(&truth) {
            prop_assert!((*y as f64 - t).abs() < 1e-4, "{y} instead of {t}");
        }
        // One token at a time, or split in two chunks: the same bits.
        let stepwise = fused(&shape, biases, &q, &k, &v, &vec![1; tokens]);
        let halves = fused(&shape, biases, &q, &k, &v, &[tokens / 2, tokens - tokens / 2]);
        prop_assert!(whole.iter().zip(&stepwise).all(|(a, b)| a == b));
        prop_assert!(whole.iter().zip(&halves).all(|(a, b)| a == b));

        let mut kv = KvCache::new(layout(kv_heads, key_dim, value_dim, KvFormat::F32), tokens);
        kv.append(&k, &v);
        let run = Queries { kv: &kv, position: 0, count: tokens, packed_offset: 0 };
        let mut weights = scores(&shape, biases, &q, &run);
        for (i, row) in weights.chunks_exact_mut(tokens).enumerate() {
            softmax(row, biases.sinks.map(|s| s[i / tokens]));
        }
        let mut unfused = vec![0.0; whole.len()];
        weighted_values(&shape, &weights, &run, &mut unfused);
        for (y, t) in unfused.iter().zip(&truth) {
            prop_assert!((*y as f64 - t).abs() < 1e-4, "{y} instead of {t}");
        }
    }

    #[test]
    fn fused_and_unfused_gradients_agree_with_central_differences(
        tokens in 1usize..150, kv_heads in 1usize..3, group in 1usize..5, key_dim in 1usize..20, value_dim in 1usize..20,
        window in prop::option::of(1usize..80), chunk in prop::option::of(1usize..90), cap in prop::option::of(0.5f32..5.0), alibi: bool, sinks: bool, seed: u64,
    ) {
        let heads = kv_heads * group;
        let shape = AttentionShape { heads, kv_heads, key_dim, value_dim, scale: 0.7, soft_cap: cap, mask: CausalMask { window, chunk } };
        let (slopes, sink) = (noise(seed ^ 1, heads), noise(seed ^ 2, heads));
        let biases = HeadBiases { slopes: alibi.then_some(AlibiSlopes { per_head: &slopes, bf16_scale: None }), sinks: sinks.then_some(&sink[..]) };
        let q = noise(seed ^ 3, tokens * heads * key_dim);
        let k = noise(seed ^ 4, tokens * kv_heads * key_dim);
        let v = noise(seed ^ 5, tokens * kv_heads * value_dim);
        let dz = noise(seed ^ 6, tokens * heads * value_dim);
        let zeros = || [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];

        let pool = Pool::new(2);
        let [mut dq, mut dk, mut dv] = zeros();
        let gradients = AttentionGradients { q: &mut dq, k: &mut dk, v: &mut dv };
        attend_backward(&pool, &shape, biases, &q, &k, &v, &dz, &[TokenRun { packed_offset: 0, count: tokens }], gradients);

        let mut kv = KvCache::new(layout(kv_heads, key_dim, value_dim, KvFormat::F32), tokens);
        kv.append(&k, &v);
        let run = Queries { kv: &kv, position: 0, count: tokens, packed_offset: 0 };
        let mut weights = scores(&shape, biases, &q, &run);
        for (i, row) in weights.chunks_exact_mut(tokens).enumerate() {
            softmax(row, biases.sinks.map(|s| s[i / tokens]));
        }
        let [mut unfused_q, mut unfused_k, mut unfused_v] = zeros();
        let mut gradient = weighted_values_backward(&pool, &shape, &weights, &run, &v, &dz, &mut unfused_v);
        weights.chunks_exact(tokens).zip(gradient.chunks_exact_mut(tokens)).for_each(|(w, g)| softmax_backward(w, g));
        scores_backward(&pool, &shape, &run, &q, &k, &gradient, &mut unfused_q, &mut unfused_k);

        for (which, [ours, unfused]) in [[&dq, &unfused_q], [&dk, &unfused_k], [&dv, &unfused_v]].into_iter().enumerate() {
            let direction = wide(&noise(seed ^ 7 ^ which as u64, ours.len()));
            let at = |step: f64| -> f64 {
                let mut read = [wide(&q), wide(&k), wide(&v)];
                read[which].iter_mut().zip(&direction).for_each(|(x, d)| *x += step * d);
                let out = naive(&shape, biases, &read[0], &read[1], &read[2], tokens);
                out.iter().zip(&dz).map(|(y, &c)| y * c as f64).sum()
            };
            let truth = (at(1e-5) - at(-1e-5)) / 2e-5;
            for ours in [ours, unfused] {
                let along: f64 = wide(ours).iter().zip(&direction).map(|(g, d)| g * d).sum();
                let size = wide(ours).iter().map(|g| g * g).sum::<f64>().sqrt() * (direction.len() as f64).sqrt();
                prop_assert!((along - truth).abs() < 1e-5 * size.max(1.0), "{which}: {along} instead of {truth}");
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_a_ragged_batch_and_alone() {
    let shape = AttentionShape {
        heads: 6,
        kv_heads: 2,
        key_dim: 8,
        value_dim: 8,
        scale: 0.35,
        soft_cap: None,
        mask: CausalMask::default(),
    };
    let lengths = [3usize, 70, 1];
    let total: usize = lengths.iter().sum();
    let (q, k, v) = (noise(1, total * 48), noise(2, total * 16), noise(3, total * 16));
    let mut starts = vec![0];
    lengths.iter().for_each(|n| starts.push(starts[starts.len() - 1] + n));
    let caches: Vec<KvCache> = (0..3)
        .map(|row| {
            let mut kv = KvCache::new(layout(2, 8, 8, KvFormat::F32), 4);
            kv.append(&k[starts[row] * 16..starts[row + 1] * 16], &v[starts[row] * 16..starts[row + 1] * 16]);
            kv
        })
        .collect();
    let runs: Vec<Queries> = (0..3)
        .map(|row| Queries { kv: &caches[row], position: 0, count: lengths[row], packed_offset: starts[row] })
        .collect();
    let pool = Pool::new(2);
    let mut together = vec![0.0; total * 48];
    attend(&pool, &shape, HeadBiases::default(), &q, runs.len(), &|run| runs[run], &mut together);
    for row in 0..3 {
        let own = starts[row] * 48..starts[row + 1] * 48;
        let mut alone = vec![0.0; own.len()];
        attend(
            &pool,
            &shape,
            HeadBiases::default(),
            &q[own.clone()],
            1,
            &|_| Queries { packed_offset: 0, ..runs[row] },
            &mut alone,
        );
        assert_eq!(alone, together[own]);
    }
}

#[test]
fn a_bf16_alibi_bias_rounds_at_every_step() {
    let bias = |slope: f32, key: usize, rounded: Option<f32>| {
        AlibiSlopes { per_head: &[slope], bf16_scale: rounded }.bias(0, key)
    };
    for slope in [0.7072f32, 0.083, 0.5, -0.3, 0.0] {
        for key in [0usize, 1, 3, 200, 255, 256, 257, 259, 513, 1023, 4097] {
            let truth = bfloat16(bfloat16(slope as f64) * bfloat16(key as f64)) * 0.25;
            assert_eq!(bias(slope, key, Some(0.25)) as f64, truth, "{slope} at {key}");
            assert_eq!(bias(slope, key, None), slope * key as f32);
        }
    }
    // Ties go to the even neighbor, down or up; above the middle rounds up.
    assert_eq!([257, 259, 1029].map(|key| bias(1.0, key, Some(1.0))), [256.0, 260.0, 1032.0]);
    // Each step rounds: the slope, the position and their product.
    assert_eq!(bias(1.0 + 0.0039, 1, Some(1.0)), 1.0);
    assert_eq!(bias(1.5, 129, Some(1.0)), 194.0);
    assert_ne!(bias(1.5, 129, None), 194.0);
}

#[test]
fn a_kv_cache_returns_each_element_of_each_key() {
    let (heads, dim, tokens) = (3, 5, 37);
    let (k, v) = (noise(7, tokens * heads * dim), noise(8, tokens * heads * 2));
    let mut kv = KvCache::new(layout(heads, dim, 2, KvFormat::F32), 4);
    // In chunks that make the cache grow and end inside a panel.
    for range in [0..3, 3..20, 20..37] {
        kv.append(
            &k[range.start * heads * dim..range.end * heads * dim],
            &v[range.start * heads * 2..range.end * heads * 2],
        );
    }
    for position in 0..tokens {
        for head in 0..heads {
            for channel in 0..dim {
                assert_eq!(kv.key(head, position, channel), k[(position * heads + head) * dim + channel]);
            }
        }
    }
}

#[test]
fn a_bf16_kv_cache_equals_an_f32_cache_of_rounded_values() {
    let shape = AttentionShape {
        heads: 6,
        kv_heads: 2,
        key_dim: 12,
        value_dim: 20,
        scale: 0.3,
        soft_cap: None,
        mask: CausalMask::default(),
    };
    let (tokens, pool) = (300, Pool::new(2));
    let sines = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * 31 + seed * 17) as f32 * 0.61).sin() * 2.0).collect()
    };
    let rounded = |x: &[f32]| -> Vec<f32> {
        x.iter().map(|&x| f32::from_bits(u32::from(kv_format::round_to_bf16(x)) << 16)).collect()
    };
    let (q, k, v) = (sines(tokens * 72, 1), sines(tokens * 24, 2), sines(tokens * 40, 3));
    let stored = |format: KvFormat, k: &[f32], v: &[f32]| {
        let mut kv = KvCache::new(layout(2, 12, 20, format), 4);
        // In two chunks, the second of which makes the cache grow.
        kv.append(&k[..5 * 24], &v[..5 * 40]);
        kv.append(&k[5 * 24..], &v[5 * 40..]);
        kv
    };
    let narrow = stored(KvFormat::Bf16, &k, &v);
    let wide = stored(KvFormat::F32, &rounded(&k), &rounded(&v));
    assert_eq!(narrow.bytes() * 2, wide.bytes());
    let attended = |kv: &KvCache, count: usize| {
        let mut out = vec![0.0; tokens * 120];
        let run = Queries { kv, position: tokens - count, count, packed_offset: tokens - count };
        attend(&pool, &shape, HeadBiases::default(), &q, 1, &|_| run, &mut out);
        let unfused = scores(&shape, HeadBiases::default(), &q, &run);
        let mut weighted = vec![0.0; tokens * 120];
        weighted_values(
            &shape,
            &unfused.iter().map(|x| if x.is_finite() { *x } else { 0.0 }).collect::<Vec<_>>(),
            &run,
            &mut weighted,
        );
        [out, unfused, weighted].concat().iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
    };
    for count in [1, tokens] {
        assert_eq!(attended(&narrow, count), attended(&wide, count));
        assert_eq!(attended(&narrow.prefix(tokens, 2 * tokens), count), attended(&wide, count));
    }
    assert_ne!(attended(&stored(KvFormat::F32, &k, &v), 1), attended(&wide, 1), "rounding changes the result");
}

#[test]
fn splitting_heads_among_threads_keeps_the_bits() {
    let shape = AttentionShape {
        heads: 7,
        kv_heads: 1,
        key_dim: 8,
        value_dim: 8,
        scale: 0.4,
        soft_cap: None,
        mask: CausalMask::default(),
    };
    let sines = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * 13 + seed * 7) as f32 * 0.53).sin()).collect()
    };
    let keys = 600;
    let mut kv = KvCache::new(layout(1, 8, 8, KvFormat::F32), keys);
    kv.append(&sines(keys * 8, 1), &sines(keys * 8, 2));
    let q = sines(7 * 8, 3);
    let on = |threads: usize| {
        let mut out = vec![0.0; 7 * 8];
        let run = Queries { kv: &kv, position: keys - 1, count: 1, packed_offset: 0 };
        attend(&Pool::new(threads), &shape, HeadBiases::default(), &q, 1, &|_| run, &mut out);
        out.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
    };
    let alone = on(1);
    for threads in [2, 3, 7, 9] {
        assert_eq!(on(threads), alone, "{threads} threads");
    }
}

#[test]
fn work_is_proportional_to_the_window() {
    let shape = |window| AttentionShape {
        heads: 2,
        kv_heads: 1,
        key_dim: 32,
        value_dim: 32,
        scale: 0.2,
        soft_cap: None,
        mask: CausalMask { window, chunk: None },
    };
    let (tokens, pool) = (4096, Pool::new(1));
    let mut kv = KvCache::new(layout(1, 32, 32, KvFormat::F32), tokens);
    kv.append(&noise(1, tokens * 32), &noise(2, tokens * 32));
    let (q, mut out) = (noise(3, tokens * 64), vec![0.0; tokens * 64]);
    let mut best = |window| {
        let mut once = || {
            let started = std::time::Instant::now();
            let run = Queries { kv: &kv, position: 0, count: tokens, packed_offset: 0 };
            attend(&pool, &shape(window), HeadBiases::default(), &q, 1, &|_| run, &mut out);
            started.elapsed()
        };
        (0..5).map(|_| once()).min().expect("five")
    };
    let (windowed, whole) = (best(Some(128)), best(None));
    // With a window of 128, a query reads at most four tiles; without, 32 on average: about a tenth
    // of the work.
    assert!(windowed * 3 < whole, "{windowed:?} with a window, {whole:?} without");
}

/// A sink always has a finite weight; it must not hide NaN either.
#[test]
fn nan_stays_nan() {
    let shape = AttentionShape {
        heads: 1,
        kv_heads: 1,
        key_dim: 8,
        value_dim: 8,
        scale: 0.4,
        soft_cap: None,
        mask: CausalMask::default(),
    };
    let tokens = 70;
    let mut kv = KvCache::new(shape.kv_layout(KvFormat::F32), tokens);
    kv.append(&noise(1, tokens * 8), &noise(2, tokens * 8));
    for sinks in [None, Some(&[0.5f32][..])] {
        let (mut q, mut out) = (noise(3, tokens * 8), vec![0.0; tokens * 8]);
        q[64 * 8] = f32::NAN;
        let run = Queries { kv: &kv, position: 0, count: tokens, packed_offset: 0 };
        attend(&Pool::new(1), &shape, HeadBiases { sinks, ..HeadBiases::default() }, &q, 1, &|_| run, &mut out);
        for (token, out) in out.chunks_exact(8).enumerate() {
            assert!(out.iter().all(|x| x.is_nan() == (token == 64)), "{sinks:?}: token {token} gives {out:?}");
        }
    }
}
