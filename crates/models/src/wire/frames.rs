//! Streams: one JSON object per line; a line with `bytes` is followed by that many bytes.

use super::Fault;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read};

/// A line of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Frame {
    /// A new token: its row and its id.
    Token(usize, u32),
    /// Results, whose bytes follow.
    Results {
        /// Number of bytes.
        bytes: usize,
    },
    /// The call failed; nothing follows.
    Failed {
        /// The error, in one text.
        message: String,
        /// The error as data, if the engine reported it.
        fault: Option<Fault>,
    },
    /// The last line.
    End,
}

/// Returns the bytes of a frame.
pub fn encode_frame(frame: &Frame) -> Vec<u8> {
    // Texts and numbers, whose serialization does not fail.
    let mut line = serde_json::to_vec(frame).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Longest line.
const MAX_LINE: u64 = 1 << 20;

/// Reads a stream.
pub struct FrameReader<R> {
    inner: R,
}

impl<R: BufRead> FrameReader<R> {
    /// Reads a stream from its start.
    pub fn new(inner: R) -> FrameReader<R> {
        FrameReader { inner }
    }

    /// Reads the next frame with the bytes that follow it.
    ///
    /// # Errors
    /// `InvalidData` if it is not a frame, `UnexpectedEof` if the stream ends before its last line.
    pub fn next_frame(&mut self) -> io::Result<(Frame, Vec<u8>)> {
        let mut line = Vec::new();
        Read::take(&mut self.inner, MAX_LINE).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let frame = serde_json::from_slice(&line).map_err(io::Error::from)?;
        let mut bytes = Vec::new();
        if let Frame::Results { bytes: count } = frame {
            // The memory grows with what arrives, not with what a line claims.
            Read::take(&mut self.inner, count as u64).read_to_end(&mut bytes)?;
            if bytes.len() != count {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok((frame, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_and_a_cut_stream_is_an_error() {
        let failed = Frame::Failed { message: "no\nmemory".into(), fault: Some(Fault::Busy { waiting: 3 }) };
        let frames = [Frame::Token(1, 77), Frame::Results { bytes: 3 }, failed, Frame::End];
        let mut stream = Vec::new();
        for frame in &frames {
            stream.extend(encode_frame(frame));
            if let Frame::Results { .. } = frame {
                stream.extend(b"a\nb");
            }
        }
        let mut reader = FrameReader::new(&stream[..]);
        for frame in frames {
            let (read, bytes) = reader.next_frame().unwrap();
            assert_eq!(bytes, if matches!(frame, Frame::Results { .. }) { &b"a\nb"[..] } else { b"" });
            assert_eq!(read, frame);
        }
        for end in 0..stream.len() {
            let mut reader = FrameReader::new(&stream[..end]);
            let failure = (0..4).find_map(|_| reader.next_frame().err());
            assert_eq!(failure.map(|error| error.kind()), Some(io::ErrorKind::UnexpectedEof), "{end}");
        }
    }
}
