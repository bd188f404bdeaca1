//! A transformer by its definition: one token at a time, in double precision, every site by name. It reads the architecture and shares no
//! code with the engine.

use pellucid_engine::architecture::{
    Activation, Architecture, Attention, Layer, Mlp, Norm, NormKind, RopeStyle, Routing,
};
use std::collections::HashMap;

pub type Weights = HashMap<String, (Vec<usize>, Vec<f32>)>;
/// Values by site: `[tokens, width]`, attention `[heads, tokens, tokens]`.
pub type Sites = HashMap<String, Vec<f64>>;
type Tokens = Vec<Vec<f64>>;

pub struct Oracle<'a> {
    pub architecture: &'a Architecture,
    pub weights: &'a Weights,
    pub sites: Sites,
    layer: Option<usize>,
}

pub fn run(architecture: &Architecture, weights: &Weights, text: &[u32]) -> Sites {
    let mut oracle = Oracle { architecture, weights, sites: HashMap::new(), layer: None };
    oracle.forward(text);
    oracle.sites
}

impl Oracle<'_> {
    fn forward(&mut self, text: &[u32]) {
        let a = self.architecture;
        let mut stream: Tokens = text.iter().map(|&token| self.rows("embed")[token as usize].clone()).collect();
        self.put("embed", &stream);
        let scale = a.embedding.scale.unwrap_or(1.0) as f64;
        stream = map(&stream, |x| x * scale);
        if a.embedding.table_width.is_some() {
            stream = self.product(&stream, "embed.project");
        }
        if let Some(positions) = &a.embedding.positions {
            let rows: Tokens = (0..text.len()).map(|p| self.rows("pos_embed")[p + positions.offset].clone()).collect();
            self.put("pos_embed", &rows);
            stream = add(&stream, &rows);
        }
        if let Some(norm) = a.embedding.norm {
            stream = self.norm(&stream, "embed.norm", norm, a.width, None);
        }
        for (index, layer) in a.layers.iter().enumerate() {
            self.layer = Some(index);
            stream = self.block(layer, &stream);
        }
        self.layer = None;
        if let Some(norm) = a.final_norm {
            stream = self.norm(&stream, "final_norm", norm, a.width, Some("final"));
            self.put("final_norm", &stream);
        }
        if a.head.table_width.is_some() {
            stream = self.product(&stream, "head.project");
        }
        let table = if a.head.tied { "embed" } else { "head" };
        let logits = self.product_with(&stream, table, "head.bias");
        self.put("lm_head", &logits);
        let logits = map(&logits, |x| soft_cap(x * a.head.scale.unwrap_or(1.0) as f64, a.head.soft_cap));
        self.put("logits", &logits);
    }

    fn block(&mut self, layer: &Layer, pre: &Tokens) -> Tokens {
        let width = self.architecture.width;
        self.put("resid_pre", pre);
        let attn_in =
            layer.attn_norm.map_or(pre.clone(), |norm| self.norm(pre, "attn.norm", norm, width, Some("attn")));
        self.put("attn_in", &attn_in);
        let out = self.attention(&layer.attention, &attn_in);
        self.put("attn_out", &out);
        let attn = self.contribution(&out, "attn.post_norm", layer.attn_post_norm, layer.residual_scale);
        self.put("attn_out_post", &attn);
        let mut mid = add(pre, &attn);
        if !layer.parallel {
            if let Some(norm) = layer.attn_stream_norm {
                mid = self.norm(&mid, "attn.stream_norm", norm, width, None);
            }
            self.put("resid_mid", &mid);
        }
        let read = if layer.parallel { pre } else { &mid };
        let mlp_in = match layer.mlp_norm {
            Some(norm) => self.norm(read, "mlp.norm", norm, width, Some("mlp")),
            None if layer.parallel => attn_in,
            None => mid.clone(),
        };
        self.put("mlp_in", &mlp_in);
        let out = self.mlp(&layer.mlp, &mlp_in);
        self.put("mlp_out", &out);
        let mlp = self.contribution(&out, "mlp.post_norm", layer.mlp_post_norm, layer.residual_scale);
        self.put("mlp_out_post", &mlp);
        let mut post = add(&mid, &mlp);
        if let Some(norm) = layer.mlp_stream_norm {
            post = self.norm(&post, "mlp.stream_norm", norm, width, None);
        }
        self.put("resid_post", &post);
        post
    }

    fn contribution(&mut self, out: &Tokens, name: &str, norm: Option<Norm>, by: Option<f32>) -> Tokens {
        let normed = norm.map_or(out.clone(), |norm| self.norm(out, name, norm, self.architecture.width, None));
        map(&normed, |x| x * by.unwrap_or(1.0) as f64)
    }

    fn attention(&mut self, a: &Attention, x: &Tokens) -> Tokens {
        let (mut q, mut k, v) = (self.product(x, "attn.q"), self.product(x, "attn.k"), self.product(x, "attn.v"));
        self.put("q", &q);
        self.put("k", &k);
        self.put("value", &v);
        if let Some(norm) = a.qk_norm {
            let group = |heads: usize| if a.qk_norm_flat { heads * a.head_dim } else { a.head_dim };
            q = self.norm(&q, "attn.q_norm", norm, group(a.heads), None);
            k = self.norm(&k, "attn.k_norm", norm, group(a.kv_heads), None);
            self.put("q_norm_out", &q);
            self.put("k_norm_out", &k);
        }
        if let Some(rope) = a.rope {
            q = self.rotated(&q, rope, a.head_dim);
            k = self.rotated(&k, rope, a.head_dim);
        }
        self.put("rot_q", &q);
        self.put("rot_k", &k);
        let (n, group) = (x.len(), a.heads / a.kv_heads);
        let mut z: Tokens = vec![vec![0.0; a.heads * a.value_dim]; n];
        let (mut scores, mut probs) = (Vec::new(), Vec::new());
        for head in 0..a.heads {
            for (query, z) in z.iter_mut().enumerate() {
                let score = |key: usize| {
                    if key > query || a.window.is_some_and(|window| query - key >= window) {
                        return f64::NEG_INFINITY;
                    }
                    let of =
                        |x: &Tokens, token: usize, head: usize| x[token][head * a.head_dim..][..a.head_dim].to_vec();
                    let product = dot(&of(&q, query, head), &of(&k, key, head / group)) * a.scale as f64;
                    soft_cap(product, a.soft_cap)
                        + a.alibi.as_ref().map_or(0.0, |slopes| slopes[head] as f64 * key as f64)
                };
                let line: Vec<f64> = (0..n).map(score).collect();
                let shares = softmax(&line);
                for key in 0..n {
                    for d in 0..a.value_dim {
                        z[head * a.value_dim + d] += shares[key] * v[key][head / group * a.value_dim + d];
                    }
                }
                scores.extend(line);
                probs.extend(shares);
            }
        }
        self.put("attn_scores", &vec![scores]);
        self.put("attn_probs", &vec![probs]);
        self.put("z", &z);
        let out = self.rows("attn.out");
        let share = |z: &Vec<f64>, head: usize| {
            let range = head * a.value_dim..(head + 1) * a.value_dim;
            out.iter().map(|row| dot(&row[range.clone()], &z[range.clone()])).collect::<Vec<f64>>()
        };
        let shares: Tokens = z.iter().map(|z| (0..a.heads).flat_map(|head| share(z, head)).collect()).collect();
        self.put("head_out", &shares);
        self.product(&z, "attn.out")
    }

    fn rotated(&self, x: &Tokens, rope: usize, dim: usize) -> Tokens {
        let rope = &self.architecture.ropes[rope];
        let half = rope.frequencies.len();
        let mut x = x.clone();
        for (position, token) in x.iter_mut().enumerate() {
            for head in token.chunks_exact_mut(dim) {
                for (i, frequency) in rope.frequencies.iter().enumerate() {
                    let (a, b) = if rope.style == RopeStyle::Halves { (i, i + half) } else { (2 * i, 2 * i + 1) };
                    let angle = position as f64 * *frequency as f64;
                    let (cos, sin) = (angle.cos() * rope.amplitude as f64, angle.sin() * rope.amplitude as f64);
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                }
            }
        }
        x
    }

    fn mlp(&mut self, mlp: &Mlp, x: &Tokens) -> Tokens {
        match *mlp {
            Mlp::Plain { activation, .. } => {
                let pre = self.product(x, "mlp.up");
                self.put("mlp_pre", &pre);
                let act = map(&pre, |x| activate(activation, x));
                self.put("mlp_act", &act);
                self.product(&act, "mlp.down")
            }
            Mlp::Gated { activation, .. } => {
                let (pre, linear) = (self.product(x, "mlp.gate"), self.product(x, "mlp.up"));
                self.put("mlp_pre", &pre);
                self.put("mlp_pre_linear", &linear);
                let act: Tokens = pre
                    .iter()
                    .zip(&linear)
                    .map(|(g, u)| g.iter().zip(u).map(|(g, u)| activate(activation, *g) * u).collect())
                    .collect();
                self.put("mlp_act", &act);
                self.product(&act, "mlp.down")
            }
            Mlp::Experts { chosen, activation, routing: Routing::SoftmaxThenChoose { renormalise }, .. } => {
                let logits = self.product(x, "mlp.router");
                self.put("router_logits", &logits);
                let (mut shares, mut choices, mut out) = (Vec::new(), Vec::new(), Vec::new());
                for (x, logits) in x.iter().zip(&logits) {
                    let scores = softmax(logits);
                    let mut order: Vec<usize> = (0..scores.len()).collect();
                    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
                    order.truncate(chosen);
                    let total: f64 = if renormalise { order.iter().map(|&e| scores[e]).sum() } else { 1.0 };
                    let mut sum = vec![0.0; x.len()];
                    for &expert in &order {
                        let one = |name: &str, x: &[f64]| {
                            self.product(&vec![x.to_vec()], &format!("mlp.experts.{expert}.{name}")).remove(0)
                        };
                        let act: Vec<f64> = one("gate", x)
                            .iter()
                            .zip(one("up", x))
                            .map(|(g, u)| activate(activation, *g) * u)
                            .collect();
                        sum.iter_mut().zip(one("down", &act)).for_each(|(y, x)| *y += x * scores[expert] / total);
                    }
                    shares.push(order.iter().map(|&e| scores[e] / total).collect());
                    choices.push(order.iter().map(|&e| e as f64).collect());
                    out.push(sum);
                }
                self.put("expert_weights", &shares);
                self.put("expert_indices", &choices);
                out
            }
        }
    }

    fn norm(&mut self, x: &Tokens, name: &str, norm: Norm, group: usize, points: Option<&str>) -> Tokens {
        let (mut scales, mut values) = (Vec::new(), Vec::new());
        for token in x {
            let (mut token_scales, mut token_values) = (Vec::new(), Vec::new());
            for x in token.chunks_exact(group) {
                let mean = if norm.kind == NormKind::Layer { x.iter().sum::<f64>() / group as f64 } else { 0.0 };
                let scale = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / group as f64 + norm.eps as f64).sqrt();
                token_values.extend(x.iter().map(|x| (x - mean) / scale));
                token_scales.push(scale);
            }
            scales.push(token_scales);
            values.push(token_values);
        }
        if let Some(point) = points {
            self.put(&format!("{point}_scale"), &scales);
            self.put(&format!("{point}_normed"), &values);
        }
        let one_more = if norm.gain == pellucid_engine::architecture::Gain::OnePlusWeight { 1.0 } else { 0.0 };
        let (gain, bias) = (self.vector(&format!("{name}.gain")), self.vector(&format!("{name}.bias")));
        let learned = |(i, x): (usize, &f64)| {
            x * gain.as_ref().map_or(1.0, |g| g[i % group] + one_more) + bias.as_ref().map_or(0.0, |b| b[i % group])
        };
        values.iter().map(|x| x.iter().enumerate().map(learned).collect()).collect()
    }

    fn product(&self, x: &Tokens, name: &str) -> Tokens {
        self.product_with(x, name, &format!("{name}.bias"))
    }

    fn product_with(&self, x: &Tokens, name: &str, bias: &str) -> Tokens {
        let (rows, bias) = (self.rows(name), self.vector(bias));
        x.iter()
            .map(|x| {
                rows.iter().enumerate().map(|(i, row)| dot(row, x) + bias.as_ref().map_or(0.0, |b| b[i])).collect()
            })
            .collect()
    }

    fn full(&self, name: &str) -> String {
        self.layer.map_or(name.to_string(), |layer| format!("layers.{layer}.{name}"))
    }

    fn vector(&self, name: &str) -> Option<Vec<f64>> {
        self.weights.get(&self.full(name)).map(|(_, values)| values.iter().map(|&x| x as f64).collect())
    }

    fn rows(&self, name: &str) -> Tokens {
        let (shape, values) = &self.weights[&self.full(name)];
        values.chunks_exact(shape[1]).map(|row| row.iter().map(|&x| x as f64).collect()).collect()
    }

    fn put(&mut self, point: &str, value: &Tokens) {
        self.sites.insert(self.full(point), value.concat());
    }
}

fn map(x: &Tokens, f: impl Fn(f64) -> f64) -> Tokens {
    x.iter().map(|x| x.iter().map(|&x| f(x)).collect()).collect()
}

fn add(a: &Tokens, b: &Tokens) -> Tokens {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = x.iter().map(|x| (x - top).exp()).sum();
    x.iter().map(|x| (x - top).exp() / total).collect()
}

fn soft_cap(x: f64, cap: Option<f32>) -> f64 {
    cap.map_or(x, |cap| cap as f64 * (x / cap as f64).tanh())
}

fn activate(activation: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::GeluQuick => x * sigmoid(1.702 * x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(x),
        Activation::Identity => x,
    }
}

fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    if x.abs() > 4.0 { x.signum() } else { sum * 2.0 / std::f64::consts::PI.sqrt() }
}
