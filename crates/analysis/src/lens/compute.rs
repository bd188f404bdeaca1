//! Computes the lens table of a prompt.
//!
//! 1. One run captures the residual stream before the first and after every layer.
//! 2. The final norm, unembedding and soft cap are applied to each.
//! 3. Each distribution is compared with the last row's, the model's output.

use super::{LensCell, LensRow, LensTable, Prediction};
use pellucid_engine::{Interrupt, Plan, RunOptions, Site};
use pellucid_models::{LoadedModel, Result};

/// Predictions kept per distribution.
const TOP_TOKENS: usize = 5;

/// Computes the logit lens of a prompt at every layer and position, under the edits of a plan.
pub fn compute(loaded: &LoadedModel, tokens: &[u32], edits: &Plan) -> Result<LensTable> {
    compute_with(loaded, tokens, edits, None)
}

/// Like [`compute`], polling `interrupt`.
pub fn compute_with(
    loaded: &LoadedModel,
    tokens: &[u32],
    edits: &Plan,
    interrupt: Option<Interrupt>,
) -> Result<LensTable> {
    let is_interrupted = interrupt.clone();
    let is_interrupted = || is_interrupted.as_ref().is_some_and(|interrupt| (interrupt.0)());
    let model = &loaded.model;
    let plan = edits.clone().then(Plan::capture(["layers.0.resid_pre", "layers.*.resid_post"]));
    let run = model.run(&[tokens.to_vec()], &plan, &RunOptions { interrupt, ..RunOptions::default() })?;
    let text = |id: u32| loaded.tokenizer.as_ref().map_or_else(|| id.to_string(), |tokenizer| tokenizer.token_text(id));
    let vocab = model.program().architecture().vocab;

    let mut final_rows: Vec<Vec<f32>> = Vec::new();
    let mut rows = Vec::new();
    // The last layer first; the others are compared with it.
    for (depth, capture) in run.captures.iter().enumerate().rev() {
        if is_interrupted() {
            return Err(pellucid_engine::Error::Interrupted.into());
        }
        let logits = model.unembed(capture.array.values())?;
        let distributions: Vec<Vec<f32>> = logits.chunks_exact(vocab).map(log_softmax).collect();
        if final_rows.is_empty() {
            final_rows = distributions.clone();
        }
        let cells = distributions.iter().zip(&final_rows).map(|(here, answer)| cell(here, answer, &text)).collect();
        let last = depth + 1 == run.captures.len();
        rows.push(LensRow { site: name(capture.site, last), label: label(capture.site, last), cells });
    }
    rows.reverse();
    Ok(LensTable { model: loaded.name.clone(), prompt_tokens: tokens.iter().map(|&id| text(id)).collect(), rows })
}

fn name(site: Site, last: bool) -> String {
    if last { "logits".into() } else { site.to_string() }
}

fn label(site: Site, last: bool) -> String {
    match site.layer {
        _ if last => "answer".into(),
        Some(0) if site.point == pellucid_engine::Point::ResidPre => "embed".into(),
        layer => format!("layer {}", layer.unwrap_or_default()),
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total = logits.iter().map(|x| (x - top) as f64).map(f64::exp).sum::<f64>().ln() as f32;
    logits.iter().map(|x| x - top - total).collect()
}

/// Summarizes a distribution; both arguments are natural log-probabilities, `[vocab]`.
fn cell(here: &[f32], answer: &[f32], text: &dyn Fn(u32) -> String) -> LensCell {
    let mut order: Vec<usize> = (0..here.len()).collect();
    let kept = TOP_TOKENS.min(order.len());
    order.select_nth_unstable_by(kept - 1, |&a, &b| here[b].total_cmp(&here[a]));
    order.truncate(kept);
    order.sort_by(|&a, &b| here[b].total_cmp(&here[a]));
    let predictions = order
        .iter()
        .map(|&id| Prediction { token: text(id as u32), id: id as u32, probability: here[id].exp() })
        .collect();
    let best = pellucid_engine::sample::argmax(answer) as usize;
    let bits = |nats: f32| nats / std::f32::consts::LN_2;
    // A probability of zero contributes nothing, though its logarithm is -inf.
    let expected = |p: f32, value: f32| if p > 0.0 { p * value } else { 0.0 };
    LensCell {
        predictions,
        entropy_bits: bits(-here.iter().map(|&l| expected(l.exp(), l)).sum::<f32>()).max(0.0),
        kl_to_final_bits: bits(answer.iter().zip(here).map(|(&a, &h)| expected(a.exp(), a - h)).sum::<f32>()).max(0.0),
        rank_of_final: 1 + here.iter().filter(|&&l| l > here[best]).count() as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pellucid_models::LoadOptions;

    #[test]
    fn the_last_row_is_the_models_output_and_the_lens_converges() {
        let loaded = LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model");
        let tokens = loaded
            .encode("Once upon a time, there was a little girl named Lily. She loved to play with her")
            .expect("tokens");
        let table = compute(&loaded, &tokens, &Plan::default()).expect("a table");
        let layers = loaded.model.program().architecture().layers.len();
        assert_eq!((table.rows.len(), table.prompt_tokens.len()), (layers + 1, tokens.len()));
        let run = loaded
            .model
            .run(std::slice::from_ref(&tokens), &Plan::capture(["logits"]), &RunOptions::default())
            .expect("a run");
        for position in 0..tokens.len() {
            let column: Vec<&LensCell> = table.rows.iter().map(|row| &row.cells[position]).collect();
            let answer = column[layers];
            assert_eq!(answer.predictions[0].id, pellucid_engine::sample::argmax(run.captures[0].array.row(position)));
            assert!(answer.agrees() && answer.kl_to_final_bits < 1e-4);
            assert!(
                column
                    .iter()
                    .all(|cell| cell.entropy_bits.is_finite() && cell.entropy_bits <= 11.01 && cell.rank_of_final >= 1)
            );
        }
        let kl = |row: usize| table.rows[row].cells.iter().map(|cell| cell.kl_to_final_bits).sum::<f32>();
        assert!(kl(layers - 1) < kl(0) / 2.0, "the last layers are closer to the output than the embedding");
    }
}
