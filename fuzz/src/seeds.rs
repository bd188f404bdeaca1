//! The inputs from which mutations start: small valid files, made from the golden cases and by
//! hand. `pellucid-fuzz seeds DIR` writes them as the corpora of libFuzzer.

use golden::CaseFile;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use std::path::Path;

#[path = "../../crates/models/tests/it/gguf_files.rs"]
#[allow(dead_code, reason = "the tests of the models use more of it")]
mod gguf_files;

fn tensors(named: &[(&str, Dtype, &[usize], usize)]) -> Vec<u8> {
    let bytes = [0x3c; 64];
    let view = |&(name, dtype, shape, length): &(&str, Dtype, &[usize], usize)| {
        (name.to_owned(), TensorView::new(dtype, shape.to_vec(), &bytes[..length]).expect("a tensor"))
    };
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    safetensors::serialize(named.iter().map(view).collect::<Vec<_>>(), metadata).expect("in memory")
}

pub fn safetensors() -> Vec<Vec<u8>> {
    vec![
        tensors(&[("a", Dtype::F32, &[2, 3], 24), ("b.weight", Dtype::BF16, &[4], 8), ("c", Dtype::I64, &[], 8)]),
        tensors(&[("x", Dtype::U8, &[0, 5], 0), ("y", Dtype::F8_E4M3, &[7], 7), ("z", Dtype::BOOL, &[1, 1, 1], 1)]),
        tensors(&[]),
    ]
}

/// The shards beside an index under test.
pub fn shards() -> [(&'static str, Vec<u8>); 2] {
    [
        ("a.safetensors", tensors(&[("a", Dtype::F32, &[2], 8)])),
        ("b.safetensors", tensors(&[("b", Dtype::F32, &[3], 12)])),
    ]
}

pub fn index() -> Vec<Vec<u8>> {
    let map = json!({"a": "a.safetensors", "b": "b.safetensors"});
    let index = json!({"metadata": {"total_size": 20}, "weight_map": map});
    vec![index.to_string().into_bytes(), json!({ "weight_map": map }).to_string().into_bytes()]
}

pub fn gguf() -> Vec<Vec<u8>> {
    vec![gguf_files::llama(1, 0)]
}

/// `{"a": tensor of 2 × 2}` as `torch.save` writes it.
pub fn pickle() -> Vec<Vec<u8>> {
    let text: &[u8] = b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00\
        storageq\x03ctorch\nFloatStorage\nq\x04X\x01\x00\x00\x000q\x05X\x03\x00\x00\x00cpuq\x06K\x04tq\x07QK\x00K\x02K\x02\
        \x86q\x08K\x02K\x01\x86q\x09\x89ccollections\nOrderedDict\nq\x0a)Rq\x0btq\x0cRq\x0ds.";
    vec![text.to_vec()]
}

pub fn tokenizer() -> Vec<Vec<u8>> {
    let added = json!([{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}]);
    let vocabulary: serde_json::Map<String, serde_json::Value> = ["<s>", "a", "b", "ab", "Ġ", "Ġa", "<0x41>"]
        .iter()
        .zip(0..)
        .map(|(&token, id)| (token.into(), json!(id)))
        .collect();
    let merges = json!([["a", "b"], ["Ġ", "a"]]);
    let bpe = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocabulary, "merges": merges}});
    let unigram = json!({"version": "1.0", "added_tokens": added, "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true,
            "vocab": [["<unk>", 0.0], ["▁", -1.0], ["a", -2.0], ["▁a", -1.5]]}});
    let piece = json!({"version": "1.0", "added_tokens": [], "normalizer": {"type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null, "decoder": {"type": "WordPiece", "prefix": "##",
            "cleanup": true}, "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1, "##b": 2}}});
    [bpe, unigram, piece].iter().map(|value| value.to_string().into_bytes()).collect()
}

/// The configuration of every golden case: at least one for every family.
pub fn config() -> Vec<Vec<u8>> {
    golden::names().iter().map(|name| CaseFile::read(name).config.to_string().into_bytes()).collect()
}

pub fn template() -> Vec<Vec<u8>> {
    [
        "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}</s>{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}",
        "{% set ns = namespace(x='') %}{% for m in messages[1:] %}{% set ns.x = ns.x ~ m.content %}{% endfor %}{{ ns.x | tojson }}",
        "{%- macro f(a, b=2) -%}{{ a * b }}{%- endmacro -%}{{ f(3) }}{{ bos_token }}{{ messages | length }}{{ [1,2,3] | join(',') }}",
        "{{ raise_exception('no') if messages[0].role == 'tool' else strftime_now('%Y') }}{{ 'a\\nb' | indent(4) }}{{ range(3) | list }}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}

/// The weights beside an adapter's configuration under test: one module of rank 2.
pub fn adapter_weights() -> Vec<u8> {
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    let (a, b) = (format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight"));
    tensors(&[(&a, Dtype::F32, &[2, 8], 64), (&b, Dtype::F32, &[8, 2], 64)])
}

pub fn adapter() -> Vec<Vec<u8>> {
    let plain = json!({"peft_type": "LORA", "base_model_name_or_path": "base", "r": 2, "lora_alpha": 4,
        "target_modules": ["q_proj"], "bias": "none", "fan_in_fan_out": false, "modules_to_save": null});
    let mut ranked = plain.clone();
    ranked["rank_pattern"] = json!({"q_proj": 2});
    ranked["alpha_pattern"] = json!({"^model.layers.0": 8});
    ranked["use_rslora"] = json!(true);
    vec![plain.to_string().into_bytes(), ranked.to_string().into_bytes()]
}

/// The example plans, and plans with values and gradients.
pub fn plan() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/plans");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("the examples").flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let mut plans: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).expect("an example")).collect();
    let values = json!({"taps": [{"site": "embed", "as": "h"}, {"site": "layers.0.resid_post", "add": {"value": "b"}},
            {"site": "layers.1.mlp_out", "positions": "last", "units": [0, 1], "scale": 0.5}, {"site": "logits", "capture": true}],
        "values": [{"name": "a", "mul": ["h", 2]}, {"name": "b", "add": ["a", "h"]}], "save": ["b"]});
    plans.push(values.to_string().into_bytes());
    for tap in
        [json!({"zero": true}), json!({"heads": [1], "zero": true}), json!({"rows": [1], "positions": [-1], "set": 0})]
    {
        let mut tap = tap;
        tap["site"] = json!("layers.*.z");
        plans.push(json!({"taps": [tap, {"site": "logits", "capture": true}]}).to_string().into_bytes());
    }
    plans
}

/// Choices of the grammar: any bytes are valid.
pub fn edits() -> Vec<Vec<u8>> {
    (0..32u8)
        .map(|seed| (0..96u8).map(|at| at.wrapping_mul(37).wrapping_add(seed.wrapping_mul(91)) ^ (at >> 1)).collect())
        .collect()
}
