//! The arithmetic identities inside attention and MLPs (points.md §7, numbers 1, 3, 6, 7 and 8), each with wrong layouts that must fail.

use crate::naive::{
    Seen, activate, attention, heads_moved, layers, learned, mlp, plus, product, refusal, scaled, sigmoid, soft_cap,
    softmax, softplus, times,
};
use pellucid_engine::architecture::{Activation, Alibi, Attention, Experts, Mlp};

/// `probs @ value` with `key_head` saying whose values a head mixes.
fn mixed(a: &Attention, probs: &[f64], value: &[f64], tokens: usize, key_head: impl Fn(usize) -> usize) -> Vec<f64> {
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

/// Heads in pairs, the second half subtracted from the first: each pair mixes the values of both its heads.
fn differing(seen: &Seen, weights: &str, a: &Attention, start: f32, probs: &[f64], value: &[f64]) -> Vec<f64> {
    let of = |name: &str| seen.vector(&format!("{weights}.attn.lambda_{name}")).expect("a learned vector");
    let dot = |a: &str, b: &str| times(&of(a), &of(b)).iter().sum::<f64>();
    let by = dot("q1", "k1").exp() - dot("q2", "k2").exp() + start as f64;
    let (n, half, group) = (seen.tokens, a.heads / 2, a.heads / a.kv_heads);
    let (first, second) = probs.split_at(probs.len() / 2);
    let weights: Vec<f64> = first.iter().zip(second).map(|(a, b)| a - by * b).collect();
    // Both heads of a pair with the pair's weights; then a pair's two values stand side by side.
    let both = mixed(a, &[&weights[..], &weights[..]].concat(), value, n, |head| head / group);
    let dim = a.value_dim;
    let token = |z: &[f64]| {
        (0..half).flat_map(|h| [&z[h * dim..][..dim], &z[(h + half) * dim..][..dim]].concat()).collect::<Vec<f64>>()
    };
    both.chunks_exact(a.heads * dim).flat_map(token).collect()
}

/// What attention makes of the mixed values before its output projection.
fn finished(seen: &Seen, layer: usize, weights: &str, a: &Attention, mut z: Vec<f64>) -> Vec<f64> {
    if let Some(norm) = a.out_norm {
        let group = if a.differential.is_some() { 2 * a.value_dim } else { a.heads * a.value_dim };
        z = seen.norm_of(&z, &format!("{weights}.attn.out_norm"), norm, group);
    }
    z = scaled(&z, a.differential.map(|start| 1.0 - start));
    if let Some(gate) = a.gate {
        let numbers = seen.layer(layer, "attn_gate");
        let each = z.len() / numbers.len();
        z.iter_mut().enumerate().for_each(|(i, z)| *z *= activate(gate.activation, numbers[i / each]));
    }
    z
}

#[test]
fn identity_1_attention_weights_times_values_are_z() {
    let mut checked = 0;
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let Some((a, weights)) = attention(layer, spec) else {
                assert!(refusal(&case, &format!("layers.{layer}.z")).contains("no softmax attention"), "{}", case.name);
                continue;
            };
            if a.latent.is_some() {
                // Heads expand one compressed vector, so there are no values to mix.
                for point in ["k", "value"] {
                    let said = refusal(&case, &format!("layers.{layer}.{point}"));
                    assert!(said.contains("latent attention has no keys and values of its own"), "{said}");
                }
                continue;
            }
            assert!(a.heads > 1, "one head would hide a wrong order");
            let (probs, value, z) =
                (seen.layer(layer, "attn_probs"), seen.layer(layer, "value"), seen.layer(layer, "z"));
            let square = seen.tokens * seen.tokens;
            let moved = [&probs[square..], &probs[..square]].concat();
            let (group, n) = (a.heads / a.kv_heads, seen.tokens);
            checked += 1;
            if let Some(start) = a.differential {
                let made = |probs: &[f64]| {
                    finished(&seen, layer, &weights, a, differing(&seen, &weights, a, start, probs, &value))
                };
                let plain = finished(&seen, layer, &weights, a, mixed(a, &probs, &value, n, |head| head / group));
                let wrong = [("heads moved on by one", made(&moved)), ("nothing subtracted", plain)];
                seen.check("(probs - λ partner's probs) @ values = z", &made(&probs), &z, &wrong);
                continue;
            }
            let made = |probs: &[f64], key_head: &dyn Fn(usize) -> usize| {
                finished(&seen, layer, &weights, a, mixed(a, probs, &value, n, key_head))
            };
            let mut wrong = vec![("heads moved on by one", made(&moved, &|head| head / group))];
            if a.kv_heads > 1 {
                wrong.push(("values of the next key head", made(&probs, &|head| (head / group + 1) % a.kv_heads)));
            }
            if group > 1 && a.kv_heads > 1 {
                wrong.push(("key heads tiled instead of repeated", made(&probs, &|head| head % a.kv_heads)));
            }
            if a.gate.is_some() || a.out_norm.is_some() {
                wrong.push(("no gate and no norm", mixed(a, &probs, &value, n, |head| head / group)));
            }
            seen.check("probs @ value = z", &made(&probs, &|head| head / group), &z, &wrong);
        }
    }
    assert!(checked >= 3, "some attention has values");
}

/// What the chosen experts make of their input, with all that stands around them; `shift` and `share` are 0 and the
/// weights where nothing is wrong.
fn experts(
    seen: &Seen,
    layer: usize,
    spec: &Experts,
    x: &[f64],
    shift: usize,
    share: &dyn Fn(usize) -> f64,
) -> Vec<f64> {
    let name = |part: &str| format!("layers.{layer}.mlp.{part}");
    let read = if spec.latent.is_some() { seen.product(x, &name("latent_in")) } else { x.to_vec() };
    let width = read.len() / seen.tokens;
    let mut sum = vec![0.0; read.len()];
    for (slot, choice) in seen.layer(layer, "expert_indices").iter().enumerate() {
        let (expert, token) = ((*choice as usize + shift) % spec.count, slot / spec.chosen);
        let (before, after) = if spec.routing.on_input { (share(slot), 1.0) } else { (1.0, share(slot)) };
        let x: Vec<f64> = read[token * width..][..width].iter().map(|x| x * before).collect();
        let out = seen.dense(&spec.expert, &name(&format!("experts.{expert}")), &x);
        sum[token * width..][..width].iter_mut().zip(out).for_each(|(y, x)| *y += x * after);
    }
    let mut out = if spec.latent.is_some() { seen.product(&sum, &name("latent_out")) } else { sum };
    if spec.sum_bias {
        out = learned(&out, None, Some(&seen.matrix(&name("sum_bias"))[0]));
    }
    if let Some(shared) = spec.shared {
        let mut besides = seen.dense(&shared.mlp, &name("shared"), x);
        if shared.gated {
            let gates = seen.product(x, &name("shared_gate"));
            let each = besides.len() / seen.tokens;
            besides.iter_mut().enumerate().for_each(|(i, y)| *y *= sigmoid(gates[i / each]));
        }
        out = plus(&out, &besides);
    }
    scaled(&out, spec.scale)
}

#[test]
fn identity_3_the_down_projection_of_the_neurons_is_mlp_out() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let at = |point| seen.layer(layer, point);
            let found = mlp(layer, spec);
            let weights = found.as_ref().map(|(_, weights)| format!("{weights}.mlp")).unwrap_or_default();
            let name = |part: &str| format!("{weights}.{part}");
            match found.as_ref().map(|(mlp, _)| mlp) {
                None => {
                    for point in ["mlp_in", "mlp_pre", "mlp_act", "mlp_out"] {
                        let said = refusal(&case, &format!("layers.{layer}.{point}"));
                        assert!(said.contains("this layer has no MLP"), "{said}");
                    }
                }
                Some(Mlp::Experts(spec)) => {
                    for point in ["mlp_pre", "mlp_act"] {
                        let said = refusal(&case, &format!("layers.{layer}.{point}"));
                        assert!(said.contains("neurons do not exist at block level in a layer of experts"), "{said}");
                    }
                    let (x, shares) = (at("mlp_in"), at("expert_weights"));
                    let made =
                        |shift: usize, by: f64| experts(&seen, layer, spec, &x, shift, &|slot| by * shares[slot]);
                    let mut wrong = vec![("double shares", made(0, 2.0))];
                    if spec.count > 1 {
                        wrong.push(("the next expert", made(1, 1.0)));
                    }
                    seen.check("the chosen experts = mlp_out", &made(0, 1.0), &at("mlp_out"), &wrong);
                }
                Some(Mlp::Dense(dense)) => {
                    let (pre, act) = (at("mlp_pre"), at("mlp_act"));
                    let wrong = [("mlp_pre in place of mlp_act", seen.down(dense, &weights, &pre))];
                    seen.check("down(mlp_act) = mlp_out", &seen.down(dense, &weights, &act), &at("mlp_out"), &wrong);
                    let made = |pre: &[f64], linear: Option<&[f64]>| seen.neurons(dense, &weights, pre, linear);
                    if dense.gated {
                        let linear = at("mlp_pre_linear");
                        let wrong = [("the branches swapped", made(&linear, Some(&pre)))];
                        seen.check("act(mlp_pre) · mlp_pre_linear = mlp_act", &made(&pre, Some(&linear)), &act, &wrong);
                    } else {
                        let said = refusal(&case, &format!("layers.{layer}.mlp_pre_linear"));
                        assert!(said.contains("not a gated one; use mlp_pre or mlp_act"), "{said}");
                        seen.check(
                            "act(mlp_pre) = mlp_act",
                            &made(&pre, None),
                            &act,
                            &[("no activation", pre.clone())],
                        );
                    }
                }
                Some(Mlp::ChannelMix { .. }) => {
                    let (x, pre, act) = (at("mlp_in"), at("mlp_pre"), at("mlp_act"));
                    // Each token blended with the one before it; nothing stands before the first.
                    let width = x.len() / seen.tokens;
                    let before = [&vec![0.0; width], &x[..x.len() - width]].concat();
                    let mix = seen.vector(&name("mix_gate")).expect("learned shares");
                    let old: Vec<f64> = mix.iter().map(|share| 1.0 - share).collect();
                    let blended = plus(&learned(&x, Some(&mix), None), &learned(&before, Some(&old), None));
                    let gates = |x: &[f64]| {
                        let raw = seen.product(x, &name("out_gate"));
                        raw.iter().map(|&x| sigmoid(x)).collect::<Vec<f64>>()
                    };
                    let down = seen.product(&act, &name("down"));
                    let wrong = [("no gate", down.clone()), ("a gate of this token alone", times(&gates(&x), &down))];
                    seen.check(
                        "gate · down(mlp_act) = mlp_out",
                        &times(&gates(&blended), &down),
                        &at("mlp_out"),
                        &wrong,
                    );
                    let ours: Vec<f64> = pre.iter().map(|&x| activate(Activation::ReluSquared, x)).collect();
                    seen.check("relu(mlp_pre)² = mlp_act", &ours, &act, &[("no activation", pre.clone())]);
                }
            }
        }
    }
}

/// Whether every query's weights are shares of exactly the keys that it may see (or of so many of them), and whether
/// they leave something for a sink.
fn are_shares(a: &Attention, probs: &[f64], tokens: usize, sees: &dyn Fn(usize, usize) -> bool) -> bool {
    probs.chunks_exact(tokens).enumerate().all(|(line, probs)| {
        let query = line % tokens;
        let total: f64 = probs.iter().sum();
        let whole = if a.sinks { total > 0.0 && total < 1.0 - 1e-5 } else { (total - 1.0).abs() < 1e-5 };
        let visible = (0..tokens).filter(|&key| sees(query, key)).count();
        let kept = a.dynamic_mask.map_or(visible, |mask| mask.kept.min(visible));
        let positive = probs.iter().filter(|p| **p > 0.0).count();
        whole && positive == kept && (0..tokens).all(|key| probs[key] == 0.0 || sees(query, key))
    })
}

#[test]
fn identity_6_attention_weights_are_shares_of_what_a_query_may_see() {
    let (mut slid, mut seen_layers) = (0, 0);
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let Some((a, _)) = attention(layer, spec) else { continue };
            let (probs, n) = (seen.layer(layer, "attn_probs"), seen.tokens);
            let sees = |query: usize, key: usize| {
                let near = key <= query && a.window.is_none_or(|window| query - key < window);
                near && a.chunk.is_none_or(|chunk| query / chunk == key / chunk)
            };
            assert!(
                are_shares(a, &probs, n, &sees),
                "{}: layer {layer} sees what it may not, or not what it may",
                case.name
            );
            let across: Vec<f64> =
                (0..probs.len()).map(|i| probs[i / (n * n) * n * n + i % n * n + i / n % n]).collect();
            // The last query with one key less, where it keeps all that it sees.
            let oldest = (0..n).find(|&key| sees(n - 1, key)).expect("a key");
            let less = |query: usize, key: usize| sees(query, key) && (query, key) != (n - 1, oldest);
            let whole = a.dynamic_mask.is_none_or(|mask| mask.kept >= n);
            assert!(
                !(are_shares(a, &across, n, &sees) || whole && are_shares(a, &probs, n, &less)),
                "{}: queries and keys swapped",
                case.name
            );
            let other = Attention { sinks: !a.sinks, ..a.clone() };
            assert!(!are_shares(&other, &probs, n, &sees), "{}: a sink takes its share or is not there", case.name);
            if oldest > 0 {
                let more = |query: usize, key: usize| sees(query, key) || (query, key) == (n - 1, oldest - 1);
                assert!(!(whole && are_shares(a, &probs, n, &more)), "{}: a wider window", case.name);
                slid += 1;
            }
            seen_layers += 1;
        }
    }
    assert!(slid >= 5 && seen_layers > slid, "some texts are longer than their layers' windows");
}

/// What is added to a head's scores of a key for its position.
fn position_bias(alibi: Option<&Alibi>, head: usize, key: usize) -> f64 {
    let Some(alibi) = alibi else { return 0.0 };
    // To the nearest number of eight binary digits, the even one of two.
    let round = |x: f64| {
        let unit = 2f64.powi(x.abs().max(1e-30).log2().floor() as i32 - 7);
        (x / unit).round_ties_even() * unit
    };
    let (slope, key) = (alibi.slopes[head] as f64, key as f64);
    alibi.rounded.map_or(slope * key, |by| round(round(slope) * round(key)) * by as f64)
}

#[test]
fn identity_7_scores_come_from_rotated_queries_and_keys_and_give_the_weights() {
    let mut checked = 0;
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let (Some((a, weights)), n) = (attention(layer, spec), seen.tokens) else { continue };
            let name = |part: &str| format!("{weights}.attn.{part}");
            let (scores, probs) = (seen.layer(layer, "attn_scores"), seen.layer(layer, "attn_probs"));
            assert!(
                (0..n).all(|q| (0..n).all(|k| (scores[q * n + k] == f64::NEG_INFINITY) == (probs[q * n + k] == 0.0))),
                "{}: masked scores are -inf",
                case.name
            );
            let sinks = seen.vector(&name("sinks"));
            assert_eq!(sinks.is_some(), a.sinks, "{}", case.name);
            let shares = |by: f64, sinks: Option<&Vec<f64>>| {
                let one = |(line, scores): (usize, &[f64])| {
                    // A sink is one more logit, whose share nobody receives.
                    let own = sinks.map(|sinks| sinks[line / n]);
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
            seen.check("softmax(scores) = probs", &shares(1.0, sinks.as_ref()), &probs, &wrong);

            let visible: Vec<usize> = (0..scores.len()).filter(|&i| scores[i].is_finite()).collect();
            let only = |x: &[f64]| visible.iter().map(|&i| x[i]).collect::<Vec<f64>>();
            // A learned mask's numbers, for each key and key head.
            let extra: Option<Vec<f64>> = a.dynamic_mask.map(|_| {
                let rate = seen.vector(&name("mask_rate")).expect("a rate");
                let raw = seen.product(&seen.layer(layer, "value"), &name("mask"));
                raw.iter().enumerate().map(|(i, x)| (rate[i % rate.len()] * softplus(*x)).exp()).collect()
            });
            let group = a.heads / a.kv_heads;
            let made = |q: &[f64], k: &[f64], cap: Option<f32>, alibi: Option<&Alibi>| {
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
            let (q, k, alibi) = (seen.layer(layer, "rot_q"), seen.layer(layer, "rot_k"), a.alibi.as_ref());
            let mut wrong = vec![(
                "heads moved on by one",
                only(&made(&heads_moved(&q, a.heads, a.head_dim), &k, a.soft_cap, alibi)),
            )];
            // Keys that are expanded from a compressed form have no value before their rotation.
            if a.latent.is_none() && (a.rope.is_some() || a.qk_norm.is_some()) {
                wrong.push((
                    "q and k before norm and rotation",
                    only(&made(&seen.layer(layer, "q"), &seen.layer(layer, "k"), a.soft_cap, alibi)),
                ));
            }
            if a.soft_cap.is_some() {
                wrong.push(("no soft cap", only(&made(&q, &k, None, alibi))));
            }
            if a.alibi.is_some() {
                wrong.push(("no position bias", only(&made(&q, &k, a.soft_cap, None))));
            }
            let ours = made(&q, &k, a.soft_cap, alibi);
            if let (Some(mask), Some(extra)) = (a.dynamic_mask, &extra) {
                let bare = |i: usize| ours[i] - extra[i % n * a.kv_heads + i / (n * n) / group];
                wrong.push(("no mask", only(&(0..ours.len()).map(bare).collect::<Vec<_>>())));
                // No key that was dropped has a larger number than one that was kept.
                for (line, scores) in scores.chunks_exact(n).enumerate() {
                    let worth = |key: usize| extra[key * a.kv_heads + line / n / group];
                    let window = a.window.unwrap_or(n);
                    let seen = |key: &usize| *key <= line % n && line % n - key < window;
                    let (kept, dropped): (Vec<usize>, Vec<usize>) =
                        (0..n).filter(seen).partition(|&key| scores[key].is_finite());
                    let least = kept.iter().map(|&key| worth(key)).fold(f64::INFINITY, f64::min);
                    assert!(kept.len() == mask.kept.min(kept.len() + dropped.len()), "{}: how many keys", case.name);
                    assert!(dropped.iter().all(|&key| worth(key) <= least + 1e-6), "{}: which keys", case.name);
                }
            }
            seen.check("rot_q · rot_k = scores", &only(&ours), &only(&scores), &wrong);
            checked += 1;
        }
    }
    assert!(checked >= 3, "some layers attend");
}

#[test]
fn identity_8_the_output_projection_of_z_is_attn_out_and_so_is_the_sum_of_the_heads() {
    let mut checked = 0;
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let Some((a, weights)) = attention(layer, spec) else { continue };
            let name = format!("{weights}.attn.out");
            if a.experts.is_some() {
                // Each token's experts project its heads, and no head has columns of its own: the oracle of random
                // architectures compares them with their definition (crates/engine/tests/it/oracle).
                let said = refusal(&case, &format!("layers.{layer}.head_out"));
                assert!(said.contains("the output projection of this attention is its experts'"), "{said}");
                continue;
            }
            checked += 1;
            let (z, out) = (seen.layer(layer, "z"), seen.layer(layer, "attn_out"));
            let wrong = [("heads moved on by one", seen.product(&heads_moved(&z, a.heads, a.value_dim), &name))];
            seen.check("W_O z = attn_out", &seen.product(&z, &name), &out, &wrong);

            let (shares, width) = (seen.layer(layer, "head_out"), out.len() / seen.tokens);
            let sum = |shares: &[f64], count: usize| {
                let token = |share: &[f64]| {
                    (0..width).map(|unit| (0..count).map(|head| share[head * width + unit]).sum()).collect::<Vec<f64>>()
                };
                let sums: Vec<f64> = shares.chunks_exact(a.heads * width).flat_map(token).collect();
                learned(&sums, None, seen.vector(&format!("{name}.bias")).as_deref())
            };
            seen.check(
                "the heads' shares + b = attn_out",
                &sum(&shares, a.heads),
                &out,
                &[("one head left out", sum(&shares, a.heads - 1))],
            );
            // A share is its own head's: the first head's z alone, through its columns.
            let first = |x: &[f64], heads: usize, dim: usize| {
                x.chunks_exact(heads * dim).flat_map(|x| x[..dim].to_vec()).collect::<Vec<f64>>()
            };
            let columns = |from: usize| {
                seen.matrix(&name).iter().map(|row| row[from..from + a.value_dim].to_vec()).collect::<Vec<_>>()
            };
            let alone = |from: usize| product(&first(&z, a.heads, a.value_dim), &columns(from), None);
            seen.check(
                "head_out of head 0",
                &alone(0),
                &first(&shares, a.heads, width),
                &[("another head's columns", alone(a.value_dim))],
            );
        }
    }
    assert!(checked >= 3, "some layers project their heads");
}
