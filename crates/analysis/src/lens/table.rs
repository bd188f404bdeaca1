//! What a logit lens found: layers × tokens, each cell the best guesses for the next token.

use serde::Serialize;

/// A logit lens over one prompt.
///
/// The rows go from the input to the output of the model; the last row is the model's real answer, and the other rows
/// are compared with it. A row may be shorter than the prompt (a lens that was asked for some positions only): the
/// renderings leave the missing cells blank.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LensTable {
    /// The model's name, as shown in the title.
    pub model: String,
    /// The text of each prompt token, as the tokenizer decodes it (with its real spaces and line breaks).
    pub prompt_tokens: Vec<String>,
    /// One row a site, in the order in which the model computes them.
    pub rows: Vec<LensRow>,
}

/// The guesses read at one site.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LensRow {
    /// The address of the site: `embed`, `layers.0.resid_post`, …, `logits`.
    pub site: String,
    /// The short name that heads the row.
    pub label: String,
    /// One cell a prompt token: the guesses for the token that follows it.
    pub cells: Vec<LensCell>,
}

/// The distribution over the next token at one site and position, summed up.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LensCell {
    /// The most probable next tokens, best first.
    pub guesses: Vec<Guess>,
    /// The entropy of the whole distribution: 0 when certain, log₂ of the vocabulary when it knows nothing.
    pub entropy_bits: f32,
    /// KL(last row ‖ this row): how many bits a code built on this row would waste on the model's real answer.
    pub kl_to_final_bits: f32,
    /// The rank here of the token that the last row puts first; 1 when this cell already agrees with it.
    pub rank_of_final: u32,
}

/// One candidate for the next token.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Guess {
    /// The token's text, as the tokenizer decodes it.
    pub token: String,
    /// The token's number in the vocabulary.
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
    /// Whether the best guess here is already the one that the last row makes.
    pub fn agrees(&self) -> bool {
        self.rank_of_final == 1
    }
}

#[cfg(test)]
pub(super) mod sample {
    //! Small tables that the tests of the renderings share.
    use super::*;

    /// One guess a cell: `(token, probability, rank of the final answer)`.
    pub fn cell(token: &str, probability: f32, rank_of_final: u32) -> LensCell {
        let guesses = vec![
            Guess { token: token.into(), id: 7, probability },
            Guess { token: " or".into(), id: 8, probability: probability / 4.0 },
        ];
        LensCell { guesses, entropy_bits: 2.5, kl_to_final_bits: 0.5, rank_of_final }
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
    fn a_table_serialises_under_its_own_names() {
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
        // A rank that nobody filled in is not agreement.
        assert!(!LensCell::default().agrees());
    }
}
