//! What the first suite of this kind only planned: tokenizers in all their states, registration, the choice of a strategy, very large
//! configurations, real weights, several threads at once, errors.

use super::fixtures::{CUSTOM, Fixtures, GGUF, SHARDED};
use super::registry::{check, info, told};
use super::{Benchmark, Category, ways};
use crate::{Error, Result, worker};
use pellucid_loopback::{Hub, MODEL};
use pellucid_models::pull::Sources;
use pellucid_models::tokenizer::Tokenizer;
use pellucid_models::{LoadOptions, LoadedModel, builtin, families, inspect, pull, tokenizer_of};
use std::path::{Path, PathBuf};

/// The text with which tokenizers and models are tried.
const TEXT: &str = "Once upon a time";
/// Threads that ask at the same time.
const THREADS: usize = 8;

/// The metadata key of a benchmark that the first suite only planned: in its own words.
pub const PLANNED: &str = "planned";

type Loaded<T> = pellucid_models::Result<T>;

/// What a tokenizer makes of a text.
fn tokens(tokenizer: &Tokenizer) -> String {
    match tokenizer.encode(TEXT, true) {
        Ok(ids) => format!("{} tokens, the text is {ids:?}", tokenizer.vocab_size()),
        Err(error) => format!("the text cannot be encoded: {error}"),
    }
}

fn padded(pad: &Option<u32>) -> String {
    pad.map_or_else(|| "no pad token".into(), |pad| format!("pad token {pad}"))
}

fn said<T>(of: fn(&T) -> String) -> impl Fn(&Loaded<T>) -> String {
    move |found| found.as_ref().map_or_else(|error| format!("error: {error}"), of)
}

/// A refusal that has to speak of something; anything else is told as it is.
fn refusal(about: &str) -> String {
    format!("refused, naming {about}")
}

fn refused(error: Option<&str>, about: &str) -> String {
    match error {
        Some(error) if error.contains(about) => refusal(about),
        Some(error) => format!("refused: {error}"),
        None => "accepted".into(),
    }
}

pub(super) fn tokenizers(fixtures: &Fixtures) -> Result<Vec<Benchmark>> {
    let (of, own) = (Category::Tokenizer, tokenizer_of(None)?);
    let Some(own) = own else {
        return Err(Error::Suite { suite: super::NAME.into(), problem: "the built-in model has no tokenizer".into() });
    };
    let expected = tokens(&own);
    let load = |name: &str, path: PathBuf| {
        Benchmark::new(name, of, ways::TOKENIZER, &expected, move || ways::tokenizer(&path), said(tokens)).slow()
    };
    let missing = fixtures.path("without_tokenizer");
    let whole = fixtures.path("whole");
    let end = own.special().eos.first().copied();
    Ok(vec![
        load("tokenizer_load_normal", fixtures.path("whole")),
        load("tokenizer_load_sae_fallback", fixtures.path("sae_multi")),
        Benchmark::new(
            "tokenizer_load_missing",
            of,
            ways::TOKENIZER,
            refusal("no tokenizer"),
            move || ways::tokenizer(&missing),
            |found| refused(found.as_ref().err().map(ToString::to_string).as_deref(), "no tokenizer"),
        )
        .with(PLANNED, "missing tokenizer handling"),
        Benchmark::new(
            "tokenizer_pad_token",
            of,
            ways::TOKENIZER,
            padded(&end),
            move || ways::tokenizer(&whole).map(|tokenizer| ways::pad(&tokenizer)),
            said(padded),
        )
        .with(PLANNED, "pad token auto-configuration")
        .slow(),
        download(&expected)?,
    ])
}

/// A model with its tokenizer comes from a hub into an empty cache, and the tokenizer is loaded.
fn download(expected: &str) -> Result<Benchmark> {
    let fail = |error: std::io::Error| Error::File { path: "127.0.0.1".into(), problem: error.to_string() };
    let hub = Hub::start(vec![
        ("config.json".into(), builtin::CONFIG.to_vec()),
        ("tokenizer.json".into(), builtin::TOKENIZER.to_vec()),
        ("model.safetensors".into(), br#"{}"#.to_vec()),
    ])
    .map_err(fail)?;
    let sources = move || Sources { endpoint: Some(hub.endpoint()), token: None, python: None };
    let fresh = || tempfile::Builder::new().prefix("pellucid-loader-").tempdir();
    let run = move |cache: std::io::Result<tempfile::TempDir>| -> (Loaded<Tokenizer>, Option<tempfile::TempDir>) {
        let cache = match cache {
            Ok(cache) => cache,
            Err(error) => return (Err(pellucid_models::Error::io(std::env::temp_dir())(error)), None),
        };
        let pulled = pull::pull_from(&sources(), MODEL, cache.path(), &mut |_| ());
        (pulled.and_then(|dir| ways::tokenizer(&dir)), Some(cache))
    };
    let say = |(found, _): &(Loaded<Tokenizer>, Option<tempfile::TempDir>)| said(tokens)(found);
    let benchmark = Benchmark::prepared(
        "tokenizer_download_local_hub",
        Category::Tokenizer,
        ways::TOKENIZER,
        expected,
        fresh,
        run,
        say,
    );
    Ok(benchmark.with(PLANNED, "network latency").with("hub", "loopback").slow())
}

pub(super) fn registration(fixtures: &Fixtures) -> Vec<Benchmark> {
    let mut count = 0;
    let fresh = move || {
        count += 1;
        format!("{CUSTOM}_{count}")
    };
    let register = |name: String| {
        let registered = families::register_architecture(&name, "llama");
        registered.map(|()| families::family_of(&name))
    };
    vec![
        Benchmark::prepared(
            "custom_architecture_registration",
            Category::Support,
            "register_architecture",
            "llama",
            fresh,
            register,
            said(|family: &Option<&str>| family.unwrap_or("nothing").to_owned()),
        )
        .with(PLANNED, "custom architecture registration"),
        check("support_check_custom_registered", Category::Support, fixtures.path("custom"), "supported, transformers")
            .with(PLANNED, "custom architecture registration"),
    ]
}

pub(super) fn strategies(fixtures: &Fixtures) -> Vec<Benchmark> {
    let chosen = |name: &str, fixture: &str, assume: Option<&'static str>, expected: &str| {
        let path = fixtures.path(fixture);
        let run = move || ways::strategy(&path, assume);
        Benchmark::new(
            format!("strategy_selection_{name}"),
            Category::Comparison,
            ways::STRATEGY,
            expected,
            run,
            |way| way.to_string(),
        )
        .with(PLANNED, "loading strategy selection")
        .slow()
    };
    vec![
        chosen("native", "whole", None, "native family"),
        chosen("mapped", "custom", None, "mapped custom type"),
        chosen("assumed", "unheard_of", Some("llama"), "assumed family"),
        chosen("adapter", "adapter", None, "adapter merge"),
        chosen("gguf", GGUF, None, "GGUF"),
        chosen("not_assumed", "unheard_of", None, "refused"),
        chosen("refused", "unknown", None, "refused"),
    ]
}

pub(super) fn large(fixtures: &Fixtures) -> Vec<Benchmark> {
    let expected = "LlamaForCausalLM (llama), supported";
    let benchmark = info("arch_variation_very_large_config", Category::Architecture, fixtures.path("large"), expected);
    vec![benchmark.with(PLANNED, "large model configs").with("config_bytes", super::fixtures::LARGE.to_string()).slow()]
}

pub(super) fn loading(fixtures: &Fixtures) -> Result<Vec<Benchmark>> {
    let of = Category::Loading;
    let expected = next(&LoadedModel::builtin(&LoadOptions::default())?);
    let open = |name: &str, way: fn(&Path) -> Loaded<LoadedModel>| {
        let path = fixtures.path("whole");
        Benchmark::new(name, of, ways::OPEN, &expected, move || way(&path), said(next))
            .with(PLANNED, "real model loading")
            .slow()
    };
    let mut list = vec![open("load_weights_as_stored", ways::open), open("load_weights_f32", ways::open_f32)];
    let path = fixtures.path("whole");
    list.push(
        Benchmark::new(
            "load_concurrent_8_threads",
            of,
            ways::OPEN,
            format!("{THREADS} times: {expected}"),
            move || at_once(|| ways::open(&path)),
            |found| alike(found.iter().map(said(next))),
        )
        .with(PLANNED, "concurrent loading")
        .slow(),
    );
    let path = fixtures.path("llama");
    list.push(
        Benchmark::new(
            "detect_concurrent_8_threads",
            of,
            "get_model_info",
            format!("{THREADS} times: LlamaForCausalLM (llama), supported"),
            move || at_once(|| inspect::get_model_info(&path)),
            |found| alike(found.iter().map(told)),
        )
        .with(PLANNED, "concurrent loading"),
    );
    list.push(full_report(fixtures));
    list.extend(errors(fixtures));
    Ok(list)
}

/// Everything there is to say about a model of many files, from their headers.
fn full_report(fixtures: &Fixtures) -> Benchmark {
    let (path, (layers, parameters)) = (fixtures.path("sharded"), SHARDED);
    let expected = format!("{layers} layers, {parameters} parameters, native, it will run");
    let say = |report: &inspect::Report| {
        let layers = report.layers.unwrap_or_default();
        let runs = report.reason.clone().unwrap_or_else(|| "it will run".into());
        format!("{layers} layers, {} parameters, {}, {runs}", report.parameters, report.support.name())
    };
    Benchmark::new("full_report_sharded_7b", Category::Loading, "inspect", expected, move || inspect(&path), said(say))
        .with(PLANNED, "header-only inspection")
        .slow()
}

/// Asks from several threads at the same time.
fn at_once<T: Send>(ask: impl Fn() -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(&ask)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// Answers that have to be the same.
fn alike(answers: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = answers.collect();
    let count = all.len();
    all.dedup();
    format!("{count} times: {}", all.join(" and "))
}

/// What a model says next: whether its weights are the right ones.
pub(super) fn next(loaded: &LoadedModel) -> String {
    let top = loaded.encode(TEXT).map_err(crate::Error::from).and_then(|ids| worker::top(loaded, &ids));
    match top {
        Ok(top) => format!("next tokens {:?}", top.iter().map(|(id, _)| *id).collect::<Vec<_>>()),
        Err(error) => format!("error: {error}"),
    }
}

fn errors(fixtures: &Fixtures) -> Vec<Benchmark> {
    let asked = |name: &str, fixture: &str, about: &'static str| {
        let path = fixtures.path(fixture);
        let run = move || inspect::is_model_supported(&path);
        let say = move |check: &inspect::SupportCheck| refused(check.error.as_deref(), about);
        Benchmark::new(name, Category::Loading, "is_model_supported", refusal(about), run, say)
    };
    let opened = |name: &str, fixture: &str, about: &'static str| {
        let path = fixtures.path(fixture);
        let say =
            move |found: &Loaded<LoadedModel>| refused(found.as_ref().err().map(ToString::to_string).as_deref(), about);
        Benchmark::new(name, Category::Loading, ways::OPEN, refusal(about), move || ways::open(&path), say)
    };
    let list = vec![
        asked("error_missing_path", "no_such_path", "No such file"),
        asked("error_empty_directory", "empty", "no config.json"),
        asked("error_file_is_no_model", "file.txt", "file.txt"),
        asked("error_truncated_config", "truncated_config", "config.json"),
        asked("error_deeply_nested_config", "deep_config", "config.json"),
        opened("error_unknown_architecture", "unknown", "acme_unheard_of"),
        opened("error_lfs_pointer", "lfs_pointer", "Git LFS"),
        opened("error_truncated_weights", "truncated_weights", "model.safetensors"),
    ];
    list.into_iter().map(|benchmark| benchmark.with(PLANNED, "error handling performance")).collect()
}
