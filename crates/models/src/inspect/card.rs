//! The report as human-readable text.

use std::fmt::Write;

use super::parts::{ModelPart, PartialLoad};
use super::report::{Quantization, Report, Support, TokenizerState};
use crate::escape::is_control;
use pellucid_engine::Remedy;

/// Width of the label column.
const LABEL: usize = 14;

impl Report {
    /// A compact card without color; the last line says whether the model will run, and the remedy
    /// if not.
    ///
    /// ```
    /// let report = pellucid_models::inspect(concat!(env!("CARGO_MANIFEST_DIR"), "/builtin").as_ref())?;
    /// assert!(report.card().ends_with("It will run.\n"));
    /// # Ok::<(), pellucid_models::Error>(())
    /// ```
    pub fn card(&self) -> String {
        self.card_with(&Remedy::to_string)
    }

    /// [`card`](Self::card) with the remedies worded by `word`.
    pub fn card_with(&self, word: &dyn Fn(&Remedy) -> String) -> String {
        let mut lines: Vec<(&str, String)> = vec![("category", self.category.name().into())];
        let names = [self.architecture.as_deref(), self.model_type.as_deref()];
        lines.push(("architecture", names.into_iter().flatten().collect::<Vec<_>>().join(" · ")));
        lines.push(("support", self.support_line()));
        if self.tensors > 0 {
            lines.push(("parameters", format!("{} parameters in {} tensors", count(self.parameters), self.tensors)));
            lines.push(("stored as", self.formats()));
        }
        lines.push(("parts", self.parts_line()));
        lines.push(("omni", self.omni_line()));
        lines.push(("autoencoders", self.sae_lines()));
        lines.push(("components", self.components_line()));
        lines.push(("shape", self.shape_line()));
        lines.push(("files", self.files_line()));
        lines.push(("memory", self.memory_lines()));
        lines.push(("tokenizer", self.tokenizer_line()));
        lines.push(("chat template", if self.chat_template { "yes".into() } else { String::new() }));
        lines.push(("custom code", self.code_line()));
        lines.push(("licence", self.license.clone().unwrap_or_default()));
        lines.push(("base model", self.base_model.join(", ")));
        if let Some(family) = &self.registered_as {
            lines.push(("runs as", format!("{family}, the family its type is registered as")));
        } else if let Some(suggestion) = &self.assume {
            let family = suggestion.family.clone();
            lines.push(("runs as", format!("{family}, {}", word(&Remedy::AssumeShort { family: family.clone() }))));
        }
        for problem in &self.problems {
            lines.push(("problem", problem.what.clone()));
        }

        let mut card = format!("{}\n", clean(&self.path));
        for (label, text) in lines.iter().filter(|(_, text)| !text.is_empty()) {
            let text = text.lines().map(clean).collect::<Vec<_>>().join(&format!("\n{:1$}", "", LABEL + 2));
            let _ = writeln!(card, "  {label:LABEL$}{text}");
        }
        let _ = match self.problems.first() {
            None => writeln!(card, "It will run."),
            Some(first) if self.problems.len() == 1 && self.assume.is_some() => {
                writeln!(card, "It will not run by itself: {}.", clean(&word(&first.remedy)))
            }
            Some(first) if self.problems.len() == 1 => {
                writeln!(card, "It will not run: {}.", clean(word(&first.remedy).trim_end_matches('.')))
            }
            Some(first) => {
                let count = self.problems.len();
                writeln!(
                    card,
                    "It will not run, for {count} reasons; start with: {}.",
                    clean(word(&first.remedy).trim_end_matches('.'))
                )
            }
        };
        card
    }

    fn support_line(&self) -> String {
        let nearest =
            self.nearest.as_ref().map(|family| format!(" (the nearest native family is {family})")).unwrap_or_default();
        let incomplete = if self.support == Support::Native && !self.problems.is_empty() {
            ", but this copy does not run"
        } else {
            ""
        };
        format!("{}{incomplete}{nearest}", self.support.name())
    }

    fn formats(&self) -> String {
        let mut formats: Vec<(&String, &u64)> = self.dtypes.iter().collect();
        formats.sort_by_key(|(_, parameters)| std::cmp::Reverse(**parameters));
        let formats = formats
            .iter()
            .map(|(name, parameters)| format!("{name} {}", count(**parameters)))
            .collect::<Vec<_>>()
            .join(", ");
        match &self.quantization {
            // The names of the GGUF formats already show the quantization.
            Some(Quantization { types, .. }) if !types.is_empty() => formats,
            Some(Quantization { method, bits: Some(bits), .. }) => {
                format!("{formats}; quantized by {method} to {bits} bits")
            }
            Some(Quantization { method, .. }) => format!("{formats}; quantized by {method}"),
            None => formats,
        }
    }

    fn parts_line(&self) -> String {
        let part = |part: &ModelPart| format!("{} {}", part.role.name(), count(part.parameters));
        self.modalities.parts.iter().map(part).collect::<Vec<_>>().join(", ")
    }

    fn omni_line(&self) -> String {
        if !self.modalities.omni {
            return String::new();
        }
        let load = |load: &PartialLoad| format!("{} {}", load.mode.name(), count(load.parameters));
        let loads = self.modalities.loads.iter().map(load).collect::<Vec<_>>().join(", ");
        if loads.is_empty() { "yes".into() } else { format!("yes; loadable as {loads}") }
    }

    fn sae_lines(&self) -> String {
        let Some(sae) = &self.sae else { return String::new() };
        let layouts: Vec<String> = sae.layouts.iter().map(|layout| layout.name().to_owned()).collect();
        let mut lines =
            format!("{}{} in the layout {}", if sae.more { "more than " } else { "" }, sae.count, layouts.join(", "));
        for (verb, hooks) in [("read", &sae.hooks), ("write", &sae.hooks_out)] {
            if !hooks.is_empty() {
                lines += &format!("\n{verb} {}", first_names(hooks));
            }
        }
        lines
    }

    fn components_line(&self) -> String {
        let names: Vec<String> = self.components.iter().map(|component| component.name.clone()).collect();
        let missing: Vec<String> = self.components.iter().filter(|c| !c.present).map(|c| c.name.clone()).collect();
        let missing = if missing.is_empty() { String::new() } else { format!("; missing: {}", missing.join(", ")) };
        names.join(", ") + &missing
    }

    fn shape_line(&self) -> String {
        let heads = match (self.heads, self.kv_heads) {
            (Some(heads), Some(kv)) if heads != kv => Some(format!("{heads} heads ({kv} KV heads)")),
            (heads, _) => heads.map(|heads| format!("{heads} heads")),
        };
        let parts = [
            self.layers.map(|n| format!("{n} layers")),
            self.width.map(|n| format!("width {n}")),
            heads,
            self.head_dim.map(|n| format!("head dim {n}")),
            self.context.map(|n| format!("context {n}")),
            self.vocab.map(|n| format!("vocabulary {n}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn memory_lines(&self) -> String {
        let Some(memory) = &self.memory else { return String::new() };
        let [stored, f32, bf16] = [memory.as_stored, memory.f32, memory.bf16].map(bytes);
        let mut lines = format!("{stored} of weights as stored, {f32} in f32, {bf16} in bf16");
        if let Some(token) = memory.kv_per_token {
            lines += &format!("\nKV cache: {} per token and sequence", bytes(token));
        }
        if let (Some(whole), Some(context)) = (memory.kv_at_context, self.context) {
            lines += &format!(", {} for {context} tokens", bytes(whole));
        }
        lines
    }

    fn files_line(&self) -> String {
        let shards = &self.shards;
        let mut line = match shards.count {
            0 => return String::new(),
            1 => format!("{} in 1 file", bytes(self.file_bytes)),
            count => format!("{} in {count} files", bytes(self.file_bytes)),
        };
        if !shards.missing.is_empty() {
            line += &format!("; {} missing: {}", shards.missing.len(), first_names(&shards.missing));
        }
        if !shards.surplus.is_empty() {
            line += &format!("; not needed: {}", first_names(&shards.surplus));
        }
        line
    }

    fn tokenizer_line(&self) -> String {
        let tokenizer = &self.tokenizer;
        let state = match tokenizer.state {
            TokenizerState::Present => "present",
            TokenizerState::Rebuilt => "rebuilt from the file",
            TokenizerState::Missing => "missing",
            TokenizerState::DoesNotFit => "does not fit",
            TokenizerState::Damaged => "damaged",
        };
        let vocab = tokenizer.vocab.map(|vocab| format!("{vocab} tokens"));
        let bos = match (tokenizer.adds_bos, &tokenizer.prepends) {
            (Some(false), Some(other)) => Some(format!("adds {other}")),
            (adds, _) => adds.map(|adds| if adds { "adds bos" } else { "does not add bos" }.to_owned()),
        };
        let pad = (tokenizer.pad_from_eos == Some(true)).then(|| "pads with eos".to_owned());
        let parts = [Some(state.to_owned()), vocab, bos, pad, tokenizer.note.clone()];
        // No line for categories that have no tokenizer.
        if tokenizer.state == TokenizerState::Missing && tokenizer.note.is_none() {
            return String::new();
        }
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn code_line(&self) -> String {
        if self.custom_code.is_empty() {
            String::new()
        } else {
            format!("{} (never executed)", first_names(&self.custom_code))
        }
    }
}

/// The first names of a list, and the number of others.
fn first_names(names: &[String]) -> String {
    const MAX_SHOWN: usize = 3;
    let shown = names.iter().take(MAX_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_SHOWN { format!("{shown} and {} more", names.len() - MAX_SHOWN) } else { shown }
}

/// Sanitizes text from untrusted files: control characters and those that reorder text become `�`,
/// and long text is cut.
pub(super) fn clean(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    let mut clean: String =
        text.chars().take(MAX_CHARS).map(|c| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        clean.push('…');
    }
    clean
}

/// Formats a count: `134.5 M`.
fn count(number: u64) -> String {
    scaled(number, &["", "K", "M", "B", "T"])
}

/// Formats a size: `269.1 MB`.
pub(super) fn bytes(number: u64) -> String {
    scaled(number, &["B", "KB", "MB", "GB", "TB", "PB", "EB"])
}

fn scaled(number: u64, units: &[&str]) -> String {
    let mut value = number as f64;
    let mut unit = 0;
    // 999.95 would round to 1000.0.
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let text = if unit == 0 { number.to_string() } else { format!("{value:.1}") };
    format!("{text} {}", units[unit]).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{bytes, clean, count};

    #[test]
    fn sizes_are_formatted_with_units() {
        assert_eq!([count(0), count(999), count(134_515_008), count(999_960)], ["0", "999", "134.5 M", "1.0 M"]);
        assert_eq!(
            [bytes(12), bytes(1536), bytes(269_060_552), bytes(u64::MAX)],
            ["12 B", "1.5 KB", "269.1 MB", "18.4 EB"]
        );
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(clean("a\u{1b}[31mb\u{7}"), "a�[31mb�");
        assert_eq!(clean(&"x".repeat(1000)).chars().count(), 401);
    }
}
