//! Output files of every kind.

use super::*;
use std::collections::HashMap;
use std::os::unix::fs::{PermissionsExt, symlink};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("read")
        .flatten()
        .map(|entry| entry.file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o7777
}

#[test]
fn f15_a_file_is_replaced_with_its_mode_and_nothing_else_is_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out");
    write(&path, b"first").expect("written");
    let umask = 0o666 & !mode(&path);
    assert!(umask == 0o022 || umask == 0o002 || umask == 0o077 || umask == 0, "usual permissions: {umask:o}");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
    write(&path, b"second").expect("written");
    assert_eq!((fs::read(&path).expect("read"), mode(&path)), (b"second".to_vec(), 0o600));
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn f15_a_symbolic_link_stays_and_its_target_is_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("deep")).expect("created");
    symlink("deep/file", at("link")).expect("linked");
    symlink("link", at("chain")).expect("linked");
    for content in [b"new", b"old"] {
        check(&at("chain")).expect("can be written");
        write(&at("chain"), content).expect("written");
        assert_eq!(fs::read(at("deep/file")).expect("the target"), content);
    }
    assert!(at("link").is_symlink() && at("chain").is_symlink());
    assert_eq!(names(&at("deep")), ["file"]);
    symlink("loop", at("loop")).expect("linked");
    assert!(check(&at("loop")).is_err() && write(&at("loop"), b"x").is_err());
}

#[test]
fn f15_devices_fifos_and_descriptors_are_written_to_and_kept() {
    use std::os::unix::fs::FileTypeExt;
    let null = Path::new("/dev/null");
    check(null).expect("can be written");
    write(null, b"lost").expect("written");
    assert!(fs::metadata(null).expect("there").file_type().is_char_device());
    assert_eq!(write(Path::new("/dev/full"), b"x").expect_err("full").kind(), io::ErrorKind::StorageFull);

    let dir = tempfile::tempdir().expect("a directory");
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    // Does not wait for a reader.
    check(&fifo).expect("can be written");
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read(fifo)
    });
    write(&fifo, b"through").expect("written");
    assert_eq!(reader.join().expect("no panic").expect("read"), b"through");
    assert!(fs::metadata(&fifo).expect("there").file_type().is_fifo());

    // A descriptor of a file, as `/dev/stdout` is after `> file`: its holder reads on.
    let file = tempfile::tempfile_in(dir.path()).expect("a file");
    let name = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    write(Path::new(&name), b"appended").expect("written");
    assert_eq!(file.metadata().expect("there").len(), 8);
}

#[test]
fn f15_what_cannot_be_written_is_noticed_before_the_work() {
    let dir = tempfile::tempdir().expect("a directory");
    let problem = |path: &Path| {
        let source = check(path).expect_err("cannot be written");
        assert_eq!(write(path, b"x").expect_err("neither").kind(), source.kind());
        error(path, &source).to_string()
    };
    assert!(problem(dir.path()).ends_with("it is a directory"));
    assert!(problem(&dir.path().join("no/such")).ends_with("there is no such directory"));
    // Read-only for root too.
    assert!(problem(Path::new("/proc/pellucid")).starts_with("cannot write /proc/pellucid: "));
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out");
    write(&path, b"old").expect("written");
    let failed = write_with(&path, |file| {
        file.write_all(b"half")?;
        Err(io::Error::other("the run failed"))
    });
    assert!(failed.is_err());
    assert_eq!((fs::read(&path).expect("read"), names(dir.path())), (b"old".to_vec(), vec!["out".to_owned()]));
}

#[test]
fn tensors_are_written_as_the_library_writes_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out.safetensors");
    let data = [1u8; 24];
    let view = |dtype, shape: &[usize], bytes| {
        safetensors::tensor::TensorView::new(dtype, shape.to_vec(), &data[..bytes]).expect("a tensor")
    };
    let tensors = || {
        use safetensors::Dtype::{BF16, F32, I64};
        let named = [("b", view(F32, &[2, 3], 24)), ("a", view(F32, &[1], 4)), ("h", view(BF16, &[3], 6))];
        let mut named: Vec<_> = named.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        named.push(("i".into(), view(I64, &[2], 16)));
        named
    };
    for metadata in [None, Some(HashMap::from([("key".to_owned(), "value".to_owned())]))] {
        write_tensors(&path, tensors(), metadata.clone()).expect("written");
        let expected = safetensors::serialize(tensors(), metadata).expect("serialized");
        assert_eq!(fs::read(&path).expect("read"), expected);
    }
}
