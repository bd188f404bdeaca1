//! `--server`: the output of a command is that of a local run.

use crate::commands::{pellucid, refused, stdout};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server of the built-in model in a process of its own, which ends when it is dropped.
struct Server {
    url: String,
    process: Child,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
        command.args(["serve", "--addr", "127.0.0.1:0"]).args(args).env("PELLUCID_LOG", "error");
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the server starts");
        let mut url = String::new();
        let stdout = process.stdout.as_mut().expect("its output");
        BufReader::new(stdout).read_line(&mut url).expect("its URL");
        Server { url: url.trim().to_owned(), process }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Removes times from a JSON output.
fn without_timing(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).expect("one JSON object");
    if let Some(object) = value.as_object_mut() {
        object.remove("timing");
    }
    value
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_string_lossy().into_owned()
}

#[test]
fn the_output_of_commands_is_that_of_local_runs() {
    let server = Server::start(&[]);
    let dir = tempfile::tempdir().expect("a directory");
    let plan = path(dir.path(), "plan.json");
    let text = r#"{"taps": [
        {"site": "layers.2.resid_post", "positions": "last", "scale": 0.5},
        {"site": "layers.1.resid_post", "grad": {"capture": true}},
        {"site": "logits", "positions": "last", "as": "logits"},
        {"when": {"site": "layers.0.resid_post", "unit": 3, "above": 0.0}, "mark": "unit 3"}
      ], "values": [{"name": "loss", "max": "logits"}], "metric": "loss", "save": ["loss"]}"#;
    std::fs::write(&plan, text).expect("written");
    let edit = path(dir.path(), "edit.json");
    std::fs::write(&edit, r#"{"taps": [{"site": "layers.3.mlp_out", "scale": 0.7}]}"#).expect("written");
    let nan = path(dir.path(), "nan.json");
    std::fs::write(
        &nan,
        r#"{"taps": [{"site": "layers.3.mlp_out", "as": "h"}], "values": [{"name": "x", "log": "h"}], "save": ["x"]}"#,
    )
    .expect("written");
    let commands: &[&[&str]] = &[
        &["run", "Tom saw a dog. The", "Lily"],
        &["run", "Tom saw a dog. The", "--tokens", "5,6", "--json"],
        &["run", "Tom saw a dog. The", "--plan", &plan],
        &["run", "Tom saw a dog. The", "--plan", &plan, "--json"],
        &["run", "Tom saw a dog.", "--plan", &nan],
        &["run", "Tom saw a dog.", "--capture", "layers.*.resid_post", "--explain"],
        &["generate", "One day,", "--max-new", "12", "--plan", &edit],
        &["generate", "One day,", "Tom", "--max-new", "8", "--temperature", "0.9", "--seed", "7", "--stop", "."],
        &["generate", "One day,", "--max-new", "8", "--json", "--plan", &edit],
        &["lens", "Once upon a time"],
        &["lens", "Once upon a time", "--json"],
    ];
    for args in commands {
        let remote = [args, &["--server", &server.url][..]].concat();
        let (here, there) = (pellucid(args), pellucid(&remote));
        let (own, other) = (stdout(&here), stdout(&there));
        match args.contains(&"--json") {
            true => assert_eq!(without_timing(&own), without_timing(&other), "{args:?}"),
            // Estimated seconds depend on the machine's load.
            false if args.contains(&"--explain") => assert_eq!(own.lines().count(), other.lines().count(), "{args:?}"),
            false => assert_eq!(own, other, "{args:?}"),
        }
        assert_eq!(here.stderr, there.stderr, "{args:?}");
    }
}

#[test]
fn captures_of_a_server_are_the_same_file() {
    let server = Server::start(&["--sae", "builtin"]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, extra: &[&str]| {
        let out = path(dir.path(), name);
        let args = [&["generate", "Tom saw a dog.", "--max-new", "3", "--capture", "layers.*.z", "--out", &out], extra]
            .concat();
        stdout(&pellucid(&args));
        std::fs::read(out).expect("the file")
    };
    assert_eq!(file("here", &[]), file("there", &["--server", &server.url]));
    // Features of an autoencoder that the server has attached are sites.
    let features = ["run", "Tom saw a dog.", "--capture", "layers.3.resid_post/sae.acts", "--sparse"];
    let (here, there) =
        ([&features[..], &["--sae", "builtin"]].concat(), [&features[..], &["--server", &server.url]].concat());
    assert_eq!(stdout(&pellucid(&here)), stdout(&pellucid(&there)));
}

#[test]
fn a_token_is_read_from_its_file_and_options_of_the_process_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let token = path(dir.path(), "token");
    std::fs::write(&token, "0123456789abcdef0123\n").expect("written");
    let server = Server::start(&["--token-file", &token]);
    refused(&["run", "x", "--server", &server.url], 2, "token", "PELLUCID_TOKEN");
    stdout(&pellucid(&["run", "x", "--server", &server.url, "--token-file", &token]));
    refused(
        &["run", "x", "--server", &server.url, "--token-file", &token, "--model", "other"],
        2,
        "the model `other` does not exist",
        "choose another model",
    );
    for option in [&["--dtype", "q8"][..], &["--threads", "1"], &["--adapter", "a=b"], &["--sae", "builtin"]] {
        let args = [&["generate", "x", "--server", &server.url], option].concat();
        refused(&args, 2, option[0], "pellucid serve");
    }
    refused(&["run", "x", "--token-file", &token], 2, "--server", "");
    refused(&["run", "x", "--server", "http://127.0.0.1:9"], 2, "no server listens", "pellucid serve");
    refused(&["lens", "x", "--server", "localhost:80"], 2, "is not the URL of a server", "http://127.0.0.1:7117/v1");
}
