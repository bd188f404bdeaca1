//! Maps the tensor names of a GGUF file to the names in the original Hugging Face checkpoint.
//!
//! llama.cpp has one naming scheme for all families (`blk.3.attn_q.weight`), Hugging Face one per
//! family. A family is a table from GGUF stems to Hugging Face stems (`families`); the suffix
//! (`.weight`, `.bias`) stays. The converter also reordered rows of some matrices ([`RowOrder`]).
//!
//! Two kinds of tensors have no counterpart in the checkpoint. The experts of a layer, which the
//! checkpoint stores separately, are one tensor `[experts, rows, columns]` here; it is named
//! `….experts.gate.weight`, `….experts.up.weight` or `….experts.down.weight`, after the module that
//! contains the experts. The rotary factors ([`ignored`]) are part of the configuration.

use super::GgufFile;
use super::arch_metadata::ArchMetadata;
use super::families::family;
use crate::{Error, Result};

/// How the file orders the rows of a matrix (or the elements of a bias) of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As in the checkpoint.
    AsIs,
    /// The checkpoint stores this matrix as `[inputs, outputs]` (GPT-2's `Conv1D`); the file stores
    /// its transpose, `[outputs, inputs]`, like all other matrices.
    Transposed,
    /// Q or K projection of Llama: within each head, the checkpoint stores the first elements of
    /// all rotary pairs and then the second ones; the file interleaves them.
    LlamaHeads {
        /// Number of heads in the rows.
        heads: usize,
    },
    /// Fused QKV: the checkpoint stores q, k, v per head; the file stores all q, then all k, then
    /// all v.
    FusedHeads {
        /// The number of heads.
        heads: usize,
    },
}

impl RowOrder {
    /// The file's row for row `row` of the checkpoint's `rows` rows (of its transpose, if
    /// transposed).
    ///
    /// ```
    /// use pellucid_models::gguf::RowOrder;
    /// let order = RowOrder::LlamaHeads { heads: 2 };
    /// let file_rows: Vec<usize> = (0..8).map(|row| order.source_row(row, 8)).collect();
    /// assert_eq!(file_rows, [0, 2, 1, 3, 4, 6, 5, 7]);
    /// ```
    pub fn source_row(&self, row: usize, rows: usize) -> usize {
        match *self {
            RowOrder::AsIs | RowOrder::Transposed => row,
            RowOrder::LlamaHeads { heads } => {
                let width = rows / heads;
                let (head, index) = (row / width, row % width);
                let half = width / 2;
                head * width + index % half * 2 + index / half
            }
            RowOrder::FusedHeads { heads } => {
                let width = rows / heads / 3;
                let (head, part, index) = (row / width / 3, row / width % 3, row % width);
                (part * heads + head) * width + index
            }
        }
    }

    /// The number of rows must be a multiple of this.
    fn row_multiple(&self) -> Option<usize> {
        match *self {
            RowOrder::AsIs | RowOrder::Transposed => Some(1),
            RowOrder::LlamaHeads { heads } => heads.checked_mul(2),
            RowOrder::FusedHeads { heads } => heads.checked_mul(3),
        }
    }
}

/// The tensors that are not loaded: rotary frequencies, which are in the configuration or follow
/// from it.
pub fn ignored(file: &GgufFile) -> Vec<&str> {
    file.tensors().iter().map(|tensor| tensor.name.as_str()).filter(|name| is_ignored(name)).collect()
}

fn is_ignored(name: &str) -> bool {
    matches!(name, "rope_freqs.weight" | "rope_factors_long.weight" | "rope_factors_short.weight")
        || (name.starts_with("blk.") && (name.ends_with(".attn_rot_embd") || name.ends_with(".rope_freqs.weight")))
}

/// Returns for each tensor that the model needs: its name in the Hugging Face checkpoint, its index
/// in [`GgufFile::tensors`], and its row order.
///
/// # Errors
/// If the architecture or a tensor is unknown, or a tensor's rows cannot be divided among the
/// heads.
pub fn hf_names(arch: &str, file: &GgufFile) -> Result<Vec<(String, usize, RowOrder)>> {
    let family = family(arch).ok_or_else(|| {
        let what = format!("{}: the GGUF architecture {arch:?} is not known to this build", file.path().display());
        Error::unsupported(what, "use the model's Hugging Face directory, if its family is supported")
    })?;
    let meta = ArchMetadata { file, arch };
    let (heads, kv_heads, layers) = (meta.heads()?, meta.kv_heads()?, meta.size("block_count")?);
    let mut names = Vec::with_capacity(file.tensors().len());
    for (index, tensor) in file.tensors().iter().enumerate() {
        if is_ignored(&tensor.name) {
            continue;
        }
        let name = family.name(&tensor.name, layers).ok_or_else(|| {
            let what =
                format!("{}: the tensor {:?} is not part of architecture {arch:?}", file.path().display(), tensor.name);
            Error::unsupported(what, "the model may be a variant that this build does not support: use llama.cpp")
        })?;
        let order = row_order(arch, &tensor.name, heads, kv_heads);
        let rows = tensor.shape[0];
        if !order.row_multiple().is_some_and(|multiple| rows.is_multiple_of(multiple)) {
            let problem = format!(
                "tensor {:?} has {rows} rows, which cannot be divided among {heads} heads ({kv_heads} KV heads)",
                tensor.name
            );
            return Err(file.damaged(problem));
        }
        names.push((name, index, order));
    }
    Ok(names)
}

fn row_order(arch: &str, name: &str, heads: usize, kv_heads: usize) -> RowOrder {
    let is = |stem: &str| name.contains(&format!(".{stem}."));
    match arch {
        "llama" if is("attn_q") => RowOrder::LlamaHeads { heads },
        "llama" if is("attn_k") => RowOrder::LlamaHeads { heads: kv_heads },
        "gptneox" | "bloom" if is("attn_qkv") => RowOrder::FusedHeads { heads },
        "gpt2"
            if name.ends_with(".weight") && ["attn_qkv", "attn_output", "ffn_up", "ffn_down"].into_iter().any(is) =>
        {
            RowOrder::Transposed
        }
        _ => RowOrder::AsIs,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Writer, decoder, llama};
    use super::*;

    fn parse(file: &Writer) -> GgufFile {
        GgufFile::parse(file.bytes(), "x.gguf").unwrap()
    }

    /// The checkpoint name and row order of one tensor in a file of this architecture.
    fn name_of(arch: &str, stored: &str) -> Option<(String, RowOrder)> {
        let mut file = decoder(arch);
        file.tensor(stored, &[2, 24], &[0.0; 48]);
        let names = hf_names(arch, &parse(&file)).ok()?;
        names.into_iter().find(|(_, index, _)| *index == 1).map(|(name, _, order)| (name, order))
    }

    fn plain(name: &str) -> Option<(String, RowOrder)> {
        Some((name.to_owned(), RowOrder::AsIs))
    }

    #[test]
    fn names_are_mapped_for_each_family() {
        let heads = |name: &str, heads| Some((name.to_owned(), RowOrder::LlamaHeads { heads }));
        let fused = |name: &str| Some((name.to_owned(), RowOrder::FusedHeads { heads: 2 }));
        let transposed = |name: &str| Some((name.to_owned(), RowOrder::Transposed));
        assert_eq!(name_of("llama", "blk.1.attn_q.weight"), heads("model.layers.1.self_attn.q_proj.weight", 2));
        assert_eq!(name_of("llama", "blk.1.attn_k.bias"), heads("model.layers.1.self_attn.k_proj.bias", 1));
        assert_eq!(name_of("llama", "blk.1.attn_v.weight"), plain("model.layers.1.self_attn.v_proj.weight"));
        assert_eq!(name_of("llama", "output.weight"), plain("lm_head.weight"));
        assert_eq!(name_of("qwen3", "blk.0.attn_q.weight"), plain("model.layers.0.self_attn.q_proj.weight"));
        assert_eq!(name_of("qwen3", "blk.0.attn_q_norm.weight"), plain("model.layers.0.self_attn.q_norm.weight"));
        assert_eq!(
            name_of("gemma2", "blk.0.ffn_norm.weight"),
            plain("model.layers.0.pre_feedforward_layernorm.weight")
        );
        assert_eq!(name_of("gemma", "blk.0.ffn_norm.weight"), plain("model.layers.0.post_attention_layernorm.weight"));
        assert_eq!(name_of("gpt2", "blk.0.attn_qkv.weight"), transposed("transformer.h.0.attn.c_attn.weight"));
        assert_eq!(name_of("gpt2", "blk.0.attn_qkv.bias"), plain("transformer.h.0.attn.c_attn.bias"));
        assert_eq!(name_of("gpt2", "position_embd.weight"), plain("transformer.wpe.weight"));
        let qkv = fused("gpt_neox.layers.0.attention.query_key_value.bias");
        assert_eq!(name_of("gptneox", "blk.0.attn_qkv.bias"), qkv);
        assert_eq!(name_of("bloom", "token_embd_norm.bias"), plain("transformer.word_embeddings_layernorm.bias"));
        assert_eq!(name_of("phi3", "blk.0.ffn_up.weight"), plain("model.layers.0.mlp.gate_up_proj.weight"));
    }

    #[test]
    fn experts_may_be_stacked_or_separate() {
        let stacked = plain("model.layers.0.block_sparse_moe.experts.gate.weight");
        assert_eq!(name_of("llama", "blk.0.ffn_gate_exps.weight"), stacked);
        let separate = plain("model.layers.0.block_sparse_moe.experts.7.w2.weight");
        assert_eq!(name_of("llama", "blk.0.ffn_down.7.weight"), separate);
        assert_eq!(name_of("qwen3moe", "blk.1.ffn_up_exps.weight"), plain("model.layers.1.mlp.experts.up.weight"));
        assert_eq!(name_of("qwen3moe", "blk.0.ffn_down.7.weight"), None);
    }

    #[test]
    fn unknown_tensors_are_refused_by_name() {
        for unknown in
            ["blk.0.ssm_conv1d.weight", "blk.2.attn_q.weight", "blk.01.attn_q.weight", "blk.+1.attn_q.weight", "x"]
        {
            let mut file = llama();
            file.tensor(unknown, &[8], &[0.0; 8]);
            let error = hf_names("llama", &parse(&file)).unwrap_err().to_string();
            assert_eq!(error, format!("x.gguf: the tensor {unknown:?} is not part of architecture \"llama\""));
        }
        let error = hf_names("mamba", &parse(&llama())).unwrap_err().to_string();
        assert!(error.contains("architecture \"mamba\" is not known"), "{error}");
        let mut file = llama();
        file.tensor("blk.1.attn_q.weight", &[1, 6], &[0.0; 6]);
        let error = hf_names("llama", &parse(&file)).unwrap_err().to_string();
        assert!(
            error.contains("\"blk.1.attn_q.weight\" has 6 rows, which cannot be divided among 2 heads (1 KV heads)"),
            "{error}"
        );
    }

    #[test]
    fn rotary_factors_are_ignored() {
        let mut file = llama();
        file.tensor("rope_freqs.weight", &[2], &[1.0, 8.0]);
        let file = parse(&file);
        assert_eq!(ignored(&file), ["rope_freqs.weight"]);
        assert_eq!(hf_names("llama", &file).unwrap().len(), 4);
    }

    #[test]
    fn source_row_inverts_the_converters_reordering() {
        // Two heads of dimension 6: llama.cpp's converter does reshape(heads, 2, 3), swaps the last
        // two axes, flattens.
        let (heads, half) = (2, 3);
        let mut file_rows = Vec::new();
        for head in 0..heads {
            for place in 0..half {
                file_rows.extend([0, 1].map(|part| head * 2 * half + part * half + place));
            }
        }
        let order = RowOrder::LlamaHeads { heads };
        let restored: Vec<usize> = (0..12).map(|row| file_rows[order.source_row(row, 12)]).collect();
        assert_eq!(restored, Vec::from_iter(0..12));

        // Fused: reshape(heads, 3, width), then all q, all k, all v.
        let (heads, width) = (4, 2);
        let mut file_rows = Vec::new();
        for part in 0..3 {
            for head in 0..heads {
                file_rows.extend((0..width).map(|place| (head * 3 + part) * width + place));
            }
        }
        let order = RowOrder::FusedHeads { heads };
        let restored: Vec<usize> = (0..24).map(|row| file_rows[order.source_row(row, 24)]).collect();
        assert_eq!(restored, Vec::from_iter(0..24));
    }
}
