//! Where a program's weights are found: a table from modules of the engine to modules of the checkpoint.

/// Which part of a stored tensor a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// Rows from `start` on, of `total`.
    Rows {
        /// First row.
        start: usize,
        /// Rows of the stored tensor.
        total: usize,
    },
    /// Packed head by head: each head has `of` blocks of `dim` rows, and this weight is block `which` of each.
    PerHead {
        /// Which block.
        which: usize,
        /// How many blocks a head has.
        of: usize,
        /// Rows of a block.
        dim: usize,
    },
    /// One of several matrices stacked along a first axis.
    Stacked {
        /// Which one.
        index: usize,
        /// How many there are.
        count: usize,
    },
}

/// A module of the engine and where the checkpoint keeps it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The engine's module, `{l}` for the layer, `{e}` for the expert: `layers.{l}.attn.q`.
    module: String,
    /// The checkpoint's module: `layers.{l}.self_attn.q_proj`.
    stored: String,
    part: Part,
    /// The matrix is stored as `[inputs, outputs]`.
    transposed: bool,
    /// Stands outside the trunk, so the trunk's prefix does not apply.
    outside: bool,
}

/// A family's table.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// What may stand before the trunk's names; the first that fits a checkpoint is used.
    pub prefixes: Vec<&'static str>,
    entries: Vec<Entry>,
    /// Ends of tensor names that checkpoints carry and nobody needs (masks, cached frequencies).
    pub ignored: Vec<&'static str>,
    /// Beginnings of tensor names that belong to other parts of the model (a vision tower).
    pub other_parts: Vec<&'static str>,
}

/// A stored tensor and the part of it that a weight is.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Name in the checkpoint.
    pub tensor: String,
    /// The part.
    pub part: Part,
    /// Stored as `[inputs, outputs]`.
    pub transposed: bool,
}

impl Names {
    /// A table for a trunk whose names may begin with one of `prefixes`.
    pub fn new(prefixes: &[&'static str]) -> Names {
        Names { prefixes: prefixes.to_vec(), ..Names::default() }
    }

    /// Adds modules that are stored whole.
    pub fn with(mut self, modules: &[(&str, impl AsRef<str>)]) -> Names {
        for (module, stored) in modules {
            self.push(module, stored.as_ref(), Part::Whole, false, false);
        }
        self
    }

    /// Adds modules that are stored whole and transposed.
    pub fn with_transposed(mut self, modules: &[(&str, &str)]) -> Names {
        for (module, stored) in modules {
            self.push(module, stored, Part::Whole, true, false);
        }
        self
    }

    /// Adds a module that is part of a stored one.
    pub fn with_part(mut self, module: &str, stored: &str, part: Part, transposed: bool) -> Names {
        self.push(module, stored, part, transposed, false);
        self
    }

    /// Adds a module that stands outside the trunk (the head).
    pub fn outside(mut self, module: &str, stored: &str) -> Names {
        self.push(module, stored, Part::Whole, false, true);
        self
    }

    /// The table without some modules.
    pub fn without(mut self, modules: &[&str]) -> Names {
        self.entries.retain(|entry| !modules.contains(&entry.module.as_str()));
        self
    }

    /// Stores a module elsewhere than the table said so far.
    pub fn replacing(self, module: &str, stored: &str) -> Names {
        self.without(&[module]).with(&[(module, stored)])
    }

    /// Lets a module be found, where it is not stored by itself, in the place of another.
    pub fn with_alternative(mut self, module: &str, other: &str) -> Names {
        let others: Vec<Entry> = self.entries.iter().filter(|entry| entry.module == other).cloned().collect();
        self.entries.extend(others.into_iter().map(|entry| Entry { module: module.into(), ..entry }));
        self
    }

    /// Names tensors that may be left unread.
    pub fn ignoring(mut self, ends: &[&'static str]) -> Names {
        self.ignored.extend(ends);
        self
    }

    fn push(&mut self, module: &str, stored: &str, part: Part, transposed: bool, outside: bool) {
        self.entries.push(Entry { module: module.into(), stored: stored.into(), part, transposed, outside });
    }

    /// The places where a weight may be stored, likeliest first. Weights and gains end in `.weight`, biases in `.bias`.
    pub fn sources(&self, weight: &str, prefix: &str) -> Vec<Source> {
        let (module, ending, is_bias) = match weight.strip_suffix(".bias") {
            Some(module) => (module, "bias", true),
            None => (weight.strip_suffix(".gain").unwrap_or(weight), "weight", false),
        };
        let (layer, expert, general) = generalise(module);
        let fill = |text: &str| text.replace("{l}", &layer).replace("{e}", &expert);
        let found = self.entries.iter().filter(|entry| entry.module == general);
        found
            .map(|entry| {
                let prefix = if entry.outside { "" } else { prefix };
                let part = match entry.part {
                    Part::Stacked { count, .. } => Part::Stacked { index: expert.parse().unwrap_or(0), count },
                    part => part,
                };
                Source {
                    tensor: format!("{prefix}{}.{ending}", fill(&entry.stored)),
                    part,
                    transposed: entry.transposed && !is_bias,
                }
            })
            .collect()
    }
}

/// `layers.3.mlp.experts.7.up` → (`3`, `7`, `layers.{l}.mlp.experts.{e}.up`).
fn generalise(module: &str) -> (String, String, String) {
    let (mut layer, mut expert) = (String::new(), String::new());
    let parts: Vec<&str> = module.split('.').collect();
    let general = parts.iter().enumerate().map(|(i, part)| {
        let before = i.checked_sub(1).map(|i| parts[i]);
        match before {
            Some("layers") => {
                layer = part.to_string();
                "{l}"
            }
            Some("experts") => {
                expert = part.to_string();
                "{e}"
            }
            _ => part,
        }
    });
    let general = general.collect::<Vec<_>>().join(".");
    (layer, expert, general)
}

impl Part {
    /// The stored row of row `row` of a weight.
    pub fn stored_row(self, row: usize) -> usize {
        match self {
            Part::Whole | Part::Stacked { .. } => row,
            Part::Rows { start, .. } => start + row,
            Part::PerHead { which, of, dim } => row / dim * of * dim + which * dim + row % dim,
        }
    }

    /// The shape that the stored tensor must have for a weight of this shape.
    pub fn stored_shape(self, shape: &[usize], transposed: bool) -> Vec<usize> {
        let rows = match self {
            Part::Whole | Part::Stacked { .. } => shape[0],
            Part::Rows { total, .. } => total,
            Part::PerHead { of, .. } => shape[0] * of,
        };
        let mut stored = vec![rows];
        stored.extend(&shape[1..]);
        if transposed {
            stored.reverse();
        }
        if let Part::Stacked { count, .. } = self {
            stored.insert(0, count);
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_found_by_module_with_their_endings() {
        let names = Names::new(&["model."])
            .with(&[
                ("layers.{l}.attn.q", "layers.{l}.self_attn.q_proj"),
                ("layers.{l}.attn.norm", "layers.{l}.input_layernorm"),
            ])
            .with(&[("layers.{l}.mlp.experts.{e}.up", "layers.{l}.moe.experts.{e}.w3")])
            .outside("head", "lm_head");
        let tensor = |weight: &str| names.sources(weight, "model.").first().map(|s| s.tensor.clone());
        assert_eq!(tensor("layers.12.attn.q").as_deref(), Some("model.layers.12.self_attn.q_proj.weight"));
        assert_eq!(tensor("layers.12.attn.q.bias").as_deref(), Some("model.layers.12.self_attn.q_proj.bias"));
        assert_eq!(tensor("layers.0.attn.norm.gain").as_deref(), Some("model.layers.0.input_layernorm.weight"));
        assert_eq!(tensor("layers.1.mlp.experts.7.up").as_deref(), Some("model.layers.1.moe.experts.7.w3.weight"));
        assert_eq!(tensor("head").as_deref(), Some("lm_head.weight"));
        assert_eq!(tensor("layers.1.attn.nothing"), None);
    }

    #[test]
    fn parts_say_where_their_rows_lie() {
        // Two heads of two rows, three blocks a head: q0 k0 v0 q1 k1 v1.
        let keys = Part::PerHead { which: 1, of: 3, dim: 2 };
        assert_eq!((0..4).map(|row| keys.stored_row(row)).collect::<Vec<_>>(), [2, 3, 8, 9]);
        assert_eq!(keys.stored_shape(&[4, 5], false), [12, 5]);
        assert_eq!(Part::Rows { start: 4, total: 12 }.stored_shape(&[4, 5], true), [5, 12]);
        assert_eq!(Part::Stacked { index: 1, count: 8 }.stored_shape(&[4, 5], false), [8, 4, 5]);
    }
}
