//! `lens`: the logit lens, for chosen layers and positions.

use crate::api_error::{ApiError, ApiResult};
use crate::body::{RequestBody, Source};
use crate::mcp::input::{EditInput, PromptInput};
use crate::mcp::progress::Progress;
use crate::mcp::summary::{at_most, list_cuts};
use crate::mcp::tool::Tool;
use crate::routes::direct::{PreparedCall, run_alone};
use crate::state::AppState;
use pellucid_analysis::lens::{LensCell, LensTable, compute_with};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Positions that are shown if none are chosen: the last ones.
const DEFAULT_POSITIONS: usize = 4;
/// Most cells of the answer.
const MAX_CELLS: usize = 1024;

pub struct Lens;

/// The arguments of `lens`.
#[derive(Debug, JsonSchema)]
pub struct LensInput {
    #[schemars(flatten)]
    input: PromptInput,
    #[schemars(flatten)]
    edits: EditInput,
    #[schemars(flatten)]
    own: LensFields,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct LensFields {
    /// Positions to show; negative ones count from the end [default: the last 4].
    positions: Option<Vec<i64>>,
    /// Layers to show [default: all]. The embedding and the model's output are always shown.
    layers: Option<Vec<usize>>,
    /// Predictions of each cell [default: 3, at most 5].
    top: Option<usize>,
}

impl RequestBody for LensInput {
    fn read(source: &Source) -> ApiResult<LensInput> {
        Ok(LensInput { input: source.part()?, edits: source.part()?, own: source.part()? })
    }
}

/// The logit lens of a prompt.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LensOutput {
    /// The model.
    model: String,
    /// The text of each token of the prompt; the index is the position.
    tokens: Vec<String>,
    /// From the embedding to the model's output.
    layers: Vec<LayerOutput>,
    /// The parts left out of the answer.
    cut: Vec<String>,
}

/// Predictions at one site.
#[derive(Debug, Serialize, JsonSchema)]
struct LayerOutput {
    /// The site; `logits` is the model's output.
    site: String,
    /// The predictions at each chosen position.
    cells: Vec<CellOutput>,
}

/// The prediction of the token after a position.
#[derive(Debug, Serialize, JsonSchema)]
struct CellOutput {
    /// The position.
    position: usize,
    /// The most likely next tokens, best first.
    top: Vec<PredictionOutput>,
    /// Entropy of the prediction in bits: 0 is certain; absent if not finite.
    entropy_bits: Option<f32>,
    /// KL divergence of the model's output from it, in bits: 0 if they are equal.
    kl_to_output_bits: Option<f32>,
    /// Rank here of the token that the model finally predicts; 1 if this layer already predicts it.
    rank_of_output: u32,
}

/// A predicted token.
#[derive(Debug, Serialize, JsonSchema)]
struct PredictionOutput {
    /// Its text.
    token: String,
    /// Its id.
    id: u32,
    /// Its probability; absent if not finite.
    probability: Option<f32>,
}

impl Tool for Lens {
    const NAME: &'static str = "lens";
    const TITLE: &'static str = "Logit lens";
    const DESCRIPTION: &'static str = "Shows what each layer would predict as the next token: the final norm and the \
        unembedding applied to the residual stream after every layer (the logit lens), under the edits of a plan. Use \
        it to find the layer at which an answer appears.";
    type Input = LensInput;
    type Output = LensOutput;

    fn example() -> Value {
        json!({"prompt": "Tom saw a dog. The", "positions": [-1], "top": 2})
    }

    async fn call(state: AppState, input: LensInput, _: Progress) -> ApiResult<LensOutput> {
        let (own, model) = (state.clone(), input.input.acquire(&state).await?);
        run_alone(&state, move |interrupt| {
            let top = at_most("top", input.own.top, 3, 5)?;
            let PreparedCall { model, rows, plan } =
                PreparedCall::new(&own, model, &input.input.fields()?, &input.edits.fields(None))?;
            let [row] = &rows[..] else {
                return Err(ApiError::field("prompt", format!("the lens takes one prompt, not {}", rows.len())));
            };
            let depth = model.loaded.model.program().architecture().layers.len();
            if let Some(layer) = input.own.layers.iter().flatten().find(|&&layer| layer >= depth) {
                let message = format!("there is no layer {layer}; the layers are 0 to {}", depth.saturating_sub(1));
                return Err(ApiError::field("layers", message));
            }
            let positions = positions(input.own.positions.as_deref(), row.len())?;
            let table = compute_with(&model.loaded, row, &plan, Some(interrupt))?;
            Ok(output(&model.id, &table, &positions, input.own.layers.as_deref(), top))
        })
        .await
    }

    fn text(output: &LensOutput) -> String {
        let cell = |cell: &CellOutput| {
            let top = cell.top.first();
            let (token, probability) = top.map_or(("", 0.0), |top| (&top.token, top.probability.unwrap_or(0.0)));
            format!("{}: {token:?} {:.0}%", cell.position, probability * 100.0)
        };
        let layer = |LayerOutput { site, cells }: &LayerOutput| {
            format!("{site}  {}\n", cells.iter().map(cell).collect::<Vec<_>>().join("  "))
        };
        output.layers.iter().map(layer).collect::<String>() + &list_cuts(&output.cut)
    }
}

/// The chosen positions from the start.
fn positions(chosen: Option<&[i64]>, length: usize) -> ApiResult<Vec<usize>> {
    let Some(chosen) = chosen else { return Ok((length.saturating_sub(DEFAULT_POSITIONS)..length).collect()) };
    let resolve = |&position: &i64| {
        let from_start = if position < 0 { position.saturating_add_unsigned(length as u64) } else { position };
        usize::try_from(from_start).ok().filter(|&at| at < length).ok_or_else(|| {
            let message = format!("there is no position {position}; the prompt has {length} tokens");
            ApiError::field("positions", message)
        })
    };
    chosen.iter().map(resolve).collect()
}

fn output(model: &str, table: &LensTable, positions: &[usize], layers: Option<&[usize]>, top: usize) -> LensOutput {
    let is_chosen = |index: usize| {
        // Row 0 is the embedding, row l + 1 layer l; the last one is the output.
        index == 0 || index + 1 == table.rows.len() || layers.is_none_or(|layers| layers.contains(&(index - 1)))
    };
    let chosen: Vec<_> = table.rows.iter().enumerate().filter(|(index, _)| is_chosen(*index)).collect();
    let fit = MAX_CELLS / chosen.len().max(1);
    let mut cut = Vec::new();
    if positions.len() > fit {
        cut.push(format!("{fit} of {} positions are shown; choose layers or fewer positions", positions.len()));
    }
    let cell = |position: usize, cell: &LensCell| CellOutput {
        position,
        top: cell
            .predictions
            .iter()
            .take(top)
            .map(|prediction| PredictionOutput {
                token: prediction.token.clone(),
                id: prediction.id,
                probability: finite(prediction.probability),
            })
            .collect(),
        entropy_bits: finite(cell.entropy_bits),
        kl_to_output_bits: finite(cell.kl_to_final_bits),
        rank_of_output: cell.rank_of_final,
    };
    let layer = |(_, row): (usize, &pellucid_analysis::lens::LensRow)| LayerOutput {
        site: row.site.clone(),
        cells: positions.iter().take(fit).filter_map(|&at| Some(cell(at, row.cells.get(at)?))).collect(),
    };
    let layers = chosen.into_iter().map(layer).collect();
    LensOutput { model: model.into(), tokens: table.prompt_tokens.clone(), layers, cut }
}

fn finite(value: f32) -> Option<f32> {
    value.is_finite().then_some(value)
}
