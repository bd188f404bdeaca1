//! From a line of the batch file to a request of the scheduler.

use super::line::{OneOrMany, RequestLine, Steering};
use crate::args::GenerateArgs;
use crate::commands::generate::{max_new, sampling};
use crate::failure::Failure;
use crate::inputs::{self, PlanFile};
use pellucid_engine::{GenerateOptions, Plan, RowAdapters, Sampling, SteeringSpec, Tap};
use pellucid_models::attach::check_saes;
use pellucid_models::chat::{ChatPrompt, Message};
use pellucid_models::{LoadedModel, StopStrings, capture_taps, prepare_chats};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Plan files that stay parsed; many lines usually name few of them.
const CACHED_PLANS: usize = 64;

/// A request that is ready to be submitted.
pub struct PreparedRequest {
    pub prompt: Vec<u32>,
    pub plan: Plan,
    pub options: GenerateOptions,
    pub stops: StopStrings,
}

/// Prepares requests: a key of a line takes precedence over the flag of the same name.
pub struct Preparer<'a> {
    loaded: &'a LoadedModel,
    args: &'a GenerateArgs,
    /// Directory of the batch file: relative paths in it start there.
    base: PathBuf,
    /// Plan, steering and captures of the flags, for lines without their own.
    flag_plan: PlanFile,
    /// Splices of the flags, for every line.
    flag_splices: Vec<Tap>,
    flag_steering: Vec<Tap>,
    flag_captures: Vec<Tap>,
    plan_files: HashMap<PathBuf, Plan>,
}

impl<'a> Preparer<'a> {
    pub fn new(
        loaded: &'a LoadedModel,
        flag_plan: PlanFile,
        args: &'a GenerateArgs,
        batch: &Path,
    ) -> Result<Preparer<'a>, Failure> {
        let base = batch.parent().unwrap_or(Path::new("")).to_owned();
        let flag_splices = inputs::splice_taps(loaded, &args.plan.splice)?;
        let flag_captures = inputs::capture_taps(&args.plan);
        let flag_steering = inputs::steering_taps(loaded, &args.plan.steer)?;
        Ok(Preparer {
            loaded,
            args,
            base,
            flag_plan,
            flag_splices,
            flag_steering,
            flag_captures,
            plan_files: HashMap::new(),
        })
    }

    /// Encodes the prompt, reads the plan and collects the options of a request.
    pub fn prepare(&mut self, line: RequestLine) -> Result<PreparedRequest, Failure> {
        let (prompt, chat) = self.prompt(&line)?;
        let PlanFile { plan, directory } = self.plan(&line)?;
        let rows = std::slice::from_ref(&prompt);
        let plan = prepare_chats(plan, &directory, rows, &[chat], self.loaded.tokenizer.as_deref())?;
        if self.args.batch.captures.is_none() && plan.returns_tensors() {
            return Err(Failure::usage(
                "the request captures activations, and there is no directory for them",
                "give --captures DIR",
            ));
        }
        let args = self.args;
        let flags = sampling(args);
        let sampling = Sampling {
            temperature: line.temperature.unwrap_or(flags.temperature),
            top_k: line.top_k.unwrap_or(flags.top_k),
            top_p: line.top_p.unwrap_or(flags.top_p),
            min_p: line.min_p.unwrap_or(flags.min_p),
            repetition_penalty: line.repetition_penalty.unwrap_or(flags.repetition_penalty),
            seed: line.seed.unwrap_or(flags.seed),
            ..flags
        };
        let stops = StopStrings::new(line.stop.map_or_else(|| args.stop.clone(), |stop| stop.into_list()))?;
        let eos = if line.ignore_eos.unwrap_or(args.ignore_eos) { Vec::new() } else { self.loaded.eos.clone() };
        let options = GenerateOptions {
            max_new: max_new(self.loaded, line.max_new.or(args.max_new.map(|n| n as usize)), prompt.len()),
            sampling,
            eos,
            lookup: line.prompt_lookup.unwrap_or(args.prompt_lookup),
            captures: inputs::capture_options(&args.plan),
            adapters: line.adapter.map_or(RowAdapters::ModelDefault, RowAdapters::All),
            ..GenerateOptions::default()
        };
        Ok(PreparedRequest { prompt, plan, options, stops })
    }

    /// Encodes `prompt`, `messages` or `tokens`; also returns the chat, if it is one.
    fn prompt(&self, line: &RequestLine) -> Result<(Vec<u32>, Option<ChatPrompt>), Failure> {
        let chat = |messages: Vec<Message>| -> Result<_, Failure> {
            let chat = self.loaded.chat_prompt(&messages.into())?;
            Ok((chat.tokens.clone(), Some(chat)))
        };
        match (&line.prompt, &line.messages, &line.tokens) {
            (Some(prompt), None, None) if self.args.input.chat => chat(vec![Message::new("user", prompt)]),
            (Some(prompt), None, None) => Ok((self.loaded.encode(prompt)?, None)),
            (None, Some(messages), None) => chat(messages.clone()),
            (None, None, Some(tokens)) => Ok((tokens.clone(), None)),
            (None, None, None) => {
                Err(Failure::usage("the request has no prompt", "give `prompt`, `messages` or `tokens`"))
            }
            _ => Err(Failure::usage(
                "the request has more than one of `prompt`, `messages` and `tokens`",
                "give exactly one of them",
            )),
        }
    }

    /// Returns the taps of a request and the directory of the files that they name. Edits come
    /// first, then steering, then captures, which see edited activations.
    fn plan(&mut self, line: &RequestLine) -> Result<PlanFile, Failure> {
        let PlanFile { mut plan, directory } = match &line.plan {
            None => self.flag_plan.clone(),
            Some(serde_json::Value::String(file)) => self.plan_file(&self.base.join(file))?,
            Some(inline) => {
                let plan = serde_json::from_value(inline.clone()).map_err(|error| {
                    Failure::usage(format!("`plan`: {error}"), "docs/plans.md shows the form of a plan")
                })?;
                PlanFile { plan, directory: self.base.clone() }
            }
        };
        // The model is loaded once, so the plan of a line cannot attach autoencoders.
        check_saes(&self.loaded.saes(), &plan, &directory)?;
        plan.taps.extend(self.flag_splices.iter().cloned());
        plan.taps.extend(match &line.steer {
            None => self.flag_steering.clone(),
            Some(Steering::Files(files)) => inputs::steering_taps(self.loaded, &self.beside_batch(files.clone()))?,
            Some(Steering::Spec(spec)) => {
                let spec = SteeringSpec::from_json(&spec.clone().into())?;
                spec.check(self.loaded.model.program())?;
                spec.taps()
            }
        });
        plan.taps.extend(match &line.capture {
            None => self.flag_captures.clone(),
            Some(captures) => capture_taps(captures.clone())?,
        });
        Ok(PlanFile { plan, directory })
    }

    /// Makes paths of a line relative to the batch file.
    fn beside_batch(&self, files: OneOrMany) -> Vec<String> {
        let join = |file: String| self.base.join(file).to_string_lossy().into_owned();
        files.into_list().into_iter().map(join).collect()
    }

    fn plan_file(&mut self, path: &Path) -> Result<PlanFile, Failure> {
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        if let Some(plan) = self.plan_files.get(path) {
            return Ok(PlanFile { plan: plan.clone(), directory });
        }
        let plan = inputs::read_plan(path)?;
        if self.plan_files.len() == CACHED_PLANS {
            self.plan_files.clear();
        }
        self.plan_files.insert(path.to_owned(), plan.clone());
        Ok(PlanFile { plan, directory })
    }
}
