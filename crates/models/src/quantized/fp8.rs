//! FP8 as DeepSeek and Qwen publish it: 8-bit floats with a scale per tile (`weight_scale_inv`) or
//! per row or matrix (`weight_scale`). Despite its name, `weight_scale_inv` is multiplied, not
//! divided by.

use super::parts::{FloatTensor, LayerFault, bases, matrix_dims, require};
use super::scaled::{CodeFormat, ScaledMatrix, tiles};
use super::{LayerScan, QuantizedLayer};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::Result;
use pellucid_kernels::encoding::Encoding;

/// The options in `quantization_config`, which apply to all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fp8Settings {
    /// Rows and columns of a tile (`weight_block_size`).
    block: Option<(usize, usize)>,
}

impl Fp8Settings {
    /// Reads `quantization_config`.
    pub(super) fn read(part: &Config) -> Result<Fp8Settings> {
        match part.sizes("weight_block_size")?[..] {
            [] => Ok(Fp8Settings { block: None }),
            [high, wide] if high > 0 && wide > 0 => Ok(Fp8Settings { block: Some((high, wide)) }),
            _ => Err(part.bad("weight_block_size", "is not two positive sizes")),
        }
    }
}

/// Finds the FP8 layers of a checkpoint.
pub(super) fn find(checkpoint: &Checkpoint, settings: &Fp8Settings, scan: &mut LayerScan) {
    for tensor in checkpoint.tensors() {
        if let Some(base) = tensor.name.strip_suffix(".weight")
            && CodeFormat::from_dtype(tensor.dtype).is_some_and(|codes| codes != CodeFormat::I8)
        {
            scan.add(tensor.name.clone(), layer(checkpoint, settings, base));
        }
    }
    let activations = [".input_scale", ".activation_scale", ".output_scale", ".k_scale", ".v_scale"];
    for ending in activations {
        scan.unused.extend(bases(checkpoint, ending).map(|base| format!("{base}{ending}")));
    }
}

fn layer(
    checkpoint: &Checkpoint,
    settings: &Fp8Settings,
    base: &str,
) -> std::result::Result<QuantizedLayer, LayerFault> {
    let codes = require(checkpoint, &format!("{base}.weight"), base)?;
    let (rows, cols) = matrix_dims(&codes)?;
    let kind = CodeFormat::from_dtype(codes.dtype)
        .ok_or_else(|| format!("tensor {} is stored as {}", codes.name, codes.dtype))?;
    let scales = match checkpoint.get(&format!("{base}.weight_scale")) {
        Some(scales) => scales.clone(),
        None => require(checkpoint, &format!("{base}.weight_scale_inv"), &codes.name)?,
    };
    let (tile, tiles_per_row) = tiles(&scales, (rows, cols), settings.block)?;
    Ok(QuantizedLayer {
        shape: vec![rows, cols],
        exact_encoding: Encoding::F32,
        memory_encoding: Encoding::F32,
        parts: [&codes, &scales].map(|tensor| tensor.name.clone()).to_vec(),
        decoder: Box::new(ScaledMatrix {
            codes,
            kind,
            scales: FloatTensor::new(scales)?,
            tile,
            tiles_per_row,
            zeros: None,
            column_tiles: None,
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
        let values: Vec<f32> = (1..=scales.iter().product::<usize>()).map(|x| x as f32).collect();
        [
            Stored::new("m.weight", StoredType::F8E4M3, &[5, 6], &codes),
            Stored::floats("m.weight_scale_inv", scales, &values),
        ]
    }

    #[test]
    fn tiles_may_be_cut_off_at_the_edges() {
        let method = Method::Fp8(Fp8Settings { block: Some((2, 4)) });
        let checkpoint = testing::open(&tensors(&[3, 2]), &method).expect("a layer");
        assert_eq!(testing::row(&checkpoint, "m.weight", 1), [1.0, -1.0, 1.0, -1.0, 2.0, -2.0]);
        assert_eq!(testing::row(&checkpoint, "m.weight", 2), [3.0, -3.0, 3.0, -3.0, 4.0, -4.0]);
        let last = testing::row(&checkpoint, "m.weight", 4);
        assert_eq!(last[..5], [5.0, -5.0, 5.0, -5.0, 6.0]);
        assert!(last[5].is_nan(), "NaN stays NaN");
        let error = testing::open(&tensors(&[2, 2]), &method).map(|_| ()).expect_err("too few tiles").to_string();
        assert!(error.contains("m.weight_scale_inv is [2, 2]") && error.contains("2 x 4"), "{error}");
    }

    #[test]
    fn scales_may_be_per_row_or_per_matrix() {
        let method = Method::Fp8(Fp8Settings { block: None });
        let row = |shape: &[usize], row| {
            testing::row(&testing::open(&tensors(shape), &method).expect("a layer"), "m.weight", row)
        };
        assert_eq!(row(&[], 3)[..2], [1.0, -1.0]);
        assert_eq!(row(&[5, 1], 3)[..2], [4.0, -4.0]);
        let error = testing::open(&tensors(&[3, 2])[..1], &method).map(|_| ()).expect_err("no scale").to_string();
        assert!(error.contains("tensor m.weight_scale_inv is missing; m.weight needs it"), "{error}");
    }
}
