//! `pellucid tokens`: the tokens of prompts, and the messages that they belong to.

use super::{print, print_json, say};
use crate::args::TokensArgs;
use crate::failure::Failure;
use crate::{inputs, models};
use pellucid_models::LoadedModel;
use pellucid_models::chat::ChatPrompt;
use serde_json::{Value, json};

pub fn run(args: TokensArgs) -> Result<(), Failure> {
    let loaded = models::load(&args.model)?;
    let prompts = inputs::prompts(loaded, &args.input, None)?;
    let vocab = loaded.model.program().architecture().vocab;
    if let Some(token) = prompts.rows.iter().flatten().find(|&&token| token as usize >= vocab) {
        return Err(Failure::usage(
            format!("token {token} does not exist: the model has {vocab}"),
            "use the tokenizer that came with this model",
        ));
    }
    let rows: Vec<Row> =
        prompts.rows.iter().zip(&prompts.chats).map(|(tokens, chat)| Row::new(loaded, tokens, chat)).collect();
    if args.json {
        let rows: Vec<Value> = rows.iter().map(Row::to_json).collect();
        return print_json(&json!({ "model": loaded.name, "rows": rows }));
    }
    for (index, row) in rows.iter().enumerate() {
        if rows.len() > 1 {
            print(&format!("row {index}: {} tokens\n", row.tokens.len()))?;
        }
        print(&row.table())?;
        if let Some(problem) = &row.problem {
            say(&format!("no spans: {problem}"));
        }
    }
    Ok(())
}

/// One row as it is shown.
struct Row {
    tokens: Vec<Token>,
    is_chat: bool,
    /// Why the messages of a chat are not located.
    problem: Option<String>,
}

struct Token {
    id: u32,
    text: Option<String>,
    /// Message, role and part; `None` outside of messages.
    message: Option<(usize, String, &'static str)>,
    in_generation_prompt: bool,
}

impl Row {
    fn new(loaded: &LoadedModel, tokens: &[u32], chat: &Option<ChatPrompt>) -> Row {
        let (spans, problem) = match chat.as_ref().map(ChatPrompt::spans) {
            None => (None, None),
            Some(Ok(spans)) => (Some(spans), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        let token = |(position, &id): (usize, &u32)| Token {
            id,
            text: loaded.tokenizer.as_ref().map(|tokenizer| tokenizer.token_text(id)),
            message: spans.and_then(|spans| {
                let (index, part) = spans.of_token(position)?;
                Some((index, spans.messages[index].role.clone(), part.name()))
            }),
            in_generation_prompt: spans.is_some_and(|spans| spans.generation_prompt.contains(&position)),
        };
        Row { tokens: tokens.iter().enumerate().map(token).collect(), is_chat: spans.is_some(), problem }
    }

    /// A table with a line per token: index, id, text, and message, role and part for a chat.
    fn table(&self) -> String {
        let texts: Vec<String> = self
            .tokens
            .iter()
            .map(|token| token.text.as_ref().map_or_else(String::new, |text| format!("{text:?}")))
            .collect();
        let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max("token".len());
        let mut table = format!("{:>5}  {:>7}  {:<width$}", "index", "id", "token");
        table += if self.is_chat { "  message  role       part\n" } else { "\n" };
        for (index, (token, text)) in self.tokens.iter().zip(&texts).enumerate() {
            let mut line = format!("{index:>5}  {:>7}  {text:<width$}", token.id);
            match &token.message {
                Some((message, role, part)) => line += &format!("  {message:>7}  {role:<9}  {part}"),
                None if token.in_generation_prompt => line += &format!("  {:>7}  {:<9}  generation prompt", "", ""),
                None => {}
            }
            table += line.trim_end();
            table.push('\n');
        }
        table
    }

    fn to_json(&self) -> Value {
        let token = |(index, token): (usize, &Token)| {
            let mut shown = json!({ "index": index, "id": token.id, "token": token.text });
            if let Some((message, role, part)) = &token.message {
                shown["message"] = json!(message);
                shown["role"] = json!(role);
                shown["part"] = json!(part);
            } else if token.in_generation_prompt {
                shown["part"] = json!("generation_prompt");
            }
            shown
        };
        let tokens: Vec<Value> = self.tokens.iter().enumerate().map(token).collect();
        match &self.problem {
            None => json!({ "tokens": tokens }),
            Some(problem) => json!({ "tokens": tokens, "no_spans": problem }),
        }
    }
}
