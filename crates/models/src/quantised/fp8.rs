//! FP8 as DeepSeek and Qwen publish it: 8-bit floats with a scale for each tile (`weight_scale_inv`, which is multiplied all the same), or
//! for each row or matrix (`weight_scale`).

use super::parts::{Fault, Floats, bases, matrix, need};
use super::scaled::{Codes, Scaled, tiles};
use super::{Entry, Found};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::Result;
use pellucid_kernels::encoding::Encoding;

/// What the configuration says for all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rows and columns of a tile.
    block: Option<(usize, usize)>,
}

impl Settings {
    /// Reads `quantization_config`.
    pub(super) fn read(part: &Config) -> Result<Settings> {
        match part.sizes("weight_block_size")?[..] {
            [] => Ok(Settings { block: None }),
            [high, wide] if high > 0 && wide > 0 => Ok(Settings { block: Some((high, wide)) }),
            _ => Err(part.bad("weight_block_size", "is not two sizes")),
        }
    }
}

/// Finds the layers.
pub(super) fn find(checkpoint: &Checkpoint, settings: &Settings, found: &mut Found) {
    for tensor in checkpoint.tensors() {
        if let Some(base) = tensor.name.strip_suffix(".weight")
            && Codes::of(tensor.dtype).is_some_and(|codes| codes != Codes::I8)
        {
            found.add(tensor.name.clone(), entry(checkpoint, settings, base));
        }
    }
    let activations = [".input_scale", ".activation_scale", ".output_scale", ".k_scale", ".v_scale"];
    for ending in activations {
        found.unused.extend(bases(checkpoint, ending).map(|base| format!("{base}{ending}")));
    }
}

fn entry(checkpoint: &Checkpoint, settings: &Settings, base: &str) -> std::result::Result<Entry, Fault> {
    let codes = need(checkpoint, &format!("{base}.weight"), base)?;
    let (rows, cols) = matrix(&codes)?;
    let kind = Codes::of(codes.dtype).ok_or_else(|| format!("tensor {} is stored as {}", codes.name, codes.dtype))?;
    let scales = match checkpoint.get(&format!("{base}.weight_scale")) {
        Some(scales) => scales.clone(),
        None => need(checkpoint, &format!("{base}.weight_scale_inv"), &codes.name)?,
    };
    let (tile, across) = tiles(&scales, (rows, cols), settings.block)?;
    Ok(Entry {
        shape: vec![rows, cols],
        exact: Encoding::F32,
        kept: Encoding::F32,
        parts: [&codes, &scales].map(|tensor| tensor.name.clone()).to_vec(),
        layer: Box::new(Scaled {
            codes,
            kind,
            scales: Floats::new(scales)?,
            tile,
            across,
            zeros: None,
            order: None,
            factor: 1.0,
            divisor: None,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Method;
    use super::super::testing::{self, Stored};
    use super::*;
    use crate::checkpoint::StoredType;

    /// Five rows of six codes in tiles of two by four.
    fn tensors(scales: &[usize]) -> [Stored; 2] {
        let codes: Vec<u8> = (0..30).map(|i| if i == 29 { 0x7f } else { 0x38 | (i % 2) << 7 }).collect();
        let numbers: Vec<f32> = (1..=scales.iter().product::<usize>()).map(|x| x as f32).collect();
        [
            Stored::new("m.weight", StoredType::F8E4M3, &[5, 6], &codes),
            Stored::floats("m.weight_scale_inv", scales, &numbers),
        ]
    }

    #[test]
    fn tiles_may_be_cut_off_at_the_edges() {
        let method = Method::Fp8(Settings { block: Some((2, 4)) });
        let made = testing::open(&tensors(&[3, 2]), &method).expect("a layer");
        assert_eq!(testing::row(&made, "m.weight", 1), [1.0, -1.0, 1.0, -1.0, 2.0, -2.0]);
        assert_eq!(testing::row(&made, "m.weight", 2), [3.0, -3.0, 3.0, -3.0, 4.0, -4.0]);
        let last = testing::row(&made, "m.weight", 4);
        assert_eq!(last[..5], [5.0, -5.0, 5.0, -5.0, 6.0]);
        assert!(last[5].is_nan(), "the code that is no number stays none");
        let error = testing::open(&tensors(&[2, 2]), &method).map(|_| ()).expect_err("too few tiles").to_string();
        assert!(error.contains("m.weight_scale_inv is [2, 2]") && error.contains("2 x 4"), "{error}");
    }

    #[test]
    fn a_scale_may_be_for_rows_or_for_all() {
        let method = Method::Fp8(Settings { block: None });
        let row = |shape: &[usize], row| {
            testing::row(&testing::open(&tensors(shape), &method).expect("a layer"), "m.weight", row)
        };
        assert_eq!(row(&[], 3)[..2], [1.0, -1.0]);
        assert_eq!(row(&[5, 1], 3)[..2], [4.0, -4.0]);
        let error = testing::open(&tensors(&[3, 2])[..1], &method).map(|_| ()).expect_err("no scale").to_string();
        assert!(error.contains("tensor m.weight_scale_inv is missing; m.weight needs it"), "{error}");
    }
}
