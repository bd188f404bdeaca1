//! Concept directions: from the states of two groups to a unit vector.

use crate::config::{ConceptConfig, ConceptMethod, LoadedConfig};
use crate::hash::Hasher;
use crate::store::Store;
use crate::table::Column;
use pellucid_analysis::attribution_graph::unembedding_rows;
use pellucid_models::{Error, LoadedModel, Result};

/// A concept as a direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Concept {
    /// The direction, of unit length.
    pub direction: Vec<f32>,
    /// Unit mean of group A and, if there is one, of group B.
    pub means: Vec<Vec<f32>>,
    /// Tokens of group A; empty if its states come from a store.
    pub tokens: Vec<u32>,
    /// The label that is group A.
    pub label: usize,
    /// Hash of the states.
    pub fingerprint: String,
}

/// States of a group with their weights.
#[derive(Clone, Debug, Default, PartialEq)]
struct Group {
    states: Vec<Vec<f32>>,
    weights: Vec<f32>,
}

impl Concept {
    /// Computes the direction that a session names: from a store, or from tokens.
    pub(crate) fn resolve(loaded: &LoadedConfig, model: &LoadedModel) -> Result<Concept> {
        let missing = "give `concept.store`, the store of a session with extract_concept_latent_examples, or \
                       `concept.tokens`, two lists of texts";
        let Some(config) = &loaded.config.concept else {
            return Err(loaded.error(&["ops"], "`concept_direction` needs the table `concept`", missing));
        };
        let labels = config.groups.unwrap_or([0, 1]);
        let (groups, tokens) = match (&config.store, config.tokens.is_empty()) {
            (Some(_), false) => {
                let problem = "`concept` has both `store` and `tokens`";
                return Err(loaded.error(&["concept", "tokens"], problem, "leave one of them out"));
            }
            (None, true) => {
                return Err(loaded.error(&["concept"], "`concept` has neither `store` nor `tokens`", missing));
            }
            (Some(path), true) => {
                let store = Store::open(path).map_err(|error| {
                    let remedy = error.remedy().map(|remedy| remedy.to_string()).unwrap_or_default();
                    loaded.error(&["concept", "store"], error, &remedy)
                })?;
                (stored_groups(loaded, &store, labels)?, Vec::new())
            }
            (None, false) => token_groups(loaded, config, model)?,
        };
        let method = config.method.unwrap_or_default();
        let direction = direction(method, &groups).map_err(|problem| {
            loaded.error(&["concept"], problem, "choose other groups, or another `concept.method`")
        })?;
        let mut hasher = Hasher::default();
        for state in groups.iter().flat_map(|group| &group.states) {
            hasher.add(state.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        }
        hasher.add(format!("{method:?} {:?}", groups.iter().map(|group| &group.weights).collect::<Vec<_>>()));
        let means = groups.iter().filter_map(|group| unit(&weighted_mean(group))).collect();
        Ok(Concept { direction, means, tokens, label: labels[0], fingerprint: hasher.finish() })
    }
}

/// The states of a store, by group.
fn stored_groups(loaded: &LoadedConfig, store: &Store, labels: [usize; 2]) -> Result<[Group; 2]> {
    let wrong = |problem: String| {
        let remedy = "its session needs the ops `extract_concept_latent_state` and `extract_concept_latent_examples`";
        loaded.error(&["concept", "store"], problem, remedy)
    };
    let column = |name: &str| match store.has("examples", name) {
        true => store.column("examples", name),
        false => Err(wrong(format!("{} has no column `{name}`", store.path().display()))),
    };
    let (states, groups, weights) = (column("concept_state")?, column("concept_group")?, column("concept_weight")?);
    let (Column::Float32List(states), Column::Int64(groups), Column::Float32(weights)) = (states, groups, weights)
    else {
        return Err(wrong(format!("the columns of {} have other types", store.path().display())));
    };
    let mut found = [Group::default(), Group::default()];
    for ((state, group), weight) in states.into_iter().zip(groups).zip(weights) {
        if let Some(own) = labels.iter().position(|&label| label as i64 == group) {
            found[own].states.push(state);
            found[own].weights.push(weight);
        }
    }
    let width = found.iter().flat_map(|group| &group.states).map(Vec::len).next().unwrap_or(0);
    if found.iter().flat_map(|group| &group.states).any(|state| state.len() != width) {
        return Err(wrong(format!("the states of {} have different widths", store.path().display())));
    }
    Ok(found)
}

/// The rows of the unembedding of both groups' tokens, and the tokens of group A.
fn token_groups(loaded: &LoadedConfig, config: &ConceptConfig, model: &LoadedModel) -> Result<([Group; 2], Vec<u32>)> {
    if config.tokens.len() > 2 {
        let problem = format!("`concept.tokens` has {} groups", config.tokens.len());
        return Err(loaded.error(&["concept", "tokens"], problem, "give the texts of group A and of group B"));
    }
    let mut groups = [Group::default(), Group::default()];
    let mut first = Vec::new();
    for (index, texts) in config.tokens.iter().enumerate() {
        let tokens = last_tokens(model, texts).map_err(|error| {
            let remedy = error.remedy().map(|remedy| remedy.to_string()).unwrap_or_default();
            loaded.error(&["concept", "tokens"], error, &remedy)
        })?;
        let (states, _) = unembedding_rows(&model.model, &tokens)?;
        groups[index] = Group { weights: vec![1.0; states.len()], states };
        if index == 0 {
            first = tokens;
        }
    }
    Ok((groups, first))
}

/// The last token of each text.
pub(super) fn last_tokens(model: &LoadedModel, texts: &[String]) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer()?;
    let last =
        |text: &String| match tokenizer.find(text) {
            Some(token) => Ok(token),
            None => tokenizer.encode(text, false)?.last().copied().ok_or_else(|| {
                Error::usage(format!("{text:?} has no tokens"), "give texts of tokens, such as \" Paris\"")
            }),
        };
    texts.iter().map(last).collect()
}

/// The direction of two groups.
fn direction(method: ConceptMethod, groups: &[Group; 2]) -> std::result::Result<Vec<f32>, String> {
    let [a, b] = groups;
    let needed = if method == ConceptMethod::SingleGroup { 1 } else { 2 };
    let weighs = |group: &Group| group.weights.iter().any(|&weight| weight > 0.0);
    if let Some(empty) = groups[..needed].iter().position(|group| !weighs(group)) {
        return Err(format!("group {} of the concept has no states", ["A", "B"][empty]));
    }
    let vector = match method {
        ConceptMethod::SingleGroup => weighted_mean(a),
        ConceptMethod::MeanDifference => subtract(&weighted_mean(a), &weighted_mean(b), 1.0),
        ConceptMethod::PairedRejection => {
            if a.states.len() != b.states.len() {
                return Err(format!("groups of {} and {} states are not pairs", a.states.len(), b.states.len()));
            }
            let reject = |(a, b): (&Vec<f32>, &Vec<f32>)| {
                let b: Vec<f64> = b.iter().map(|&x| f64::from(x)).collect();
                let a: Vec<f64> = a.iter().map(|&x| f64::from(x)).collect();
                let along = dot(&a, &b) / dot(&b, &b).max(f64::MIN_POSITIVE);
                a.iter().zip(&b).map(|(a, b)| (a - along * b) as f32).collect()
            };
            let states = a.states.iter().zip(&b.states).map(reject).collect();
            weighted_mean(&Group { states, weights: a.weights.clone() })
        }
    };
    unit(&vector).ok_or_else(|| "the direction of the concept is zero".to_string())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn subtract(a: &[f64], b: &[f64], scale: f64) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - scale * b).collect()
}

fn weighted_mean(group: &Group) -> Vec<f64> {
    let width = group.states.first().map_or(0, Vec::len);
    let (mut sum, mut total) = (vec![0.0; width], 0.0);
    for (state, &weight) in group.states.iter().zip(&group.weights) {
        sum.iter_mut().zip(state).for_each(|(sum, &x)| *sum += f64::from(weight) * f64::from(x));
        total += f64::from(weight);
    }
    if total > 0.0 {
        sum.iter_mut().for_each(|sum| *sum /= total);
    }
    sum
}

/// A vector scaled to length 1; `None` if it is zero or not finite.
fn unit(vector: &[f64]) -> Option<Vec<f32>> {
    let norm = dot(vector, vector).sqrt();
    (norm.is_finite() && norm > 1e-12).then(|| vector.iter().map(|x| (x / norm) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(states: &[[f32; 2]], weights: &[f32]) -> Group {
        Group { states: states.iter().map(|state| state.to_vec()).collect(), weights: weights.to_vec() }
    }

    #[test]
    fn directions_follow_their_definitions() {
        let a = group(&[[1.0, 0.0], [3.0, 4.0]], &[1.0, 3.0]);
        let b = group(&[[0.0, 2.0], [1.0, 1.0]], &[1.0, 1.0]);
        let close = |found: &[f32], expected: [f64; 2]| {
            let norm = (expected[0] * expected[0] + expected[1] * expected[1]).sqrt();
            found.iter().zip(expected).all(|(x, y)| (f64::from(*x) - y / norm).abs() < 1e-6)
        };
        let of = |method| direction(method, &[a.clone(), b.clone()]).expect("a direction");
        // Means: A (2.5, 3), B (0.5, 1.5).
        assert!(close(&of(ConceptMethod::MeanDifference), [2.0, 1.5]));
        assert!(close(&of(ConceptMethod::SingleGroup), [2.5, 3.0]));
        // Rejections: (1, 0) from (0, 2) is (1, 0); (3, 4) from (1, 1) is (-0.5, 0.5).
        assert!(close(&of(ConceptMethod::PairedRejection), [0.25 - 0.375, 0.375]));
    }

    #[test]
    fn groups_without_states_or_without_a_difference_are_refused() {
        let (a, empty) = (group(&[[1.0, 2.0]], &[1.0]), Group::default());
        let problem = |method, b: &Group| direction(method, &[a.clone(), b.clone()]).expect_err("an error");
        assert!(problem(ConceptMethod::MeanDifference, &empty).contains("group B"));
        assert!(problem(ConceptMethod::MeanDifference, &a).contains("zero"));
        assert!(problem(ConceptMethod::PairedRejection, &group(&[[1.0, 0.0]; 2], &[1.0; 2])).contains("not pairs"));
        assert!(direction(ConceptMethod::SingleGroup, &[a, empty]).is_ok());
    }
}
