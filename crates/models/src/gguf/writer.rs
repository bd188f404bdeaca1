//! Writes GGUF files: metadata, then tensors at aligned offsets.

/// Alignment of tensor data if the file does not set `general.alignment`.
const ALIGNMENT: usize = 32;

/// Metadata and tensors of a file under construction, as bytes.
#[derive(Clone, Default)]
pub(crate) struct Writer {
    values: Vec<u8>,
    value_count: u64,
    tensors: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Encodes a length-prefixed string.
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

    /// Adds an unsigned integer.
    pub(crate) fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    /// Adds a string.
    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.raw(key, 8, &string(value))
    }

    /// Adds an f32 tensor; dimensions in ggml's order, columns first.
    pub(crate) fn tensor(&mut self, name: &str, dims: &[u64], values: &[f32]) -> &mut Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let offset = self.tensors.iter().map(|(_, data)| data.len().next_multiple_of(ALIGNMENT) as u64).sum();
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

    /// Returns the file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.value_count.to_le_bytes());
        out.extend(&self.values);
        for (header, _) in &self.tensors {
            out.extend(header);
        }
        for (_, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(data);
        }
        out
    }
}
