//! A hub on the loopback address, with one small model.

use crate::{Error, Result};
use pellucid_models::pull::Sources;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// The id of its model.
pub const MODEL: &str = "owner/tiny";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A running hub; it stops when it is dropped.
pub struct Hub {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    /// Starts a hub whose model has these files.
    pub fn start(files: Vec<(&'static str, Vec<u8>)>) -> Result<Hub> {
        let fail = |error: std::io::Error| Error::File { path: "127.0.0.1".into(), problem: error.to_string() };
        let listener = TcpListener::bind("127.0.0.1:0").map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Relaxed) {
                    break;
                }
                // A client that goes away is its own affair: it says so itself.
                let _ = answer(&stream, &files);
            }
        });
        Ok(Hub { address, stopped, thread: Some(thread) })
    }

    /// Where models are to be pulled from.
    pub fn sources(&self) -> Sources {
        Sources { endpoint: Some(format!("http://{}", self.address)), token: None, python: None }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stopped.store(true, Relaxed);
        // The thread waits for somebody to come; where nobody can, it ends with the process.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Answers the two questions that a pull asks: which files there are, and a file from some byte on.
fn answer(mut stream: &TcpStream, files: &[(&'static str, Vec<u8>)]) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut request, mut start) = (String::new(), 0usize);
    reader.read_line(&mut request)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some(range) = line.trim().to_ascii_lowercase().strip_prefix("range: bytes=") {
            start = range.split('-').next().and_then(|start| start.parse().ok()).unwrap_or(0);
        }
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let file = path.strip_prefix(&format!("/{MODEL}/resolve/{COMMIT}/"));
    if let Some((name, data)) = file.and_then(|wanted| files.iter().find(|(name, _)| *name == wanted)) {
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
