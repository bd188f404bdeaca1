//! The table of benchmarks, each with its expected answer. To add one, add a row here and its
//! directory in `directories`.

use super::Category::{self, Architecture, Comparison, Detection, Loading, Memory, Regression, Sae, Support};
use super::directories::{CUSTOM, Directories};
use super::queries::*;
use super::result::{IdentifySettings, MODEL};
use crate::{Error, Result};
use pellucid_models::inspect::{self as inspection, Format, TokenizerState};
use pellucid_models::{families, inspect, pull};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Category, name, query, directory, expected answer.
type BenchmarkRow = (Category, &'static str, &'static Query, &'static str, &'static str);

const LLAMA: &str = "LlamaForCausalLM (llama), supported";
const YES: &str = "supported, transformers";
const NO: &str = "not supported, transformers";

#[rustfmt::skip]
const ROWS: &[BenchmarkRow] = &[
    (Detection, "architecture_detection_llama", &INFO, "llama", LLAMA),
    (Detection, "architecture_detection_qwen", &INFO, "qwen", "Qwen2ForCausalLM (qwen2), supported"),
    (Detection, "architecture_detection_mistral", &INFO, "mistral", "MistralForCausalLM (mistral), supported"),
    (Detection, "architecture_detection_gemma", &INFO, "gemma", "GemmaForCausalLM (gemma), supported"),
    (Detection, "architecture_detection_phi", &INFO, "phi", "Phi3ForCausalLM (phi3), supported"),
    (Detection, "architecture_detection_deepseek", &INFO, "deepseek", "DeepseekForCausalLM (deepseek), not supported, custom code"),
    (Detection, "architecture_detection_falcon", &INFO, "falcon", "FalconForCausalLM (falcon), supported"),
    (Detection, "category_detection_transformers_llm", &CATEGORY, "llama", "transformers"),
    (Detection, "category_detection_vision_encoder", &IS_VISION, "vision", "true"),
    (Detection, "category_detection_asr_model", &IS_ASR, "asr", "true"),
    (Detection, "category_detection_diffusers", &IS_DIFFUSERS, "diffusers", "true"),
    (Detection, "category_detection_sae_model", &CATEGORY, "sae_resid_post", "sae"),
    (Detection, "omni_detection_omni_qwen", &IS_OMNI, "omni_qwen", "true"),
    (Detection, "omni_detection_omni_any2any", &IS_OMNI, "omni_any2any", "true"),
    (Detection, "omni_detection_omni_qwen3", &IS_OMNI, "omni_qwen3", "true"),
    (Detection, "omni_detection_regular_llama", &IS_OMNI, "llama", "false"),
    (Detection, "omni_detection_regular_qwen", &IS_OMNI, "qwen", "false"),
    (Detection, "omni_detection_regular_mistral", &IS_OMNI, "mistral", "false"),
    (Sae, "sae_detection_sae_resid_post", &IS_SAE, "sae_resid_post", "true"),
    (Sae, "sae_detection_sae_mlp_out", &IS_SAE, "sae_mlp_out", "true"),
    (Sae, "sae_detection_sae_attn_out", &IS_SAE, "sae_attn_out", "true"),
    (Sae, "sae_detection_sae_transcoder", &IS_SAE, "sae_transcoder", "true"),
    (Sae, "sae_detection_sae_resid_post_all", &IS_SAE, "sae_resid_post_all", "true"),
    (Sae, "sae_detection_sae_multi", &IS_SAE, "sae_multi", "true"),
    (Sae, "sae_base_model_extraction", &SAE_BASE, "sae_multi", "base-model"),
    (Category::Tokenizer, "tokenizer_load_normal", &TOKENIZER, "whole", "the built-in tokenizer"),
    (Category::Tokenizer, "tokenizer_load_sae_fallback", &TOKENIZER, "sae_multi", "the built-in tokenizer"),
    (Category::Tokenizer, "tokenizer_load_missing", &TOKENIZER_REFUSAL, "without_tokenizer", "refused, naming no tokenizer"),
    (Category::Tokenizer, "tokenizer_pad_token", &PAD_TOKEN, "whole", "the end-of-text token"),
    (Category::Tokenizer, "tokenizer_download_local_hub", &DOWNLOAD, HUB, "the built-in tokenizer"),
    (Support, "support_check_supported_llama", &SUPPORT, "llama", YES),
    (Support, "support_check_supported_qwen", &SUPPORT, "qwen", YES),
    (Support, "support_check_supported_mistral", &SUPPORT, "mistral", YES),
    (Support, "support_check_supported_gemma", &SUPPORT, "gemma", YES),
    (Support, "support_check_unsupported_custom", &SUPPORT, "unknown", NO),
    (Support, "support_check_glm4_moe_lite", &SUPPORT, "glm4_moe_lite", YES),
    (Support, "support_check_step_robotics", &SUPPORT, "step_robotics", YES),
    (Support, "support_check_qwen3", &SUPPORT, "qwen3", YES),
    (Support, "custom_architecture_registration", &REGISTER, "custom", "llama"),
    (Support, "support_check_custom_registered", &SUPPORT, "custom", YES),
    (Memory, "model_info_with_memory", &INFO, "llama", LLAMA),
    (Memory, "category_detection_with_memory", &CATEGORY, "llama", "transformers"),
    (Memory, "support_check_with_memory", &SUPPORT, "llama", YES),
    (Memory, "sae_detection_with_memory", &IS_SAE, "sae_multi", "true"),
    (Comparison, "strategy_detection_transformers", &CATEGORY, "llama", "transformers"),
    (Comparison, "strategy_support_transformers", &SUPPORT, "llama", YES),
    (Comparison, "strategy_full_info_transformers", &INFO, "llama", LLAMA),
    (Comparison, "strategy_detection_vision", &CATEGORY, "vision", "vision_encoder"),
    (Comparison, "strategy_support_vision", &SUPPORT, "vision", "not supported, vision_encoder"),
    (Comparison, "strategy_full_info_vision", &INFO, "vision", "SiglipModel (siglip), not supported"),
    (Comparison, "strategy_detection_asr", &CATEGORY, "asr", "asr"),
    (Comparison, "strategy_support_asr", &SUPPORT, "asr", "supported, asr"),
    (Comparison, "strategy_full_info_asr", &INFO, "asr", "WhisperForConditionalGeneration (whisper), supported"),
    (Comparison, "strategy_selection_native", &STRATEGY, "whole", "native family"),
    (Comparison, "strategy_selection_mapped", &STRATEGY, "custom", "mapped custom type"),
    (Comparison, "strategy_selection_assumed", &STRATEGY_AS_LLAMA, "unheard_of", "assumed family"),
    (Comparison, "strategy_selection_adapter", &STRATEGY, "adapter", "adapter merge"),
    (Comparison, "strategy_selection_gguf", &STRATEGY, "model.gguf", "GGUF"),
    (Comparison, "strategy_selection_not_assumed", &STRATEGY, "unheard_of", "refused"),
    (Comparison, "strategy_selection_refused", &STRATEGY, "unknown", "refused"),
    (Architecture, "arch_variation_llama_simple", &INFO, "simple", LLAMA),
    (Architecture, "arch_variation_llama_with_quant", &INFO, "quantized", "LlamaForCausalLM (llama), supported, quantized"),
    (Architecture, "arch_variation_llama_with_talker", &INFO, "talker", "LlamaForCausalLM (llama), supported, talker"),
    (Architecture, "arch_variation_qwen_omni", &INFO, "omni_qwen", "Qwen2_5OmniModel (qwen2_5_omni), not supported, talker"),
    (Architecture, "arch_variation_complex_config", &INFO, "complex",
        "Qwen2_5OmniModel (qwen2_5_omni), not supported, quantized, talker, custom code"),
    (Architecture, "arch_variation_very_large_config", &LARGE_INFO, "large", LLAMA),
    (Regression, "regression_get_model_info_llama", &INFO, "llama", LLAMA),
    (Regression, "regression_get_model_info_qwen", &INFO, "qwen", "Qwen2ForCausalLM (qwen2), supported"),
    (Regression, "regression_is_supported_llama", &SUPPORT, "llama", YES),
    (Regression, "regression_detect_category_llama", &CATEGORY, "llama", "transformers"),
    (Regression, "regression_detect_category_vision", &CATEGORY, "vision", "vision_encoder"),
    (Regression, "regression_is_omni_model_false", &IS_OMNI, "llama", "false"),
    (Regression, "regression_is_omni_model_true", &IS_OMNI, "omni_qwen", "true"),
    (Regression, "regression_is_sae_model", &IS_SAE, "sae_resid_post", "true"),
    (Regression, "regression_is_sae_model_false", &IS_SAE, "llama", "false"),
    (Loading, "load_weights_as_stored", &OPEN, "whole", "the built-in model"),
    (Loading, "load_weights_f32", &OPEN_F32, "whole", "the built-in model"),
    (Loading, "load_concurrent_8_threads", &OPEN_CONCURRENTLY, "whole", "8 times: the built-in model"),
    (Loading, "detect_concurrent_8_threads", &INFO_CONCURRENTLY, "llama", "8 times: LlamaForCausalLM (llama), supported"),
    (Loading, "full_report_sharded_7b", &REPORT, "sharded", "32 layers, 6738415616 parameters, native, it will run"),
    (Loading, "error_missing_path", &SUPPORT_REFUSAL, "no_such_path", "refused, naming No such file"),
    (Loading, "error_empty_directory", &SUPPORT_REFUSAL, "empty", "refused, naming no config.json"),
    (Loading, "error_file_is_no_model", &SUPPORT_REFUSAL, "file.txt", "refused, naming file.txt"),
    (Loading, "error_truncated_config", &SUPPORT_REFUSAL, "truncated_config", "refused, naming config.json"),
    (Loading, "error_deeply_nested_config", &SUPPORT_REFUSAL, "deep_config", "refused, naming config.json"),
    (Loading, "error_unknown_architecture", &OPEN_REFUSAL, "unknown", "refused, naming acme_unheard_of"),
    (Loading, "error_lfs_pointer", &OPEN_REFUSAL, "lfs_pointer", "refused, naming Git LFS"),
    (Loading, "error_truncated_weights", &OPEN_REFUSAL, "truncated_weights", "refused, naming model.safetensors"),
];

/// Stands in for a directory: the row downloads from the local hub.
const HUB: &str = "hub";

/// Metadata value that selects the model of the gate on opening time.
pub(super) const SMOLLM2: &str = "SmolLM2-135M";

/// A query with its expected answer.
pub struct Benchmark {
    /// Its name.
    pub name: String,
    /// Its category.
    pub category: Category,
    /// The timed query.
    pub query: &'static Query,
    /// The model directory or file.
    pub path: PathBuf,
    /// The expected answer.
    pub expected: String,
    /// Name of the directory or of the real model.
    pub metadata: BTreeMap<String, String>,
}

/// Returns the benchmarks that the settings select; downloads only with a hub.
///
/// # Errors If the real model is missing.
pub fn select_benchmarks(
    directories: &Directories,
    settings: &IdentifySettings,
    has_hub: bool,
) -> Result<Vec<Benchmark>> {
    families::register_architecture(CUSTOM, "llama")?;
    let rows = ROWS.iter().filter(|(_, _, _, directory, _)| has_hub || *directory != HUB);
    let mut all: Vec<Benchmark> = rows
        .map(|&(category, name, query, directory, expected)| {
            let metadata = BTreeMap::from([("directory".into(), directory.into())]);
            let path = directories.path(directory);
            Benchmark { name: name.into(), category, query, path, expected: expected.into(), metadata }
        })
        .collect();
    if let Some(model) = &settings.model {
        all.extend(real_model_benchmarks(model)?);
    }
    all.retain(|benchmark| settings.category.is_none_or(|category| category == benchmark.category));
    Ok(all)
}

/// Resolves the path of the real model.
///
/// # Errors If it does not exist.
pub fn find_model(name: &str) -> Result<PathBuf> {
    pull::resolve(name).map_err(|error| problem(name, &error))
}

fn problem(name: &str, error: &pellucid_models::Error) -> Error {
    Error::Suite { suite: super::NAME.into(), problem: format!("{MODEL} is `{name}`: {error}") }
}

/// Returns the benchmarks of a real model: a directory, a GGUF file or a pulled name. An inspection
/// beforehand gives the expected answers.
fn real_model_benchmarks(name: &str) -> Result<Vec<Benchmark>> {
    let path = find_model(name)?;
    let report = inspect(&path).map_err(|error| problem(name, &error))?;
    let has_tokenizer = matches!(report.tokenizer.state, TokenizerState::Present | TokenizerState::Rebuilt);
    let is_native = report.support == inspection::Support::Native;
    let vocab = report.tokenizer.vocab.unwrap_or_default();
    let rows: [(&str, &'static Query, String, bool); 4] = [
        ("real_model_info", &INFO_TYPE, type_and_support(report.model_type.as_deref(), is_native), true),
        ("real_model_report", &REPORT, summarize(&report), true),
        ("real_model_tokenizer", &TOKENIZER_SIZE, format!("{vocab} tokens"), has_tokenizer),
        (
            "real_model_open",
            &OPEN_LAYERS,
            format!("{} layers, ready to run", report.layers.unwrap_or_default()),
            report.runs(),
        ),
    ];
    let is_smollm2 = report.format == Format::Directory
        && report.model_type.as_deref() == Some("llama")
        && (report.layers, report.width, report.vocab) == (Some(30), Some(576), Some(49152));
    let shown = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let model = if is_smollm2 { SMOLLM2 } else { &shown };
    let applicable = rows.into_iter().filter(|(.., applies)| *applies);
    Ok(applicable
        .map(|(name, query, expected, _)| {
            let metadata = BTreeMap::from([("model".into(), model.into())]);
            Benchmark { name: name.into(), category: Loading, query, path: path.clone(), expected, metadata }
        })
        .collect())
}
