//! Small GGUF files for tests: more types of metadata for the writer, and two models.

pub(super) use super::writer::{Writer, string};

impl Writer {
    pub(super) fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, 7, &[value.into()])
    }

    /// Adds an array, given the type number, count and bytes of its elements.
    pub(super) fn array(&mut self, key: &str, kind: u32, len: usize, elements: &[u8]) -> &mut Self {
        self.raw(key, 9, &[&kind.to_le_bytes(), &(len as u64).to_le_bytes()[..], elements].concat())
    }

    pub(super) fn texts(&mut self, key: &str, texts: &[&str]) -> &mut Self {
        let elements: Vec<u8> = texts.iter().flat_map(|text| string(text)).collect();
        self.array(key, 8, texts.len(), &elements)
    }

    pub(super) fn i32s(&mut self, key: &str, numbers: &[i32]) -> &mut Self {
        let elements: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.array(key, 5, numbers.len(), &elements)
    }

    pub(super) fn f32s(&mut self, key: &str, numbers: &[f32]) -> &mut Self {
        let elements: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.array(key, 6, numbers.len(), &elements)
    }
}

/// A decoder with two layers, hidden size 8, two heads and one KV head; metadata and embedding
/// only.
pub(super) fn decoder(arch: &str) -> Writer {
    let mut file = Writer::default();
    file.text("general.architecture", arch);
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        file.u32(&format!("{arch}.{key}"), value);
    }
    file.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5);
    file.f32(&format!("{arch}.attention.layer_norm_epsilon"), 1e-5);
    file.tensor("token_embd.weight", &[8, 5], &[0.5; 40]);
    file
}

/// A small Llama: metadata and the attention tensors of one layer.
pub(super) fn llama() -> Writer {
    let mut file = decoder("llama");
    file.f32("llama.rope.freq_base", 500000.0);
    file.tensor("blk.0.attn_q.weight", &[8, 8], &std::array::from_fn::<_, 64, _>(|i| i as f32));
    file.tensor("blk.0.attn_k.weight", &[8, 4], &[1.0; 32]);
    file.tensor("output_norm.weight", &[8], &[1.0; 8]);
    file
}
