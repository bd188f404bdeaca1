//! `pellucid generate`: continue a prompt.

use super::{list_marks, print, print_json, say, say_passed_over, say_written};
use crate::args::GenerateArgs;
use crate::failure::{Failure, output};
use crate::files::Results;
use crate::{files, inputs, models};
use pellucid_engine::{Finish, GenerateOptions, Sampling};
use pellucid_models::chat::Message;
use pellucid_models::{LoadedModel, StopStrings};
use serde_json::json;
use std::io::Write;
use std::time::Instant;

/// Default number of new tokens.
const DEFAULT_LENGTH: usize = 64;

pub fn run(args: GenerateArgs) -> Result<(), Failure> {
    if let Some(file) = &args.batch.batch {
        return super::batch::run(&args, file);
    }
    if let Some(flag) = args.batch.flag_without_batch() {
        return Err(Failure::usage(format!("{flag} belongs to --batch"), "give --batch F.jsonl, or leave it out"));
    }
    files::check(args.plan.out.as_deref())?;
    let started = Instant::now();
    let loaded = models::load(&args.model)?;
    let load_s = started.elapsed().as_secs_f64();
    let rows = match (args.chat, args.input.prompts.as_slice()) {
        (false, _) => inputs::rows(loaded, &args.input, None)?,
        (true, [prompt]) => vec![loaded.encode_chat(&[Message::new("user", prompt)])?],
        (true, _) => return Err(Failure::usage("--chat takes exactly one prompt", "give the user's message")),
    };
    let [prompt] = rows.as_slice() else {
        return Err(Failure::usage("generate continues one prompt at a time", "give one prompt or one --tokens list"));
    };
    let plan = inputs::plan(loaded, &args.plan, &rows)?;
    let eos = if args.ignore_eos { Vec::new() } else { loaded.eos.clone() };
    let max_new = max_new(loaded, args.max_new.map(|n| n as usize), prompt.len());
    let options = GenerateOptions {
        max_new,
        sampling: sampling(&args),
        eos,
        lookup: args.prompt_lookup,
        ..GenerateOptions::default()
    };

    let stops = StopStrings::new(args.stop)?;
    let mut stream = Stream { on: !args.json, fault: None };
    let generation = loaded.generate(&rows, &plan, &options, &stops, &mut |piece| stream.write(piece.text))?;
    let row = &generation.rows[0];
    let text = loaded.text(&row.tokens, &stops);
    let results = Results { plan: &plan, captures: &generation.captures, saved: &generation.saved, rows: 1 };
    if let Some(path) = &args.plan.out {
        files::write_results(path, &results)?;
    }
    if args.json {
        let (prefill_s, decode_s) = (generation.prefill.as_secs_f64(), generation.decode.as_secs_f64());
        print_json(&json!({
            "prompt_tokens": prompt,
            "tokens": row.tokens,
            "text": text,
            "finish_reason": finish_reason(row.finish),
            "marks": generation.marks,
            "lookup": { "drafted": row.lookup.drafted, "accepted": row.lookup.accepted },
            "timing": { "load_s": load_s, "prefill_s": prefill_s, "decode_s": decode_s },
        }))?;
    } else {
        match text {
            Some(_) => stream.finish()?,
            None => print(&format!("{}\n", row.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")))?,
        }
    }
    if !args.json && !generation.marks.is_empty() {
        say(list_marks(&generation.marks).trim_end());
    }
    say_passed_over(&generation.passed_over);
    match &args.plan.out {
        Some(path) => say_written(path, &results),
        None if !generation.captures.is_empty() => {
            say("captures were not written; use --out F.safetensors to save them")
        }
        None => {}
    }
    Ok(())
}

/// The sampling settings of the flags.
pub(super) fn sampling(args: &GenerateArgs) -> Sampling {
    Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
        seed: args.seed,
    }
}

/// Returns the number of new tokens: as asked for, or 64, or as many as the context leaves.
pub(super) fn max_new(loaded: &LoadedModel, asked: Option<usize>, prompt: usize) -> usize {
    // The last new token is not fed back, so a context of n leaves n + 1 − prompt new tokens.
    let left = loaded.model.program().architecture().context.map(|context| (context + 1).saturating_sub(prompt).max(1));
    asked.unwrap_or_else(|| left.unwrap_or(DEFAULT_LENGTH).min(DEFAULT_LENGTH))
}

/// The finish reason in results.
pub(super) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Eos => "eos",
        Finish::Length => "length",
        Finish::Stop => "stop",
        Finish::Condition => "condition",
    }
}

/// Writes generated text to stdout as it arrives, and remembers the first error.
struct Stream {
    on: bool,
    fault: Option<std::io::Error>,
}

impl Stream {
    fn write(&mut self, piece: &str) {
        if self.on && self.fault.is_none() && !piece.is_empty() {
            let mut out = std::io::stdout();
            self.fault = out.write_all(piece.as_bytes()).and_then(|()| out.flush()).err();
        }
    }

    fn finish(self) -> Result<(), Failure> {
        match self.fault {
            Some(error) => Err(output(error)),
            None => print("\n"),
        }
    }
}
