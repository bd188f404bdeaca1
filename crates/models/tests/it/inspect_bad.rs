//! Damaged and malicious model directories: `inspect` reports the problem with a remedy, and
//! loading fails, too.

use crate::directories::golden;
use golden::temp_models::copy;
use pellucid_models::inspect::{Category, Report, Support};
use pellucid_models::{LoadOptions, LoadedModel, inspect};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn with_config(config: &[u8]) -> TempDir {
    let dir = copy("llama");
    fs::write(dir.path().join("config.json"), config).expect("written");
    dir
}

/// Inspects a path and returns the report. Asserts that its first problem contains `what`, that the
/// problem's remedy contains `remedy`, and that loading fails.
fn refused(path: &Path, what: &str, remedy: &str) -> Report {
    let report = inspect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let first = report.problems.first().unwrap_or_else(|| panic!("no problem: {report:#?}"));
    assert!(first.what.contains(what) && first.remedy.to_string().contains(remedy), "{first:?}");
    assert!(!report.runs() && report.card().contains("It will not run"));
    assert!(LoadedModel::open(path, &LoadOptions::default(), &mut |_| {}).is_err(), "{what}: it loads");
    report
}

#[test]
fn a_missing_path_is_an_error_that_names_it() {
    let error = inspect(Path::new("/no/such/place")).expect_err("there is no such path").to_string();
    assert!(error.contains("/no/such/place"), "{error}");
    let file = copy("llama");
    let error = inspect(&file.path().join("config.json/x")).expect_err("a file is not a directory").to_string();
    assert!(error.contains("config.json/x"), "{error}");
}

#[cfg(unix)]
#[test]
fn unreadable_files_and_directories_are_reported() {
    use std::os::unix::fs::PermissionsExt;
    let dir = copy("llama");
    let set_mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    set_mode(&dir.path().join("config.json"), 0o000);
    // Root can read the file nevertheless.
    let readable = fs::read(dir.path().join("config.json")).is_ok();
    let report = inspect(dir.path()).expect("a report");
    assert_eq!(report.runs(), readable);
    assert!(readable || report.problems[0].what.contains("config.json"), "{report:#?}");
    set_mode(dir.path(), 0o000);
    let report = inspect(dir.path()).expect("a report");
    set_mode(dir.path(), 0o700);
    assert!(readable || report.problems[0].what.contains("cannot be read"), "{report:#?}");
}

#[test]
fn empty_directories_and_files_of_the_wrong_kind_are_refused() {
    let empty = tempfile::tempdir().expect("a directory");
    let report = refused(empty.path(), "the directory is empty", "model directory");
    assert_eq!((report.category, report.support), (Category::Unknown, Support::Unsupported));
    // A file instead of a directory.
    let dir = copy("llama");
    refused(&dir.path().join("config.json"), "this file is not a model", "directory");
    refused(
        &dir.path().join("model.safetensors"),
        "does not identify its model",
        "give the directory that contains it",
    );
    // Directories instead of files.
    fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
    fs::create_dir(dir.path().join("model.safetensors")).expect("created");
    refused(dir.path(), "", "");
    let dir = copy("llama");
    fs::remove_file(dir.path().join("config.json")).expect("removed");
    fs::create_dir(dir.path().join("config.json")).expect("created");
    refused(dir.path(), "config.json is a directory", "download the model again");
}

#[cfg(unix)]
#[test]
fn cyclic_and_dangling_symlinks_count_as_missing_files() {
    let dir = copy("llama");
    fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
    for (to, from) in [("model.safetensors", "model.safetensors"), ("..", "up"), ("/nowhere", "tokenizer.json")] {
        std::os::unix::fs::symlink(to, dir.path().join(from)).expect("linked");
    }
    let report = refused(dir.path(), "no weights here", "safetensors");
    assert_eq!(report.support, Support::Native);
    assert!(inspect(&dir.path().join("model.safetensors")).is_err());
}

#[test]
fn a_config_that_is_not_utf8_or_too_long_is_refused() {
    refused(
        with_config(b"{\"model_type\": \"lla\xffma\"}").path(),
        "config.json: not valid JSON",
        "download the file again",
    );
    let dir = copy("llama");
    // A sparse file: no data is written.
    let file = fs::OpenOptions::new().write(true).open(dir.path().join("config.json")).expect("open");
    file.set_len(100 << 20).expect("grown");
    refused(dir.path(), "the file has 104857600 bytes; the limit for such files is", "download the file again");
}

#[cfg(unix)]
#[test]
fn file_names_that_are_not_utf8_do_no_harm() {
    use std::os::unix::ffi::OsStrExt;
    let dir = copy("llama");
    fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe.safetensors")), b"x").expect("written");
    assert!(inspect(dir.path()).expect("a report").runs());
}

#[test]
fn malicious_json_is_refused() {
    let deep = [&b"{\"model_type\": \"llama\", \"x\": "[..], "[".repeat(100_000).as_bytes()].concat();
    refused(with_config(&deep).path(), "recursion limit", "download the file again");
    let twice = fs::read_to_string(golden("llama").join("config.json")).expect("read");
    let twice = twice.replacen('{', "{\"hidden_size\": 4096,", 1);
    refused(with_config(twice.as_bytes()).path(), "the key \"hidden_size\" occurs twice", "correct it");
    for number in ["1e999999", "-1e999999"] {
        let config = format!("{{\"model_type\": \"llama\", \"rope_theta\": {number}}}");
        refused(with_config(config.as_bytes()).path(), "number out of range", "download the file again");
    }
    let digits = format!("{{\"model_type\": \"llama\", \"hidden_size\": {}}}", "9".repeat(100_000));
    assert!(!inspect(with_config(digits.as_bytes()).path()).expect("a report").runs());
    refused(
        with_config(b"{\"model_type\": \"llama\", \"hidden_size\": 18446744073709551615}").path(),
        "hidden_size",
        "",
    );
}

#[test]
fn git_lfs_pointers_are_recognized_in_any_file() {
    const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
    let with_pointer = |model: &str, file: &str| {
        let dir = copy(model);
        fs::write(dir.path().join(file), POINTER).expect("written");
        dir
    };
    for (model, file) in [
        ("llama", "model.safetensors"),
        ("llama", "config.json"),
        ("llama-sharded", "model-00002-of-00004.safetensors"),
    ] {
        let dir = with_pointer(model, file);
        let report = refused(dir.path(), "Git LFS pointer", "git lfs pull");
        assert!(report.problems[0].what.contains(file), "{report:#?}");
    }
    let dir = with_pointer("llama", "model.gguf");
    refused(&dir.path().join("model.gguf"), "Git LFS pointer", "git lfs pull");
}

#[test]
fn a_truncated_shard_is_named() {
    let dir = copy("llama-sharded");
    let shard = dir.path().join("model-00003-of-00004.safetensors");
    let bytes = fs::read(&shard).expect("read");
    fs::write(&shard, &bytes[..bytes.len() - 1]).expect("written");
    let report = refused(dir.path(), "model-00003-of-00004.safetensors", "");
    assert_eq!(
        report.parameters,
        inspect(&golden("llama-sharded")).expect("a report").parameters,
        "the headers are complete"
    );
}

#[test]
fn an_index_with_paths_outside_the_directory_is_refused() {
    for path in ["../llama/model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "c:\\\\x.safetensors"] {
        let dir = copy("llama");
        fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
        let index = format!("{{\"weight_map\": {{\"a\": \"{path}\"}}}}");
        fs::write(dir.path().join("model.safetensors.index.json"), index).expect("written");
        let report = refused(dir.path(), "is not the plain name of a .safetensors file", "index");
        assert_eq!((report.parameters, report.file_bytes), (0, 0), "nothing outside was opened");
    }
}

#[test]
fn pickles_that_could_execute_code_are_refused_with_a_conversion() {
    let cases = [
        ("pytorch_model.bin", "never unpickled", "safe_serialization=True"),
        ("consolidated.00.pth", "there are pickles", "safe_serialization=True"),
        ("pytorch_model.bin.index.json", "not a valid shard index", "again"),
    ];
    for (file, what, remedy) in cases {
        let dir = copy("llama");
        fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
        fs::write(dir.path().join(file), b"\x80\x02cos\nsystem\n").expect("written");
        let report = refused(dir.path(), what, remedy);
        assert_eq!(report.support, Support::Native);
    }
}

/// Every small file of a model's directory, replaced by a pipe and by a link to a device.
#[cfg(unix)]
#[test]
fn f13_a_fifo_or_device_in_place_of_a_small_file_neither_hangs_nor_is_read() {
    let names = [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "chat_template.json",
        "tokenizer.model",
        "tekken.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "x.tiktoken",
        "quantize_config.json",
        "quant_config.json",
        "README.md",
        "model.safetensors",
        "model.safetensors.index.json",
        "adapter_config.json",
    ];
    for name in names {
        for device in [false, true] {
            let dir = copy("llama");
            let path = dir.path().join(name);
            let _ = fs::remove_file(&path);
            if device {
                std::os::unix::fs::symlink("/dev/zero", &path).expect("linked");
            } else {
                let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
                assert!(made.success());
            }
            // A hang would end the test run without naming the file.
            let (sender, receiver) = std::sync::mpsc::channel();
            let root = dir.path().to_owned();
            std::thread::spawn(move || {
                let report = inspect(&root).expect("a report");
                let loaded = pellucid_models::LoadedModel::open(&root, &Default::default(), &mut |_| {});
                let _ = sender.send((report.runs(), loaded.is_ok()));
            });
            let answer = receiver.recv_timeout(std::time::Duration::from_secs(60));
            assert!(answer.is_ok(), "{name} (device: {device}): {answer:?}");
        }
    }
}
