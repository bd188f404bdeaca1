//! bitsandbytes: 4-bit codes in blocks (`nf4`, `fp4`), or rows of signed bytes (LLM.int8).
//!
//! Four bits: `weight` is a flat list of codes, two a byte, the upper half first. Each block of them has an `absmax`; a code's value
//! in `quant_map` times that is the weight. `absmax` may be quantised itself, in the same way by bytes (`nested_…`). The rest (shape, block
//! sizes, an offset) is JSON in the tensor `weight.quant_state.bitsandbytes__nf4`.
//!
//! Eight bits: `weight` is a matrix of signed bytes, and `SCB` holds the largest magnitude of each row, which 127 stands for.

use super::parts::{Fault, Floats, bases, matrix, need, shaped, stored_as};
use super::scaled::{Codes, Scaled};
use super::{Entry, Found, Layer};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use pellucid_kernels::encoding::Encoding;
use serde::Deserialize;

/// The endings of the tensors that say how a 4-bit layer is stored.
const STATES: [&str; 2] = [".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"];

/// Finds the layers.
pub(super) fn find(checkpoint: &Checkpoint, found: &mut Found) {
    for state in STATES {
        for weight in bases(checkpoint, state) {
            found.add(weight.to_owned(), four_bits(checkpoint, weight, state));
        }
    }
    for base in bases(checkpoint, ".SCB") {
        found.add(format!("{base}.weight"), eight_bits(checkpoint, base));
    }
}

fn eight_bits(checkpoint: &Checkpoint, base: &str) -> Result<Entry, Fault> {
    let scales = need(checkpoint, &format!("{base}.SCB"), base)?;
    let codes = need(checkpoint, &format!("{base}.weight"), &scales.name)?;
    stored_as(&codes, &[StoredType::I8])?;
    let (rows, cols) = matrix(&codes)?;
    shaped(&scales, &[rows])?;
    let mut parts = vec![codes.name.clone(), scales.name.clone()];
    if let Some(format) = checkpoint.get(&format!("{base}.weight_format")) {
        // Other numbers are layouts of particular GPUs.
        if checkpoint.bytes(format).iter().any(|byte| *byte != 0) {
            return Err(format!("tensor {} names a layout other than rows", format.name));
        }
        parts.push(format.name.clone());
    }
    Ok(Entry {
        shape: vec![rows, cols],
        exact: Encoding::F32,
        kept: Encoding::F32,
        parts,
        layer: Box::new(Scaled {
            codes,
            kind: Codes::I8,
            scales: Floats::plain(scales)?,
            tile: (1, cols),
            across: 1,
            zeros: None,
            order: None,
            factor: 1.0 / 127.0,
            divisor: None,
        }),
    })
}

/// What the JSON beside a 4-bit layer says.
#[derive(Deserialize)]
struct State {
    shape: Vec<usize>,
    blocksize: usize,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

fn four_bits(checkpoint: &Checkpoint, weight: &str, ending: &str) -> Result<Entry, Fault> {
    let codes = need(checkpoint, weight, &format!("{weight}{ending}"))?;
    let state = need(checkpoint, &format!("{weight}{ending}"), weight)?;
    let absmax = need(checkpoint, &format!("{weight}.absmax"), weight)?;
    let map = need(checkpoint, &format!("{weight}.quant_map"), weight)?;
    let json: State = serde_json::from_slice(checkpoint.bytes(&state))
        .map_err(|error| format!("tensor {} does not describe a layer: {error}", state.name))?;
    let bad = |what: &str| format!("tensor {} names {what}", state.name);
    let [rows, cols] = json.shape[..] else { return Err(bad("a shape that is no matrix")) };
    let numbers = rows.checked_mul(cols).filter(|n| *n > 0).ok_or_else(|| bad("an impossible shape"))?;
    if json.blocksize == 0 || json.nested_blocksize == Some(0) {
        return Err(bad("blocks of no numbers"));
    }
    // The bytes may be stored under the name of any type.
    if checkpoint.bytes(&codes).len() != numbers.div_ceil(2) {
        return Err(format!(
            "tensor {} has {} bytes where {:?} numbers of 4 bits take {}",
            codes.name,
            checkpoint.bytes(&codes).len(),
            json.shape,
            numbers.div_ceil(2)
        ));
    }
    let blocks = numbers.div_ceil(json.blocksize);
    shaped(&absmax, &[blocks])?;
    shaped(&map, &[16])?;
    stored_as(&map, &[StoredType::F32])?;
    let mut parts: Vec<String> = [&codes, &state, &absmax, &map].map(|tensor| tensor.name.clone()).to_vec();
    let scales = if absmax.dtype == StoredType::U8 {
        let size = json.nested_blocksize.ok_or_else(|| bad("no `nested_blocksize`"))?;
        let scales = need(checkpoint, &format!("{weight}.nested_absmax"), &absmax.name)?;
        let map = need(checkpoint, &format!("{weight}.nested_quant_map"), &absmax.name)?;
        shaped(&scales, &[blocks.div_ceil(size)])?;
        shaped(&map, &[256])?;
        parts.extend([&scales, &map].map(|tensor| tensor.name.clone()));
        let offset = json.nested_offset.ok_or_else(|| bad("no `nested_offset`"))?;
        Scales::Nested { codes: absmax, map: Floats::plain(map)?, scales: Floats::plain(scales)?, size, offset }
    } else {
        Scales::Plain(Floats::plain(absmax)?)
    };
    Ok(Entry {
        shape: vec![rows, cols],
        exact: Encoding::F32,
        kept: Encoding::F32,
        parts,
        layer: Box::new(FourBits { codes, map: Floats::plain(map)?, scales, block: json.blocksize }),
    })
}

/// The largest magnitude of each block.
enum Scales {
    Plain(Floats),
    Nested { codes: Tensor, map: Floats, scales: Floats, size: usize, offset: f32 },
}

struct FourBits {
    codes: Tensor,
    map: Floats,
    scales: Scales,
    block: usize,
}

impl Layer for FourBits {
    fn row(&self, checkpoint: &Checkpoint, row: usize, out: &mut [f32]) {
        let (codes, map) = (checkpoint.bytes(&self.codes), self.map.of(checkpoint));
        let values: [f32; 16] = std::array::from_fn(|code| map.at(code));
        let scale = |block: usize| match &self.scales {
            Scales::Plain(scales) => scales.of(checkpoint).at(block),
            Scales::Nested { codes, map, scales, size, offset } => {
                let code = checkpoint.bytes(codes)[block];
                map.of(checkpoint).at(usize::from(code)) * scales.of(checkpoint).at(block / size) + offset
            }
        };
        // Blocks run through the rows.
        let (mut place, end) = (row * out.len(), (row + 1) * out.len());
        let mut rest = &mut out[..];
        while place < end {
            let block = place / self.block;
            let count = ((block + 1) * self.block).min(end) - place;
            let (part, after) = rest.split_at_mut(count);
            let scale = scale(block);
            for (number, x) in part.iter_mut().enumerate() {
                let byte = codes[(place + number) / 2];
                let code = if (place + number).is_multiple_of(2) { byte >> 4 } else { byte & 15 };
                *x = values[usize::from(code)] * scale;
            }
            (rest, place) = (after, place + count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Stored};
    use super::super::{Method, Quantised};
    use super::*;

    const METHOD: Method = Method::BitsAndBytes;

    fn json(text: &str) -> Stored {
        Stored::bytes("m.weight.quant_state.bitsandbytes__nf4", &[text.len()], text.as_bytes())
    }

    /// Three rows of ten numbers in blocks of eight: codes 0, 1, 2, …
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
        testing::open(tensors, &METHOD).map(|_: Quantised| ()).expect_err("a fault").to_string()
    }

    #[test]
    fn blocks_run_through_the_rows_and_the_upper_half_is_first() {
        let made = testing::open(&plain(), &METHOD).expect("a layer");
        assert_eq!(testing::row(&made, "m.weight", 0), [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 2.0]);
        assert_eq!(testing::row(&made, "m.weight", 1)[4..8], [12.0, 14.0, -24.0, -21.0]);
        assert_eq!(testing::row(&made, "m.weight", 2)[..5], [-12.0, -9.0, -6.0, -3.0, 0.0]);
        assert_eq!(testing::row(&made, "m.weight", 2)[9], 20.0);
    }

    #[test]
    fn scales_may_be_quantised_too() {
        let absmax = Stored::bytes("m.weight.absmax", &[4], &[0, 1, 2, 255]);
        let state = r#"{"shape": [3, 10], "blocksize": 8, "nested_blocksize": 2, "nested_offset": 0.5, "nested_dtype": "float32"}"#;
        let mut tensors = tensors(absmax, state);
        let map: Vec<f32> = (0..256).map(|i| i as f32).collect();
        tensors.push(Stored::floats("m.weight.nested_quant_map", &[256], &map));
        assert!(fault(&tensors).contains("tensor m.weight.nested_absmax is missing"));
        tensors.push(Stored::floats("m.weight.nested_absmax", &[2], &[1.0, 0.1]));
        let made = testing::open(&tensors, &METHOD).expect("a layer");
        // The scales are 0.5, 1.5, 0.7 and 26.
        assert_eq!(testing::row(&made, "m.weight", 0)[7..], [-0.5, 0.0, 1.5]);
        assert_eq!(testing::row(&made, "m.weight", 2)[9], 5.0 * (255.0 * 0.1 + 0.5));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let mut short = plain();
        short[0] = Stored::bytes("m.weight", &[14, 1], &[0; 14]);
        assert!(
            fault(&short).contains("m.weight has 14 bytes where [3, 10] numbers of 4 bits take 15"),
            "{}",
            fault(&short)
        );
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
    fn rows_of_bytes_have_the_magnitude_that_127_stands_for() {
        let weight = Stored::new("m.weight", StoredType::I8, &[2, 3], &[127, 0, 129, 1, 255, 64]);
        let scales = Stored::floats("m.SCB", &[2], &[2.0, 127.0]);
        let made =
            testing::open(&[weight, scales, Stored::bytes("m.weight_format", &[], &[0])], &METHOD).expect("a layer");
        assert_eq!(testing::row(&made, "m.weight", 0), [2.0, 0.0, -2.0]);
        assert_eq!(testing::row(&made, "m.weight", 1), [1.0, -1.0, 64.0]);
        assert!(made.hides("m.weight_format") && made.hides("m.SCB"));
        let other = [
            Stored::new("m.weight", StoredType::I8, &[1, 1], &[1]),
            Stored::floats("m.SCB", &[1], &[1.0]),
            Stored::bytes("m.weight_format", &[], &[2]),
        ];
        assert!(fault(&other).contains("m.weight_format names a layout other than rows"));
    }
}
