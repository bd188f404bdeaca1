//! Recognizes files of other formats by their first bytes, to say what they are and what to do.

use crate::files::open_regular;
use std::path::Path;

/// A file format that cannot be loaded as it is.
#[derive(Debug, PartialEq)]
pub(super) struct FileKind {
    /// What it is, after "this file is".
    pub name: &'static str,
    /// What can be done with it.
    pub remedy: &'static str,
}

const AS_DIRECTORY: &str = "if it holds the weights of a Hugging Face model, name it pytorch_model.bin, put it beside \
                            the model's config.json and give the directory; a Whisper checkpoint is not a language model";
const CONVERT_TO_GGUF: &str = "convert the model's Hugging Face directory with llama.cpp's convert_hf_to_gguf.py, or \
                               give that directory itself";
const EXPORT_FROM_TRAINER: &str = "export the model to a Hugging Face directory with llama2.c's export.py \
                                   (`--version -1`), and give that directory";

impl FileKind {
    /// Bytes of a file that are needed to recognize it.
    pub(super) const BYTES: u64 = 256;

    /// Recognizes a file by its first bytes and, for a zip archive, by the names of its members.
    pub(super) fn of(path: &Path, start: &[u8]) -> Option<FileKind> {
        let kind = |name, remedy| Some(FileKind { name, remedy });
        if start.starts_with(b"PK\x03\x04") {
            return match archive_of_arrays(path) {
                Some(true) => kind(
                    "a NumPy archive (.npz) of arrays without a configuration",
                    "give a sparse autoencoder's archive to `sae inspect`; save a model as a Hugging Face directory",
                ),
                Some(false) => kind("a PyTorch file (torch.save) without the model's config.json", AS_DIRECTORY),
                None => kind("a zip archive", "unpack it, and give the model's directory"),
            };
        }
        if start.starts_with(b"\x93NUMPY") {
            return kind("a NumPy array (.npy)", "save the model as a Hugging Face directory");
        }
        if matches!(start, [0x80, 2..=5, ..]) {
            return kind(
                "a Python pickle, perhaps of PyTorch before version 1.6; it is never unpickled",
                "where you trust its origin, load and save it again with a current PyTorch",
            );
        }
        if [b"lmgg", b"tjgg", b"fmgg"].iter().any(|magic| start.starts_with(*magic)) {
            return kind("a ggml file from before GGUF", CONVERT_TO_GGUF);
        }
        if start.starts_with(b"\x89HDF\r\n") {
            return kind("an HDF5 file, perhaps of Keras", "save the model's weights as safetensors");
        }
        if start.starts_with(b"24ka") || is_llama2c(start) {
            return kind("a checkpoint of llama2.c", EXPORT_FROM_TRAINER);
        }
        None
    }
}

/// Whether the members of a zip archive are NumPy arrays (true) or those of `torch.save` (false).
fn archive_of_arrays(path: &Path) -> Option<bool> {
    let archive = zip::ZipArchive::new(open_regular(path).ok()?).ok()?;
    let names: Vec<String> = archive.file_names().filter_map(|name| Some(name.ok()?.into_owned())).take(64).collect();
    match names.iter().any(|name| name.ends_with("data.pkl")) {
        true => Some(false),
        false => names.iter().any(|name| name.ends_with(".npy")).then_some(true),
    }
}

/// Whether a file starts with the header of llama2.c's first format: dim, hidden_dim, n_layers,
/// n_heads, n_kv_heads, vocab_size (negative if the head is not tied), seq_len.
fn is_llama2c(start: &[u8]) -> bool {
    let number = |i: usize| start.get(4 * i..4 * i + 4)?.try_into().ok().map(i32::from_le_bytes);
    let Some([dim, hidden, layers, heads, kv_heads, vocab, context]) =
        (0..7).map(number).collect::<Option<Vec<_>>>().and_then(|header| <[i32; 7]>::try_from(header).ok())
    else {
        return false;
    };
    let plausible = (8..=1 << 16).contains(&dim)
        && (dim..=1 << 18).contains(&hidden)
        && (1..=256).contains(&layers)
        && (1..=1024).contains(&heads)
        && (1..=heads).contains(&kv_heads)
        && (64..=1 << 20).contains(&vocab.unsigned_abs())
        && (8..=1 << 20).contains(&context);
    plausible && dim % heads == 0 && heads % kv_heads == 0
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    #[test]
    fn r8_files_of_other_formats_are_named_with_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let name = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("written");
            crate::ModelSource::open(Some(&path)).map(drop).expect_err("no model").to_string()
        };
        let archive = |member: &str| {
            let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
            zip.start_file(member, zip::write::SimpleFileOptions::default()).expect("started");
            zip.write_all(b"x").expect("written");
            zip.finish().expect("finished").into_inner()
        };
        assert!(name(&archive("tiny/data.pkl")).contains("a PyTorch file"));
        assert!(name(&archive("layer.npy")).contains("a NumPy archive"));
        assert!(name(&archive("readme")).contains("a zip archive"));
        assert!(name(b"\x80\x02}q\x00.").contains("a Python pickle"));
        let header = [288, 768, 6, 6, 6, 32000, 256i32].map(i32::to_le_bytes).concat();
        assert!(name(&header).contains("a checkpoint of llama2.c"));
        let other = [288, 767, 6, 7, 6, 32000, 256i32].map(i32::to_le_bytes).concat();
        assert!(name(&other).contains("this file is not a model"));
    }
}
