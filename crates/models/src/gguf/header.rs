//! Reads and validates the header of a GGUF file: the metadata and the location of each tensor.
//!
//! The file is untrusted: every count and length is checked against the remaining bytes, and
//! nothing is allocated for a count before its elements have been read.

use std::collections::HashMap;

use pellucid_kernels::encoding::Encoding;

use super::Tensor;
use super::value::{Cursor, Value};
use crate::files::{FETCH_LFS, LFS_POINTER};

/// Remedy for most faults.
pub(super) const DAMAGED: &str = "the file is damaged or incomplete: download or convert it again";

/// A problem of the file, and its remedy.
pub(super) struct GgufFault {
    pub(super) problem: String,
    pub(super) remedy: String,
}

impl From<String> for GgufFault {
    fn from(problem: String) -> Self {
        GgufFault { problem, remedy: DAMAGED.into() }
    }
}

impl GgufFault {
    fn new(problem: impl Into<String>, remedy: impl Into<String>) -> GgufFault {
        GgufFault { problem: problem.into(), remedy: remedy.into() }
    }
}

/// The validated header; later code relies on its ranges being in bounds.
pub(super) struct Header {
    pub(super) metadata: HashMap<String, Value>,
    pub(super) tensors: Vec<Tensor>,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Header, GgufFault> {
        if bytes.starts_with(LFS_POINTER) {
            return Err(GgufFault::new("this is a Git LFS pointer, not the model", FETCH_LFS));
        }
        if bytes.get(..4) != Some(b"GGUF") {
            let problem = "not a GGUF file: it does not begin with the letters GGUF";
            return Err(GgufFault::new(problem, "give a .gguf file, or the directory of a Hugging Face model"));
        }
        let mut cursor = Cursor::new(bytes, 4);
        let version = cursor.u32("the version")?;
        match version {
            2 | 3 => {}
            // Byte-swapped, the version is valid: the file is big-endian.
            _ if (1..=3).contains(&version.swap_bytes()) => {
                return Err(GgufFault::new(
                    "a big-endian GGUF file",
                    "convert it with `gguf-convert-endian FILE little`",
                ));
            }
            _ => {
                let problem = format!("GGUF version {version}; versions 2 and 3 are supported");
                return Err(GgufFault::new(problem, "convert the model again with a current llama.cpp"));
            }
        }
        let tensor_count = cursor.u64("the number of tensors")?;
        let value_count = cursor.u64("the number of metadata values")?;
        // The counts only bound loops: each iteration consumes bytes, so an excessive count ends
        // with an error at the end of the file.
        let mut metadata = HashMap::new();
        for i in 0..value_count {
            let key = cursor.text(&format!("the key of metadata value {i}"))?;
            let value = cursor.value().map_err(|problem| format!("metadata value {key:?}: {problem}"))?;
            if metadata.insert(key.to_owned(), value).is_some() {
                return Err(format!("the metadata key {key:?} occurs twice").into());
            }
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Value::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 20 => *n,
            Some(other) => {
                return Err(format!("general.alignment is {other:?}, not a power of two up to a million").into());
            }
        };
        let mut tensors = Vec::new();
        for i in 0..tensor_count {
            tensors.push(TensorEntry::read(&mut cursor, i)?);
        }
        // The data starts at the next multiple of the alignment; a file without tensors may end
        // before it.
        let start = (cursor.at as u64).next_multiple_of(alignment);
        let tensors =
            tensors.into_iter().map(|t| t.locate(start, alignment, bytes.len())).collect::<Result<Vec<_>, _>>()?;
        reject_overlaps(&tensors)?;
        Ok(Header { metadata, tensors })
    }
}

/// A tensor's description in the header.
struct TensorEntry {
    name: String,
    shape: Vec<usize>,
    encoding: Encoding,
    bytes: usize,
    offset: u64,
}

impl TensorEntry {
    fn read(cursor: &mut Cursor, index: u64) -> Result<TensorEntry, GgufFault> {
        let name = cursor.text(&format!("the name of tensor {index}"))?.to_owned();
        let at = cursor.at;
        let named = |problem: String| format!("tensor {name:?}: {problem}");
        let dims = cursor.u32("the number of dimensions").map_err(named)?;
        if !(1..=4).contains(&dims) {
            return Err(named(format!("{dims} dimensions at byte {at}; there are 1 to 4")).into());
        }
        let mut shape = Vec::with_capacity(4);
        for _ in 0..dims {
            let at = cursor.at;
            let size = cursor.u64("a dimension").map_err(named)?;
            match usize::try_from(size) {
                Ok(size) if size > 0 => shape.push(size),
                _ => return Err(named(format!("a dimension of {size} at byte {at}")).into()),
            }
        }
        shape.reverse();
        let number = cursor.u32("the type").map_err(named)?;
        let offset = cursor.u64("the offset").map_err(named)?;
        let encoding = Encoding::from_ggml(number).ok_or_else(|| {
            let problem = named(format!("stored as ggml type {number}, which this build cannot read"));
            GgufFault::new(problem, "quantize the model to another type, such as Q8_0 or Q4_K")
        })?;
        let columns = shape.last().copied().unwrap_or(1);
        let rows = shape[..shape.len() - 1].iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let row_bytes = encoding.bytes_for(columns).ok_or_else(|| {
            named(format!("rows of {columns} values are not whole blocks of {} ({encoding})", encoding.block_len()))
        })?;
        let bytes = rows.and_then(|rows| rows.checked_mul(row_bytes));
        let bytes = bytes.ok_or_else(|| named(format!("the shape {shape:?} exceeds any memory")))?;
        Ok(TensorEntry { name, shape, encoding, bytes, offset })
    }

    /// Computes the tensor's byte range in the file.
    fn locate(self, start: u64, alignment: u64, file: usize) -> Result<Tensor, GgufFault> {
        let TensorEntry { name, shape, encoding, bytes, offset } = self;
        if offset % alignment != 0 {
            return Err(format!("tensor {name:?}: its offset {offset} is not a multiple of {alignment}").into());
        }
        let begin = start.checked_add(offset).and_then(|begin| usize::try_from(begin).ok());
        let range = begin.and_then(|begin| Some(begin..begin.checked_add(bytes)?)).filter(|range| range.end <= file);
        let range = range.ok_or_else(|| {
            format!("tensor {name:?}: {bytes} bytes at offset {offset} of the data reach past the end of the file ({file} bytes)")
        })?;
        Ok(Tensor { name, shape, encoding, range })
    }
}

fn reject_overlaps(tensors: &[Tensor]) -> Result<(), GgufFault> {
    let mut sorted: Vec<&Tensor> = tensors.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(format!("tensor {:?} occurs twice", pair[0].name).into());
    }
    sorted.sort_by_key(|tensor| tensor.range.start);
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].range.end > pair[1].range.start) {
        return Err(format!("tensors {:?} and {:?} share bytes of the file", pair[0].name, pair[1].name).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Writer, llama, string};
    use super::super::{GgufFile, hf_config, hf_names, special_tokens, tokenizer};
    use crate::Error;

    /// The error for a file that must be refused.
    fn problem(bytes: &[u8]) -> String {
        match GgufFile::parse(bytes, "x.gguf") {
            Err(Error::Invalid { problem, remedy, .. }) if !remedy.to_string().is_empty() => problem,
            other => panic!("not refused as invalid: {other:?}"),
        }
    }

    fn problem_of(change: impl Fn(&mut Writer) -> &mut Writer) -> String {
        let mut file = llama();
        change(&mut file);
        problem(&file.bytes())
    }

    #[test]
    fn a_valid_file_is_read() {
        let file = GgufFile::parse(llama().bytes(), "x.gguf").unwrap();
        assert_eq!(file.architecture().unwrap(), "llama");
        assert_eq!(file.number("llama.block_count").unwrap(), Some(2));
        assert_eq!(file.float("llama.attention.layer_norm_rms_epsilon").unwrap(), Some(1e-5));
        assert_eq!(file.number("absent").unwrap(), None);
        let embedding = file.tensor("token_embd.weight").unwrap();
        assert_eq!(embedding.shape, [5, 8]);
        assert_eq!(file.bytes(embedding), [0.5f32.to_le_bytes(); 40].concat());
        let error = file.number("general.architecture").unwrap_err().to_string();
        assert!(
            error.contains("general.architecture must be a non-negative integer; it is Text(\"llama\")"),
            "{error}"
        );
    }

    #[test]
    fn a_file_is_mapped_from_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("small.gguf");
        assert!(matches!(GgufFile::open(&path), Err(Error::Io { .. })));
        std::fs::write(&path, llama().bytes()).unwrap();
        assert_eq!(GgufFile::open(&path).unwrap().tensors().len(), 4);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(problem(b"").contains("does not begin with the letters GGUF"));
        assert!(problem(b"PK\x03\x04").contains("not a GGUF file"));
        assert!(problem(b"version https://git-lfs.github.com/spec/v1").contains("Git LFS pointer"));
        assert!(problem(b"GGUF\x01\0\0\0").contains("GGUF version 1; versions 2 and 3 are supported"));
        assert!(problem(b"GGUF\0\0\0\x03").contains("big-endian"));
        assert!(
            problem(b"GGUF\x03\0\0\0")
                .contains("the number of tensors at byte 8 takes 8 bytes, but the file ends 0 later")
        );
    }

    #[test]
    fn hostile_counts_and_lengths_are_refused() {
        let mut many = llama().bytes();
        many[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(problem(&many).contains("of tensor"), "{}", problem(&many));
        let mut many = llama().bytes();
        many[16..24].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
        assert!(problem(&many).contains("of metadata value"), "{}", problem(&many));

        let long = [&u64::MAX.to_le_bytes()[..], b"abc"].concat();
        let text = problem_of(|file| file.raw("t", 8, &long));
        assert!(text.starts_with("metadata value \"t\": the value at byte"), "{text}");
        assert!(text.contains("claims 18446744073709551615 bytes, but only"), "{text}");
        let array = problem_of(|file| file.array("a", 10, usize::MAX / 4, &[]));
        assert!(array.starts_with("metadata value \"a\": the array at byte"), "{array}");
        let array = problem_of(|file| file.array("a", 10, 200, &[0; 16]));
        assert!(array.contains("the array at byte") && array.contains("takes 1600 bytes"), "{array}");
        let kind = problem_of(|file| file.raw("k", 13, &[0; 8]));
        assert!(kind.contains("has the unknown type 13"), "{kind}");
    }

    #[test]
    fn deep_nesting_is_refused() {
        let mut nested = [4u32.to_le_bytes().to_vec(), 0u64.to_le_bytes().to_vec()].concat();
        for _ in 0..3 {
            nested = [&9u32.to_le_bytes(), &1u64.to_le_bytes()[..], &nested].concat();
        }
        let mut file = llama();
        file.raw("deep", 9, &nested);
        assert!(GgufFile::parse(file.bytes(), "x").is_ok());
        nested = [&9u32.to_le_bytes(), &1u64.to_le_bytes()[..], &nested].concat();
        let deeper = problem_of(|file| file.raw("deep", 9, &nested));
        assert!(deeper.contains("arrays are nested more than 4 deep"), "{deeper}");
    }

    #[test]
    fn invalid_metadata_is_refused() {
        assert_eq!(
            problem_of(|f| f.u32("llama.block_count", 3)),
            "the metadata key \"llama.block_count\" occurs twice"
        );
        for alignment in [0, 24] {
            let problem = problem_of(|f| f.u32("general.alignment", alignment));
            assert_eq!(
                problem,
                format!("general.alignment is Unsigned({alignment}), not a power of two up to a million")
            );
        }
        let text = [&1u64.to_le_bytes()[..], &[0xff]].concat();
        assert!(problem_of(|f| f.raw("t", 8, &text)).contains("is not valid UTF-8"));
    }

    #[test]
    fn impossible_tensors_are_refused() {
        let entry =
            |dims: &[u64], kind: u32, offset: u64| problem_of(|f| f.entry("t", dims, kind, offset, vec![0; 64]));
        assert!(entry(&[1; 5], 0, 640).starts_with("tensor \"t\": 5 dimensions at byte"));
        assert!(entry(&[], 0, 640).starts_with("tensor \"t\": 0 dimensions at byte"));
        assert!(entry(&[4, 0], 0, 640).starts_with("tensor \"t\": a dimension of 0 at byte"));
        assert_eq!(entry(&[4], 99, 640), "tensor \"t\": stored as ggml type 99, which this build cannot read");
        assert_eq!(entry(&[33], 2, 640), "tensor \"t\": rows of 33 values are not whole blocks of 32 (Q4_0)");
        assert!(entry(&[1 << 40, 1 << 40], 0, 640).ends_with("exceeds any memory"));
        assert_eq!(entry(&[4], 0, 641), "tensor \"t\": its offset 641 is not a multiple of 32");
        assert!(entry(&[4], 0, 1 << 40).contains("reach past the end of the file"));
        assert!(entry(&[4], 0, u64::MAX - 31).contains("reach past the end of the file"));
        assert_eq!(entry(&[4], 0, 0), "tensors \"t\" and \"token_embd.weight\" share bytes of the file");
        let twice = problem_of(|f| f.tensor("output_norm.weight", &[8], &[0.0; 8]));
        assert_eq!(twice, "tensor \"output_norm.weight\" occurs twice");
    }

    #[test]
    fn a_split_model_is_refused_with_the_command_to_merge_it() {
        let mut file = llama();
        file.u32("split.count", 3);
        let error = GgufFile::parse(file.bytes(), "x.gguf").unwrap().architecture().unwrap_err();
        assert_eq!(error.to_string(), "x.gguf is one of 3 parts of a model");
        assert!(error.remedy().unwrap().to_string().contains("llama-gguf-split --merge"));
    }

    /// A file with every kind of content, so that mutations reach all parsers.
    fn full() -> Vec<u8> {
        let mut file = llama();
        file.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", &["<unk>", "<s>", "a", "b", "ab"]);
        file.f32s("tokenizer.ggml.scores", &[0.0, 0.0, -1.0, -2.0, -3.0]);
        file.i32s("tokenizer.ggml.token_type", &[2, 3, 1, 1, 1]).u32("tokenizer.ggml.bos_token_id", 1);
        file.texts("tokenizer.ggml.merges", &["a b"]).text("tokenizer.ggml.pre", "llama-bpe");
        file.tensor("rope_freqs.weight", &[2], &[1.0, 8.0]);
        file.bytes()
    }

    /// Runs every parser on a file and ignores the results.
    fn exercise(bytes: Vec<u8>) {
        let Ok(file) = GgufFile::parse(bytes, "x.gguf") else { return };
        let _ = hf_config(&file);
        let _ = file.architecture().map(|arch| hf_names(arch, &file));
        let _ = special_tokens(&file);
        if let Ok(tokenizer) = tokenizer(&file) {
            let _ = tokenizer.encode("ab <s> ba", true);
        }
        for tensor in file.tensors() {
            let mut values = vec![0.0; tensor.shape.iter().product()];
            pellucid_kernels::encoding::decode(tensor.encoding, file.bytes(tensor), &mut values);
        }
    }

    #[test]
    fn truncated_files_do_not_panic() {
        let bytes = full();
        for length in 0..bytes.len() {
            exercise(bytes[..length].to_vec());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn flipped_bytes_do_not_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            let mut bytes = full();
            for (index, byte) in flips {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
            exercise(bytes);
        }

        #[test]
        fn overwritten_lengths_do_not_panic(at in any::<prop::sample::Index>(), length in prop_oneof![
            any::<u64>(), 0..2000u64, Just(u64::MAX), Just(i64::MAX as u64), Just(u64::from(u32::MAX)), Just(1 << 61)
        ]) {
            let mut bytes = full();
            let at = at.index(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
            exercise(bytes);
        }

        #[test]
        fn inserted_text_does_not_panic(at in any::<prop::sample::Index>(), text in ".{0,12}") {
            let mut bytes = full();
            let at = at.index(bytes.len());
            bytes.splice(at..at, string(&text));
            exercise(bytes);
        }
    }
}
