//! Attention by its definition.

use super::maths::{argsort_descending, dot, map, round_to_bf16, soft_cap, softmax, softplus};
use super::{Oracle, Tokens};
use pellucid_engine::architecture::{Attention, Latent, LongRope, NormSpan, Rope, RopeStyle};

/// The chosen experts of each token, with their weights.
type Choices = Vec<Vec<(usize, f64)>>;

impl Oracle<'_> {
    pub(super) fn attention(&mut self, a: &Attention, x: &Tokens) -> Tokens {
        let choices = a.experts.map(|experts| self.chosen_experts(experts.top_k, x));
        let (mut q, mut k, v) = match a.latent {
            Some(latent) => self.latent_heads(a, latent, x),
            None => self.plain_heads(a, choices.as_ref(), x),
        };
        if let Some(t) = a.position_scale {
            for (position, token) in q.iter_mut().enumerate() {
                let steps = ((position as f64 + t.offset as f64) / t.span as f64).floor();
                token.iter_mut().for_each(|x| *x *= 1.0 + t.scale as f64 * (1.0 + steps).ln());
            }
        }
        self.put("rot_q", &mut q);
        self.put("rot_k", &mut k);
        let probs = self.probabilities(a, &q, &k, &v);
        let mut z = if let Some(start) = a.differential {
            let mut z = self.differential_attention(a, start, &probs, &v);
            if let Some(norm) = a.out_norm {
                z = self.norm(&z, "attn.out_norm", norm, 2 * a.value_dim, None);
            }
            map(&z, |x| x * (1.0 - start as f64))
        } else {
            let group = a.heads / a.kv_heads;
            let of = |query: usize, head: usize| weighted_values(a, &probs[head][query], &v, head / group);
            let z: Tokens = (0..x.len()).map(|query| (0..a.heads).flat_map(|head| of(query, head)).collect()).collect();
            match a.out_norm {
                Some(norm) => self.norm(&z, "attn.out_norm", norm, a.heads * a.value_dim, None),
                None => z,
            }
        };
        if let Some(gate) = a.gate {
            self.assert_bias(&["attn.gate"], gate.bias);
            let mut raw = self.product(x, "attn.gate");
            self.put("attn_gate", &mut raw);
            for (z, raw) in z.iter_mut().zip(&raw) {
                for (i, z) in z.iter_mut().enumerate() {
                    *z *= self.activate(gate.activation, raw[if gate.per_head { i / a.value_dim } else { i }]);
                }
            }
        }
        self.put("z", &mut z);
        match choices {
            Some(choices) => self.routed_output(a, &choices, &z),
            None => {
                self.assert_bias(&["attn.out"], a.out_bias);
                self.sum_of_head_outputs(a, &z)
            }
        }
    }

    /// The output projection as the sum of the heads' contributions and the bias.
    fn sum_of_head_outputs(&mut self, a: &Attention, z: &Tokens) -> Tokens {
        let out = self.rows("attn.out");
        let share = |z: &Vec<f64>, head: usize| {
            let range = head * a.value_dim..(head + 1) * a.value_dim;
            out.iter().map(|row| dot(&row[range.clone()], &z[range.clone()])).collect::<Vec<f64>>()
        };
        let mut shares: Tokens = z.iter().map(|z| (0..a.heads).flat_map(|head| share(z, head)).collect()).collect();
        self.put("head_out", &mut shares);
        let bias = self.vector("attn.out.bias").unwrap_or(vec![0.0; out.len()]);
        let sum = |shares: &Vec<f64>| {
            let unit = |(i, bias): (usize, &f64)| bias + shares.iter().skip(i).step_by(out.len()).sum::<f64>();
            bias.iter().enumerate().map(unit).collect()
        };
        shares.iter().map(sum).collect()
    }

    fn plain_heads(&mut self, a: &Attention, choices: Option<&Choices>, x: &Tokens) -> (Tokens, Tokens, Tokens) {
        self.assert_bias(&["attn.v"], a.qkv_bias);
        self.assert_bias(&["attn.k"], a.qkv_bias && !a.no_key_bias);
        self.assert_bias(&["attn.q"], a.qkv_bias && choices.is_none());
        let mut q = match choices {
            Some(choices) => self.routed_queries(a, choices, x),
            None => self.adapted(x, "attn.q", a.adapter),
        };
        let (mut k, mut v) = (self.adapted(x, "attn.k", a.adapter), self.adapted(x, "attn.v", a.adapter));
        self.put("q", &mut q);
        self.put("k", &mut k);
        v = map(&v, |x| x * a.value_scale.unwrap_or(1.0) as f64);
        if !a.qk_norm_after_rope {
            (q, k) = self.qk_norm(a, q, k);
        }
        if let Some(by) = a.clip.map(|by| by as f64) {
            let clip = |x: f64| {
                [-by, by].into_iter().for_each(|at| self.near_kink(x, at));
                x.max(-by).min(by)
            };
            [&mut q, &mut k, &mut v].into_iter().for_each(|x| *x = map(x, clip));
        }
        self.put("value", &mut v);
        if let Some(rope) = a.rope {
            q = self.rotated(&q, rope, a.head_dim, 0);
            k = self.rotated(&k, rope, a.head_dim, 0);
        }
        if a.qk_norm_after_rope {
            (q, k) = self.qk_norm(a, q, k);
        }
        (q, k, v)
    }

    fn qk_norm(&mut self, a: &Attention, q: Tokens, k: Tokens) -> (Tokens, Tokens) {
        let Some(norm) = a.qk_norm else { return (q, k) };
        let group = |heads: usize| if a.qk_norm_span == NormSpan::All { heads * a.head_dim } else { a.head_dim };
        for (name, heads) in [("attn.q_norm.gain", a.heads), ("attn.k_norm.gain", a.kv_heads)] {
            let own = if a.qk_norm_span == NormSpan::Head { 1 } else { heads };
            assert!(self.vector(name).is_none_or(|gain| gain.len() == own * a.head_dim), "the size of {name}");
        }
        let mut q = self.norm(&q, "attn.q_norm", norm, group(a.heads), None);
        let mut k = self.norm(&k, "attn.k_norm", norm, group(a.kv_heads), None);
        self.put("q_norm_out", &mut q);
        self.put("k_norm_out", &mut k);
        (q, k)
    }

    /// Multi-head latent attention: k and v are expanded from a low-rank vector; all heads share
    /// one rotated part of the key.
    fn latent_heads(&mut self, a: &Attention, latent: Latent, x: &Tokens) -> (Tokens, Tokens, Tokens) {
        let still = a.head_dim - latent.rope_dim;
        self.assert_bias(&["attn.kv_down", "attn.k_rotated"], latent.bias);
        self.assert_bias(&["attn.q_down"], latent.bias && latent.query_rank.is_some());
        self.assert_bias(&["attn.q", "attn.k", "attn.v"], false);
        let read = match latent.query_rank {
            Some(rank) => {
                let low = self.product(x, "attn.q_down");
                let low = self.norm(&low, "attn.q_down_norm", latent.norm, rank, None);
                map(&low, |x| x * latent.query_scale.unwrap_or(1.0) as f64)
            }
            None => x.clone(),
        };
        let mut q = self.product(&read, "attn.q");
        self.put("q", &mut q);
        let low = self.product(x, "attn.kv_down");
        let low = self.norm(&low, "attn.kv_down_norm", latent.norm, latent.kv_rank, None);
        let low = map(&low, |x| x * latent.kv_scale.unwrap_or(1.0) as f64);
        let (own, v) = (self.product(&low, "attn.k"), self.product(&low, "attn.v"));
        let mut shared = self.product(x, "attn.k_rotated");
        if let Some(rope) = a.rope {
            q = self.rotated(&q, rope, a.head_dim, still);
            shared = self.rotated(&shared, rope, latent.rope_dim, 0);
        }
        let join = |(own, shared): (&Vec<f64>, &Vec<f64>)| {
            own.chunks_exact(still).flat_map(|own| [own, shared].concat()).collect::<Vec<f64>>()
        };
        (q, own.iter().zip(&shared).map(join).collect(), v)
    }

    /// `[head][query][key]`
    fn probabilities(&mut self, a: &Attention, q: &Tokens, k: &Tokens, v: &Tokens) -> Vec<Tokens> {
        let (n, group) = (q.len(), a.heads / a.kv_heads);
        // A bias per key and KV head.
        let extra: Option<Tokens> = a.dynamic_mask.map(|mask| {
            self.assert_bias(&["attn.mask"], mask.bias);
            let rate = self.vector("attn.mask_rate").expect("a rate for each key head");
            let made = self.product(v, "attn.mask");
            made.iter().map(|x| x.iter().zip(&rate).map(|(x, rate)| (rate * softplus(*x)).exp()).collect()).collect()
        });
        let sinks = self.vector("attn.sinks");
        assert_eq!(sinks.is_some(), a.sinks, "sinks");
        let (mut scores, mut probs) = (Vec::new(), Vec::new());
        for head in 0..a.heads {
            let own = |x: &Tokens, token: usize, head: usize| x[token][head * a.head_dim..][..a.head_dim].to_vec();
            for query in 0..n {
                let sees = |key: usize| {
                    let near = a.window.is_none_or(|window| query - key < window);
                    near && a.chunk.is_none_or(|chunk| query / chunk == key / chunk)
                };
                let mut seen: Vec<usize> = (0..=query).filter(|&key| sees(key)).collect();
                if let (Some(extra), Some(mask)) = (&extra, a.dynamic_mask) {
                    let worth: Vec<f64> = seen.iter().map(|&key| extra[key][head / group]).collect();
                    let order = argsort_descending(&worth);
                    if order.len() > mask.max_keys {
                        self.near_choice(worth[order[mask.max_keys - 1]] - worth[order[mask.max_keys]]);
                        seen = order[..mask.max_keys].iter().map(|&i| seen[i]).collect();
                    }
                }
                let mut line = vec![f64::NEG_INFINITY; n];
                for &key in &seen {
                    let product = dot(&own(q, query, head), &own(k, key, head / group)) * a.scale as f64;
                    line[key] = soft_cap(product, a.soft_cap)
                        + position_bias(a, head, key)
                        + extra.as_ref().map_or(0.0, |extra| extra[key][head / group]);
                }
                scores.push(line);
            }
        }
        self.put("attn_scores", &mut scores);
        for (head, scores) in scores.chunks_exact(n).enumerate() {
            for line in scores {
                // An attention sink is an extra softmax logit, whose weight is dropped.
                let mut logits = line.clone();
                logits.extend(sinks.as_ref().map(|sinks| sinks[head]));
                let mut share = softmax(&logits);
                share.truncate(n);
                probs.push(share);
            }
        }
        self.put("attn_probs", &mut probs);
        probs.chunks_exact(n).map(<[_]>::to_vec).collect()
    }

    /// Differential attention: subtracts the paired head's weights; each head of a pair averages
    /// the values of both.
    fn differential_attention(&self, a: &Attention, start: f32, probs: &[Tokens], v: &Tokens) -> Tokens {
        let of = |name: &str| self.vector(&format!("attn.lambda_{name}")).expect("a learned vector");
        let by = dot(&of("q1"), &of("k1")).exp() - dot(&of("q2"), &of("k2")).exp() + start as f64;
        let (half, group) = (a.heads / 2, a.heads / a.kv_heads);
        let pair = |query: usize, head: usize| {
            let (first, second) = (&probs[head][query], &probs[head + half][query]);
            let weights: Vec<f64> = first.iter().zip(second).map(|(a, b)| a - by * b).collect();
            [weighted_values(a, &weights, v, head / group), weighted_values(a, &weights, v, (head + half) / group)]
                .concat()
        };
        (0..v.len()).map(|query| (0..half).flat_map(|head| pair(query, head)).collect()).collect()
    }

    fn chosen_experts(&mut self, chosen: usize, x: &Tokens) -> Choices {
        let logits = self.product(x, "attn.router");
        let one = |logits: &Vec<f64>| {
            let mut order = argsort_descending(logits);
            if let Some(next) = order.get(chosen) {
                self.near_choice(logits[order[chosen - 1]] - logits[*next]);
            }
            // The order of the chosen experts determines which heads are theirs.
            order.windows(2).take(chosen - 1).for_each(|pair| self.near_choice(logits[pair[0]] - logits[pair[1]]));
            order.truncate(chosen);
            let weights = softmax(&order.iter().map(|&expert| logits[expert]).collect::<Vec<_>>());
            order.into_iter().zip(weights).collect()
        };
        logits.iter().map(one).collect()
    }

    /// Heads that share a KV head are adjacent, one from each chosen expert.
    fn routed_queries(&self, a: &Attention, choices: &Choices, x: &Tokens) -> Tokens {
        let one = |(x, choices): (&Vec<f64>, &Vec<(usize, f64)>)| {
            let made: Tokens =
                choices.iter().map(|(expert, _)| self.product_of(x, &format!("attn.experts.{expert}.q"))).collect();
            let head = |kv: usize, made: &Vec<f64>| made[kv * a.head_dim..][..a.head_dim].to_vec();
            (0..a.kv_heads).flat_map(|kv| made.iter().flat_map(move |made| head(kv, made))).collect()
        };
        x.iter().zip(choices).map(one).collect()
    }

    fn routed_output(&self, a: &Attention, choices: &Choices, z: &Tokens) -> Tokens {
        let one = |(z, choices): (&Vec<f64>, &Vec<(usize, f64)>)| {
            let mut sum = self.vector("attn.out.bias").expect("a bias for all experts");
            for (rank, (expert, weight)) in choices.iter().enumerate() {
                let head = |kv: usize| z[(kv * choices.len() + rank) * a.value_dim..][..a.value_dim].to_vec();
                let own: Vec<f64> = (0..a.kv_heads).flat_map(head).collect();
                let out = self.product_of(&own, &format!("attn.experts.{expert}.out"));
                sum.iter_mut().zip(out).for_each(|(sum, out)| *sum += weight * out);
            }
            sum
        };
        z.iter().zip(choices).map(one).collect()
    }

    /// Applies the rotary embedding to each head, from coordinate `from` on.
    fn rotated(&self, x: &Tokens, rope: usize, dim: usize, from: usize) -> Tokens {
        let rope = &self.architecture.ropes[rope];
        let (frequencies, amplitude) = frequencies_at(rope, x.len());
        let half = frequencies.len();
        let mut x = x.clone();
        for (position, token) in x.iter_mut().enumerate() {
            for head in token.chunks_exact_mut(dim) {
                let head = &mut head[from..];
                for (i, frequency) in frequencies.iter().enumerate() {
                    let (a, b) = if rope.style == RopeStyle::Halves { (i, i + half) } else { (2 * i, 2 * i + 1) };
                    let angle = position as f64 * frequency;
                    let (cos, sin) = (angle.cos() * amplitude, angle.sin() * amplitude);
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                }
            }
        }
        x
    }
}

/// The attention-weighted sum of v for one head.
fn weighted_values(a: &Attention, weights: &[f64], v: &Tokens, kv: usize) -> Vec<f64> {
    let column = |d: usize| weights.iter().zip(v).map(|(p, v)| p * v[kv * a.value_dim + d]).sum();
    (0..a.value_dim).map(column).collect()
}

fn position_bias(a: &Attention, head: usize, key: usize) -> f64 {
    let Some(alibi) = &a.alibi else { return 0.0 };
    let (slope, key) = (alibi.slopes[head] as f64, key as f64);
    match alibi.bf16_scale {
        None => slope * key,
        Some(by) => round_to_bf16(round_to_bf16(slope) * round_to_bf16(key)) * by as f64,
    }
}

/// Frequencies in a row of `length` tokens, and the amplitude of cosines and sines.
fn frequencies_at(rope: &Rope, length: usize) -> (Vec<f64>, f64) {
    let wide = |frequencies: &[f32]| frequencies.iter().map(|&f| f as f64).collect();
    match &rope.long {
        Some(LongRope::Beyond { length: limit, frequencies, amplitude }) if length > *limit => {
            (wide(frequencies), *amplitude as f64)
        }
        Some(LongRope::Dynamic { length: limit, base, factor }) if length > *limit => {
            let (dim, factor) = (2.0 * rope.frequencies.len() as f64, *factor as f64);
            let longer = length as f64 / *limit as f64;
            let base = *base as f64 * (factor * longer - (factor - 1.0)).powf(dim / (dim - 2.0));
            let each = |i: usize| base.powf(-2.0 * i as f64 / dim);
            ((0..rope.frequencies.len()).map(each).collect(), rope.amplitude as f64)
        }
        _ => (wide(&rope.frequencies), rope.amplitude as f64),
    }
}
