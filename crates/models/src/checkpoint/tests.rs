//! Round trips, and malformed files, each with its own error message.

use std::path::Path;

use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};

use super::*;

/// A file with this header and data.
fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// A valid file of u8 vectors.
fn good(tensors: &[(&str, &[u8])]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|&(name, data)| (name, TensorView::new(Dtype::U8, vec![data.len()], data).expect("whole bytes")));
    safetensors::serialize(views, None).expect("serializes")
}

fn open(file: &[u8]) -> Result<Checkpoint> {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join(SAFETENSORS_FILE), file).expect("written");
    Checkpoint::open(dir.path())
}

/// The error message for a file; also checks that there is a remedy.
fn message(file: &[u8]) -> String {
    message_of(open(file).expect_err("must be refused"))
}

fn message_of(error: Error) -> String {
    assert!(error.remedy().is_some_and(|remedy| !remedy.to_string().is_empty()), "no remedy for: {error}");
    error.to_string()
}

#[track_caller]
fn refused(file: &[u8], part: &str) {
    let message = message(file);
    assert!(message.contains(part), "wanted `{part}` in: {message}");
}

fn write_shards(dir: &Path, index: &str, shards: &[(&str, Vec<u8>)]) {
    std::fs::write(dir.join(SAFETENSORS_INDEX), index).expect("written");
    for (name, file) in shards {
        std::fs::write(dir.join(name), file).expect("written");
    }
}

#[test]
fn reads_files_written_by_the_safetensors_crate() {
    let floats: Vec<u8> = [1.5f32, -2.0, 0.25, 8.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let file = safetensors::serialize(
        [
            ("a", TensorView::new(Dtype::F32, vec![2, 2], &floats).expect("fits")),
            ("scalar", TensorView::new(Dtype::BF16, vec![], &[1, 2]).expect("fits")),
            ("empty", TensorView::new(Dtype::F16, vec![3, 0], &[]).expect("fits")),
        ],
        Some([("format".to_owned(), "pt".to_owned())].into()),
    )
    .expect("serializes");
    let checkpoint = open(&file).expect("opens");
    assert_eq!(checkpoint.tensors().len(), 3);
    let a = checkpoint.get("a").expect("there");
    assert_eq!((a.dtype, a.shape.as_slice(), a.elements(), a.byte_len()), (StoredType::F32, &[2, 2][..], 4, 16));
    assert_eq!(checkpoint.bytes(a), floats);
    let scalar = checkpoint.get("scalar").expect("there");
    assert_eq!((scalar.elements(), checkpoint.bytes(scalar)), (1, &[1u8, 2][..]));
    let empty = checkpoint.get("empty").expect("there");
    assert_eq!((empty.elements(), checkpoint.bytes(empty).len()), (0, 0));
    assert!(checkpoint.get("b").is_none());
    // Released pages are reloaded with the same bytes.
    checkpoint.tensors().for_each(|tensor| checkpoint.release_pages(tensor));
    assert_eq!(checkpoint.bytes(a), floats);
}

#[test]
fn embedded_bytes_are_validated_like_files() {
    let file: &'static [u8] = good(&[("a", b"xyz")]).leak();
    let checkpoint = Checkpoint::from_static(file, "built-in").expect("opens");
    let a = checkpoint.get("a").expect("there");
    checkpoint.release_pages(a);
    assert_eq!(checkpoint.bytes(a), b"xyz");
    assert_eq!(checkpoint.path(a), Path::new("built-in"));
    let error = Checkpoint::from_static(&file[..file.len() - 1], "built-in").expect_err("truncated");
    assert!(message_of(error).starts_with("built-in: tensor `a`: its data ends at byte 3"));
}

#[test]
fn a_checkpoint_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Checkpoint>();
}

#[test]
fn every_dtype_has_the_name_and_width_of_the_specification() {
    for &dtype in StoredType::ALL {
        let reference: Dtype = serde_json::from_str(&format!("\"{dtype}\"")).expect("known to the safetensors crate");
        assert_eq!((reference.bitsize(), reference.to_string().as_str()), (dtype.bits(), dtype.name()));
        assert_eq!(StoredType::from_name(dtype.name()), Some(dtype));
    }
}

#[test]
fn invalid_lengths_are_refused() {
    refused(b"", "0 bytes, too few");
    refused(&[0; 7], "7 bytes, too few");
    refused(&[0xff; 16], "the header length is 18446744073709551615 bytes; safetensors allows at most");
    let mut long = raw("{}", b"");
    long[0] = 200;
    refused(&long, "the header length is 200 bytes, but only 2 bytes follow");
    let file = good(&[("a", b"0123456789")]);
    refused(&file[..file.len() - 4], "tensor `a`: its data ends at byte 10, and the file's data has only 6");
    refused(&[&file[..], b"more"].concat(), "4 bytes at the end of the file belong to no tensor");
    refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer");
}

#[test]
fn malformed_headers_are_refused() {
    let one = |info: &str, data: &[u8]| raw(&format!("{{\"t\":{info}}}"), data);
    refused(&raw("", b""), "the header is not valid: ");
    refused(&raw("[]", b""), "the header is not valid: ");
    refused(&raw("{\"a", b""), "the header is not valid: ");
    refused(&raw(&"[".repeat(100_000), b""), "the header is not valid: ");
    refused(&raw("{\"__metadata__\":{\"a\":1}}", b""), "`__metadata__` is not a map of strings");
    refused(&one(r#"{"dtype":"U9","shape":[1],"data_offsets":[0,1]}"#, b"x"), "tensor `t`: unknown dtype `U9`");
    refused(&one(r#"{"dtype":"U8","data_offsets":[0,1]}"#, b"x"), "tensor `t`: its description is not valid");
    refused(
        &one(r#"{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}"#, b"x"),
        "tensor `t`: its description is not valid",
    );
    refused(
        &one(r#"{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}"#, b"x"),
        "tensor `t`: its description is not valid: duplicate field",
    );
    refused(&one(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,1]}"#, b"x"), "needs 8 bytes, its data has 1");
    refused(&one(r#"{"dtype":"U8","shape":[1],"data_offsets":[1,0]}"#, b"x"), "ends at 0, before its start 1");
    refused(&one(r#"{"dtype":"F4","shape":[3],"data_offsets":[0,2]}"#, b"xy"), "does not fill whole bytes");
    for shape in ["[4294967296,4294967296]", "[9223372036854775807,2]", "[2305843009213693952]"] {
        let info = format!(r#"{{"dtype":"U64","shape":{shape},"data_offsets":[0,1]}}"#);
        refused(&one(&info, b"x"), "more bytes than can be addressed");
    }
    let huge = r#"{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}"#;
    refused(&one(huge, b"x"), "more bytes than can be addressed");
}

#[test]
fn data_must_be_covered_exactly_once() {
    let two = |a: &str, b: &str| {
        let info = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[2],"data_offsets":{offsets}}}"#);
        raw(&format!(r#"{{"a":{},"b":{}}}"#, info(a), info(b)), b"wxyz")
    };
    assert!(open(&two("[2,4]", "[0,2]")).is_ok());
    refused(&two("[0,2]", "[1,3]"), "tensors `a` and `b` overlap");
    refused(&two("[0,2]", "[0,2]"), "tensors `a` and `b` overlap");
    let info = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[1],"data_offsets":{offsets}}}"#);
    refused(&raw(&format!(r#"{{"a":{},"b":{}}}"#, info("[0,1]"), info("[2,3]")), b"xyz"), "1 bytes before tensor `b`");
    let info = info("[0,1]");
    refused(&raw(&format!(r#"{{"a":{info},"a":{info}}}"#), b"x"), "the key \"a\" occurs twice");
}

#[test]
fn shards_round_trip_and_surplus_is_listed() {
    let dir = tempfile::tempdir().expect("a directory");
    let index = r#"{"metadata":{"total_size":5},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    let shards =
        [("m-1.safetensors", good(&[("a", b"12")])), ("m-2.safetensors", good(&[("b", b"345"), ("extra", b"6")]))];
    write_shards(dir.path(), index, &shards);
    let checkpoint = Checkpoint::open(dir.path()).expect("opens");
    let read: Vec<_> = checkpoint.tensors().map(|t| (t.name.as_str(), checkpoint.bytes(t))).collect();
    assert_eq!(read, [("a", &b"12"[..]), ("b", &b"345"[..])]);
    let surplus: Vec<_> = checkpoint.surplus().map(|t| (t.name.as_str(), checkpoint.path(t))).collect();
    assert_eq!(surplus, [("extra", dir.path().join("m-2.safetensors").as_path())]);
    assert!(checkpoint.get("extra").is_none());
}

#[test]
fn a_malformed_index_is_refused() {
    let refuse = |index: &str, part: &str| {
        let dir = tempfile::tempdir().expect("a directory");
        let shards = [("m-1.safetensors", good(&[("a", b"1")])), ("m-2.safetensors", good(&[("b", b"2")]))];
        write_shards(dir.path(), index, &shards);
        let message = message_of(Checkpoint::open(dir.path()).expect_err("must be refused"));
        assert!(message.contains(part), "wanted `{part}` in: {message}");
    };
    refuse("{", "not a valid shard index");
    refuse("{}", "not a valid shard index: missing field `weight_map`");
    refuse(r#"{"weight_map":{}}"#, "names no tensor");
    refuse(r#"{"weight_map":{"a":"m-1.safetensors","a":"m-2.safetensors"}}"#, "the key \"a\" occurs twice");
    for name in [
        "../m-1.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        "./m-1.safetensors",
        "..",
        "",
        SAFETENSORS_INDEX,
    ] {
        let index = format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
        refuse(&index, "is not the plain name of a .safetensors file");
    }
    refuse(r#"{"weight_map":{"a":"C:\\m-1.safetensors"}}"#, "is not the plain name");
    refuse(r#"{"weight_map":{"a":"m-1.safetensors\u0000"}}"#, "is not the plain name");
    refuse(
        r#"{"weight_map":{"a":"m-1.safetensors","b":"m-3.safetensors"}}"#,
        "1 of 2 shards are missing: m-3.safetensors",
    );
    refuse(r#"{"weight_map":{"a":"m-2.safetensors","b":"m-2.safetensors"}}"#, "tensor `a` is not in m-2.safetensors");
    refuse(
        r#"{"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors"}}"#,
        "tensor `a` should be in m-2.safetensors and is in m-1.safetensors (and 1 more)",
    );
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let index = r#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    let shards = [("m-1.safetensors", good(&[("a", b"1")])), ("m-2.safetensors", good(&[("a", b"1"), ("b", b"2")]))];
    write_shards(dir.path(), index, &shards);
    let message = message_of(Checkpoint::open(dir.path()).expect_err("must be refused"));
    assert!(message.ends_with("m-2.safetensors: tensor `a` is also in m-1.safetensors"), "{message}");
}

#[test]
fn the_error_for_a_directory_without_weights_names_the_files_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let put = |name: &str| std::fs::write(dir.path().join(name), b"x").expect("written");
    let message = || message_of(Checkpoint::open(dir.path()).expect_err("must be refused"));
    assert!(message().contains("no weights here"));
    put("weights.pt");
    assert!(message().contains("there are pickles (weights.pt)"), "{}", message());
    let error = Checkpoint::open(dir.path()).expect_err("must be refused");
    assert!(
        matches!(&error, Error::Unsupported { remedy, .. } if remedy.to_string().contains("safe_serialization=True"))
    );
    put("model-00001-of-00002.safetensors");
    assert!(message().contains("only model-00001-of-00002.safetensors"));
    put("abc.incomplete");
    assert!(message().contains("the download was not finished: abc.incomplete"));
    let file = dir.path().join("abc.incomplete");
    assert!(message_of(Checkpoint::open(&file).expect_err("a file")).contains("is a file"));
    assert!(matches!(Checkpoint::open(&dir.path().join("nowhere")), Err(Error::Io { .. })));
}

proptest! {
    /// Opening a mutated file either fails with an error or gives tensors that can be read.
    #[test]
    fn no_mutation_panics(
        cut in 0usize..400,
        flips in prop::collection::vec((0usize..400, any::<u8>()), 0..6),
        length in prop::option::of(any::<u64>()),
        splice in prop::option::of((8usize..200, "[0-9\\[\\]{}\",:-]{0,12}")),
    ) {
        let mut file = good(&[("first", b"0123456789"), ("second", b"abc"), ("third", b"")]);
        if let Some(length) = length {
            file[..8].copy_from_slice(&(length >> (length % 64)).to_le_bytes());
        }
        if let Some((at, text)) = splice {
            let at = at.min(file.len());
            file.splice(at..at, text.bytes());
        }
        for (at, byte) in flips {
            let at = at % file.len();
            file[at] = byte;
        }
        file.truncate(file.len().saturating_sub(cut / 8));
        match open(&file) {
            Ok(checkpoint) => for tensor in checkpoint.tensors() {
                prop_assert_eq!(checkpoint.bytes(tensor).len() * 8, tensor.elements() * tensor.dtype.bits());
                checkpoint.release_pages(tensor);
            },
            Err(error) => { message_of(error); }
        }
    }

    /// The same for an index.
    #[test]
    fn no_index_mutation_panics(at in 0usize..100, byte in any::<u8>(), cut in 0usize..100) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut index = br#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#.to_vec();
        let at = at % index.len();
        index[at] = byte;
        index.truncate(index.len().saturating_sub(cut / 10));
        std::fs::write(dir.path().join(SAFETENSORS_INDEX), index).expect("written");
        write_shard_pair(dir.path());
        if let Err(error) = Checkpoint::open(dir.path()) {
            message_of(error);
        }
    }
}

fn write_shard_pair(dir: &Path) {
    for (name, tensor) in [("m-1.safetensors", "a"), ("m-2.safetensors", "b")] {
        std::fs::write(dir.join(name), good(&[(tensor, b"1")])).expect("written");
    }
}
