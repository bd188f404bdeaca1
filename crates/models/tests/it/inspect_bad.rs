//! Whatever is wrong with a directory is said with what to do about it, and loading refuses it, too.

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

/// The report, whose first problem says `what` and whose remedy says `remedy`; loading refuses, too.
fn refused(path: &Path, what: &str, remedy: &str) -> Report {
    let report = inspect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let first = report.problems.first().unwrap_or_else(|| panic!("no problem: {report:#?}"));
    assert!(first.what.contains(what) && first.remedy.contains(remedy), "{first:?}");
    assert!(!report.runs() && report.card().contains("It will not run"));
    assert!(LoadedModel::open(path, &LoadOptions::default(), &mut |_| {}).is_err(), "{what}: it loads nevertheless");
    report
}

#[test]
fn a_path_that_is_not_there_is_an_error_that_names_it() {
    let error = inspect(Path::new("/no/such/place")).expect_err("nothing is there").to_string();
    assert!(error.contains("/no/such/place"), "{error}");
    let file = copy("llama");
    let error = inspect(&file.path().join("config.json/x")).expect_err("a file has nothing inside").to_string();
    assert!(error.contains("config.json/x"), "{error}");
}

#[cfg(unix)]
#[test]
fn what_may_not_be_read_is_said_to_be_so() {
    use std::os::unix::fs::PermissionsExt;
    let dir = copy("llama");
    let closed = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    closed(&dir.path().join("config.json"), 0o000);
    // A superuser reads everything.
    let may = fs::read(dir.path().join("config.json")).is_ok();
    let report = inspect(dir.path()).expect("a report");
    assert_eq!(report.runs(), may);
    assert!(may || report.problems[0].what.contains("config.json"), "{report:#?}");
    closed(dir.path(), 0o000);
    let report = inspect(dir.path()).expect("a report");
    closed(dir.path(), 0o700);
    assert!(may || report.problems[0].what.contains("cannot be read"), "{report:#?}");
}

#[test]
fn empty_folders_and_things_of_the_wrong_kind() {
    let empty = tempfile::tempdir().expect("a directory");
    let report = refused(empty.path(), "the directory is empty", "model directory");
    assert_eq!((report.category, report.support), (Category::Unknown, Support::Unsupported));
    // A file where a folder is expected.
    let dir = copy("llama");
    refused(&dir.path().join("config.json"), "this file is no model", "directory");
    refused(&dir.path().join("model.safetensors"), "does not say which model", "give the directory that holds it");
    // Folders where files are expected.
    fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
    fs::create_dir(dir.path().join("model.safetensors")).expect("created");
    refused(dir.path(), "", "");
    let dir = copy("llama");
    fs::remove_file(dir.path().join("config.json")).expect("removed");
    fs::create_dir(dir.path().join("config.json")).expect("created");
    refused(dir.path(), "config.json is a directory", "anew");
}

#[cfg(unix)]
#[test]
fn links_that_lead_in_circles_or_nowhere() {
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
fn settings_that_are_not_text_or_too_long() {
    refused(with_config(b"{\"model_type\": \"lla\xffma\"}").path(), "config.json: not valid JSON", "get the file anew");
    let dir = copy("llama");
    // Nothing is written: the file is one hole.
    let file = fs::OpenOptions::new().write(true).open(dir.path().join("config.json")).expect("open");
    file.set_len(100 << 20).expect("grown");
    refused(dir.path(), "104857600 bytes, where no such file has more", "get the file anew");
}

#[cfg(unix)]
#[test]
fn names_of_files_that_are_not_text() {
    use std::os::unix::ffi::OsStrExt;
    let dir = copy("llama");
    fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe.safetensors")), b"x").expect("written");
    assert!(inspect(dir.path()).expect("a report").runs());
}

#[test]
fn json_that_means_harm() {
    let deep = [&b"{\"model_type\": \"llama\", \"x\": "[..], "[".repeat(100_000).as_bytes()].concat();
    refused(with_config(&deep).path(), "recursion limit", "get the file anew");
    let twice = fs::read_to_string(golden("llama").join("config.json")).expect("read");
    let twice = twice.replacen('{', "{\"hidden_size\": 4096,", 1);
    refused(with_config(twice.as_bytes()).path(), "the key \"hidden_size\" occurs twice", "correct it");
    for number in ["1e999999", "-1e999999"] {
        let config = format!("{{\"model_type\": \"llama\", \"rope_theta\": {number}}}");
        refused(with_config(config.as_bytes()).path(), "number out of range", "get the file anew");
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
fn pointers_of_git_lfs_are_said_to_be_so_wherever_they_are() {
    const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
    let spoilt = |model: &str, file: &str| {
        let dir = copy(model);
        fs::write(dir.path().join(file), POINTER).expect("written");
        dir
    };
    for (model, file) in [
        ("llama", "model.safetensors"),
        ("llama", "config.json"),
        ("llama-sharded", "model-00002-of-00004.safetensors"),
    ] {
        let dir = spoilt(model, file);
        let report = refused(dir.path(), "Git LFS pointer", "git lfs pull");
        assert!(report.problems[0].what.contains(file), "{report:#?}");
    }
    let dir = spoilt("llama", "model.gguf");
    refused(&dir.path().join("model.gguf"), "Git LFS pointer", "git lfs pull");
}

#[test]
fn a_shard_that_is_cut_off_is_named() {
    let dir = copy("llama-sharded");
    let shard = dir.path().join("model-00003-of-00004.safetensors");
    let bytes = fs::read(&shard).expect("read");
    fs::write(&shard, &bytes[..bytes.len() - 1]).expect("written");
    let report = refused(dir.path(), "model-00003-of-00004.safetensors", "");
    assert_eq!(report.parameters, inspect(&golden("llama-sharded")).expect("a report").parameters, "headers are whole");
}

#[test]
fn an_index_that_names_files_elsewhere_is_refused() {
    for elsewhere in ["../llama/model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "c:\\\\x.safetensors"] {
        let dir = copy("llama");
        fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
        let index = format!("{{\"weight_map\": {{\"a\": \"{elsewhere}\"}}}}");
        fs::write(dir.path().join("model.safetensors.index.json"), index).expect("written");
        let report = refused(dir.path(), "is not the plain name of a .safetensors file", "index");
        assert_eq!((report.parameters, report.file_bytes), (0, 0), "nothing outside was opened");
    }
}

#[test]
fn pickles_that_could_execute_something_are_refused_with_the_conversion() {
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
