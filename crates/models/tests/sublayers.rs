//! The arithmetic identities inside attention and MLPs (points.md §7, numbers 1, 3, 6, 7 and 8), each with wrong layouts that must fail.

#[allow(dead_code)] // each test file uses its own part of this module
mod golden;
#[allow(dead_code)]
mod naive;

use naive::{Seen, activate, heads_moved, layers, learned, product, refusal, soft_cap, softmax};
use pellucid_engine::architecture::{Attention, Mlp};

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

#[test]
fn identity_1_attention_weights_times_values_are_z() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let a = &spec.attention;
            assert!(a.heads > 1, "one head would hide a wrong order");
            let (probs, value, z) =
                (seen.layer(layer, "attn_probs"), seen.layer(layer, "value"), seen.layer(layer, "z"));
            let square = seen.tokens * seen.tokens;
            let moved = [&probs[square..], &probs[..square]].concat();
            let (group, n) = (a.heads / a.kv_heads, seen.tokens);
            let mut wrong = vec![("heads moved on by one", mixed(a, &moved, &value, n, |head| head / group))];
            if a.kv_heads > 1 {
                wrong.push((
                    "values of the next key head",
                    mixed(a, &probs, &value, n, |head| (head / group + 1) % a.kv_heads),
                ));
            }
            if group > 1 && a.kv_heads > 1 {
                wrong.push((
                    "key heads tiled instead of repeated",
                    mixed(a, &probs, &value, n, |head| head % a.kv_heads),
                ));
            }
            seen.check("probs @ value = z", &mixed(a, &probs, &value, n, |head| head / group), &z, &wrong);
        }
    }
}

#[test]
fn identity_3_the_down_projection_of_the_neurons_is_mlp_out() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let at = |point| seen.layer(layer, point);
            let name = |part: &str| format!("layers.{layer}.mlp.{part}");
            match spec.mlp {
                Mlp::Experts { experts, chosen, activation, .. } => {
                    for point in ["mlp_pre", "mlp_act"] {
                        let said = refusal(&case, &format!("layers.{layer}.{point}"));
                        assert!(said.contains("neurons do not exist at block level in a layer of experts"), "{said}");
                    }
                    let (x, shares, choices) = (at("mlp_in"), at("expert_weights"), at("expert_indices"));
                    let output = |shift: usize, share: &dyn Fn(usize) -> f64| {
                        let width = x.len() / seen.tokens;
                        let mut sum = vec![0.0; x.len()];
                        for (slot, choice) in choices.iter().enumerate() {
                            let (expert, token) = ((*choice as usize + shift) % experts, slot / chosen);
                            let x = &x[token * width..][..width];
                            let (gate, up) = (
                                seen.product(x, &name(&format!("experts.{expert}.gate"))),
                                seen.product(x, &name(&format!("experts.{expert}.up"))),
                            );
                            let act: Vec<f64> =
                                gate.iter().zip(&up).map(|(g, u)| activate(activation, *g) * u * share(slot)).collect();
                            let out = seen.product(&act, &name(&format!("experts.{expert}.down")));
                            sum[token * width..][..width].iter_mut().zip(out).for_each(|(y, x)| *y += x);
                        }
                        sum
                    };
                    let wrong = [
                        ("the next expert", output(1, &|slot| shares[slot])),
                        ("double shares", output(0, &|slot| 2.0 * shares[slot])),
                    ];
                    seen.check(
                        "the chosen experts = mlp_out",
                        &output(0, &|slot| shares[slot]),
                        &at("mlp_out"),
                        &wrong,
                    );
                }
                Mlp::Plain { activation, .. } | Mlp::Gated { activation, .. } => {
                    let (pre, act) = (at("mlp_pre"), at("mlp_act"));
                    let wrong = [("mlp_pre in place of mlp_act", seen.product(&pre, &name("down")))];
                    seen.check("down(mlp_act) = mlp_out", &seen.product(&act, &name("down")), &at("mlp_out"), &wrong);
                    if matches!(spec.mlp, Mlp::Plain { .. }) {
                        let said = refusal(&case, &format!("layers.{layer}.mlp_pre_linear"));
                        assert!(said.contains("not a gated one; use mlp_pre or mlp_act"), "{said}");
                        let ours: Vec<f64> = pre.iter().map(|&x| activate(activation, x)).collect();
                        seen.check("act(mlp_pre) = mlp_act", &ours, &act, &[("no activation", pre)]);
                    } else {
                        let linear = at("mlp_pre_linear");
                        let gated = |gate: &[f64], up: &[f64]| {
                            gate.iter().zip(up).map(|(&g, u)| activate(activation, g) * u).collect::<Vec<f64>>()
                        };
                        seen.check(
                            "act(mlp_pre) · mlp_pre_linear = mlp_act",
                            &gated(&pre, &linear),
                            &act,
                            &[("the branches swapped", gated(&linear, &pre))],
                        );
                    }
                }
            }
        }
    }
}

/// Whether every query's weights are shares of exactly the keys that a window leaves it.
fn are_shares(probs: &[f64], tokens: usize, window: usize) -> bool {
    let visible = |query: usize, key: usize| key <= query && query - key < window;
    probs.chunks_exact(tokens).enumerate().all(|(line, probs)| {
        let query = line % tokens;
        (probs.iter().sum::<f64>() - 1.0).abs() < 1e-5
            && (0..tokens).all(|key| visible(query, key) == (probs[key] > 0.0))
    })
}

#[test]
fn identity_6_attention_weights_are_shares_of_what_a_query_may_see() {
    let mut slid = 0;
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let (probs, n) = (seen.layer(layer, "attn_probs"), seen.tokens);
            let window = spec.attention.window.unwrap_or(n).min(n);
            assert!(
                are_shares(&probs, n, window),
                "{}: layer {layer} sees what it may not, or not what it may",
                case.name
            );
            let across: Vec<f64> =
                (0..probs.len()).map(|i| probs[i / (n * n) * n * n + i % n * n + i / n % n]).collect();
            assert!(
                !are_shares(&across, n, window) && !are_shares(&probs, n, window - 1),
                "{}: queries and keys swapped",
                case.name
            );
            if window < n {
                assert!(!are_shares(&probs, n, window + 1), "{}: a wider window", case.name);
                slid += 1;
            }
        }
    }
    assert!(slid >= 5, "some texts are longer than their layers' windows");
}

#[test]
fn identity_7_scores_come_from_rotated_queries_and_keys_and_give_the_weights() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let (a, n) = (&spec.attention, seen.tokens);
            let (scores, probs) = (seen.layer(layer, "attn_scores"), seen.layer(layer, "attn_probs"));
            assert!(
                (0..n).all(|q| (0..n).all(|k| (scores[q * n + k] == f64::NEG_INFINITY) == (probs[q * n + k] == 0.0))),
                "{}: masked scores are -inf",
                case.name
            );
            let shares = |by: f64| {
                scores
                    .chunks_exact(n)
                    .flat_map(|line| softmax(&line.iter().map(|x| x * by).collect::<Vec<_>>()))
                    .collect::<Vec<f64>>()
            };
            seen.check(
                "softmax(scores) = probs",
                &shares(1.0),
                &probs,
                &[("twice the scale", shares(2.0)), ("no scale", shares((a.head_dim as f64).sqrt()))],
            );

            let visible: Vec<usize> = (0..scores.len()).filter(|&i| scores[i].is_finite()).collect();
            let only = |x: &[f64]| visible.iter().map(|&i| x[i]).collect::<Vec<f64>>();
            let made = |q: &[f64], k: &[f64], cap: Option<f32>, slopes: Option<&Vec<f32>>| {
                let (group, dim) = (a.heads / a.kv_heads, a.head_dim);
                let one = |i: usize| {
                    let (head, query, key) = (i / (n * n), i / n % n, i % n);
                    let (q, k) = (
                        &q[(query * a.heads + head) * dim..][..dim],
                        &k[(key * a.kv_heads + head / group) * dim..][..dim],
                    );
                    let product: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                    soft_cap(&[product * a.scale as f64], cap)[0] + slopes.map_or(0.0, |s| s[head] as f64 * key as f64)
                };
                (0..scores.len()).map(one).collect::<Vec<f64>>()
            };
            let (q, k, slopes) = (seen.layer(layer, "rot_q"), seen.layer(layer, "rot_k"), a.alibi.as_ref());
            let mut wrong = vec![(
                "heads moved on by one",
                only(&made(&heads_moved(&q, a.heads, a.head_dim), &k, a.soft_cap, slopes)),
            )];
            if a.rope.is_some() || a.qk_norm.is_some() {
                wrong.push((
                    "q and k before norm and rotation",
                    only(&made(&seen.layer(layer, "q"), &seen.layer(layer, "k"), a.soft_cap, slopes)),
                ));
            }
            if a.soft_cap.is_some() {
                wrong.push(("no soft cap", only(&made(&q, &k, None, slopes))));
            }
            if a.alibi.is_some() {
                wrong.push(("no position bias", only(&made(&q, &k, a.soft_cap, None))));
            }
            seen.check("rot_q · rot_k = scores", &only(&made(&q, &k, a.soft_cap, slopes)), &only(&scores), &wrong);
        }
    }
}

#[test]
fn identity_8_the_output_projection_of_z_is_attn_out_and_so_is_the_sum_of_the_heads() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let (a, name) = (&spec.attention, format!("layers.{layer}.attn.out"));
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
}
