//! A GGUF file of a Llama of one layer whose numbers are all zero: recognised, whole, and small.

const WIDTH: u64 = 8;
const HIDDEN: u64 = 12;
const VOCAB: u64 = 5;
/// Where llama.cpp lets tensors begin.
const ALIGNMENT: u64 = 32;
/// The numbers by which the format knows the types of values.
const U32: u32 = 4;
const F32: u32 = 6;
const TEXT: u32 = 8;

/// The file.
pub fn llama() -> Vec<u8> {
    let sizes = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", HIDDEN as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ];
    let mut values = vec![value("general.architecture", TEXT, &text("llama"))];
    values.extend(sizes.map(|(key, size)| value(&format!("llama.{key}"), U32, &size.to_le_bytes())));
    values.push(value("llama.attention.layer_norm_rms_epsilon", F32, &1e-5f32.to_le_bytes()));

    let tensors: [(&str, &[u64]); 11] = [
        ("token_embd", &[WIDTH, VOCAB]),
        ("blk.0.attn_norm", &[WIDTH]),
        ("blk.0.attn_q", &[WIDTH, WIDTH]),
        ("blk.0.attn_k", &[WIDTH, WIDTH / 2]),
        ("blk.0.attn_v", &[WIDTH, WIDTH / 2]),
        ("blk.0.attn_output", &[WIDTH, WIDTH]),
        ("blk.0.ffn_norm", &[WIDTH]),
        ("blk.0.ffn_gate", &[WIDTH, HIDDEN]),
        ("blk.0.ffn_up", &[WIDTH, HIDDEN]),
        ("blk.0.ffn_down", &[HIDDEN, WIDTH]),
        ("output_norm", &[WIDTH]),
    ];
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((values.len() as u64).to_le_bytes());
    file.extend(values.concat());
    let mut offset = 0u64;
    for (name, shape) in tensors {
        file.extend(text(&format!("{name}.weight")));
        file.extend((shape.len() as u32).to_le_bytes());
        file.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
        // The tensor's own type, which is f32, has another number than that of a value.
        file.extend(0u32.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset += (shape.iter().product::<u64>() * 4).next_multiple_of(ALIGNMENT);
    }
    let data = (file.len() as u64).next_multiple_of(ALIGNMENT);
    file.resize((data + offset) as usize, 0);
    file
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn value(key: &str, kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&text(key), &kind.to_le_bytes()[..], bytes].concat()
}
