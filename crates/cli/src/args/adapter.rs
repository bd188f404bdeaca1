//! The value of `--adapter`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// `[NAME=]DIR`: an adapter to merge, or to attach under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterArg {
    /// Merged into the weights when the model is loaded.
    Merge(PathBuf),
    /// Attached to the loaded model: rows use it by its name.
    Attach { name: String, directory: PathBuf },
}

impl FromStr for AdapterArg {
    type Err = String;

    fn from_str(text: &str) -> Result<AdapterArg, String> {
        Ok(match text.split_once('=') {
            Some((name, directory)) if name.is_empty() || directory.is_empty() => {
                return Err("write DIR or NAME=DIR, such as german=lora/de".into());
            }
            // A directory's own name may contain `=`.
            Some((name, directory)) if !name.contains('/') && !Path::new(text).exists() => {
                AdapterArg::Attach { name: name.into(), directory: directory.into() }
            }
            _ => AdapterArg::Merge(text.into()),
        })
    }
}

impl AdapterArg {
    /// The directories of the adapters to merge.
    pub fn merged(all: &[AdapterArg]) -> Vec<PathBuf> {
        let directory = |adapter: &AdapterArg| match adapter {
            AdapterArg::Merge(directory) => Some(directory.clone()),
            AdapterArg::Attach { .. } => None,
        };
        all.iter().filter_map(directory).collect()
    }

    /// The names and directories of the adapters to attach.
    pub fn attached(all: &[AdapterArg]) -> impl Iterator<Item = (&str, &Path)> {
        all.iter().filter_map(|adapter| match adapter {
            AdapterArg::Attach { name, directory } => Some((name.as_str(), directory.as_path())),
            AdapterArg::Merge(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_attaches_and_a_directory_alone_merges() {
        let parse = |text: &str| text.parse::<AdapterArg>().expect("an adapter");
        let attach =
            |name: &str, directory: &str| AdapterArg::Attach { name: name.into(), directory: directory.into() };
        assert_eq!(parse("lora/a"), AdapterArg::Merge("lora/a".into()));
        assert_eq!(parse("german=lora/a"), attach("german", "lora/a"));
        assert_eq!(parse("a=runs/lr=1e-4"), attach("a", "runs/lr=1e-4"));
        assert_eq!(parse("runs/lr=1e-4"), AdapterArg::Merge("runs/lr=1e-4".into()));
        assert!("=lora".parse::<AdapterArg>().is_err() && "german=".parse::<AdapterArg>().is_err());
        let dir = tempfile::tempdir().expect("a directory");
        let existing = dir.path().join("lr=2");
        std::fs::create_dir(&existing).expect("a directory");
        let text = existing.display().to_string();
        assert_eq!(parse(&text), AdapterArg::Merge(existing));
    }
}
