//! Writes small GGUF files for tests.

/// Metadata and tensors of a file under construction, as bytes.
#[derive(Clone, Default)]
pub(super) struct Writer {
    values: Vec<u8>,
    value_count: u64,
    tensors: Vec<(Vec<u8>, Vec<u8>)>,
}

pub(super) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Writer {
    /// Adds a value of any type, given its type number and bytes.
    pub(super) fn raw(&mut self, key: &str, kind: u32, bytes: &[u8]) -> &mut Self {
        self.values.extend(string(key));
        self.values.extend(kind.to_le_bytes());
        self.values.extend(bytes);
        self.value_count += 1;
        self
    }

    pub(super) fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub(super) fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, 7, &[value.into()])
    }

    pub(super) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.raw(key, 8, &string(value))
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

    /// Adds an f32 tensor; dimensions in ggml's order, columns first.
    pub(super) fn tensor(&mut self, name: &str, dims: &[u64], values: &[f32]) -> &mut Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let offset = self.tensors.iter().map(|(_, data)| data.len().next_multiple_of(32) as u64).sum();
        self.entry(name, dims, 0, offset, data)
    }

    /// Adds a tensor with an arbitrary header.
    pub(super) fn entry(&mut self, name: &str, dims: &[u64], kind: u32, offset: u64, data: Vec<u8>) -> &mut Self {
        let mut header = string(name);
        header.extend((dims.len() as u32).to_le_bytes());
        header.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        header.extend(kind.to_le_bytes());
        header.extend(offset.to_le_bytes());
        self.tensors.push((header, data));
        self
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.value_count.to_le_bytes());
        out.extend(&self.values);
        for (header, _) in &self.tensors {
            out.extend(header);
        }
        for (_, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out
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
