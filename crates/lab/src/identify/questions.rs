//! How each question is asked: the call that is timed, and its answer in words, outside the time.

use super::Hub;
use super::directories::CUSTOM;
use crate::protocol::Allocations;
use crate::{counting, worker};
use pellucid_kernels::DType;
use pellucid_models::inspect::{self, ModelInfo, Report, inspect};
use pellucid_models::pull::{self, Sources};
use pellucid_models::tokenizer::Tokenizer;
use pellucid_models::{LoadOptions, LoadedModel, Outcome, Storage};
use pellucid_models::{builtin, families, load_tokenizer, strategies, tokenizer_of};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// The text with which tokenizers and models are tried.
const TEXT: &str = "Once upon a time";
/// Threads that ask at the same time.
const THREADS: usize = 8;
/// How the expected answer of a refusal begins; a part of the error message follows.
const REFUSED: &str = "refused, naming ";

/// A function that is timed.
pub struct Question {
    /// Its name.
    pub function: &'static str,
    /// One in this many iterations is done: calls that take milliseconds get fewer.
    pub one_in: usize,
    /// Asks once, and puts the answer into words.
    pub ask: fn(&Case, &mut Stopwatch) -> String,
}

/// What a question is asked about.
pub struct Case<'a> {
    /// The directory or file.
    pub path: &'a Path,
    /// The right answer: of a refusal it says what has to be named.
    pub expected: &'a str,
    /// A local hub to download from.
    pub hub: Option<&'a Hub>,
}

/// Times a call or counts its allocations, never both: counting disturbs timing.
#[derive(Default)]
pub struct Stopwatch {
    /// Whether to count instead.
    pub counts: bool,
    /// The time of the call.
    pub nanoseconds: u64,
    /// What it allocated, where the executable can count.
    pub allocations: Option<Allocations>,
}

impl Stopwatch {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        if self.counts {
            let (answer, found) = counting::during(call);
            self.allocations = found;
            return answer;
        }
        let started = Instant::now();
        let answer = std::hint::black_box(call());
        self.nanoseconds = started.elapsed().as_nanos() as u64;
        answer
    }
}

type Ask = fn(&Case, &mut Stopwatch) -> String;
type Loaded<T> = pellucid_models::Result<T>;

const fn fast(function: &'static str, ask: Ask) -> Question {
    Question { function, one_in: 1, ask }
}

const fn slow(function: &'static str, ask: Ask) -> Question {
    Question { function, one_in: 10, ask }
}

/// A question of `inspect` whose answer is `true` or `false`.
macro_rules! yes_or_no {
    ($function:ident) => {
        fast(stringify!($function), |at, watch| watch.time(|| inspect::$function(at.path)).to_string())
    };
}

pub const INFO: Question =
    fast("get_model_info", |at, watch| describe(&watch.time(|| inspect::get_model_info(at.path))));
pub const LARGE_INFO: Question = slow(INFO.function, INFO.ask);
pub const SUPPORT: Question = fast("is_model_supported", |at, watch| {
    let check = watch.time(|| inspect::is_model_supported(at.path));
    format!("{}, {}", if check.supported { "supported" } else { "not supported" }, check.category.name())
});
pub const SUPPORT_REFUSAL: Question = fast("is_model_supported", |at, watch| {
    refusal(watch.time(|| inspect::is_model_supported(at.path)).error, at.expected)
});
pub const CATEGORY: Question =
    fast("detect_model_category", |at, watch| watch.time(|| inspect::detect_model_category(at.path)).name().into());
pub const IS_OMNI: Question = yes_or_no!(is_omni_model);
pub const IS_SAE: Question = yes_or_no!(is_sae_model);
pub const IS_VISION: Question = yes_or_no!(is_vision_encoder);
pub const IS_ASR: Question = yes_or_no!(is_asr_model);
pub const IS_DIFFUSERS: Question = yes_or_no!(is_diffusers_model);
pub const SAE_BASE: Question = fast("get_sae_base_model", |at, watch| {
    watch.time(|| inspect::get_sae_base_model(at.path)).unwrap_or_else(|| "none".into())
});

pub const TOKENIZER: Question =
    slow("load_tokenizer", |at, watch| tokenizer_name(&watch.time(|| load_tokenizer(at.path))));
pub const TOKENIZER_SIZE: Question = slow("load_tokenizer", |at, watch| {
    worded(&watch.time(|| load_tokenizer(at.path)), |tokenizer| format!("{} tokens", tokenizer.vocab_size()))
});
pub const TOKENIZER_REFUSAL: Question =
    fast("load_tokenizer", |at, watch| refusal(error_of(watch.time(|| load_tokenizer(at.path))), at.expected));
pub const PAD_TOKEN: Question = slow("load_tokenizer", |at, watch| {
    worded(&watch.time(|| load_tokenizer(at.path)), |tokenizer| match tokenizer.special().pad {
        Some(pad) if tokenizer.special().eos.first() == Some(&pad) => "the end-of-text token".into(),
        Some(pad) => format!("token {pad}"),
        None => "no pad token".into(),
    })
});
pub const DOWNLOAD: Question = slow("load_tokenizer", |at, watch| {
    let (Some(hub), Ok(cache)) = (at.hub, tempfile::tempdir()) else { return "no hub, or no cache".into() };
    let sources = Sources { endpoint: Some(hub.endpoint.clone()), token: None, python: None };
    tokenizer_name(&watch.time(|| {
        let dir = pull::pull_from(&sources, &hub.model, cache.path(), &mut |_| ())?;
        load_tokenizer(&dir)
    }))
});

pub const REGISTER: Question = fast("register_architecture", |_, watch| {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("{CUSTOM}_{}", COUNT.fetch_add(1, Relaxed));
    let family = watch.time(|| families::register_architecture(&name, "llama").map(|()| families::family_of(&name)));
    worded(&family, |family| family.unwrap_or("nothing").into())
});
pub const STRATEGY: Question = slow("strategies", |at, watch| watch.time(|| strategy(at.path, None)).into());
pub const STRATEGY_AS_LLAMA: Question =
    slow("strategies", |at, watch| watch.time(|| strategy(at.path, Some("llama"))).into());

pub const OPEN: Question =
    slow("load_with_strategies", |at, watch| model_name(&watch.time(|| open(at.path, Storage::AsStored))));
pub const OPEN_F32: Question =
    slow("load_with_strategies", |at, watch| model_name(&watch.time(|| open(at.path, Storage::As(DType::F32)))));
pub const OPEN_CONCURRENTLY: Question = slow("load_with_strategies", |at, watch| {
    distinct(watch.time(|| concurrently(|| open(at.path, Storage::AsStored))).iter().map(model_name))
});
pub const OPEN_LAYERS: Question = slow("load_with_strategies", |at, watch| {
    worded(&watch.time(|| open(at.path, Storage::AsStored)), |loaded| {
        format!("{} layers, ready to run", loaded.model.program().architecture().layers.len())
    })
});
pub const OPEN_REFUSAL: Question = fast("load_with_strategies", |at, watch| {
    refusal(error_of(watch.time(|| open(at.path, Storage::AsStored))), at.expected)
});
pub const INFO_CONCURRENTLY: Question = fast("get_model_info", |at, watch| {
    distinct(watch.time(|| concurrently(|| inspect::get_model_info(at.path))).iter().map(describe))
});
pub const INFO_TYPE: Question = slow("get_model_info", |at, watch| {
    let info = watch.time(|| inspect::get_model_info(at.path));
    kind(info.model_type.as_deref(), info.is_supported)
});
pub const REPORT: Question = slow("inspect", |at, watch| worded(&watch.time(|| inspect(at.path)), summarize));

/// A report in words: whether everything was read.
pub fn summarize(report: &Report) -> String {
    let (layers, runs) = (report.layers.unwrap_or_default(), report.reason.as_deref().unwrap_or("it will run"));
    format!("{layers} layers, {} parameters, {}, {runs}", report.parameters, report.support.name())
}

pub fn kind(model_type: Option<&str>, is_native: bool) -> String {
    format!("{}, {}", model_type.unwrap_or("no type"), if is_native { "native" } else { "not native" })
}

fn describe(info: &ModelInfo) -> String {
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "nothing".into());
    let flags =
        [(info.is_quantized, ", quantized"), (info.has_talker, ", talker"), (info.has_custom_files, ", custom code")];
    let flags: String = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word).collect();
    let supported = if info.is_supported { "supported" } else { "not supported" };
    format!("{} ({}), {supported}{flags}", name(&info.architecture), name(&info.model_type))
}

fn worded<T>(answer: &Loaded<T>, words: impl Fn(&T) -> String) -> String {
    answer.as_ref().map_or_else(|error| format!("error: {error}"), words)
}

fn error_of<T>(answer: Loaded<T>) -> Option<String> {
    answer.err().map(|error| error.to_string())
}

/// A refusal that names what is expected is worded as expected; anything else as it is.
fn refusal(error: Option<String>, expected: &str) -> String {
    match error {
        Some(error) if expected.strip_prefix(REFUSED).is_some_and(|part| error.contains(part)) => expected.into(),
        Some(error) => format!("refused: {error}"),
        None => "accepted".into(),
    }
}

fn open(path: &Path, storage: Storage) -> Loaded<LoadedModel> {
    LoadedModel::open(path, &LoadOptions { storage, ..LoadOptions::default() }, &mut |_| {})
}

/// The strategy by which a path would be loaded, from its headers.
fn strategy(path: &Path, assume: Option<&str>) -> &'static str {
    let options = LoadOptions { assume: assume.map(str::to_owned), ..LoadOptions::default() };
    let attempts = strategies(path, &options);
    let taken = attempts.iter().find(|attempt| attempt.outcome == Outcome::Taken);
    taken.map_or("refused", |attempt| attempt.strategy.name())
}

/// Whether a tokenizer is the built-in one, by what it makes of a text.
fn tokenizer_name(answer: &Loaded<Tokenizer>) -> String {
    static OWN: OnceLock<String> = OnceLock::new();
    let tokens =
        |tokenizer: &Tokenizer| format!("{} tokens, {:?}", tokenizer.vocab_size(), tokenizer.encode(TEXT, true).ok());
    let own = OWN.get_or_init(|| tokenizer_of(None).ok().flatten().as_ref().map(tokens).unwrap_or_default());
    named(worded(answer, tokens), own, "the built-in tokenizer")
}

/// Whether a model is the built-in one, by its next tokens: then its weights are the right ones.
fn model_name(answer: &Loaded<LoadedModel>) -> String {
    static OWN: OnceLock<String> = OnceLock::new();
    let next = |loaded: &LoadedModel| {
        let top = loaded.encode(TEXT).map_err(crate::Error::from).and_then(|ids| worker::top(loaded, &ids));
        let ids = top.map(|top| top.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        ids.map_or_else(|error| format!("error: {error}"), |ids| format!("next tokens {ids:?}"))
    };
    let own = OWN.get_or_init(|| worded(&LoadedModel::builtin(&LoadOptions::default()), next));
    named(worded(answer, next), own, "the built-in model")
}

fn named(found: String, own: &str, name: &str) -> String {
    if found == own && !own.is_empty() && !own.starts_with("error") { name.into() } else { found }
}

fn concurrently<T: Send>(ask: impl Fn() -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(&ask)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

fn distinct(answers: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = answers.collect();
    let count = all.len();
    all.dedup();
    format!("{count} times: {}", all.join(" and "))
}

/// The files of the model that the download benchmark expects on its hub.
pub fn hub_files() -> Vec<(String, Vec<u8>)> {
    let files: [(&str, &[u8]); 3] =
        [("config.json", builtin::CONFIG), ("tokenizer.json", builtin::TOKENIZER), ("model.safetensors", b"{}")];
    files.map(|(name, bytes)| (name.into(), bytes.to_vec())).into()
}
