//! MLPs and experts of the oracle.

use super::maths::{add, argsort_descending, map, sigmoid, soft_cap, softmax, softplus, times};
use super::{Oracle, Tokens};
use pellucid_engine::architecture::{Activation, Dense, ExpertWeights, Experts, Mlp, Scores};

impl Oracle<'_> {
    pub(super) fn mlp(&mut self, mlp: &Mlp, x: &Tokens) -> Tokens {
        match mlp {
            Mlp::Dense(dense) => self.dense(dense, "mlp", x, true),
            Mlp::Experts(experts) => self.experts(experts, x),
            Mlp::ChannelMix { .. } => self.channel_mix(x),
        }
    }

    fn dense(&mut self, d: &Dense, name: &str, x: &Tokens, named: bool) -> Tokens {
        let part = |part: &str| format!("{name}.{part}");
        self.assert_bias(&[&part("up")], d.bias);
        self.assert_bias(&[&part("gate")], d.bias && d.gated);
        self.assert_bias(&[&part("down")], d.down_bias);
        let pre = self.adapted(x, &part(if d.gated { "gate" } else { "up" }), d.adapter);
        let mut pre = map(&pre, |x| x * d.gate_scale.unwrap_or(1.0) as f64);
        if named {
            self.put("mlp_pre", &mut pre);
        }
        let mut act = if d.xielu {
            let learned = |sign: &str| self.vector(&part(&format!("xielu_{sign}"))).expect("a learned scalar")[0];
            let (above, below) = (softplus(learned("positive")), 0.5 + softplus(learned("negative")));
            let eps = -1e-6f64;
            pre.iter().flatten().for_each(|&x| self.near_kink(x, 0.0));
            map(&pre, |x| if x > 0.0 { above * x * x + 0.5 * x } else { (x.min(eps).exp_m1() - x) * below + 0.5 * x })
        } else {
            map(&pre, |x| self.activate(d.activation, x))
        };
        if d.gated {
            let mut linear = self.adapted(x, &part("up"), d.adapter);
            if named {
                self.put("mlp_pre_linear", &mut linear);
            }
            // gpt-oss clamps both branches and adds 1 to the linear one.
            let clamped = d.activation == Activation::ClampedGlu;
            let clamp = |x: f64| {
                [-7.0, 7.0].into_iter().for_each(|at| self.near_kink(x, at));
                x.clamp(-7.0, 7.0) + 1.0
            };
            act = times(&act, &if clamped { map(&linear, clamp) } else { linear });
        }
        if let Some(norm) = d.inner_norm {
            act = self.norm(&act, &part("inner_norm"), norm, d.width, None);
        }
        if named {
            self.put("mlp_act", &mut act);
        }
        map(&self.product(&act, &part("down")), |x| x * d.down_scale.unwrap_or(1.0) as f64)
    }

    fn experts(&mut self, spec: &Experts, x: &Tokens) -> Tokens {
        self.assert_bias(&["mlp.router"], spec.routing.bias);
        self.assert_bias(&["mlp.latent_in", "mlp.latent_out"], spec.latent.is_some_and(|latent| latent.bias));
        let mut logits = map(&self.product(x, "mlp.router"), |x| soft_cap(x, spec.routing.soft_cap));
        self.put("router_logits", &mut logits);
        let mut choices: Vec<Vec<(usize, f64)>> = logits.iter().map(|logits| self.choose(spec, logits)).collect();
        let of = |f: &dyn Fn(&(usize, f64)) -> f64| choices.iter().map(|line| line.iter().map(f).collect()).collect();
        let (mut weights, indices) = (of(&|(_, weight)| *weight), of(&|(expert, _)| *expert as f64));
        self.put("expert_weights", &mut weights);
        self.note("expert_indices", &indices);
        choices.iter_mut().flatten().zip(weights.concat()).for_each(|((_, own), weight)| *own = weight);

        let read = if spec.latent.is_some() { self.product(x, "mlp.latent_in") } else { x.clone() };
        // [tokens, chosen, width]
        let mut outputs = Tokens::new();
        for (x, choices) in read.iter().zip(&choices) {
            let mut of_token = Vec::new();
            for &(expert, weight) in choices {
                let before = if spec.routing.on_input { weight } else { 1.0 };
                let x: Vec<f64> = x.iter().map(|x| x * before).collect();
                of_token.extend(self.dense(&spec.expert, &format!("mlp.experts.{expert}"), &vec![x], false).remove(0));
            }
            outputs.push(of_token);
        }
        self.put("expert_out", &mut outputs);
        let sum = |(outputs, choices): (&Vec<f64>, &Vec<(usize, f64)>)| {
            let mut sum = vec![0.0; outputs.len() / choices.len()];
            for (made, (_, weight)) in outputs.chunks_exact(sum.len()).zip(choices) {
                let after = if spec.routing.on_input { 1.0 } else { *weight };
                sum.iter_mut().zip(made).for_each(|(y, x)| *y += x * after);
            }
            sum
        };
        let mut out: Tokens = outputs.iter().zip(&choices).map(sum).collect();
        if spec.latent.is_some() {
            out = self.product(&out, "mlp.latent_out");
        }
        if spec.sum_bias {
            out = add(&out, &vec![self.rows("mlp.sum_bias").remove(0); x.len()]);
        }
        if let Some(shared) = spec.shared {
            let mut shared_out = self.dense(&shared.mlp, "mlp.shared", x, false);
            if shared.gated {
                for (shared_out, gate) in shared_out.iter_mut().zip(self.product(x, "mlp.shared_gate")) {
                    shared_out.iter_mut().for_each(|y| *y *= sigmoid(gate[0]));
                }
            }
            out = add(&out, &shared_out);
        }
        map(&out, |x| x * spec.scale.unwrap_or(1.0) as f64)
    }

    /// The chosen experts of one token with their weights, largest score first.
    fn choose(&mut self, spec: &Experts, logits: &[f64]) -> Vec<(usize, f64)> {
        let routing = &spec.routing;
        let scores: Vec<f64> = match routing.scores {
            Scores::Raw => logits.to_vec(),
            Scores::Softmax => softmax(logits),
            Scores::Sigmoid => logits.iter().map(|&x| sigmoid(x)).collect(),
            Scores::SparseMixer { tolerance } => return self.sparse_mixer(logits, tolerance as f64, spec.top_k),
        };
        assert_eq!(self.vector("mlp.correction").is_some(), routing.correction, "a correction");
        let correction = self.vector("mlp.correction").unwrap_or(vec![0.0; scores.len()]);
        let judged: Vec<f64> = scores.iter().zip(correction).map(|(score, by)| score + by).collect();
        let mut open: Vec<usize> = (0..judged.len()).collect();
        if let Some(groups) = routing.groups {
            let size = judged.len() / groups.count;
            let worth = |group: usize| -> f64 {
                let own = &judged[group * size..(group + 1) * size];
                let best = argsort_descending(own);
                best.iter().take(if groups.by_top_two { 2 } else { 1 }).map(|&i| own[i]).sum()
            };
            let worths: Vec<f64> = (0..groups.count).map(worth).collect();
            let order = argsort_descending(&worths);
            if let Some(&next) = order.get(groups.top_groups) {
                self.near_choice(worths[order[groups.top_groups - 1]] - worths[next]);
            }
            open.retain(|expert| order[..groups.top_groups].contains(&(expert / size)));
        }
        open.sort_by(|&a, &b| judged[b].total_cmp(&judged[a]));
        open.windows(2).take(spec.top_k).for_each(|pair| self.near_choice(judged[pair[0]] - judged[pair[1]]));
        open.truncate(spec.top_k);
        let chosen: Vec<f64> = open.iter().map(|&expert| scores[expert]).collect();
        let divided = |by: f64| chosen.iter().map(|x| x / by).collect::<Vec<f64>>();
        let weights = match routing.weights {
            ExpertWeights::Scores => chosen.clone(),
            ExpertWeights::SumNormalized { eps, min_divisor } => {
                divided((chosen.iter().sum::<f64>() + eps as f64).max(min_divisor as f64))
            }
            ExpertWeights::PNormNormalized { power } => {
                let power = power as f64;
                divided(chosen.iter().map(|x| x.abs().powf(power)).sum::<f64>().powf(1.0 / power))
            }
            ExpertWeights::Softmax => softmax(&chosen),
            ExpertWeights::Sigmoid { normalized } => {
                let each: Vec<f64> = chosen.iter().map(|&x| sigmoid(x)).collect();
                let total = if normalized { each.iter().sum() } else { 1.0 };
                each.iter().map(|x| x / total).collect()
            }
        };
        open.into_iter().zip(weights.into_iter().map(|weight| weight * routing.scale as f64)).collect()
    }

    /// SparseMixer: chooses one expert after the other, each weighted by a softmax over the
    /// remaining experts whose relative distance from the best one is within the tolerance.
    fn sparse_mixer(&mut self, logits: &[f64], tolerance: f64, top_k: usize) -> Vec<(usize, f64)> {
        let mut left = argsort_descending(logits);
        let mut choices = Vec::new();
        for _ in 0..top_k {
            let best = left[0];
            let off = |expert: usize| (logits[best] - logits[expert]) / logits[expert].abs().max(logits[best]);
            left.iter().skip(1).for_each(|&expert| self.near_choice((off(expert) - 2.0 * tolerance).abs()));
            left.get(1).iter().for_each(|&&next| self.near_choice(logits[best] - logits[next]));
            let close: f64 = left
                .iter()
                .filter(|&&expert| expert == best || off(expert) <= 2.0 * tolerance)
                .map(|&expert| (logits[expert] - logits[best]).exp())
                .sum();
            choices.push((best, 1.0 / close));
            left.remove(0);
        }
        choices
    }

    /// RWKV's channel mixing.
    fn channel_mix(&mut self, x: &Tokens) -> Tokens {
        let mut pre = self.product(&self.blended(x, "mlp.mix_up"), "mlp.up");
        self.put("mlp_pre", &mut pre);
        let mut act = map(&pre, |x| x.max(0.0).powi(2));
        self.put("mlp_act", &mut act);
        let gate = self.product(&self.blended(x, "mlp.mix_gate"), "mlp.out_gate");
        times(&map(&gate, sigmoid), &self.product(&act, "mlp.down"))
    }
}
