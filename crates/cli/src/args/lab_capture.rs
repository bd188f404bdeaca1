//! Arguments of `pellucid lab capture`.

use super::AssumeArg;
use clap::Args;
use clap::builder::PossibleValuesParser;
use pellucid_lab::capture::Mode;
use std::path::PathBuf;

fn modes() -> PossibleValuesParser {
    PossibleValuesParser::new(Mode::ALL.map(|(_, name)| name))
}

#[derive(Args)]
#[command(after_help = "Modes, all on the same prompts, through the scheduler, with all requests submitted at once:
  baseline     no plan
  zero-layer   a capture of every layer that selects no position: all machinery, no data
  noop-hook    a callback at every layer that does nothing
  single       the middle layer            half         the middle half of the layers
  all-layers   every layer                 custom       the layers of --layers

One mode runs in one process and gives one JSON file (--output, or stdout). Several modes, or none (all but custom), are a suite: every \
mode runs in --rounds fresh processes, interleaved with two baselines per round, and a new folder DIR/isolated_TIMESTAMP gets a \
JSON file per mode, suite.json, report.md and report.html. The report computes the overheads with confidence intervals, fits \
the cost per layer, and says where the time went.

A JSON file has the timings of every iteration, and the counts that they rest on: tokens per request, captured bytes against \
batch · layers · (prefill + decode − 1) · width · 4, rows checked, a digest of the output, peak memory, the machine.

Examples:
  pellucid lab capture                                             the suite on the built-in model, about a minute
  pellucid lab capture --mode all-layers --output all.json         one mode
  pellucid lab capture --mode custom --layers 0,5,10 --output c.json
  pellucid lab capture --model smollm2-135m --batch 32 --prefill 512 --decode 128 --python venv/bin/python
                                                                   a real model, with transformers beside it
  pellucid lab capture --mode baseline all-layers --mixed --prefill 512 --decode 128 --batch 32 --python venv/bin/python
                                                                   mixed lengths; transformers gets padded batches
  pellucid lab capture --ladder                                    also one prefill, step by step (the suite `ladder`)

Exit codes: 0 measured; 1 wrong tokens, captures or bytes (with --gate also a missed bar); 2 wrong usage; 4 with --gate, a bar is \
undecided because of noise; 5 a process failed.")]
pub struct LabCaptureArgs {
    /// The model (directory, GGUF file, pulled name or `builtin`)
    #[arg(long, short, value_name = "M", default_value = "builtin")]
    pub model: String,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// Modes to run [default: all but custom]
    #[arg(long, value_name = "MODE", num_args = 1.., value_parser = modes())]
    pub mode: Vec<String>,
    /// Layers of the mode `custom`: 0,5,10
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub layers: Vec<usize>,
    /// Number of requests, all submitted at once
    #[arg(long, value_name = "B", default_value_t = 8)]
    pub batch: usize,
    /// Tokens of each prompt
    #[arg(long, value_name = "P", default_value_t = 128)]
    pub prefill: usize,
    /// New tokens of each request; end-of-sequence tokens are ignored
    #[arg(long, value_name = "G", default_value_t = 64)]
    pub decode: usize,
    /// Requests of random lengths: 16 to P prompt tokens and 16 to G new tokens
    #[arg(long)]
    pub mixed: bool,
    /// Timed iterations per process, after one warm-up
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,
    /// Rounds of a suite: processes per mode
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// The JSON file of one mode, or the directory of a suite's folder [default: stdout, or
    /// lab-capture]
    #[arg(long, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// In-memory dtype of the weights
    #[arg(long, value_name = "DTYPE", default_value = "auto", value_parser = ["auto", "f32", "bf16", "f16", "q8"])]
    pub dtype: String,
    /// Python interpreter with torch and transformers: also run the same prompts in
    /// `transformers.generate`, with forward hooks and with output_hidden_states
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<PathBuf>,
    /// Also time writing the captures to a file
    #[arg(long)]
    pub profile_fetch: bool,
    /// Also run the suite `ladder`: plans, captures and steering on one prefill, step by step
    #[arg(long)]
    pub ladder: bool,
    /// Exit with code 1 if a bar is missed and 4 if one is undecided
    #[arg(long)]
    pub gate: bool,
}
