//! A hub on the loopback address with one small model: what downloads are tried and measured against where there is no network.

use std::io::{BufRead, BufReader, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The id of its model.
pub const MODEL: &str = "owner/tiny";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A running hub; it stops when it is dropped.
pub struct Hub {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the hub and its thread both see.
#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    seen: Mutex<Vec<String>>,
}

impl Hub {
    /// Starts a hub whose model has these files.
    ///
    /// ```
    /// let hub = pellucid_loopback::Hub::start(vec![("config.json".into(), b"{}".to_vec())])?;
    /// assert!(hub.endpoint().starts_with("http://127.0.0.1:") && hub.seen().is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If no port can be listened on.
    pub fn start(files: Vec<(String, Vec<u8>)>) -> Result<Hub> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let here = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if here.stopped.load(Relaxed) {
                    break;
                }
                // A client that goes away is its own affair: it says so itself.
                let _ = answer(&stream, &files, &here.seen);
            }
        });
        Ok(Hub { address, shared, thread: Some(thread) })
    }

    /// Where it answers.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The paths that it was asked for, each with what was said to prove the right to it.
    pub fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Relaxed);
        // The thread waits for somebody to come; where nobody can, it ends with the process.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Answers the two questions that a download asks: which files there are, and a file from some byte on.
fn answer(mut stream: &TcpStream, files: &[(String, Vec<u8>)], seen: &Mutex<Vec<String>>) -> Result<()> {
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
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{path} {token}"));
    let file = path.strip_prefix(&format!("/{MODEL}/resolve/{COMMIT}/"));
    if let Some((name, data)) = file.and_then(|wanted| files.iter().find(|(name, _)| name == wanted)) {
        let (body, end) = (&data[start.min(data.len())..], data.len().saturating_sub(1));
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nETag: \"etag-{name}\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Length: {}\r\n\
             Content-Range: bytes {start}-{end}/{}\r\nConnection: close\r\n\r\n",
            body.len(),
            data.len()
        )?;
        stream.write_all(body)
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
