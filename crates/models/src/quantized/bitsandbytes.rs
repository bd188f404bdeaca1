//! bitsandbytes: 4-bit codes in blocks (`nf4`, `fp4`), or int8 rows (LLM.int8).
//!
//! 4 bits: `weight` is a flat list of codes, two per byte, high nibble first. A weight is
//! `quant_map[code] · absmax[block]`. `absmax` may itself be quantized to bytes in the same way
//! (double quantization, `nested_…`). Shape, block sizes and an offset are JSON in the tensor
//! `weight.quant_state.bitsandbytes__nf4`.
//!
//! 8 bits: `weight` is an int8 matrix, and `SCB` holds the largest magnitude of each row, which the
//! code 127 represents.

use super::parts::{FloatTensor, LayerFault, bases, check_dtype, check_shape, matrix_dims, require};
use super::scaled::{CodeFormat, ScaledMatrix};
use super::{LayerScan, QuantizedLayer, RowDecoder};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use pellucid_kernels::encoding::Encoding;
use serde::Deserialize;

/// Suffixes of the tensors that describe a 4-bit layer.
const STATES: [&str; 2] = [".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"];

/// Finds the bitsandbytes layers of a checkpoint.
pub(super) fn find(checkpoint: &Checkpoint, scan: &mut LayerScan) {
    for state in STATES {
        for weight in bases(checkpoint, state) {
            scan.add(weight.to_owned(), four_bits(checkpoint, weight, state));
        }
    }
    for base in bases(checkpoint, ".SCB") {
        scan.add(format!("{base}.weight"), eight_bits(checkpoint, base));
    }
}

fn eight_bits(checkpoint: &Checkpoint, base: &str) -> Result<QuantizedLayer, LayerFault> {
    let scales = require(checkpoint, &format!("{base}.SCB"), base)?;
    let codes = require(checkpoint, &format!("{base}.weight"), &scales.name)?;
    check_dtype(&codes, &[StoredType::I8])?;
    let (rows, cols) = matrix_dims(&codes)?;
    check_shape(&scales, &[rows])?;
    let mut parts = vec![codes.name.clone(), scales.name.clone()];
    if let Some(format) = checkpoint.get(&format!("{base}.weight_format")) {
        // 0 is row-major; other values are GPU-specific layouts.
        if checkpoint.bytes(format).iter().any(|byte| *byte != 0) {
            return Err(format!("tensor {} selects a layout other than row-major", format.name));
        }
        parts.push(format.name.clone());
    }
    Ok(QuantizedLayer {
        shape: vec![rows, cols],
        exact_encoding: Encoding::F32,
        memory_encoding: Encoding::F32,
        parts,
        decoder: Box::new(ScaledMatrix {
            codes,
            kind: CodeFormat::I8,
            scales: FloatTensor::plain(scales)?,
            tile: (1, cols),
            tiles_per_row: 1,
            zeros: None,
            column_tiles: None,
            factor: 1.0 / 127.0,
            divisor: None,
        }),
    })
}

/// The JSON description of a 4-bit layer.
#[derive(Deserialize)]
struct QuantState {
    shape: Vec<usize>,
    blocksize: usize,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

fn four_bits(checkpoint: &Checkpoint, weight: &str, suffix: &str) -> Result<QuantizedLayer, LayerFault> {
    let codes = require(checkpoint, weight, &format!("{weight}{suffix}"))?;
    let state = require(checkpoint, &format!("{weight}{suffix}"), weight)?;
    let absmax = require(checkpoint, &format!("{weight}.absmax"), weight)?;
    let map = require(checkpoint, &format!("{weight}.quant_map"), weight)?;
    let json: QuantState = serde_json::from_slice(checkpoint.bytes(&state))
        .map_err(|error| format!("tensor {} does not describe a layer: {error}", state.name))?;
    let bad = |what: &str| format!("tensor {} has {what}", state.name);
    let [rows, cols] = json.shape[..] else { return Err(bad("a shape that is not a matrix")) };
    let elements = rows.checked_mul(cols).filter(|n| *n > 0).ok_or_else(|| bad("an impossible shape"))?;
    if json.blocksize == 0 || json.nested_blocksize == Some(0) {
        return Err(bad("a block size of zero"));
    }
    // The packed bytes may be stored with any dtype.
    if checkpoint.bytes(&codes).len() != elements.div_ceil(2) {
        return Err(format!(
            "tensor {} has {} bytes where {:?} 4-bit codes take {}",
            codes.name,
            checkpoint.bytes(&codes).len(),
            json.shape,
            elements.div_ceil(2)
        ));
    }
    let blocks = elements.div_ceil(json.blocksize);
    check_shape(&absmax, &[blocks])?;
    check_shape(&map, &[16])?;
    check_dtype(&map, &[StoredType::F32])?;
    let mut parts: Vec<String> = [&codes, &state, &absmax, &map].map(|tensor| tensor.name.clone()).to_vec();
    let scales = if absmax.dtype == StoredType::U8 {
        let size = json.nested_blocksize.ok_or_else(|| bad("no `nested_blocksize`"))?;
        let scales = require(checkpoint, &format!("{weight}.nested_absmax"), &absmax.name)?;
        let map = require(checkpoint, &format!("{weight}.nested_quant_map"), &absmax.name)?;
        check_shape(&scales, &[blocks.div_ceil(size)])?;
        check_shape(&map, &[256])?;
        parts.extend([&scales, &map].map(|tensor| tensor.name.clone()));
        let offset = json.nested_offset.ok_or_else(|| bad("no `nested_offset`"))?;
        Scales::Nested {
            codes: absmax,
            map: FloatTensor::plain(map)?,
            scales: FloatTensor::plain(scales)?,
            size,
            offset,
        }
    } else {
        Scales::Plain(FloatTensor::plain(absmax)?)
    };
    Ok(QuantizedLayer {
        shape: vec![rows, cols],
        exact_encoding: Encoding::F32,
        memory_encoding: Encoding::F32,
        parts,
        decoder: Box::new(FourBits { codes, map: FloatTensor::plain(map)?, scales, block: json.blocksize }),
    })
}

/// The largest magnitude of each block.
enum Scales {
    Plain(FloatTensor),
    Nested { codes: Tensor, map: FloatTensor, scales: FloatTensor, size: usize, offset: f32 },
}

struct FourBits {
    codes: Tensor,
    map: FloatTensor,
    scales: Scales,
    block: usize,
}

impl RowDecoder for FourBits {
    fn decode_row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
        let (codes, map) = (checkpoint.bytes(&self.codes), self.map.of(checkpoint));
        let values: [f32; 16] = std::array::from_fn(|code| map.at(code));
        let scale = |block: usize| match &self.scales {
            Scales::Plain(scales) => scales.of(checkpoint).at(block),
            Scales::Nested { codes, map, scales, size, offset } => {
                let code = checkpoint.bytes(codes)[block];
                map.of(checkpoint).at(usize::from(code)) * scales.of(checkpoint).at(block / size) + offset
            }
        };
        // Blocks continue across row boundaries.
        let (mut start, end) = (row * out.len(), (row + 1) * out.len());
        let mut rest = &mut out[..];
        while start < end {
            let block = start / self.block;
            let count = ((block + 1) * self.block).min(end) - start;
            let (run, after) = rest.split_at_mut(count);
            let scale = scale(block);
            for (index, x) in run.iter_mut().enumerate() {
                let byte = codes[(start + index) / 2];
                let code = if (start + index).is_multiple_of(2) { byte >> 4 } else { byte & 15 };
                *x = values[usize::from(code)] * scale;
            }
            (rest, start) = (after, start + count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Stored};
    use super::super::{Method, QuantizedCheckpoint};
    use super::*;

    const METHOD: Method = Method::BitsAndBytes;

    fn json(text: &str) -> Stored {
        Stored::bytes("m.weight.quant_state.bitsandbytes__nf4", &[text.len()], text.as_bytes())
    }

    /// A [3, 10] weight in blocks of eight: codes 0, 1, 2, …
    fn tensors(absmax: Stored, state: &str) -> Vec<Stored> {
        let codes: Vec<u8> = (0..15u8).map(|i| (i * 2 % 16) << 4 | ((i * 2 + 1) % 16)).collect();
        let map: Vec<f32> = (0..16).map(|i| i as f32 - 8.0).collect();
        vec![
            Stored::bytes("m.weight", &[15, 1], &codes),
            Stored::floats("m.weight.quant_map", &[16], &map),
            absmax,
            json(state),
        ]
    }

    fn plain() -> Vec<Stored> {
        let absmax = Stored::floats("m.weight.absmax", &[4], &[1.0, 2.0, 3.0, 4.0]);
        tensors(absmax, r#"{"shape": [3, 10], "blocksize": 8, "quant_type": "nf4", "dtype": "bfloat16"}"#)
    }

    fn fault(tensors: &[Stored]) -> String {
        testing::open(tensors, &METHOD).map(|_: QuantizedCheckpoint| ()).expect_err("a fault").to_string()
    }

    #[test]
    fn blocks_continue_across_rows_and_the_high_nibble_is_first() {
        let checkpoint = testing::open(&plain(), &METHOD).expect("a layer");
        assert_eq!(
            testing::row(&checkpoint, "m.weight", 0),
            [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 2.0]
        );
        assert_eq!(testing::row(&checkpoint, "m.weight", 1)[4..8], [12.0, 14.0, -24.0, -21.0]);
        assert_eq!(testing::row(&checkpoint, "m.weight", 2)[..5], [-12.0, -9.0, -6.0, -3.0, 0.0]);
        assert_eq!(testing::row(&checkpoint, "m.weight", 2)[9], 20.0);
    }

    #[test]
    fn scales_may_be_quantized_too() {
        let absmax = Stored::bytes("m.weight.absmax", &[4], &[0, 1, 2, 255]);
        let state = r#"{"shape": [3, 10], "blocksize": 8, "nested_blocksize": 2, "nested_offset": 0.5, "nested_dtype": "float32"}"#;
        let mut tensors = tensors(absmax, state);
        let map: Vec<f32> = (0..256).map(|i| i as f32).collect();
        tensors.push(Stored::floats("m.weight.nested_quant_map", &[256], &map));
        assert!(fault(&tensors).contains("tensor m.weight.nested_absmax is missing"));
        tensors.push(Stored::floats("m.weight.nested_absmax", &[2], &[1.0, 0.1]));
        let checkpoint = testing::open(&tensors, &METHOD).expect("a layer");
        // The scales are 0.5, 1.5, 0.7 and 26.
        assert_eq!(testing::row(&checkpoint, "m.weight", 0)[7..], [-0.5, 0.0, 1.5]);
        assert_eq!(testing::row(&checkpoint, "m.weight", 2)[9], 5.0 * (255.0 * 0.1 + 0.5));
    }

    #[test]
    fn inconsistent_tensors_are_named_in_the_error() {
        let mut short = plain();
        short[0] = Stored::bytes("m.weight", &[14, 1], &[0; 14]);
        assert!(fault(&short).contains("m.weight has 14 bytes where [3, 10] 4-bit codes take 15"), "{}", fault(&short));
        let mut scales = plain();
        scales[2] = Stored::floats("m.weight.absmax", &[3], &[1.0; 3]);
        assert!(fault(&scales).contains("m.weight.absmax is [3] where [4] is expected"), "{}", fault(&scales));
        let mut state = plain();
        state[3] = json(r#"{"shape": [9999999999999, 9999999999999], "blocksize": 8}"#);
        assert!(fault(&state).contains("an impossible shape"), "{}", fault(&state));
        state[3] = json("{");
        assert!(fault(&state).contains("does not describe a layer"), "{}", fault(&state));
    }

    #[test]
    fn int8_rows_are_scaled_so_that_127_is_the_largest_magnitude() {
        let weight = Stored::new("m.weight", StoredType::I8, &[2, 3], &[127, 0, 129, 1, 255, 64]);
        let scales = Stored::floats("m.SCB", &[2], &[2.0, 127.0]);
        let checkpoint =
            testing::open(&[weight, scales, Stored::bytes("m.weight_format", &[], &[0])], &METHOD).expect("a layer");
        assert_eq!(testing::row(&checkpoint, "m.weight", 0), [2.0, 0.0, -2.0]);
        assert_eq!(testing::row(&checkpoint, "m.weight", 1), [1.0, -1.0, 64.0]);
        assert!(checkpoint.hides("m.weight_format") && checkpoint.hides("m.SCB"));
        let other = [
            Stored::new("m.weight", StoredType::I8, &[1, 1], &[1]),
            Stored::floats("m.SCB", &[1], &[1.0]),
            Stored::bytes("m.weight_format", &[], &[2]),
        ];
        assert!(fault(&other).contains("m.weight_format selects a layout other than row-major"));
    }
}
