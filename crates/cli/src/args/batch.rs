//! Arguments of `generate --batch`, and those of the scheduler, which `serve` has too.

use clap::Args;
use pellucid_engine::SchedulerOptions;
use std::path::PathBuf;

/// Many requests from a file.
#[derive(Args)]
#[command(next_help_heading = "Many requests")]
pub struct BatchArgs {
    /// Run many requests at once, one JSON object per line, such as {"id": "a", "prompt": "One
    /// day,", "max_new": 20, "capture": ["layers.*.resid_post"]}. Flags such as --max-new are the
    /// defaults of requests that lack the key; docs/batching.md lists the keys
    #[arg(
        long,
        value_name = "F.jsonl",
        conflicts_with_all = ["prompts", "tokens", "out", "json"],
    )]
    pub batch: Option<PathBuf>,
    /// Append the results to this file, one JSON object per line, in the order of completion. Ids
    /// that it has without an error are skipped, so running the command again continues it
    /// [default: stdout]
    #[arg(long, value_name = "F.jsonl")]
    pub output: Option<PathBuf>,
    /// Directory for captures: one safetensors file per request, named by its id
    #[arg(long, value_name = "DIR")]
    pub captures: Option<PathBuf>,
    #[command(flatten)]
    pub scheduler: SchedulerArgs,
    /// Draw the schedule, which request was in which pass: F.html is a web page, F.json a Chrome
    /// trace (for Perfetto)
    #[arg(long, value_name = "F.html|F.json")]
    pub trace: Option<PathBuf>,
}

/// Limits of the scheduler.
#[derive(Args)]
pub struct SchedulerArgs {
    /// Maximum number of requests in one pass [default: 32]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
    )]
    pub max_batch: Option<u16>,
    /// Memory for KV caches of running requests, such as 512M or 8G; a request that does not fit
    /// waits [default: 4G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub kv_bytes: Option<usize>,
    /// Memory for captures of running requests; a request that does not fit waits [default: 4G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub capture_bytes: Option<usize>,
    /// Memory for the prefix cache; 0 disables it [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub prefix_bytes: Option<usize>,
    /// Tokens of one pass; longer prompts are computed in chunks, and smaller passes give first
    /// tokens sooner [default: 512; of `serve` 64]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    pub pass_tokens: Option<u32>,
}

impl SchedulerArgs {
    /// The options of a scheduler: those that are given, others from `defaults`.
    pub fn options(&self, defaults: SchedulerOptions) -> SchedulerOptions {
        SchedulerOptions {
            max_rows: self.max_batch.map_or(defaults.max_rows, usize::from),
            pass_tokens: self.pass_tokens.map_or(defaults.pass_tokens, |tokens| tokens as usize),
            kv_bytes: self.kv_bytes.unwrap_or(defaults.kv_bytes),
            capture_bytes: self.capture_bytes.unwrap_or(defaults.capture_bytes),
            prefix_bytes: self.prefix_bytes.unwrap_or(defaults.prefix_bytes),
            ..defaults
        }
    }
}

impl BatchArgs {
    /// Returns a flag that is given although `--batch` is not. clap's `requires` does not report it
    /// beside a prompt, because prompts conflict with `--batch`.
    pub fn flag_without_batch(&self) -> Option<&'static str> {
        let given = [
            ("--output", self.output.is_some()),
            ("--captures", self.captures.is_some()),
            ("--max-batch", self.scheduler.max_batch.is_some()),
            ("--kv-bytes", self.scheduler.kv_bytes.is_some()),
            ("--capture-bytes", self.scheduler.capture_bytes.is_some()),
            ("--prefix-bytes", self.scheduler.prefix_bytes.is_some()),
            ("--pass-tokens", self.scheduler.pass_tokens.is_some()),
            ("--trace", self.trace.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given && self.batch.is_none()).map(|(flag, _)| flag)
    }
}

/// Parses a size in bytes: `4096`, `512M`, `1.5G` (powers of 1024, also `GiB`) or `4GB` (powers of
/// 1000).
pub fn size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let (prefix, base) = match unit.strip_suffix("ib") {
        Some(prefix) => (prefix, 1024_f64),
        None => match unit.strip_suffix('b') {
            Some(prefix) => (prefix, 1000.0),
            None => (unit.as_str(), 1024.0),
        },
    };
    let power = ["", "k", "m", "g", "t"].iter().position(|known| *known == prefix);
    let bytes = number.parse::<f64>().ok().zip(power).map(|(number, power)| number * base.powi(power as i32));
    match bytes {
        Some(bytes) if bytes < usize::MAX as f64 => Ok(bytes as usize),
        _ => Err("a size is a number of bytes, or a number with K, M, G or T, such as 512M or 4G".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        let good =
            [("0", 0), ("4096", 4096), ("512M", 512 << 20), ("1.5g", 3 << 29), ("4 GiB", 4 << 30), ("2KB", 2000)];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "4X", "-1", "1e9", "4GG", "1..2G", "99999999999T", "4ib4"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
