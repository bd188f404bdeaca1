//! Loads the model that the arguments name.

use crate::args::{DTypeArg, KvArg, ModelArgs};
use crate::commands::say;
use crate::failure::Failure;
use crate::progress;
use crate::saes;
use pellucid_engine::Program;
use pellucid_kernels::attention::KvFormat;
use pellucid_kernels::{DType, Pool};
use pellucid_models::{LoadOptions, LoadedModel, Storage, locate, program_of};

/// Loads a model, with a progress bar if it takes a while. The model is leaked: the exit of the
/// process frees its memory faster than dropping it.
pub fn load(args: &ModelArgs) -> Result<&'static LoadedModel, Failure> {
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
    let options = LoadOptions { storage, pool, kv, assume: args.assume.assume.clone(), adapters: args.adapter.clone() };
    let mut loaded = open(args, &options)?;
    warn(&loaded.warnings);
    saes::attach(&mut loaded, args)?;
    loaded.name_variants.iter().for_each(|variant| say(&format!("note: {variant}")));
    Ok(Box::leak(Box::new(loaded)))
}

fn open(args: &ModelArgs, options: &LoadOptions) -> Result<LoadedModel, Failure> {
    match locate(args.model.as_deref())? {
        None => Ok(LoadedModel::builtin(options)?),
        Some(path) => {
            let bar = progress::DelayedProgressBar::new("loading weights");
            let mut loaded = LoadedModel::open(&path, options, &mut |fraction| bar.set(fraction))?;
            bar.finish();
            // A pulled model is shown under its name, not its file's.
            if let Some(name) = &args.model
                && !std::path::Path::new(name).exists()
            {
                loaded.name = name.clone();
            }
            Ok(loaded)
        }
    }
}

/// Returns the name and program of a model, without loading its weights.
pub fn describe(args: &ModelArgs) -> Result<(String, Program), Failure> {
    let path = locate(args.model.as_deref())?;
    let name = args.model.clone().unwrap_or_else(|| pellucid_models::builtin::NAME.into());
    let (program, warnings) = program_of(path.as_deref(), args.assume.assume.as_deref())?;
    warn(&warnings);
    Ok((name, program))
}

/// Prints warnings to stderr.
pub fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
}
