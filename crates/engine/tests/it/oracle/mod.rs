//! A straightforward f64 implementation of any architecture, which returns every site by name. It
//! shares no code with the engine.

mod attention;
mod maths;
mod mlp;
mod recurrence;

use maths::{add, dot, map, soft_cap};
use pellucid_engine::architecture::{
    AbsolutePositions, Activation, Architecture, Gain, Layer, Mlp, Norm, NormKind, SharedBlock, Skip,
};
use std::cell::Cell;
use std::collections::HashMap;

pub type Weights = HashMap<String, (Vec<usize>, Vec<f32>)>;
/// Values by site: `[tokens, width]`, attention `[heads, tokens, tokens]`.
pub type Sites = HashMap<String, Vec<f64>>;
type Tokens = Vec<Vec<f64>>;

/// The result of a run of the oracle.
pub struct OracleRun {
    pub sites: Sites,
    /// Smallest score gap of a discrete choice (of an expert, of a key to keep).
    pub closest_choice: f64,
    /// Smallest distance of an activation from a kink of its function.
    pub closest_kink: f64,
}

/// Values to add to a site.
pub struct SiteShift {
    pub site: String,
    pub by: Vec<f64>,
}

struct Oracle<'a> {
    architecture: &'a Architecture,
    weights: &'a Weights,
    shifts: &'a [SiteShift],
    sites: Sites,
    closest_choice: f64,
    closest_kink: Cell<f64>,
    layer: Option<usize>,
    /// The current shared block, and the adapter that the layer uses in it.
    shared: Option<(usize, usize)>,
    /// The residual stream before the first layer.
    embedded: Tokens,
}

pub fn run(architecture: &Architecture, weights: &Weights, text: &[u32]) -> OracleRun {
    run_shifted(architecture, weights, text, &[])
}

/// Like [`run`], with values added to some sites.
pub fn run_shifted(architecture: &Architecture, weights: &Weights, text: &[u32], shifts: &[SiteShift]) -> OracleRun {
    let (sites, embedded) = (HashMap::new(), Tokens::new());
    let (closest_choice, closest_kink) = (f64::INFINITY, Cell::new(f64::INFINITY));
    let mut oracle = Oracle {
        architecture,
        weights,
        shifts,
        sites,
        closest_choice,
        closest_kink,
        layer: None,
        shared: None,
        embedded,
    };
    oracle.forward(text);
    OracleRun { sites: oracle.sites, closest_choice: oracle.closest_choice, closest_kink: oracle.closest_kink.get() }
}

impl Oracle<'_> {
    fn forward(&mut self, text: &[u32]) {
        let a = self.architecture;
        let mut stream = self.embedding(text);
        self.embedded = stream.clone();
        for (index, layer) in a.layers.iter().enumerate() {
            self.layer = Some(index);
            stream = self.block(layer, &stream);
        }
        self.layer = None;
        if let Some(norm) = a.final_norm {
            stream = self.norm(&stream, "final_norm", norm, a.width, Some("final"));
            self.put("final_norm", &mut stream);
        }
        if let Some(transform) = a.head.transform {
            let width = a.head.table_width.unwrap_or(a.width);
            stream = map(&self.product(&stream, "head.transform"), |x| self.activate(transform.activation, x));
            stream = self.norm(&stream, "head.norm", transform.norm, width, None);
        } else if a.head.table_width.is_some() {
            stream = self.product(&stream, "head.project");
        }
        let table = if a.head.tied { "embed" } else { "head" };
        let mut logits = self.product_with(&stream, table, "head.bias");
        self.put("lm_head", &mut logits);
        let mut logits = map(&logits, |x| soft_cap(x * a.head.scale.unwrap_or(1.0) as f64, a.head.soft_cap));
        self.put("logits", &mut logits);
    }

    fn embedding(&mut self, text: &[u32]) -> Tokens {
        let a = self.architecture;
        let e = &a.embedding;
        let mut stream: Tokens = text.iter().map(|&token| self.rows("embed")[token as usize].clone()).collect();
        self.put("embed", &mut stream);
        stream = map(&stream, |x| x * e.scale.unwrap_or(1.0) as f64);
        if e.table_width.is_some() && !e.projected_last {
            stream = self.product(&stream, "embed.project");
        }
        let width = stream[0].len();
        if let Some(positions) = &e.positions {
            let mut rows: Tokens = (0..text.len()).map(|position| self.position(positions, position, width)).collect();
            self.put("pos_embed", &mut rows);
            stream = add(&stream, &rows);
        }
        if e.segments.is_some() {
            let first = self.rows("segment_embed").remove(0);
            stream = add(&stream, &vec![first; text.len()]);
        }
        if let Some(norm) = e.norm {
            stream = self.norm(&stream, "embed.norm", norm, width, None);
        }
        if e.table_width.is_some() && e.projected_last {
            assert!(self.vector("embed.project.bias").is_some(), "the last projection has a bias");
            stream = self.product(&stream, "embed.project");
        }
        stream
    }

    fn position(&self, positions: &AbsolutePositions, position: usize, width: usize) -> Vec<f64> {
        match positions {
            AbsolutePositions::Learned { offset, .. } => self.rows("pos_embed")[position + offset].clone(),
            AbsolutePositions::Sinusoidal { frequencies, offset } => {
                let angles: Vec<f64> = frequencies.iter().map(|f| (position + offset) as f64 * *f as f64).collect();
                let sines = angles.iter().map(|x| x.sin());
                let mut row: Vec<f64> = sines.chain(angles.iter().map(|x| x.cos())).collect();
                row.resize(width, 0.0);
                row
            }
        }
    }

    fn block(&mut self, layer: &Layer, pre: &Tokens) -> Tokens {
        let width = self.architecture.width;
        self.note("resid_pre", pre);
        let (mid, handed) = self.mixing(layer, pre);
        let out_scale = layer.out_scale.unwrap_or(1.0) as f64;
        let Some(mlp) = &layer.mlp else {
            let mut post = map(&mid, |x| x * out_scale);
            self.put("resid_post", &mut post);
            return post;
        };
        let read = if layer.parallel { pre } else { &mid };
        let mut mlp_in = match layer.mlp_norm {
            Some(norm) => self.norm(read, "mlp.norm", norm, width, Some("mlp")),
            None if layer.parallel => handed,
            None => mid.clone(),
        };
        self.put("mlp_in", &mut mlp_in);
        let mut out = self.mlp(mlp, &mlp_in);
        self.put("mlp_out", &mut out);
        let mut written = self.contribution(&out, "mlp.post_norm", layer.mlp_post_norm, layer.mlp_multiplier);
        self.put("mlp_out_post", &mut written);
        let kept = match layer.skip {
            Skip::Identity => mid,
            Skip::Normed { mlp, .. } => map(&mlp_in, |x| x * mlp as f64),
            Skip::LearnedGain => self.gained(&mid, "mlp.skip"),
        };
        let mut post = add(&kept, &written);
        if let Some(norm) = layer.mlp_post_residual_norm {
            post = self.norm(&post, "mlp.stream_norm", norm, width, None);
        }
        let mut post = map(&post, |x| x * out_scale);
        self.put("resid_post", &mut post);
        post
    }

    /// The first sublayer: returns the residual stream after it, and its input.
    fn mixing(&mut self, layer: &Layer, pre: &Tokens) -> (Tokens, Tokens) {
        if layer.attention.is_none() && layer.recurrence.is_none() {
            return (pre.clone(), pre.clone());
        }
        let width = self.architecture.width;
        let read = layer.shared.as_ref().map_or(pre.clone(), |shared| add(pre, &self.shared_block(shared, pre)));
        let handed = match layer.attn_norm {
            Some(norm) => self.norm(&read, "attn.norm", norm, width, Some("attn")),
            None => read,
        };
        let mut mid = match layer.skip {
            Skip::Identity => pre.clone(),
            Skip::Normed { attn, .. } => map(&handed, |x| x * attn as f64),
            Skip::LearnedGain => self.gained(pre, "attn.skip"),
        };
        if let Some(attention) = &layer.attention {
            let mut attn_in = map(&handed, |x| x * layer.attn_in_scale.unwrap_or(1.0) as f64);
            self.put("attn_in", &mut attn_in);
            let mut out = self.attention(attention, &attn_in);
            self.put("attn_out", &mut out);
            let mut written = self.contribution(&out, "attn.post_norm", layer.attn_post_norm, layer.attn_multiplier);
            self.put("attn_out_post", &mut written);
            mid = add(&mid, &written);
        }
        if let Some(recurrence) = &layer.recurrence {
            let mut mixer_in = handed.clone();
            self.put("mixer_in", &mut mixer_in);
            let mut out = self.recurrence(recurrence, &mixer_in);
            self.put("mixer_out", &mut out);
            let mut written = self.contribution(&out, "attn.post_norm", layer.attn_post_norm, layer.mixer_multiplier);
            self.put("mixer_out_post", &mut written);
            mid = add(&mid, &written);
        }
        if let Some(norm) = layer.attn_post_residual_norm {
            mid = self.norm(&mid, "attn.stream_norm", norm, width, None);
        }
        if !layer.parallel && layer.mlp.is_some() {
            self.put("resid_mid", &mut mid);
        }
        (mid, handed)
    }

    /// A block shared between layers; its input is the residual stream concatenated with the
    /// embeddings.
    fn shared_block(&mut self, shared: &SharedBlock, pre: &Tokens) -> Tokens {
        let width = self.architecture.width;
        let joined =
            pre.iter().zip(&self.embedded).map(|(stream, embedded)| [&stream[..], embedded].concat()).collect();
        self.shared = Some((shared.block, shared.adapter));
        let mut attn_in = self.norm(&joined, "attn.norm", shared.norm, 2 * width, None);
        self.put("attn_in", &mut attn_in);
        let mut out = self.attention(&shared.attention, &attn_in);
        self.put("attn_out", &mut out);
        let mut mlp_in = self.norm(&out, "mlp.norm", shared.mlp_norm, width, Some("mlp"));
        self.put("mlp_in", &mut mlp_in);
        let mut out = self.mlp(&Mlp::Dense(shared.mlp), &mlp_in);
        self.put("mlp_out", &mut out);
        self.shared = None;
        self.product(&out, "shared_out")
    }

    fn gained(&self, x: &Tokens, name: &str) -> Tokens {
        let gain = self.vector(name).expect("a learned gain");
        x.iter().map(|x| x.iter().zip(&gain).map(|(x, gain)| x * gain).collect()).collect()
    }

    fn contribution(&mut self, out: &Tokens, name: &str, norm: Option<Norm>, by: Option<f32>) -> Tokens {
        let normed = norm.map_or(out.clone(), |norm| self.norm(out, name, norm, self.architecture.width, None));
        map(&normed, |x| x * by.unwrap_or(1.0) as f64)
    }

    fn norm(&mut self, x: &Tokens, name: &str, norm: Norm, group: usize, points: Option<&str>) -> Tokens {
        let (mut scales, mut values) = (Vec::new(), Vec::new());
        for token in x {
            let (mut token_scales, mut token_values) = (Vec::new(), Vec::new());
            for x in token.chunks_exact(group) {
                let mean = if norm.kind == NormKind::Layer { x.iter().sum::<f64>() / group as f64 } else { 0.0 };
                let scale = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / group as f64 + norm.eps as f64).sqrt();
                token_values.extend(x.iter().map(|x| x - mean));
                token_scales.push(scale);
            }
            scales.push(token_scales);
            values.push(token_values);
        }
        if let Some(point) = points {
            self.put(&format!("{point}_scale"), &mut scales);
        }
        for (values, scales) in values.iter_mut().zip(&scales) {
            values.chunks_exact_mut(group).zip(scales).for_each(|(x, scale)| x.iter_mut().for_each(|x| *x /= scale));
        }
        if let Some(point) = points {
            self.put(&format!("{point}_normed"), &mut values);
        }
        let one_more = if norm.gain == Gain::OnePlusWeight { 1.0 } else { 0.0 };
        let (gain, bias) = (self.vector(&format!("{name}.gain")), self.vector(&format!("{name}.bias")));
        assert_eq!((gain.is_some(), bias.is_some()), (norm.gain != Gain::None, norm.bias), "weights of {name}");
        // One gain vector for all groups, or one per group.
        let of = |learned: &Option<Vec<f64>>, i: usize, or: f64| learned.as_ref().map_or(or, |v| v[i % v.len()]);
        let learned = |(i, x): (usize, &f64)| x * (of(&gain, i, 1.0 - one_more) + one_more) + of(&bias, i, 0.0);
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

    /// The product for one token.
    fn product_of(&self, x: &[f64], name: &str) -> Vec<f64> {
        self.product(&vec![x.to_vec()], name).remove(0)
    }

    /// Asserts that the weights have a bias for these projections exactly if the architecture says
    /// so.
    fn assert_bias(&self, names: &[&str], bias: bool) {
        names.iter().for_each(|name| {
            assert_eq!(self.vector(&format!("{name}.bias")).is_some(), bias, "the bias of {}", self.full(name))
        });
    }

    /// Records the score gap of a discrete choice.
    fn near_choice(&mut self, gap: f64) {
        self.closest_choice = self.closest_choice.min(gap);
    }

    /// Records the distance of `x` from a kink.
    fn near_kink(&self, x: f64, at: f64) {
        self.closest_kink.set(self.closest_kink.get().min((x - at).abs()));
    }

    fn activate(&self, activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Relu => self.near_kink(x, 0.0),
            Activation::ClampedGlu => self.near_kink(x, 7.0),
            _ => {}
        }
        maths::activate(activation, x)
    }

    fn full(&self, name: &str) -> String {
        match self.shared {
            Some((block, _)) => format!("shared.{block}.{name}"),
            None => self.at_layer(name),
        }
    }

    fn at_layer(&self, name: &str) -> String {
        self.layer.map_or(name.to_string(), |layer| format!("layers.{layer}.{name}"))
    }

    /// A product, plus the output of the layer's adapter if it has one.
    fn adapted(&self, x: &Tokens, name: &str, rank: Option<usize>) -> Tokens {
        let first = self.product(x, name);
        let (Some(_), Some((_, adapter))) = (rank, self.shared) else { return first };
        let low = self.product(x, &format!("{name}.adapters.{adapter}.down"));
        add(&first, &self.product(&low, &format!("{name}.adapters.{adapter}.up")))
    }

    fn vector(&self, name: &str) -> Option<Vec<f64>> {
        self.weights.get(&self.full(name)).map(|(_, values)| values.iter().map(|&x| x as f64).collect())
    }

    fn rows(&self, name: &str) -> Tokens {
        let (shape, values) = &self.weights[&self.full(name)];
        values
            .chunks_exact(*shape.last().expect("a shape"))
            .map(|row| row.iter().map(|&x| x as f64).collect())
            .collect()
    }

    /// Shifts a site's value if requested, and records it.
    fn put(&mut self, point: &str, value: &mut Tokens) {
        for shift in self.shifts.iter().filter(|shift| shift.site == self.at_layer(point)) {
            value.iter_mut().flatten().zip(&shift.by).for_each(|(x, by)| *x += by);
        }
        self.note(point, value);
    }

    fn note(&mut self, point: &str, value: &Tokens) {
        self.sites.insert(self.at_layer(point), value.concat());
    }
}
