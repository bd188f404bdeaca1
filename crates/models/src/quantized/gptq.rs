//! GPTQ: integer codes packed along the input dimension, with a scale and a zero point per group of
//! inputs and output.
//!
//! | tensor | shape | holds |
//! |---|---|---|
//! | `qweight` | `[inputs · bits / 32, outputs]` | codes; in each column, one input after the other from the lowest bit up |
//! | `scales` | `[groups, outputs]` | |
//! | `qzeros` | `[groups, outputs · bits / 32]` | zero points, packed along the outputs; format v1 stores them minus one |
//! | `g_idx` | `[inputs]` | the group of each input; without it, groups are contiguous |
//!
//! A weight is `scale · (code − zero)`.

use super::blocks::BLOCK_LEN;
use super::parts::{
    FloatTensor, LayerFault, bases, check_dtype, check_shape, checked_product, matrix_dims, read_integers, require,
    word,
};
use super::{LayerScan, QuantizedLayer, RowDecoder, unknown};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use crate::config::Config;
use crate::error::Result;
use pellucid_kernels::encoding::Encoding;

/// The options in `quantization_config`, which apply to all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GptqSettings {
    /// Bits per code; `None` if they differ by layer and follow from the shapes.
    bits: Option<u32>,
    /// Inputs per group; `None` if all inputs form one group, or sizes differ by layer.
    group: Option<usize>,
    /// Added to a stored zero point: 1 for format v1, 0 for v2.
    zero_offset: u32,
    /// Expected encoding of layers in memory, judging by these options.
    memory_encoding: Encoding,
}

impl GptqSettings {
    /// Reads `quantization_config`.
    pub(super) fn read(part: &Config) -> Result<GptqSettings> {
        let zero_offset = match part.text("checkpoint_format").unwrap_or("gptq") {
            "gptq" => 1,
            "gptq_v2" => 0,
            other => return Err(unknown(&format!("gptq in the {other} format"))),
        };
        let by_layer = part.get("dynamic").and_then(|value| value.as_object()).is_some_and(|rules| !rules.is_empty());
        let bits = part.size("bits")? as u32;
        if ![2, 3, 4, 8].contains(&bits) {
            return Err(unknown(&format!("gptq with {bits} bits")));
        }
        let group = match part.get("group_size") {
            Some(size) if size.as_i64() == Some(-1) => None,
            _ => part.size_maybe("group_size")?.filter(|size| *size > 0),
        };
        let memory_encoding = match (part.flag_or("desc_act", false)?, part.flag_or("sym", false)?, bits) {
            (true, ..) | (_, false, 8) => Encoding::F32,
            (_, true, 8) => Encoding::Q8_0,
            (_, true, _) => Encoding::Q4_0,
            _ => Encoding::Q8_0,
        };
        Ok(GptqSettings {
            bits: (!by_layer).then_some(bits),
            group: group.filter(|_| !by_layer),
            zero_offset,
            memory_encoding,
        })
    }
}

/// Finds the GPTQ layers of a checkpoint.
pub(super) fn find(checkpoint: &Checkpoint, settings: &GptqSettings, scan: &mut LayerScan) {
    for base in bases(checkpoint, ".qweight") {
        scan.add(format!("{base}.weight"), layer(checkpoint, settings, base));
    }
}

fn layer(
    checkpoint: &Checkpoint,
    settings: &GptqSettings,
    base: &str,
) -> std::result::Result<QuantizedLayer, LayerFault> {
    let codes = require(checkpoint, &format!("{base}.qweight"), base)?;
    let scales = require(checkpoint, &format!("{base}.scales"), &codes.name)?;
    let zeros = require(checkpoint, &format!("{base}.qzeros"), &codes.name)?;
    let order = checkpoint.get(&format!("{base}.g_idx")).cloned();
    check_dtype(&codes, &[StoredType::I32])?;
    check_dtype(&zeros, &[StoredType::I32])?;
    let (words, outputs) = matrix_dims(&codes)?;
    let (groups, _) = matrix_dims(&scales)?;
    check_shape(&scales, &[groups, outputs])?;
    let zero_words = matrix_dims(&zeros)?.1;
    let bits = match settings.bits {
        Some(bits) => bits as usize,
        None => checked_product(&zeros, zero_words, 32)? / outputs,
    };
    if ![2, 3, 4, 8].contains(&bits) {
        return Err(format!("tensor {} is {:?}, which implies codes of {bits} bits", zeros.name, zeros.shape));
    }
    let inputs = checked_product(&codes, words, 32)? / bits;
    if !words.is_multiple_of(if bits == 3 { 3 } else { 1 }) {
        return Err(format!(
            "tensor {} is {:?}, where 3-bit codes fill three words at a time",
            codes.name, codes.shape
        ));
    }
    check_shape(&zeros, &[groups, checked_product(&zeros, outputs, bits)?.div_ceil(32)])?;
    let group = settings.group.unwrap_or_else(|| inputs.div_ceil(groups));
    check_shape(&scales, &[inputs.div_ceil(group), outputs])?;
    if let Some(order) = &order {
        check_dtype(order, &[StoredType::I32])?;
        check_shape(order, &[inputs])?;
    }
    let parts = [Some(&codes), Some(&scales), Some(&zeros), order.as_ref()];
    Ok(QuantizedLayer {
        shape: vec![outputs, inputs],
        exact_encoding: Encoding::F32,
        memory_encoding: if inputs.is_multiple_of(BLOCK_LEN) { settings.memory_encoding } else { Encoding::F32 },
        parts: parts.into_iter().flatten().map(|tensor| tensor.name.clone()).collect(),
        decoder: Box::new(Gptq {
            codes,
            scales: FloatTensor::plain(scales)?,
            zeros,
            order,
            bits,
            outputs,
            groups,
            group,
            zero_offset: settings.zero_offset,
        }),
    })
}

struct Gptq {
    codes: Tensor,
    scales: FloatTensor,
    zeros: Tensor,
    order: Option<Tensor>,
    bits: usize,
    outputs: usize,
    groups: usize,
    group: usize,
    zero_offset: u32,
}

impl Gptq {
    /// The `index`-th code of a sequence of 32-bit words, which `word` reads.
    fn code(&self, index: usize, word: impl Fn(usize) -> u32) -> u32 {
        let (bit, mask) = (index * self.bits, (1u32 << self.bits) - 1);
        let (at, shift) = (bit / 32, bit % 32);
        let low = word(at) >> shift;
        // Only 3-bit codes can straddle two words.
        let high = if shift + self.bits > 32 { word(at + 1) << (32 - shift) } else { 0 };
        (low | high) & mask
    }
}

impl RowDecoder for Gptq {
    fn check(&self, checkpoint: &Checkpoint) -> std::result::Result<(), LayerFault> {
        let Some(order) = &self.order else { return Ok(()) };
        let bad = |group: &&i64| usize::try_from(**group).map_or(true, |group| group >= self.groups);
        match read_integers(checkpoint, order)?.iter().find(bad) {
            None => Ok(()),
            Some(group) => {
                Err(format!("tensor {} contains group {group}, and there are only {}", order.name, self.groups))
            }
        }
    }

    fn decode_row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
        let line = self.line(checkpoint, row);
        for (input, x) in out.iter_mut().enumerate() {
            let (scale, zero) = line.groups[line.group(input)];
            *x = scale * (line.code(input) as f32 - zero as f32);
        }
    }

    fn integer_row(&self, checkpoint: &Checkpoint, row: usize, integers: &mut [i16], scales: &mut [f32]) -> bool {
        let line = self.line(checkpoint, row);
        for (block, (integers, block_scale)) in
            integers.as_chunks_mut::<BLOCK_LEN>().0.iter_mut().zip(scales).enumerate()
        {
            let group = line.group(block * BLOCK_LEN);
            let (scale, zero) = line.groups[group];
            *block_scale = scale;
            for (index, integer) in integers.iter_mut().enumerate() {
                let input = block * BLOCK_LEN + index;
                if line.group(input) != group {
                    return false;
                }
                *integer = line.code(input) as i16 - zero as i16;
            }
        }
        true
    }
}

/// The stored data of one output (one row of the weight).
struct Line<'a> {
    layer: &'a Gptq,
    row: usize,
    codes: &'a [u8],
    order: Option<&'a [u8]>,
    /// Scale and zero point of each group.
    groups: Vec<(f32, u32)>,
}

impl Gptq {
    fn line<'a>(&'a self, checkpoint: &'a Checkpoint, row: usize) -> Line<'a> {
        let (scales, zeros) = (self.scales.of(checkpoint), checkpoint.bytes(&self.zeros));
        let zero_words = zeros.len() / 4 / self.groups;
        let group = |group: usize| {
            let stored = self.code(row, |at| word(zeros, group * zero_words + at));
            // The sum wraps at 2^bits: in format v1, zero is stored as all ones.
            let zero = (stored + self.zero_offset) & ((1 << self.bits) - 1);
            (scales.at(group * self.outputs + row), zero)
        };
        Line {
            layer: self,
            row,
            codes: checkpoint.bytes(&self.codes),
            order: self.order.as_ref().map(|order| checkpoint.bytes(order)),
            groups: (0..self.groups).map(group).collect(),
        }
    }
}

impl Line<'_> {
    fn group(&self, input: usize) -> usize {
        self.order.map_or(input / self.layer.group, |order| word(order, input) as usize)
    }

    fn code(&self, input: usize) -> u32 {
        self.layer.code(input, |at| word(self.codes, at * self.layer.outputs + self.row))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Stored};
    use super::super::{Method, QuantizedCheckpoint};
    use super::*;

    fn settings(bits: u32, group: Option<usize>, zero_offset: u32) -> Method {
        Method::Gptq(GptqSettings { bits: Some(bits), group, zero_offset, memory_encoding: Encoding::F32 })
    }

    /// Packs codes densely, lowest bit first.
    fn pack(codes: &[u32], bits: usize) -> Vec<u32> {
        let mut words = vec![0u32; (codes.len() * bits).div_ceil(32)];
        for (index, code) in codes.iter().enumerate() {
            for bit in (0..bits).filter(|bit| code >> bit & 1 == 1) {
                words[(index * bits + bit) / 32] |= 1 << ((index * bits + bit) % 32);
            }
        }
        words
    }

    /// Output 3 of a layer with 32 outputs and 32 inputs in two groups.
    fn layer(bits: usize, above: u32, order: Option<&[u32]>) -> Vec<f32> {
        let outputs = 32;
        let codes: Vec<u32> = (0..32).map(|i| i % (1 << bits)).collect();
        let words = pack(&codes, bits);
        let qweight: Vec<u32> = words.iter().flat_map(|word| vec![*word; outputs]).collect();
        let zero: Vec<u32> = (0..outputs as u32).map(|o| o % (1 << bits)).collect();
        let qzeros: Vec<u32> = [pack(&zero, bits), pack(&zero, bits)].concat();
        let scales: Vec<f32> = [vec![1.0; outputs], vec![0.5; outputs]].concat();
        let mut tensors = vec![
            Stored::words("m.qweight", &[words.len(), outputs], &qweight),
            Stored::words("m.qzeros", &[2, outputs * bits / 32], &qzeros),
            Stored::floats("m.scales", &[2, outputs], &scales),
        ];
        if let Some(order) = order {
            tensors.push(Stored::words("m.g_idx", &[32], order));
        }
        let checkpoint = testing::open(&tensors, &settings(bits as u32, Some(16), above)).expect("a layer");
        testing::row(&checkpoint, "m.weight", 3)
    }

    #[test]
    fn every_code_is_unpacked_at_each_bit_width() {
        for bits in [2, 3, 4, 8] {
            let row = layer(bits, 0, None);
            let expected = |i: usize| ((i % (1 << bits)) as f32 - 3.0) * if i < 16 { 1.0 } else { 0.5 };
            assert_eq!(row, (0..32).map(expected).collect::<Vec<_>>(), "{bits} bits");
        }
    }

    #[test]
    fn format_v1_stores_zero_points_minus_one_and_wraps() {
        assert_eq!(layer(4, 1, None)[5], 5.0 - 4.0);
        // With 2 bits, a stored 3 means 0.
        assert_eq!(layer(2, 1, None)[2], 2.0);
    }

    #[test]
    fn inputs_may_belong_to_any_group() {
        let order: Vec<u32> = (0..32).map(|i| 1 - i % 2).collect();
        let row = layer(4, 0, Some(&order));
        assert_eq!(row[..4], [-1.5, -2.0, -0.5, 0.0]);
        let wild: Vec<u32> = vec![2; 32];
        let tensors = [
            Stored::words("m.qweight", &[4, 8], &[0; 32]),
            Stored::words("m.qzeros", &[2, 1], &[0; 2]),
            Stored::floats("m.scales", &[2, 8], &[1.0; 16]),
            Stored::words("m.g_idx", &[32], &wild),
        ];
        let checkpoint = testing::open(&tensors, &settings(4, Some(16), 1)).expect("the shapes are valid");
        let error = checkpoint.dequantized("m.weight").expect("a quantized layer").check().expect_err("groups 0 and 1");
        assert!(error.to_string().contains("m.g_idx contains group 2, and there are only 2"), "{error}");
    }

    #[test]
    fn missing_and_misshaped_tensors_are_named_in_the_error() {
        let whole = || {
            vec![
                Stored::words("m.qweight", &[4, 8], &[0; 32]),
                Stored::words("m.qzeros", &[2, 1], &[0; 2]),
                Stored::floats("m.scales", &[2, 8], &[1.0; 16]),
            ]
        };
        let fault = |tensors: &[Stored]| {
            testing::open(tensors, &settings(4, Some(16), 1))
                .map(|_: QuantizedCheckpoint| ())
                .expect_err("a fault")
                .to_string()
        };
        assert!(testing::open(&whole(), &settings(4, Some(16), 1)).is_ok());
        assert!(fault(&whole()[..2]).contains("tensor m.scales is missing"));
        let mut other = whole();
        other[1] = Stored::words("m.qzeros", &[1, 2], &[0; 2]);
        assert!(fault(&other).contains("m.qzeros is [1, 2] where [2, 1] is expected"), "{}", fault(&other));
        other = whole();
        other[2] = Stored::floats("m.scales", &[4, 4], &[1.0; 16]);
        assert!(fault(&other).contains("m.scales is [4, 4] where [4, 8] is expected"), "{}", fault(&other));
    }
}
