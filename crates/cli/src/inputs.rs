//! Input rows from prompts, conversations, token ids and files; plans from files and flags.

use crate::args::{CaptureDtypeArg, InputArgs, PlanArgs, SpliceArgs};
use crate::failure::Failure;
use pellucid_engine::{Action, CaptureDtype, CaptureOptions, Plan, Positions, Reduce, Splice, Tap};
use pellucid_models::chat::{ChatPrompt, Conversation, Message};
use pellucid_models::steer::SteerSpec;
use pellucid_models::{LoadedModel, prepare_chats};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A line of an input file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    Tokens(Vec<u32>),
    Named { text: String },
    NamedTokens { tokens: Vec<u32> },
}

impl Line {
    /// Parses a line; `None` if it is neither a text nor tokens, or both.
    fn parse(line: &str) -> Option<Line> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_both = value.get("text").is_some() && value.get("tokens").is_some();
        serde_json::from_value(value).ok().filter(|_| !is_both)
    }
}

/// The rows of a call.
pub struct Prompts {
    /// Tokens of each row.
    pub rows: Vec<Vec<u32>>,
    /// The chat of each row that is one.
    pub chats: Vec<Option<ChatPrompt>>,
}

impl Prompts {
    fn push(&mut self, tokens: Vec<u32>) {
        self.rows.push(tokens);
        self.chats.push(None);
    }

    /// Adds a text, in `chat` as a user message.
    fn push_text(&mut self, loaded: &LoadedModel, text: &str, chat: bool) -> pellucid_models::Result<()> {
        match chat {
            true => self.push_chat(loaded.chat_prompt(&vec![Message::new("user", text)].into())?),
            false => self.push(loaded.encode(text)?),
        }
        Ok(())
    }

    fn push_chat(&mut self, chat: ChatPrompt) {
        self.rows.push(chat.tokens.clone());
        self.chats.push(Some(chat));
    }
}

/// Returns the input rows: prompts, then conversations, then token lists, then the file's lines.
pub fn prompts(loaded: &LoadedModel, input: &InputArgs, file: Option<&Path>) -> Result<Prompts, Failure> {
    let mut prompts = Prompts { rows: Vec::new(), chats: Vec::new() };
    if input.chat
        && input.prompts.is_empty()
        && file.is_none()
        && !(input.messages.is_empty() && input.tokens.is_empty())
    {
        let hint = "leave it out: --messages uses the chat template anyway, and --tokens are used as they are";
        return Err(Failure::usage("--chat wraps prompts that are texts, and there are none", hint));
    }
    for prompt in &input.prompts {
        prompts.push_text(loaded, prompt, input.chat)?;
    }
    for path in &input.messages {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display()), "check --messages"))?;
        let conversation = Conversation::from_json(&text).map_err(|error| {
            Failure::usage(
                format!("{}: {error}", path.display()),
                "docs/generation.md shows the form of a file of messages",
            )
        })?;
        prompts.push_chat(loaded.chat_prompt(&conversation)?);
    }
    for list in &input.tokens {
        prompts.push(token_list(list)?);
    }
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display()), "check --input"))?;
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line = Line::parse(line).ok_or_else(|| {
                Failure::usage(
                    format!("{}, line {}: neither text nor tokens, or both", path.display(), number + 1),
                    "each line is \"text\", {\"text\": \"…\"}, [1,2,3] or {\"tokens\": [1,2,3]}",
                )
            })?;
            let pushed = match line {
                Line::Text(text) | Line::Named { text } => prompts.push_text(loaded, &text, input.chat),
                Line::Tokens(tokens) | Line::NamedTokens { tokens } if tokens.is_empty() => {
                    Err(pellucid_models::Error::usage("the row has no tokens", "give at least one token"))
                }
                Line::Tokens(tokens) | Line::NamedTokens { tokens } => {
                    prompts.push(tokens);
                    Ok(())
                }
            };
            let at = || format!("{}, line {}", path.display(), number + 1);
            pushed.map_err(|error| Failure::from(error).in_context(&at()))?;
        }
    }
    if prompts.rows.is_empty() {
        return Err(Failure::usage("there is no prompt", "give a prompt, --messages F.json or --tokens 1,2,3"));
    }
    Ok(prompts)
}

fn token_list(text: &str) -> Result<Vec<u32>, Failure> {
    let list: Option<Vec<u32>> = text.split(',').map(|id| id.trim().parse().ok()).collect();
    list.ok_or_else(|| {
        Failure::usage(
            format!("--tokens {text:?} is not a list of token ids"),
            "write ids with commas, such as --tokens 1,2,3",
        )
    })
}

/// A plan as its file has it, and the directory to which its paths are relative.
#[derive(Clone, Default)]
pub struct PlanFile {
    pub plan: Plan,
    pub directory: PathBuf,
}

impl PlanFile {
    /// The autoencoders that the plan names, each with the directory to which its path is relative.
    pub fn saes(&self) -> Vec<(&str, &Path)> {
        self.plan.saes.iter().map(|text| (text.as_str(), self.directory.as_path())).collect()
    }
}

/// Endings of other formats that may hold arrays.
const OTHER_FORMATS: [&str; 8] = ["npz", "npy", "json", "jsonl", "csv", "parquet", "pt", "pth"];

/// Rejects flags of captures that would have no effect, and a name of `--out` that promises another
/// format.
pub fn check_captures(args: &PlanArgs) -> Result<(), Failure> {
    if args.capture.is_empty() && args.positions != "all" {
        return Err(Failure::usage(
            "--positions selects positions of --capture, which is missing",
            "give --capture SITE; the taps of a plan have `positions` of their own",
        ));
    }
    let ending = args.out.as_deref().and_then(|path| path.extension()?.to_str());
    match (ending.filter(|ending| OTHER_FORMATS.contains(ending)), &args.out) {
        (Some(ending), Some(path)) => Err(Failure::usage(
            format!("--out {}: captures are written as safetensors, not as {ending}", path.display()),
            "give a name that ends in .safetensors; `safetensors.numpy.load_file` reads it",
        )),
        _ => Ok(()),
    }
}

/// Reads the file of `--plan`, or returns an empty plan.
pub fn plan_file(args: &PlanArgs) -> Result<PlanFile, Failure> {
    args.plan.as_deref().map_or_else(|| Ok(PlanFile::default()), read_plan_file)
}

/// Reads a plan file.
pub fn read_plan_file(path: &Path) -> Result<PlanFile, Failure> {
    Ok(PlanFile { plan: read_plan(path)?, directory: path.parent().unwrap_or(Path::new("")).to_owned() })
}

/// Returns the plan file's taps, the steering vectors of `--steer`, then the captures of the flags,
/// which therefore see edited values.
pub fn plan(loaded: &LoadedModel, file: PlanFile, args: &PlanArgs, prompts: &Prompts) -> Result<Plan, Failure> {
    let PlanFile { mut plan, directory } = file;
    plan.taps.extend(splice_taps(loaded, &args.splice)?);
    plan.taps.extend(steering_taps(loaded, &args.steer)?);
    plan.taps.extend(capture_taps(args));
    Ok(prepare_chats(plan, &directory, &prompts.rows, &prompts.chats, loaded.tokenizer.as_deref())?)
}

/// Parses the plan of a file.
pub fn read_plan(path: &Path) -> Result<Plan, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display()), "check --plan"))?;
    Plan::from_json(&text).map_err(|error| {
        Failure::usage(format!("{}: {error}", path.display()), "docs/plans.md shows the form of a plan")
    })
}

/// Returns the taps of steering vectors, each given as `FILE[@SCALE][:LAYERS]`.
pub fn steering_taps(loaded: &LoadedModel, specs: &[String]) -> Result<Vec<Tap>, Failure> {
    let mut all = Vec::new();
    for text in specs {
        let (taps, warning) = SteerSpec::parse(text)?.taps(loaded)?;
        all.extend(taps);
        crate::models::warn(warning.as_slice());
    }
    Ok(all)
}

/// Returns the taps of `--splice`: one for each attached autoencoder.
pub fn splice_taps(loaded: &LoadedModel, args: &SpliceArgs) -> Result<Vec<Tap>, Failure> {
    if !args.splice {
        return Ok(Vec::new());
    }
    let sites: Vec<String> = loaded.model.program().saes().map(|site| site.to_string()).collect();
    if sites.is_empty() {
        return Err(Failure::usage("--splice: no SAE is attached", "attach one with --sae PATH"));
    }
    let how = if args.error_term { Splice::ReconAndError } else { Splice::Recon };
    Ok(sites.into_iter().map(|site| Tap::new(site, Action::Splice(how))).collect())
}

/// Returns how captures are stored.
pub fn capture_options(args: &PlanArgs) -> CaptureOptions {
    let dtype = match args.capture_dtype {
        CaptureDtypeArg::F32 => CaptureDtype::F32,
        CaptureDtypeArg::Bf16 => CaptureDtype::Bf16,
    };
    let memory_limit = args.capture_memory.map(|megabytes| (megabytes as usize) << 20);
    CaptureOptions { dtype, memory_limit, spill_folder: args.capture_folder.clone() }
}

/// Returns the taps of `--capture`.
pub fn capture_taps(args: &PlanArgs) -> Vec<Tap> {
    let positions = Positions::parse(&args.positions);
    let reduce = args.sparse.then_some(Reduce::Sparse);
    let tap = |site: &String| Tap::new(site, Action::Capture(reduce.clone())).positions(positions.clone());
    args.capture.iter().map(tap).collect()
}
