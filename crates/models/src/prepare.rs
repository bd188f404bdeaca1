//! Resolves the references of a plan before it is compiled: tensors in files, tokens in prompts.

use crate::chat::{ChatPrompt, not_a_chat};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::tensors::Tensors;
use crate::tokenizer::Tokenizer;
use pellucid_engine::plan::{Expr, FromSite, Probe};
use pellucid_engine::{Action, Array, Operand, Plan, Positions, Remedy, Tap, When};
use pellucid_kernels::encoding;
use serde_json::{Value, json};
use std::path::Path;

/// Resolves file references (relative to `base`) and token selectors of a plan for these inputs.
///
/// The positions of a token or message differ between rows, so a tap that selects by them becomes
/// one tap per row.
pub fn prepare(plan: Plan, base: &Path, inputs: &[Vec<u32>], tokenizer: Option<&Tokenizer>) -> Result<Plan> {
    prepare_chats(plan, base, inputs, &[], tokenizer)
}

/// Like [`prepare`], for inputs some of which are chats: `chats[row]` is the chat of a row. A
/// shorter list leaves the other rows without one. Positions of messages are looked up there.
pub fn prepare_chats(
    plan: Plan,
    base: &Path,
    inputs: &[Vec<u32>],
    chats: &[Option<ChatPrompt>],
    tokenizer: Option<&Tokenizer>,
) -> Result<Plan> {
    let mut taps = Vec::with_capacity(plan.taps.len());
    // For each tap of the plan, the index of its first resolved tap and their number.
    let mut resolved = Vec::with_capacity(plan.taps.len());
    for mut tap in plan.taps {
        read_files(&mut tap, base)?;
        resolved.push((taps.len(), tap.rows.as_ref().map_or(inputs.len(), Vec::len)));
        if !differs_by_row(&mut tap) {
            resolved.last_mut().expect("pushed above").1 = 1;
            taps.push(tap);
            continue;
        }
        for row in tap.rows.clone().unwrap_or_else(|| (0..inputs.len()).collect()) {
            if row >= inputs.len() {
                return Err(Error::usage(
                    format!("there is no row {row}: this call has {} inputs", inputs.len()),
                    "rows count the inputs from 0",
                ));
            }
            let look_up = |positions: &Positions, row: usize| match positions {
                Positions::Token(text) => {
                    let tokens = inputs.get(row).map(Vec::as_slice).unwrap_or_default();
                    find_positions(text, tokens, row, tokenizer).map(Positions::List)
                }
                Positions::Messages(messages) => {
                    let chat = chats.get(row).and_then(Option::as_ref).ok_or_else(|| not_a_chat(messages, row))?;
                    chat.spans()?.positions(messages).map(Positions::List)
                }
                other => Ok(other.clone()),
            };
            let mut one = tap.clone().rows([row]);
            one.positions = look_up(&tap.positions, row)?;
            one.keys = tap.keys.as_ref().map(|keys| look_up(keys, row)).transpose()?;
            for from in sources(&mut one.action) {
                let Some(positions) = from.positions.as_ref().filter(|positions| depends_on_row(positions)) else {
                    continue;
                };
                let origin = match from.rows.as_deref() {
                    None => row,
                    Some([one]) => *one,
                    Some(_) => {
                        return Err(Error::usage(
                            format!("the source position {positions} differs between rows, and the source has several"),
                            "write one tap per row",
                        ));
                    }
                };
                from.positions = Some(look_up(positions, origin)?);
            }
            taps.push(one);
        }
    }
    let mut values = plan.values;
    for value in &mut values {
        match &mut value.expr {
            Expr::File(reference) => value.expr = Expr::Constant(read_array(base, reference)?),
            Expr::Read(tap) => match resolved.get(*tap) {
                Some((first, 1)) => *tap = *first,
                Some(_) => {
                    return Err(Error::usage(
                        "a value reads positions of a token or message, which differ between rows",
                        "write one tap per row, or give the position as a number",
                    ));
                }
                None => {}
            },
            _ => {}
        }
    }
    Ok(Plan { taps, values, ..plan })
}

/// Whether positions are those of a token or of messages, which differ between rows.
fn depends_on_row(positions: &Positions) -> bool {
    matches!(positions, Positions::Token(_) | Positions::Messages(_))
}

fn differs_by_row(tap: &mut Tap) -> bool {
    let in_source = sources(&mut tap.action).any(|from| from.positions.as_ref().is_some_and(depends_on_row));
    in_source || depends_on_row(&tap.positions) || tap.keys.as_ref().is_some_and(depends_on_row)
}

/// The sites that an action reads from.
fn sources(action: &mut Action) -> impl Iterator<Item = &mut FromSite> {
    action.operands_mut().into_iter().filter_map(|operand| match operand {
        Operand::From(from) => Some(from),
        Operand::Number(_) | Operand::Vector(_) | Operand::Rows(_) | Operand::File(_) | Operand::Value(_) => None,
    })
}

/// Returns all positions of a token in a row.
fn find_positions(text: &str, tokens: &[u32], row: usize, tokenizer: Option<&Tokenizer>) -> Result<Vec<i64>> {
    let tokenizer = tokenizer.ok_or_else(|| {
        Error::usage(
            format!("the position {text:?} names a token, and this model has no tokenizer"),
            "give positions as numbers",
        )
    })?;
    let id = tokenizer.find(text).ok_or_else(|| {
        Error::usage(
            format!("{text:?} is not one token of this model (nor a position, slice or keyword)"),
            "check the leading space, or give positions as numbers",
        )
    })?;
    let positions: Vec<i64> =
        tokens.iter().enumerate().filter(|(_, token)| **token == id).map(|(position, _)| position as i64).collect();
    if positions.is_empty() {
        return Err(Error::usage(format!("the token {text:?} does not occur in row {row}"), Remedy::PromptTokens));
    }
    Ok(positions)
}

/// Replaces the file references in a tap's action and condition by their tensors.
fn read_files(tap: &mut Tap, base: &Path) -> Result<()> {
    for operand in operands(&mut tap.action, &mut tap.when) {
        if let Operand::File(reference) = operand {
            *operand = read_tensor(base, reference)?;
        }
    }
    Ok(())
}

/// The operands of an action and of its condition.
fn operands<'a>(action: &'a mut Action, when: &'a mut Option<When>) -> impl Iterator<Item = &'a mut Operand> {
    let condition = when.as_mut().and_then(|when| match &mut when.probe {
        Probe::Direction(direction) => Some(direction),
        Probe::Unit(_) => None,
    });
    action.operands_mut().into_iter().chain(condition)
}

/// Reads a tensor as an operand: a vector `[width]`, or one vector per position `[positions,
/// width]`.
fn read_tensor(base: &Path, reference: &str) -> Result<Operand> {
    let array = read_array(base, reference)?;
    let values = array.values();
    match array.shape() {
        [_] | [1, _] => Ok(Operand::Vector(values.to_vec())),
        [_, width] if *width > 0 => Ok(Operand::Rows(values.chunks_exact(*width).map(<[f32]>::to_vec).collect())),
        shape => Err(Error::usage(
            format!("{reference:?} has shape {shape:?}"),
            "a tap takes a vector, or a matrix with one row per position; other shapes are for values",
        )),
    }
}

/// Reads the tensor of a reference `file.safetensors#name`.
fn read_array(base: &Path, reference: &str) -> Result<Array> {
    let Some((file, name)) = reference.split_once('#') else {
        return Err(Error::usage(format!("{reference:?} does not name a tensor"), "write file.safetensors#tensor"));
    };
    let path = base.join(file);
    let tensors = Tensors::Checkpoint(Checkpoint::open_file(&path)?);
    let stored = tensors.get(name).ok_or_else(|| {
        let mut names = tensors.names();
        names.sort_unstable();
        Error::invalid(&path, format!("there is no tensor {name:?}"), format!("the file has {}", names.join(", ")))
    })?;
    let encoding = stored.encoding.map_err(|format| {
        Error::invalid(&path, format!("tensor {name:?} is stored as {format}"), "store it as F32, F16 or BF16")
    })?;
    let mut values = vec![0.0; stored.shape.iter().product()];
    encoding::decode(encoding, stored.bytes, &mut values);
    Ok(Array::new(stored.shape.to_vec(), values))
}

/// Reads the taps of `capture`: site patterns, or taps as in plans (`capture` may be left out).
pub fn capture_taps(captures: Vec<Value>) -> Result<Vec<Tap>> {
    const FORM: &str =
        "`capture` lists sites, or objects such as {\"site\": \"layers.*.resid_post\", \"positions\": \"last\"}";
    let tap = |value| match value {
        Value::String(site) => Ok(json!({"site": site, "capture": true})),
        Value::Object(mut object) => {
            object.entry("capture").or_insert(Value::Bool(true));
            Ok(Value::Object(object))
        }
        other => Err(Error::usage(format!("`capture` has the entry {other}"), FORM)),
    };
    let taps: Vec<Value> = captures.into_iter().map(tap).collect::<Result<_>>()?;
    let plan: Plan = serde_json::from_value(json!({"taps": taps}))
        .map_err(|error| Error::usage(format!("`capture`: {error}"), FORM))?;
    if let Some(tap) = plan.taps.iter().find(|tap| !matches!(tap.action, Action::Capture(_))) {
        return Err(Error::usage(
            format!("`capture` has a tap on {} with another action", tap.site),
            "write edits under `plan`",
        ));
    }
    Ok(plan.taps)
}

/// Returns a file that a plan refers to, if any. Plans of others, such as those of HTTP requests,
/// may name none.
pub fn file_reference(plan: &Plan) -> Option<String> {
    let of_value = plan.values.iter().find_map(|value| match &value.expr {
        Expr::File(reference) => Some(reference.clone()),
        _ => None,
    });
    let of_tap = |tap: &Tap| {
        let mut tap = tap.clone();
        let (action, when) = (&mut tap.action, &mut tap.when);
        operands(action, when).find_map(|operand| match operand {
            Operand::File(reference) => Some(reference.clone()),
            _ => None,
        })
    };
    of_value.or_else(|| plan.taps.iter().find_map(of_tap))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{ChatOptions, ChatTemplate, Message};
    use crate::load::LoadOptions;
    use crate::model::LoadedModel;
    use pellucid_engine::RunOptions;

    #[test]
    fn a_token_in_the_source_of_skip_is_looked_up() {
        let loaded = LoadedModel::builtin(&LoadOptions::default()).unwrap();
        let inputs = [loaded.encode("Tom saw a dog. The").unwrap(), loaded.encode("Lily saw a bird. The").unwrap()];
        let logits = |positions: &str| {
            let skip =
                format!(r#"{{"site": "layers.1", "rows": [1], "positions": [3], "skip": {{"from": {positions}}}}}"#);
            let plan =
                Plan::from_json(&format!(r#"{{"taps": [{skip}, {{"site": "logits", "capture": true}}]}}"#)).unwrap();
            let plan = prepare(plan, Path::new(""), &inputs, loaded.tokenizer.as_deref()).unwrap();
            let run = loaded.model.run(&inputs, &plan, &RunOptions::default()).unwrap();
            run.captures[1].array.values().to_vec()
        };
        let by_token = logits(r#"{"rows": [0], "positions": {"token": " dog"}}"#);
        assert_eq!(by_token, logits(r#"{"rows": [0], "positions": [3]}"#));
        // The control: another token of that row gives another result.
        assert_ne!(by_token, logits(r#"{"rows": [0], "positions": {"token": " saw"}}"#));
    }

    #[test]
    fn messages_are_looked_up_in_the_chat_of_each_row() {
        let loaded = LoadedModel::builtin(&LoadOptions::default()).unwrap();
        let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
        let template = ChatTemplate::new(source, Path::new("t.jinja"));
        let chat = |contents: [&str; 2]| {
            let messages = ["user", "assistant"].into_iter().zip(contents);
            let messages: Vec<Message> = messages.map(|(role, content)| Message::new(role, content)).collect();
            ChatPrompt::new(&template, loaded.tokenizer().unwrap(), &messages, &ChatOptions::default()).unwrap()
        };
        let chats = [Some(chat(["Tom saw a dog.", "The dog"])), Some(chat(["Tom", "The dog was big."])), None];
        let tokens = |chat: &Option<ChatPrompt>| chat.as_ref().map_or(vec![1, 2, 3], |chat| chat.tokens.clone());
        let inputs: Vec<Vec<u32>> = chats.iter().map(tokens).collect();
        let plan = |taps: &str| {
            let plan = Plan::from_json(&format!(r#"{{"taps": [{taps}]}}"#)).unwrap();
            prepare_chats(plan, Path::new(""), &inputs, &chats, loaded.tokenizer.as_deref())
        };
        let tap = r#"{"site": "layers.1.resid_post", "rows": [0, 1], "positions": {"message": -1}, "capture": true}"#;
        let taps = plan(tap).unwrap().taps;
        for (row, tap) in taps.iter().enumerate() {
            let content = chats[row].as_ref().unwrap().spans().unwrap().messages[1].content.clone();
            assert_eq!(tap.positions, Positions::List(content.map(|position| position as i64).collect()));
        }
        assert_ne!(taps[0].positions, taps[1].positions);
        let error = plan(r#"{"site": "embed", "positions": {"role": "user"}, "capture": true}"#).unwrap_err();
        assert_eq!(error.to_string(), "the positions role:user name messages, and row 2 is not a chat");
        assert_eq!(error.remedy(), Some(&Remedy::GiveChat));
    }
}
