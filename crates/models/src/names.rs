//! Maps the engine's weights to stored tensors: one table per family, from module to module.
//!
//! A family builds its [`Names`] with the builder methods; [`Names::sources`] then answers, for one
//! weight, which stored tensors may hold it, which rows of them, and in which layout. Known
//! variants of stored names (wrappers, fused projections) are not in these tables but in
//! `name_variants.rs`.

use std::ops::Range;

/// The part of a stored tensor that a weight is: one matrix of a stack, and some rows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoredPart {
    /// Set if the tensor holds several matrices (the experts of a layer).
    pub stack: Option<Stack>,
    /// The rows of the matrix.
    pub rows: Rows,
}

/// Position of a matrix in a tensor that holds several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Index of the matrix. Tables leave it at 0; [`Names::sources`] sets it to the expert's index.
    pub index: usize,
    /// Number of matrices.
    pub count: usize,
    /// The matrices are concatenated along the rows (`[count * rows, cols]`) instead of stacked
    /// along a leading axis (`[count, rows, cols]`).
    pub concatenated: bool,
}

/// The rows of a stored matrix that make up a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rows {
    /// All rows.
    #[default]
    All,
    /// The rows from `start` on (concatenated projections).
    From {
        /// First row.
        start: usize,
        /// Rows of the stored matrix.
        total: usize,
    },
    /// In each group of `group` rows, `len` rows from `start` on: projections interleaved head by
    /// head, or row by row.
    Grouped {
        /// First row within a group.
        start: usize,
        /// Rows of the weight per group.
        len: usize,
        /// Rows per group.
        group: usize,
    },
}

/// Axis order of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[outputs, inputs]`, as `torch.nn.Linear` stores it.
    OutIn,
    /// `[inputs, outputs]`, as GPT-2's `Conv1D` stores it.
    InOut,
}

/// One row of the table: a module of the engine and the checkpoint's module that holds it.
#[derive(Clone, Debug)]
pub struct NameEntry {
    /// The engine's module, `{l}` for the layer, `{e}` for the expert, `{s}` for a shared block,
    /// `{a}` for its adapter: `layers.{l}.attn.q`.
    module: String,
    /// The checkpoint's module: `layers.{l}.self_attn.q_proj`.
    stored: String,
    part: StoredPart,
    /// The matrix is stored as `[inputs, outputs]`.
    transposed: bool,
    /// The backbone's prefix (`model.`) does not apply: the module is outside the backbone.
    without_prefix: bool,
    /// `stored` is the full tensor name, without a `.weight` or `.bias` suffix.
    bare: bool,
    /// For a vector stored in pieces: the modules of the pieces after the first.
    more_pieces: Vec<String>,
}

/// A family's table of stored names.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Possible prefixes of the backbone's tensors (`model.`, or none). The one that matches most
    /// tensors of a checkpoint is used.
    pub prefixes: Vec<&'static str>,
    entries: Vec<NameEntry>,
    /// Suffixes of tensors that are not weights (causal masks, cached rotary frequencies).
    pub ignored_suffixes: Vec<&'static str>,
    /// Prefixes of tensors of other components (a vision tower, a pooler).
    pub ignored_prefixes: Vec<&'static str>,
    /// Substrings of tensors that are not used (cross-attention to an encoder).
    pub ignored_infixes: Vec<&'static str>,
    /// Indices of the multi-token-prediction layers stored after the model's own layers; not
    /// loaded.
    pub mtp_layers: Range<usize>,
}

/// Location of a weight in a checkpoint: a stored tensor and the part of it that the weight is.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSource {
    /// Name in the checkpoint.
    pub tensor: String,
    /// The part of the tensor.
    pub part: StoredPart,
    /// Stored as `[inputs, outputs]`.
    pub transposed: bool,
    /// For a vector stored in pieces: the tensors of the pieces after the first.
    pub more_pieces: Vec<String>,
}

impl WeightSource {
    /// Names of all tensors that hold the weight.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.tensor.as_str()).chain(self.more_pieces.iter().map(String::as_str))
    }
}

impl Names {
    /// Creates an empty table for a backbone whose tensors may have one of `prefixes`.
    pub fn new(prefixes: &[&'static str]) -> Names {
        Names { prefixes: prefixes.to_vec(), ..Names::default() }
    }

    /// Adds modules that are stored whole.
    pub fn with(mut self, modules: &[(&str, impl AsRef<str>)]) -> Names {
        for (module, stored) in modules {
            self.push(NameEntry::new(module, stored.as_ref()));
        }
        self
    }

    /// Adds modules that are stored whole and transposed.
    pub fn with_transposed(mut self, modules: &[(&str, &str)]) -> Names {
        for (module, stored) in modules {
            self.push(NameEntry { transposed: true, ..NameEntry::new(module, stored) });
        }
        self
    }

    /// Adds a module that is a part of a stored one.
    pub fn with_part(mut self, module: &str, stored: &str, part: StoredPart) -> Names {
        self.push(NameEntry { part, ..NameEntry::new(module, stored) });
        self
    }

    /// Adds a module that is a part of a stored one, which is transposed.
    pub fn with_transposed_part(mut self, module: &str, stored: &str, part: StoredPart) -> Names {
        self.push(NameEntry { part, transposed: true, ..NameEntry::new(module, stored) });
        self
    }

    /// Adds tensors by their full name, which has no `.weight` or `.bias` suffix.
    pub fn with_bare(mut self, tensors: &[(&str, impl AsRef<str>)]) -> Names {
        for (module, stored) in tensors {
            self.push(NameEntry { bare: true, ..NameEntry::new(module, stored.as_ref()) });
        }
        self
    }

    /// Adds a weight that is a part of a tensor, given by the tensor's full name.
    pub fn with_bare_part(mut self, module: &str, stored: &str, part: StoredPart, layout: Layout) -> Names {
        let transposed = layout == Layout::InOut;
        self.push(NameEntry { part, transposed, bare: true, ..NameEntry::new(module, stored) });
        self
    }

    /// Adds a vector that is the concatenation of several stored modules.
    pub fn with_pieces(mut self, module: &str, stored: &[String]) -> Names {
        if let Some((first, more)) = stored.split_first() {
            self.push(NameEntry { more_pieces: more.to_vec(), ..NameEntry::new(module, first) });
        }
        self
    }

    /// Adds a module to whose name no prefix is added (the head, which is outside the backbone).
    pub fn without_prefix(mut self, module: &str, stored: &str) -> Names {
        self.push(NameEntry { without_prefix: true, ..NameEntry::new(module, stored) });
        self
    }

    /// Adds a tensor by its full name, without prefix and without suffix.
    pub fn bare_without_prefix(mut self, module: &str, stored: &str) -> Names {
        self.push(NameEntry { without_prefix: true, bare: true, ..NameEntry::new(module, stored) });
        self
    }

    /// Removes all entries of these modules.
    pub fn removing(mut self, modules: &[&str]) -> Names {
        self.entries.retain(|entry| !modules.contains(&entry.module.as_str()));
        self
    }

    /// Replaces all entries of a module by one.
    pub fn replacing(self, module: &str, stored: &str) -> Names {
        self.removing(&[module]).with(&[(module, stored)])
    }

    /// Adds the stored names of `other` as a fallback for `module` (a tied head stored as `embed`).
    pub fn with_alternative(mut self, module: &str, other: &str) -> Names {
        let others: Vec<NameEntry> = self.entries.iter().filter(|entry| entry.module == other).cloned().collect();
        self.entries.extend(others.into_iter().map(|entry| NameEntry { module: module.into(), ..entry }));
        self
    }

    /// Adds suffixes of tensors that are not weights.
    pub fn ignoring(mut self, suffixes: &[&'static str]) -> Names {
        self.ignored_suffixes.extend(suffixes);
        self
    }

    /// Whether a tensor belongs to a multi-token-prediction layer.
    pub fn is_mtp_layer(&self, tensor: &str, prefix: &str) -> bool {
        let layer = tensor.strip_prefix(prefix).and_then(|name| name.strip_prefix("layers."));
        let number = layer.and_then(|name| name.split('.').next()?.parse().ok());
        number.is_some_and(|number| self.mtp_layers.contains(&number))
    }

    fn push(&mut self, entry: NameEntry) {
        self.entries.push(entry);
    }

    /// Returns the tensors that may hold a weight, in the order of the table. Weights and gains end
    /// in `.weight`, biases in `.bias`, unless an entry gives the full tensor name.
    pub fn sources(&self, weight: &str, prefix: &str) -> Vec<WeightSource> {
        let (numbers, whole) = to_pattern(weight);
        let (module, ending) = match whole.strip_suffix(".bias") {
            Some(module) => (module, ".bias"),
            None => (whole.strip_suffix(".gain").unwrap_or(&whole), ".weight"),
        };
        let is_bias = ending == ".bias";
        // A bare entry is for one weight; the weight and the bias of a module share an entry.
        let found = self.entries.iter().filter(|entry| match entry.bare {
            true => entry.module == whole || (!is_bias && entry.module == module),
            false => entry.module == module,
        });
        found
            .map(|entry| {
                let (prefix, ending) =
                    (if entry.without_prefix { "" } else { prefix }, if entry.bare { "" } else { ending });
                let mut part = entry.part;
                if let Some(stack) = &mut part.stack {
                    stack.index = numbers[1].parse().unwrap_or(0);
                }
                let full = |stored: &str| fill_pattern(prefix, stored, &numbers, ending);
                WeightSource {
                    tensor: full(&entry.stored),
                    part,
                    transposed: entry.transposed && !is_bias,
                    more_pieces: entry.more_pieces.iter().map(|piece| full(piece)).collect(),
                }
            })
            .collect()
    }
}

impl NameEntry {
    fn new(module: &str, stored: &str) -> NameEntry {
        NameEntry {
            module: module.into(),
            stored: stored.into(),
            part: StoredPart::default(),
            transposed: false,
            without_prefix: false,
            bare: false,
            more_pieces: Vec::new(),
        }
    }
}

/// Placeholders for the indices in names: the name component before the index, and the placeholder.
const PLACEHOLDERS: [(&str, &str); 4] = [("layers", "{l}"), ("experts", "{e}"), ("shared", "{s}"), ("adapters", "{a}")];

/// `layers.3.mlp.experts.7.up` → `layers.{l}.mlp.experts.{e}.up`, with the indices in the order of
/// `PLACEHOLDERS`.
fn to_pattern(weight: &str) -> ([&str; 4], String) {
    let mut numbers = [""; 4];
    let mut general = String::with_capacity(weight.len() + 4);
    let mut before = "";
    for part in weight.split('.') {
        if !general.is_empty() {
            general.push('.');
        }
        let numbered = PLACEHOLDERS.iter().position(|(name, _)| *name == before);
        general.push_str(match numbered.filter(|_| part.bytes().all(|b| b.is_ascii_digit())) {
            Some(which) => {
                numbers[which] = part;
                PLACEHOLDERS[which].1
            }
            None => part,
        });
        before = part;
    }
    (numbers, general)
}

/// Returns the full stored name: prefix, pattern with its placeholders filled, suffix.
fn fill_pattern(prefix: &str, stored: &str, numbers: &[&str; 4], ending: &str) -> String {
    let mut name = String::with_capacity(prefix.len() + stored.len() + ending.len());
    name.push_str(prefix);
    let mut rest = stored;
    while let Some(at) = rest.find('{') {
        let (plain, open) = rest.split_at(at);
        name.push_str(plain);
        let mark = PLACEHOLDERS.iter().zip(numbers).find(|((_, mark), _)| open.starts_with(mark));
        let (text, length) = mark.map_or(("{", 1), |((_, mark), number)| (*number, mark.len()));
        name.push_str(text);
        rest = &open[length..];
    }
    name.push_str(rest);
    name.push_str(ending);
    name
}

impl StoredPart {
    /// The rows from `start` on of a stored matrix with `total` rows.
    pub fn rows(start: usize, total: usize) -> StoredPart {
        StoredPart { stack: None, rows: Rows::From { start, total } }
    }

    /// In each group of `group` rows, `len` rows from `start` on.
    pub fn grouped(start: usize, len: usize, group: usize) -> StoredPart {
        StoredPart { stack: None, rows: Rows::Grouped { start, len, group } }
    }

    /// Projections fused head by head: each head has `blocks` blocks of `dim` rows, and the weight
    /// is block `which` of every head.
    pub fn per_head(which: usize, blocks: usize, dim: usize) -> StoredPart {
        StoredPart::grouped(which * dim, dim, blocks * dim)
    }

    /// The same rows of one of `count` matrices stacked along a leading axis.
    pub fn stacked(self, count: usize) -> StoredPart {
        StoredPart { stack: Some(Stack { index: 0, count, concatenated: false }), ..self }
    }

    /// The same rows of one of `count` matrices concatenated along the rows.
    pub fn concatenated(self, count: usize) -> StoredPart {
        StoredPart { stack: Some(Stack { index: 0, count, concatenated: true }), ..self }
    }

    /// Maps a row of the weight to a row of its stored matrix.
    pub fn stored_row(self, row: usize) -> usize {
        match self.rows {
            Rows::All => row,
            Rows::From { start, .. } => start + row,
            Rows::Grouped { start, len, group } => row / len * group + start + row % len,
        }
    }

    /// Number of rows of the weight from `row` on that are adjacent in the stored matrix.
    pub fn adjacent_rows(self, row: usize) -> usize {
        match self.rows {
            Rows::All | Rows::From { .. } => usize::MAX,
            Rows::Grouped { len, .. } => len - row % len,
        }
    }

    /// Number of rows of the stored matrix, for a weight with `rows` rows.
    pub fn stored_rows(self, rows: usize) -> usize {
        match self.rows {
            Rows::All => rows,
            Rows::From { total, .. } => total,
            Rows::Grouped { len, group, .. } => rows / len * group,
        }
    }

    /// Shape of the stored tensor, for a weight of this shape.
    pub fn stored_shape(self, shape: &[usize], transposed: bool) -> Vec<usize> {
        let mut stored = vec![self.stored_rows(shape[0])];
        stored.extend(&shape[1..]);
        if transposed {
            stored.reverse();
        }
        match self.stack {
            Some(Stack { count, concatenated: true, .. }) => stored[0] *= count,
            Some(Stack { count, concatenated: false, .. }) => stored.insert(0, count),
            None => {}
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_found_by_module_with_their_suffixes() {
        let names = Names::new(&["model."])
            .with(&[
                ("layers.{l}.attn.q", "layers.{l}.self_attn.q_proj"),
                ("layers.{l}.attn.norm", "layers.{l}.input_layernorm"),
            ])
            .with(&[("layers.{l}.mlp.experts.{e}.up", "layers.{l}.moe.experts.{e}.w3")])
            .without_prefix("head", "lm_head");
        let tensor = |weight: &str| names.sources(weight, "model.").first().map(|s| s.tensor.clone());
        assert_eq!(tensor("layers.12.attn.q").as_deref(), Some("model.layers.12.self_attn.q_proj.weight"));
        assert_eq!(tensor("layers.12.attn.q.bias").as_deref(), Some("model.layers.12.self_attn.q_proj.bias"));
        assert_eq!(tensor("layers.0.attn.norm.gain").as_deref(), Some("model.layers.0.input_layernorm.weight"));
        assert_eq!(tensor("layers.1.mlp.experts.7.up").as_deref(), Some("model.layers.1.moe.experts.7.w3.weight"));
        assert_eq!(tensor("head").as_deref(), Some("lm_head.weight"));
        assert_eq!(tensor("layers.1.attn.nothing"), None);
    }

    #[test]
    fn bare_tensors_are_found_by_their_full_names() {
        let names = Names::new(&[""])
            .with(&[("layers.{l}.mlp.experts.{e}.up", "layers.{l}.experts.{e}.up")])
            .with_bare(&[("layers.{l}.attn.sinks", "layers.{l}.self_attn.sinks")])
            .with_bare_part(
                "layers.{l}.mlp.experts.{e}.up.bias",
                "layers.{l}.up_bias",
                StoredPart::default().stacked(4),
                Layout::OutIn,
            );
        let tensor = |weight: &str| names.sources(weight, "").iter().map(|s| s.tensor.clone()).collect::<Vec<_>>();
        assert_eq!(tensor("layers.2.attn.sinks"), ["layers.2.self_attn.sinks"]);
        assert_eq!(tensor("layers.2.mlp.experts.3.up.bias"), ["layers.2.experts.3.up.bias", "layers.2.up_bias"]);
        assert_eq!(tensor("layers.2.mlp.experts.3.up"), ["layers.2.experts.3.up.weight"]);
        assert_eq!(names.sources("layers.2.mlp.experts.3.up.bias", "")[1].part.stack.map(|s| s.index), Some(3));
    }

    #[test]
    fn mtp_layers_are_known_by_their_index() {
        let names = Names { mtp_layers: 61..62, ..Names::new(&["model."]) };
        assert!(names.is_mtp_layer("model.layers.61.eh_proj.weight", "model."));
        for other in ["model.layers.60.mlp.up.weight", "model.layers.62.up.weight", "model.norm.weight", "layers.61.x"]
        {
            assert!(!names.is_mtp_layer(other, "model."), "{other}");
        }
    }

    #[test]
    fn parts_map_rows_to_stored_rows() {
        // Two heads of two rows, three blocks a head: q0 k0 v0 q1 k1 v1.
        let keys = StoredPart::per_head(1, 3, 2);
        assert_eq!((0..4).map(|row| keys.stored_row(row)).collect::<Vec<_>>(), [2, 3, 8, 9]);
        assert_eq!(keys.stored_shape(&[4, 5], false), [12, 5]);
        assert_eq!(StoredPart::rows(4, 12).stored_shape(&[4, 5], true), [5, 12]);
        assert_eq!(StoredPart::default().stacked(8).stored_shape(&[4, 5], false), [8, 4, 5]);
        assert_eq!(StoredPart::grouped(1, 1, 2).stacked(8).stored_shape(&[4, 5], true), [8, 5, 8]);
        assert_eq!(StoredPart::default().concatenated(3).stored_shape(&[4, 5], false), [12, 5]);
    }
}
