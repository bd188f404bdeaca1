//! AWQ in its `gemm` layout: 4-bit codes packed along the outputs, eight to a word in an order of their own.
//!
//! | tensor | shape | holds |
//! |---|---|---|
//! | `qweight` | `[inputs, outputs / 8]` | codes |
//! | `qzeros` | `[groups, outputs / 8]` | zero points in the same order |
//! | `scales` | `[groups, outputs]` | |
//!
//! A weight is `scale · (code − zero)`.

use super::keep::BLOCK;
use super::parts::{Fault, Floats, bases, matrix, need, shaped, stored_as, times, word};
use super::{Entry, Found, Layer, unknown};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use crate::config::Config;
use crate::error::Result;
use pellucid_kernels::encoding::Encoding;

/// Where each of eight outputs lies in a word: a word holds outputs 0, 2, 4, 6, 1, 3, 5, 7 from its lowest bits up.
const NIBBLE: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// What the configuration says for all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Inputs of a group; `None` where all are one.
    group: Option<usize>,
}

impl Settings {
    /// Reads `quantization_config`.
    pub(super) fn read(part: &Config) -> Result<Settings> {
        for key in ["version", "format"] {
            let layout = part.text(key).unwrap_or("gemm");
            if !layout.eq_ignore_ascii_case("gemm") {
                return Err(unknown(&format!("awq in the layout {layout}")));
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
        Ok(Settings { group })
    }
}

/// Finds the layers.
pub(super) fn find(checkpoint: &Checkpoint, settings: &Settings, found: &mut Found) {
    for base in bases(checkpoint, ".qweight") {
        found.add(format!("{base}.weight"), entry(checkpoint, settings, base));
    }
}

fn entry(checkpoint: &Checkpoint, settings: &Settings, base: &str) -> std::result::Result<Entry, Fault> {
    let codes = need(checkpoint, &format!("{base}.qweight"), base)?;
    let scales = need(checkpoint, &format!("{base}.scales"), &codes.name)?;
    let zeros = need(checkpoint, &format!("{base}.qzeros"), &codes.name)?;
    stored_as(&codes, &[StoredType::I32])?;
    stored_as(&zeros, &[StoredType::I32])?;
    let (inputs, words) = matrix(&codes)?;
    let outputs = times(&codes, words, 8)?;
    let group = settings.group.unwrap_or(inputs);
    let groups = inputs.div_ceil(group);
    shaped(&scales, &[groups, outputs])?;
    shaped(&zeros, &[groups, words])?;
    Ok(Entry {
        shape: vec![outputs, inputs],
        exact: Encoding::F32,
        kept: if group.is_multiple_of(BLOCK) { Encoding::Q8_0 } else { Encoding::F32 },
        parts: [&codes, &scales, &zeros].map(|tensor| tensor.name.clone()).to_vec(),
        layer: Box::new(Awq { codes, scales: Floats::plain(scales)?, zeros, words, group }),
    })
}

struct Awq {
    codes: Tensor,
    scales: Floats,
    zeros: Tensor,
    /// Words of one input.
    words: usize,
    group: usize,
}

impl Awq {
    /// The code of an output in a line of words: an input's, or a group's zero points.
    fn code(&self, bytes: &[u8], line: usize, output: usize) -> u32 {
        word(bytes, line * self.words + output / 8) >> (NIBBLE[output % 8] * 4) & 15
    }

    fn scale(&self, checkpoint: &Checkpoint, group: usize, output: usize) -> f32 {
        self.scales.of(checkpoint).at(group * self.words * 8 + output)
    }
}

impl Layer for Awq {
    fn row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
        let (codes, zeros) = (checkpoint.bytes(&self.codes), checkpoint.bytes(&self.zeros));
        for (group, part) in out.chunks_mut(self.group).enumerate() {
            let (scale, zero) = (self.scale(checkpoint, group, row), self.code(zeros, group, row) as f32);
            for (place, x) in part.iter_mut().enumerate() {
                *x = scale * (self.code(codes, group * self.group + place, row) as f32 - zero);
            }
        }
    }

    fn whole_numbers(&self, checkpoint: &Checkpoint, row: usize, numbers: &mut [i16], scales: &mut [f32]) -> bool {
        let (codes, zeros) = (checkpoint.bytes(&self.codes), checkpoint.bytes(&self.zeros));
        for (block, (numbers, kept)) in numbers.as_chunks_mut::<BLOCK>().0.iter_mut().zip(scales).enumerate() {
            let group = block * BLOCK / self.group;
            let zero = self.code(zeros, group, row) as i16;
            *kept = self.scale(checkpoint, group, row);
            for (place, number) in numbers.iter_mut().enumerate() {
                *number = self.code(codes, block * BLOCK + place, row) as i16 - zero;
            }
        }
        // Blocks that reach into the next group have two scales.
        self.group.is_multiple_of(BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Method;
    use super::super::testing::{self, Stored};
    use super::*;

    #[test]
    fn nibbles_stand_in_their_order_and_groups_at_their_place() {
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
        let made = testing::open(&tensors, &Method::Awq(Settings { group: Some(2) })).expect("a layer");
        for output in 0..8usize {
            let code = |input: usize| ((output * 2 + input) % 16) as f32;
            let zero = output as f32;
            let expected = [code(0) - zero, code(1) - zero, 2.0 * (code(2) - 15.0), 2.0 * (code(3) - 15.0)];
            assert_eq!(testing::row(&made, "m.weight", output), expected, "output {output}");
        }
        let fault = testing::open(&tensors[..2], &Method::Awq(Settings { group: Some(2) })).map(|_| ());
        assert!(fault.expect_err("no scales").to_string().contains("tensor m.scales is missing"));
    }

    #[test]
    fn other_layouts_are_named() {
        let read =
            |json: serde_json::Value| Settings::read(&Config::new(json, std::path::Path::new("c")).expect("a config"));
        assert_eq!(read(serde_json::json!({"version": "GEMM", "group_size": -1})).expect("read").group, None);
        for (key, value) in [("version", "gemv"), ("format", "gemv_fast"), ("version", "marlin")] {
            let error = read(serde_json::json!({ key: value })).expect_err(value);
            assert!(error.to_string().contains(value), "{error}");
        }
        assert!(read(serde_json::json!({"zero_point": false})).is_err());
    }
}
