//! The queries: the timed call, and an untimed description of its answer to compare with the
//! expected one.

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

/// Text for trying tokenizers and models.
const TEXT: &str = "Once upon a time";
/// Threads of the concurrent queries.
const THREADS: usize = 8;
/// Prefix of the expected answer of a rejected input; a part of the error message follows.
const REFUSED: &str = "refused, naming ";

/// A timed call.
pub struct Query {
    /// Name of the called function.
    pub function: &'static str,
    /// Divides the number of iterations: 10 for calls that take milliseconds.
    pub iteration_divisor: usize,
    /// Runs the call once and describes its answer.
    pub run: fn(&QueryInput, &mut Stopwatch) -> String,
}

/// Input of a query.
pub struct QueryInput<'a> {
    /// The directory or file.
    pub path: &'a Path,
    /// The expected answer. For a rejected input it names a part of the error message.
    pub expected: &'a str,
    /// A local hub to download from.
    pub hub: Option<&'a Hub>,
}

/// Times a call or counts its allocations, never both: counting disturbs timing.
#[derive(Default)]
pub struct Stopwatch {
    /// Count allocations instead of timing.
    pub count_allocations: bool,
    /// Duration of the call.
    pub nanoseconds: u64,
    /// Allocations of the call, if the executable installs the counting allocator.
    pub allocations: Option<Allocations>,
}

impl Stopwatch {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        if self.count_allocations {
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

type QueryFn = fn(&QueryInput, &mut Stopwatch) -> String;
type LoadResult<T> = pellucid_models::Result<T>;

const fn fast(function: &'static str, run: QueryFn) -> Query {
    Query { function, iteration_divisor: 1, run }
}

const fn slow(function: &'static str, run: QueryFn) -> Query {
    Query { function, iteration_divisor: 10, run }
}

/// A query of `inspect` whose answer is `true` or `false`.
macro_rules! yes_or_no {
    ($function:ident) => {
        fast(stringify!($function), |input, watch| watch.time(|| inspect::$function(input.path)).to_string())
    };
}

pub const INFO: Query =
    fast("get_model_info", |input, watch| describe_info(&watch.time(|| inspect::get_model_info(input.path))));
pub const LARGE_INFO: Query = slow(INFO.function, INFO.run);
pub const SUPPORT: Query = fast("is_model_supported", |input, watch| {
    let check = watch.time(|| inspect::is_model_supported(input.path));
    format!("{}, {}", if check.supported { "supported" } else { "not supported" }, check.category.name())
});
pub const SUPPORT_REFUSAL: Query = fast("is_model_supported", |input, watch| {
    describe_refusal(watch.time(|| inspect::is_model_supported(input.path)).error, input.expected)
});
pub const CATEGORY: Query = fast("detect_model_category", |input, watch| {
    watch.time(|| inspect::detect_model_category(input.path)).name().into()
});
pub const IS_OMNI: Query = yes_or_no!(is_omni_model);
pub const IS_SAE: Query = yes_or_no!(is_sae_model);
pub const IS_VISION: Query = yes_or_no!(is_vision_encoder);
pub const IS_ASR: Query = yes_or_no!(is_asr_model);
pub const IS_DIFFUSERS: Query = yes_or_no!(is_diffusers_model);
pub const SAE_BASE: Query = fast("get_sae_base_model", |input, watch| {
    watch.time(|| inspect::get_sae_base_model(input.path)).unwrap_or_else(|| "none".into())
});

pub const TOKENIZER: Query =
    slow("load_tokenizer", |input, watch| tokenizer_name(&watch.time(|| load_tokenizer(input.path))));
pub const TOKENIZER_SIZE: Query = slow("load_tokenizer", |input, watch| {
    describe_result(&watch.time(|| load_tokenizer(input.path)), |tokenizer| {
        format!("{} tokens", tokenizer.vocab_size())
    })
});
pub const TOKENIZER_REFUSAL: Query = fast("load_tokenizer", |input, watch| {
    describe_refusal(error_message(watch.time(|| load_tokenizer(input.path))), input.expected)
});
pub const PAD_TOKEN: Query = slow("load_tokenizer", |input, watch| {
    describe_result(&watch.time(|| load_tokenizer(input.path)), |tokenizer| match tokenizer.special().pad {
        Some(pad) if tokenizer.special().eos.first() == Some(&pad) => "the end-of-text token".into(),
        Some(pad) => format!("token {pad}"),
        None => "no pad token".into(),
    })
});
pub const DOWNLOAD: Query = slow("load_tokenizer", |input, watch| {
    let (Some(hub), Ok(cache)) = (input.hub, tempfile::tempdir()) else { return "no hub, or no cache".into() };
    let sources = Sources { endpoint: Some(hub.endpoint.clone()), ..Sources::default() };
    tokenizer_name(&watch.time(|| {
        let dir = pull::pull_from(&sources, &hub.model, cache.path(), &mut |_| ())?;
        load_tokenizer(&dir)
    }))
});

pub const REGISTER: Query = fast("register_architecture", |_, watch| {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("{CUSTOM}_{}", COUNT.fetch_add(1, Relaxed));
    let family = watch.time(|| families::register_architecture(&name, "llama").map(|()| families::family_of(&name)));
    describe_result(&family, |family| family.unwrap_or("nothing").into())
});
pub const STRATEGY: Query =
    slow("strategies", |input, watch| watch.time(|| selected_strategy(input.path, None)).into());
pub const STRATEGY_AS_LLAMA: Query =
    slow("strategies", |input, watch| watch.time(|| selected_strategy(input.path, Some("llama"))).into());

pub const OPEN: Query =
    slow("load_with_strategies", |input, watch| model_name(&watch.time(|| open(input.path, Storage::AsStored))));
pub const OPEN_F32: Query =
    slow("load_with_strategies", |input, watch| model_name(&watch.time(|| open(input.path, Storage::As(DType::F32)))));
pub const OPEN_CONCURRENTLY: Query = slow("load_with_strategies", |input, watch| {
    describe_distinct(watch.time(|| run_concurrently(|| open(input.path, Storage::AsStored))).iter().map(model_name))
});
pub const OPEN_LAYERS: Query = slow("load_with_strategies", |input, watch| {
    describe_result(&watch.time(|| open(input.path, Storage::AsStored)), |loaded| {
        format!("{} layers, ready to run", loaded.model.program().architecture().layers.len())
    })
});
pub const OPEN_REFUSAL: Query = fast("load_with_strategies", |input, watch| {
    describe_refusal(error_message(watch.time(|| open(input.path, Storage::AsStored))), input.expected)
});
pub const INFO_CONCURRENTLY: Query = fast("get_model_info", |input, watch| {
    describe_distinct(watch.time(|| run_concurrently(|| inspect::get_model_info(input.path))).iter().map(describe_info))
});
pub const INFO_TYPE: Query = slow("get_model_info", |input, watch| {
    let info = watch.time(|| inspect::get_model_info(input.path));
    type_and_support(info.model_type.as_deref(), info.is_supported)
});
pub const REPORT: Query =
    slow("inspect", |input, watch| describe_result(&watch.time(|| inspect(input.path)), summarize));

/// Summarizes a report.
pub fn summarize(report: &Report) -> String {
    let (layers, runs) = (report.layers.unwrap_or_default(), report.reason.as_deref().unwrap_or("it will run"));
    format!("{layers} layers, {} parameters, {}, {runs}", report.parameters, report.support.name())
}

pub fn type_and_support(model_type: Option<&str>, is_native: bool) -> String {
    format!("{}, {}", model_type.unwrap_or("no type"), if is_native { "native" } else { "not native" })
}

fn describe_info(info: &ModelInfo) -> String {
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "nothing".into());
    let flags =
        [(info.is_quantized, ", quantized"), (info.has_talker, ", talker"), (info.has_custom_files, ", custom code")];
    let flags: String = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word).collect();
    let supported = if info.is_supported { "supported" } else { "not supported" };
    format!("{} ({}), {supported}{flags}", name(&info.architecture), name(&info.model_type))
}

fn describe_result<T>(answer: &LoadResult<T>, describe: impl Fn(&T) -> String) -> String {
    answer.as_ref().map_or_else(|error| format!("error: {error}"), describe)
}

fn error_message<T>(answer: LoadResult<T>) -> Option<String> {
    answer.err().map(|error| error.to_string())
}

/// Returns `expected` if the error contains the part that it names, else the error itself.
fn describe_refusal(error: Option<String>, expected: &str) -> String {
    match error {
        Some(error) if expected.strip_prefix(REFUSED).is_some_and(|part| error.contains(part)) => expected.into(),
        Some(error) => format!("refused: {error}"),
        None => "accepted".into(),
    }
}

fn open(path: &Path, storage: Storage) -> LoadResult<LoadedModel> {
    LoadedModel::open(path, &LoadOptions { storage, ..LoadOptions::default() }, &mut |_| {})
}

/// Returns the strategy that would load a path, from its headers.
fn selected_strategy(path: &Path, assume: Option<&str>) -> &'static str {
    let options = LoadOptions { assume: assume.map(str::to_owned), ..LoadOptions::default() };
    let attempts = strategies(path, &options);
    let taken = attempts.iter().find(|attempt| attempt.outcome == Outcome::Taken);
    taken.map_or("refused", |attempt| attempt.strategy.name())
}

/// Recognizes the built-in tokenizer by its vocabulary size and its tokens for a text.
fn tokenizer_name(answer: &LoadResult<Tokenizer>) -> String {
    static BUILTIN: OnceLock<String> = OnceLock::new();
    let tokens =
        |tokenizer: &Tokenizer| format!("{} tokens, {:?}", tokenizer.vocab_size(), tokenizer.encode(TEXT, true).ok());
    let builtin = BUILTIN.get_or_init(|| tokenizer_of(None).ok().flatten().as_ref().map(tokens).unwrap_or_default());
    name_if_equal(describe_result(answer, tokens), builtin, "the built-in tokenizer")
}

/// Recognizes the built-in model by its top tokens, which also verifies its weights.
fn model_name(answer: &LoadResult<LoadedModel>) -> String {
    static BUILTIN: OnceLock<String> = OnceLock::new();
    let next = |loaded: &LoadedModel| {
        let top = loaded.encode(TEXT).map_err(crate::Error::from).and_then(|ids| worker::top_tokens(loaded, &ids));
        let ids = top.map(|top| top.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        ids.map_or_else(|error| format!("error: {error}"), |ids| format!("next tokens {ids:?}"))
    };
    let builtin = BUILTIN.get_or_init(|| describe_result(&LoadedModel::builtin(&LoadOptions::default()), next));
    name_if_equal(describe_result(answer, next), builtin, "the built-in model")
}

fn name_if_equal(found: String, builtin: &str, name: &str) -> String {
    if found == builtin && !builtin.is_empty() && !builtin.starts_with("error") { name.into() } else { found }
}

fn run_concurrently<T: Send>(run: impl Fn() -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(&run)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

fn describe_distinct(answers: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = answers.collect();
    let count = all.len();
    all.dedup();
    format!("{count} times: {}", all.join(" and "))
}

/// Files of the model that the download benchmark expects on the hub.
pub fn hub_files() -> Vec<(String, Vec<u8>)> {
    let files: [(&str, &[u8]); 3] =
        [("config.json", builtin::CONFIG), ("tokenizer.json", builtin::TOKENIZER), ("model.safetensors", b"{}")];
    files.map(|(name, bytes)| (name.into(), bytes.to_vec())).into()
}
