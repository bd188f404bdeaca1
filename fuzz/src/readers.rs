//! Targets of the file readers. Files are written to a directory of the thread, because the readers
//! take paths.

use pellucid_engine::program::Program;
use pellucid_models::adapter::Adapter;
use pellucid_models::chat::{ChatTemplate, Message};
use pellucid_models::checkpoint::Checkpoint;
use pellucid_models::config::Config;
use pellucid_models::tokenizer::{Sidecars, SpecialTokens, Tokenizer};
use pellucid_models::{ModelSource, families};
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Text with every kind of character that tokenizers treat apart.
const TEXT: &str = "Hello wörld, 123  \n\t\u{1F600}\u{301} <s>[INST] don't 中文 \u{0}";

thread_local! {
    static DIRECTORY: TempDir = crate::scratch_directory().expect("a directory for inputs");
}

/// Writes an input to a folder of this thread and returns the file.
fn put(folder: &str, name: &str, data: &[u8]) -> PathBuf {
    let dir = DIRECTORY.with(|directory| directory.path().join(folder));
    let path = dir.join(name);
    let written = std::fs::write(&path, data)
        .or_else(|_| std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&path, data)));
    written.expect("the input is written");
    path
}

fn read_all(checkpoint: &Checkpoint) {
    for tensor in checkpoint.tensors() {
        assert_eq!(checkpoint.bytes(tensor).len(), tensor.byte_len(), "{}", tensor.name);
    }
    // An error is an answer.
    let _ = checkpoint.metadata();
}

/// A safetensors file.
pub fn safetensors(data: &[u8]) {
    if let Ok(checkpoint) = Checkpoint::open_file(&put("safetensors", "model.safetensors", data)) {
        read_all(&checkpoint);
    }
}

/// An index of shards, beside two valid shards.
pub fn index(data: &[u8]) {
    for (name, shard) in crate::seeds::shards() {
        put("index", name, &shard);
    }
    let path = put("index", "model.safetensors.index.json", data);
    if let Ok(checkpoint) = Checkpoint::open(path.parent().expect("a folder")) {
        read_all(&checkpoint);
    }
}

/// A GGUF file: configuration, program, tensors, tokenizer, template.
pub fn gguf(data: &[u8]) {
    let Ok(source) = ModelSource::open(Some(&put("gguf", "model.gguf", data))) else { return };
    if let Ok(config) = source.config() {
        build(&config);
        let _ = source.tensors(&config);
    }
    if let Ok(Some(tokenizer)) = source.tokenizer() {
        round_trip(&tokenizer);
    }
    let _ = source.chat_template();
}

/// The pickle of a torch archive.
pub fn pickle(data: &[u8]) {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::with_capacity(data.len() + 1024)));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let storage: Vec<u8> = (0..16).collect();
    for (name, bytes) in [("archive/data.pkl", data), ("archive/data/0", &storage), ("archive/version", b"3\n")] {
        archive.start_file(name, options).expect("a member");
        archive.write_all(bytes).expect("in memory");
    }
    let bytes = archive.finish().expect("in memory").into_inner();
    if let Ok(checkpoint) = Checkpoint::open_file(&put("pickle", "pytorch_model.bin", &bytes)) {
        read_all(&checkpoint);
    }
}

fn round_trip(tokenizer: &Tokenizer) {
    if let Ok(tokens) = tokenizer.encode(TEXT, true) {
        let _ = tokenizer.decode(&tokens, false);
        tokens.iter().take(20).for_each(|&token| drop(tokenizer.token_bytes(token)));
    }
}

/// A `tokenizer.json`.
pub fn tokenizer(data: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_bytes(Path::new("fuzz"), data, &Sidecars::default()) {
        round_trip(&tokenizer);
    }
}

/// A `config.json`, by the family that it names.
pub fn config(data: &[u8]) {
    if let Ok(config) = Config::parse(data, Path::new("fuzz")) {
        build(&config);
    }
}

fn build(config: &Config) {
    if let Ok(family) = families::read(config)
        && let Ok(program) = Program::new(family.architecture)
    {
        assert!(program.sites().count() > 0);
    }
}

/// A chat template, compiled and rendered.
pub fn template(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let template = ChatTemplate::new(source, Path::new("fuzz"));
    let message = |role: &str, content: &str| Message::new(role, content);
    let messages =
        [message("system", "Be brief."), message("user", "Hi"), message("assistant", "Hello"), message("user", "?")];
    let _ = template.render(&messages, true, &SpecialTokens::default());
}

/// The configuration of a LoRA adapter, beside valid weights.
pub fn adapter(data: &[u8]) {
    put("adapter", "adapter_model.safetensors", &crate::seeds::adapter_weights());
    let path = put("adapter", "adapter_config.json", data);
    let _ = Adapter::open(path.parent().expect("a folder"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mutations of inputs that are refused at once would test nothing.
    #[test]
    fn the_seeds_are_valid_files() {
        for seed in crate::seeds::safetensors() {
            Checkpoint::open_file(&put("safetensors", "model.safetensors", &seed)).expect("safetensors");
        }
        for seed in crate::seeds::gguf() {
            let source = ModelSource::open(Some(&put("gguf", "model.gguf", &seed))).expect("GGUF");
            let config = source.config().expect("a configuration");
            source.tensors(&config).expect("tensors");
        }
        for seed in crate::seeds::index() {
            index(&seed);
            let path = put("index", "model.safetensors.index.json", &seed);
            assert_eq!(Checkpoint::open(path.parent().expect("a folder")).expect("shards").tensors().len(), 2);
        }
        for seed in crate::seeds::pickle() {
            pickle(&seed);
            let path = put("pickle", "kept", b"").with_file_name("pytorch_model.bin");
            assert_eq!(Checkpoint::open_file(&path).expect("a pickle").tensors().len(), 1);
        }
    }
}
