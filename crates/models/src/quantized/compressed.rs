//! The compressed-tensors formats: row-major codes with scales per matrix, row, group or tile.
//!
//! | format | codes | other tensors |
//! |---|---|---|
//! | `int-quantized`, `float-quantized`, `naive-quantized`, `mxfp8-quantized` | `weight`: I8, F8_E4M3 | `weight_scale`, optionally `weight_zero_point` |
//! | `pack-quantized` | `weight_packed`: 2, 4 or 8 bits in I32 | also `weight_shape`; zero points packed along the row dimension |
//! | `nvfp4-pack-quantized`, `mxfp4-pack-quantized` | `weight_packed`: 4-bit floats in U8 | scales are small floats, optionally divided by `weight_global_scale` |
//!
//! A layer's tensors determine its format, so the lists of targets and ignored modules are not
//! read. A weight is `scale · (code − zero)`. Scales of activations are ignored: activations are
//! never quantized here.

use super::blocks::BLOCK_LEN;
use super::parts::{
    FloatTensor, LayerFault, bases, check_dtype, check_shape, checked_product, matrix_dims, read_integers, require,
};
use super::scaled::{self, CodeFormat, ScaledMatrix, tiles};
use super::{LayerScan, QuantizedLayer, unknown};
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use crate::config::Config;
use crate::error::Result;
use pellucid_kernels::encoding::Encoding;
use serde_json::Value;

const FORMATS: [&str; 9] = [
    "dense",
    "naive-quantized",
    "int-quantized",
    "float-quantized",
    "pack-quantized",
    "mixed-precision",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
];

/// The options in `quantization_config`, which apply to all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressedSettings {
    /// Rows and columns of a tile (`block_structure`), if scales are per tile.
    block: Option<(usize, usize)>,
}

impl CompressedSettings {
    /// Reads `quantization_config`.
    pub(super) fn read(part: &Config) -> Result<CompressedSettings> {
        let groups = part.get("config_groups").and_then(Value::as_object);
        let groups = || groups.into_iter().flat_map(|groups| groups.values());
        let global = part.text("format").into_iter();
        for format in global.chain(groups().filter_map(|group| group.get("format")?.as_str())) {
            if !FORMATS.contains(&format) {
                return Err(unknown(&format!("compressed-tensors in the {format} format")));
            }
        }
        let sparse = part.part("sparsity_config").and_then(|sparsity| sparsity.text("format").map(str::to_owned));
        if let Some(format) = sparse.filter(|format| format != "dense") {
            return Err(unknown(&format!("compressed-tensors with the sparse format {format}")));
        }
        let rotated = part.part("transform_config").is_some_and(|transform| {
            transform.get("config_groups").and_then(Value::as_object).is_some_and(|groups| !groups.is_empty())
        });
        if rotated {
            return Err(unknown("compressed-tensors with transforms"));
        }
        let block = groups().find_map(|group| {
            let sizes = group.pointer("/weights/block_structure")?.as_array()?;
            let size = |at: usize| sizes.get(at)?.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
            Some((size(0)?, size(1)?))
        });
        Ok(CompressedSettings { block })
    }
}

/// Finds the compressed-tensors layers of a checkpoint.
pub(super) fn find(checkpoint: &Checkpoint, settings: &CompressedSettings, scan: &mut LayerScan) {
    for base in bases(checkpoint, ".weight_packed") {
        scan.add(format!("{base}.weight"), packed(checkpoint, settings, base));
    }
    for tensor in checkpoint.tensors() {
        if let Some(base) = tensor.name.strip_suffix(".weight")
            && CodeFormat::from_dtype(tensor.dtype).is_some()
        {
            scan.add(tensor.name.clone(), naive(checkpoint, settings, base));
        }
    }
    let activations = [
        ".input_scale",
        ".input_zero_point",
        ".input_global_scale",
        ".output_scale",
        ".output_zero_point",
        ".q_scale",
        ".k_scale",
        ".v_scale",
        ".k_zero_point",
        ".v_zero_point",
    ];
    for ending in activations {
        scan.unused.extend(bases(checkpoint, ending).map(|base| format!("{base}{ending}")));
    }
}

/// A layer whose codes are stored unpacked, as I8 or FP8.
fn naive(
    checkpoint: &Checkpoint,
    settings: &CompressedSettings,
    base: &str,
) -> std::result::Result<QuantizedLayer, LayerFault> {
    let codes = require(checkpoint, &format!("{base}.weight"), base)?;
    let kind = CodeFormat::from_dtype(codes.dtype)
        .ok_or_else(|| format!("tensor {} is stored as {}", codes.name, codes.dtype))?;
    let shape = matrix_dims(&codes)?;
    layer(checkpoint, settings, base, codes, kind, shape)
}

/// A layer whose codes are packed into words or bytes.
fn packed(
    checkpoint: &Checkpoint,
    settings: &CompressedSettings,
    base: &str,
) -> std::result::Result<QuantizedLayer, LayerFault> {
    let codes = require(checkpoint, &format!("{base}.weight_packed"), base)?;
    check_dtype(&codes, &[StoredType::I32, StoredType::U8])?;
    let (rows, width) = matrix_dims(&codes)?;
    if codes.dtype == StoredType::U8 {
        let shape = (rows, checked_product(&codes, width, 2)?);
        return layer(checkpoint, settings, base, codes, CodeFormat::E2m1, shape);
    }
    let shape = require(checkpoint, &format!("{base}.weight_shape"), &codes.name)?;
    let sizes = read_integers(checkpoint, &shape)?;
    let size = |at: usize| sizes.get(at).and_then(|n| usize::try_from(*n).ok()).filter(|n| *n > 0);
    let (Some(stated), Some(cols), 2) = (size(0), size(1), sizes.len()) else {
        return Err(format!("tensor {} holds {sizes:?}, which is not the shape of a matrix", shape.name));
    };
    if stated != rows {
        return Err(format!("tensor {} has {rows} rows where {} says {stated}", codes.name, shape.name));
    }
    // The packed width determines the bits per code.
    let bits = [2u32, 4, 8].into_iter().find(|bits| cols.div_ceil((32 / bits) as usize) == width);
    let Some(bits) = bits else {
        return Err(format!(
            "tensor {} is {:?}, which is not {cols} columns of 2, 4 or 8 bits",
            codes.name, codes.shape
        ));
    };
    let mut layer = layer(checkpoint, settings, base, codes, CodeFormat::Packed(bits), (rows, cols))?;
    layer.parts.push(shape.name);
    Ok(layer)
}

fn layer(
    checkpoint: &Checkpoint,
    settings: &CompressedSettings,
    base: &str,
    codes: Tensor,
    kind: CodeFormat,
    (rows, cols): (usize, usize),
) -> std::result::Result<QuantizedLayer, LayerFault> {
    let optional = |name: &str| checkpoint.get(&format!("{base}.{name}")).cloned();
    let scales = require(checkpoint, &format!("{base}.weight_scale"), &codes.name)?;
    let (tile, tiles_per_row) = tiles(&scales, (rows, cols), settings.block)?;
    let divisor = optional("weight_global_scale");
    if let Some(divisor) = divisor.as_ref().filter(|divisor| divisor.elements() != 1) {
        check_shape(divisor, &[1])?;
    }
    let bits = if let CodeFormat::Packed(bits) = kind { Some(bits) } else { None };
    let zeros = optional("weight_zero_point");
    let column_tiles = match optional("weight_g_idx") {
        Some(column_tiles) => {
            check_shape(&column_tiles, &[cols])?;
            Some(column_tiles)
        }
        None => None,
    };
    let parts = [Some(&codes), Some(&scales), divisor.as_ref(), zeros.as_ref(), column_tiles.as_ref()];
    let parts = parts.into_iter().flatten().map(|tensor| tensor.name.clone()).collect();
    // All −1 means that `weight_g_idx` is unused.
    let column_tiles = match column_tiles {
        Some(groups) if read_integers(checkpoint, &groups)?.iter().any(|group| *group != -1) => Some(groups),
        _ => None,
    };
    let zeros = zeros.map(|zeros| scaled::zeros(zeros, rows.div_ceil(tile.0), tiles_per_row, bits)).transpose()?;
    let f16_scales = matches!(scales.dtype, StoredType::F16 | StoredType::Bf16) && cols.is_multiple_of(BLOCK_LEN);
    let memory_encoding = match (kind, zeros.is_some()) {
        (CodeFormat::Packed(2 | 4), false) => Encoding::Q4_0,
        (CodeFormat::Packed(2 | 4), true) | (CodeFormat::Packed(_) | CodeFormat::I8, false) => Encoding::Q8_0,
        _ => Encoding::F32,
    };
    let layer = ScaledMatrix {
        codes,
        kind,
        scales: FloatTensor::new(scales)?,
        tile,
        tiles_per_row,
        zeros,
        column_tiles,
        factor: 1.0,
        divisor: divisor.map(FloatTensor::plain).transpose()?,
    };
    let memory_encoding = if f16_scales && layer.blocks_share_scale(cols) { memory_encoding } else { Encoding::F32 };
    Ok(QuantizedLayer {
        shape: vec![rows, cols],
        exact_encoding: Encoding::F32,
        memory_encoding,
        parts,
        decoder: Box::new(layer),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Stored};
    use super::super::{Method, QuantizedCheckpoint};
    use super::*;
    use serde_json::json;

    const METHOD: Method = Method::Compressed(CompressedSettings { block: None });

    fn longs(name: &str, values: &[i64]) -> Stored {
        let bytes: Vec<u8> = values.iter().flat_map(|n| n.to_le_bytes()).collect();
        Stored::new(name, StoredType::I64, &[values.len()], &bytes)
    }

    fn fault(tensors: &[Stored]) -> String {
        testing::open(tensors, &METHOD).map(|_: QuantizedCheckpoint| ()).expect_err("a fault").to_string()
    }

    /// Nine rows of the 4-bit codes 0 to 11, with a scale per four codes.
    fn four_bits() -> Vec<Stored> {
        let words = [0x7654_3210u32, 0x0000_ba98].repeat(9);
        let scales: Vec<f32> = (0..27).map(|i| (i % 3 + 1) as f32).collect();
        vec![
            Stored::words("m.weight_packed", &[9, 2], &words),
            Stored::floats("m.weight_scale", &[9, 3], &scales),
            longs("m.weight_shape", &[9, 12]),
        ]
    }

    #[test]
    fn packed_codes_are_read_from_the_lowest_bits_with_scale_and_zero_per_group() {
        let checkpoint = testing::open(&four_bits(), &METHOD).expect("a layer");
        let expected = [-8.0, -7.0, -6.0, -5.0, -8.0, -6.0, -4.0, -2.0, 0.0, 3.0, 6.0, 9.0];
        assert_eq!(testing::row(&checkpoint, "m.weight", 8), expected);
        // Rows 0 to 7 have their zero points in the first word, row 8 in the second.
        let mut shifted = four_bits();
        shifted.push(Stored::words(
            "m.weight_zero_point",
            &[2, 3],
            &[0x9888_8888, 0x8888_8888, 0x8888_8888, 0xf, 8, 0],
        ));
        let checkpoint = testing::open(&shifted, &METHOD).expect("a layer");
        assert_eq!(testing::row(&checkpoint, "m.weight", 0), expected);
        assert_eq!(testing::row(&checkpoint, "m.weight", 7)[..5], [-9.0, -8.0, -7.0, -6.0, -8.0]);
        assert_eq!(testing::row(&checkpoint, "m.weight", 8)[2..9], [-13.0, -12.0, -8.0, -6.0, -4.0, -2.0, 24.0]);
        shifted[3] = Stored::words("m.weight_zero_point", &[1, 3], &[0; 3]);
        assert!(fault(&shifted).contains("m.weight_zero_point is [1, 3] where [2, 3] is expected"));
    }

    #[test]
    fn columns_may_belong_to_any_group() {
        let mut tensors = four_bits();
        tensors.push(Stored::words("m.weight_g_idx", &[12], &[u32::MAX; 12]));
        assert_eq!(testing::row(&testing::open(&tensors, &METHOD).expect("a layer"), "m.weight", 0)[4], -8.0);
        tensors[3] = Stored::words("m.weight_g_idx", &[12], &[2, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 0]);
        let checkpoint = testing::open(&tensors, &METHOD).expect("a layer");
        assert_eq!(testing::row(&checkpoint, "m.weight", 0)[..4], [-24.0, -14.0, -6.0, -15.0]);
        tensors[3] = Stored::words("m.weight_g_idx", &[12], &[3; 12]);
        let checkpoint = testing::open(&tensors, &METHOD).expect("the shapes are valid");
        assert!(
            checkpoint
                .dequantized("m.weight")
                .expect("a quantized layer")
                .check()
                .is_err_and(|e| e.to_string().contains("contains group 3, and there are only 3"))
        );
    }

    #[test]
    fn int8_and_fp4_layers_are_decoded() {
        let tensors = [
            Stored::new("m.weight", StoredType::I8, &[2, 2], &[128, 127, 255, 1]),
            Stored::floats("m.weight_scale", &[2, 1], &[0.5, 2.0]),
            Stored::new("m.weight_zero_point", StoredType::I8, &[2, 1], &[255, 1]),
            Stored::floats("m.input_scale", &[1], &[1.0]),
        ];
        let checkpoint = testing::open(&tensors, &METHOD).expect("a layer");
        assert_eq!(testing::row(&checkpoint, "m.weight", 0), [-63.5, 64.0]);
        assert_eq!(testing::row(&checkpoint, "m.weight", 1), [-4.0, 0.0]);
        assert!(checkpoint.hides("m.input_scale") && checkpoint.names() == ["m.weight"]);
        let fours = [
            Stored::bytes("m.weight_packed", &[1, 8], &[0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe]),
            Stored::new("m.weight_scale", StoredType::F8E4M3, &[1, 1], &[0x40]),
            Stored::floats("m.weight_global_scale", &[1], &[4.0]),
        ];
        let checkpoint = testing::open(&fours, &METHOD).expect("a layer");
        assert_eq!(testing::row(&checkpoint, "m.weight", 0), super::super::codes::E2M1.map(|x| x * 0.5));
    }

    #[test]
    fn missing_and_inconsistent_tensors_are_named_in_the_error() {
        assert!(fault(&four_bits()[..2]).contains("tensor m.weight_shape is missing; m.weight_packed needs it"));
        let mut tensors = four_bits();
        tensors[2] = longs("m.weight_shape", &[9, -12]);
        assert!(fault(&tensors).contains("which is not the shape of a matrix"));
        tensors[2] = longs("m.weight_shape", &[9, 33]);
        assert!(fault(&tensors).contains("not 33 columns of 2, 4 or 8 bits"));
        tensors = four_bits();
        tensors[1] = Stored::floats("m.weight_scale", &[9, 5], &[1.0; 45]);
        assert!(fault(&tensors).contains("m.weight_scale is [9, 5] for a weight of [9, 12]"), "{}", fault(&tensors));
    }

    #[test]
    fn unsupported_formats_are_named_in_the_error() {
        let read =
            |json: Value| CompressedSettings::read(&Config::new(json, std::path::Path::new("c")).expect("a config"));
        let block = json!({"format": "float-quantized", "config_groups": {"group_0": {"weights": {"block_structure": [128, 64]}}}});
        assert_eq!(read(block).expect("read").block, Some((128, 64)));
        let error = |json| read(json).expect_err("refused").to_string();
        assert!(error(json!({"format": "marlin-24"})).contains("marlin-24"));
        assert!(error(json!({"sparsity_config": {"format": "sparse-24-bitmask"}})).contains("sparse-24-bitmask"));
        assert!(error(json!({"transform_config": {"config_groups": {"u": {}}}})).contains("transforms"));
        assert!(error(json!({"config_groups": {"g": {"format": "mxfp6-pack-quantized"}}})).contains("mxfp6"));
    }
}
