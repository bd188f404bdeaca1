//! The sixty-two benchmarks that the first suite of this kind had, under its names, each with the answer that it must get.

use super::fixtures::{BASE, CUSTOM, Fixtures, SITES};
use super::{Benchmark, Category, planned};
use crate::Result;
use pellucid_models::families;
use pellucid_models::inspect::{self, ModelInfo, SupportCheck};
use std::path::PathBuf;

/// Every benchmark that needs nothing but the fixtures.
///
/// # Errors
/// If the model inside this program cannot be loaded, or no port can be listened on.
pub fn all(fixtures: &Fixtures) -> Result<Vec<Benchmark>> {
    families::register_architecture(CUSTOM, "llama")?;
    let mut list = detection(fixtures);
    list.extend(autoencoders(fixtures));
    list.extend(planned::tokenizers(fixtures)?);
    list.extend(support(fixtures));
    list.extend(planned::registration(fixtures));
    list.extend(memory(fixtures));
    list.extend(comparison(fixtures));
    list.extend(planned::strategies(fixtures));
    list.extend(variations(fixtures));
    list.extend(planned::large(fixtures));
    list.extend(regression(fixtures));
    list.extend(planned::loading(fixtures)?);
    Ok(list)
}

/// A description at a glance, in words.
pub(super) fn told(info: &ModelInfo) -> String {
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "nothing".into());
    let mut words = format!("{} ({})", name(&info.architecture), name(&info.model_type));
    words += if info.is_supported { ", supported" } else { ", not supported" };
    for (is_so, word) in
        [(info.is_quantized, ", quantised"), (info.has_talker, ", talker"), (info.has_custom_files, ", custom code")]
    {
        words += if is_so { word } else { "" };
    }
    words
}

fn checked(check: &SupportCheck) -> String {
    let supported = if check.supported { "supported" } else { "not supported" };
    format!("{supported}, {}", check.category.name())
}

pub(super) fn info(name: impl Into<String>, category: Category, path: PathBuf, expected: &str) -> Benchmark {
    Benchmark::new(name, category, "get_model_info", expected, move || inspect::get_model_info(&path), told)
}

pub(super) fn check(name: impl Into<String>, category: Category, path: PathBuf, expected: &str) -> Benchmark {
    Benchmark::new(name, category, "is_model_supported", expected, move || inspect::is_model_supported(&path), checked)
}

fn kind(name: impl Into<String>, category: Category, path: PathBuf, expected: inspect::Category) -> Benchmark {
    let run = move || inspect::detect_model_category(&path);
    Benchmark::new(name, category, "detect_model_category", expected.name(), run, |found| found.name().to_owned())
}

fn yes_or_no(
    name: impl Into<String>,
    category: Category,
    function: &'static str,
    expected: bool,
    run: impl FnMut() -> bool + 'static,
) -> Benchmark {
    Benchmark::new(name, category, function, expected.to_string(), run, bool::to_string)
}

fn omni(name: impl Into<String>, category: Category, path: PathBuf, expected: bool) -> Benchmark {
    yes_or_no(name, category, "is_omni_model", expected, move || inspect::is_omni_model(&path))
}

fn sae(name: impl Into<String>, category: Category, path: PathBuf, expected: bool) -> Benchmark {
    yes_or_no(name, category, "is_sae_model", expected, move || inspect::is_sae_model(&path))
}

fn detection(fixtures: &Fixtures) -> Vec<Benchmark> {
    let architectures = [
        ("llama", "LlamaForCausalLM (llama), supported"),
        ("qwen", "Qwen2ForCausalLM (qwen2), supported"),
        ("mistral", "MistralForCausalLM (mistral), supported"),
        ("gemma", "GemmaForCausalLM (gemma), supported"),
        ("phi", "Phi3ForCausalLM (phi3), supported"),
        ("deepseek", "DeepseekForCausalLM (deepseek), not supported, custom code"),
        ("falcon", "FalconForCausalLM (falcon), supported"),
    ];
    let mut list: Vec<Benchmark> = architectures
        .into_iter()
        .map(|(family, expected)| {
            let name = format!("architecture_detection_{family}");
            info(name, Category::Detection, fixtures.path(family), expected).with("architecture", family)
        })
        .collect();
    list.push(kind(
        "category_detection_transformers_llm",
        Category::Detection,
        fixtures.path("llama"),
        inspect::Category::Transformers,
    ));
    list.extend(parts(fixtures));
    list.push(kind(
        "category_detection_sae_model",
        Category::Detection,
        fixtures.path("sae_resid_post"),
        inspect::Category::Sae,
    ));
    let omnis = [
        ("omni_qwen", "omni_qwen", true),
        ("omni_any2any", "omni_any2any", true),
        ("omni_qwen3", "omni_qwen3", true),
        ("regular_llama", "llama", false),
        ("regular_qwen", "qwen", false),
        ("regular_mistral", "mistral", false),
    ];
    list.extend(omnis.map(|(name, fixture, expected)| {
        omni(format!("omni_detection_{name}"), Category::Detection, fixtures.path(fixture), expected)
            .with("model", name)
    }));
    list
}

/// The kinds that have a question of their own, which is the one that is asked.
fn parts(fixtures: &Fixtures) -> Vec<Benchmark> {
    type Ask = fn(&std::path::Path) -> bool;
    let kinds: [(&str, &str, &'static str, Ask, inspect::Category); 3] = [
        ("vision_encoder", "vision", "is_vision_encoder", inspect::is_vision_encoder, inspect::Category::VisionEncoder),
        ("asr_model", "asr", "is_asr_model", inspect::is_asr_model, inspect::Category::Asr),
        ("diffusers", "diffusers", "is_diffusers_model", inspect::is_diffusers_model, inspect::Category::Diffusers),
    ];
    kinds
        .into_iter()
        .map(|(name, fixture, function, ask, expected)| {
            let path = fixtures.path(fixture);
            let name = format!("category_detection_{name}");
            yes_or_no(name, Category::Detection, function, true, move || ask(&path)).with("category", expected.name())
        })
        .collect()
}

fn autoencoders(fixtures: &Fixtures) -> Vec<Benchmark> {
    let names = SITES.iter().map(|site| format!("sae_{site}")).chain(["sae_multi".into()]);
    let mut list: Vec<Benchmark> = names
        .map(|name| {
            sae(format!("sae_detection_{name}"), Category::Sae, fixtures.path(&name), true).with("indicator", name)
        })
        .collect();
    let path = fixtures.path("sae_multi");
    list.push(Benchmark::new(
        "sae_base_model_extraction",
        Category::Sae,
        "get_sae_base_model",
        BASE,
        move || inspect::get_sae_base_model(&path),
        |base| base.clone().unwrap_or_else(|| "none".into()),
    ));
    list
}

fn support(fixtures: &Fixtures) -> Vec<Benchmark> {
    [
        ("supported_llama", "llama", true),
        ("supported_qwen", "qwen", true),
        ("supported_mistral", "mistral", true),
        ("supported_gemma", "gemma", true),
        ("unsupported_custom", "unknown", false),
        ("glm4_moe_lite", "glm4_moe_lite", true),
        ("step_robotics", "step_robotics", true),
        ("qwen3", "qwen3", true),
    ]
    .into_iter()
    .map(|(name, fixture, supported)| {
        let expected = if supported { "supported, transformers" } else { "not supported, transformers" };
        check(format!("support_check_{name}"), Category::Support, fixtures.path(fixture), expected).with("model", name)
    })
    .collect()
}

fn memory(fixtures: &Fixtures) -> Vec<Benchmark> {
    let (memory, llama) = (Category::Memory, || fixtures.path("llama"));
    vec![
        info("model_info_with_memory", memory, llama(), "LlamaForCausalLM (llama), supported"),
        kind("category_detection_with_memory", memory, llama(), inspect::Category::Transformers),
        check("support_check_with_memory", memory, llama(), "supported, transformers"),
        sae("sae_detection_with_memory", memory, fixtures.path("sae_multi"), true),
    ]
}

fn comparison(fixtures: &Fixtures) -> Vec<Benchmark> {
    let kinds = [
        (
            "transformers",
            "llama",
            inspect::Category::Transformers,
            "supported, transformers",
            "LlamaForCausalLM (llama), supported",
        ),
        (
            "vision",
            "vision",
            inspect::Category::VisionEncoder,
            "not supported, vision_encoder",
            "SiglipModel (siglip), not supported",
        ),
        (
            "asr",
            "asr",
            inspect::Category::Asr,
            "supported, asr",
            "WhisperForConditionalGeneration (whisper), supported",
        ),
    ];
    let mut list = Vec::new();
    for (name, fixture, category, supported, described) in kinds {
        let (of, path) = (Category::Comparison, || fixtures.path(fixture));
        let with = |benchmark: Benchmark, strategy: &str| {
            benchmark.with("strategy", strategy).with("category", category.name())
        };
        list.push(with(kind(format!("strategy_detection_{name}"), of, path(), category), "detection only"));
        list.push(with(check(format!("strategy_support_{name}"), of, path(), supported), "support check"));
        list.push(with(info(format!("strategy_full_info_{name}"), of, path(), described), "full info"));
    }
    list
}

fn variations(fixtures: &Fixtures) -> Vec<Benchmark> {
    [
        ("llama_simple", "simple", "LlamaForCausalLM (llama), supported"),
        ("llama_with_quant", "quantised", "LlamaForCausalLM (llama), supported, quantised"),
        ("llama_with_talker", "talking", "LlamaForCausalLM (llama), supported, talker"),
        ("qwen_omni", "omni_qwen", "Qwen2_5OmniModel (qwen2_5_omni), not supported, talker"),
        ("complex_config", "complex", "Qwen2_5OmniModel (qwen2_5_omni), not supported, quantised, talker, custom code"),
    ]
    .into_iter()
    .map(|(name, fixture, expected)| {
        info(format!("arch_variation_{name}"), Category::Architecture, fixtures.path(fixture), expected)
            .with("variation", name)
    })
    .collect()
}

fn regression(fixtures: &Fixtures) -> Vec<Benchmark> {
    let (of, path) = (Category::Regression, |name: &str| fixtures.path(name));
    vec![
        info("regression_get_model_info_llama", of, path("llama"), "LlamaForCausalLM (llama), supported"),
        info("regression_get_model_info_qwen", of, path("qwen"), "Qwen2ForCausalLM (qwen2), supported"),
        check("regression_is_supported_llama", of, path("llama"), "supported, transformers"),
        kind("regression_detect_category_llama", of, path("llama"), inspect::Category::Transformers),
        kind("regression_detect_category_vision", of, path("vision"), inspect::Category::VisionEncoder),
        omni("regression_is_omni_model_false", of, path("llama"), false),
        omni("regression_is_omni_model_true", of, path("omni_qwen"), true),
        sae("regression_is_sae_model", of, path("sae_resid_post"), true),
        sae("regression_is_sae_model_false", of, path("llama"), false),
    ]
}
