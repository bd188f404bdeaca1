//! A model hub on the loopback address with one small model, for tests and benchmarks of downloads.
//!
//! Implements the two requests of a pull: the list of a model's files, and a file with an optional
//! byte range. [`Behavior`] makes it misbehave.

use std::io::{BufRead, BufReader, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The id of the hub's model.
pub const MODEL: &str = "owner/tiny";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A running hub; stops on drop.
pub struct Hub {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// How a hub deviates from a plain one in its answers to requests for files.
#[derive(Clone, Debug, Default)]
pub struct Behavior {
    /// Redirects to the same path under this URL.
    pub redirect: Option<String>,
    /// Accepts requests and never answers.
    pub is_silent: bool,
    /// Closes the connection after this many bytes of a file.
    pub cut_after: Option<usize>,
    /// The etag of every file.
    pub etag: Option<String>,
}

/// State shared with the server thread.
#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    requests: Mutex<Vec<String>>,
}

impl Hub {
    /// Starts a hub whose model has these files.
    ///
    /// ```
    /// let hub = pellucid_loopback::Hub::start(vec![("config.json".into(), b"{}".to_vec())])?;
    /// assert!(hub.endpoint().starts_with("http://127.0.0.1:") && hub.requests().is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If no port can be listened on.
    pub fn start(files: Vec<(String, Vec<u8>)>) -> Result<Hub> {
        Hub::start_with(files, Behavior::default())
    }

    /// Starts a hub that behaves in another way.
    ///
    /// # Errors
    /// If no port can be listened on.
    pub fn start_with(files: Vec<(String, Vec<u8>)>, behavior: Behavior) -> Result<Hub> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let state = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            // Connections of a silent hub stay open.
            let mut held = Vec::new();
            for stream in listener.incoming().flatten() {
                if state.stopped.load(Relaxed) {
                    break;
                }
                // A client that disconnects reports the error itself.
                let _ = answer(&stream, &files, &behavior, &state.requests);
                if behavior.is_silent {
                    held.push(stream);
                }
            }
        });
        Ok(Hub { address, shared, thread: Some(thread) })
    }

    /// URL of the hub.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far: the path and the `Authorization` header of each.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Relaxed);
        // The thread blocks in accept: connect once to wake it. If that fails, it ends with the
        // process.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Answers one request: the list of files, or a file from a given byte on.
fn answer(
    mut stream: &TcpStream,
    files: &[(String, Vec<u8>)],
    behavior: &Behavior,
    requests: &Mutex<Vec<String>>,
) -> Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut request, mut start, mut token) = (String::new(), 0usize, String::new());
    reader.read_line(&mut request)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(range) = line.strip_prefix("range: bytes=") {
            start = range.split('-').next().and_then(|start| start.parse().ok()).unwrap_or(0);
        } else if let Some(value) = line.strip_prefix("authorization: ") {
            token = value.to_owned();
        }
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    requests.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{path} {token}"));
    let file = path.strip_prefix(&format!("/{MODEL}/resolve/{COMMIT}/"));
    if let Some((name, data)) = file.and_then(|wanted| files.iter().find(|(name, _)| name == wanted)) {
        if behavior.is_silent {
            return Ok(());
        }
        let etag = behavior.etag.clone().unwrap_or_else(|| format!("etag-{name}"));
        if let Some(url) = &behavior.redirect {
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {url}{path}\r\nX-Linked-Etag: \"{etag}\"\r\nContent-Length: 0\r\n\
                 Connection: close\r\n\r\n"
            );
        }
        let (body, end) = (&data[start.min(data.len())..], data.len().saturating_sub(1));
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nETag: \"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Length: {}\r\n\
             Content-Range: bytes {start}-{end}/{}\r\nConnection: close\r\n\r\n",
            body.len(),
            data.len()
        )?;
        stream.write_all(&body[..behavior.cut_after.unwrap_or(usize::MAX).min(body.len())])
    } else if path.starts_with(&format!("/api/models/{MODEL}")) {
        let names: Vec<String> = files.iter().map(|(name, _)| format!(r#"{{"rfilename":"{name}"}}"#)).collect();
        let body = format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, names.join(","));
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    } else {
        write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    }
}
