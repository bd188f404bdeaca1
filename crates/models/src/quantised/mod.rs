//! Checkpoints with quantised weights, made to look like ordinary ones.
//!
//! A quantised linear layer is stored as codes with scales beside them. [`Method::read`] says from `quantization_config` how, or
//! refuses a way that is not known; [`Quantised::new`] finds the layers by their stored parts and checks the shape of each.
//! After that the layer has one tensor `<module>.weight` of f32 rows, which are made when somebody asks: the codes stay in
//! the mapped file, and no second copy of the model ever exists.
//!
//! A module without such parts is an ordinary one, so lists of modules that were left alone need not be read.

mod awq;
mod bitsandbytes;
mod codes;
mod compressed;
mod fp8;
mod gptq;
mod keep;
mod mxfp4;
mod parts;
mod scaled;
#[cfg(test)]
mod testing;

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use pellucid_kernels::encoding::Encoding;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A way of quantising that is read here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// GPTQ: codes packed along the inputs.
    Gptq(gptq::Settings),
    /// AWQ: 4-bit codes packed along the outputs.
    Awq(awq::Settings),
    /// bitsandbytes: nf4 and fp4 blocks, or int8 rows.
    BitsAndBytes,
    /// FP8 with a scale for each tile, row or matrix.
    Fp8(fp8::Settings),
    /// The compressed-tensors formats.
    Compressed(compressed::Settings),
    /// Stacked experts in 4-bit floats with a power of two for 32 values.
    Mxfp4,
}

/// The names under which configurations know the methods that are read, as [`Method::read`] takes them.
pub const METHODS: [&str; 6] = ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors", "mxfp4"];

impl Method {
    /// How a configuration says that its weights are quantised; `None` where they are not.
    ///
    /// # Errors
    /// Where the method, or a switch of it, is not known here: it is named.
    pub fn read(config: &Config) -> Result<Option<Method>> {
        let inside = || config.part("text_config").and_then(|text| text.part("quantization_config"));
        let Some(part) = config.part("quantization_config").or_else(inside) else { return Ok(None) };
        let bits = || {
            part.flag_or("load_in_4bit", false).unwrap_or(false) || part.flag_or("load_in_8bit", false).unwrap_or(false)
        };
        let method = match part.text("quant_method") {
            Some(method) => method.to_lowercase(),
            // Early configurations of bitsandbytes do not name it.
            None if bits() => "bitsandbytes".into(),
            None => return Err(config.bad("quantization_config", "does not name its `quant_method`")),
        };
        match method.as_str() {
            "gptq" => gptq::Settings::read(&part).map(|settings| Some(Method::Gptq(settings))),
            "awq" => awq::Settings::read(&part).map(|settings| Some(Method::Awq(settings))),
            // transformers writes the first; the others are seen in older files.
            "bitsandbytes" | "bitsandbytes_4bit" | "bitsandbytes_8bit" => Ok(Some(Method::BitsAndBytes)),
            "fp8" => fp8::Settings::read(&part).map(|settings| Some(Method::Fp8(settings))),
            "compressed-tensors" | "compressed_tensors" => {
                compressed::Settings::read(&part).map(|settings| Some(Method::Compressed(settings)))
            }
            "mxfp4" => Ok(Some(Method::Mxfp4)),
            _ => Err(unknown(&method)),
        }
    }
}

/// A directory's configuration, with the `quantization_config` that the first GPTQ and AWQ checkpoints keep in a file of its own.
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
        let mut value: Value = serde_json::from_slice(&std::fs::read(dir.join(file)).ok()?).ok()?;
        let part = value.as_object_mut().filter(|part| part.contains_key("bits") || part.contains_key("w_bit"))?;
        part.entry("quant_method").or_insert_with(|| method.into());
        Some(value)
    })
}

/// The refusal of a method or of one of its forms.
fn unknown(what: &str) -> Error {
    Error::unsupported(
        format!("the weights are quantised by `{what}`, which this build does not read"),
        format!("use the model's unquantised weights, a GGUF file, or weights quantised by {}", METHODS.join(", ")),
    )
}

/// The numbers of a quantised layer.
trait Layer: Send + Sync {
    /// Checks what only the stored numbers tell, before any row is made; says what is wrong with which tensor.
    fn check(&self, _checkpoint: &Checkpoint) -> std::result::Result<(), String> {
        Ok(())
    }

    /// Makes a row. The row exists and `out` has its length: the shape has been compared with what the model needs.
    fn row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]);

    /// Writes a row as whole numbers with a scale for each 32 of them, whose products are exactly the row; `false` where it is no such row.
    fn whole_numbers(&self, _checkpoint: &Checkpoint, _row: usize, _numbers: &mut [i16], _scales: &mut [f32]) -> bool {
        false
    }

    /// Writes a row in GGUF's MXFP4 blocks; `false` where it is no such row.
    fn mxfp4(&self, _checkpoint: &Checkpoint, _row: usize, _out: &mut [u8]) -> bool {
        false
    }
}

/// A tensor that is made from others.
struct Entry {
    /// Outputs by inputs, for stacked experts with their number before.
    shape: Vec<usize>,
    /// The narrowest plain format that holds every number exactly.
    exact: Encoding,
    /// How it will be kept in memory, as far as its header and the configuration tell.
    kept: Encoding,
    /// The stored tensors that it is made of; the first holds the codes.
    parts: Vec<String>,
    layer: Box<dyn Layer>,
}

/// What a format finds in a checkpoint.
#[derive(Default)]
struct Found {
    made: HashMap<String, Entry>,
    /// Stored tensors that are neither weights nor parts of one: scales of activations, which are never quantised here.
    unused: Vec<String>,
    faults: Vec<String>,
}

impl Found {
    /// Notes a layer under the name that an ordinary checkpoint has for it, or what is wrong with it.
    fn add(&mut self, name: String, entry: std::result::Result<Entry, String>) {
        match entry {
            Ok(entry) => drop(self.made.insert(name, entry)),
            Err(fault) => self.faults.push(fault),
        }
    }
}

/// A checkpoint whose quantised layers look like ordinary ones.
pub struct Quantised {
    checkpoint: Checkpoint,
    made: HashMap<String, Entry>,
    hidden: HashSet<String>,
}

/// A made tensor: its shape, and its rows on demand.
pub struct Made<'a> {
    checkpoint: &'a Checkpoint,
    entry: &'a Entry,
}

impl Quantised {
    /// Finds the quantised layers of a checkpoint. Reads headers, and of bitsandbytes and compressed-tensors the few bytes that hold a
    /// layer's shape.
    pub fn new(checkpoint: Checkpoint, method: &Method, origin: &Path) -> Result<Quantised> {
        let mut found = Found::default();
        match method {
            Method::Gptq(settings) => gptq::find(&checkpoint, settings, &mut found),
            Method::Awq(settings) => awq::find(&checkpoint, settings, &mut found),
            Method::BitsAndBytes => bitsandbytes::find(&checkpoint, &mut found),
            Method::Fp8(settings) => fp8::find(&checkpoint, settings, &mut found),
            Method::Compressed(settings) => compressed::find(&checkpoint, settings, &mut found),
            Method::Mxfp4 => mxfp4::find(&checkpoint, &mut found),
        }
        found.faults.sort_unstable();
        if let Some(first) = found.faults.first() {
            let more = match found.faults.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            return Err(Error::invalid(
                origin,
                format!("the quantised weights are not whole: {first}{more}"),
                "check that config.json and the weights belong together and that every file was downloaded",
            ));
        }
        let hidden = found.made.values().flat_map(|entry| &entry.parts).chain(&found.unused).cloned().collect();
        Ok(Quantised { checkpoint, made: found.made, hidden })
    }

    /// The stored tensors, as they are.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// A made tensor.
    pub fn made(&self, name: &str) -> Option<Made<'_>> {
        self.made.get(name).map(|entry| Made { checkpoint: &self.checkpoint, entry })
    }

    /// Whether a stored tensor is only part of a made one, and so is not seen by itself.
    pub fn hides(&self, name: &str) -> bool {
        self.hidden.contains(name)
    }

    /// The names of an ordinary checkpoint with this model's weights.
    pub fn names(&self) -> Vec<&str> {
        let plain = self.checkpoint.tensors().map(|tensor| tensor.name.as_str()).filter(|name| !self.hides(name));
        plain.chain(self.made.keys().map(String::as_str)).collect()
    }

    /// Lets the system drop the pages of a made tensor's parts.
    pub fn forget(&self, made: &str) {
        let parts = self.made.get(made).into_iter().flat_map(|entry| &entry.parts);
        parts.filter_map(|part| self.checkpoint.get(part)).for_each(|tensor| self.checkpoint.forget(tensor));
    }
}

impl<'a> Made<'a> {
    /// Its shape.
    pub fn shape(&self) -> &'a [usize] {
        &self.entry.shape
    }

    /// The narrowest plain format that holds its numbers exactly.
    pub fn exact(&self) -> Encoding {
        self.entry.exact
    }

    /// How it will be kept in memory, as far as its header and the configuration tell.
    pub fn kept(&self) -> Encoding {
        self.entry.kept
    }

    /// The file that holds its codes.
    pub fn path(&self) -> &'a Path {
        let codes = self.entry.parts.first().and_then(|name| self.checkpoint.get(name));
        codes.map_or(Path::new(""), |tensor| self.checkpoint.path(tensor))
    }

    /// Checks the stored numbers that say where others are; to be called before any row is made.
    pub fn check(&self) -> Result<()> {
        let damaged = |problem| Error::invalid(self.path(), problem, "the file is damaged: get it anew");
        self.entry.layer.check(self.checkpoint).map_err(damaged)
    }

    /// Makes a row as f32; rows of stacked matrices are counted through.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        self.entry.layer.row(self.checkpoint, row, out);
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
    fn methods_are_read_and_others_named() {
        assert_eq!(Method::read(&Config::new(json!({}), Path::new("c")).expect("a config")).expect("read"), None);
        assert_eq!(read(json!({"load_in_4bit": true})).expect("read"), Some(Method::BitsAndBytes));
        assert_eq!(read(json!({"quant_method": "mxfp4"})).expect("read"), Some(Method::Mxfp4));
        for method in
            ["hqq", "aqlm", "quip", "eetq", "vptq", "bitnet", "torchao", "fbgemm_fp8", "quark", "higgs", "spqr"]
        {
            let error = read(json!({"quant_method": method})).expect_err(method);
            assert!(error.to_string().contains(&format!("`{method}`")), "{error}");
            assert!(error.remedy().is_some_and(|remedy| remedy.contains("unquantised")), "{error}");
        }
        assert!(read(json!({"bits": 4})).expect_err("no method").to_string().contains("quant_method"));
    }
}
