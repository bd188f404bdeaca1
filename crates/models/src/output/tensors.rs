//! Writes safetensors files tensor by tensor.

use super::write_with;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{SafeTensorError, View};
use std::collections::HashMap;
use std::io;
use std::path::Path;

/// Writes tensors as a safetensors file: complete, or not at all.
///
/// `safetensors::serialize_to_file` opens the file by its path, which an unnamed file does not
/// have, and `serialize` holds the whole file in memory.
///
/// # Errors
/// Of the file system, or if a tensor's data is not as long as its shape says.
pub fn write_tensors<V: View>(
    path: &Path,
    mut tensors: Vec<(String, V)>,
    metadata: Option<HashMap<String, String>>,
) -> io::Result<()> {
    // Large alignments first, so that all tensors are aligned.
    tensors.sort_by(|(a_name, a), (b_name, b)| b.dtype().cmp(&a.dtype()).then(a_name.cmp(b_name)));
    let mut end = 0;
    let describe = |(name, tensor): &(String, V)| {
        let start = end;
        end += tensor.data_len();
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    };
    let infos = tensors.iter().map(describe).collect();
    let header = Metadata::new(metadata, infos).map_err(other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    write_with(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        tensors.iter().try_for_each(|(_, tensor)| file.write_all(&tensor.data()))
    })
}

fn other(error: SafeTensorError) -> io::Error {
    io::Error::other(error.to_string())
}
