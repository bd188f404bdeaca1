//! Arithmetic identities between the sites inside attention and MLPs (1, 3, 6, 7 and 8), each with
//! wrong layouts that must fail.

use crate::naive::{
    Activations, activate, affine, attention, layers, linear, mlp, plus, refusal, roll_heads, scale_by, sigmoid,
    soft_cap, softmax, softplus, times,
};
use pellucid_engine::architecture::{Activation, Alibi, Attention, Experts, Mlp};

/// `probs @ value`, where `key_head` maps a head to its KV head.
fn mix_values(
    a: &Attention,
    probs: &[f64],
    value: &[f64],
    tokens: usize,
    key_head: impl Fn(usize) -> usize,
) -> Vec<f64> {
    let mut z = vec![0.0; tokens * a.heads * a.value_dim];
    for query in 0..tokens {
        for head in 0..a.heads {
            for key in 0..tokens {
                let p = probs[(head * tokens + query) * tokens + key];
                let v = &value[(key * a.kv_heads + key_head(head)) * a.value_dim..][..a.value_dim];
                let z = &mut z[(query * a.heads + head) * a.value_dim..][..a.value_dim];
                z.iter_mut().zip(v).for_each(|(z, v)| *z += p * v);
            }
        }
    }
    z
}

/// Differential attention: heads form pairs, the second head's weights are subtracted from the
/// first's, and each pair mixes the values of both its heads.
fn mix_values_differential(
    acts: &Activations,
    weights: &str,
    a: &Attention,
    start: f32,
    probs: &[f64],
    value: &[f64],
) -> Vec<f64> {
    let of = |name: &str| acts.vector(&format!("{weights}.attn.lambda_{name}")).expect("a learned vector");
    let dot = |a: &str, b: &str| times(&of(a), &of(b)).iter().sum::<f64>();
    let by = dot("q1", "k1").exp() - dot("q2", "k2").exp() + start as f64;
    let (n, half, group) = (acts.tokens, a.heads / 2, a.heads / a.kv_heads);
    let (first, second) = probs.split_at(probs.len() / 2);
    let weights: Vec<f64> = first.iter().zip(second).map(|(a, b)| a - by * b).collect();
    // Mix both heads of a pair with the pair's weights, then concatenate the two results.
    let both = mix_values(a, &[&weights[..], &weights[..]].concat(), value, n, |head| head / group);
    let dim = a.value_dim;
    let token = |z: &[f64]| {
        (0..half).flat_map(|h| [&z[h * dim..][..dim], &z[(h + half) * dim..][..dim]].concat()).collect::<Vec<f64>>()
    };
    both.chunks_exact(a.heads * dim).flat_map(token).collect()
}

/// Applies attention's norm, scale and gate to the mixed values, before the output projection.
fn norm_and_gate(acts: &Activations, layer: usize, weights: &str, a: &Attention, mut z: Vec<f64>) -> Vec<f64> {
    if let Some(norm) = a.out_norm {
        let group = if a.differential.is_some() { 2 * a.value_dim } else { a.heads * a.value_dim };
        z = acts.norm_of(&z, &format!("{weights}.attn.out_norm"), norm, group);
    }
    z = scale_by(&z, a.differential.map(|start| 1.0 - start));
    if let Some(gate) = a.gate {
        let gates = acts.layer(layer, "attn_gate");
        let each = z.len() / gates.len();
        z.iter_mut().enumerate().for_each(|(i, z)| *z *= activate(gate.activation, gates[i / each]));
    }
    z
}

#[test]
fn identity_1_attention_weights_times_values_are_z() {
    let mut checked = 0;
    for case in golden::all() {
        let acts = Activations::new(&case);
        for (layer, spec) in layers(&case) {
            let Some((a, weights)) = attention(layer, spec) else {
                assert!(refusal(&case, &format!("layers.{layer}.z")).contains("no softmax attention"), "{}", case.name);
                continue;
            };
            if a.latent.is_some() {
                // All heads expand one latent vector, so there are no separate keys and values.
                for point in ["k", "value"] {
                    let error = refusal(&case, &format!("layers.{layer}.{point}"));
                    assert!(error.contains("latent attention has no separate k and v"), "{error}");
                }
                continue;
            }
            assert!(a.heads > 1, "a single head would hide a wrong order");
            let (probs, value, z) =
                (acts.layer(layer, "attn_probs"), acts.layer(layer, "value"), acts.layer(layer, "z"));
            let square = acts.tokens * acts.tokens;
            let rolled = [&probs[square..], &probs[..square]].concat();
            let (group, n) = (a.heads / a.kv_heads, acts.tokens);
            checked += 1;
            if let Some(start) = a.differential {
                let compute = |probs: &[f64]| {
                    norm_and_gate(
                        &acts,
                        layer,
                        &weights,
                        a,
                        mix_values_differential(&acts, &weights, a, start, probs, &value),
                    )
                };
                let plain =
                    norm_and_gate(&acts, layer, &weights, a, mix_values(a, &probs, &value, n, |head| head / group));
                let wrong = [("heads rolled by one", compute(&rolled)), ("nothing subtracted", plain)];
                acts.check("(probs - λ partner's probs) @ values = z", &compute(&probs), &z, &wrong);
                continue;
            }
            let compute = |probs: &[f64], key_head: &dyn Fn(usize) -> usize| {
                norm_and_gate(&acts, layer, &weights, a, mix_values(a, probs, &value, n, key_head))
            };
            let mut wrong = vec![("heads rolled by one", compute(&rolled, &|head| head / group))];
            if a.kv_heads > 1 {
                wrong.push(("values of the next key head", compute(&probs, &|head| (head / group + 1) % a.kv_heads)));
            }
            if group > 1 && a.kv_heads > 1 {
                wrong.push(("key heads tiled instead of repeated", compute(&probs, &|head| head % a.kv_heads)));
            }
            if a.gate.is_some() || a.out_norm.is_some() {
                wrong.push(("no gate and no norm", mix_values(a, &probs, &value, n, |head| head / group)));
            }
            acts.check("probs @ value = z", &compute(&probs, &|head| head / group), &z, &wrong);
        }
    }
    assert!(checked >= 3, "some attention has values");
}

/// Outputs of the chosen experts, `[tokens, chosen, width]`. The control passes a `shift` of the
/// expert index other than 0.
fn expert_outputs(acts: &Activations, layer: usize, spec: &Experts, x: &[f64], shift: usize) -> Vec<f64> {
    let name = |part: &str| format!("layers.{layer}.mlp.{part}");
    let read = if spec.latent.is_some() { acts.linear(x, &name("latent_in")) } else { x.to_vec() };
    let (width, shares) = (read.len() / acts.tokens, acts.layer(layer, "expert_weights"));
    let mut outputs = Vec::new();
    for (slot, choice) in acts.layer(layer, "expert_indices").iter().enumerate() {
        let (expert, token) = ((*choice as usize + shift) % spec.count, slot / spec.top_k);
        let before = if spec.routing.on_input { shares[slot] } else { 1.0 };
        let x: Vec<f64> = read[token * width..][..width].iter().map(|x| x * before).collect();
        outputs.extend(acts.dense(&spec.expert, &name(&format!("experts.{expert}")), &x));
    }
    outputs
}

/// Output of a mixture of experts from the outputs of the chosen experts, with latent projection,
/// shared expert and scale. The control passes a `share` other than the expert weights.
fn combine_experts(
    acts: &Activations,
    layer: usize,
    spec: &Experts,
    x: &[f64],
    outputs: &[f64],
    share: &dyn Fn(usize) -> f64,
) -> Vec<f64> {
    let name = |part: &str| format!("layers.{layer}.mlp.{part}");
    let width = outputs.len() / acts.tokens / spec.top_k;
    let mut sum = vec![0.0; acts.tokens * width];
    for (slot, output) in outputs.chunks_exact(width).enumerate() {
        let after = if spec.routing.on_input { 1.0 } else { share(slot) };
        sum[slot / spec.top_k * width..][..width].iter_mut().zip(output).for_each(|(y, x)| *y += x * after);
    }
    let mut out = if spec.latent.is_some() { acts.linear(&sum, &name("latent_out")) } else { sum };
    if spec.sum_bias {
        out = affine(&out, None, Some(&acts.matrix(&name("sum_bias"))[0]));
    }
    if let Some(shared) = spec.shared {
        let mut shared_out = acts.dense(&shared.mlp, &name("shared"), x);
        if shared.gated {
            let gates = acts.linear(x, &name("shared_gate"));
            let each = shared_out.len() / acts.tokens;
            shared_out.iter_mut().enumerate().for_each(|(i, y)| *y *= sigmoid(gates[i / each]));
        }
        out = plus(&out, &shared_out);
    }
    scale_by(&out, spec.scale)
}

#[test]
fn identity_3_the_down_projection_of_the_neurons_is_mlp_out() {
    for case in golden::all() {
        let acts = Activations::new(&case);
        for (layer, spec) in layers(&case) {
            let at = |point| acts.layer(layer, point);
            let found = mlp(layer, spec);
            let weights = found.as_ref().map(|(_, weights)| format!("{weights}.mlp")).unwrap_or_default();
            let name = |part: &str| format!("{weights}.{part}");
            match found.as_ref().map(|(mlp, _)| mlp) {
                None => {
                    for point in ["mlp_in", "mlp_pre", "mlp_act", "mlp_out"] {
                        let error = refusal(&case, &format!("layers.{layer}.{point}"));
                        assert!(error.contains("this layer has no MLP"), "{error}");
                    }
                }
                Some(Mlp::Experts(spec)) => {
                    for point in ["mlp_pre", "mlp_act"] {
                        let error = refusal(&case, &format!("layers.{layer}.{point}"));
                        assert!(error.contains("a layer of experts has no neurons at block level"), "{error}");
                    }
                    let (x, shares, outputs) = (at("mlp_in"), at("expert_weights"), at("expert_out"));
                    let compute = |shift: usize| expert_outputs(&acts, layer, spec, &x, shift);
                    let next = if spec.count > 1 { vec![("the next expert", compute(1))] } else { Vec::new() };
                    acts.check("the chosen experts = expert_out", &compute(0), &outputs, &next);
                    let sum = |outputs: &[f64], by: f64| {
                        combine_experts(&acts, layer, spec, &x, outputs, &|slot| by * shares[slot])
                    };
                    let mut wrong = vec![("other outputs", sum(&scale_by(&outputs, Some(2.0)), 1.0))];
                    if !spec.routing.on_input {
                        wrong.push(("doubled expert weights", sum(&outputs, 2.0)));
                    }
                    acts.check("weights · expert_out = mlp_out", &sum(&outputs, 1.0), &at("mlp_out"), &wrong);
                }
                Some(Mlp::Dense(dense)) => {
                    let (pre, act) = (at("mlp_pre"), at("mlp_act"));
                    let wrong = [("mlp_pre in place of mlp_act", acts.down(dense, &weights, &pre))];
                    acts.check("down(mlp_act) = mlp_out", &acts.down(dense, &weights, &act), &at("mlp_out"), &wrong);
                    let compute = |pre: &[f64], linear: Option<&[f64]>| acts.neurons(dense, &weights, pre, linear);
                    if dense.gated {
                        let linear = at("mlp_pre_linear");
                        let wrong = [("the branches swapped", compute(&linear, Some(&pre)))];
                        acts.check(
                            "act(mlp_pre) · mlp_pre_linear = mlp_act",
                            &compute(&pre, Some(&linear)),
                            &act,
                            &wrong,
                        );
                    } else {
                        let error = refusal(&case, &format!("layers.{layer}.mlp_pre_linear"));
                        assert!(error.contains("not gated; use mlp_pre or mlp_act"), "{error}");
                        acts.check(
                            "act(mlp_pre) = mlp_act",
                            &compute(&pre, None),
                            &act,
                            &[("no activation", pre.clone())],
                        );
                    }
                }
                Some(Mlp::ChannelMix { .. }) => {
                    let (x, pre, act) = (at("mlp_in"), at("mlp_pre"), at("mlp_act"));
                    // Each token is blended with the one before it; the first with zeros.
                    let width = x.len() / acts.tokens;
                    let before = [&vec![0.0; width], &x[..x.len() - width]].concat();
                    let mix = acts.vector(&name("mix_gate")).expect("mixing coefficients");
                    let old: Vec<f64> = mix.iter().map(|share| 1.0 - share).collect();
                    let blended = plus(&affine(&x, Some(&mix), None), &affine(&before, Some(&old), None));
                    let gates = |x: &[f64]| {
                        let raw = acts.linear(x, &name("out_gate"));
                        raw.iter().map(|&x| sigmoid(x)).collect::<Vec<f64>>()
                    };
                    let down = acts.linear(&act, &name("down"));
                    let wrong = [("no gate", down.clone()), ("a gate of this token alone", times(&gates(&x), &down))];
                    acts.check(
                        "gate · down(mlp_act) = mlp_out",
                        &times(&gates(&blended), &down),
                        &at("mlp_out"),
                        &wrong,
                    );
                    let ours: Vec<f64> = pre.iter().map(|&x| activate(Activation::ReluSquared, x)).collect();
                    acts.check("relu(mlp_pre)² = mlp_act", &ours, &act, &[("no activation", pre.clone())]);
                }
            }
        }
    }
}

/// Whether each query's weights are positive for exactly its visible keys (or as many as a dynamic
/// mask keeps) and sum to one (less with an attention sink).
fn are_probabilities(a: &Attention, probs: &[f64], tokens: usize, sees: &dyn Fn(usize, usize) -> bool) -> bool {
    probs.chunks_exact(tokens).enumerate().all(|(row, probs)| {
        let query = row % tokens;
        let total: f64 = probs.iter().sum();
        let whole = if a.sinks { total > 0.0 && total < 1.0 - 1e-5 } else { (total - 1.0).abs() < 1e-5 };
        let visible = (0..tokens).filter(|&key| sees(query, key)).count();
        let kept = a.dynamic_mask.map_or(visible, |mask| mask.max_keys.min(visible));
        let positive = probs.iter().filter(|p| **p > 0.0).count();
        whole && positive == kept && (0..tokens).all(|key| probs[key] == 0.0 || sees(query, key))
    })
}

#[test]
fn identity_6_attention_weights_are_probabilities_over_visible_keys() {
    let (mut windowed, mut checked) = (0, 0);
    for case in golden::all() {
        let acts = Activations::new(&case);
        for (layer, spec) in layers(&case) {
            let Some((a, _)) = attention(layer, spec) else { continue };
            let (probs, n) = (acts.layer(layer, "attn_probs"), acts.tokens);
            let sees = |query: usize, key: usize| {
                let near = key <= query && a.window.is_none_or(|window| query - key < window);
                near && a.chunk.is_none_or(|chunk| query / chunk == key / chunk)
            };
            assert!(
                are_probabilities(a, &probs, n, &sees),
                "{}: layer {layer} does not attend to exactly the visible keys",
                case.name
            );
            let transposed: Vec<f64> =
                (0..probs.len()).map(|i| probs[i / (n * n) * n * n + i % n * n + i / n % n]).collect();
            // The last query with one visible key less, unless a dynamic mask drops keys.
            let oldest = (0..n).find(|&key| sees(n - 1, key)).expect("a key");
            let less = |query: usize, key: usize| sees(query, key) && (query, key) != (n - 1, oldest);
            let whole = a.dynamic_mask.is_none_or(|mask| mask.max_keys >= n);
            assert!(
                !(are_probabilities(a, &transposed, n, &sees) || whole && are_probabilities(a, &probs, n, &less)),
                "{}: swapped queries and keys, or a missing key, pass as well",
                case.name
            );
            let other = Attention { sinks: !a.sinks, ..a.clone() };
            assert!(
                !are_probabilities(&other, &probs, n, &sees),
                "{}: the weights do not show whether there is a sink",
                case.name
            );
            if oldest > 0 {
                let more = |query: usize, key: usize| sees(query, key) || (query, key) == (n - 1, oldest - 1);
                assert!(
                    !(whole && are_probabilities(a, &probs, n, &more)),
                    "{}: a wider window passes as well",
                    case.name
                );
                windowed += 1;
            }
            checked += 1;
        }
    }
    assert!(windowed >= 5 && checked > windowed, "some texts are longer than the sliding window");
}

/// The ALiBi bias that is added to a head's scores of a key.
fn position_bias(alibi: Option<&Alibi>, head: usize, key: usize) -> f64 {
    let Some(alibi) = alibi else { return 0.0 };
    // Rounds to bf16, ties to even.
    let round = |x: f64| {
        let unit = 2f64.powi(x.abs().max(1e-30).log2().floor() as i32 - 7);
        (x / unit).round_ties_even() * unit
    };
    let (slope, key) = (alibi.slopes[head] as f64, key as f64);
    alibi.bf16_scale.map_or(slope * key, |by| round(round(slope) * round(key)) * by as f64)
}

#[test]
fn identity_7_scores_come_from_rotated_queries_and_keys_and_give_the_weights() {
    let mut checked = 0;
    for case in golden::all() {
        let acts = Activations::new(&case);
        for (layer, spec) in layers(&case) {
            let (Some((a, weights)), n) = (attention(layer, spec), acts.tokens) else { continue };
            let name = |part: &str| format!("{weights}.attn.{part}");
            let (scores, probs) = (acts.layer(layer, "attn_scores"), acts.layer(layer, "attn_probs"));
            assert!(
                (0..n).all(|q| (0..n).all(|k| (scores[q * n + k] == f64::NEG_INFINITY) == (probs[q * n + k] == 0.0))),
                "{}: masked scores are -inf",
                case.name
            );
            let sinks = acts.vector(&name("sinks"));
            assert_eq!(sinks.is_some(), a.sinks, "{}", case.name);
            let shares = |by: f64, sinks: Option<&Vec<f64>>| {
                let one = |(row, scores): (usize, &[f64])| {
                    // An attention sink is one more logit, whose weight is discarded.
                    let own = sinks.map(|sinks| sinks[row / n]);
                    let logits: Vec<f64> = scores.iter().map(|x| x * by).chain(own).collect();
                    softmax(&logits)[..n].to_vec()
                };
                scores.chunks_exact(n).enumerate().flat_map(one).collect::<Vec<f64>>()
            };
            let mut wrong = vec![("twice the scale", shares(2.0, sinks.as_ref()))];
            wrong.push(("no scale", shares((a.head_dim as f64).sqrt(), sinks.as_ref())));
            if a.sinks {
                wrong.push(("no sink", shares(1.0, None)));
            }
            acts.check("softmax(scores) = probs", &shares(1.0, sinks.as_ref()), &probs, &wrong);

            let visible: Vec<usize> = (0..scores.len()).filter(|&i| scores[i].is_finite()).collect();
            let only = |x: &[f64]| visible.iter().map(|&i| x[i]).collect::<Vec<f64>>();
            // Biases of a dynamic mask, for each key and KV head.
            let extra: Option<Vec<f64>> = a.dynamic_mask.map(|_| {
                let rate = acts.vector(&name("mask_rate")).expect("a rate");
                let raw = acts.linear(&acts.layer(layer, "value"), &name("mask"));
                raw.iter().enumerate().map(|(i, x)| (rate[i % rate.len()] * softplus(*x)).exp()).collect()
            });
            let group = a.heads / a.kv_heads;
            let compute = |q: &[f64], k: &[f64], cap: Option<f32>, alibi: Option<&Alibi>| {
                let dim = a.head_dim;
                let one = |i: usize| {
                    let (head, query, key) = (i / (n * n), i / n % n, i % n);
                    let (q, k) = (
                        &q[(query * a.heads + head) * dim..][..dim],
                        &k[(key * a.kv_heads + head / group) * dim..][..dim],
                    );
                    let product: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                    soft_cap(&[product * a.scale as f64], cap)[0]
                        + position_bias(alibi, head, key)
                        + extra.as_ref().map_or(0.0, |extra| extra[key * a.kv_heads + head / group])
                };
                (0..scores.len()).map(one).collect::<Vec<f64>>()
            };
            let (q, k, alibi) = (acts.layer(layer, "rot_q"), acts.layer(layer, "rot_k"), a.alibi.as_ref());
            let mut wrong = vec![(
                "heads rolled by one",
                only(&compute(&roll_heads(&q, a.heads, a.head_dim), &k, a.soft_cap, alibi)),
            )];
            // Keys expanded from a latent vector have no site before RoPE.
            if a.latent.is_none() && (a.rope.is_some() || a.qk_norm.is_some()) {
                wrong.push((
                    "q and k before norm and rotation",
                    only(&compute(&acts.layer(layer, "q"), &acts.layer(layer, "k"), a.soft_cap, alibi)),
                ));
            }
            if a.soft_cap.is_some() {
                wrong.push(("no soft cap", only(&compute(&q, &k, None, alibi))));
            }
            if a.alibi.is_some() {
                wrong.push(("no position bias", only(&compute(&q, &k, a.soft_cap, None))));
            }
            let ours = compute(&q, &k, a.soft_cap, alibi);
            if let (Some(mask), Some(extra)) = (a.dynamic_mask, &extra) {
                let bare = |i: usize| ours[i] - extra[i % n * a.kv_heads + i / (n * n) / group];
                wrong.push(("no mask", only(&(0..ours.len()).map(bare).collect::<Vec<_>>())));
                // No dropped key has a larger bias than a kept one.
                for (row, scores) in scores.chunks_exact(n).enumerate() {
                    let bias = |key: usize| extra[key * a.kv_heads + row / n / group];
                    let window = a.window.unwrap_or(n);
                    let in_window = |key: &usize| *key <= row % n && row % n - key < window;
                    let (kept, dropped): (Vec<usize>, Vec<usize>) =
                        (0..n).filter(in_window).partition(|&key| scores[key].is_finite());
                    let least = kept.iter().map(|&key| bias(key)).fold(f64::INFINITY, f64::min);
                    assert!(
                        kept.len() == mask.max_keys.min(kept.len() + dropped.len()),
                        "{}: how many keys",
                        case.name
                    );
                    assert!(dropped.iter().all(|&key| bias(key) <= least + 1e-6), "{}: which keys", case.name);
                }
            }
            acts.check("rot_q · rot_k = scores", &only(&ours), &only(&scores), &wrong);
            checked += 1;
        }
    }
    assert!(checked >= 3, "some layers have attention");
}

#[test]
fn identity_8_the_output_projection_of_z_and_the_sum_of_head_out_are_attn_out() {
    let mut checked = 0;
    for case in golden::all() {
        let acts = Activations::new(&case);
        for (layer, spec) in layers(&case) {
            let Some((a, weights)) = attention(layer, spec) else { continue };
            let name = format!("{weights}.attn.out");
            if a.experts.is_some() {
                // Each token's experts project its heads, so no head has its own columns. The tests
                // of random architectures cover this case (crates/engine/tests/it/oracle).
                let error = refusal(&case, &format!("layers.{layer}.head_out"));
                assert!(error.contains("this attention's output projection belongs to its experts"), "{error}");
                continue;
            }
            checked += 1;
            let (z, out) = (acts.layer(layer, "z"), acts.layer(layer, "attn_out"));
            let wrong = [("heads rolled by one", acts.linear(&roll_heads(&z, a.heads, a.value_dim), &name))];
            acts.check("W_O z = attn_out", &acts.linear(&z, &name), &out, &wrong);

            let (shares, width) = (acts.layer(layer, "head_out"), out.len() / acts.tokens);
            let sum = |shares: &[f64], count: usize| {
                let token = |share: &[f64]| {
                    (0..width).map(|unit| (0..count).map(|head| share[head * width + unit]).sum()).collect::<Vec<f64>>()
                };
                let sums: Vec<f64> = shares.chunks_exact(a.heads * width).flat_map(token).collect();
                affine(&sums, None, acts.vector(&format!("{name}.bias")).as_deref())
            };
            acts.check(
                "sum of head_out + b = attn_out",
                &sum(&shares, a.heads),
                &out,
                &[("one head omitted", sum(&shares, a.heads - 1))],
            );
            // head_out of the first head is its z times its own columns of W_O.
            let first = |x: &[f64], heads: usize, dim: usize| {
                x.chunks_exact(heads * dim).flat_map(|x| x[..dim].to_vec()).collect::<Vec<f64>>()
            };
            let columns = |from: usize| {
                acts.matrix(&name).iter().map(|row| row[from..from + a.value_dim].to_vec()).collect::<Vec<_>>()
            };
            let alone = |from: usize| linear(&first(&z, a.heads, a.value_dim), &columns(from), None);
            acts.check(
                "head_out of head 0",
                &alone(0),
                &first(&shares, a.heads, width),
                &[("another head's columns", alone(a.value_dim))],
            );
        }
    }
    assert!(checked >= 3, "some layers project their heads");
}
