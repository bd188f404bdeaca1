//! Arithmetic identities between the sites of the residual stream, the embeddings and the head (2,
//! 4, 5, 9, 10 and 11), each with wrong values that must fail. Identities inside the sublayers are
//! in sublayers.rs, those of writes in writes.rs.

use crate::naive::{Activations, activate, affine, layers, linear, normalize, plus, refusal, same, scale_by, soft_cap};
use pellucid_engine::architecture::{Gain, Layer, Norm, Skip};

/// Recomputes the residual stream through a layer from the contributions of its sublayers. The
/// tests omit or exchange contributions to show that each matters.
struct ResidualStream<'a> {
    acts: &'a Activations<'a>,
    layer: usize,
    spec: &'a Layer,
}

impl ResidualStream<'_> {
    fn at(&self, point: &str) -> Vec<f64> {
        self.acts.layer(self.layer, point)
    }

    fn name(&self, part: &str) -> String {
        format!("layers.{}.{part}", self.layer)
    }

    /// Points that contribute in the first sublayer, and in the whole layer.
    fn contributions(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let first =
            [("attn_out_post", self.spec.attention.is_some()), ("mixer_out_post", self.spec.recurrence.is_some())];
        let first: Vec<_> = first.into_iter().filter(|(_, exists)| *exists).map(|(point, _)| point).collect();
        let all = first.iter().copied().chain(self.spec.mlp.is_some().then_some("mlp_out_post")).collect();
        (first, all)
    }

    /// Input of the first sublayer's norm: the residual stream, plus the output of a shared block.
    fn norm_input(&self) -> Vec<f64> {
        let pre = self.at("resid_pre");
        let with_shared = |_| plus(&pre, &self.acts.linear(&self.at("mlp_out"), &self.name("shared_out")));
        self.spec.shared.as_ref().map_or(pre.clone(), with_shared)
    }

    /// Input of the first sublayer.
    fn sublayer_input(&self) -> Vec<f64> {
        let x = self.norm_input();
        self.spec.attn_norm.map_or(x.clone(), |norm| self.acts.norm(&x, &self.name("attn.norm"), norm))
    }

    /// The residual stream after the first sublayer, before any norm of it.
    fn middle(&self, added: &[Vec<f64>]) -> Vec<f64> {
        let pre = self.at("resid_pre");
        // Without a first sublayer there is no residual connection.
        let start = match self.spec.skip {
            _ if self.contributions().0.is_empty() => pre,
            Skip::Identity => pre,
            Skip::Normed { attn, .. } => scale_by(&self.sublayer_input(), Some(attn)),
            Skip::LearnedGain => self.apply_gain(&pre, "attn.skip"),
        };
        added.iter().fold(start, |sum, x| plus(&sum, x))
    }

    /// The residual stream after the second sublayer, from the one after the first.
    fn end(&self, middle: &[f64], mlp: Option<&[f64]>) -> Vec<f64> {
        let residual = match self.spec.skip {
            _ if self.spec.mlp.is_none() => middle.to_vec(),
            Skip::Identity => middle.to_vec(),
            Skip::Normed { mlp, .. } => {
                let normed = |norm| self.acts.norm(middle, &self.name("mlp.norm"), norm);
                scale_by(&self.spec.mlp_norm.map_or(middle.to_vec(), normed), Some(mlp))
            }
            Skip::LearnedGain => self.apply_gain(middle, "mlp.skip"),
        };
        mlp.map_or(residual.clone(), |mlp| plus(&residual, mlp))
    }

    fn apply_gain(&self, x: &[f64], name: &str) -> Vec<f64> {
        affine(x, self.acts.vector(&self.name(name)).as_deref(), None)
    }

    /// The layer's output from the values of these points: `mlp_…` in the second sublayer, the
    /// others in the first.
    fn output(&self, points: &[&str]) -> Vec<f64> {
        let (mlp, first): (Vec<&&str>, Vec<&&str>) = points.iter().partition(|point| point.starts_with("mlp"));
        let middle = self.middle(&first.iter().map(|point| self.at(point)).collect::<Vec<_>>());
        let mlp = mlp.first().map(|point| self.at(point));
        scale_by(&self.end(&middle, mlp.as_deref()), self.spec.out_scale)
    }

    /// Whether a norm or a multiplier is applied to a sublayer's output before it is added.
    fn is_changed(&self, point: &str) -> bool {
        let (norm, by) = match point {
            "mlp_out_post" => (self.spec.mlp_post_norm, self.spec.mlp_multiplier),
            "mixer_out_post" => (self.spec.attn_post_norm, self.spec.mixer_multiplier),
            _ => (self.spec.attn_post_norm, self.spec.attn_multiplier),
        };
        norm.is_some() || by.is_some_and(|by| by != 1.0)
    }
}

#[test]
fn identity_2_contributions_add_up_to_the_residual_stream() {
    let mut checked = 0;
    for case in golden::all() {
        let acts = Activations::new(&case);
        for (layer, spec) in layers(&case) {
            let stream = ResidualStream { acts: &acts, layer, spec };
            let (post, (_, all)) = (stream.at("resid_post"), stream.contributions());
            if spec.mlp_post_residual_norm.is_some() || spec.attn_post_residual_norm.is_some() {
                // Post-norm models normalize the sum, so the plain identity must not hold.
                assert!(!same(&stream.output(&all), &post), "{}: the sum is not normalized", case.name);
                continue;
            }
            let mut wrong = Vec::new();
            for point in &all {
                let rest: Vec<&str> = all.iter().copied().filter(|other| other != point).collect();
                wrong.push((format!("{point} omitted"), stream.output(&rest)));
                let bare = point.trim_end_matches("_post");
                if stream.is_changed(point) {
                    let swapped: Vec<&str> =
                        all.iter().map(|other| if other == point { bare } else { other }).collect();
                    wrong.push((format!("{bare} in place of {point}"), stream.output(&swapped)));
                } else {
                    assert_eq!(stream.at(bare), stream.at(point), "{}: {bare} and {point} differ", case.name);
                }
            }
            if spec.skip != Skip::Identity || spec.out_scale.is_some_and(|by| by != 1.0) {
                let plain = all.iter().fold(stream.at("resid_pre"), |sum, point| plus(&sum, &stream.at(point)));
                wrong.push(("an identity residual connection".into(), plain));
            }
            let wrong: Vec<(&str, Vec<f64>)> = wrong.iter().map(|(how, value)| (how.as_str(), value.clone())).collect();
            acts.check("residual + contributions = resid_post", &stream.output(&all), &post, &wrong);
            checked += 1;
        }
    }
    assert!(checked >= 3, "some residual streams are sums");
}

#[test]
fn identity_4_resid_mid_is_the_residual_stream_after_the_first_sublayer_or_refused() {
    for case in golden::all() {
        let acts = Activations::new(&case);
        for (layer, spec) in layers(&case) {
            let stream = ResidualStream { acts: &acts, layer, spec };
            let (first, all) = stream.contributions();
            if first.is_empty() || first.len() == all.len() {
                let error = refusal(&case, &format!("layers.{layer}.resid_mid"));
                assert!(error.contains("one sublayer") && error.contains("use resid_pre or resid_post"), "{error}");
                continue;
            }
            if spec.parallel {
                let error = refusal(&case, &format!("layers.{layer}.resid_mid"));
                assert!(
                    error.contains("resid_mid")
                        && error.contains("run in parallel")
                        && error.contains("use resid_pre, attn_out_post or mlp_out_post"),
                    "{error}"
                );
                continue;
            }
            let values = |points: &[&str]| points.iter().map(|point| stream.at(point)).collect::<Vec<_>>();
            let (sum, mid) = (stream.middle(&values(&first)), stream.at("resid_mid"));
            let mut wrong = vec![("the MLP's contribution", stream.middle(&values(&["mlp_out_post"])))];
            for point in first.iter().filter(|point| stream.is_changed(point)) {
                let bare =
                    first.iter().map(|other| if other == point { other.trim_end_matches("_post") } else { other });
                wrong.push((
                    "the output in place of the contribution",
                    stream.middle(&values(&bare.collect::<Vec<_>>())),
                ));
            }
            if let Some(norm) = spec.attn_post_residual_norm {
                let ours = acts.norm(&sum, &stream.name("attn.stream_norm"), norm);
                wrong.push(("no norm", sum));
                acts.check("norm(resid_pre + contributions) = resid_mid", &ours, &mid, &wrong);
            } else {
                acts.check("resid_pre + contributions = resid_mid", &sum, &mid, &wrong);
            }
            if let Some(norm) = spec.mlp_post_residual_norm {
                let sum = stream.end(&mid, Some(&stream.at("mlp_out_post")));
                let ours = scale_by(&acts.norm(&sum, &stream.name("mlp.stream_norm"), norm), spec.out_scale);
                let wrong = [("no norm", sum)];
                acts.check("norm(resid_mid + mlp_out_post) = resid_post", &ours, &stream.at("resid_post"), &wrong);
            }
        }
    }
}

#[test]
fn identity_5_resid_pre_is_resid_post_of_the_layer_before() {
    for case in golden::all() {
        let acts = Activations::new(&case);
        for layer in 1..case.layers() {
            assert_eq!(acts.layer(layer - 1, "resid_post"), acts.layer(layer, "resid_pre"), "{}", case.name);
            assert!(
                !same(&acts.layer(layer, "resid_post"), &acts.layer(layer, "resid_pre")),
                "{}: layer {layer} does nothing",
                case.name
            );
        }
    }
}

#[test]
fn identity_9_the_head_of_the_final_norm_is_the_logits() {
    for case in golden::all() {
        let acts = Activations::new(&case);
        let architecture = case.loaded.model.program().architecture();
        let (last, head) = (acts.layer(case.layers() - 1, "resid_post"), &architecture.head);
        let table = if head.tied { "embed" } else { "head" };
        let decode = |x: &[f64]| {
            let x = match head.transform {
                Some(transform) => {
                    let hidden = acts.linear(x, "head.transform");
                    let hidden: Vec<f64> = hidden.iter().map(|&x| activate(transform.activation, x)).collect();
                    let width = head.table_width.unwrap_or(architecture.width);
                    acts.norm_of(&hidden, "head.norm", transform.norm, width)
                }
                None if head.table_width.is_some() => acts.linear(x, "head.project"),
                None => x.to_vec(),
            };
            let scale = head.scale.unwrap_or(1.0) as f64;
            let bare = linear(&x, &acts.matrix(table), acts.vector("head.bias").as_deref());
            (bare.clone(), soft_cap(&bare.iter().map(|x| x * scale).collect::<Vec<_>>(), head.soft_cap))
        };
        let normed = architecture.final_norm.map_or(last.clone(), |norm| acts.norm(&last, "final_norm", norm));
        let (lm_head, logits) = (acts.site("lm_head"), acts.site("logits"));
        let mut wrong = vec![("the layer before", decode(&acts.layer(case.layers() - 2, "resid_post")).1)];
        if let Some(norm) = architecture.final_norm {
            acts.check(
                "norm(resid_post) = final_norm",
                &normed,
                &acts.site("final_norm"),
                &[("no norm", last.clone())],
            );
            wrong.push(("no final norm", decode(&last).1));
            // Without a gain, normalizing twice is the same as once.
            if norm.gain != Gain::None {
                wrong.push(("two final norms", decode(&acts.norm(&normed, "final_norm", norm)).1));
            }
        } else {
            assert!(refusal(&case, "final_norm").contains("no final norm"), "{}", case.name);
        }
        if head.soft_cap.is_some() {
            wrong.push(("no soft cap", lm_head.clone()));
        }
        acts.check("head(final_norm) = lm_head", &decode(&normed).0, &lm_head, &[]);
        acts.check("head(final_norm), capped = logits", &decode(&normed).1, &logits, &wrong);
        let top_tokens = |x: &[f64]| {
            x.chunks_exact(architecture.vocab)
                .map(|x| (0..x.len()).max_by(|&a, &b| x[a].total_cmp(&x[b])))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            top_tokens(&decode(&normed).1),
            top_tokens(&logits),
            "{}: the logit lens of the last layer gives the model's top tokens",
            case.name
        );
    }
}

#[test]
fn identity_10_norms_divide_then_apply_their_gain() {
    for case in golden::all() {
        let acts = Activations::new(&case);
        let width = case.loaded.model.program().architecture().width;
        let check = |point: &str, weights: &str, norm: Norm, x: Vec<f64>, out: Vec<f64>| {
            let (gain, bias) = (acts.vector(&format!("{weights}.gain")), acts.vector(&format!("{weights}.bias")));
            let ours = acts.site(&format!("{point}_normed"));
            let (values, scales) = normalize(&x, width, norm);
            acts.check("the scale", &scales, &acts.site(&format!("{point}_scale")), &[]);
            // A norm without a gain ends with the division, so there is no wrong gain to compare
            // with.
            if norm.gain == Gain::None {
                // Normalizing a normalized input changes nothing (one family normalizes its
                // embeddings).
                let again = scales.iter().all(|scale| (scale - 1.0).abs() < 1e-3);
                let wrong = if again { vec![] } else { vec![("the input itself", x.clone())] };
                acts.check("x / scale = normed", &values, &ours, &wrong);
                assert_eq!(ours, out, "{}: the output is not x / scale", case.name);
                return;
            }
            acts.check("x / scale = normed", &values, &ours, &[("the gain applied", out.clone())]);
            let gain_plus = |by: f64| gain.as_ref().map(|gain| gain.iter().map(|g| g + by).collect::<Vec<f64>>());
            let with = |gain: Option<Vec<f64>>| affine(&ours, gain.as_deref(), bias.as_deref());
            let wrong =
                [("one more in the gain", with(gain_plus(1.0))), ("one less in the gain", with(gain_plus(-1.0)))];
            acts.check("normed · gain + bias = out", &with(gain_plus(0.0)), &out, &wrong);
        };
        for (layer, spec) in layers(&case) {
            let at = |point: &str| format!("layers.{layer}.{point}");
            let stream = ResidualStream { acts: &acts, layer, spec };
            let mixes = spec.attention.is_some() || spec.recurrence.is_some();
            // Input of the first sublayer. Attention may multiply it; a recurrence does not.
            let input = || match &spec.recurrence {
                Some(_) => acts.site(&at("mixer_in")),
                None => scale_by(&acts.site(&at("attn_in")), spec.attn_in_scale.map(|by| 1.0 / by)),
            };
            if let Some(norm) = spec.attn_norm.filter(|_| mixes) {
                check(&at("attn"), &at("attn.norm"), norm, stream.norm_input(), input());
            } else {
                assert!(
                    refusal(&case, &at("attn_normed")).contains("no norm before its attention or recurrence"),
                    "{}",
                    case.name
                );
                if mixes {
                    assert!(
                        same(&input(), &stream.norm_input()),
                        "{}: without a norm it reads the residual stream",
                        case.name
                    );
                }
            }
            if spec.attention.is_some() && spec.recurrence.is_some() {
                let ours = scale_by(&acts.site(&at("mixer_in")), spec.attn_in_scale);
                assert!(same(&ours, &acts.site(&at("attn_in"))), "{}: both read the same norm", case.name);
            }
            if let Some(norm) = spec.mlp_norm.filter(|_| spec.mlp.is_some()) {
                let source = if spec.parallel || !mixes { "resid_pre" } else { "resid_mid" };
                check(&at("mlp"), &at("mlp.norm"), norm, acts.site(&at(source)), acts.site(&at("mlp_in")));
            } else if let Some(shared) = &spec.shared {
                let name = format!("shared.{}.mlp.norm", shared.block);
                check(&at("mlp"), &name, shared.mlp_norm, acts.site(&at("attn_out")), acts.site(&at("mlp_in")));
                for point in ["attn_out_post", "mlp_out_post"] {
                    assert!(refusal(&case, &at(point)).contains("they feed its recurrence"), "{}", case.name);
                }
            } else {
                assert!(refusal(&case, &at("mlp_scale")).contains("no separate norm before the MLP"), "{}", case.name);
            }
        }
        if let Some(norm) = case.loaded.model.program().architecture().final_norm {
            let last = format!("layers.{}.resid_post", case.layers() - 1);
            check("final", "final_norm", norm, acts.site(&last), acts.site("final_norm"));
        }
    }
}

#[test]
fn identity_11_embeddings_and_all_contributions_add_up_to_the_last_residual_stream() {
    for case in golden::all() {
        let acts = Activations::new(&case);
        let embedding = &case.loaded.model.program().architecture().embedding;
        let multiplied = |by: f64| acts.site("embed").iter().map(|x| x * by).collect::<Vec<f64>>();
        let scale = embedding.scale.unwrap_or(1.0) as f64;
        let project = |x: Vec<f64>, now: bool| {
            if embedding.table_width.is_some() && now { acts.linear(&x, "embed.project") } else { x }
        };
        // The projection comes before positions and segments are added, or last.
        let first = |x: Vec<f64>| project(x, !embedding.projected_last);
        let mut start = first(multiplied(scale));
        let mut wrong = vec![("twice the embedding", first(multiplied(2.0 * scale)))];
        if embedding.scale.is_some_and(|by| by != 1.0) {
            wrong.push(("no embedding scale", first(multiplied(1.0))));
        }
        match embedding.positions {
            Some(_) => {
                wrong.push(("no positions", start.clone()));
                start = plus(&start, &acts.site("pos_embed"));
            }
            None => assert!(refusal(&case, "pos_embed").contains("no absolute positions"), "{}", case.name),
        }
        if embedding.segments.is_some() {
            wrong.push(("no segment", start.clone()));
            let row = acts.matrix("segment_embed").remove(0);
            start = affine(&start, None, Some(&row));
        }
        if let Some(norm) = embedding.norm {
            // A norm ignores the scale of its input, so the wrong values so far may be right after
            // it.
            wrong = vec![("no norm of the embedding", start.clone())];
            start = acts.norm_of(&start, "embed.norm", norm, start.len() / acts.tokens);
        }
        let last = |x: Vec<f64>| project(x, embedding.projected_last);
        let wrong: Vec<(&str, Vec<f64>)> = wrong.into_iter().map(|(how, value)| (how, last(value))).collect();
        let start = last(start);
        acts.check("embeddings = resid_pre of layer 0", &start, &acts.layer(0, "resid_pre"), &wrong);
        // Layers that normalize or scale the residual stream change earlier contributions.
        let plain = |spec: &Layer| {
            let norms = spec.mlp_post_residual_norm.or(spec.attn_post_residual_norm);
            norms.is_none() && spec.skip == Skip::Identity && spec.out_scale.is_none()
        };
        if !layers(&case).all(|(_, spec)| plain(spec)) {
            continue;
        }
        let all = |start: Vec<f64>, depth: usize| {
            layers(&case)
                .take(depth)
                .flat_map(|(layer, spec)| {
                    let points = ResidualStream { acts: &acts, layer, spec }.contributions().1;
                    points.into_iter().map(|point| acts.layer(layer, point)).collect::<Vec<_>>()
                })
                .fold(start, |sum, x| plus(&sum, &x))
        };
        let truth = acts.layer(case.layers() - 1, "resid_post");
        let wrong = [("one layer omitted", all(start.clone(), case.layers() - 1))];
        acts.check("embeddings + all contributions = the last resid_post", &all(start, case.layers()), &truth, &wrong);
    }
}
