//! The arithmetic identities of the stream and the model's ends (points.md §7, numbers 2, 4, 5, 9, 10 and 11), each with wrong sites that
//! must fail. Those inside the sublayers are in sublayers.rs, those of writing in writes.rs.

use crate::naive::{Seen, activate, layers, learned, normed, plus, product, refusal, same, scaled, soft_cap};
use pellucid_engine::architecture::{Gain, Layer, Norm, Skip};

/// The stream through a layer from what its sublayers contribute. Each may be left out, or stand in for another, to see
/// that it matters.
struct Stream<'a> {
    seen: &'a Seen<'a>,
    layer: usize,
    spec: &'a Layer,
}

impl Stream<'_> {
    fn at(&self, point: &str) -> Vec<f64> {
        self.seen.layer(self.layer, point)
    }

    fn name(&self, part: &str) -> String {
        format!("layers.{}.{part}", self.layer)
    }

    /// What contributes in the first sublayer, and in the whole layer.
    fn parts(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let first =
            [("attn_out_post", self.spec.attention.is_some()), ("mixer_out_post", self.spec.recurrence.is_some())];
        let first: Vec<_> = first.into_iter().filter(|(_, there)| *there).map(|(point, _)| point).collect();
        let all = first.iter().copied().chain(self.spec.mlp.is_some().then_some("mlp_out_post")).collect();
        (first, all)
    }

    /// What the first sublayer reads, before its norm: the stream, with what a shared block makes of it.
    fn read(&self) -> Vec<f64> {
        let pre = self.at("resid_pre");
        let fed = |_| plus(&pre, &self.seen.product(&self.at("mlp_out"), &self.name("shared_out")));
        self.spec.shared.as_ref().map_or(pre.clone(), fed)
    }

    /// What the first sublayer is handed.
    fn handed(&self) -> Vec<f64> {
        let read = self.read();
        self.spec.attn_norm.map_or(read.clone(), |norm| self.seen.norm(&read, &self.name("attn.norm"), norm))
    }

    /// The stream after the first sublayer, before any norm of it.
    fn middle(&self, contributions: &[Vec<f64>]) -> Vec<f64> {
        let pre = self.at("resid_pre");
        // A layer without a first sublayer has nothing to skip.
        let start = match self.spec.skip {
            _ if self.parts().0.is_empty() => pre,
            Skip::Stream => pre,
            Skip::Normed { attn, .. } => scaled(&self.handed(), Some(attn)),
            Skip::Gained => self.gained(&pre, "attn.skip"),
        };
        contributions.iter().fold(start, |sum, x| plus(&sum, x))
    }

    /// The stream that leaves, from the one in the middle.
    fn end(&self, middle: &[f64], mlp: Option<&[f64]>) -> Vec<f64> {
        let kept = match self.spec.skip {
            _ if self.spec.mlp.is_none() => middle.to_vec(),
            Skip::Stream => middle.to_vec(),
            Skip::Normed { mlp, .. } => {
                let normed = |norm| self.seen.norm(middle, &self.name("mlp.norm"), norm);
                scaled(&self.spec.mlp_norm.map_or(middle.to_vec(), normed), Some(mlp))
            }
            Skip::Gained => self.gained(middle, "mlp.skip"),
        };
        mlp.map_or(kept.clone(), |mlp| plus(&kept, mlp))
    }

    fn gained(&self, x: &[f64], name: &str) -> Vec<f64> {
        learned(x, self.seen.vector(&self.name(name)).as_deref(), None)
    }

    /// The whole layer from the values of the given points: `mlp_…` in the second sublayer, the others in the first.
    fn whole(&self, points: &[&str]) -> Vec<f64> {
        let (mlp, first): (Vec<&&str>, Vec<&&str>) = points.iter().partition(|point| point.starts_with("mlp"));
        let middle = self.middle(&first.iter().map(|point| self.at(point)).collect::<Vec<_>>());
        let mlp = mlp.first().map(|point| self.at(point));
        scaled(&self.end(&middle, mlp.as_deref()), self.spec.out_scale)
    }

    /// Whether a norm or a multiplier stands between a sublayer's output and its contribution.
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
fn identity_2_contributions_add_up_to_the_stream() {
    let mut checked = 0;
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let stream = Stream { seen: &seen, layer, spec };
            let (post, (_, all)) = (stream.at("resid_post"), stream.parts());
            if spec.mlp_stream_norm.is_some() || spec.attn_stream_norm.is_some() {
                // The original transformer norms the sum itself, so the plain identity must not hold there.
                assert!(!same(&stream.whole(&all), &post), "{}: no norm of the stream", case.name);
                continue;
            }
            let mut wrong = Vec::new();
            for point in &all {
                let left: Vec<&str> = all.iter().copied().filter(|other| other != point).collect();
                wrong.push((format!("{point} left out"), stream.whole(&left)));
                let bare = point.trim_end_matches("_post");
                if stream.is_changed(point) {
                    let swapped: Vec<&str> =
                        all.iter().map(|other| if other == point { bare } else { other }).collect();
                    wrong.push((format!("{bare} in place of {point}"), stream.whole(&swapped)));
                } else {
                    assert_eq!(stream.at(bare), stream.at(point), "{}: nothing follows {bare}", case.name);
                }
            }
            if spec.skip != Skip::Stream || spec.out_scale.is_some_and(|by| by != 1.0) {
                let plain = all.iter().fold(stream.at("resid_pre"), |sum, point| plus(&sum, &stream.at(point)));
                wrong.push(("the stream itself skipping".into(), plain));
            }
            let wrong: Vec<(&str, Vec<f64>)> = wrong.iter().map(|(how, value)| (how.as_str(), value.clone())).collect();
            seen.check("what skips + contributions = resid_post", &stream.whole(&all), &post, &wrong);
            checked += 1;
        }
    }
    assert!(checked >= 3, "some streams are sums");
}

#[test]
fn identity_4_resid_mid_is_the_stream_after_the_first_sublayer_or_refused() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        for (layer, spec) in layers(&case) {
            let stream = Stream { seen: &seen, layer, spec };
            let (first, all) = stream.parts();
            if first.is_empty() || first.len() == all.len() {
                let said = refusal(&case, &format!("layers.{layer}.resid_mid"));
                assert!(said.contains("one sublayer") && said.contains("use resid_pre or resid_post"), "{said}");
                continue;
            }
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
            if let Some(norm) = spec.attn_stream_norm {
                let ours = seen.norm(&sum, &stream.name("attn.stream_norm"), norm);
                wrong.push(("no norm", sum));
                seen.check("norm(resid_pre + contributions) = resid_mid", &ours, &mid, &wrong);
            } else {
                seen.check("resid_pre + contributions = resid_mid", &sum, &mid, &wrong);
            }
            if let Some(norm) = spec.mlp_stream_norm {
                let sum = stream.end(&mid, Some(&stream.at("mlp_out_post")));
                let ours = scaled(&seen.norm(&sum, &stream.name("mlp.stream_norm"), norm), spec.out_scale);
                let wrong = [("no norm", sum)];
                seen.check("norm(resid_mid + mlp_out_post) = resid_post", &ours, &stream.at("resid_post"), &wrong);
            }
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
            let x = match head.transform {
                Some(transform) => {
                    let made = seen.product(x, "head.transform");
                    let made: Vec<f64> = made.iter().map(|&x| activate(transform.activation, x)).collect();
                    let width = head.table_width.unwrap_or(architecture.width);
                    seen.norm_of(&made, "head.norm", transform.norm, width)
                }
                None if head.table_width.is_some() => seen.product(x, "head.project"),
                None => x.to_vec(),
            };
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
        let check = |place: &str, weights: &str, norm: Norm, x: Vec<f64>, out: Vec<f64>| {
            let (gain, bias) = (seen.vector(&format!("{weights}.gain")), seen.vector(&format!("{weights}.bias")));
            let ours = seen.site(&format!("{place}_normed"));
            let (values, scales) = normed(&x, width, norm);
            seen.check("the scale", &scales, &seen.site(&format!("{place}_scale")), &[]);
            // A norm without a gain has nothing after the division, and no wrong gain to be told from the right one.
            if norm.gain == Gain::None {
                // Norming again what a norm without a gain has made, as the embeddings of one family, changes nothing.
                let again = scales.iter().all(|scale| (scale - 1.0).abs() < 1e-3);
                let wrong = if again { vec![] } else { vec![("the input itself", x.clone())] };
                seen.check("x / scale = normed", &values, &ours, &wrong);
                assert_eq!(ours, out, "{}: nothing follows the division", case.name);
                return;
            }
            seen.check("x / scale = normed", &values, &ours, &[("the gain already in", out.clone())]);
            let gained = |by: f64| gain.as_ref().map(|gain| gain.iter().map(|g| g + by).collect::<Vec<f64>>());
            let with = |gain: Option<Vec<f64>>| learned(&ours, gain.as_deref(), bias.as_deref());
            let wrong = [("one more in the gain", with(gained(1.0))), ("one less in the gain", with(gained(-1.0)))];
            seen.check("normed · gain + bias = out", &with(gained(0.0)), &out, &wrong);
        };
        for (layer, spec) in layers(&case) {
            let at = |point: &str| format!("layers.{layer}.{point}");
            let stream = Stream { seen: &seen, layer, spec };
            let mixes = spec.attention.is_some() || spec.recurrence.is_some();
            // The first sublayer's input: as it is for a recurrence, perhaps multiplied for attention.
            let handed = || match &spec.recurrence {
                Some(_) => seen.site(&at("mixer_in")),
                None => scaled(&seen.site(&at("attn_in")), spec.attn_in_scale.map(|by| 1.0 / by)),
            };
            if let Some(norm) = spec.attn_norm.filter(|_| mixes) {
                check(&at("attn"), &at("attn.norm"), norm, stream.read(), handed());
            } else {
                assert!(
                    refusal(&case, &at("attn_normed")).contains("no norm before its attention or recurrence"),
                    "{}",
                    case.name
                );
                if mixes {
                    assert!(same(&handed(), &stream.read()), "{}: it reads the stream itself", case.name);
                }
            }
            if spec.attention.is_some() && spec.recurrence.is_some() {
                let ours = scaled(&seen.site(&at("mixer_in")), spec.attn_in_scale);
                assert!(same(&ours, &seen.site(&at("attn_in"))), "{}: both read the same norm", case.name);
            }
            if let Some(norm) = spec.mlp_norm.filter(|_| spec.mlp.is_some()) {
                let read = if spec.parallel || !mixes { "resid_pre" } else { "resid_mid" };
                check(&at("mlp"), &at("mlp.norm"), norm, seen.site(&at(read)), seen.site(&at("mlp_in")));
            } else if let Some(shared) = &spec.shared {
                let name = format!("shared.{}.mlp.norm", shared.block);
                check(&at("mlp"), &name, shared.mlp_norm, seen.site(&at("attn_out")), seen.site(&at("mlp_in")));
                for point in ["attn_out_post", "mlp_out_post"] {
                    assert!(refusal(&case, &at(point)).contains("they feed its recurrence"), "{}", case.name);
                }
            } else {
                assert!(
                    refusal(&case, &at("mlp_scale")).contains("no norm of its own before the MLP"),
                    "{}",
                    case.name
                );
            }
        }
        if let Some(norm) = case.loaded.model.program().architecture().final_norm {
            let last = format!("layers.{}.resid_post", case.layers() - 1);
            check("final", "final_norm", norm, seen.site(&last), seen.site("final_norm"));
        }
    }
}

#[test]
fn identity_11_embeddings_and_all_contributions_add_up_to_the_last_stream() {
    for case in golden::all() {
        let seen = Seen::new(&case);
        let embedding = &case.loaded.model.program().architecture().embedding;
        let multiplied = |by: f64| seen.site("embed").iter().map(|x| x * by).collect::<Vec<f64>>();
        let scale = embedding.scale.unwrap_or(1.0) as f64;
        let project = |x: Vec<f64>, now: bool| {
            if embedding.table_width.is_some() && now { seen.product(&x, "embed.project") } else { x }
        };
        // A projection comes before what is added, or after everything.
        let first = |x: Vec<f64>| project(x, !embedding.projected_last);
        let mut start = first(multiplied(scale));
        let mut wrong = vec![("twice the embedding", first(multiplied(2.0 * scale)))];
        if embedding.scale.is_some_and(|by| by != 1.0) {
            wrong.push(("no embedding scale", first(multiplied(1.0))));
        }
        match embedding.positions {
            Some(_) => {
                wrong.push(("no positions", start.clone()));
                start = plus(&start, &seen.site("pos_embed"));
            }
            None => assert!(refusal(&case, "pos_embed").contains("no absolute positions"), "{}", case.name),
        }
        if embedding.segments.is_some() {
            wrong.push(("no segment", start.clone()));
            let row = seen.matrix("segment_embed").remove(0);
            start = learned(&start, None, Some(&row));
        }
        if let Some(norm) = embedding.norm {
            // What was wrong before the norm may be right behind it: a norm forgets how large its input is.
            wrong = vec![("no norm of the embedding", start.clone())];
            start = seen.norm_of(&start, "embed.norm", norm, start.len() / seen.tokens);
        }
        let last = |x: Vec<f64>| project(x, embedding.projected_last);
        let wrong: Vec<(&str, Vec<f64>)> = wrong.into_iter().map(|(how, value)| (how, last(value))).collect();
        let start = last(start);
        seen.check("embeddings = resid_pre of layer 0", &start, &seen.layer(0, "resid_pre"), &wrong);
        // Where a layer norms, scales or gains the stream itself, its contributions reach the end changed.
        let plain = |spec: &Layer| {
            let norms = spec.mlp_stream_norm.or(spec.attn_stream_norm);
            norms.is_none() && spec.skip == Skip::Stream && spec.out_scale.is_none()
        };
        if !layers(&case).all(|(_, spec)| plain(spec)) {
            continue;
        }
        let all = |start: Vec<f64>, depth: usize| {
            layers(&case)
                .take(depth)
                .flat_map(|(layer, spec)| {
                    let points = Stream { seen: &seen, layer, spec }.parts().1;
                    points.into_iter().map(|point| seen.layer(layer, point)).collect::<Vec<_>>()
                })
                .fold(start, |sum, x| plus(&sum, &x))
        };
        let truth = seen.layer(case.layers() - 1, "resid_post");
        let wrong = [("one layer left out", all(start.clone(), case.layers() - 1))];
        seen.check("embeddings + all contributions = the last stream", &all(start, case.layers()), &truth, &wrong);
    }
}
