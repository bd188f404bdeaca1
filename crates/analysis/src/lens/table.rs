//! Result of the logit lens: layers × tokens, each cell with the top predictions for the next
//! token.

use serde::{Deserialize, Serialize};

/// A logit lens over one prompt.
///
/// Rows go from the model's input to its output. The last row is the model's actual output; the
/// other rows are compared with it. A row may have fewer cells than the prompt has tokens; missing
/// cells are drawn blank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LensTable {
    /// The model's name, as shown in the title.
    pub model: String,
    /// Text of each prompt token, as the tokenizer decodes it (with spaces and line breaks).
    pub prompt_tokens: Vec<String>,
    /// One row per site, in the order of computation.
    pub rows: Vec<LensRow>,
}

/// Predictions at one site.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LensRow {
    /// Name of the site: `layers.0.resid_pre`, `layers.0.resid_post`, …, `logits` (last row).
    pub site: String,
    /// Short label of the row.
    pub label: String,
    /// One cell per prompt token: predictions for the token that follows it.
    pub cells: Vec<LensCell>,
}

/// Summary of the next-token distribution at one site and position.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LensCell {
    /// Most probable next tokens, best first.
    #[serde(rename = "guesses")]
    pub predictions: Vec<Prediction>,
    /// Entropy of the distribution in bits: 0 if certain, log₂(vocab) if uniform.
    pub entropy_bits: f32,
    /// KL(last row ‖ this row) in bits.
    pub kl_to_final_bits: f32,
    /// Rank in this cell of the last row's top token; 1 if this cell agrees with it.
    pub rank_of_final: u32,
}

/// A predicted token.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Prediction {
    /// The token's text, as the tokenizer decodes it.
    pub token: String,
    /// Token id.
    pub id: u32,
    /// Its probability, from 0 to 1.
    pub probability: f32,
}

impl LensTable {
    /// Whether there is no cell to draw.
    pub fn is_empty(&self) -> bool {
        self.prompt_tokens.is_empty() || self.rows.is_empty()
    }
}

impl LensCell {
    /// Whether the top prediction equals the last row's.
    pub fn agrees(&self) -> bool {
        self.rank_of_final == 1
    }
}

#[cfg(test)]
pub(super) mod sample {
    //! Small tables for the tests of the renderers.
    use super::*;

    /// A cell with this top token, probability and rank of the final prediction.
    pub fn cell(token: &str, probability: f32, rank_of_final: u32) -> LensCell {
        let predictions = vec![
            Prediction { token: token.into(), id: 7, probability },
            Prediction { token: " or".into(), id: 8, probability: probability / 4.0 },
        ];
        LensCell { predictions, entropy_bits: 2.5, kl_to_final_bits: 0.5, rank_of_final }
    }

    /// Two prompt tokens through an embedding, one layer and the logits.
    pub fn table() -> LensTable {
        let row = |site: &str, label: &str, cells| LensRow { site: site.into(), label: label.into(), cells };
        LensTable {
            model: "tiny".into(),
            prompt_tokens: vec!["The".into(), " Eiffel".into()],
            rows: vec![
                row("embed", "embed", vec![cell("\n", 0.05, 31), cell(" the", 0.125, 9)]),
                row("layers.0.resid_post", "layer 0", vec![cell(" cat", 0.5, 2), cell(" Tower", 0.75, 1)]),
                row("logits", "logits", vec![cell(" man", 0.25, 1), cell(" Tower", 1.0, 1)]),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_serializes_under_its_field_names() {
        let json = serde_json::to_value(sample::table()).unwrap();
        assert_eq!(json["prompt_tokens"][1], " Eiffel");
        let cell = &json["rows"][1]["cells"][1];
        assert_eq!(json["rows"][1]["site"], "layers.0.resid_post");
        assert_eq!(cell["guesses"][0], serde_json::json!({"token": " Tower", "id": 7, "probability": 0.75}));
        assert_eq!((&cell["entropy_bits"], &cell["rank_of_final"]), (&2.5.into(), &1.into()));
    }

    #[test]
    fn only_rank_one_agrees() {
        assert!(sample::cell("a", 0.5, 1).agrees());
        assert!(!sample::cell("a", 0.5, 2).agrees());
        // A missing rank (0) is not agreement.
        assert!(!LensCell::default().agrees());
    }
}
