//! Loads the model that the arguments name.

use crate::args::{AdapterArg, DTypeArg, KvArg, ModelArgs};
use crate::commands::say;
use crate::failure::Failure;
use crate::progress;
use pellucid_engine::Program;
use pellucid_kernels::attention::KvFormat;
use pellucid_kernels::{DType, Pool};
use pellucid_models::attach::{AdapterRecord, SaeCheck, SaeRecord};
use pellucid_models::{LoadOptions, LoadedModel, Storage, locate, program_of};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Loads a model, with a progress bar if it takes a while. The model is leaked: the exit of the
/// process frees its memory faster than dropping it.
pub fn load(args: &ModelArgs) -> Result<&'static LoadedModel, Failure> {
    load_with_saes(args, &[])
}

/// Loads a model as [`load`] does, and attaches the autoencoders that plans name, each with the
/// directory to which its path is relative.
pub fn load_with_saes(args: &ModelArgs, saes: &[(&str, &Path)]) -> Result<&'static LoadedModel, Failure> {
    let mut loaded = open(args, &load_options(args))?;
    warn(&loaded.warnings);
    let of_flags = args.sae.iter().map(|text| (text.as_str(), Path::new("")));
    attach_saes(&mut loaded, of_flags.chain(saes.iter().copied()), args.unchecked)?;
    let slow = loaded.slow_formats();
    if !slow.is_empty() {
        say(&format!(
            "note: {} weights have no fast kernels; --dtype q8 or bf16 is several times faster and takes more memory",
            slow.join(" and ")
        ));
    }
    attach_adapters(&mut loaded, args)?;
    loaded.name_variants.iter().for_each(|variant| say(&format!("note: {variant}")));
    Ok(Box::leak(Box::new(loaded)))
}

/// The options of a load that the arguments describe.
pub fn load_options(args: &ModelArgs) -> LoadOptions {
    let storage = match args.dtype {
        DTypeArg::Auto => Storage::AsStored,
        DTypeArg::F32 => Storage::As(DType::F32),
        DTypeArg::Bf16 => Storage::As(DType::Bf16),
        DTypeArg::F16 => Storage::As(DType::F16),
        DTypeArg::Q8 => Storage::As(DType::Q8),
    };
    let pool = args.threads.map(|n| Pool::with_threads(n as usize));
    let kv = match args.kv_dtype {
        KvArg::F32 => KvFormat::F32,
        KvArg::Bf16 => KvFormat::Bf16,
    };
    let (assume, adapters) = (args.assume.assume.clone(), AdapterArg::merged(&args.adapter));
    LoadOptions { storage, pool, kv, assume, adapters }
}

fn open(args: &ModelArgs, options: &LoadOptions) -> Result<LoadedModel, Failure> {
    match locate_model(args)? {
        None => Ok(LoadedModel::builtin(options)?),
        Some(path) => {
            let bar = progress::DelayedProgressBar::new("loading weights");
            let mut loaded = LoadedModel::open(&path, options, &mut |fraction| bar.set(fraction))?;
            bar.finish();
            // A pulled model is shown under its name, not its file's.
            if let Some(name) = &args.model
                && !Path::new(name).exists()
            {
                loaded.name = name.to_string_lossy().into_owned();
            }
            Ok(loaded)
        }
    }
}

/// Returns the name and program of a model, without loading its weights unless an autoencoder is
/// attached.
pub fn describe(args: &ModelArgs) -> Result<(String, Program), Failure> {
    // Features of an attached autoencoder are sites too.
    if !args.sae.is_empty() {
        let loaded = load(args)?;
        return Ok((loaded.name.clone(), loaded.model.program().clone()));
    }
    let path = locate_model(args)?;
    let name = args.model.as_ref().map_or(pellucid_models::builtin::NAME.into(), |name| name.to_string_lossy());
    let (program, warnings) = program_of(path.as_deref(), args.assume.assume.as_deref())?;
    warn(&warnings);
    Ok((name.into_owned(), program))
}

/// Resolves the model's name or path; `None` for the built-in model.
pub fn locate_model(args: &ModelArgs) -> Result<Option<PathBuf>, Failure> {
    match args.model.as_deref() {
        // Names are UTF-8, paths need not be.
        Some(path) if path.to_str().is_none() && Path::new(path).exists() => Ok(Some(path.into())),
        name => Ok(locate(name.map(OsStr::to_string_lossy).as_deref())?),
    }
}

/// Prints warnings to stderr.
pub fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
}

/// Attaches autoencoders, each given as `PATH[@SITE]`, and reports how well each reconstructs.
fn attach_saes<'a>(
    loaded: &mut LoadedModel,
    specs: impl Iterator<Item = (&'a str, &'a Path)>,
    unchecked: bool,
) -> Result<(), Failure> {
    for (spec, base) in specs {
        let records = loaded.attach_named_sae(spec, base, unchecked)?;
        if let Some(first) = records.first() {
            say(&format!("{}: {}", first.path, describe_attached(&records)));
        }
        let checks = records.iter().filter_map(|record| record.check.as_ref());
        warn(&checks.filter_map(SaeCheck::warning).collect::<Vec<String>>());
    }
    Ok(())
}

/// Attaches the adapters of `--adapter NAME=DIR` and makes that of `--use-adapter` the default.
fn attach_adapters(loaded: &mut LoadedModel, args: &ModelArgs) -> Result<(), Failure> {
    for (name, directory) in AdapterArg::attached(&args.adapter) {
        let AdapterRecord { rank, projections, bytes, .. } = loaded.attach_adapter(name, directory)?;
        let megabytes = bytes as f64 / 1e6;
        say(&format!("adapter {name}: rank {rank} in {projections} projections, {megabytes:.1} MB"));
    }
    if let Some(name) = &args.use_adapter {
        loaded.model = loaded.model.with_adapter(Some(name))?;
    }
    Ok(())
}

/// Reports adapters that the prompts of a command do not use.
pub fn say_unused_adapters(args: &ModelArgs) {
    for (name, _) in AdapterArg::attached(&args.adapter) {
        if args.use_adapter.as_deref() != Some(name) {
            say(&format!("note: adapter {name} is attached but not used; --use-adapter {name} uses it"));
        }
    }
}

/// Describes an autoencoder, or all layers of a cross-layer transcoder.
fn describe_attached(records: &[SaeRecord]) -> String {
    let checks: Vec<&SaeCheck> = records.iter().filter_map(|record| record.check.as_ref()).collect();
    let place = match records {
        [record] => format!("{} features at {}", record.features, record.site),
        [first, .., last] => {
            format!("{} layers of {} features, {} to {}", records.len(), first.features, first.site, last.site)
        }
        [] => "no layers".into(),
    };
    let quality = match &checks[..] {
        [] => "not tested".into(),
        [check] => describe_check(check),
        checks => {
            let explained = || checks.iter().map(|check| check.explained_variance);
            let (least, most) = (explained().fold(f64::INFINITY, f64::min), explained().fold(f64::MIN, f64::max));
            let l0 = checks.iter().map(|check| check.l0).sum::<f64>() / checks.len() as f64;
            let tokens = checks[0].tokens;
            format!("explained variance {least:.2} to {most:.2}, {l0:.1} active per layer on {tokens} tokens")
        }
    };
    format!("{place}, {quality}")
}

fn describe_check(check: &SaeCheck) -> String {
    let declared = check.declared_l0.map_or(String::new(), |l0| format!(" (declared {l0:.1})"));
    format!(
        "explained variance {:.2}, {:.1} active{declared} on {} tokens",
        check.explained_variance, check.l0, check.tokens
    )
}
