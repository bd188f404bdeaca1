//! Starts Python interpreters that import nothing from the working directory.
//!
//! `python -m` and `python -c` put the working directory first on `sys.path`, so a file `pip.py` in
//! a model's directory would run instead of pip. `PYTHONSAFEPATH` prevents that from Python 3.11
//! on, also in the interpreter's own child processes; before 3.11 the program itself removes the
//! entry.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Before any import of the program itself; `sys` is a built-in module.
const SAFE_PATH: &str = "import sys; sys.path[:] = [entry for entry in sys.path if entry not in ('', '.')]\n";

/// Returns a command that runs a Python program with an interpreter: a name on the path, or a path.
pub fn command(python: impl AsRef<OsStr>, program: &str) -> Command {
    let mut command = interpreter(python.as_ref());
    command.args(["-c", &[SAFE_PATH, program].concat()]);
    command
}

/// Returns a command that runs a Python file, which can import no other file of its directory.
pub fn file_command(python: impl AsRef<OsStr>, file: &Path) -> Command {
    let mut command = interpreter(python.as_ref());
    command.arg(file);
    command
}

fn interpreter(python: &OsStr) -> Command {
    let path = Path::new(python);
    // A path stays the same if the command gets another working directory.
    let absolute = (path.components().count() > 1).then(|| std::path::absolute(path).ok()).flatten();
    let mut command = Command::new(absolute.as_deref().unwrap_or(path));
    command.env("PYTHONSAFEPATH", "1");
    command
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn f1_no_module_of_the_working_directory_is_imported() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("json.py"), "print('hijacked')").expect("written");
        let hijacked = |command: &mut Command| {
            let output = command.current_dir(dir.path()).output().expect("python3 is installed");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stdout).contains("hijacked")
        };
        let import = "import json; json.dumps(1)";
        // The control: without these commands the file is imported.
        assert!(hijacked(Command::new("python3").args(["-c", "import json"])));
        assert!(!hijacked(&mut command("python3", import)));
        // What an interpreter before 3.11 does.
        assert!(!hijacked(command("python3", import).env_remove("PYTHONSAFEPATH")));
        let child = format!("import subprocess; subprocess.run([sys.executable, '-c', {import:?}], check=True)");
        assert!(!hijacked(&mut command("python3", &child)));
        let file = dir.path().join("program.py");
        std::fs::write(&file, import).expect("written");
        assert!(!hijacked(&mut file_command("python3", &file)));
    }

    #[test]
    fn a_relative_interpreter_is_found_from_another_working_directory() {
        assert!(Path::new(command("venv/bin/python", "").get_program()).is_absolute());
        assert_eq!(command("python3", "").get_program(), "python3");
    }
}
