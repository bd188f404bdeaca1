//! The arithmetic identities between sites (points.md §7, numbers 1 to 11), each with wrong layouts or sites that must fail.

#[allow(dead_code)] // each test file uses its own part of this module
mod golden;
#[allow(dead_code)]
mod naive;

use golden::Case;
use naive::{Seen, activate, heads_moved, learned, normed, plus, product, same, soft_cap, softmax};
use pellucid_engine::Plan;
use pellucid_engine::architecture::{Attention, Layer, Mlp, Norm};

fn layers(case: &Case) -> impl Iterator<Item = (usize, &Layer)> {
    case.loaded.model.program().architecture().layers.iter().enumerate()
}

/// What it says when a site is asked for that the model does not have.
fn refusal(case: &Case, site: &str) -> String {
    let error = case.loaded.model.run(std::slice::from_ref(&case.ids), &Plan::capture([site]), &Default::default()).expect_err("a refusal");
    assert!(error.remedy().is_some_and(|remedy| !remedy.is_empty()), "{}: {site} is refused without a remedy", case.name);
    error.to_string()
}

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
            let (probs, value, z) = (seen.layer(layer, "attn_probs"), seen.layer(layer, "value"), seen.layer(layer, "z"));
            let square = seen.tokens * seen.tokens;
            let moved = [&probs[square..], &probs[..square]].concat();
            let (group, n) = (a.heads / a.kv_heads, seen.tokens);
            let mut wrong = vec![("heads moved on by one", mixed(a, &moved, &value, n, |head| head / group))];
            if a.kv_heads > 1 {
                wrong.push(("values of the next key head", mixed(a, &probs, &value, n, |head| (head / group + 1) % a.kv_heads)));
            }
            if group > 1 && a.kv_heads > 1 {
                wrong.push(("key heads tiled instead of repeated", mixed(a, &probs, &value, n, |head| head % a.kv_heads)));
            }
            seen.check("probs @ value = z", &mixed(a, &probs, &value, n, |head| head / group), &z, &wrong);
        }
    }
}

#[test]
fn identity_2_contributions_add_up_to_the_stream() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let at = |point| seen.layer(layer, point);
            let sum = |attn, mlp| plus(&plus(&at("resid_pre"), &at(attn)), &at(mlp));
            if spec.mlp_stream_norm.is_some() {
                // The original transformer norms the sum itself, so the plain identity must not hold there.
                assert!(!same(&sum("attn_out_post", "mlp_out_post"), &at("resid_post")), "{}: no norm of the stream", case.name);
                continue;
            }
            let mut wrong = vec![
                ("attention left out", plus(&at("resid_pre"), &at("mlp_out_post"))),
                ("the MLP left out", plus(&at("resid_pre"), &at("attn_out_post"))),
            ];
            if spec.attn_post_norm.is_some() || spec.residual_scale.is_some() {
                wrong.push(("attn_out in place of attn_out_post", sum("attn_out", "mlp_out_post")));
                wrong.push(("mlp_out in place of mlp_out_post", sum("attn_out_post", "mlp_out")));
            } else {
                assert_eq!(at("attn_out"), at("attn_out_post"), "{}: nothing follows attention", case.name);
            }
            seen.check("resid_pre + contributions = resid_post", &sum("attn_out_post", "mlp_out_post"), &at("resid_post"), &wrong);
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
                        for slot in 0..choices.len() {
                            let (expert, token) = ((choices[slot] as usize + shift) % experts, slot / chosen);
                            let x = &x[token * width..][..width];
                            let (gate, up) = (seen.product(x, &name(&format!("experts.{expert}.gate"))), seen.product(x, &name(&format!("experts.{expert}.up"))));
                            let act: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| activate(activation, *g) * u * share(slot)).collect();
                            let out = seen.product(&act, &name(&format!("experts.{expert}.down")));
                            sum[token * width..][..width].iter_mut().zip(out).for_each(|(y, x)| *y += x);
                        }
                        sum
                    };
                    let wrong = [("the next expert", output(1, &|slot| shares[slot])), ("double shares", output(0, &|slot| 2.0 * shares[slot]))];
                    seen.check("the chosen experts = mlp_out", &output(0, &|slot| shares[slot]), &at("mlp_out"), &wrong);
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
                        let gated = |gate: &[f64], up: &[f64]| gate.iter().zip(up).map(|(&g, u)| activate(activation, g) * u).collect::<Vec<f64>>();
                        seen.check("act(mlp_pre) · mlp_pre_linear = mlp_act", &gated(&pre, &linear), &act, &[("the branches swapped", gated(&linear, &pre))]);
                    }
                }
            }
        }
    }
}

#[test]
fn identity_4_resid_mid_is_the_stream_after_attention_or_refused() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            if spec.parallel {
                let said = refusal(&case, &format!("layers.{layer}.resid_mid"));
                assert!(said.contains("resid_mid") && said.contains("run in parallel") && said.contains("use resid_pre, attn_out_post or mlp_out_post"), "{said}");
                continue;
            }
            let at = |point| seen.layer(layer, point);
            let sum = plus(&at("resid_pre"), &at("attn_out_post"));
            if let Some(norm) = spec.attn_stream_norm {
                let ours = seen.norm(&sum, &format!("layers.{layer}.attn.stream_norm"), norm);
                seen.check("norm(resid_pre + attn_out_post) = resid_mid", &ours, &at("resid_mid"), &[("no norm", sum)]);
                let sum = plus(&at("resid_mid"), &at("mlp_out_post"));
                let ours = seen.norm(&sum, &format!("layers.{layer}.mlp.stream_norm"), norm);
                seen.check("norm(resid_mid + mlp_out_post) = resid_post", &ours, &at("resid_post"), &[("no norm", sum)]);
                continue;
            }
            let mut wrong = vec![("the MLP's contribution", plus(&at("resid_pre"), &at("mlp_out_post")))];
            if spec.attn_post_norm.is_some() {
                wrong.push(("attn_out in place of attn_out_post", plus(&at("resid_pre"), &at("attn_out"))));
            }
            seen.check("resid_pre + attn_out_post = resid_mid", &sum, &at("resid_mid"), &wrong);
        }
    }
}

#[test]
fn identity_5_a_layer_enters_where_the_one_before_left() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for layer in 1..case.layers() {
            assert_eq!(seen.layer(layer - 1, "resid_post"), seen.layer(layer, "resid_pre"), "{}", case.name);
            assert!(!same(&seen.layer(layer, "resid_post"), &seen.layer(layer, "resid_pre")), "{}: layer {layer} does nothing", case.name);
        }
    }
}

/// Whether every query's weights are shares of exactly the keys that a window leaves it.
fn are_shares(probs: &[f64], tokens: usize, window: usize) -> bool {
    let visible = |query: usize, key: usize| key <= query && query - key < window;
    probs.chunks_exact(tokens).enumerate().all(|(line, probs)| {
        let query = line % tokens;
        (probs.iter().sum::<f64>() - 1.0).abs() < 1e-5 && (0..tokens).all(|key| visible(query, key) == (probs[key] > 0.0))
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
            assert!(are_shares(&probs, n, window), "{}: layer {layer} sees what it may not, or not what it may", case.name);
            let across: Vec<f64> = (0..probs.len()).map(|i| probs[i / (n * n) * n * n + i % n * n + i / n % n]).collect();
            assert!(!are_shares(&across, n, window) && !are_shares(&probs, n, window - 1), "{}: queries and keys swapped", case.name);
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
            assert!((0..n).all(|q| (0..n).all(|k| (scores[q * n + k] == f64::NEG_INFINITY) == (probs[q * n + k] == 0.0))), "{}: masked scores are -inf", case.name);
            let shares = |by: f64| scores.chunks_exact(n).flat_map(|line| softmax(&line.iter().map(|x| x * by).collect::<Vec<_>>())).collect::<Vec<f64>>();
            seen.check("softmax(scores) = probs", &shares(1.0), &probs, &[("twice the scale", shares(2.0)), ("no scale", shares((a.head_dim as f64).sqrt()))]);

            let visible: Vec<usize> = (0..scores.len()).filter(|&i| scores[i].is_finite()).collect();
            let only = |x: &[f64]| visible.iter().map(|&i| x[i]).collect::<Vec<f64>>();
            let made = |q: &[f64], k: &[f64], cap: Option<f32>, slopes: Option<&Vec<f32>>| {
                let (group, dim) = (a.heads / a.kv_heads, a.head_dim);
                let one = |i: usize| {
                    let (head, query, key) = (i / (n * n), i / n % n, i % n);
                    let (q, k) = (&q[(query * a.heads + head) * dim..][..dim], &k[(key * a.kv_heads + head / group) * dim..][..dim]);
                    let product: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                    soft_cap(&[product * a.scale as f64], cap)[0] + slopes.map_or(0.0, |s| s[head] as f64 * key as f64)
                };
                (0..scores.len()).map(one).collect::<Vec<f64>>()
            };
            let (q, k, slopes) = (seen.layer(layer, "rot_q"), seen.layer(layer, "rot_k"), a.alibi.as_ref());
            let mut wrong = vec![("heads moved on by one", only(&made(&heads_moved(&q, a.heads, a.head_dim), &k, a.soft_cap, slopes)))];
            if a.rope.is_some() || a.qk_norm.is_some() {
                wrong.push(("q and k before norm and rotation", only(&made(&seen.layer(layer, "q"), &seen.layer(layer, "k"), a.soft_cap, slopes))));
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
                let token = |share: &[f64]| (0..width).map(|unit| (0..count).map(|head| share[head * width + unit]).sum()).collect::<Vec<f64>>();
                let sums: Vec<f64> = shares.chunks_exact(a.heads * width).flat_map(token).collect();
                learned(&sums, None, seen.vector(&format!("{name}.bias")).as_deref())
            };
            seen.check("the heads' shares + b = attn_out", &sum(&shares, a.heads), &out, &[("one head left out", sum(&shares, a.heads - 1))]);
            // A share is its own head's: the first head's z alone, through its columns.
            let first = |x: &[f64], heads: usize, dim: usize| x.chunks_exact(heads * dim).flat_map(|x| x[..dim].to_vec()).collect::<Vec<f64>>();
            let columns = |from: usize| seen.matrix(&name).iter().map(|row| row[from..from + a.value_dim].to_vec()).collect::<Vec<_>>();
            let alone = |from: usize| product(&first(&z, a.heads, a.value_dim), &columns(from), None);
            seen.check("head_out of head 0", &alone(0), &first(&shares, a.heads, width), &[("another head's columns", alone(a.value_dim))]);
        }
    }
}

#[test]
fn identity_9_the_head_of_the_final_norm_is_the_logits() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        let architecture = case.loaded.model.program().architecture();
        let (last, head) = (seen.layer(case.layers() - 1, "resid_post"), &architecture.head);
        let table = if head.tied { "embed" } else { "head" };
        let decode = |x: &[f64]| {
            let x = if head.table_width.is_some() { seen.product(x, "head.project") } else { x.to_vec() };
            let scale = head.scale.unwrap_or(1.0) as f64;
            let bare = product(&x, &seen.matrix(table), seen.vector("head.bias").as_deref());
            (bare.clone(), soft_cap(&bare.iter().map(|x| x * scale).collect::<Vec<_>>(), head.soft_cap))
        };
        let normed = architecture.final_norm.map_or(last.clone(), |norm| seen.norm(&last, "final_norm", norm));
        let (lm_head, logits) = (seen.site("lm_head"), seen.site("logits"));
        let mut wrong = vec![("the layer before", decode(&seen.layer(case.layers() - 2, "resid_post")).1)];
        if let Some(norm) = architecture.final_norm {
            seen.check("norm(resid_post) = final_norm", &normed, &seen.site("final_norm"), &[("no norm", last.clone())]);
            wrong.push(("no final norm", decode(&last).1));
            wrong.push(("two final norms", decode(&seen.norm(&normed, "final_norm", norm)).1));
        } else {
            assert!(refusal(&case, "final_norm").contains("no final norm"), "{}", case.name);
        }
        if head.soft_cap.is_some() {
            wrong.push(("no soft cap", lm_head.clone()));
        }
        seen.check("head(final_norm) = lm_head", &decode(&normed).0, &lm_head, &[]);
        seen.check("head(final_norm), capped = logits", &decode(&normed).1, &logits, &wrong);
        let best = |x: &[f64]| x.chunks_exact(architecture.vocab).map(|x| (0..x.len()).max_by(|&a, &b| x[a].total_cmp(&x[b]))).collect::<Vec<_>>();
        assert_eq!(best(&decode(&normed).1), best(&logits), "{}: the lens of the last layer is the model", case.name);
    }
}

#[test]
fn identity_10_norms_divide_then_apply_their_gain() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        let width = case.loaded.model.program().architecture().width;
        let check = |place: &str, weights: &str, norm: Norm, input: &str, out: &str| {
            let (gain, bias) = (seen.vector(&format!("{weights}.gain")), seen.vector(&format!("{weights}.bias")));
            let (x, ours) = (seen.site(input), seen.site(&format!("{place}_normed")));
            let (values, scales) = normed(&x, width, norm);
            seen.check("the scale", &scales, &seen.site(&format!("{place}_scale")), &[]);
            seen.check("x / scale = normed", &values, &ours, &[("the gain already in", seen.site(out))]);
            let gained = |by: f64| gain.as_ref().map(|gain| gain.iter().map(|g| g + by).collect::<Vec<f64>>());
            let with = |gain: Option<Vec<f64>>| learned(&ours, gain.as_deref(), bias.as_deref());
            let wrong = [("one more in the gain", with(gained(1.0))), ("one less in the gain", with(gained(-1.0)))];
            seen.check("normed · gain + bias = out", &with(gained(0.0)), &seen.site(out), &wrong);
        };
        for (layer, spec) in layers(&case) {
            let at = |point: &str| format!("layers.{layer}.{point}");
            if let Some(norm) = spec.attn_norm {
                check(&at("attn"), &at("attn.norm"), norm, &at("resid_pre"), &at("attn_in"));
            } else {
                assert_eq!(seen.layer(layer, "attn_in"), seen.layer(layer, "resid_pre"), "{}: attention reads the stream itself", case.name);
                assert!(refusal(&case, &at("attn_normed")).contains("no norm before attention"), "{}", case.name);
            }
            if let Some(norm) = spec.mlp_norm {
                check(&at("mlp"), &at("mlp.norm"), norm, &at(if spec.parallel { "resid_pre" } else { "resid_mid" }), &at("mlp_in"));
            } else {
                assert!(refusal(&case, &at("mlp_scale")).contains("no norm of its own before the MLP"), "{}", case.name);
            }
        }
        if let Some(norm) = case.loaded.model.program().architecture().final_norm {
            check("final", "final_norm", norm, &format!("layers.{}.resid_post", case.layers() - 1), "final_norm");
        }
    }
}

#[test]
fn identity_11_embeddings_and_all_contributions_add_up_to_the_last_stream() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        let embedding = &case.loaded.model.program().architecture().embedding;
        let scaled = |by: f64| seen.site("embed").iter().map(|x| x * by).collect::<Vec<f64>>();
        let scale = embedding.scale.unwrap_or(1.0) as f64;
        let projected = |x: Vec<f64>| if embedding.table_width.is_some() { seen.product(&x, "embed.project") } else { x };
        let mut start = projected(scaled(scale));
        let mut wrong = vec![("twice the embedding", projected(scaled(2.0 * scale)))];
        if embedding.scale.is_some() {
            wrong.push(("no embedding scale", projected(scaled(1.0))));
        }
        match embedding.positions {
            Some(_) => {
                wrong = vec![("no positions", start.clone())];
                start = plus(&start, &seen.site("pos_embed"));
            }
            None => assert!(refusal(&case, "pos_embed").contains("no learned absolute positions"), "{}", case.name),
        }
        if let Some(norm) = embedding.norm {
            wrong = vec![("no norm of the embedding", start.clone())];
            start = seen.norm(&start, "embed.norm", norm);
        }
        seen.check("embeddings = resid_pre of layer 0", &start, &seen.layer(0, "resid_pre"), &wrong);
        if layers(&case).any(|(_, spec)| spec.mlp_stream_norm.is_some()) {
            continue;
        }
        let all = |start: Vec<f64>, depth: usize| {
            (0..depth).flat_map(|layer| ["attn_out_post", "mlp_out_post"].map(|point| seen.layer(layer, point))).fold(start, |sum, x| plus(&sum, &x))
        };
        let truth = seen.layer(case.layers() - 1, "resid_post");
        let wrong = [("one layer left out", all(start.clone(), case.layers() - 1))];
        seen.check("embeddings + all contributions = the last stream", &all(start, case.layers()), &truth, &wrong);
    }
}
