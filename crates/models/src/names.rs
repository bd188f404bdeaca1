//! Where a program's weights are found: a table from modules of the engine to modules of the checkpoint.

use std::ops::Range;

/// Which part of a stored tensor a weight is: one of a stack of matrices, and some of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Part {
    /// Several matrices are stored as one.
    pub stack: Option<Stack>,
    /// The rows.
    pub rows: Rows,
}

/// Several matrices stored as one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Which one; the table leaves it to the expert's number.
    pub index: usize,
    /// How many there are.
    pub count: usize,
    /// They lie one under the other in one matrix, instead of along a first axis.
    pub flat: bool,
}

/// Which rows of a stored matrix a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rows {
    /// All of them.
    #[default]
    All,
    /// Those from `start` on, of `total`.
    From {
        /// First row.
        start: usize,
        /// Rows of the stored matrix.
        total: usize,
    },
    /// Of each group of `of` rows those from `start` on, `len` of them: projections fused head by head or pair by pair.
    Grouped {
        /// First row in a group.
        start: usize,
        /// Rows of a group that belong to it.
        len: usize,
        /// Rows of a group.
        of: usize,
    },
}

/// A module of the engine and where the checkpoint keeps it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The engine's module, `{l}` for the layer, `{e}` for the expert, `{s}` for a shared block, `{a}` for its
    /// adapter: `layers.{l}.attn.q`.
    module: String,
    /// The checkpoint's module: `layers.{l}.self_attn.q_proj`.
    stored: String,
    part: Part,
    /// The matrix is stored as `[inputs, outputs]`.
    transposed: bool,
    /// Stands outside the trunk, so the trunk's prefix does not apply.
    outside: bool,
    /// The stored name is the tensor's own, without an ending.
    bare: bool,
    /// A vector in several pieces: the modules that hold those after the first.
    more: Vec<String>,
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
    /// What stands inside the names of tensors that nobody needs (attention to an encoder).
    pub other_places: Vec<&'static str>,
    /// Layers behind the model's own that guess further tokens.
    pub guessing_layers: Range<usize>,
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
    /// The tensors that hold the rest of a vector that is stored in pieces.
    pub more: Vec<String>,
}

impl Source {
    /// The tensors that hold it.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.tensor.as_str()).chain(self.more.iter().map(String::as_str))
    }
}

impl Names {
    /// A table for a trunk whose names may begin with one of `prefixes`.
    pub fn new(prefixes: &[&'static str]) -> Names {
        Names { prefixes: prefixes.to_vec(), ..Names::default() }
    }

    /// Adds modules that are stored whole.
    pub fn with(mut self, modules: &[(&str, impl AsRef<str>)]) -> Names {
        for (module, stored) in modules {
            self.push(Entry::new(module, stored.as_ref()));
        }
        self
    }

    /// Adds modules that are stored whole and transposed.
    pub fn with_transposed(mut self, modules: &[(&str, &str)]) -> Names {
        for (module, stored) in modules {
            self.push(Entry { transposed: true, ..Entry::new(module, stored) });
        }
        self
    }

    /// Adds a module that is part of a stored one.
    pub fn with_part(mut self, module: &str, stored: &str, part: Part, transposed: bool) -> Names {
        self.push(Entry { part, transposed, ..Entry::new(module, stored) });
        self
    }

    /// Adds tensors that are no module's: their names have no `.weight` or `.bias` at the end.
    pub fn with_bare(mut self, tensors: &[(&str, impl AsRef<str>)]) -> Names {
        for (module, stored) in tensors {
            self.push(Entry { bare: true, ..Entry::new(module, stored.as_ref()) });
        }
        self
    }

    /// Adds a weight that is part of such a tensor.
    pub fn with_bare_part(mut self, module: &str, stored: &str, part: Part, transposed: bool) -> Names {
        self.push(Entry { part, transposed, bare: true, ..Entry::new(module, stored) });
        self
    }

    /// Adds a vector that several modules hold one after the other.
    pub fn with_pieces(mut self, module: &str, stored: &[String]) -> Names {
        if let Some((first, more)) = stored.split_first() {
            self.push(Entry { more: more.to_vec(), ..Entry::new(module, first) });
        }
        self
    }

    /// Adds a module that stands outside the trunk (the head).
    pub fn outside(mut self, module: &str, stored: &str) -> Names {
        self.push(Entry { outside: true, ..Entry::new(module, stored) });
        self
    }

    /// Adds a tensor that stands outside the trunk and is no module's.
    pub fn bare_outside(mut self, module: &str, stored: &str) -> Names {
        self.push(Entry { outside: true, bare: true, ..Entry::new(module, stored) });
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

    /// Whether a tensor belongs to a layer that guesses further tokens.
    pub fn guesses(&self, tensor: &str, prefix: &str) -> bool {
        let layer = tensor.strip_prefix(prefix).and_then(|name| name.strip_prefix("layers."));
        let number = layer.and_then(|name| name.split('.').next()?.parse().ok());
        number.is_some_and(|number| self.guessing_layers.contains(&number))
    }

    fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// The places where a weight may be stored, likeliest first. Weights and gains end in `.weight`, biases in `.bias`,
    /// unless an entry names the tensor itself.
    pub fn sources(&self, weight: &str, prefix: &str) -> Vec<Source> {
        let (numbers, whole) = generalise(weight);
        let (module, ending) = match whole.strip_suffix(".bias") {
            Some(module) => (module, ".bias"),
            None => (whole.strip_suffix(".gain").unwrap_or(&whole), ".weight"),
        };
        let is_bias = ending == ".bias";
        // A bare tensor is one weight's; a module's weight and bias share an entry.
        let found = self.entries.iter().filter(|entry| match entry.bare {
            true => entry.module == whole || (!is_bias && entry.module == module),
            false => entry.module == module,
        });
        found
            .map(|entry| {
                let (prefix, ending) = (if entry.outside { "" } else { prefix }, if entry.bare { "" } else { ending });
                let mut part = entry.part;
                if let Some(stack) = &mut part.stack {
                    stack.index = numbers[1].parse().unwrap_or(0);
                }
                let full = |stored: &str| filled(prefix, stored, &numbers, ending);
                Source {
                    tensor: full(&entry.stored),
                    part,
                    transposed: entry.transposed && !is_bias,
                    more: entry.more.iter().map(|piece| full(piece)).collect(),
                }
            })
            .collect()
    }
}

impl Entry {
    fn new(module: &str, stored: &str) -> Entry {
        Entry {
            module: module.into(),
            stored: stored.into(),
            part: Part::default(),
            transposed: false,
            outside: false,
            bare: false,
            more: Vec::new(),
        }
    }
}

/// The numbers in a weight's name that a table leaves open: what stands before each, and how the table writes it.
const NUMBERED: [(&str, &str); 4] = [("layers", "{l}"), ("experts", "{e}"), ("shared", "{s}"), ("adapters", "{a}")];

/// `layers.3.mlp.experts.7.up` → `layers.{l}.mlp.experts.{e}.up`, with the numbers in the order of `NUMBERED`.
fn generalise(weight: &str) -> ([&str; 4], String) {
    let mut numbers = [""; 4];
    let mut general = String::with_capacity(weight.len() + 4);
    let mut before = "";
    for part in weight.split('.') {
        if !general.is_empty() {
            general.push('.');
        }
        let numbered = NUMBERED.iter().position(|(name, _)| *name == before);
        general.push_str(match numbered.filter(|_| part.bytes().all(|b| b.is_ascii_digit())) {
            Some(which) => {
                numbers[which] = part;
                NUMBERED[which].1
            }
            None => part,
        });
        before = part;
    }
    (numbers, general)
}

/// A stored name in full, its numbers in their places.
fn filled(prefix: &str, stored: &str, numbers: &[&str; 4], ending: &str) -> String {
    let mut name = String::with_capacity(prefix.len() + stored.len() + ending.len());
    name.push_str(prefix);
    let mut rest = stored;
    while let Some(at) = rest.find('{') {
        let (plain, open) = rest.split_at(at);
        name.push_str(plain);
        let mark = NUMBERED.iter().zip(numbers).find(|((_, mark), _)| open.starts_with(mark));
        let (text, length) = mark.map_or(("{", 1), |((_, mark), number)| (*number, mark.len()));
        name.push_str(text);
        rest = &open[length..];
    }
    name.push_str(rest);
    name.push_str(ending);
    name
}

impl Part {
    /// Rows from `start` on, of `total`.
    pub fn rows(start: usize, total: usize) -> Part {
        Part { stack: None, rows: Rows::From { start, total } }
    }

    /// Of each group of `of` rows those from `start` on, `len` of them.
    pub fn grouped(start: usize, len: usize, of: usize) -> Part {
        Part { stack: None, rows: Rows::Grouped { start, len, of } }
    }

    /// Packed head by head: each head has `of` blocks of `dim` rows, and this is block `which` of each.
    pub fn per_head(which: usize, of: usize, dim: usize) -> Part {
        Part::grouped(which * dim, dim, of * dim)
    }

    /// One of `count` matrices stacked along a first axis.
    pub fn stacked(count: usize) -> Part {
        Part::default().of_stack(count)
    }

    /// The same rows, of one of `count` matrices stacked along a first axis.
    pub fn of_stack(self, count: usize) -> Part {
        Part { stack: Some(Stack { index: 0, count, flat: false }), ..self }
    }

    /// The same rows, of one of `count` matrices that lie one under the other.
    pub fn of_pile(self, count: usize) -> Part {
        Part { stack: Some(Stack { index: 0, count, flat: true }), ..self }
    }

    /// The stored row of row `row` of a weight, in its own matrix.
    pub fn stored_row(self, row: usize) -> usize {
        match self.rows {
            Rows::All => row,
            Rows::From { start, .. } => start + row,
            Rows::Grouped { start, len, of } => row / len * of + start + row % len,
        }
    }

    /// Rows of the stored matrix of a weight with `rows` rows.
    pub fn stored_rows(self, rows: usize) -> usize {
        match self.rows {
            Rows::All => rows,
            Rows::From { total, .. } => total,
            Rows::Grouped { len, of, .. } => rows / len * of,
        }
    }

    /// The shape that the stored tensor must have for a weight of this shape.
    pub fn stored_shape(self, shape: &[usize], transposed: bool) -> Vec<usize> {
        let mut stored = vec![self.stored_rows(shape[0])];
        stored.extend(&shape[1..]);
        if transposed {
            stored.reverse();
        }
        match self.stack {
            Some(Stack { count, flat: true, .. }) => stored[0] *= count,
            Some(Stack { count, flat: false, .. }) => stored.insert(0, count),
            None => {}
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
    fn bare_tensors_have_their_own_names() {
        let names = Names::new(&[""])
            .with(&[("layers.{l}.mlp.experts.{e}.up", "layers.{l}.experts.{e}.up")])
            .with_bare(&[("layers.{l}.attn.sinks", "layers.{l}.self_attn.sinks")])
            .with_bare_part("layers.{l}.mlp.experts.{e}.up.bias", "layers.{l}.up_bias", Part::stacked(4), false);
        let tensor = |weight: &str| names.sources(weight, "").iter().map(|s| s.tensor.clone()).collect::<Vec<_>>();
        assert_eq!(tensor("layers.2.attn.sinks"), ["layers.2.self_attn.sinks"]);
        assert_eq!(tensor("layers.2.mlp.experts.3.up.bias"), ["layers.2.experts.3.up.bias", "layers.2.up_bias"]);
        assert_eq!(tensor("layers.2.mlp.experts.3.up"), ["layers.2.experts.3.up.weight"]);
        assert_eq!(names.sources("layers.2.mlp.experts.3.up.bias", "")[1].part.stack.map(|s| s.index), Some(3));
    }

    #[test]
    fn layers_that_guess_are_known_by_their_number() {
        let names = Names { guessing_layers: 61..62, ..Names::new(&["model."]) };
        assert!(names.guesses("model.layers.61.eh_proj.weight", "model."));
        for other in ["model.layers.60.mlp.up.weight", "model.layers.62.up.weight", "model.norm.weight", "layers.61.x"]
        {
            assert!(!names.guesses(other, "model."), "{other}");
        }
    }

    #[test]
    fn parts_say_where_their_rows_lie() {
        // Two heads of two rows, three blocks a head: q0 k0 v0 q1 k1 v1.
        let keys = Part::per_head(1, 3, 2);
        assert_eq!((0..4).map(|row| keys.stored_row(row)).collect::<Vec<_>>(), [2, 3, 8, 9]);
        assert_eq!(keys.stored_shape(&[4, 5], false), [12, 5]);
        assert_eq!(Part::rows(4, 12).stored_shape(&[4, 5], true), [5, 12]);
        assert_eq!(Part::stacked(8).stored_shape(&[4, 5], false), [8, 4, 5]);
        assert_eq!(Part::grouped(1, 1, 2).of_stack(8).stored_shape(&[4, 5], true), [8, 5, 8]);
        assert_eq!(Part::default().of_pile(3).stored_shape(&[4, 5], false), [12, 5]);
    }
}
