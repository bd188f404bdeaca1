//! The pre-tokenizers of byte-level BPE, by their names in `tokenizer.ggml.pre`.
//!
//! The patterns are those of the models' own `tokenizer.json`; llama.cpp's are written differently
//! but equivalent.

use crate::{Error, Result};

use super::GgufFile;

const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// Normalization and splitting before byte-level BPE merges.
#[derive(Clone, Copy)]
pub(super) struct PreTokenizer {
    /// Split patterns, applied in sequence; matches and the text between them become separate
    /// pieces.
    pub(super) patterns: &'static [&'static str],
    /// Whether text is NFC-normalized first.
    pub(super) nfc: bool,
    /// Whether a piece that is in the vocabulary becomes one token without applying merges.
    pub(super) ignore_merges: bool,
    /// Default of `add_bos_token` if the file does not have it.
    pub(super) add_bos: bool,
}

const PLAIN: PreTokenizer = PreTokenizer { patterns: &[GPT_2], nfc: false, ignore_merges: false, add_bos: false };

/// Returns the pre-tokenizer that the file names.
pub(super) fn pre_tokenizer(file: &GgufFile) -> Result<PreTokenizer> {
    let name = match (file.text("tokenizer.ggml.pre")?, file.architecture()?) {
        (Some(name), _) => name,
        // Files older than the key; only for these architectures is the pre-tokenizer unambiguous.
        (None, "gpt2" | "phi2") => "gpt-2",
        (None, "gptneox") => "olmo",
        (None, "qwen2" | "qwen2moe" | "qwen3" | "qwen3moe") => "qwen2",
        (None, "bloom") => "bloom",
        (None, arch) => {
            let what = format!(
                "{}: tokenizer.ggml.pre is missing, and architecture {arch:?} does not imply a pre-tokenizer",
                file.path().display()
            );
            return Err(Error::unsupported(what, REMEDY));
        }
    };
    Ok(match name {
        "default" | "gpt-2" | "phi-2" | "mpt" | "jais" | "trillion" => PLAIN,
        "olmo" => PreTokenizer { nfc: true, ..PLAIN },
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            PreTokenizer { patterns: &[r"\p{N}", GPT_2], ..PLAIN }
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "pixtral" | "lfm2" => {
            PreTokenizer { patterns: &[LLAMA_3], ignore_merges: true, add_bos: true, ..PLAIN }
        }
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => PreTokenizer { patterns: &[LLAMA_3], ..PLAIN },
        "qwen2" | "deepseek-r1-qwen" | "megrez" => PreTokenizer { patterns: &[QWEN_2], nfc: true, ..PLAIN },
        "stablelm2" | "hunyuan" => PreTokenizer { patterns: &[QWEN_2], ..PLAIN },
        "gpt-4o" | "llama4" => PreTokenizer { patterns: &[GPT_4O], ignore_merges: true, ..PLAIN },
        "tekken" => PreTokenizer { patterns: &[TEKKEN], ignore_merges: true, add_bos: true, ..PLAIN },
        "bloom" | "poro-chat" | "gpt3-finnish" => PreTokenizer { patterns: &[BLOOM], ..PLAIN },
        "viking" => PreTokenizer { patterns: &[BLOOM, r"\p{N}"], ..PLAIN },
        other => {
            let what = format!("{}: unknown pre-tokenizer {other:?} in tokenizer.ggml.pre", file.path().display());
            return Err(Error::unsupported(what, REMEDY));
        }
    })
}

const REMEDY: &str = "use the model's Hugging Face directory, which has its tokenizer.json";
