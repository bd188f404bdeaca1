//! The tensors beside a quantised weight: found, measured, read number by number.

use super::codes;
use crate::checkpoint::{Checkpoint, StoredType, Tensor};
use pellucid_kernels::encoding::{self, Encoding};

/// What is wrong with a layer, said with the tensor's name.
pub(super) type Fault = String;

/// The bases of all names with this ending: `model.layers.0.mlp.up_proj` of `….qweight`.
pub(super) fn bases<'a>(checkpoint: &'a Checkpoint, ending: &'a str) -> impl Iterator<Item = &'a str> {
    checkpoint.tensors().filter_map(move |tensor| tensor.name.strip_suffix(ending))
}

/// A tensor that has to be there because `codes` is.
pub(super) fn need(checkpoint: &Checkpoint, name: &str, codes: &str) -> Result<Tensor, Fault> {
    checkpoint.get(name).cloned().ok_or_else(|| format!("tensor {name} is missing; {codes} needs it"))
}

/// The sides of a matrix.
pub(super) fn matrix(tensor: &Tensor) -> Result<(usize, usize), Fault> {
    match tensor.shape[..] {
        [rows, cols] if rows > 0 && cols > 0 => Ok((rows, cols)),
        _ => Err(format!("tensor {} is {:?} where a matrix is expected", tensor.name, tensor.shape)),
    }
}

/// Checks a shape.
pub(super) fn shaped(tensor: &Tensor, expected: &[usize]) -> Result<(), Fault> {
    if tensor.shape == expected {
        return Ok(());
    }
    Err(format!("tensor {} is {:?} where {expected:?} is expected", tensor.name, tensor.shape))
}

/// Checks how a tensor is stored.
pub(super) fn stored_as(tensor: &Tensor, types: &[StoredType]) -> Result<(), Fault> {
    if types.contains(&tensor.dtype) {
        return Ok(());
    }
    let names: Vec<&str> = types.iter().map(|dtype| dtype.name()).collect();
    Err(format!("tensor {} is stored as {} where {} is expected", tensor.name, tensor.dtype, names.join(" or ")))
}

/// A product of sizes from a file.
pub(super) fn times(tensor: &Tensor, a: usize, b: usize) -> Result<usize, Fault> {
    a.checked_mul(b).ok_or_else(|| format!("tensor {} is {:?}, which is beyond any memory", tensor.name, tensor.shape))
}

/// The 32-bit word at a place; the caller has checked that it is there.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = &bytes[at * 4..][..4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The whole numbers of a small tensor.
pub(super) fn integers(checkpoint: &Checkpoint, tensor: &Tensor) -> Result<Vec<i64>, Fault> {
    stored_as(tensor, &[StoredType::I64, StoredType::I32])?;
    let bytes = checkpoint.bytes(tensor);
    Ok(match tensor.dtype {
        StoredType::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
    })
}

/// A tensor of scales, in any of the formats that scales are stored in.
#[derive(Debug)]
pub(super) struct Floats(Tensor);

impl Floats {
    /// Takes a tensor if its numbers can be scales.
    pub(super) fn new(tensor: Tensor) -> Result<Floats, Fault> {
        use StoredType::*;
        stored_as(&tensor, &[F32, F16, Bf16, F8E4M3, F8E8M0, U8])?;
        Ok(Floats(tensor))
    }

    /// A tensor of f32, f16 or bf16 numbers.
    pub(super) fn plain(tensor: Tensor) -> Result<Floats, Fault> {
        stored_as(&tensor, &[StoredType::F32, StoredType::F16, StoredType::Bf16])?;
        Ok(Floats(tensor))
    }

    /// The numbers, for reading one by one.
    pub(super) fn of<'a>(&self, checkpoint: &'a Checkpoint) -> Numbers<'a> {
        Numbers { bytes: checkpoint.bytes(&self.0), dtype: self.0.dtype }
    }
}

/// Numbers in a file.
pub(super) struct Numbers<'a> {
    bytes: &'a [u8],
    dtype: StoredType,
}

impl Numbers<'_> {
    /// The number at a place that exists.
    pub(super) fn at(&self, place: usize) -> f32 {
        let mut number = 0.0;
        let mut decode = |encoding: Encoding, size: usize| {
            encoding::decode(encoding, &self.bytes[place * size..][..size], std::slice::from_mut(&mut number));
        };
        match self.dtype {
            StoredType::F16 => decode(Encoding::F16, 2),
            StoredType::Bf16 => decode(Encoding::BF16, 2),
            StoredType::F8E4M3 => return codes::e4m3(self.bytes[place]),
            // Bytes beside codes are exponents.
            StoredType::F8E8M0 | StoredType::U8 => return codes::e8m0(self.bytes[place]),
            _ => decode(Encoding::F32, 4),
        }
        number
    }
}
