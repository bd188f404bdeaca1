//! GGUF files of a tiny Llama, made by hand.

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn value(key: &str, kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), bytes].concat()
}

/// A GGUF file of a one-layer Llama that claims `layers` layers, without its last `missing`
/// tensors.
pub fn llama(layers: u32, missing: usize) -> Vec<u8> {
    with_architecture("llama", layers, missing)
}

/// Like [`llama`], with another `general.architecture`.
pub fn with_architecture(architecture: &str, layers: u32, missing: usize) -> Vec<u8> {
    // Rows of 32 values are one block of Q8_0 (34 bytes), type 8.
    write(architecture, layers, missing, (32, 8, 34))
}

/// A one-layer Llama in Q2_K, which has no packed form: its matrices are read from the file while
/// the model runs.
pub fn in_place_llama() -> Vec<u8> {
    // Rows of 256 values are one block of Q2_K (84 bytes), type 10.
    write("llama", 1, 0, (256, 10, 84))
}

/// `format`: width of the rows, type and bytes of a row of matrices.
fn write(architecture: &str, layers: u32, missing: usize, format: (u64, u32, u64)) -> Vec<u8> {
    let (width, matrix_type, row_bytes) = format;
    let number = |key: &str, number: u32| value(&format!("llama.{key}"), 4, &number.to_le_bytes());
    let tokens: Vec<u8> = ["<s>", "a", "b", "c"].iter().flat_map(|token| text(token)).collect();
    let list = |kind: u32, bytes: &[u8]| [&kind.to_le_bytes(), &4u64.to_le_bytes()[..], bytes].concat();
    let values = [
        value("general.architecture", 8, &text(architecture)),
        value("general.license", 8, &text("mit")),
        number("block_count", layers),
        number("context_length", 64),
        number("embedding_length", width as u32),
        number("feed_forward_length", width as u32),
        number("attention.head_count", 4),
        number("attention.head_count_kv", 2),
        value("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes()),
        value("tokenizer.ggml.model", 8, &text("llama")),
        value("tokenizer.ggml.bos_token_id", 4, &0u32.to_le_bytes()),
        value("tokenizer.ggml.tokens", 9, &list(8, &tokens)),
        value("tokenizer.ggml.scores", 9, &list(6, &[0; 16])),
    ];
    // Norms are F32, type 0.
    let mut tensors: Vec<(&str, Vec<u64>)> =
        vec![("token_embd.weight", vec![width, 4]), ("output_norm.weight", vec![width])];
    for (name, rows) in [
        ("attn_q", width),
        ("attn_k", width / 2),
        ("attn_v", width / 2),
        ("attn_output", width),
        ("ffn_gate", width),
        ("ffn_up", width),
        ("ffn_down", width),
    ] {
        tensors.push((name, vec![width, rows]));
    }
    tensors.extend([("attn_norm", vec![width]), ("ffn_norm", vec![width])]);
    tensors.truncate(tensors.len() - missing);
    let mut out =
        [b"GGUF", &3u32.to_le_bytes()[..], &(tensors.len() as u64).to_le_bytes(), &(values.len() as u64).to_le_bytes()]
            .concat();
    out.extend(values.concat());
    let mut at = 0u64;
    for (name, dims) in tensors {
        let name = if name.contains('.') { name.to_owned() } else { format!("blk.0.{name}.weight") };
        let (kind, bytes) = if dims.len() == 2 { (matrix_type, dims[1] * row_bytes) } else { (0, width * 4) };
        out.extend(
            [
                text(&name),
                (dims.len() as u32).to_le_bytes().to_vec(),
                dims.iter().flat_map(|d| d.to_le_bytes()).collect(),
            ]
            .concat(),
        );
        out.extend([&kind.to_le_bytes()[..], &at.to_le_bytes()].concat());
        at = (at + bytes).next_multiple_of(32);
    }
    out.resize(out.len().next_multiple_of(32) + at as usize, 0);
    out
}
