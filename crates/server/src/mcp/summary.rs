//! Arrays as an agent can read them: statistics, the largest elements, and all values if there are
//! few. All lists are bounded; `Bounds` counts what was left out.

use super::input::CaptureInput;
use crate::api_error::{ApiError, ApiResult};
use crate::generation::token_text;
use pellucid_engine::Array;
use pellucid_models::LoadedModel;
use pellucid_models::results::{NamedResult, Results};
use schemars::JsonSchema;
use serde::Serialize;

/// Most arrays of an answer.
const MAX_ARRAYS: usize = 128;
/// Most listed values of an answer, over all arrays.
const MAX_LISTED: usize = 8192;

/// A captured activation or a saved value.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ArraySummary {
    /// The site, or the name of a saved value; prefixed by `ROW/` if the call has several rows.
    pub name: String,
    /// The shape. A whole site is `[positions, width]` or `[positions, heads, width]`.
    pub shape: Vec<usize>,
    /// Of a sparse capture of SAE features the number of nonzero elements. Statistics are then
    /// those of the nonzero elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonzero: Option<usize>,
    /// Mean of the finite elements; absent if there are none.
    pub mean: Option<f64>,
    /// Their standard deviation.
    pub deviation: Option<f64>,
    /// Their minimum.
    pub min: Option<f32>,
    /// Their maximum.
    pub max: Option<f32>,
    /// Their L2 norm.
    pub norm: f64,
    /// The number of elements that are NaN or infinite, which should be 0.
    pub non_finite: usize,
    /// L2 norm of each line along the first axis (of a site: of each position); empty if there is
    /// one line or too many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub line_norms: Vec<f32>,
    /// The elements of largest magnitude, largest first.
    pub largest: Vec<Element>,
    /// All elements in row-major order, if they are few; null for NaN and infinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<Option<f32>>>,
}

/// An element of an array.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Element {
    /// Its index along each axis.
    pub index: Vec<usize>,
    /// Its value.
    pub value: f32,
}

/// A token with its probability.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TokenProbability {
    /// The text of the token.
    pub token: String,
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
    /// Its probability, 0 to 1.
    pub probability: f64,
}

/// Limits of an answer.
pub struct Bounds {
    top_k: usize,
    max_values: usize,
}

impl CaptureInput {
    /// Checks the limits.
    pub fn bounds(&self) -> ApiResult<Bounds> {
        Ok(Bounds {
            top_k: at_most("top_k", self.top_k, 5, 20)?,
            max_values: at_most("max_values", self.max_values, 64, 1024)?,
        })
    }
}

/// The value of an argument that has a limit.
pub fn at_most(name: &str, value: Option<usize>, default: usize, most: usize) -> ApiResult<usize> {
    match value.unwrap_or(default) {
        value if value <= most => Ok(value),
        value => Err(ApiError::field(name, format!("`{name}` is {value}; it must be at most {most}"))),
    }
}

/// Summarizes results, and says what is left out in `cut`.
pub fn summarize(results: &Results, bounds: &Bounds, cut: &mut Vec<String>) -> Vec<ArraySummary> {
    let named = results.named();
    if named.len() > MAX_ARRAYS {
        cut.push(format!("{} of {} results are shown; select fewer sites or rows", MAX_ARRAYS, named.len()));
    }
    let mut listed = 0;
    let summary = |result: &NamedResult| {
        let room = MAX_LISTED.saturating_sub(listed);
        let summary = summarize_one(result, bounds, room);
        listed += summary.values.as_ref().map_or(0, Vec::len) + summary.line_norms.len();
        summary
    };
    let summaries: Vec<ArraySummary> = named.iter().take(MAX_ARRAYS).map(summary).collect();
    let hidden = summaries.iter().filter(|summary| summary.values.is_none()).count();
    if hidden > 0 {
        cut.push(format!(
            "{hidden} results have more than {} elements or did not fit, and list only the largest; select positions, \
             heads or units, or raise max_values, to see all",
            bounds.max_values
        ));
    }
    summaries
}

fn summarize_one(result: &NamedResult, bounds: &Bounds, room: usize) -> ArraySummary {
    let NamedResult { name, array, sparse } = result;
    let values = array.values();
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let (count, squares) = (finite().count(), finite().map(|x| f64::from(x).powi(2)).sum::<f64>());
    let mean = (count > 0).then(|| finite().map(f64::from).sum::<f64>() / count as f64);
    let variance = mean.map(|mean| finite().map(|x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count as f64);
    let mut order: Vec<usize> = (0..values.len()).filter(|&at| values[at].is_finite()).collect();
    let by_magnitude = |&a: &usize, &b: &usize| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b));
    if order.len() > bounds.top_k {
        if bounds.top_k > 0 {
            order.select_nth_unstable_by(bounds.top_k - 1, by_magnitude);
        }
        order.truncate(bounds.top_k);
    }
    order.sort_by(by_magnitude);
    let shape = sparse.map_or_else(|| array.shape().to_vec(), |(rows, _)| rows.shape().to_vec());
    let index = |at: usize| match sparse {
        Some((rows, _)) => {
            let line = rows.indptr.partition_point(|&start| start <= at).saturating_sub(1);
            vec![line, rows.indices[at] as usize]
        }
        None => unravel(at, &shape),
    };
    let fits = sparse.is_none() && values.len() <= bounds.max_values.min(room);
    ArraySummary {
        name: name.clone(),
        nonzero: sparse.map(|_| values.len()),
        mean,
        deviation: variance.map(f64::sqrt),
        min: finite().min_by(f32::total_cmp),
        max: finite().max_by(f32::total_cmp),
        norm: squares.sqrt(),
        non_finite: values.len() - count,
        line_norms: if sparse.is_none() { line_norms(array, bounds.max_values.min(room)) } else { Vec::new() },
        largest: order.into_iter().map(|at| Element { index: index(at), value: values[at] }).collect(),
        values: fits.then(|| values.iter().map(|x| x.is_finite().then_some(*x)).collect()),
        shape,
    }
}

fn unravel(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &size) in index.iter_mut().zip(shape).rev() {
        *place = at % size;
        at /= size;
    }
    index
}

/// Norms of the lines of an array with several axes and from 2 to `most` lines, unless they are
/// NaN.
fn line_norms(array: &Array, most: usize) -> Vec<f32> {
    let (&[lines, _, ..], values) = (array.shape(), array.values()) else { return Vec::new() };
    if lines < 2 || lines > most || values.is_empty() {
        return Vec::new();
    }
    let norm = |line: &[f32]| line.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
    let norms: Vec<f32> = values.chunks_exact(values.len() / lines).map(norm).collect();
    if norms.iter().all(|norm| norm.is_finite()) { norms } else { Vec::new() }
}

/// The `count` tokens with the largest finite logits, with their probabilities.
pub fn top_tokens(loaded: &LoadedModel, logits: &[f32], count: usize) -> Vec<TokenProbability> {
    let probabilities = softmax(logits);
    let mut order: Vec<usize> = (0..logits.len()).filter(|&id| logits[id].is_finite()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let token = |id: usize| TokenProbability {
        token: token_text(loaded, id as u32),
        id: id as u32,
        logit: logits[id],
        probability: probabilities[id],
    };
    order.into_iter().take(count).map(token).collect()
}

/// Probabilities of logits, in double precision. NaN counts as -inf.
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().filter(|x| x.is_finite()).fold(f32::NEG_INFINITY, f32::max);
    let exp = |x: &f32| if x.is_finite() { f64::from(x - top).exp() } else { 0.0 };
    let total: f64 = logits.iter().map(exp).sum();
    logits.iter().map(|x| if total > 0.0 { exp(x) / total } else { 0.0 }).collect()
}

/// Lists tokens in one line.
pub fn list_tokens(tokens: &[TokenProbability]) -> String {
    let token = |token: &TokenProbability| format!("{:?} {:.1}%", token.token, token.probability * 100.0);
    tokens.iter().map(token).collect::<Vec<_>>().join(", ")
}

/// Lists results, one per line, then what was cut.
pub fn list_results(results: &[ArraySummary], cut: &[String]) -> String {
    let mut text = String::new();
    for ArraySummary { name, shape, mean, deviation, norm, non_finite, values, .. } in results {
        text += &match values {
            Some(values) if values.len() <= 8 => format!("{name} {shape:?} = {}\n", list_values(values)),
            _ => format!(
                "{name} {shape:?} mean {:.4} deviation {:.4} norm {norm:.4}\n",
                mean.unwrap_or(0.0),
                deviation.unwrap_or(0.0)
            ),
        };
        if *non_finite > 0 {
            text += &format!("  {non_finite} elements are NaN or infinite\n");
        }
    }
    text + &list_cuts(cut)
}

fn list_values(values: &[Option<f32>]) -> String {
    let value = |value: &Option<f32>| value.map_or_else(|| "NaN".into(), |value| format!("{value:.4}"));
    values.iter().map(value).collect::<Vec<_>>().join(" ")
}

/// Lists what was left out, one note per line.
pub fn list_cuts(cut: &[String]) -> String {
    cut.iter().map(|note| format!("note: {note}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pellucid_engine::Array;

    fn summary(array: &Array, max_values: usize) -> ArraySummary {
        let result = NamedResult { name: "a".into(), array, sparse: None };
        summarize_one(&result, &Bounds { top_k: 2, max_values }, MAX_LISTED)
    }

    #[test]
    fn an_array_is_summarized_over_its_finite_elements() {
        let array = Array::new(vec![2, 3], vec![1.0, -4.0, 0.0, f32::NAN, 3.0, f32::INFINITY]);
        let summary = summary(&array, 6);
        assert_eq!((summary.mean, summary.min, summary.max, summary.non_finite), (Some(0.0), Some(-4.0), Some(3.0), 2));
        let largest: Vec<_> = summary.largest.iter().map(|element| (element.index.clone(), element.value)).collect();
        assert_eq!(largest, [(vec![0, 1], -4.0), (vec![1, 1], 3.0)]);
        assert_eq!(summary.values.expect("few values")[3], None);
        assert!(summary.line_norms.is_empty(), "a norm that is NaN cannot be written in JSON");
    }

    #[test]
    fn large_and_empty_arrays_have_no_values_or_statistics() {
        let large = summary(&Array::new(vec![2, 2], vec![3.0, 4.0, 0.0, 1.0]), 3);
        assert!(large.values.is_none());
        assert_eq!(large.line_norms, [5.0, 1.0]);
        let empty = summary(&Array::new(vec![0, 4], Vec::new()), 3);
        assert_eq!((empty.mean, empty.min, empty.norm, empty.values), (None, None, 0.0, Some(Vec::new())));
    }

    #[test]
    fn probabilities_of_logits_that_are_all_nan_are_zero() {
        assert_eq!(softmax(&[f32::NAN, f32::NAN]), [0.0, 0.0]);
        assert_eq!(softmax(&[0.0, 0.0]), [0.5, 0.5]);
    }
}
