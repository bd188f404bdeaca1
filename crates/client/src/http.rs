//! One HTTP request: sends it on a thread, reads the answer here, and closes the connection when
//! the caller interrupts. The server then ends the call.

use crate::address::Address;
use crate::error::{Error, Result};
use pellucid_engine::{Error as EngineError, Interrupt};
use pellucid_models::wire::Fault;
use serde::Deserialize;
use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use ureq::http::{Method, Request, header};
use ureq::{Agent, SendBody};

/// Time to reach the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks at the interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes that are read at once.
const CHUNK: usize = 1 << 18;
/// Chunks that wait for a slow reader.
const WAITING_CHUNKS: usize = 16;
/// Bytes of an error's body that are read.
const MAX_ERROR: u64 = 1 << 20;

/// A server and how to reach it.
#[derive(Clone, Debug)]
pub struct Connection {
    pub address: Address,
    token: Option<String>,
}

/// A message of the thread.
enum Event {
    Status(u16, Option<String>),
    Bytes(Vec<u8>),
    Failed(ureq::Error),
    Cut(io::Error),
}

impl Connection {
    pub fn new(address: Address, token: Option<String>) -> Result<Connection> {
        let is_sendable = |token: &String| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !token.as_ref().is_none_or(is_sendable) {
            return Err(Error::Usage {
                problem: "the token is empty, or has others than visible ASCII characters".into(),
                hint: "give the content of the server's --token-file".into(),
            });
        }
        Ok(Connection { address, token })
    }

    /// Fetches a path.
    pub fn get(&self, path: &str) -> Result<Vec<u8>> {
        read_all(self.send(Method::GET, path, None, None)?)
    }

    /// Sends JSON and returns the whole answer.
    pub fn post(&self, path: &str, body: Vec<u8>, interrupt: Option<&Interrupt>) -> Result<Vec<u8>> {
        read_all(self.post_stream(path, body, interrupt)?)
    }

    /// Sends JSON and returns the answer as it arrives.
    pub fn post_stream<'a>(&self, path: &str, body: Vec<u8>, interrupt: Option<&'a Interrupt>) -> Result<Answer<'a>> {
        self.send(Method::POST, path, Some(body), interrupt)
    }

    fn send<'a>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        interrupt: Option<&'a Interrupt>,
    ) -> Result<Answer<'a>> {
        // A redirect would carry the token elsewhere. Each request has its own connection, so that
        // closing it ends this request alone.
        let config = Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .proxy(None)
            .max_idle_connections(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .user_agent(concat!("pellucid/", env!("CARGO_PKG_VERSION")));
        let agent: Agent = config.build().into();
        let mut request = Request::builder().method(method).uri(self.address.path(path));
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let (to, events) = sync_channel(WAITING_CHUNKS);
        let own = agent.clone();
        let work = move || {
            let request = match body {
                Some(body) => request.body(SendBody::from_owned_reader(io::Cursor::new(body))),
                None => request.body(SendBody::none()),
            };
            match request.map_err(ureq::Error::from).and_then(|request| own.run(request)) {
                Ok(answer) => forward(answer, &to),
                // The caller may have gone.
                Err(error) => _ = to.send(Event::Failed(error)),
            }
        };
        std::thread::Builder::new()
            .name("pellucid-http".into())
            .spawn(work)
            .map_err(|error| Error::server(format!("a thread did not start: {error}"), "free memory"))?;
        let mut answer = Answer {
            events,
            agent: Some(agent),
            interrupt,
            last_poll: Instant::now(),
            rest: Vec::new(),
            at: 0,
            url: self.address.to_string(),
            is_whole: false,
        };
        let (status, location) = match answer.next_event()? {
            Some(Event::Status(status, location)) => (status, location),
            Some(Event::Failed(error)) => return Err(self.unreachable(&error)),
            Some(Event::Bytes(_) | Event::Cut(_)) | None => return Err(answer.cut()),
        };
        match status {
            200 => Ok(answer),
            _ => Err(self.refused(status, location, path, &mut answer)),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> Error {
        let address = &self.address;
        let (problem, hint) = match error {
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => (
                format!("no server listens at {address}"),
                "start one with `pellucid serve`, or check host and port".to_string(),
            ),
            ureq::Error::HostNotFound => (format!("the host of {address} is unknown"), "check the URL".into()),
            ureq::Error::Timeout(_) => {
                (format!("{address} does not answer"), "check host, port and firewall".to_string())
            }
            ureq::Error::Io(error) if is_closed(error) => stopped(&address.to_string()),
            ureq::Error::Protocol(_) => (
                format!("{address} does not answer with HTTP: {error}"),
                "check the port, and http:// or https://".into(),
            ),
            error => (format!("{address} cannot be reached: {error}"), "check the URL and the network".into()),
        };
        Error::server(problem, hint)
    }

    /// The error of an answer that is not 200.
    fn refused(&self, status: u16, location: Option<String>, path: &str, answer: &mut Answer<'_>) -> Error {
        #[derive(Deserialize)]
        struct Body {
            error: Detail,
        }
        #[derive(Deserialize)]
        struct Detail {
            message: String,
            #[serde(default)]
            code: Option<String>,
            #[serde(default)]
            fault: Option<Fault>,
        }
        let address = &self.address;
        if (300..400).contains(&status) {
            let target = location.map_or_else(String::new, |url| format!(" to {url}"));
            return Error::server(
                format!("{address} redirects{target}; redirects are not followed"),
                "give the URL that the server itself has",
            );
        }
        let mut text = Vec::new();
        // Without its body the status is the error.
        let _ = answer.by_ref().take(MAX_ERROR).read_to_end(&mut text);
        let Ok(Body { error: Detail { message, code, fault } }) = serde_json::from_slice(&text) else {
            return Error::server(
                format!("{address} answers {path} with the status {status}, and not as a Pellucid server does"),
                "check the URL: `pellucid serve` prints it",
            );
        };
        if let Some(fault) = fault {
            return fault.into_error().into();
        }
        let hint = match (status, code.as_deref()) {
            (401, _) => "give the content of the server's --token-file as the token, or set PELLUCID_TOKEN",
            (404, Some("route_not_found")) => {
                let problem = format!("the server at {address} is older than this client: it has no {path}");
                return Error::server(problem, "install the same version on both machines");
            }
            (404, Some("model_not_found")) => "choose another model; `GET /v1/models` lists them",
            (403, Some("host_not_allowed")) => "start the server with --allow-host NAME, or use its address",
            (413, _) => "send fewer or shorter rows or smaller plans, or start the server with higher limits",
            (429 | 503, _) => "try again later",
            (500.., _) => "the log of the server shows more",
            _ => "check the call; the server's limits are options of `pellucid serve`",
        };
        Error::server(format!("the server at {address} refuses: {message}"), hint)
    }
}

/// Sends the status and the body of an answer, until the caller has gone.
fn forward(answer: ureq::http::Response<ureq::Body>, to: &SyncSender<Event>) {
    let location = answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    if to.send(Event::Status(answer.status().as_u16(), location)).is_err() {
        return;
    }
    let mut body = answer.into_body().into_with_config().limit(u64::MAX).reader();
    loop {
        let mut chunk = vec![0; CHUNK];
        let event = match body.read(&mut chunk) {
            Ok(0) => return,
            Ok(count) => {
                chunk.truncate(count);
                Event::Bytes(chunk)
            }
            Err(error) => Event::Cut(error),
        };
        let is_cut = matches!(event, Event::Cut(_));
        if to.send(event).is_err() || is_cut {
            return;
        }
    }
}

fn read_all(mut answer: Answer<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match answer.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(answer.failure(&error)),
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn stopped(url: &str) -> (String, String) {
    (format!("the server at {url} closed the connection"), "it may have stopped; check its log and try again".into())
}

/// The body of an answer. Dropping it closes the connection.
pub struct Answer<'a> {
    events: Receiver<Event>,
    /// Absent once the connection is closed.
    agent: Option<Agent>,
    interrupt: Option<&'a Interrupt>,
    /// When the interrupt was polled.
    last_poll: Instant,
    rest: Vec<u8>,
    at: usize,
    url: String,
    /// The body has ended.
    is_whole: bool,
}

impl Answer<'_> {
    /// Waits for the next event; `None` at the end.
    fn next_event(&mut self) -> Result<Option<Event>> {
        loop {
            // Also between events that come faster.
            if self.last_poll.elapsed() >= POLL_INTERVAL {
                self.last_poll = Instant::now();
                if self.is_interrupted() {
                    self.close();
                    return Err(EngineError::Interrupted.into());
                }
            }
            match self.events.recv_timeout(POLL_INTERVAL) {
                Ok(event) => return Ok(Some(event)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_some_and(|interrupt| (interrupt.0)())
    }

    fn close(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.shutdown();
        }
    }

    fn cut(&self) -> Error {
        let (problem, hint) = stopped(&self.url);
        Error::server(problem, hint)
    }

    /// The error of a read that failed.
    pub fn failure(&self, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::Other if self.agent.is_none() => {
                EngineError::Interrupted.into()
            }
            io::ErrorKind::InvalidData => Error::server(
                format!("the server at {} answers with another format: {error}", self.url),
                "install the same version on both machines",
            ),
            _ => self.cut(),
        }
    }
}

impl BufRead for Answer<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.rest.len() && !self.is_whole {
            // `Interrupted` would make the readers of the standard library try again.
            match self.next_event().map_err(|error| io::Error::other(error.to_string()))? {
                Some(Event::Bytes(bytes)) => (self.rest, self.at) = (bytes, 0),
                Some(Event::Cut(error)) => return Err(error),
                Some(Event::Failed(error)) => return Err(io::Error::other(error.to_string())),
                Some(Event::Status(..)) | None => self.is_whole = true,
            }
        }
        Ok(&self.rest[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.rest.len());
    }
}

impl Read for Answer<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(out.len());
        out[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        self.close();
    }
}
