//! A tokenizer by itself.

use crate::errors::{from_models, guarded};
use pellucid_models::tokenizer;
use pyo3::prelude::*;
use std::path::PathBuf;

/// A tokenizer without its model. Threads may share it.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Tokenizer(tokenizer::Tokenizer);

#[pymethods]
impl Tokenizer {
    /// Loads the tokenizer of a directory or GGUF file, or of the base model of what has none of its own.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Tokenizer> {
        let loaded = guarded(py, || pellucid_models::load_tokenizer(&path))?;
        loaded.map(Tokenizer).map_err(|fault| from_models(py, &fault))
    }

    /// The tokens of a text; `special` adds what the tokenizer puts around a text.
    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        self.0.encode(text, special).map_err(|fault| from_models(py, &fault))
    }

    /// The text of tokens.
    fn decode(&self, tokens: Vec<u32>, skip_special: bool) -> String {
        self.0.decode(&tokens, skip_special)
    }

    /// How one token reads where it stands.
    fn token_text(&self, token: u32) -> String {
        self.0.token_text(token)
    }

    /// The one token that reads as this text.
    fn find_token(&self, text: &str) -> Option<u32> {
        self.0.find(text)
    }

    /// How many tokens the vocabulary has.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    /// The ids with a role of their own: what begins a text, what ends it, what fills up, what stands for the unknown.
    #[getter]
    #[allow(clippy::type_complexity)] // unpacked at once
    fn special(&self) -> (Option<u32>, Vec<u32>, Option<u32>, Option<u32>) {
        let special = self.0.special();
        (special.bos, special.eos.clone(), special.pad, special.unk)
    }

    /// Whether `pad` is the token that ends a text, because the files name none.
    #[getter]
    fn pad_from_eos(&self) -> bool {
        self.0.special().pad_from_eos
    }

    /// The file that it came from.
    #[getter]
    fn origin(&self) -> PathBuf {
        self.0.origin().to_owned()
    }

    /// The base model that it was taken from.
    #[getter]
    fn base(&self) -> Option<&str> {
        self.0.base()
    }
}
