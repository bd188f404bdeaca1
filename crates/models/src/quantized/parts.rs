//! Helpers to find, check and read the stored tensors of a quantized layer.

use super::codes;
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use pellucid_kernels::encoding::{self, Encoding};

/// Why a layer is invalid; the message names the tensor.
pub(super) type LayerFault = String;

/// Tensor names that end with `suffix`, without it: `model.layers.0.mlp.up_proj` for `.qweight`.
pub(super) fn bases<'a>(checkpoint: &'a Checkpoint, suffix: &'a str) -> impl Iterator<Item = &'a str> {
    checkpoint.tensors().filter_map(move |tensor| tensor.name.strip_suffix(suffix))
}

/// Returns a tensor that must exist because the tensor `codes` does.
pub(super) fn require(checkpoint: &Checkpoint, name: &str, codes: &str) -> Result<Tensor, LayerFault> {
    checkpoint.get(name).cloned().ok_or_else(|| format!("tensor {name} is missing; {codes} needs it"))
}

/// The dimensions of a matrix, both non-zero.
pub(super) fn matrix_dims(tensor: &Tensor) -> Result<(usize, usize), LayerFault> {
    match tensor.shape[..] {
        [rows, cols] if rows > 0 && cols > 0 => Ok((rows, cols)),
        _ => Err(format!("tensor {} is {:?} where a matrix is expected", tensor.name, tensor.shape)),
    }
}

/// Checks a tensor's shape.
pub(super) fn check_shape(tensor: &Tensor, expected: &[usize]) -> Result<(), LayerFault> {
    if tensor.shape == expected {
        return Ok(());
    }
    Err(format!("tensor {} is {:?} where {expected:?} is expected", tensor.name, tensor.shape))
}

/// Checks a tensor's dtype.
pub(super) fn check_dtype(tensor: &Tensor, types: &[StoredType]) -> Result<(), LayerFault> {
    if types.contains(&tensor.dtype) {
        return Ok(());
    }
    let names: Vec<&str> = types.iter().map(|dtype| dtype.name()).collect();
    Err(format!("tensor {} is stored as {} where {} is expected", tensor.name, tensor.dtype, names.join(" or ")))
}

/// Multiplies two sizes from a file without overflow.
pub(super) fn checked_product(tensor: &Tensor, a: usize, b: usize) -> Result<usize, LayerFault> {
    a.checked_mul(b).ok_or_else(|| format!("tensor {} is {:?}, which exceeds any memory", tensor.name, tensor.shape))
}

/// Reads the 32-bit word at index `at`, which must exist.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = &bytes[at * 4..][..4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Reads all values of a small integer tensor.
pub(super) fn read_integers(checkpoint: &Checkpoint, tensor: &Tensor) -> Result<Vec<i64>, LayerFault> {
    check_dtype(tensor, &[StoredType::I64, StoredType::I32])?;
    let bytes = checkpoint.bytes(tensor);
    Ok(match tensor.dtype {
        StoredType::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
    })
}

/// A tensor of scales in one of the dtypes that scales are stored in.
#[derive(Debug)]
pub(super) struct FloatTensor(Tensor);

impl FloatTensor {
    /// Accepts any dtype that scales are stored in.
    pub(super) fn new(tensor: Tensor) -> Result<FloatTensor, LayerFault> {
        use StoredType::*;
        check_dtype(&tensor, &[F32, F16, Bf16, F8E4M3, F8E8M0, U8])?;
        Ok(FloatTensor(tensor))
    }

    /// Accepts only f32, f16 and bf16.
    pub(super) fn plain(tensor: Tensor) -> Result<FloatTensor, LayerFault> {
        check_dtype(&tensor, &[StoredType::F32, StoredType::F16, StoredType::Bf16])?;
        Ok(FloatTensor(tensor))
    }

    /// A reader of single elements.
    pub(super) fn of<'a>(&self, checkpoint: &'a Checkpoint) -> FloatReader<'a> {
        FloatReader { bytes: checkpoint.bytes(&self.0), dtype: self.0.dtype }
    }
}

/// Reads single floats of a stored tensor.
pub(super) struct FloatReader<'a> {
    bytes: &'a [u8],
    dtype: StoredType,
}

impl FloatReader<'_> {
    /// The element at `index`, which must exist.
    pub(super) fn at(&self, index: usize) -> f32 {
        let mut value = 0.0;
        let mut decode = |encoding: Encoding, size: usize| {
            encoding::decode(encoding, &self.bytes[index * size..][..size], std::slice::from_mut(&mut value));
        };
        match self.dtype {
            StoredType::F16 => decode(Encoding::F16, 2),
            StoredType::Bf16 => decode(Encoding::BF16, 2),
            StoredType::F8E4M3 => return codes::e4m3(self.bytes[index]),
            // Scales stored as U8 are E8M0 exponents.
            StoredType::F8E8M0 | StoredType::U8 => return codes::e8m0(self.bytes[index]),
            _ => decode(Encoding::F32, 4),
        }
        value
    }
}
