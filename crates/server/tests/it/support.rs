//! A server for tests, and a client.

use pellucid_models::LoadedModel;
use pellucid_models::chat::ChatTemplate;
use pellucid_server::{ModelEntry, ModelSpec, Server, ServerOptions, ShutdownHandle};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Duration;

/// A chat template for the built-in model, which has none.
pub const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>{{ m.content }}\n\
                            {% endfor %}{% if add_generation_prompt %}<assistant>{{ greeting }}{% endif %}";

/// The built-in model with a chat template.
pub fn model() -> LoadedModel {
    static MODEL: OnceLock<LoadedModel> = OnceLock::new();
    let load = || {
        let mut loaded = LoadedModel::builtin(&Default::default()).expect("the built-in model");
        loaded.chat = Some(ChatTemplate::new(TEMPLATE, Path::new("t.jinja")));
        loaded
    };
    MODEL.get_or_init(load).clone()
}

/// A server on a thread of its own, which ends when it is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    shutdown: ShutdownHandle,
    thread: Option<JoinHandle<pellucid_server::Result<()>>>,
}

impl TestServer {
    /// Serves the built-in model as `stories`.
    pub fn start(options: ServerOptions) -> TestServer {
        TestServer::of(vec![ModelEntry { id: "stories".into(), loaded: model() }], options)
    }

    /// Serves other models.
    pub fn of<M: Into<ModelSpec>>(models: Vec<M>, options: ServerOptions) -> TestServer {
        let options = ServerOptions { address: ([127, 0, 0, 1], 0).into(), ..options };
        let server = Server::bind(models, options).expect("the server");
        let (address, shutdown) = (server.address(), server.shutdown_handle());
        TestServer { address, shutdown, thread: Some(std::thread::spawn(move || server.run())) }
    }

    /// One server for all tests that need no options.
    pub fn shared() -> &'static TestServer {
        static SERVER: OnceLock<TestServer> = OnceLock::new();
        let aliases = vec!["gpt-4o-mini".parse().expect("an alias")];
        SERVER.get_or_init(|| TestServer::start(ServerOptions { aliases, ..ServerOptions::default() }))
    }

    /// Begins the shutdown.
    pub fn begin_shutdown(&self) {
        self.shutdown.shutdown();
    }

    /// Waits for the end of the server.
    pub fn join(mut self) -> pellucid_server::Result<()> {
        self.thread.take().expect("it runs").join().expect("no panic")
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    /// A request that must succeed.
    pub fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body);
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, &[], b"")
    }

    /// A request with headers of its own. The body of the answer is JSON, or becomes a JSON text.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Value) {
        let url = format!("http://{}{path}", self.address);
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true).build().into();
        let response = agent.run(request.body(body).expect("a request"));
        let mut response = response.expect("an answer");
        let text = response.body_mut().with_config().limit(1 << 30).read_to_string().expect("a body");
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (response.status().as_u16(), value)
    }

    /// Sends bytes and returns everything that comes back until the server closes.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        // The server may close before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Starts a stream and returns its reader, positioned at the first event.
    pub fn open_stream(&self, path: &str, body: &Value) -> BufReader<TcpStream> {
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("sent");
        BufReader::new(stream)
    }

    /// The events of a stream, without `[DONE]`, which must be the last.
    pub fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut events: Vec<String> =
            self.open_stream(path, body).lines().map_while(Result::ok).filter_map(data).collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{body}: {events:?}");
        events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }

    /// A gauge or counter of `/metrics`, summed over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let text = text.as_str().expect("a text").to_owned();
        let lines = text.lines().filter(|line| !line.starts_with('#') && line.split(['{', ' ']).next() == Some(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

/// The data of an event.
pub fn data(line: String) -> Option<String> {
    line.strip_prefix("data: ").map(str::to_owned)
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shutdown.shutdown();
        self.shutdown.shutdown();
    }
}
