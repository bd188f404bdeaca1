//! GPTQ: whole numbers packed along the inputs, with a scale and a zero point for each group of inputs of each output.
//!
//! | tensor | shape | holds |
//! |---|---|---|
//! | `qweight` | `[inputs · bits / 32, outputs]` | codes, input after input from the lowest bit of a column of words |
//! | `scales` | `[groups, outputs]` | |
//! | `qzeros` | `[groups, outputs · bits / 32]` | zero points, packed along the outputs; the first format stores one less |
//! | `g_idx` | `[inputs]` | the group of each input; where absent, inputs belong to groups in their order |
//!
//! A weight is `scale · (code − zero)`.

use super::keep::BLOCK;
use super::parts::{Fault, Floats, bases, integers, matrix, need, shaped, stored_as, times, word};
use super::{Entry, Found, Layer, unknown};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use crate::config::Config;
use crate::error::Result;
use pellucid_kernels::encoding::Encoding;

/// What the configuration says for all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bits of a code; `None` where they differ by layer and the shapes tell.
    bits: Option<u32>,
    /// Inputs of a group; `None` where all are one, or sizes differ by layer.
    group: Option<usize>,
    /// What is added to a stored zero point.
    above_stored: u32,
    /// How layers will be kept, judging by the switches.
    kept: Encoding,
}

impl Settings {
    /// Reads `quantization_config`.
    pub(super) fn read(part: &Config) -> Result<Settings> {
        let above_stored = match part.text("checkpoint_format").unwrap_or("gptq") {
            "gptq" => 1,
            "gptq_v2" => 0,
            other => return Err(unknown(&format!("gptq in the format {other}"))),
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
        let kept = match (part.flag_or("desc_act", false)?, part.flag_or("sym", false)?, bits) {
            (true, ..) | (_, false, 8) => Encoding::F32,
            (_, true, 8) => Encoding::Q8_0,
            (_, true, _) => Encoding::Q4_0,
            _ => Encoding::Q8_0,
        };
        Ok(Settings { bits: (!by_layer).then_some(bits), group: group.filter(|_| !by_layer), above_stored, kept })
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
    let order = checkpoint.get(&format!("{base}.g_idx")).cloned();
    stored_as(&codes, &[StoredType::I32])?;
    stored_as(&zeros, &[StoredType::I32])?;
    let (words, outputs) = matrix(&codes)?;
    let (groups, _) = matrix(&scales)?;
    shaped(&scales, &[groups, outputs])?;
    let zero_words = matrix(&zeros)?.1;
    let bits = match settings.bits {
        Some(bits) => bits as usize,
        None => times(&zeros, zero_words, 32)? / outputs,
    };
    if ![2, 3, 4, 8].contains(&bits) {
        return Err(format!("tensor {} is {:?}, which makes codes of {bits} bits", zeros.name, zeros.shape));
    }
    let inputs = times(&codes, words, 32)? / bits;
    if !words.is_multiple_of(if bits == 3 { 3 } else { 1 }) {
        return Err(format!(
            "tensor {} is {:?}, where 3-bit codes fill three words at a time",
            codes.name, codes.shape
        ));
    }
    shaped(&zeros, &[groups, times(&zeros, outputs, bits)?.div_ceil(32)])?;
    let group = settings.group.unwrap_or_else(|| inputs.div_ceil(groups));
    shaped(&scales, &[inputs.div_ceil(group), outputs])?;
    if let Some(order) = &order {
        stored_as(order, &[StoredType::I32])?;
        shaped(order, &[inputs])?;
    }
    let parts = [Some(&codes), Some(&scales), Some(&zeros), order.as_ref()];
    Ok(Entry {
        shape: vec![outputs, inputs],
        exact: Encoding::F32,
        kept: if inputs.is_multiple_of(BLOCK) { settings.kept } else { Encoding::F32 },
        parts: parts.into_iter().flatten().map(|tensor| tensor.name.clone()).collect(),
        layer: Box::new(Gptq {
            codes,
            scales: Floats::plain(scales)?,
            zeros,
            order,
            bits,
            outputs,
            groups,
            group,
            above_stored: settings.above_stored,
        }),
    })
}

struct Gptq {
    codes: Tensor,
    scales: Floats,
    zeros: Tensor,
    order: Option<Tensor>,
    bits: usize,
    outputs: usize,
    groups: usize,
    group: usize,
    above_stored: u32,
}

impl Gptq {
    /// Code number `place` of a line of words, `word` giving those.
    fn code(&self, place: usize, word: impl Fn(usize) -> u32) -> u32 {
        let (bit, mask) = (place * self.bits, (1u32 << self.bits) - 1);
        let (at, shift) = (bit / 32, bit % 32);
        let low = word(at) >> shift;
        // Of the sizes only 3 bits cross from one word into the next.
        let high = if shift + self.bits > 32 { word(at + 1) << (32 - shift) } else { 0 };
        (low | high) & mask
    }
}

impl Layer for Gptq {
    fn check(&self, checkpoint: &Checkpoint) -> std::result::Result<(), Fault> {
        let Some(order) = &self.order else { return Ok(()) };
        let bad = |group: &&i64| usize::try_from(**group).map_or(true, |group| group >= self.groups);
        match integers(checkpoint, order)?.iter().find(bad) {
            None => Ok(()),
            Some(group) => Err(format!("tensor {} names group {group} of {}", order.name, self.groups)),
        }
    }

    fn row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
        let line = self.line(checkpoint, row);
        for (input, x) in out.iter_mut().enumerate() {
            let (scale, zero) = line.groups[line.group(input)];
            *x = scale * (line.code(input) as f32 - zero as f32);
        }
    }

    fn whole_numbers(&self, checkpoint: &Checkpoint, row: usize, numbers: &mut [i16], scales: &mut [f32]) -> bool {
        let line = self.line(checkpoint, row);
        for (block, (numbers, kept)) in numbers.as_chunks_mut::<BLOCK>().0.iter_mut().zip(scales).enumerate() {
            let group = line.group(block * BLOCK);
            let (scale, zero) = line.groups[group];
            *kept = scale;
            for (place, number) in numbers.iter_mut().enumerate() {
                let input = block * BLOCK + place;
                if line.group(input) != group {
                    return false;
                }
                *number = line.code(input) as i16 - zero as i16;
            }
        }
        true
    }
}

/// What is needed to read one output's codes.
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
            // The sum wraps within the bits: zero is stored as all ones.
            let zero = (stored + self.above_stored) & ((1 << self.bits) - 1);
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
    use super::super::{Method, Quantised};
    use super::*;

    fn settings(bits: u32, group: Option<usize>, above_stored: u32) -> Method {
        Method::Gptq(Settings { bits: Some(bits), group, above_stored, kept: Encoding::F32 })
    }

    /// Dense bits, lowest first.
    fn pack(codes: &[u32], bits: usize) -> Vec<u32> {
        let mut words = vec![0u32; (codes.len() * bits).div_ceil(32)];
        for (place, code) in codes.iter().enumerate() {
            for bit in (0..bits).filter(|bit| code >> bit & 1 == 1) {
                words[(place * bits + bit) / 32] |= 1 << ((place * bits + bit) % 32);
            }
        }
        words
    }

    /// One output of 32 inputs in two groups, beside zero points for as many outputs as fill the words.
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
        let made = testing::open(&tensors, &settings(bits as u32, Some(16), above)).expect("a layer");
        testing::row(&made, "m.weight", 3)
    }

    #[test]
    fn every_code_stands_in_its_place() {
        for bits in [2, 3, 4, 8] {
            let row = layer(bits, 0, None);
            let expected = |i: usize| ((i % (1 << bits)) as f32 - 3.0) * if i < 16 { 1.0 } else { 0.5 };
            assert_eq!(row, (0..32).map(expected).collect::<Vec<_>>(), "{bits} bits");
        }
    }

    #[test]
    fn the_first_format_stores_one_less_and_wraps() {
        assert_eq!(layer(4, 1, None)[5], 5.0 - 4.0);
        // Stored 3 of 2 bits means 0.
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
        let made = testing::open(&tensors, &settings(4, Some(16), 1)).expect("shapes are right");
        let error = made.made("m.weight").expect("made").check().expect_err("groups 0 and 1");
        assert!(error.to_string().contains("m.g_idx names group 2 of 2"), "{error}");
    }

    #[test]
    fn what_is_missing_or_misshaped_is_named() {
        let whole = || {
            vec![
                Stored::words("m.qweight", &[4, 8], &[0; 32]),
                Stored::words("m.qzeros", &[2, 1], &[0; 2]),
                Stored::floats("m.scales", &[2, 8], &[1.0; 16]),
            ]
        };
        let fault = |tensors: &[Stored]| {
            testing::open(tensors, &settings(4, Some(16), 1)).map(|_: Quantised| ()).expect_err("a fault").to_string()
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
