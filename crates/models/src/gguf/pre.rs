//! How byte-level tokenizers cut text into words before merging, by the name that `tokenizer.ggml.pre` has for it.
//!
//! The patterns are those of the models' own `tokenizer.json`; llama.cpp's copies differ in spelling only.

use crate::{Error, Result};

use super::GgufFile;

const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// What a byte-level tokenizer does before it merges.
#[derive(Clone, Copy)]
pub(super) struct Pre {
    /// Each cuts the pieces that the one before left; a match is a piece, and so is what lies between matches.
    pub(super) patterns: &'static [&'static str],
    /// Whether text is brought to Unicode's composed form first.
    pub(super) composed: bool,
    /// Whether a word that is in the vocabulary is taken whole.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with the bos token where the file does not say.
    pub(super) add_bos: bool,
}

const PLAIN: Pre = Pre { patterns: &[GPT_2], composed: false, ignore_merges: false, add_bos: false };

/// The cutting that the file names.
pub(super) fn pre(file: &GgufFile) -> Result<Pre> {
    let name = match (file.text("tokenizer.ggml.pre")?, file.architecture()?) {
        (Some(name), _) => name,
        // Files from before the key existed; only for these is there no doubt.
        (None, "gpt2" | "phi2") => "gpt-2",
        (None, "gptneox") => "olmo",
        (None, "qwen2" | "qwen2moe" | "qwen3" | "qwen3moe") => "qwen2",
        (None, "bloom") => "bloom",
        (None, arch) => {
            let what = format!(
                "{}: tokenizer.ggml.pre is missing, and architecture {arch:?} does not tell how text is cut into words",
                file.path().display()
            );
            return Err(Error::unsupported(what, REMEDY));
        }
    };
    Ok(match name {
        "default" | "gpt-2" | "phi-2" | "mpt" | "jais" | "trillion" => PLAIN,
        "olmo" => Pre { composed: true, ..PLAIN },
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            Pre { patterns: &[r"\p{N}", GPT_2], ..PLAIN }
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "pixtral" | "lfm2" => {
            Pre { patterns: &[LLAMA_3], ignore_merges: true, add_bos: true, ..PLAIN }
        }
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => Pre { patterns: &[LLAMA_3], ..PLAIN },
        "qwen2" | "deepseek-r1-qwen" | "megrez" => Pre { patterns: &[QWEN_2], composed: true, ..PLAIN },
        "stablelm2" | "hunyuan" => Pre { patterns: &[QWEN_2], ..PLAIN },
        "gpt-4o" | "llama4" => Pre { patterns: &[GPT_4O], ignore_merges: true, ..PLAIN },
        "tekken" => Pre { patterns: &[TEKKEN], ignore_merges: true, add_bos: true, ..PLAIN },
        "bloom" | "poro-chat" | "gpt3-finnish" => Pre { patterns: &[BLOOM], ..PLAIN },
        "viking" => Pre { patterns: &[BLOOM, r"\p{N}"], ..PLAIN },
        other => {
            let what = format!("{}: the tokenizer's way to cut words, {other:?}, is not known", file.path().display());
            return Err(Error::unsupported(what, REMEDY));
        }
    })
}

const REMEDY: &str = "use the model's Hugging Face directory, which has its tokenizer.json";
