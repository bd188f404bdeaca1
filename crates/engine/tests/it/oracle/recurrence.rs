//! Recurrences of the oracle, token by token.

use super::maths::{dot, map, sigmoid, softplus, times};
use super::{Oracle, Tokens};
use pellucid_engine::architecture::{
    Activation, Decay, DeltaRule, LinearAttention, Lru, Mamba, Mamba2, Norm, Recurrence, ShortConv,
};

/// A head's state, `[key_dim][value_dim]`.
type State = Vec<Vec<f64>>;

/// `a · state + key valueᵀ`, with one `a` per key channel.
fn written(state: &State, fade: &[f64], key: &[f64], value: &[f64]) -> State {
    let line = |i: usize| (0..value.len()).map(|j| fade[i] * state[i][j] + key[i] * value[j]).collect();
    (0..key.len()).map(line).collect()
}

/// `queryᵀ state`
fn read(state: &State, query: &[f64]) -> Vec<f64> {
    (0..state[0].len()).map(|j| query.iter().zip(state).map(|(q, line)| q * line[j]).sum()).collect()
}

fn unit(x: &[f64]) -> Vec<f64> {
    let length = (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|x| x / length).collect()
}

/// Part `index` of a token's values, cut into parts of `width`.
fn part(x: &[f64], index: usize, width: usize) -> &[f64] {
    &x[index * width..(index + 1) * width]
}

impl Oracle<'_> {
    pub(super) fn recurrence(&mut self, recurrence: &Recurrence, x: &Tokens) -> Tokens {
        let y = match recurrence {
            Recurrence::Mamba(mamba) => self.mamba(mamba, x),
            Recurrence::Mamba2(mamba) => self.mamba2(mamba, x),
            Recurrence::DeltaRule(rule) => self.delta_rule(rule, x),
            Recurrence::LinearAttention(linear) => self.linear_attention(linear, x),
            Recurrence::ShortConv(conv) => self.short_conv(conv, x),
            Recurrence::Lru(lru) => self.lru(lru, x),
            Recurrence::Rwkv(channels) => self.rwkv(*channels, x),
        };
        self.product(&y, "mixer.out")
    }

    fn gate(&mut self, x: &Tokens) -> Tokens {
        let mut gate = self.product(x, "mixer.gate");
        self.put("mixer_gate", &mut gate);
        gate
    }

    /// Records the states of all heads after each token, and the output.
    fn put_states(&mut self, states: &[Vec<State>], y: &mut Tokens) {
        self.note("mixer_state", &states.iter().map(|heads| heads.concat().concat()).collect());
        self.put("mixer_scan", y);
    }

    fn mamba(&mut self, m: &Mamba, x: &Tokens) -> Tokens {
        self.assert_bias(&["mixer.in", "mixer.gate", "mixer.out"], m.bias);
        self.assert_bias(&["mixer.conv"], m.conv_bias);
        self.assert_bias(&["mixer.step"], true);
        let gate = self.gate(x);
        let u = self.convolved(&self.product(x, "mixer.in"), m.activation);
        let mut low = ["mixer.step_down", "mixer.write", "mixer.read"].map(|name| self.product(&u, name));
        if let Some(norm) = m.inner_norm {
            let names =
                [("mixer.step_norm", m.dt_rank), ("mixer.write_norm", m.state_size), ("mixer.read_norm", m.state_size)];
            for (x, (name, width)) in low.iter_mut().zip(names) {
                *x = self.norm(x, name, norm, width, None);
            }
        }
        let [step, write, read_by] = low;
        let step = map(&self.product(&step, "mixer.step"), softplus);
        let (rate, skip) = (self.rows("mixer.rate"), self.vector("mixer.skip").expect("a skip"));
        let mut heads: Vec<State> = vec![vec![vec![0.0]; m.state_size]; m.inner_width];
        let (mut states, mut y) = (Vec::new(), Tokens::new());
        for t in 0..x.len() {
            let mut line = Vec::new();
            for (c, state) in heads.iter_mut().enumerate() {
                // Discretization: state = exp(dt A) state + dt B x.
                let dt = step[t][c];
                let fade: Vec<f64> = rate[c].iter().map(|rate| (-rate.exp() * dt).exp()).collect();
                *state = written(state, &fade, &write[t], &[dt * u[t][c]]);
                line.push(read(state, &read_by[t])[0] + skip[c] * u[t][c]);
            }
            states.push(heads.clone());
            y.push(line);
        }
        self.put_states(&states, &mut y);
        times(&map(&gate, |x| self.activate(m.activation, x)), &y)
    }

    fn mamba2(&mut self, m: &Mamba2, x: &Tokens) -> Tokens {
        let x = map(x, |x| x * m.in_scale.unwrap_or(1.0) as f64);
        let by = m.in_proj_multipliers.unwrap_or([1.0; 5]);
        let names = ["mixer.gate", "mixer.in", "mixer.write", "mixer.read", "mixer.step"];
        let [mut gate, channels, write, read_by, step]: [Tokens; 5] =
            std::array::from_fn(|i| map(&self.product(&x, names[i]), |x| x * by[i] as f64));
        self.put("mixer_gate", &mut gate);
        self.assert_bias(&names, m.bias);
        self.assert_bias(&["mixer.out"], m.out_bias);
        self.assert_bias(&["mixer.conv"], m.conv_bias);
        // One convolution over the concatenation of x, B and C.
        let joined: Tokens = (0..x.len()).map(|t| [&channels[t][..], &write[t], &read_by[t]].concat()).collect();
        let joined = self.convolved(&joined, m.activation);
        let (width, vectors) = (m.heads * m.head_dim, m.groups * m.state_size);
        let (bias, rate) =
            (self.vector("mixer.step_bias").expect("a bias"), self.vector("mixer.rate").expect("a rate"));
        let skip = self.vector("mixer.skip").expect("a skip");
        let mut heads: Vec<State> = vec![vec![vec![0.0; m.head_dim]; m.state_size]; m.heads];
        let (mut states, mut y) = (Vec::new(), Tokens::new());
        for (t, all) in joined.iter().enumerate() {
            let (u, write, read_by) = (&all[..width], &all[width..width + vectors], &all[width + vectors..]);
            let mut line = Vec::new();
            for (h, state) in heads.iter_mut().enumerate() {
                let group = h / (m.heads / m.groups);
                let dt = softplus(step[t][h] + bias[h]).max(m.dt_limits.0 as f64).min(m.dt_limits.1 as f64);
                let fade = vec![(-rate[h].exp() * dt).exp(); m.state_size];
                let own = part(u, h, m.head_dim);
                let value: Vec<f64> = own.iter().map(|x| x * dt).collect();
                *state = written(state, &fade, part(write, group, m.state_size), &value);
                let out = read(state, part(read_by, group, m.state_size));
                line.extend(out.iter().zip(own).map(|(y, x)| y + skip[h] * x));
            }
            states.push(heads.clone());
            y.push(line);
        }
        self.put_states(&states, &mut y);
        let gate = map(&gate, |x| self.activate(Activation::Silu, x));
        match m.norm {
            None => times(&gate, &y),
            Some(n) if n.norm_before_gate => times(&gate, &self.grouped(&y, n.norm, n.groups)),
            Some(n) => self.grouped(&times(&gate, &y), n.norm, n.groups),
        }
    }

    /// A norm over groups of channels, each channel with its own gain.
    fn grouped(&mut self, x: &Tokens, norm: Norm, groups: usize) -> Tokens {
        let width = x[0].len();
        assert!(self.vector("mixer.norm.gain").is_none_or(|gain| gain.len() == width), "a gain for each channel");
        self.norm(x, "mixer.norm", norm, width / groups, None)
    }

    fn delta_rule(&mut self, d: &DeltaRule, x: &Tokens) -> Tokens {
        let parts = ["mixer.q", "mixer.k", "mixer.v"].map(|name| self.product(x, name));
        let joined: Tokens = (0..x.len()).map(|t| [&parts[0][t][..], &parts[1][t], &parts[2][t]].concat()).collect();
        let joined = self.convolved(&joined, d.activation);
        let keys = d.key_heads * d.key_dim;
        let low =
            if let Decay::PerKeyChannel { .. } = d.decay { self.product(x, "mixer.step_down") } else { x.clone() };
        let step = self.product(&low, "mixer.step");
        let (bias, rate) =
            (self.vector("mixer.step_bias").expect("a bias"), self.vector("mixer.rate").expect("a rate"));
        let strength = map(&self.product(x, "mixer.strength"), |x| sigmoid(x) * d.beta_scale as f64);
        let mut heads: Vec<State> = vec![vec![vec![0.0; d.value_dim]; d.key_dim]; d.value_heads];
        let (mut states, mut y) = (Vec::new(), Tokens::new());
        for (t, all) in joined.iter().enumerate() {
            let (q, k, v) = (&all[..keys], &all[keys..2 * keys], &all[2 * keys..]);
            let dt = |i: usize| softplus(step[t][i] + bias[i]);
            let mut line = Vec::new();
            for (h, state) in heads.iter_mut().enumerate() {
                let key_head = h / (d.value_heads / d.key_heads);
                let (q, k) = (unit(part(q, key_head, d.key_dim)), unit(part(k, key_head, d.key_dim)));
                let fade: Vec<f64> = (0..d.key_dim)
                    .map(|i| match d.decay {
                        Decay::PerHead => dt(h),
                        Decay::PerKeyChannel { .. } => dt(key_head * d.key_dim + i),
                    })
                    .map(|dt| (-rate[h].exp() * dt).exp())
                    .collect();
                // Delta rule: write the difference between the value and the state's prediction for
                // the key.
                let faded = written(state, &fade, &k, &vec![0.0; d.value_dim]);
                let known = read(&faded, &k);
                let news: Vec<f64> =
                    part(v, h, d.value_dim).iter().zip(known).map(|(v, known)| (v - known) * strength[t][h]).collect();
                *state = written(&faded, &vec![1.0; d.key_dim], &k, &news);
                line.extend(read(state, &q).iter().map(|y| y / (d.key_dim as f64).sqrt()));
            }
            states.push(heads.clone());
            y.push(line);
        }
        self.put_states(&states, &mut y);
        let normed = self.norm(&y, "mixer.norm", d.norm, d.value_dim, None);
        let low = if d.gate_rank.is_some() { self.product(x, "mixer.gate_down") } else { x.clone() };
        let gate = self.gate(&low);
        times(&map(&gate, |x| self.activate(d.gate_activation, x)), &normed)
    }

    fn linear_attention(&mut self, l: &LinearAttention, x: &Tokens) -> Tokens {
        let [q, k, v] = ["mixer.q", "mixer.k", "mixer.v"]
            .map(|name| map(&self.product(x, name), |x| self.activate(l.activation, x)));
        let mut heads: Vec<State> = vec![vec![vec![0.0; l.head_dim]; l.head_dim]; l.heads];
        let (mut states, mut y) = (Vec::new(), Tokens::new());
        for t in 0..x.len() {
            let mut line = Vec::new();
            for (h, state) in heads.iter_mut().enumerate() {
                let of = |x: &Tokens| part(&x[t], h, l.head_dim).to_vec();
                *state = written(state, &vec![l.decay[h] as f64; l.head_dim], &of(&k), &of(&v));
                line.extend(read(state, &of(&q)));
            }
            states.push(heads.clone());
            y.push(line);
        }
        self.put_states(&states, &mut y);
        let normed = self.norm(&y, "mixer.norm", l.norm, l.heads * l.head_dim, None);
        let gate = self.gate(x);
        times(&map(&gate, sigmoid), &normed)
    }

    fn short_conv(&mut self, c: &ShortConv, x: &Tokens) -> Tokens {
        self.assert_bias(&["mixer.conv", "mixer.in_gate", "mixer.gate", "mixer.in", "mixer.out"], c.bias);
        let gated = times(&self.product(x, "mixer.in_gate"), &self.product(x, "mixer.in"));
        let conv = self.convolved(&gated, Activation::Identity);
        times(&self.gate(x), &conv)
    }

    fn lru(&mut self, l: &Lru, x: &Tokens) -> Tokens {
        let gate = self.gate(x);
        let u = self.convolved(&self.product(x, "mixer.in"), Activation::Identity);
        let block = l.inner_width / l.blocks;
        let gates = ["mixer.input_gate", "mixer.recurrent_gate"].map(|name| {
            let (weight, bias) = (self.vector(name).expect("blocks"), self.vector(&format!("{name}.bias")));
            let bias = bias.expect("a bias");
            let one = |u: &Vec<f64>, out: usize| {
                let (b, column) = (out / block, out % block);
                let inputs = (0..block).map(|i| u[b * block + i] * weight[(b * block + i) * block + column]);
                sigmoid(inputs.sum::<f64>() + bias[out])
            };
            u.iter().map(|u| (0..l.inner_width).map(|out| one(u, out)).collect()).collect::<Tokens>()
        });
        let rate = self.vector("mixer.rate").expect("a rate");
        let (mut state, mut y) = (vec![0.0; l.inner_width], Tokens::new());
        for (t, u) in u.iter().enumerate() {
            for c in 0..l.inner_width {
                let a = (-8.0 * gates[1][t][c] * softplus(rate[c])).exp();
                let share = if t == 0 { 1.0 } else { (1.0 - a * a).sqrt() };
                state[c] = a * state[c] + share * gates[0][t][c] * u[c];
            }
            y.push(state.clone());
        }
        self.note("mixer_state", &y);
        self.put("mixer_scan", &mut y);
        times(&map(&gate, |x| self.activate(l.activation, x)), &y)
    }

    fn rwkv(&mut self, channels: usize, x: &Tokens) -> Tokens {
        let k = self.product(&self.blended(x, "mixer.mix_k"), "mixer.k");
        let v = self.product(&self.blended(x, "mixer.mix_v"), "mixer.v");
        let gate = self.gate(&self.blended(x, "mixer.mix_gate"));
        let (rate, first) = (self.vector("mixer.rate").expect("a rate"), self.vector("mixer.first").expect("a bonus"));
        let (mut states, mut y) = (Tokens::new(), Tokens::new());
        for now in 0..x.len() {
            let (mut state, mut line) = (Vec::new(), Vec::new());
            for c in 0..channels {
                let decay = rate[c].exp();
                // Weighted average of all values so far: older ones decay, the current one has a
                // bonus.
                let exponent = |t: usize| {
                    if t == now { first[c] + k[t][c] } else { k[t][c] - (now - t - 1) as f64 * decay }
                };
                let above: f64 = (0..=now).map(|t| exponent(t).exp() * v[t][c]).sum();
                line.push(above / (0..=now).map(|t| exponent(t).exp()).sum::<f64>());
                // The state: numerator and denominator without the bonus, relative to the maximum
                // exponent.
                let later = |t: usize| k[t][c] - (now - t) as f64 * decay;
                let most = (0..=now).map(later).fold(f64::NEG_INFINITY, f64::max);
                state.push((0..=now).map(|t| (later(t) - most).exp() * v[t][c]).sum());
                state.push((0..=now).map(|t| (later(t) - most).exp()).sum());
                state.push(most);
            }
            states.push(state);
            y.push(line);
        }
        self.note("mixer_state", &states);
        self.put("mixer_scan", &mut y);
        times(&map(&gate, sigmoid), &y)
    }

    /// Causal depthwise convolution; the last kernel element weights the current token.
    fn convolved(&mut self, x: &Tokens, activation: Activation) -> Tokens {
        let (kernel, bias) = (self.rows("mixer.conv"), self.vector("mixer.conv.bias"));
        let taps = kernel[0].len();
        let one = |t: usize, c: usize| {
            let seen = (0..taps.min(t + 1)).map(|back| kernel[c][taps - 1 - back] * x[t - back][c]);
            self.activate(activation, seen.sum::<f64>() + bias.as_ref().map_or(0.0, |b| b[c]))
        };
        let mut out: Tokens = (0..x.len()).map(|t| (0..x[t].len()).map(|c| one(t, c)).collect()).collect();
        self.put("conv_out", &mut out);
        out
    }

    /// Token shift: each token interpolated with the previous one; zeros before the first.
    pub(super) fn blended(&self, x: &Tokens, name: &str) -> Tokens {
        let mix = self.vector(name).expect("learned mix");
        let before = |t: usize, c: usize| if t == 0 { 0.0 } else { x[t - 1][c] };
        let one = |t: usize, c: usize| x[t][c] * mix[c] + before(t, c) * (1.0 - mix[c]);
        (0..x.len()).map(|t| (0..mix.len()).map(|c| one(t, c)).collect()).collect()
    }
}
