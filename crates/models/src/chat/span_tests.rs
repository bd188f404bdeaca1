//! Spans of messages with templates of several families and on several kinds of tokenizers.

use super::tests::{CHATML, GEMMA, LLAMA3, MISTRAL};
use super::*;
use crate::tokenizer::testing::{added, build, byte_level_json, llama_json};
use crate::tokenizer::{Sidecars, Tokenizer};
use pellucid_engine::plan::{MessagePart, MessagePositions};
use proptest::prelude::*;
use serde_json::json;

/// Drops the reasoning of earlier answers, as Qwen 3 does.
const QWEN3: &str = r#"
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and not loop.last and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"#;

/// Byte-level BPE with and without whitespace in its offsets, and SentencePiece, each with the
/// special tokens of the templates.
fn tokenizers() -> [Tokenizer; 3] {
    let special =
        ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];
    let special: Vec<&str> = special.into_iter().chain(["<start_of_turn>", "<end_of_turn>"]).collect();
    let with_special = |mut json: serde_json::Value, first: u32| {
        json["added_tokens"] = (first..).zip(&special).map(|(id, text)| added(id, text)).collect();
        json
    };
    let byte_level = with_special(byte_level_json(), 260);
    let mut trimmed = byte_level.clone();
    trimmed["post_processor"] =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let config = br#"{"bos_token":"<s>","eos_token":"</s>"}"#;
    let sidecars = Sidecars { tokenizer_config: Some(config), ..Sidecars::default() };
    [byte_level, trimmed, with_special(llama_json(), 300)].map(|json| build(&json, &sidecars).expect("a tokenizer"))
}

fn conversation(messages: &[(&str, &str)]) -> Conversation {
    messages.iter().map(|&(role, content)| Message::new(role, content)).collect::<Vec<_>>().into()
}

fn prompt(source: &str, tokenizer: &Tokenizer, conversation: &Conversation) -> ChatPrompt {
    let template = ChatTemplate::new(source, Path::new("t.jinja"));
    let prompt = ChatPrompt::new(&template, tokenizer, &conversation.messages, &conversation.options).expect("renders");
    let plain = template.render_with(&conversation.messages, &conversation.options, tokenizer.special());
    assert_eq!(prompt.tokens, tokenizer.encode(&plain.expect("renders"), false).expect("encodes"));
    prompt
}

fn text(tokenizer: &Tokenizer, prompt: &ChatPrompt, range: std::ops::Range<usize>) -> String {
    let bytes: Vec<u8> = prompt.tokens[range].iter().flat_map(|&token| tokenizer.token_bytes(token)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Checks that spans are adjacent in the order of the prompt and cover every token; returns the
/// text of each message's header, content and footer, and of the generation prompt.
fn parts(source: &str, tokenizer: &Tokenizer, conversation: &Conversation) -> (Vec<[String; 3]>, String) {
    let prompt = prompt(source, tokenizer, conversation);
    let spans = prompt.spans().expect("located");
    let mut ordered: Vec<&MessageSpan> = spans.messages.iter().collect();
    ordered.sort_by_key(|span| (span.header.start, span.footer.end));
    let mut next = 0;
    for range in ordered.iter().flat_map(|span| [&span.header, &span.content, &span.footer]) {
        assert_eq!(range.start, next, "{spans:?}");
        next = range.end;
    }
    assert_eq!((spans.generation_prompt.start, spans.generation_prompt.end), (next, prompt.tokens.len()));
    let show = |range: &std::ops::Range<usize>| text(tokenizer, &prompt, range.clone());
    let messages = spans.messages.iter().map(|span| [show(&span.header), show(&span.content), show(&span.footer)]);
    (messages.collect(), show(&spans.generation_prompt))
}

/// SentencePiece adds a space before text that follows a special token.
fn without_added_spaces((messages, prompt): (Vec<[String; 3]>, String)) -> (Vec<[String; 3]>, String) {
    let clean = |text: String| {
        text.replace("<|im_start|> ", "<|im_start|>")
            .replace("> \n", ">\n")
            .replace("<|end_header_id|> ", "<|end_header_id|>")
            .replace("<|start_header_id|> ", "<|start_header_id|>")
            .replace("<start_of_turn> ", "<start_of_turn>")
    };
    (messages.into_iter().map(|parts| parts.map(clean)).collect(), clean(prompt))
}

fn owned<const N: usize>(messages: [[&str; 3]; N], prompt: &str) -> (Vec<[String; 3]>, String) {
    (messages.map(|parts| parts.map(String::from)).to_vec(), prompt.to_owned())
}

#[test]
fn chatml_llama_and_gemma_are_partitioned_by_message() {
    for tokenizer in tokenizers() {
        let chat = conversation(&[("system", "the a"), ("user", " h \u{20ac} "), ("assistant", "a"), ("user", "t")]);
        let end = "<|im_end|>\n";
        assert_eq!(
            without_added_spaces(parts(CHATML, &tokenizer, &chat)),
            owned(
                [
                    ["<|im_start|>system\n", "the a", end],
                    // ChatML does not trim contents: the whitespace around them is not content.
                    ["<|im_start|>user\n ", "h \u{20ac}", " <|im_end|>\n"],
                    ["<|im_start|>assistant\n", "a", end],
                    ["<|im_start|>user\n", "t", end],
                ],
                "<|im_start|>assistant\n"
            ),
            "{tokenizer:?}"
        );
        let (messages, generation_prompt) = without_added_spaces(parts(LLAMA3, &tokenizer, &chat));
        assert!(messages[0][0].starts_with("<s><|start_header_id|>system<|end_header_id|>"), "{messages:?}");
        assert_eq!((messages[0][1].as_str(), messages[0][2].as_str()), ("the a", "<|eot_id|>"));
        assert_eq!(
            messages[1],
            ["<|start_header_id|>user<|end_header_id|>\n\n", "h \u{20ac}", "<|eot_id|>"],
            "trimmed by the template"
        );
        assert_eq!(generation_prompt, "<|start_header_id|>assistant<|end_header_id|>\n\n");
        let chat = conversation(&[("user", " the "), ("assistant", "a"), ("user", "t")]);
        assert_eq!(
            without_added_spaces(parts(GEMMA, &tokenizer, &chat)),
            owned(
                [
                    ["<s><start_of_turn>user\n", "the", "<end_of_turn>\n"],
                    // The template renames the role; the span has the caller's.
                    ["<start_of_turn>model\n", "a", "<end_of_turn>\n"],
                    ["<start_of_turn>user\n", "t", "<end_of_turn>\n"],
                ],
                "<start_of_turn>model\n"
            )
        );
        assert_eq!(prompt(GEMMA, &tokenizer, &chat).spans().expect("located").messages[1].role, "assistant");
    }
}

#[test]
fn a_template_that_drops_old_reasoning_keeps_the_rest_of_the_message() {
    let chat = conversation(&[("user", "a"), ("assistant", "<think>\nthe\n</think>\n\nthe a"), ("user", "the")]);
    for tokenizer in tokenizers() {
        let (messages, _) = without_added_spaces(parts(QWEN3, &tokenizer, &chat));
        assert_eq!(messages[1], ["<|im_start|>assistant\n", "the a", "<|im_end|>\n"]);
        // The last answer keeps its reasoning.
        let mut last = chat.clone();
        last.messages.pop();
        let (messages, _) = without_added_spaces(parts(QWEN3, &tokenizer, &last));
        assert_eq!(messages[1][1], "<think>\nthe\n</think>\n\nthe a");
    }
}

#[test]
fn a_message_that_the_template_moves_is_found_where_it_is() {
    let [tokenizer, ..] = tokenizers();
    let chat = conversation(&[("system", "the"), ("user", "a"), ("assistant", "t"), ("user", "h")]);
    // " the" and " t" are single tokens here, so the space belongs to the content.
    assert_eq!(
        parts(MISTRAL, &tokenizer, &chat).0,
        owned(
            [["[INST]", " the", ""], ["<s>[INST] ", "a", "[/INST]"], ["", " t", "</s>"], ["\n\n", "h", "[/INST]"]],
            ""
        )
        .0
    );
}

#[test]
fn a_continued_message_ends_the_prompt() {
    let json = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "the t"}],
                   "continue_final_message": true}"#;
    let chat = Conversation::from_json(json).expect("valid");
    for tokenizer in tokenizers() {
        let (messages, generation_prompt) = without_added_spaces(parts(CHATML, &tokenizer, &chat));
        assert_eq!(messages[0][2], "<|im_end|>\n");
        assert_eq!(messages[1], ["<|im_start|>assistant\n", "the t", ""]);
        assert_eq!(generation_prompt, "");
    }
    let both = json.replace("true", "true, \"add_generation_prompt\": true");
    assert!(Conversation::from_json(&both).expect_err("both").contains("exclude each other"));
}

#[test]
fn templates_that_make_spans_impossible_are_errors() {
    let [tokenizer, ..] = tokenizers();
    let chat = conversation(&[("user", "the"), ("assistant", "a")]);
    let problem = |source: &str| prompt(source, &tokenizer, &chat).spans().expect_err("no spans").to_string();
    let all = |content: &str| format!("{{% for message in messages %}}{content}{{% endfor %}}");
    assert_eq!(
        problem("{{ messages[0].content }}"),
        "message 1 (assistant) cannot be located in the prompt: the template leaves it out"
    );
    assert_eq!(
        problem(&all("{{ message.content }} {{ message.content }}")),
        "message 0 (user) cannot be located in the prompt: the template uses it more than once"
    );
    assert_eq!(
        problem(&all("{{ message.content[:2] }}")),
        "message 0 (user) cannot be located in the prompt: the template leaves out its end"
    );
    assert_eq!(
        problem(&all("{{ message.content|length }} {{ message.content }}")),
        "the messages cannot be located in the prompt: the template changes their text"
    );
    assert!(
        problem(&all(
            "{% if message.content|length > 4 %}{{ raise_exception('long') }}{% endif %}{{ message.content }}"
        ))
        .ends_with("the template examines their text")
    );
}

#[test]
fn positions_select_messages_roles_and_parts() {
    let [tokenizer, ..] = tokenizers();
    let chat = conversation(&[("user", "the"), ("assistant", "a"), ("user", "t h")]);
    let prompt = prompt(CHATML, &tokenizer, &chat);
    let spans = prompt.spans().expect("located");
    let at = |selected: &MessagePositions| {
        let positions = spans.positions(selected).expect("positions");
        let tokens = positions.iter().flat_map(|&position| tokenizer.token_bytes(prompt.tokens[position as usize]));
        String::from_utf8(tokens.collect()).expect("text")
    };
    assert_eq!(at(&MessagePositions::message(1)), "a");
    assert_eq!(at(&MessagePositions::message(-1)), "t h");
    assert_eq!(at(&MessagePositions::role("user")), "thet h");
    assert_eq!(at(&MessagePositions::message(1).part(MessagePart::All)), "<|im_start|>assistant\na<|im_end|>\n");
    assert_eq!(at(&MessagePositions::role("user").part(MessagePart::Footer)), "<|im_end|>\n<|im_end|>\n");
    let problem = |selected: MessagePositions| spans.positions(&selected).expect_err("none").to_string();
    assert_eq!(problem(MessagePositions::message(3)), "there is no message 3: the chat has 3");
    assert_eq!(problem(MessagePositions::message(-4)), "there is no message -4: the chat has 3");
    assert_eq!(problem(MessagePositions::role("tool")), "the chat has no message of the positions role:tool");
}

#[test]
fn broken_conversations_name_the_message() {
    let problem = |json: &str| Conversation::from_json(json).expect_err("broken");
    assert!(problem("3").contains("a list of messages"));
    assert!(problem("{}").contains("needs `messages`"));
    assert!(problem(r#"[{"role": "user", "content": "a"}, {"role": "user"}]"#).starts_with("message 1: missing field"));
    assert!(problem(r#"{"messages": [], "continue_final_message": 1}"#).contains("must be true or false"));
    let fields = Conversation::from_json(r#"[{"role": "tool", "content": "a", "name": "f"}]"#).expect("valid");
    assert_eq!(fields.messages[0].fields["name"], "f");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Spans cover every token, and a content's tokens contain its text.
    #[test]
    fn spans_partition_any_conversation(contents in prop::collection::vec("[the a\n\u{20ac}.]{1,12}", 1..5)) {
        let roles = ["user", "assistant"].into_iter().cycle();
        let messages: Vec<(&str, &str)> = roles.zip(contents.iter().map(String::as_str)).collect();
        for tokenizer in tokenizers() {
            for source in [CHATML, LLAMA3, GEMMA, QWEN3] {
                let (parts, _) = parts(source, &tokenizer, &conversation(&messages));
                for ([_, content, _], (_, given)) in parts.iter().zip(&messages) {
                    prop_assert!(content.contains(given.trim()), "{:?} in {:?}", given, content);
                }
            }
        }
    }
}
