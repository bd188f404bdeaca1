//! The arithmetic identities of the stream and the model's ends (points.md §7, numbers 2, 4, 5, 9, 10 and 11), each with wrong sites that
//! must fail. Those inside the sublayers are in sublayers.rs, those of writing in writes.rs.

#[allow(dead_code)] // each test file uses its own part of this module
mod golden;
#[allow(dead_code)]
mod naive;

use naive::{Seen, layers, learned, normed, plus, product, refusal, same, soft_cap};
use pellucid_engine::architecture::{Gain, Norm};

#[test]
fn identity_2_contributions_add_up_to_the_stream() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let at = |point| seen.layer(layer, point);
            let sum = |attn, mlp| plus(&plus(&at("resid_pre"), &at(attn)), &at(mlp));
            if spec.mlp_stream_norm.is_some() {
                // The original transformer norms the sum itself, so the plain identity must not hold there.
                assert!(
                    !same(&sum("attn_out_post", "mlp_out_post"), &at("resid_post")),
                    "{}: no norm of the stream",
                    case.name
                );
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
            seen.check(
                "resid_pre + contributions = resid_post",
                &sum("attn_out_post", "mlp_out_post"),
                &at("resid_post"),
                &wrong,
            );
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
                assert!(
                    said.contains("resid_mid")
                        && said.contains("run in parallel")
                        && said.contains("use resid_pre, attn_out_post or mlp_out_post"),
                    "{said}"
                );
                continue;
            }
            let at = |point| seen.layer(layer, point);
            let sum = plus(&at("resid_pre"), &at("attn_out_post"));
            if let Some(norm) = spec.attn_stream_norm {
                let ours = seen.norm(&sum, &format!("layers.{layer}.attn.stream_norm"), norm);
                seen.check("norm(resid_pre + attn_out_post) = resid_mid", &ours, &at("resid_mid"), &[("no norm", sum)]);
                let sum = plus(&at("resid_mid"), &at("mlp_out_post"));
                let ours = seen.norm(&sum, &format!("layers.{layer}.mlp.stream_norm"), norm);
                seen.check(
                    "norm(resid_mid + mlp_out_post) = resid_post",
                    &ours,
                    &at("resid_post"),
                    &[("no norm", sum)],
                );
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
            assert!(
                !same(&seen.layer(layer, "resid_post"), &seen.layer(layer, "resid_pre")),
                "{}: layer {layer} does nothing",
                case.name
            );
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
            seen.check(
                "norm(resid_post) = final_norm",
                &normed,
                &seen.site("final_norm"),
                &[("no norm", last.clone())],
            );
            wrong.push(("no final norm", decode(&last).1));
            // Norming twice is norming once where nothing is learned.
            if norm.gain != Gain::None {
                wrong.push(("two final norms", decode(&seen.norm(&normed, "final_norm", norm)).1));
            }
        } else {
            assert!(refusal(&case, "final_norm").contains("no final norm"), "{}", case.name);
        }
        if head.soft_cap.is_some() {
            wrong.push(("no soft cap", lm_head.clone()));
        }
        seen.check("head(final_norm) = lm_head", &decode(&normed).0, &lm_head, &[]);
        seen.check("head(final_norm), capped = logits", &decode(&normed).1, &logits, &wrong);
        let best = |x: &[f64]| {
            x.chunks_exact(architecture.vocab)
                .map(|x| (0..x.len()).max_by(|&a, &b| x[a].total_cmp(&x[b])))
                .collect::<Vec<_>>()
        };
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
            // A norm without a gain has nothing after the division, and no wrong gain to be told from the right one.
            if norm.gain == Gain::None {
                seen.check("x / scale = normed", &values, &ours, &[("the input itself", x.clone())]);
                assert_eq!(ours, seen.site(out), "{}: nothing follows the division", case.name);
                return;
            }
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
                assert_eq!(
                    seen.layer(layer, "attn_in"),
                    seen.layer(layer, "resid_pre"),
                    "{}: attention reads the stream itself",
                    case.name
                );
                assert!(refusal(&case, &at("attn_normed")).contains("no norm before attention"), "{}", case.name);
            }
            if let Some(norm) = spec.mlp_norm {
                check(
                    &at("mlp"),
                    &at("mlp.norm"),
                    norm,
                    &at(if spec.parallel { "resid_pre" } else { "resid_mid" }),
                    &at("mlp_in"),
                );
            } else {
                assert!(
                    refusal(&case, &at("mlp_scale")).contains("no norm of its own before the MLP"),
                    "{}",
                    case.name
                );
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
        let projected =
            |x: Vec<f64>| if embedding.table_width.is_some() { seen.product(&x, "embed.project") } else { x };
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
            (0..depth)
                .flat_map(|layer| ["attn_out_post", "mlp_out_post"].map(|point| seen.layer(layer, point)))
                .fold(start, |sum, x| plus(&sum, &x))
        };
        let truth = seen.layer(case.layers() - 1, "resid_post");
        let wrong = [("one layer left out", all(start.clone(), case.layers() - 1))];
        seen.check("embeddings + all contributions = the last stream", &all(start, case.layers()), &truth, &wrong);
    }
}
