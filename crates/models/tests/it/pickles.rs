//! Checkpoints of torch (pickles): the same tensors as safetensors, and no code is ever executed.
//! torch wrote the files in `tests/pickles` (tests/golden/pickles.py); the tests write the others.

use golden::temp_models::{self, Tensors, logits};
use pellucid_models::checkpoint::Checkpoint;
use pellucid_models::{LoadOptions, LoadedModel};
use proptest::prelude::*;
use safetensors::Dtype;
use std::io::Write;
use std::path::{Path, PathBuf};

fn torch_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pickles").join(name)
}

fn refusal(path: &Path) -> (String, String) {
    let error = Checkpoint::open_file(path).map(|_| ()).expect_err("refused");
    (error.to_string(), error.remedy().map(ToString::to_string).unwrap_or_default())
}

/// Writes a pickle as torch does.
#[derive(Default)]
struct Pickle(Vec<u8>);

impl Pickle {
    fn start() -> Pickle {
        Pickle(vec![0x80, 2])
    }

    fn raw(mut self, bytes: &[u8]) -> Pickle {
        self.0.extend(bytes);
        self
    }

    fn text(self, text: &str) -> Pickle {
        self.raw(b"X").raw(&(text.len() as u32).to_le_bytes()).raw(text.as_bytes())
    }

    fn int(self, number: i64) -> Pickle {
        self.raw(&[0x8A, 8]).raw(&number.to_le_bytes())
    }

    fn ints(self, numbers: &[i64]) -> Pickle {
        numbers.iter().fold(self.raw(b"("), |pickle, number| pickle.int(*number)).raw(b"t")
    }

    fn tensor(self, storage: &str, key: &str, elements: i64, offset: i64, shape: &[i64], strides: &[i64]) -> Pickle {
        let pickle = self.raw(b"ctorch._utils\n_rebuild_tensor_v2\n((").text("storage");
        let pickle =
            pickle.raw(format!("ctorch\n{storage}\n").as_bytes()).text(key).text("cpu").int(elements).raw(b"tQ");
        let pickle = pickle.int(offset).ints(shape).ints(strides);
        pickle.raw(b"\x89ccollections\nOrderedDict\n)RtR")
    }

    fn save(self, path: &Path, storages: &[(&str, &[u8])]) {
        let mut zip = zip::ZipWriter::new(std::fs::File::create(path).expect("a file"));
        let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        let files = storages.iter().map(|(key, bytes)| (format!("archive/data/{key}"), bytes.to_vec()));
        for (name, bytes) in [("archive/data.pkl".to_owned(), self.0)].into_iter().chain(files) {
            zip.start_file(name, stored).expect("started");
            zip.write_all(&bytes).expect("written");
        }
        zip.finish().expect("finished");
    }
}

/// Saves tensors as torch would.
fn save(path: &Path, tensors: &Tensors) {
    let mut pickle = Pickle::start().raw(b"ccollections\nOrderedDict\n)R(");
    for (index, (name, (dtype, shape, bytes))) in tensors.iter().enumerate() {
        let storage = match dtype {
            Dtype::F32 => "FloatStorage",
            Dtype::BF16 => "BFloat16Storage",
            other => panic!("{other:?}"),
        };
        let shape: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
        let strides: Vec<i64> = (1..=shape.len()).map(|axis| shape[axis..].iter().product()).collect();
        let elements = shape.iter().product();
        assert_eq!(bytes.len() % elements as usize, 0);
        pickle = pickle.text(name).tensor(storage, &index.to_string(), elements, 0, &shape, &strides);
    }
    let keys: Vec<String> = (0..tensors.len()).map(|index| index.to_string()).collect();
    let storages: Vec<(&str, &[u8])> =
        keys.iter().zip(tensors.values()).map(|(key, (.., bytes))| (key.as_str(), bytes.as_slice())).collect();
    pickle.raw(b"u.").save(path, &storages);
}

#[test]
fn torch_files_contain_the_same_tensors_as_safetensors() {
    let same = Checkpoint::open_file(&torch_file("same.safetensors")).expect("safetensors");
    for name in ["torch.bin", "nested.bin"] {
        let torch = Checkpoint::open_file(&torch_file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(torch.tensors().len(), same.tensors().len(), "{name}");
        for tensor in same.tensors() {
            let other = torch.get(&tensor.name).unwrap_or_else(|| panic!("{name}: {}", tensor.name));
            assert_eq!((&other.shape, other.dtype), (&tensor.shape, tensor.dtype), "{name}: {}", tensor.name);
            assert_eq!(torch.bytes(other), same.bytes(tensor), "{name}: {}", tensor.name);
        }
    }
}

#[test]
fn a_model_in_torch_files_runs_with_the_same_bits() {
    for (model, shards) in [("llama", 1), ("llama-bf16", 1), ("gpt2", 3)] {
        let (from, dir) = (golden::path(model), tempfile::tempdir().expect("a directory"));
        std::fs::copy(from.join("config.json"), dir.path().join("config.json")).expect("copied");
        let tensors = temp_models::read(&from.join("model.safetensors"));
        if shards == 1 {
            save(&dir.path().join("pytorch_model.bin"), &tensors);
        } else {
            let mut map = serde_json::Map::new();
            for shard in 0..shards {
                let file = format!("pytorch_model-0000{}-of-0000{shards}.bin", shard + 1);
                let part = tensors.iter().enumerate().filter(|(index, _)| index % shards == shard);
                let part: Tensors = part.map(|(_, (name, tensor))| (name.clone(), tensor.clone())).collect();
                part.keys().for_each(|name| drop(map.insert(name.clone(), file.clone().into())));
                save(&dir.path().join(file), &part);
            }
            let index = serde_json::json!({ "weight_map": map }).to_string();
            std::fs::write(dir.path().join("pytorch_model.bin.index.json"), index).expect("written");
        }
        let open = |path: &Path| {
            LoadedModel::open(path, &LoadOptions::default(), &mut |_| {}).unwrap_or_else(|e| panic!("{e}"))
        };
        assert_eq!(logits(&open(dir.path())), logits(&open(&from)), "{model}");
    }
}

#[test]
fn an_adapter_in_a_torch_file_gives_the_same_bits() {
    let golden = golden::quantized("lora");
    let (from, dir) = (golden.join("adapter"), tempfile::tempdir().expect("a directory"));
    std::fs::copy(from.join("adapter_config.json"), dir.path().join("adapter_config.json")).expect("copied");
    let open = |adapters: &[&Path]| {
        let adapters = adapters.iter().map(|path| path.to_path_buf()).collect();
        LoadedModel::open(&golden.join("base"), &LoadOptions { adapters, ..LoadOptions::default() }, &mut |_| {})
    };
    let error = open(&[dir.path()]).map(|_| ()).expect_err("no weights").to_string();
    assert!(error.contains("neither adapter_model.safetensors nor adapter_model.bin"), "{error}");

    let weights = dir.path().join("adapter_model.bin");
    save(&weights, &temp_models::read(&from.join("adapter_model.safetensors")));
    let [plain, merged, torch] =
        [&[][..], &[&*from], &[dir.path()]].map(|adapters| logits(&open(adapters).unwrap_or_else(|e| panic!("{e}"))));
    assert!(plain != merged && merged == torch);
    let [old, new] = [dir.path(), &from].map(|path| pellucid_models::inspect(path).expect("a report"));
    assert_eq!((old.category, old.tensors, old.parameters), (new.category, new.tensors, new.parameters));
    assert_eq!(old.modalities, new.modalities);

    std::fs::copy(torch_file("hostile.bin"), &weights).expect("copied");
    let error = open(&[dir.path()]).map(|_| ()).expect_err("malicious").to_string();
    assert!(error.contains("adapter_model.bin") && error.contains("`posix.system`"), "{error}");
}

#[test]
fn code_in_a_pickle_is_refused_by_name_and_not_executed() {
    let (text, remedy) = refusal(&torch_file("hostile.bin"));
    assert!(text.contains("`posix.system`") && remedy.contains("a pickle can execute code"), "{text}: {remedy}");
    let dir = tempfile::tempdir().expect("a directory");
    let (path, marker) = (dir.path().join("x.bin"), dir.path().join("executed"));
    let command = format!("touch {}", marker.display());
    for (module, name) in [
        ("os", "system"),
        ("builtins", "eval"),
        ("torch", "load"),
        ("torch.FloatStorage", "x"),
        ("collections", "deque"),
    ] {
        let global = format!("c{module}\n{name}\n");
        let calls = [
            Pickle::start().raw(global.as_bytes()).text(&command).raw(b"\x85R."),
            Pickle::start().text(module).text(name).raw(b"\x93").text(&command).raw(b"\x85R."),
            Pickle::start().raw(b"}").text("x").raw(global.as_bytes()).raw(b")Rs."),
        ];
        for call in calls {
            call.save(&path, &[]);
            let (text, _) = refusal(&path);
            assert!(text.contains(&format!("imports `{module}.{name}`")), "{text}");
        }
    }
    // Opcodes that construct other objects, or use extensions.
    for code in [&b"i__main__\nX\n."[..], b"\x81.", b"K\x01}b.", b"\x92.", b"P1\n.", b"o.", b"\x82\x01."] {
        Pickle::start().raw(code).save(&path, &[]);
        assert!(!refusal(&path).0.is_empty());
    }
    assert!(!marker.exists(), "a pickle was executed");
}

#[test]
fn torch_files_that_cannot_be_read_name_the_conversion() {
    let (text, remedy) = refusal(&torch_file("legacy.bin"));
    assert!(text.contains("before version 1.6") && remedy.contains("safe_serialization"), "{text}: {remedy}");
    let (text, remedy) = refusal(&torch_file("strided.bin"));
    assert!(
        text.contains("`turned`") && text.contains("not contiguous") && remedy.contains("save_file"),
        "{text}: {remedy}"
    );
}

#[test]
fn tensor_descriptions_that_do_not_fit_the_file_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("x.bin");
    let data = [0u8; 24];
    for (elements, offset, shape, expected) in [
        (6, 1, &[2, 3][..], "extends past the end of its storage"),
        (6, i64::MAX, &[2, 3], "extends past the end of its storage"),
        (6, -1, &[2, 3], "with invalid arguments"),
        (6, 0, &[2, -3], "with invalid arguments"),
        (6, 0, &[i64::MAX, i64::MAX], "extends past the end of its storage"),
        (7, 0, &[2, 3], "7 elements of F32 in a storage of 24 bytes"),
        (i64::MAX, 0, &[2, 3], "in a storage of 24 bytes"),
        (-1, 0, &[2, 3], "not a storage"),
    ] {
        let pickle = Pickle::start().raw(b"}").text("t").tensor("FloatStorage", "0", elements, offset, shape, &[3, 1]);
        pickle.raw(b"s.").save(&path, &[("0", &data)]);
        assert!(refusal(&path).0.contains(expected), "{expected}: {}", refusal(&path).0);
    }
    let pickle = || Pickle::start().raw(b"}").text("t").tensor("FloatStorage", "0", 6, 0, &[2, 3], &[3, 1]);
    pickle().raw(b"s.").save(&path, &[("1", &data)]);
    assert!(refusal(&path).0.contains("its storage `0` is missing"));
    pickle().raw(b"s").text("t").tensor("FloatStorage", "0", 6, 0, &[6], &[1]).raw(b"s.").save(&path, &[("0", &data)]);
    assert!(refusal(&path).0.contains("tensor `t` occurs twice"));
    pickle().raw(b"s").save(&path, &[("0", &data)]);
    assert!(refusal(&path).0.contains("the pickle is truncated"));
    Pickle::start().raw(b"K\x01.").save(&path, &[]);
    assert!(refusal(&path).0.contains("not contain a dictionary"));
    // Deep nesting does not overflow the stack.
    let deep = Pickle::start().raw(b"}").raw(&vec![0x85; 1_000_000]).raw(b".");
    deep.save(&path, &[]);
    assert!(refusal(&path).0.contains("not contain a dictionary"));
    std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n").expect("written");
    let (text, remedy) = refusal(&path);
    assert!(text.contains("Git LFS pointer") && remedy.contains("git lfs pull"), "{text}: {remedy}");
}

#[test]
fn shards_outside_the_directory_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for shard in ["../x.bin", "/etc/x.bin", "sub/x.bin", "x.safetensors"] {
        let index = serde_json::json!({ "weight_map": { "t": shard } }).to_string();
        std::fs::write(dir.path().join("pytorch_model.bin.index.json"), index).expect("written");
        let error = Checkpoint::open(dir.path()).map(|_| ()).expect_err("outside");
        assert!(error.to_string().contains("is not the plain name of a .bin file"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Truncated or changed anywhere, a file is read or refused, without a panic.
    #[test]
    fn a_damaged_file_never_panics(cut in 0usize..4000, offset in 0usize..4000, byte: u8) {
        let whole = std::fs::read(torch_file("torch.bin")).expect("a file");
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.bin");
        let mut damaged = whole.clone();
        let offset = offset % damaged.len();
        damaged[offset] = byte;
        std::fs::write(&path, &damaged).expect("written");
        if let Ok(checkpoint) = Checkpoint::open_file(&path) {
            checkpoint.tensors().for_each(|tensor| assert_eq!(checkpoint.bytes(tensor).len(), tensor.byte_len()));
        }
        std::fs::write(&path, &whole[..cut.min(whole.len() - 1)]).expect("written");
        prop_assert!(Checkpoint::open_file(&path).is_err());
    }
}

#[test]
fn f3_a_pickle_that_names_one_tensor_many_times_costs_no_more_than_its_length() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pytorch_model.bin");
    let long = "k".repeat(1 << 20);
    // The memo holds the name and the tensor; each further entry takes four bytes.
    let start = || Pickle::start().raw(b"}").text(&long).raw(b"q\0").tensor("FloatStorage", "0", 1, 0, &[1], &[1]);
    let twice = start().raw(b"q\x01s(").raw(&b"h\0h\x01".repeat(250_000)).raw(b"u.");
    twice.save(&path, &[("0", &[0; 4])]);
    let (problem, remedy) = refusal(&path);
    assert!(problem.contains("tensor `kkk") && problem.ends_with("…` occurs twice"), "{problem}");
    assert!(problem.len() < 1000 && remedy.contains("download it again"), "{} {remedy}", problem.len());
    // The same arguments, called a million times, would be a million tensors of 64 dimensions.
    let calls = Pickle::start().raw(b"}X\x01\0\0\0a").tensor("FloatStorage", "0", 1, 0, &[1; 64], &[1; 64]);
    let calls = calls.raw(b"sctorch._utils\n_rebuild_tensor_v2\nq\x02((").text("storage");
    let calls = calls.raw(b"ctorch\nFloatStorage\n").text("0").text("cpu").int(1).raw(b"tQ").int(0);
    let calls = calls.ints(&[1; 64]).ints(&[1; 64]).raw(b"tq\x03").raw(&b"h\x02h\x03R".repeat(1 << 20)).raw(b".");
    calls.save(&path, &[("0", &[0; 4])]);
    assert!(refusal(&path).0.contains("dimensions in all"), "{:?}", refusal(&path));
}
