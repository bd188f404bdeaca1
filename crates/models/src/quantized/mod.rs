//! Quantized checkpoints (GPTQ, AWQ, bitsandbytes, …), presented as ordinary f32 checkpoints.
//!
//! A quantized linear layer is stored as several tensors: codes, scales and perhaps zero points.
//! [`Method::read`] parses `quantization_config` and rejects unknown methods;
//! [`QuantizedCheckpoint::new`] finds the layers by the names of their tensors and checks the
//! shapes. After that each layer appears as one f32 tensor `<module>.weight` whose rows are
//! dequantized on request: the codes stay in the mapped file, so the model is never copied as a
//! whole.
//!
//! A module without such tensors is an unquantized one, so the lists of skipped modules
//! (`modules_to_not_convert`, `ignore`) are not read.

mod awq;
mod bitsandbytes;
mod blocks;
mod codes;
mod compressed;
mod fp8;
mod gptq;
mod mxfp4;
mod parts;
mod scaled;
#[cfg(test)]
mod testing;

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::files::read_settings;
use pellucid_kernels::encoding::Encoding;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A supported quantization method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// GPTQ: codes packed along the input dimension.
    Gptq(gptq::GptqSettings),
    /// AWQ: 4-bit codes packed along the output dimension.
    Awq(awq::AwqSettings),
    /// bitsandbytes: nf4 or fp4 blocks, or int8 rows.
    BitsAndBytes,
    /// FP8 with one scale per tile, row or matrix.
    Fp8(fp8::Fp8Settings),
    /// The compressed-tensors formats.
    Compressed(compressed::CompressedSettings),
    /// MXFP4: stacked experts in 4-bit floats, with a power-of-two scale per 32 values.
    Mxfp4,
}

/// Values of `quant_method` that [`Method::read`] accepts.
pub const METHODS: [&str; 6] = ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors", "mxfp4"];

impl Method {
    /// Reads the quantization method from `quantization_config`; `None` if the weights are not
    /// quantized.
    ///
    /// # Errors
    /// If the method, or one of its options, is not supported; the message names it.
    pub fn read(config: &Config) -> Result<Option<Method>> {
        let in_text_config = || config.part("text_config").and_then(|text| text.part("quantization_config"));
        let Some(part) = config.part("quantization_config").or_else(in_text_config) else { return Ok(None) };
        let bits = || {
            part.flag_or("load_in_4bit", false).unwrap_or(false) || part.flag_or("load_in_8bit", false).unwrap_or(false)
        };
        let method = match part.text("quant_method") {
            Some(method) => method.to_lowercase(),
            // Early bitsandbytes configurations have no `quant_method`.
            None if bits() => "bitsandbytes".into(),
            None => return Err(config.bad("quantization_config", "does not name its `quant_method`")),
        };
        match method.as_str() {
            "gptq" => gptq::GptqSettings::read(&part).map(|settings| Some(Method::Gptq(settings))),
            "awq" => awq::AwqSettings::read(&part).map(|settings| Some(Method::Awq(settings))),
            // transformers writes the first; older files have the others.
            "bitsandbytes" | "bitsandbytes_4bit" | "bitsandbytes_8bit" => Ok(Some(Method::BitsAndBytes)),
            "fp8" => fp8::Fp8Settings::read(&part).map(|settings| Some(Method::Fp8(settings))),
            "compressed-tensors" | "compressed_tensors" => {
                compressed::CompressedSettings::read(&part).map(|settings| Some(Method::Compressed(settings)))
            }
            "mxfp4" => Ok(Some(Method::Mxfp4)),
            _ => Err(unknown(&method)),
        }
    }
}

/// Adds the `quantization_config` that early GPTQ and AWQ checkpoints keep in a separate file
/// (`quantize_config.json`, `quant_config.json`).
pub(crate) fn with_sidecar(mut config: Value, dir: &Path) -> Value {
    if let Value::Object(keys) = &mut config
        && keys.get("quantization_config").is_none_or(Value::is_null)
        && let Some(part) = sidecar(dir)
    {
        keys.insert("quantization_config".into(), part);
    }
    config
}

fn sidecar(dir: &Path) -> Option<Value> {
    [("quantize_config.json", "gptq"), ("quant_config.json", "awq")].into_iter().find_map(|(file, method)| {
        let mut value: Value = serde_json::from_slice(&read_settings(&dir.join(file)).ok()?).ok()?;
        let part = value.as_object_mut().filter(|part| part.contains_key("bits") || part.contains_key("w_bit"))?;
        part.entry("quant_method").or_insert_with(|| method.into());
        Some(value)
    })
}

/// The error for an unsupported method or an unsupported option of one.
fn unknown(what: &str) -> Error {
    Error::unsupported(
        format!("the weights are quantized by `{what}`, which this build does not support"),
        format!("use the model's unquantized weights, a GGUF file, or weights quantized by {}", METHODS.join(", ")),
    )
}

/// Dequantizes the rows of one quantized layer.
trait RowDecoder: Send + Sync {
    /// Checks stored values that are used as indices. Must pass before any row is decoded; the
    /// error names the tensor.
    fn check(&self, _checkpoint: &Checkpoint) -> std::result::Result<(), String> {
        Ok(())
    }

    /// Dequantizes row `row` into `out`. The caller guarantees that the row exists and that `out`
    /// has its length.
    fn decode_row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]);

    /// Writes a row as integers `[cols]` and one scale per block of 32 `[cols / 32]`, such that
    /// integer · scale is exactly the row. Returns `false` if the row has no such form.
    fn integer_row(&self, _checkpoint: &Checkpoint, _row: usize, _integers: &mut [i16], _scales: &mut [f32]) -> bool {
        false
    }

    /// Writes a row as GGUF's MXFP4 blocks. Returns `false` if the row has no such form.
    fn mxfp4_row(&self, _checkpoint: &Checkpoint, _row: usize, _out: &mut [u8]) -> bool {
        false
    }
}

/// A quantized layer: the f32 tensor that stands for it, and the stored tensors it consists of.
struct QuantizedLayer {
    /// `[outputs, inputs]`, or `[experts, outputs, inputs]`.
    shape: Vec<usize>,
    /// The narrowest float type that represents every value exactly.
    exact_encoding: Encoding,
    /// Expected encoding in memory, judging by the header and the configuration alone.
    memory_encoding: Encoding,
    /// Names of the stored tensors; the first holds the codes.
    parts: Vec<String>,
    decoder: Box<dyn RowDecoder>,
}

/// The result of looking for one method's layers in a checkpoint.
#[derive(Default)]
struct LayerScan {
    /// By the name of the weight in an unquantized checkpoint.
    layers: HashMap<String, QuantizedLayer>,
    /// Scales of activations: activations are never quantized here, so these tensors are ignored.
    unused: Vec<String>,
    faults: Vec<String>,
}

impl LayerScan {
    /// Adds a layer under its name in an unquantized checkpoint, or the reason why it is invalid.
    fn add(&mut self, name: String, layer: std::result::Result<QuantizedLayer, String>) {
        match layer {
            Ok(layer) => drop(self.layers.insert(name, layer)),
            Err(fault) => self.faults.push(fault),
        }
    }
}

/// A checkpoint whose quantized layers are presented as f32 tensors.
pub struct QuantizedCheckpoint {
    checkpoint: Checkpoint,
    layers: HashMap<String, QuantizedLayer>,
    /// Stored tensors that are parts of a layer or unused.
    hidden: HashSet<String>,
}

/// The f32 tensor of a quantized layer: its shape, and rows dequantized on request.
pub struct DequantizedTensor<'a> {
    checkpoint: &'a Checkpoint,
    layer: &'a QuantizedLayer,
}

impl QuantizedCheckpoint {
    /// Finds the quantized layers of a checkpoint. Reads only headers, and the small tensors in
    /// which bitsandbytes and compressed-tensors store a layer's shape.
    ///
    /// # Errors
    /// If a layer lacks a tensor, or shapes or dtypes disagree.
    pub fn new(checkpoint: Checkpoint, method: &Method, origin: &Path) -> Result<QuantizedCheckpoint> {
        let mut scan = LayerScan::default();
        match method {
            Method::Gptq(settings) => gptq::find(&checkpoint, settings, &mut scan),
            Method::Awq(settings) => awq::find(&checkpoint, settings, &mut scan),
            Method::BitsAndBytes => bitsandbytes::find(&checkpoint, &mut scan),
            Method::Fp8(settings) => fp8::find(&checkpoint, settings, &mut scan),
            Method::Compressed(settings) => compressed::find(&checkpoint, settings, &mut scan),
            Method::Mxfp4 => mxfp4::find(&checkpoint, &mut scan),
        }
        scan.faults.sort_unstable();
        if let Some(first) = scan.faults.first() {
            let more = match scan.faults.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            return Err(Error::invalid(
                origin,
                format!("the quantized weights are incomplete or inconsistent: {first}{more}"),
                "check that config.json and the weights belong together and that every file was downloaded",
            ));
        }
        let hidden = scan.layers.values().flat_map(|layer| &layer.parts).chain(&scan.unused).cloned().collect();
        Ok(QuantizedCheckpoint { checkpoint, layers: scan.layers, hidden })
    }

    /// The underlying checkpoint with the stored tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The dequantized tensor of this name, if it is a quantized layer.
    pub fn dequantized(&self, name: &str) -> Option<DequantizedTensor<'_>> {
        self.layers.get(name).map(|layer| DequantizedTensor { checkpoint: &self.checkpoint, layer })
    }

    /// Whether a stored tensor is part of a quantized layer (or unused) and so is not listed
    /// itself.
    pub fn hides(&self, name: &str) -> bool {
        self.hidden.contains(name)
    }

    /// The tensor names that the unquantized checkpoint of this model has.
    pub fn names(&self) -> Vec<&str> {
        let plain = self.checkpoint.tensors().map(|tensor| tensor.name.as_str()).filter(|name| !self.hides(name));
        plain.chain(self.layers.keys().map(String::as_str)).collect()
    }

    /// Releases the mapped pages of all stored tensors of a quantized layer.
    pub fn release_pages(&self, layer: &str) {
        let parts = self.layers.get(layer).into_iter().flat_map(|layer| &layer.parts);
        parts.filter_map(|part| self.checkpoint.get(part)).for_each(|tensor| self.checkpoint.release_pages(tensor));
    }
}

impl<'a> DequantizedTensor<'a> {
    /// Its shape.
    pub fn shape(&self) -> &'a [usize] {
        &self.layer.shape
    }

    /// The narrowest float type that represents its values exactly.
    pub fn exact_encoding(&self) -> Encoding {
        self.layer.exact_encoding
    }

    /// Expected encoding in memory, judging by the header and the configuration alone.
    pub fn memory_encoding(&self) -> Encoding {
        self.layer.memory_encoding
    }

    /// The file that holds its codes.
    pub fn path(&self) -> &'a Path {
        let codes = self.layer.parts.first().and_then(|name| self.checkpoint.get(name));
        codes.map_or(Path::new(""), |tensor| self.checkpoint.path(tensor))
    }

    /// Checks stored values that are used as indices (`g_idx`); call before decoding rows.
    pub fn check(&self) -> Result<()> {
        let damaged = |problem| Error::invalid(self.path(), problem, "the file is damaged: download it again");
        self.layer.decoder.check(self.checkpoint).map_err(damaged)
    }

    /// Dequantizes a row to f32. Rows of stacked matrices are numbered consecutively.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        self.layer.decoder.decode_row(self.checkpoint, row, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(part: Value) -> Result<Option<Method>> {
        Method::read(&Config::new(json!({ "quantization_config": part }), Path::new("config.json")).expect("a config"))
    }

    #[test]
    fn known_methods_are_read_and_unknown_ones_are_named_in_the_error() {
        assert_eq!(Method::read(&Config::new(json!({}), Path::new("c")).expect("a config")).expect("read"), None);
        assert_eq!(read(json!({"load_in_4bit": true})).expect("read"), Some(Method::BitsAndBytes));
        assert_eq!(read(json!({"quant_method": "mxfp4"})).expect("read"), Some(Method::Mxfp4));
        for method in
            ["hqq", "aqlm", "quip", "eetq", "vptq", "bitnet", "torchao", "fbgemm_fp8", "quark", "higgs", "spqr"]
        {
            let error = read(json!({"quant_method": method})).expect_err(method);
            assert!(error.to_string().contains(&format!("`{method}`")), "{error}");
            assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("unquantized")), "{error}");
        }
        assert!(read(json!({"bits": 4})).expect_err("no method").to_string().contains("quant_method"));
    }
}
