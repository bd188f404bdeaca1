//! `pellucid generate`: continue prompts.

use super::{list_marks, print, print_result, say, say_non_finite, say_passed_over, say_written};
use crate::args::GenerateArgs;
use crate::failure::{Failure, output};
use crate::files::Results;
use crate::remote::FinishedGeneration;
use crate::{files, inputs, models, remote};
use pellucid_engine::{Finish, GenerateOptions, GeneratedRow, Mark, Sampling};
use pellucid_models::escape::for_terminal;
use pellucid_models::{LoadedModel, StopStrings, TextPiece};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Default number of new tokens.
const DEFAULT_LENGTH: usize = 64;

pub fn run(args: GenerateArgs) -> Result<(), Failure> {
    if args.server.server.is_some() && args.batch.batch.is_some() {
        return Err(Failure::usage(
            "--batch runs in this process, and --server elsewhere",
            "leave out --server, or send each request with --server; the server runs them together",
        ));
    }
    if let Some(file) = &args.batch.batch {
        return super::batch::run(&args, file);
    }
    if let Some(flag) = args.batch.flag_without_batch() {
        return Err(Failure::usage(format!("{flag} belongs to --batch"), "give --batch F.jsonl, or leave it out"));
    }
    inputs::check_captures(&args.plan)?;
    say_ignored(&args);
    files::check(args.plan.out.as_deref())?;
    remote::check_plan(&args.plan, &args.server)?;
    let started = Instant::now();
    let file = inputs::plan_file(&args.plan)?;
    let place = remote::open(&args.model, &args.server, &file.saes())?;
    let loaded = place.parts();
    models::say_unused_adapters(&args.model);
    let load_s = started.elapsed().as_secs_f64();
    let prompts = inputs::prompts(loaded, &args.input, None)?;
    let plan = inputs::plan(loaded, file, &args.plan, &prompts)?;
    let rows = prompts.rows;
    let eos = if args.ignore_eos { Vec::new() } else { loaded.eos.clone() };
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let options = GenerateOptions {
        max_new: max_new(loaded, args.max_new.map(|n| n as usize), longest),
        sampling: sampling(&args),
        eos,
        lookup: args.prompt_lookup,
        captures: inputs::capture_options(&args.plan),
        ..GenerateOptions::default()
    };

    let stops = StopStrings::new(args.stop)?;
    let terminal = std::io::stdout().is_terminal();
    // The text of one row is shown as it arrives, that of several rows when all have ended.
    let mut stream = Stream { on: !args.json && rows.len() == 1, terminal, fault: None };
    let mut watch = |piece: TextPiece<'_>| stream.write(piece.text);
    let FinishedGeneration { generation, non_finite } = place.generate(&rows, &plan, &options, &stops, &mut watch)?;
    let results = Results::of_generation(loaded, &plan, &generation);
    if let Some(path) = &args.plan.out {
        files::write_results(path, &results)?;
    }
    let texts: Vec<_> = generation.rows.iter().map(|row| loaded.text(&row.tokens, &stops)).collect();
    if args.json {
        let (prefill_s, decode_s) = (generation.prefill.as_secs_f64(), generation.decode.as_secs_f64());
        let timing = json!({ "load_s": load_s, "prefill_s": prefill_s, "decode_s": decode_s });
        let shown = rows.iter().zip(&generation.rows).zip(&texts);
        let shown = shown.enumerate().map(|(index, ((prompt, row), text))| {
            let marks: Vec<&Mark> = generation.marks.iter().filter(|mark| mark.row == index).collect();
            json_of(prompt, row, text, &marks)
        });
        let mut shown: Vec<Value> = shown.collect();
        // One row is the object itself.
        let mut object = if shown.len() == 1 { shown.remove(0) } else { json!({ "rows": shown }) };
        object["timing"] = timing;
        print_result(loaded, &object)?;
    } else if let ([_], [Some(_)]) = (rows.as_slice(), texts.as_slice()) {
        stream.finish()?;
    } else {
        for (index, (row, text)) in generation.rows.iter().zip(texts).enumerate() {
            let ids = || row.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let heading = if rows.len() > 1 { format!("row {index}:") } else { String::new() };
            print(&format!("{heading}{}\n", shown(&text.unwrap_or_else(ids), terminal)))?;
        }
    }
    if !args.json && !generation.marks.is_empty() {
        say(list_marks(&generation.marks).trim_end());
    }
    let has_nan = || results.named().iter().any(|result| result.array.values().iter().any(|x| x.is_nan()));
    if generation.rows.iter().any(|row| row.non_finite) || has_nan() {
        say_non_finite(place.find_non_finite(&rows, &plan, &options, non_finite));
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

/// Reports flags that have no effect on this call.
fn say_ignored(args: &GenerateArgs) {
    let set = [("--top-k", args.top_k > 0), ("--top-p", args.top_p != 1.0), ("--min-p", args.min_p != 0.0)];
    let set: Vec<&str> = set.iter().filter(|(_, set)| *set).map(|(flag, _)| *flag).collect();
    if args.temperature == 0.0 && !set.is_empty() {
        say(&format!("note: greedy decoding ignores {}; give --temperature to sample", set.join(" and ")));
    }
    if let Some(stop) = args.stop.iter().find(|stop| ["\\n", "\\t"].iter().any(|escape| stop.contains(escape))) {
        say(&format!("note: --stop {stop} has a backslash and a letter; a shell writes a newline as $'\\n'"));
    }
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
        ..Sampling::default()
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

/// One generated row as JSON.
fn json_of(prompt: &[u32], row: &GeneratedRow, text: &Option<String>, marks: &[&Mark]) -> Value {
    json!({
        "prompt_tokens": prompt,
        "tokens": row.tokens,
        "text": text,
        "finish_reason": finish_reason(row.finish),
        "marks": marks,
        "lookup": { "drafted": row.lookup.drafted, "accepted": row.lookup.accepted },
    })
}

/// Generated text as it is shown: a terminal gets no escape sequences, other readers every
/// character.
fn shown(text: &str, terminal: bool) -> Cow<'_, str> {
    if terminal { for_terminal(text) } else { text.into() }
}

/// Writes generated text to stdout as it arrives, and remembers the first error.
struct Stream {
    on: bool,
    terminal: bool,
    fault: Option<std::io::Error>,
}

impl Stream {
    fn write(&mut self, piece: &str) {
        if self.on && self.fault.is_none() && !piece.is_empty() {
            let mut out = std::io::stdout();
            self.fault = out.write_all(shown(piece, self.terminal).as_bytes()).and_then(|()| out.flush()).err();
        }
    }

    fn finish(self) -> Result<(), Failure> {
        match self.fault {
            Some(error) => Err(output(error)),
            None => print("\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f24_generated_escape_sequences_do_not_reach_a_terminal() {
        let text = "a\u{1b}]0;title\u{7}\n\u{9b}31m\u{202e}é";
        assert_eq!(shown(text, false), text, "a pipe gets the text");
        assert_eq!(shown(text, true), "a\\u{1b}]0;title\\u{7}\n\\u{9b}31m\\u{202e}é");
    }
}
