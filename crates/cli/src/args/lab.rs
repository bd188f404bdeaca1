//! What can be typed after `pellucid lab`.

use super::AssumeArg;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use pellucid_lab::identify::Category;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum LabCommand {
    /// Measure one job in this process: a JSON request on stdin, a JSON answer on stdout
    #[command(name = "__worker", hide = true)]
    Worker,
    /// Construct one fixture in this process: a JSON request on stdin, a JSON answer on stdout
    #[command(name = "__fixture", hide = true)]
    Fixture,
    /// Measure the products of a model and this machine's limits: a JSON request on stdin, a JSON answer on stdout
    #[command(name = "__roofline", hide = true)]
    Roofline,
    /// Take the passes of a model apart: a JSON request on stdin, a JSON answer on stdout
    #[command(name = "__performance", hide = true)]
    PerformanceWorker,
    /// Run a suite: one by name (see `lab list`) or a TOML file
    Run(LabRunArgs),
    /// Our engine against transformers, llama.cpp and candle on the same weights (as `lab run speed`)
    Speed(SuiteOptions),
    /// What looking costs, rung by rung (as `lab run capture`)
    Capture(SuiteOptions),
    /// From a cold process to the first token, and the memory it takes (as `lab run startup`)
    #[command(alias = "load")]
    Startup(SuiteOptions),
    /// Benchmark model inspection: latency and correctness of category, support and metadata queries
    #[command(alias = "loader")]
    Identify(LabIdentifyArgs),
    /// The cost of tracing from Python: ours, plain PyTorch hooks and nnsight on one network, and where our time goes (`lab run trace` has the
    /// same methods in processes of their own)
    #[command(aliases = ["trace", "trace-profile"])]
    TracingCost(LabTracingCostArgs),
    /// Where the time goes: every op in decoding and in prompts, by storage, against the limits of this machine; what captures cost
    Performance(LabPerformanceArgs),
    /// The methods of the field by those who offer them; with --families the page of who is right on which family
    Peers(LabPeersArgs),
    /// Time and memory to construct a model, a tokenizer or a run, relative to an empty process
    #[command(aliases = ["sessions", "fixtures"])]
    Construction(LabConstructionArgs),
    /// Run every suite that comes with the lab, as far as it can run here, and write a report of each
    All(LabAllArgs),
    /// The suites that come with the lab
    List,
    /// The JSON Schema of result files
    Schema,
    /// Compare two result files, or a result with a baseline
    Compare(LabCompareArgs),
    /// When did a number change for good? Steps in results over time
    History(LabHistoryArgs),
    /// Is this machine fit to measure?
    Noise {
        /// Seconds to look
        #[arg(long, default_value_t = 10.0, value_name = "S")]
        seconds: f64,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Try the lab on itself: identical builds must not differ, and one that is slowed must be found
    Selftest(LabSelftestArgs),
    /// Results kept by name
    #[command(subcommand)]
    Baseline(BaselineCommand),
    /// A result file as a report
    Report {
        /// The result file
        result: PathBuf,
        #[command(flatten)]
        outputs: LabOutputs,
    },
}

/// The cost of tracing.
#[derive(Args)]
pub struct LabTracingCostArgs {
    /// The interpreter: with the package `pellucid`, and with torch and nnsight where they are to be compared
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    pub python: PathBuf,
    /// A Hugging Face directory or GGUF file whose generation is measured, too
    #[arg(long, value_name = "M")]
    pub model: Option<PathBuf>,
    /// Rounds; each measures everything once, in a new order
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Write the report here instead of printing it
    #[arg(long, value_name = "F.md")]
    pub md: Option<PathBuf>,
    /// Write all figures here, in seconds
    #[arg(long, value_name = "F.json")]
    pub json: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "Examples:
  pellucid lab performance --model builtin                      a look, on the screen
  pellucid lab performance --python venv/bin/python --md docs/performance.md")]
pub struct LabPerformanceArgs {
    /// The model (directory, GGUF file, pulled name or `builtin`)
    #[arg(long, short, value_name = "M", default_value = "smollm2-135m")]
    pub model: String,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// A Python with torch, whose fastest product is measured, too
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<PathBuf>,
    /// Write the page here instead of printing it
    #[arg(long, value_name = "F.md")]
    pub md: Option<PathBuf>,
    /// Write everything that was measured as JSON
    #[arg(long, value_name = "F.json")]
    pub json: Option<PathBuf>,
}

/// Baselines.
#[derive(Subcommand)]
pub enum BaselineCommand {
    /// Keep a result under a name
    Save {
        /// The name
        name: String,
        /// The result file
        result: PathBuf,
    },
    /// The names there are
    List,
    /// A kept result
    Show {
        /// The name
        name: String,
    },
}

#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 equivalent, improved or information only, 1 regressed or a wrong number of ours, 2 bad usage, 5 invalid \
(the reference differs from itself, or nothing could be compared); with --gate also 4 inconclusive.

Examples:
  pellucid lab run capture                          what looking costs, rung by rung
  pellucid lab run speed --python venv/bin/python   against transformers on the same weights
  pellucid lab run speed --out speed.json --html speed.html
  pellucid lab run speed --only decode-1 batch      two workloads of the suite
  pellucid lab run my-suite.toml --gate             a gate for continuous integration"
)]
pub struct LabRunArgs {
    /// The suite: a name or a TOML file
    pub suite: String,
    #[command(flatten)]
    pub options: SuiteOptions,
}

/// How a suite is run.
#[derive(Args, Clone)]
pub struct SuiteOptions {
    /// The model, where it is not the suite's own (directory, GGUF file, pulled name or `builtin`)
    #[arg(long, short, value_name = "M")]
    pub model: Option<String>,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// A Python that has the peers; variants that it cannot import are left out, and named
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<PathBuf>,
    /// Compare with candle, too, where the suite does: its worker is built with cargo, once, which takes minutes
    #[arg(long)]
    pub candle: bool,
    /// Only these workloads of the suite
    #[arg(long, value_name = "W", num_args = 1..)]
    pub only: Vec<String>,
    /// Pairs of processes for each comparison, at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub pairs: Option<u32>,
    /// Seconds for the whole session
    #[arg(long, value_name = "S")]
    pub budget: Option<f64>,
    /// The seed of the order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Append every process to this file as it ends, and go on from what is there
    #[arg(long, value_name = "F.jsonl")]
    pub log: Option<PathBuf>,
    /// Compare the result with a baseline of this name
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,
    /// Exit with the verdict's code even where it is inconclusive
    #[arg(long)]
    pub gate: bool,
    /// Count heap allocations too, in one more process (pellucid-lab-worker) for each of our variants and workloads, which gives no time
    #[arg(long)]
    pub allocations: bool,
    #[command(flatten)]
    pub outputs: LabOutputs,
}

#[derive(Args)]
#[command(after_help = "Examples:
  pellucid lab peers --python venv/bin/python        times and states on one model
  pellucid lab peers --python venv/bin/python --families smollm2-135m models/gpt2 models/qwen3 --markdown peers.md
                                                     states only: every method, family and library once")]
pub struct LabPeersArgs {
    #[command(flatten)]
    pub options: SuiteOptions,
    /// Models of different families (directories, GGUF files or pulled names): each method once on each, by everybody, no times
    #[arg(long, value_name = "M", num_args = 1..)]
    pub families: Vec<String>,
}

#[derive(Args)]
#[command(
    after_help = "Every fixture is built in a fresh process beside an empty one; the report says how much longer and larger it is.

Examples:
  pellucid lab construction                          the report as Markdown
  pellucid lab construction --runs 9 --json s.json --md s.md
  pellucid lab construction --benchmark-startup      what an empty process costs, five times

Exit codes: 0 reported, whatever fixtures failed; 5 the empty process failed, so nothing can be believed."
)]
pub struct LabConstructionArgs {
    /// Pairs of a fixture's process and an empty one
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Only the first N fixtures
    #[arg(long, value_name = "N")]
    pub max_fixtures: Option<usize>,
    /// Only start empty processes, five of them, and say how long they take
    #[arg(long)]
    pub benchmark_startup: bool,
    /// Accepted and ignored: uses in test sources are no longer counted
    #[arg(long, value_name = "DIR", hide = true)]
    pub sources: Option<PathBuf>,
    /// The seed of the order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the rows with every pair as JSON
    #[arg(long, value_name = "F.json")]
    pub json: Option<PathBuf>,
    /// Write the report as Markdown instead of printing it
    #[arg(long, value_name = "F.md")]
    pub md: Option<PathBuf>,
}

/// What `--category` calls all of them.
pub const EVERY_CATEGORY: &str = "all";

fn categories() -> PossibleValuesParser {
    PossibleValuesParser::new([EVERY_CATEGORY].into_iter().chain(Category::ALL.map(|(_, name, _)| name)))
}

#[derive(Args)]
#[command(
    after_help = "Every benchmark checks the answer that it times: a wrong answer has no time. The directories that are asked about are made in a \
temporary folder beforehand. Measuring runs in pellucid-lab-worker, which `cargo build` and `cargo install` put beside pellucid.

Environment: BENCHMARK_ITERATIONS and BENCHMARK_WARMUP, where the flags are not given; TEST_MODEL_PATH, a real model to inspect and load, too.

Examples:
  pellucid lab identify --all --output baseline.json   everything, memory included, kept as a baseline
  pellucid lab identify --all --baseline baseline.json what changed since: red, green or neutral
  pellucid lab identify --category sae --iterations 1000
  TEST_MODEL_PATH=models/smollm2 pellucid lab identify --category loading

Exit codes: 0 all answers right, all gates met; 1 a wrong answer, a missed gate or a red benchmark; 2 bad usage; 4 a gate lies within what the \
machine does on its own."
)]
pub struct LabIdentifyArgs {
    /// Every category, with memory: the same as `--category all --memory-profiling`
    #[arg(long, conflicts_with = "category")]
    pub all: bool,
    /// Only one category
    #[arg(long, value_name = "NAME", default_value = EVERY_CATEGORY, value_parser = categories())]
    pub category: String,
    /// Timed iterations of each benchmark, a tenth for those that take milliseconds [default: 100]
    #[arg(long, value_name = "N")]
    pub iterations: Option<usize>,
    /// Iterations before them that are not timed [default: 10]
    #[arg(long, value_name = "N")]
    pub warmup: Option<usize>,
    /// Count the allocations of every benchmark, in an iteration of its own, and not only of those about memory
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
    /// Print the JSON Schema of results, and measure nothing
    #[arg(long)]
    pub schema: bool,
}

#[derive(Args)]
pub struct LabAllArgs {
    /// Two pairs at most and nine minutes for everything, shared out among the suites: states and gross losses
    #[arg(long)]
    pub quick: bool,
    /// Where the reports go: NAME.json, NAME.html and NAME.md of every suite
    #[arg(long, value_name = "DIR", default_value = "lab-reports")]
    pub dir: PathBuf,
    /// The model, where it is not the suites' own (directory, GGUF file, pulled name or `builtin`)
    #[arg(long, short, value_name = "M")]
    pub model: Option<String>,
    /// A Python that has the peers; variants that it cannot import are left out, and named
    #[arg(long, value_name = "PYTHON")]
    pub python: Option<PathBuf>,
    /// The seed of the order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Exit with the worst verdict's code even where it is inconclusive
    #[arg(long)]
    pub gate: bool,
}

#[derive(Args, Clone, Default)]
pub struct LabOutputs {
    /// Write the result with all samples as JSON
    #[arg(long, value_name = "F.json")]
    pub out: Option<PathBuf>,
    /// Write a report as one web page, with a roofline of our products
    #[arg(long, value_name = "F.html")]
    pub html: Option<PathBuf>,
    /// Write a report as Markdown
    #[arg(long, value_name = "F.md")]
    pub markdown: Option<PathBuf>,
    /// Write the metrics in the format of bencher
    #[arg(long, value_name = "F.json")]
    pub bencher: Option<PathBuf>,
}

#[derive(Args)]
pub struct LabCompareArgs {
    /// The result before: a file or a baseline's name
    pub before: String,
    /// The result after: a file or a baseline's name
    pub after: String,
    /// Compare even where machine, build or model differ
    #[arg(long)]
    pub force: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(
    after_help = "A step is where a number changed for good: three results or more on either side, and a change beyond their noise.
Results of different machines or models are different series.

Examples:
  pellucid lab history results/              every result file of a directory
  pellucid lab history monday tuesday r.json baselines and files
  pellucid lab history --html history.html   all baselines, as a page"
)]
pub struct LabHistoryArgs {
    /// Directories of result files, result files or baselines' names [default: all baselines]
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
    after_help = "Two copies of this program are compared again and again, and with one that spins for a share of each timed run \
(PELLUCID_LAB_SLOW, which only workers read).

Exit codes: 0 the lab can be believed here: at most a tenth of the sessions are wrong; 1 it cannot; 5 nothing can be measured here."
)]
pub struct LabSelftestArgs {
    /// Sessions
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: u32,
    /// Pairs of processes in each comparison, at most
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..))]
    pub pairs: u32,
    /// The share by which a build is slowed
    #[arg(long, value_name = "SHARE", default_value_t = 0.03)]
    pub slow: f64,
    /// The model (directory, GGUF file or pulled name)
    #[arg(long, short, value_name = "M", default_value = "builtin")]
    pub model: String,
    /// Print the finding as JSON
    #[arg(long)]
    pub json: bool,
}
