//! A tokenizer without its model.

use crate::errors::{from_models, guarded};
use pellucid_models::tokenizer;
use pyo3::prelude::*;
use std::path::PathBuf;

/// A tokenizer without its model. Thread-safe.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Tokenizer(tokenizer::Tokenizer);

#[pymethods]
impl Tokenizer {
    /// Loads the tokenizer of a directory or GGUF file. For an adapter or SAE without a tokenizer,
    /// loads that of its base model.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Tokenizer> {
        let loaded = guarded(py, || pellucid_models::load_tokenizer(&path))?;
        loaded.map(Tokenizer).map_err(|fault| from_models(py, &fault))
    }

    /// Encodes a text; `special` adds the special tokens of the tokenizer's template (such as BOS).
    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        self.0.encode(text, special).map_err(|fault| from_models(py, &fault))
    }

    /// Decodes tokens to text.
    fn decode(&self, tokens: Vec<u32>, skip_special: bool) -> String {
        self.0.decode(&tokens, skip_special)
    }

    /// The text of one token inside a longer text (leading space included).
    fn token_text(&self, token: u32) -> String {
        self.0.token_text(token)
    }

    /// The single token with this text, if there is one.
    fn find_token(&self, text: &str) -> Option<u32> {
        self.0.find(text)
    }

    /// The vocabulary size.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    /// The special token ids `(bos, eos, pad, unk)`.
    #[getter]
    #[allow(clippy::type_complexity)] // unpacked by the caller
    fn special(&self) -> (Option<u32>, Vec<u32>, Option<u32>, Option<u32>) {
        let special = self.0.special();
        (special.bos, special.eos.clone(), special.pad, special.unk)
    }

    /// Whether `pad` is `eos[0]` because the files name no pad token.
    #[getter]
    fn pad_from_eos(&self) -> bool {
        self.0.special().pad_from_eos
    }

    /// The file it was loaded from.
    #[getter]
    fn origin(&self) -> PathBuf {
        self.0.origin().to_owned()
    }

    /// The base model whose tokenizer this is, if the path has none of its own.
    #[getter]
    fn base(&self) -> Option<&str> {
        self.0.base()
    }
}
