//! Arguments of `pellucid lab`.

use super::{AssumeArg, LabCaptureArgs, LabSessionsArgs};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use pellucid_lab::identify::Category;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum LabCommand {
    /// Measure one job in this process: a JSON request on stdin, a JSON answer on stdout
    #[command(name = "__worker", hide = true)]
    Worker,
    /// Generate in one mode of `lab capture`: a JSON request on stdin, a JSON answer on stdout
    #[command(name = "__capture", hide = true)]
    CaptureWorker,
    /// Measure the roofline of a model: a JSON request on stdin, a JSON answer on stdout
    #[command(name = "__roofline", hide = true)]
    Roofline,
    /// Profile the passes of a model: a JSON request on stdin, a JSON answer on stdout
    #[command(name = "__performance", hide = true)]
    PerformanceWorker,
    /// Run a benchmark suite, by name (see `lab list`) or from a TOML file
    Run(LabRunArgs),
    /// Pellucid against transformers, llama.cpp and candle on the same weights (same as `lab run
    /// speed`)
    Speed(SuiteOptions),
    /// Cost of captures in batched generation: no plan, zero, one, half or all layers, each in
    /// fresh processes
    Capture(LabCaptureArgs),
    /// Time from process start to the first token, and peak memory (same as `lab run startup`)
    #[command(alias = "load")]
    Startup(SuiteOptions),
    /// Benchmark model inspection: latency and correctness of category, support and metadata
    /// queries
    #[command(alias = "loader")]
    Identify(LabIdentifyArgs),
    /// Overhead of tracing from Python: Pellucid, plain PyTorch hooks and nnsight on one network,
    /// with a breakdown (`lab run trace` measures the same methods in separate processes)
    #[command(aliases = ["trace", "trace-profile"])]
    TracingCost(LabTracingCostArgs),
    /// Time of every op in decode steps and prompts, per weight dtype, against the machine's
    /// roofline; cost of captures
    Performance(LabPerformanceArgs),
    /// Interpretability methods in Pellucid and other libraries: speed and correctness; with
    /// --families, correctness per model family
    Peers(LabPeersArgs),
    /// Analysis sessions: time, memory and uses of each state, in fresh processes; with --gpt2, the
    /// four published workloads at GPT-2's size
    Sessions(LabSessionsArgs),
    /// Run every built-in suite that can run here and write a report of each
    All(LabAllArgs),
    /// List the built-in suites
    List,
    /// Print the JSON Schema of result files
    Schema,
    /// Compare two result files, or a result with a baseline
    Compare(LabCompareArgs),
    /// Find change points in results over time
    History(LabHistoryArgs),
    /// Check how noisy this machine is and what differences it can detect
    Noise {
        /// Duration of the check in seconds
        #[arg(long, default_value_t = 10.0, value_name = "S")]
        seconds: f64,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Check the lab's error rates here: identical builds must not differ, and an injected slowdown
    /// must be detected
    Selftest(LabSelftestArgs),
    /// Save, list and show named results
    #[command(subcommand)]
    Baseline(BaselineCommand),
    /// Print or write the report of a result file
    Report {
        /// The result file
        result: PathBuf,
        #[command(flatten)]
        outputs: LabOutputs,
    },
}

/// Arguments of `lab tracing-cost`.
#[derive(Args)]
pub struct LabTracingCostArgs {
    /// Python interpreter with the package `pellucid`, and with torch and nnsight to compare with
    /// them
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    pub python: PathBuf,
    /// Hugging Face directory or GGUF file: also measure generation with this model
    #[arg(long, value_name = "M")]
    pub model: Option<PathBuf>,
    /// Number of rounds; each measures everything once, in random order
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Write the report here instead of printing it
    #[arg(long, value_name = "F.md")]
    pub md: Option<PathBuf>,
    /// Write all measurements as JSON, in seconds
    #[arg(long, value_name = "F.json")]
    pub json: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "Examples:
  pellucid lab performance --model builtin                      print the page for the built-in model
  pellucid lab performance --python venv/bin/python --md docs/op-profile.md")]
pub struct LabPerformanceArgs {
    /// The model (directory, GGUF file, pulled name or `builtin`)
    #[arg(long, short, value_name = "M", default_value = "smollm2-135m")]
    pub model: String,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// Python interpreter with torch, to measure its matmul too
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<PathBuf>,
    /// Write the page here instead of printing it
    #[arg(long, value_name = "F.md")]
    pub md: Option<PathBuf>,
    /// Write all measurements as JSON
    #[arg(long, value_name = "F.json")]
    pub json: Option<PathBuf>,
}

/// Commands on named results.
#[derive(Subcommand)]
pub enum BaselineCommand {
    /// Save a result under a name
    Save {
        /// The name
        name: String,
        /// The result file
        result: PathBuf,
    },
    /// List the saved names
    List,
    /// Print a saved result
    Show {
        /// The name
        name: String,
    },
}

#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 equivalent, improved or information only; 1 regressed, or wrong output of Pellucid; 2 wrong usage; 5 invalid \
(the A/A control failed, or nothing could be compared); with --gate also 4 inconclusive.

Examples:
  pellucid lab run ladder                           overhead of captures and edits, step by step
  pellucid lab run speed --python venv/bin/python   against transformers on the same weights
  pellucid lab run speed --out speed.json --html speed.html
  pellucid lab run speed --only decode-1 batch      two workloads of the suite
  pellucid lab run my-suite.toml --gate             a gate for continuous integration"
)]
pub struct LabRunArgs {
    /// Name of a built-in suite, or a TOML file
    pub suite: String,
    #[command(flatten)]
    pub options: SuiteOptions,
}

/// Options of suites.
#[derive(Args, Clone)]
pub struct SuiteOptions {
    /// Model to use instead of the suite's (directory, GGUF file, pulled name or `builtin`)
    #[arg(long, short, value_name = "M")]
    pub model: Option<String>,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// Python interpreter with the peer libraries; missing ones are left out and reported
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<PathBuf>,
    /// Also compare with candle, if the suite does; builds its worker with cargo, which takes
    /// minutes the first time
    #[arg(long)]
    pub candle: bool,
    /// Run only these workloads of the suite
    #[arg(long, value_name = "W", num_args = 1..)]
    pub only: Vec<String>,
    /// Maximum number of pairs of processes per comparison
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub pairs: Option<u32>,
    /// Time limit of the session in seconds
    #[arg(long, value_name = "S")]
    pub budget: Option<f64>,
    /// Seed of the random order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Append every run to this file, and resume from the runs already in it
    #[arg(long, value_name = "F.jsonl")]
    pub log: Option<PathBuf>,
    /// Also compare the result with this baseline
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,
    /// Exit with code 4 if the verdict is inconclusive
    #[arg(long)]
    pub gate: bool,
    /// Also count heap allocations, in one more untimed process (pellucid-lab-worker) per Pellucid
    /// variant and workload
    #[arg(long)]
    pub allocations: bool,
    #[command(flatten)]
    pub outputs: LabOutputs,
}

#[derive(Args)]
#[command(after_help = "Examples:
  pellucid lab peers --python venv/bin/python        speed and correctness on one model
  pellucid lab peers --python venv/bin/python --families smollm2-135m models/gpt2 models/qwen3 --markdown peers.md
                                                     correctness only: every method, family and library once")]
pub struct LabPeersArgs {
    #[command(flatten)]
    pub options: SuiteOptions,
    /// Models of different families (directories, GGUF files or pulled names): check the
    /// correctness of every method and library on each; nothing is timed
    #[arg(long, value_name = "M", num_args = 1..)]
    pub families: Vec<String>,
}

/// Value of `--category` that selects all.
pub const EVERY_CATEGORY: &str = "all";

fn categories() -> PossibleValuesParser {
    PossibleValuesParser::new([EVERY_CATEGORY].into_iter().chain(Category::ALL.map(|(_, name, _)| name)))
}

#[derive(Args)]
#[command(
    after_help = "Every benchmark checks the answer that it times: a wrong answer has no time. The model directories are created in a \
temporary directory first. Measuring runs in pellucid-lab-worker, which `cargo build` and `cargo install` put next to pellucid.

Environment: BENCHMARK_ITERATIONS and BENCHMARK_WARMUP if the flags are not given; TEST_MODEL_PATH adds a real model to inspect and load.

Examples:
  pellucid lab identify --all --output baseline.json   everything, with memory, saved as a baseline
  pellucid lab identify --all --baseline baseline.json changes since then: red, green or neutral
  pellucid lab identify --category sae --iterations 1000
  TEST_MODEL_PATH=models/smollm2 pellucid lab identify --category loading

Exit codes: 0 all answers correct, all gates met; 1 a wrong answer, a missed gate or a red benchmark; 2 wrong usage; 4 a gate is undecided \
because of noise."
)]
pub struct LabIdentifyArgs {
    /// All categories with memory: same as `--category all --memory-profiling`
    #[arg(long, conflicts_with = "category")]
    pub all: bool,
    /// Measure only one category
    #[arg(long, value_name = "NAME", default_value = EVERY_CATEGORY, value_parser = categories())]
    pub category: String,
    /// Timed iterations per benchmark; a tenth for calls that take milliseconds [default: 100]
    #[arg(long, value_name = "N")]
    pub iterations: Option<usize>,
    /// Untimed warm-up iterations [default: 10]
    #[arg(long, value_name = "N")]
    pub warmup: Option<usize>,
    /// Count the allocations of every benchmark, in a separate iteration, not only of the category
    /// memory
    #[arg(long)]
    pub memory_profiling: bool,
    /// Write the result with all samples as JSON
    #[arg(long, value_name = "F.json")]
    pub output: Option<PathBuf>,
    /// Compare with an earlier result of this command
    #[arg(long, value_name = "F.json")]
    pub baseline: Option<PathBuf>,
    /// Write the report as Markdown instead of printing it
    #[arg(long, value_name = "F.md")]
    pub md: Option<PathBuf>,
    /// Print the JSON Schema of results and exit
    #[arg(long)]
    pub schema: bool,
}

#[derive(Args)]
pub struct LabAllArgs {
    /// At most two pairs per comparison and nine minutes in total: checks correctness and finds
    /// large regressions
    #[arg(long)]
    pub quick: bool,
    /// Directory of the reports: NAME.json, NAME.html and NAME.md per suite
    #[arg(long, value_name = "DIR", default_value = "lab-reports")]
    pub dir: PathBuf,
    /// Model to use instead of the suites' (directory, GGUF file, pulled name or `builtin`)
    #[arg(long, short, value_name = "M")]
    pub model: Option<String>,
    /// Python interpreter with the peer libraries; missing ones are left out and reported
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<PathBuf>,
    /// Seed of the random order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Exit with code 4 if the worst verdict is inconclusive
    #[arg(long)]
    pub gate: bool,
}

#[derive(Args, Clone, Default)]
pub struct LabOutputs {
    /// Write the result with all samples as JSON
    #[arg(long, value_name = "F.json")]
    pub out: Option<PathBuf>,
    /// Write the report as one web page, including a roofline
    #[arg(long, value_name = "F.html")]
    pub html: Option<PathBuf>,
    /// Write the report as Markdown
    #[arg(long, value_name = "F.md")]
    pub markdown: Option<PathBuf>,
    /// Write the metrics in Bencher's format
    #[arg(long, value_name = "F.json")]
    pub bencher: Option<PathBuf>,
}

#[derive(Args)]
pub struct LabCompareArgs {
    /// Earlier result: a file or the name of a baseline
    pub before: String,
    /// Later result: a file or the name of a baseline
    pub after: String,
    /// Compare even if machine, build or model differ
    #[arg(long)]
    pub force: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(
    after_help = "A change point is a lasting change of level: at least three results on either side, and a change beyond the noise.
Results of different machines, builds or models are separate series.

Examples:
  pellucid lab history results/              every result file of a directory
  pellucid lab history monday tuesday r.json baselines and files
  pellucid lab history --html history.html   all baselines, as a page"
)]
pub struct LabHistoryArgs {
    /// Directories of result files, result files or names of baselines [default: all baselines]
    pub results: Vec<String>,
    /// Write a page with a plot of every series
    #[arg(long, value_name = "F.html")]
    pub html: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Compares two copies of this program repeatedly, and a third that busy-waits for a fraction of each timed run \
(PELLUCID_LAB_SLOW, read only by workers).

Exit codes: 0 at most 10 % of the sessions have a false verdict; 1 more than 10 %; 5 all sessions are invalid."
)]
pub struct LabSelftestArgs {
    /// Number of sessions
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: u32,
    /// Maximum number of pairs of processes per comparison
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..))]
    pub pairs: u32,
    /// Injected slowdown as a fraction of the run time
    #[arg(long, value_name = "SHARE", default_value_t = 0.03)]
    pub slow: f64,
    /// The model (directory, GGUF file or pulled name)
    #[arg(long, short, value_name = "M", default_value = "builtin")]
    pub model: String,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
