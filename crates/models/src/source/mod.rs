//! The source of a model: built-in, a Hugging Face directory or a GGUF file.
//!
//! [`ModelSource`] is the only code that distinguishes the three: it reads the configuration,
//! tensors, tokenizer and chat template of each. An adapter (LoRA) is not a source; its base model
//! is. Loading and inspection both open paths here, so they agree on what a path is
//! (`path_kind`) and why it is not a model (`no_model`).

mod adapter_base;
mod file_kind;
mod no_model;
mod path_kind;

pub(crate) use adapter_base::base_candidates;
pub(crate) use no_model::{UnknownType, explain_directory, is_safetensors};
pub(crate) use path_kind::PathKind;
use path_kind::gguf_files;

use crate::builtin;
use crate::chat::ChatTemplate;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::Result;
use crate::files::read_settings;
use crate::gguf::{self, GgufFile};
use crate::json;
use crate::quantized;
use crate::tensors::Tensors;
use crate::tokenizer::{SpecialTokens, Tokenizer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The source of a model.
#[derive(Clone)]
pub enum ModelSource {
    /// The built-in model.
    Builtin,
    /// A Hugging Face directory.
    Directory(PathBuf),
    /// A GGUF file, whose header has been read and checked.
    Gguf(Arc<GgufFile>),
}

impl ModelSource {
    /// Opens the source at a path, or the built-in model if absent. A directory without
    /// `config.json` whose only GGUF file is a model is that file. For an adapter's directory,
    /// opens its base model.
    ///
    /// # Errors
    /// If there is no model at the path, or an adapter whose base model is not found. The
    /// `config.json` of a directory is not read yet.
    pub fn open(path: Option<&Path>) -> Result<ModelSource> {
        path.map_or(Ok(ModelSource::Builtin), |path| ModelSource::open_kind(path, PathKind::of(path)))
    }

    /// Opens the source at a path of a known kind.
    pub(crate) fn open_kind(path: &Path, kind: PathKind) -> Result<ModelSource> {
        match kind {
            PathKind::Directory => Ok(ModelSource::Directory(path.to_path_buf())),
            PathKind::Gguf(file) => Ok(ModelSource::Gguf(Arc::new(GgufFile::open(file)?))),
            // The base is never an adapter.
            PathKind::Adapter => {
                let base = adapter_base::base_of_adapter(path)?;
                ModelSource::open_kind(&base, PathKind::of(&base))
            }
            PathKind::NoModel => Err(no_model::explain(path)),
        }
    }

    /// Directory or file; `None` for the built-in model.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ModelSource::Builtin => None,
            ModelSource::Directory(dir) => Some(dir),
            ModelSource::Gguf(file) => Some(file.path()),
        }
    }

    /// Path for messages: directory or file, or the name of the built-in model.
    pub fn origin(&self) -> &Path {
        self.path().unwrap_or(Path::new(builtin::NAME))
    }

    /// Reads `config.json`; for a GGUF file, its metadata converted to the same keys.
    pub fn config(&self) -> Result<Config> {
        match self {
            ModelSource::Builtin => Config::parse(builtin::CONFIG, self.origin()),
            ModelSource::Directory(dir) => directory_config(dir),
            ModelSource::Gguf(file) => {
                no_model::check_gguf(file)?;
                Config::new(gguf::hf_config(file)?, file.path())
            }
        }
    }

    /// Opens the tensors under their Hugging Face names. `config` gives the quantization method, if
    /// any.
    pub fn tensors(&self, config: &Config) -> Result<Tensors> {
        match self {
            ModelSource::Builtin => Ok(Tensors::Checkpoint(Checkpoint::from_static(builtin::WEIGHTS, builtin::NAME)?)),
            ModelSource::Directory(dir) => Tensors::from_checkpoint(Checkpoint::open(dir)?, config, dir),
            ModelSource::Gguf(file) => Tensors::from_gguf(Arc::clone(file)),
        }
    }

    /// Loads the tokenizer, if there is one.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>> {
        match self {
            ModelSource::Builtin => {
                Tokenizer::from_bytes(self.origin(), builtin::TOKENIZER, &builtin::sidecars()).map(Some)
            }
            ModelSource::Directory(dir) => Tokenizer::from_dir(dir),
            ModelSource::Gguf(file) => gguf_tokenizer(file),
        }
    }

    /// Loads the chat template, if there is one.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        match self {
            ModelSource::Builtin => Ok(None),
            ModelSource::Directory(dir) => ChatTemplate::from_dir(dir),
            // A template is useless without a tokenizer.
            ModelSource::Gguf(file) if file.value(gguf::TOKENIZER_MODEL).is_none() => Ok(None),
            ModelSource::Gguf(file) => {
                let template = gguf::special_tokens(file)?.chat_template;
                Ok(template.map(|source| ChatTemplate::new(&source, file.path())))
            }
        }
    }
}

fn directory_config(dir: &Path) -> Result<Config> {
    let file = dir.join("config.json");
    let value = json::parse_config(&read_settings(&file)?, &file)?;
    Config::new(quantized::with_sidecar(value, dir), &file)
}

/// Rebuilds the tokenizer of a GGUF file; `None` if the file has none.
pub(crate) fn gguf_tokenizer(file: &GgufFile) -> Result<Option<Tokenizer>> {
    if file.value(gguf::TOKENIZER_MODEL).is_none() {
        return Ok(None);
    }
    let special = gguf::special_tokens(file)?;
    let inner = gguf::tokenizer(file)?;
    let mut texts = BTreeMap::new();
    for (name, id) in
        [("bos_token", special.bos), ("eos_token", special.eos), ("pad_token", special.pad), ("unk_token", special.unk)]
    {
        if let Some(text) = id.and_then(|id| inner.id_to_token(id)) {
            texts.insert(name.to_string(), text);
        }
    }
    let mut eos: Vec<u32> = special.eos.into_iter().chain(special.eot).collect();
    eos.dedup();
    let special =
        SpecialTokens { bos: special.bos, eos, pad: special.pad, pad_from_eos: false, unk: special.unk, texts };
    Tokenizer::from_parts(inner, special, file.path()).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter;

    #[test]
    fn the_built_in_model_equals_its_directory() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("builtin");
        let sources = [None, Some(dir.as_path())].map(|path| ModelSource::open(path).expect("a source"));
        assert_eq!(sources.each_ref().map(ModelSource::path), [None, Some(dir.as_path())]);
        let configs = sources.each_ref().map(|source| source.config().expect("a configuration"));
        let [inside, outside] = configs.each_ref().map(|config| config.entries().collect::<Vec<_>>());
        assert_eq!(inside, outside);
        let [inside, outside] = [0, 1].map(|i| sources[i].tensors(&configs[i]).expect("tensors"));
        for name in inside.names() {
            let [inside, outside] = [&inside, &outside].map(|tensors| tensors.get(name).expect("a tensor"));
            assert_eq!((inside.shape, inside.bytes), (outside.shape, outside.bytes), "{name}");
        }
        let [inside, outside] =
            sources.each_ref().map(|source| source.tokenizer().expect("read").expect("a tokenizer"));
        assert_eq!(inside.encode("Once upon a time", true).ok(), outside.encode("Once upon a time", true).ok());
        assert!(sources.iter().all(|source| source.chat_template().expect("read").is_none()));
    }

    #[test]
    fn a_path_that_is_no_model_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let error =
            |path: &Path| ModelSource::open(Some(path)).and_then(|source| source.config()).expect_err("refused");
        assert!(error(dir.path()).to_string().contains("there is no config.json here: the directory is empty"));
        assert!(error(&dir.path().join("nothing")).to_string().contains("nothing"));
        std::fs::write(dir.path().join(adapter::CONFIG), r#"{"base_model_name_or_path": "no/base"}"#).expect("written");
        assert!(error(dir.path()).to_string().contains("is an adapter for `no/base`, not a model"));
    }
}
