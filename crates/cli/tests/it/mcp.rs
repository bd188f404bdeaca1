//! `pellucid mcp`: the protocol over stdin and stdout.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that speaks the protocol, with an initialized session.
struct Session {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    last_id: u64,
}

impl Session {
    fn start() -> Session {
        let mut session = Session::spawn();
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = session.request("initialize", params);
        assert_eq!(answer["result"]["serverInfo"]["name"], "pellucid");
        session.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        session
    }

    fn spawn() -> Session {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
        command.arg("mcp").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("stdout")));
        Session { child, to, from, last_id: 0 }
    }

    fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    fn send_text(&mut self, text: &str) {
        let to = self.to.as_mut().expect("stdin is open");
        writeln!(to, "{text}").and_then(|()| to.flush()).expect("sent");
    }

    /// Sends a request and returns its id.
    fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}));
        self.last_id
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("a line");
        // Anything else than the protocol on stdout fails here.
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        let answer = self.receive();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))["result"].clone()
    }

    /// Closes stdin and returns the exit code, stdout and stderr.
    fn end(mut self) -> (Option<i32>, String, String) {
        drop(self.to.take());
        let started = Instant::now();
        while self.child.try_wait().expect("a status").is_none() {
            assert!(started.elapsed() < Duration::from_secs(20), "the process goes on without stdin");
            std::thread::sleep(Duration::from_millis(10));
        }
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.from.read_to_string(&mut stdout).expect("stdout");
        self.child.stderr.take().expect("stderr").read_to_string(&mut stderr).expect("stderr");
        (self.child.wait().expect("a status").code(), stdout, stderr)
    }
}

#[test]
fn every_tool_answers_and_the_end_of_stdin_ends_the_process_with_0() {
    let mut session = Session::start();
    let tools = session.request("tools/list", json!({}))["result"]["tools"].as_array().expect("tools").clone();
    assert_eq!(tools.len(), 7);
    for tool in tools {
        let name = tool["name"].as_str().expect("a name");
        let result = session.call(name, &tool["inputSchema"]["examples"][0]);
        assert_ne!(result["isError"], true, "{name}: {result}");
        assert!(result["structuredContent"].is_object(), "{name}");
    }
    let (code, stdout, stderr) = session.end();
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert!(stderr.contains("sweep"), "the log is on stderr: {stderr}");
}

#[test]
fn bad_input_is_answered_and_the_session_goes_on() {
    let mut session = Session::start();
    let result = session.call("run", &json!({"prompt": "a", "capture": ["layers.9.z"]}));
    assert_eq!(result["isError"], true);
    assert!(result["content"][0]["text"].as_str().is_some_and(|text| text.contains("layers are 0 to 5")), "{result}");
    assert!(session.request("tools/call", json!({"name": "x"}))["error"]["message"].is_string());
    assert_eq!(session.request("no/method", json!({}))["error"]["code"], -32601);
    assert_eq!(session.call("describe", &json!({}))["structuredContent"]["n_layers"], 6);
    assert_eq!(session.end().0, Some(0));
}

#[test]
fn a_long_call_leaves_pings_answered_and_can_be_cancelled() {
    let mut session = Session::start();
    let template = json!({
        "plan": {"taps": [{"site": "layers.0.resid_pre", "scale": 0.5}, {"site": "layers.{a}.z", "scale": 0.5},
            {"site": "layers.{b}.mlp_out", "scale": 0.9}, {"site": "layers.{c}.q", "positions": ["{d}"], "scale": 0.9}]},
        "over": {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2, 3, 4, 5], "c": [0, 1, 2, 3, 4, 5], "d": (0..18).collect::<Vec<_>>()}
    });
    let arguments = json!({"prompt": "dog ".repeat(230), "template": template, "metric": {"token": " dog"}});
    let call = session.begin("tools/call", json!({"name": "sweep", "arguments": arguments}));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(session.request("ping", json!({}))["result"], json!({}));
    session.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
    // Calls that run the model directly run one at a time, so this one waits for the end of the
    // other.
    let started = Instant::now();
    let result = session.call("run", &json!({"prompt": "a"}));
    assert_ne!(result["isError"], true, "{result}");
    assert!(started.elapsed() < Duration::from_secs(10), "the sweep went on for {:?}", started.elapsed());
    assert_eq!(session.end().0, Some(0));
}

#[test]
fn stdin_that_is_empty_or_no_protocol_ends_the_process() {
    assert_eq!(Session::spawn().end().0, Some(0));
    let mut session = Session::spawn();
    session.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "describe"}}));
    let (code, _, stderr) = session.end();
    assert!(code == Some(0) || code == Some(2), "{code:?} {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}
