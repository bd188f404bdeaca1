//! Arguments of `pellucid eval`.

use super::ModelArgs;
use clap::Args;
use pellucid_analysis::eval::FEWSHOT_SEED;
use std::path::PathBuf;

#[derive(Args)]
#[command(after_help = "A task is a file. Lines of JSONL are of one kind:
  {\"prompt\": \"…\", \"choices\": [\"…\", \"…\"], \"answer\": 0}   accuracy of the most likely choice
  {\"good\": \"…\", \"bad\": \"…\"}                             accuracy on minimal pairs
  {\"prompt\": \"…\", \"target\": \"…\"}                        perplexity of the target, exact match
  {\"text\": \"…\"}, or paragraphs of a text file             perplexity by token, word and byte
  TASK.yaml                                               a task file of lm-eval with local data

Every plan and steering vector is a variant that is compared with the plain model (`clean`) on the same items. Intervals are \
of 95 %, by bootstrap over items.

Examples:
  pellucid eval stories.txt                                        perplexity of the built-in model
  pellucid eval pairs.jsonl --plan ablate.json --plan other.json   clean against two plans
  pellucid eval task.yaml --num-fewshot 5                          with five examples in each prompt
  pellucid eval task.yaml --model smollm2-135m --steer mood.gguf@2 --json")]
pub struct EvalArgs {
    /// Task files
    #[arg(required = true, value_name = "TASK")]
    pub tasks: Vec<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// A plan under which the tasks are evaluated too; may be repeated
    #[arg(long, value_name = "F.json")]
    pub plan: Vec<PathBuf>,
    /// Steering vectors under which the tasks are evaluated too; may be repeated
    #[arg(long, value_name = "FILE[@SCALE][:LAYERS]")]
    pub steer: Vec<String>,
    /// Maximum number of items of a task
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Examples in the prompt of each item; the number in the task file by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000))]
    pub num_fewshot: Option<u32>,
    /// JSONL file of these examples; by default the task file's `fewshot_split`, or the other items
    #[arg(long, value_name = "F.jsonl")]
    pub fewshot_file: Option<PathBuf>,
    /// Seed of the choice of examples; the default is lm-eval's
    #[arg(long, value_name = "N", default_value_t = FEWSHOT_SEED)]
    pub fewshot_seed: u64,
    /// Do not put the BOS token before texts without a prompt; their first token is then not
    /// scored. Always so for the built-in model, which was trained without a start token
    #[arg(long)]
    pub no_prefix: bool,
    /// Seed of the bootstrap
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Print one JSON object, with the score of every choice
    #[arg(long)]
    pub json: bool,
}
