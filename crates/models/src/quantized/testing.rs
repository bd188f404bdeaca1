//! Small in-memory checkpoints for the tests of this module.

use super::{Method, QuantizedCheckpoint};
use crate::checkpoint::{Checkpoint, StoredType};
use crate::error::Result;
use std::path::Path;

/// A tensor of a test checkpoint.
pub(super) struct Stored {
    name: String,
    dtype: StoredType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    pub(super) fn new(name: &str, dtype: StoredType, shape: &[usize], bytes: &[u8]) -> Stored {
        Stored { name: name.into(), dtype, shape: shape.into(), bytes: bytes.into() }
    }

    pub(super) fn bytes(name: &str, shape: &[usize], bytes: &[u8]) -> Stored {
        Stored::new(name, StoredType::U8, shape, bytes)
    }

    pub(super) fn words(name: &str, shape: &[usize], words: &[u32]) -> Stored {
        Stored::new(name, StoredType::I32, shape, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(super) fn floats(name: &str, shape: &[usize], floats: &[f32]) -> Stored {
        Stored::new(name, StoredType::F32, shape, &floats.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    }
}

/// Opens the tensors as a quantized checkpoint.
pub(super) fn open(tensors: &[Stored], method: &Method) -> Result<QuantizedCheckpoint> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in tensors {
        let start = data.len();
        data.extend(&tensor.bytes);
        let entry = serde_json::json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    let header = serde_json::Value::from(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    QuantizedCheckpoint::new(Checkpoint::from_static(file.leak(), "test")?, method, Path::new("test"))
}

/// Dequantizes a row of a layer.
pub(super) fn row(checkpoint: &QuantizedCheckpoint, name: &str, row: usize) -> Vec<f32> {
    let tensor = checkpoint.dequantized(name).expect("a quantized layer");
    tensor.check().expect("valid indices");
    let mut out = vec![f32::NAN; *tensor.shape().last().expect("a shape")];
    tensor.row(row, &mut out);
    out
}
