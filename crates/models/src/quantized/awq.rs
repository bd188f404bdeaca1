//! AWQ in the `gemm` layout: 4-bit codes packed along the output dimension, eight per word,
//! interleaved.
//!
//! | tensor | shape | holds |
//! |---|---|---|
//! | `qweight` | `[inputs, outputs / 8]` | codes |
//! | `qzeros` | `[groups, outputs / 8]` | zero points, packed the same way |
//! | `scales` | `[groups, outputs]` | |
//!
//! A weight is `scale · (code − zero)`.

use super::blocks::BLOCK_LEN;
use super::parts::{
    FloatTensor, LayerFault, bases, check_dtype, check_shape, checked_product, matrix_dims, require, word,
};
use super::{LayerScan, QuantizedLayer, RowDecoder, unknown};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use crate::config::Config;
use crate::error::Result;
use pellucid_kernels::encoding::Encoding;

/// Nibble index of each of eight outputs: from the lowest bits up, a word holds 0, 2, 4, 6, 1, 3,
/// 5, 7.
const NIBBLE: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The options in `quantization_config`, which apply to all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwqSettings {
    /// Inputs per group; `None` if all inputs form one group.
    group: Option<usize>,
}

impl AwqSettings {
    /// Reads `quantization_config`.
    pub(super) fn read(part: &Config) -> Result<AwqSettings> {
        for key in ["version", "format"] {
            let layout = part.text(key).unwrap_or("gemm");
            if !layout.eq_ignore_ascii_case("gemm") {
                return Err(unknown(&format!("awq in the {layout} layout")));
            }
        }
        let bits = part.size_maybe("bits")?.or(part.size_maybe("w_bit")?).unwrap_or(4);
        if bits != 4 {
            return Err(unknown(&format!("awq with {bits} bits")));
        }
        if !part.flag_or("zero_point", true)? {
            return Err(unknown("awq without zero points"));
        }
        let key = if part.get("group_size").is_some() { "group_size" } else { "q_group_size" };
        let group = match part.get(key) {
            Some(size) if size.as_i64() == Some(-1) => None,
            _ => Some(part.size_or(key, 128)?.max(1)),
        };
        Ok(AwqSettings { group })
    }
}

/// Finds the AWQ layers of a checkpoint.
pub(super) fn find(checkpoint: &Checkpoint, settings: &AwqSettings, scan: &mut LayerScan) {
    for base in bases(checkpoint, ".qweight") {
        scan.add(format!("{base}.weight"), layer(checkpoint, settings, base));
    }
}

fn layer(
    checkpoint: &Checkpoint,
    settings: &AwqSettings,
    base: &str,
) -> std::result::Result<QuantizedLayer, LayerFault> {
    let codes = require(checkpoint, &format!("{base}.qweight"), base)?;
    let scales = require(checkpoint, &format!("{base}.scales"), &codes.name)?;
    let zeros = require(checkpoint, &format!("{base}.qzeros"), &codes.name)?;
    check_dtype(&codes, &[StoredType::I32])?;
    check_dtype(&zeros, &[StoredType::I32])?;
    let (inputs, words) = matrix_dims(&codes)?;
    let outputs = checked_product(&codes, words, 8)?;
    let group = settings.group.unwrap_or(inputs);
    let groups = inputs.div_ceil(group);
    check_shape(&scales, &[groups, outputs])?;
    check_shape(&zeros, &[groups, words])?;
    Ok(QuantizedLayer {
        shape: vec![outputs, inputs],
        exact_encoding: Encoding::F32,
        memory_encoding: if group.is_multiple_of(BLOCK_LEN) { Encoding::Q8_0 } else { Encoding::F32 },
        parts: [&codes, &scales, &zeros].map(|tensor| tensor.name.clone()).to_vec(),
        decoder: Box::new(Awq { codes, scales: FloatTensor::plain(scales)?, zeros, words, group }),
    })
}

struct Awq {
    codes: Tensor,
    scales: FloatTensor,
    zeros: Tensor,
    /// Words per input: outputs / 8.
    words: usize,
    group: usize,
}

impl Awq {
    /// The code of an output in row `line` of `qweight` (an input) or of `qzeros` (a group).
    fn code(&self, bytes: &[u8], line: usize, output: usize) -> u32 {
        word(bytes, line * self.words + output / 8) >> (NIBBLE[output % 8] * 4) & 15
    }

    fn scale(&self, checkpoint: &Checkpoint, group: usize, output: usize) -> f32 {
        self.scales.of(checkpoint).at(group * self.words * 8 + output)
    }
}

impl RowDecoder for Awq {
    fn decode_row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
        let (codes, zeros) = (checkpoint.bytes(&self.codes), checkpoint.bytes(&self.zeros));
        for (group, inputs) in out.chunks_mut(self.group).enumerate() {
            let (scale, zero) = (self.scale(checkpoint, group, row), self.code(zeros, group, row) as f32);
            for (index, x) in inputs.iter_mut().enumerate() {
                *x = scale * (self.code(codes, group * self.group + index, row) as f32 - zero);
            }
        }
    }

    fn integer_row(&self, checkpoint: &Checkpoint, row: usize, integers: &mut [i16], scales: &mut [f32]) -> bool {
        let (codes, zeros) = (checkpoint.bytes(&self.codes), checkpoint.bytes(&self.zeros));
        for (block, (integers, block_scale)) in
            integers.as_chunks_mut::<BLOCK_LEN>().0.iter_mut().zip(scales).enumerate()
        {
            let group = block * BLOCK_LEN / self.group;
            let zero = self.code(zeros, group, row) as i16;
            *block_scale = self.scale(checkpoint, group, row);
            for (index, integer) in integers.iter_mut().enumerate() {
                *integer = self.code(codes, block * BLOCK_LEN + index, row) as i16 - zero;
            }
        }
        // A block that spans two groups has two scales.
        self.group.is_multiple_of(BLOCK_LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Method;
    use super::super::testing::{self, Stored};
    use super::*;

    #[test]
    fn nibbles_are_deinterleaved_and_each_group_has_its_scale_and_zero() {
        // Outputs 0 to 7 of input i have the codes of the order below plus i.
        let packed = |codes: [u32; 8]| [0, 2, 4, 6, 1, 3, 5, 7].iter().rev().fold(0, |word, o| word << 4 | codes[*o]);
        let codes: Vec<u32> = (0..4).map(|i| packed(std::array::from_fn(|o| (o as u32 * 2 + i) % 16))).collect();
        let zeros = [packed([0, 1, 2, 3, 4, 5, 6, 7]), packed([15; 8])];
        let scales: Vec<f32> = (0..16).map(|i| if i < 8 { 1.0 } else { 2.0 }).collect();
        let tensors = [
            Stored::words("m.qweight", &[4, 1], &codes),
            Stored::words("m.qzeros", &[2, 1], &zeros),
            Stored::floats("m.scales", &[2, 8], &scales),
        ];
        let checkpoint = testing::open(&tensors, &Method::Awq(AwqSettings { group: Some(2) })).expect("a layer");
        for output in 0..8usize {
            let code = |input: usize| ((output * 2 + input) % 16) as f32;
            let zero = output as f32;
            let expected = [code(0) - zero, code(1) - zero, 2.0 * (code(2) - 15.0), 2.0 * (code(3) - 15.0)];
            assert_eq!(testing::row(&checkpoint, "m.weight", output), expected, "output {output}");
        }
        let fault = testing::open(&tensors[..2], &Method::Awq(AwqSettings { group: Some(2) })).map(|_| ());
        assert!(fault.expect_err("no scales").to_string().contains("tensor m.scales is missing"));
    }

    #[test]
    fn unsupported_layouts_are_named_in_the_error() {
        let read = |json: serde_json::Value| {
            AwqSettings::read(&Config::new(json, std::path::Path::new("c")).expect("a config"))
        };
        assert_eq!(read(serde_json::json!({"version": "GEMM", "group_size": -1})).expect("read").group, None);
        for (key, value) in [("version", "gemv"), ("format", "gemv_fast"), ("version", "marlin")] {
            let error = read(serde_json::json!({ key: value })).expect_err(value);
            assert!(error.to_string().contains(value), "{error}");
        }
        assert!(read(serde_json::json!({"zero_point": false})).is_err());
    }
}
