//! Models of a type that nobody knows: whether a native family fits them, and running them as one when the caller says so.
//!
//! A family fits when its reader accepts the configuration, every weight of its program is stored in the right shape, and nothing is left
//! over. That is much, and not enough: two families may share every name and shape and differ in a multiplier. So a fit is only ever
//! offered, together with the keys that the family does not know; it is taken when the caller names the family, and then with a warning.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::families::{self, Family};
use crate::identify;
use crate::load::{self, Comparison};
use crate::strategy::Strategy;
use crate::tensors::Tensors;
use pellucid_engine::Program;
use schemars::JsonSchema;
use serde::Serialize;

/// A native family that a model of an unknown type fits.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Offer {
    /// What `--assume` takes.
    pub family: String,
    /// Keys of the configuration that this family never asks for and that may change the mathematics.
    pub unread: Vec<String>,
    /// Another family that fits and knows more of these keys than any.
    pub also: Option<Also>,
    /// All native families that fit.
    pub fitting: Vec<String>,
}

/// A second family that fits.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Also {
    /// What `--assume` takes.
    pub family: String,
    /// Keys that it knows and the first family does not.
    pub reads: Vec<String>,
}

/// A configuration, read.
#[derive(Debug)]
pub(crate) struct Read {
    /// What a family makes of it.
    pub family: Family,
    /// What to warn of.
    pub warnings: Vec<String>,
    /// How the family was chosen.
    pub strategy: Strategy,
}

/// Reads a configuration by its own family or, where that is not native, by the one that its type is mapped to or that the caller
/// assumes. `tensors` opens the stored tensors, and is called only for models whose own type is not native.
pub(crate) fn read(config: &Config, assume: Option<&str>, tensors: impl FnOnce() -> Result<Tensors>) -> Result<Read> {
    check_name(assume)?;
    identify::register_environment()?;
    let own = own_type(config);
    if let Some(native) = own.filter(|own| is_native(own)) {
        return match assume.filter(|family| *family != native) {
            Some(family) => Err(contradiction(native, family)),
            None => Ok(Read { family: families::read(config)?, warnings: Vec::new(), strategy: Strategy::Native }),
        };
    }
    match (own.and_then(identify::stand_in), assume) {
        (Some(mapped), Some(family)) if mapped != family => Err(Error::usage(
            format!("this model's type is mapped to `{mapped}`, so it is not assumed to be `{family}`"),
            "leave out --assume, or map the type to another family",
        )),
        (Some(mapped), _) => {
            let (family, unread) = assumed(config, mapped, &tensors()?)?;
            let because = "because the type is registered as that";
            Ok(Read { warnings: vec![warning(own, mapped, because, &unread)], family, strategy: Strategy::Mapped })
        }
        (None, Some(name)) => {
            let (family, unread) = assumed(config, name, &tensors()?)?;
            let because = "because --assume says so";
            Ok(Read { warnings: vec![warning(own, name, because, &unread)], family, strategy: Strategy::Assumed })
        }
        (None, None) => {
            families::check(config)?;
            // Without weights there is nothing that a family could fit.
            let Ok(tensors) = tensors() else { return Err(families::unknown_type(config)) };
            Err(refusal(config, &judge(config, &tensors)))
        }
    }
}

/// Refuses a family that does not exist.
pub(crate) fn check_name(assume: Option<&str>) -> Result<()> {
    match assume.filter(|family| !is_native(family)) {
        Some(family) => {
            Err(Error::usage(format!("there is no native type `{family}` to assume"), families::nearest(family)))
        }
        None => Ok(()),
    }
}

/// A native model is what it says that it is: reading it as another family could only make it wrong.
pub(crate) fn contradiction(own: &str, family: &str) -> Error {
    Error::usage(
        format!("this model's own type, `{own}`, is native, so it is not assumed to be `{family}`"),
        "leave out --assume; it is for models of a type that is not native",
    )
}

/// What comes of holding native families beside a model.
pub(crate) enum Verdict {
    /// One fits.
    Fits(Offer),
    /// The one that was named does not.
    Misfit(Error),
    /// None does; the nearest, and what keeps it from fitting.
    Nothing { nearest: &'static str, because: String },
}

/// Holds the native families beside a model whose own type is not native.
pub(crate) fn judge(config: &Config, tensors: &Tensors) -> Verdict {
    let mut fits: Vec<(&'static str, Vec<String>)> = Vec::new();
    let mut nearest: Option<(&'static str, Comparison)> = None;
    for family in in_order() {
        let Ok((_, comparison, unread)) = beside(config, family, tensors, false) else { continue };
        match comparison.misfits() {
            0 => fits.push((family, unread)),
            misfits if nearest.as_ref().is_none_or(|(_, other)| misfits < other.misfits()) => {
                nearest = Some((family, comparison));
            }
            _ => {}
        }
    }
    // Only where none fits as it is are variants of names tried, with the families that others copy.
    if fits.is_empty() {
        let mended = copied().filter_map(|family| Some((family, beside(config, family, tensors, true).ok()?)));
        fits.extend(
            mended
                .filter(|(_, (_, comparison, _))| comparison.misfits() == 0)
                .map(|(family, (.., unread))| (family, unread)),
        );
    }
    match (fits.is_empty(), nearest) {
        (false, _) => Verdict::Fits(offer(fits)),
        (true, Some((nearest, comparison))) => Verdict::Nothing { nearest, because: comparison.lines().join("; ") },
        (true, None) => {
            let because =
                beside(config, "llama", tensors, true).err().map(|error| error.to_string()).unwrap_or_default();
            Verdict::Nothing { nearest: "llama", because }
        }
    }
}

/// Holds one family beside a model whose own type is not native.
pub(crate) fn judge_as(config: &Config, family: &str, tensors: &Tensors) -> Verdict {
    match assumed(config, family, tensors) {
        Ok((_, unread)) => {
            Verdict::Fits(Offer { family: family.into(), unread, also: None, fitting: vec![family.into()] })
        }
        Err(error) => Verdict::Misfit(error),
    }
}

/// The first of the families that fit is offered; one that knows more of the configuration is named beside it.
fn offer(fits: Vec<(&'static str, Vec<String>)>) -> Offer {
    let fitting = fits.iter().map(|(family, _)| family.to_string()).collect();
    let mut fits = fits.into_iter();
    let (family, unread) = fits.next().unwrap_or_default();
    let also = fits.min_by_key(|(_, left)| left.len()).filter(|(_, left)| left.len() < unread.len());
    let also = also.map(|(family, left)| Also {
        family: family.into(),
        reads: unread.iter().filter(|key| !left.contains(key)).cloned().collect(),
    });
    Offer { family: family.into(), unread, also, fitting }
}

/// Reads a model as a family that was named, and only if it fits; with the keys that the family does not know.
fn assumed(config: &Config, family: &str, tensors: &Tensors) -> Result<(Family, Vec<String>)> {
    let misfit = |why: &str| {
        Error::unsupported(
            format!("this model does not fit `{family}`: {why}"),
            "leave out --assume to hear which native family fits or comes nearest",
        )
    };
    let (read, comparison, unread) =
        beside(config, family, tensors, true).map_err(|error| misfit(&error.to_string()))?;
    match comparison.misfits() {
        0 => Ok((read, unread)),
        _ => Err(misfit(&comparison.lines().join("; "))),
    }
}

/// One family beside a model.
fn beside(config: &Config, family: &str, tensors: &Tensors, mend: bool) -> Result<(Family, Comparison, Vec<String>)> {
    let (family, unread) = families::read_as(config, family)?;
    let Family { architecture, names } = family;
    let program = Program::new(architecture)?;
    let comparison = load::compare(&program, &names, tensors, mend);
    let family = Family { architecture: program.architecture().clone(), names };
    Ok((family, comparison, unread.into_iter().filter(|key| matters(key)).collect()))
}

/// Why a model of an unknown type is refused, and what can be done.
fn refusal(config: &Config, verdict: &Verdict) -> Error {
    let own = own_type(config);
    let (more, remedy) = said(verdict);
    match own {
        Some(own) => Error::unsupported(
            format!("models of type `{}` do not run natively in this build{more}", own.escape_debug()),
            remedy.unwrap_or_else(|| {
                "check that config.json belongs to these weights, or use a model of a native type; docs/models.md lists them".into()
            }),
        ),
        None => Error::invalid(
            config.origin(),
            format!("`model_type` is missing{more}"),
            remedy.unwrap_or_else(|| "get config.json anew from where the model came from, or add the key".into()),
        ),
    }
}

/// A verdict in words: what follows the statement that the type is unknown, and the remedy where there is one.
pub(crate) fn said(verdict: &Verdict) -> (String, Option<String>) {
    match verdict {
        Verdict::Fits(offer) => (
            format!(
                ", but the configuration and all tensors of this one fit `{}`{}; its mathematics may differ nevertheless{}",
                offer.family,
                if offer.fitting.len() > 1 { " and other native families" } else { "" },
                unknown_keys(&offer.family, &offer.unread)
            ),
            Some(offer.remedy()),
        ),
        Verdict::Misfit(error) => (format!("; {error}"), error.remedy().map(str::to_owned)),
        Verdict::Nothing { nearest, because } => {
            (format!(", and no native family fits this one; the nearest is `{nearest}`: {because}"), None)
        }
    }
}

impl Offer {
    /// What the caller can do with it.
    fn remedy(&self) -> String {
        let family = &self.family;
        let also = self.also.as_ref().map_or_else(String::new, |also| {
            format!("; `{}` fits too, and knows {}", also.family, quoted(&also.reads))
        });
        format!(
            "`--assume {family}` (in Rust `LoadOptions::assume`) runs it as `{family}`, with a warning; compare its logits \
             with the original before relying on them{also}"
        )
    }
}

/// What is said about a model that runs as another family than it names.
fn warning(own: Option<&str>, family: &str, because: &str, unread: &[String]) -> String {
    let own = own.map_or_else(
        || "this model does not say its type".into(),
        |own| format!("this model's type, `{}`, is not native", own.escape_debug()),
    );
    format!(
        "{own}; it runs as `{family}` {because}. Its configuration and tensors fit, its mathematics may differ \
         nevertheless{}",
        unknown_keys(family, unread)
    )
}

fn unknown_keys(family: &str, unread: &[String]) -> String {
    match unread.len() {
        0 => String::new(),
        1 => format!(": `{family}` does not know the key {}", quoted(unread)),
        _ => format!(": `{family}` does not know the keys {}", quoted(unread)),
    }
}

/// The first of a list of keys, which come from a file that nobody vouches for.
fn quoted(keys: &[String]) -> String {
    const SHOWN: usize = 12;
    let shown: Vec<String> = keys.iter().take(SHOWN).map(|key| format!("`{}`", key.escape_debug())).collect();
    let more = if keys.len() > SHOWN { format!(" and {} more", keys.len() - SHOWN) } else { String::new() };
    shown.join(", ") + &more
}

fn own_type(config: &Config) -> Option<&str> {
    config.model_type().ok()
}

fn is_native(name: &str) -> bool {
    families::native().any(|family| family == name)
}

/// The families in the order in which they are offered: those that others copy, then the rest.
fn in_order() -> impl Iterator<Item = &'static str> {
    copied().chain(families::native().filter(|name| !COPIED.contains(name)))
}

/// The families that others copy.
const COPIED: &[&str] = &["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gpt_neox", "gpt2"];

fn copied() -> impl Iterator<Item = &'static str> {
    COPIED.iter().copied().filter(|name| is_native(name))
}

/// Whether a key may change what the model computes. The others are about training, generation, files and the library.
fn matters(path: &str) -> bool {
    const HARMLESS: &str = "\
        _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures \
        attn_implementation auto_map bad_words_ids begin_suppress_tokens chunk_size_feed_forward \
        diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size \
        exponential_decay_length_penalty finetuning_task gradient_checkpointing id2label initializer_factor \
        initializer_range js_config keys_to_ignore_at_inference label2id length_penalty max_length \
        min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_return_sequences \
        output_attentions output_hidden_states output_router_logits output_scores prefix pretraining_tp \
        problem_type quantization_config remove_invalid_values repetition_penalty return_dict \
        return_dict_in_generate router_aux_loss_coef router_jitter_noise router_z_loss_coef suppress_tokens \
        task_specific_params temperature tf_legacy_loss tokenizer_class top_p torch_dtype torchscript \
        transformers_version typical_p use_bfloat16 use_cache use_return_dict";
    let key = path.rsplit('.').next().unwrap_or(path);
    // Dropout and its kin happen in training only; a token's number and the heads of classifiers change no logits.
    let training = key.contains("dropout") || key.ends_with("_pdrop") || key == "layerdrop" || key == "init_std";
    let elsewhere = ["_token_id", "_token_index"].iter().any(|end| key.ends_with(end)) || key.starts_with("summary_");
    !training && !elsewhere && !HARMLESS.split_whitespace().any(|harmless| harmless == key)
}
