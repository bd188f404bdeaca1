//! The results of a batch: one JSON object per line, appended as requests end.

use super::line::RequestName;
use crate::commands::say;
use crate::failure::{Failure, output};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A request that has ended.
#[derive(Serialize)]
pub struct RequestResult {
    /// `None` for a line whose id is unknown or taken.
    pub id: Option<RequestName>,
    /// Its line in the batch file.
    pub line: u64,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum Outcome {
    Generated(Box<Generated>),
    Failed {
        error: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
}

#[derive(Serialize)]
pub struct Generated {
    /// `None` for a model without a tokenizer.
    pub text: Option<String>,
    pub tokens: Vec<u32>,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    pub finish_reason: &'static str,
    pub timing: Timing,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captures: Option<CaptureFile>,
    /// Sites of a pattern that the model does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped_sites: Vec<String>,
}

/// Seconds from the submission of a request.
#[derive(Serialize)]
pub struct Timing {
    /// Until its first pass.
    pub queued_s: f64,
    /// Until its first token.
    pub first_token_s: f64,
    /// Until its end.
    pub total_s: f64,
}

/// The captures of a request.
#[derive(Serialize)]
pub struct CaptureFile {
    pub file: PathBuf,
    pub tensors: Vec<TensorShape>,
}

#[derive(Serialize)]
pub struct TensorShape {
    pub name: String,
    pub shape: Vec<usize>,
}

/// Writes results and knows the ids that earlier runs have finished.
pub struct ResultsWriter {
    /// The file, or stdout if absent.
    file: Option<(PathBuf, File)>,
    finished: HashSet<String>,
}

impl ResultsWriter {
    /// Opens the file for appending and reads the ids that it has, or writes to stdout.
    pub fn open(path: Option<&Path>) -> Result<ResultsWriter, Failure> {
        let Some(path) = path else { return Ok(ResultsWriter { file: None, finished: HashSet::new() }) };
        let fail = |error: std::io::Error| {
            Failure::usage(
                format!("cannot write {}: {error}", path.display()),
                "give --output a file in a directory that exists and may be written",
            )
        };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(fail)?;
        let (finished, repair) = read_finished(path, &file)?;
        match repair {
            Some(Repair::Truncate(end)) => {
                file.set_len(end).map_err(fail)?;
                say(&format!("{}: removed an incomplete last line", path.display()));
            }
            Some(Repair::EndLine) => file.write_all(b"\n").map_err(fail)?,
            None => {}
        }
        file.seek(SeekFrom::End(0)).map_err(fail)?;
        Ok(ResultsWriter { file: Some((path.to_owned(), file)), finished })
    }

    /// Whether an earlier run has finished this id without an error.
    pub fn is_finished(&self, key: &str) -> bool {
        self.finished.contains(key)
    }

    /// Writes one line at once, so that an interrupted run leaves at most one incomplete line.
    pub fn write(&mut self, result: &RequestResult) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(result).map_err(|error| Failure::internal(error.to_string()))?;
        line.push(b'\n');
        match &mut self.file {
            Some((path, file)) => file.write_all(&line).map_err(|error| {
                Failure::usage(
                    format!("cannot write {}: {error}", path.display()),
                    "free the disk and run the command again: finished requests are skipped",
                )
            }),
            None => {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(&line).and_then(|()| stdout.flush()).map_err(output)
            }
        }
    }
}

/// The repair of a last line without a line end.
#[derive(Debug, PartialEq)]
enum Repair {
    /// The line is incomplete: cut the file to this length.
    Truncate(u64),
    /// Only the line end is missing.
    EndLine,
}

/// A line of an earlier run.
#[derive(Deserialize)]
struct StoredResult {
    id: Value,
    /// Every result has it; other files do not.
    #[serde(rename = "line")]
    _line: u64,
    error: Option<String>,
}

/// Reads the ids that are finished without an error.
fn read_finished(path: &Path, file: &File) -> Result<(HashSet<String>, Option<Repair>), Failure> {
    let (mut reader, mut finished, mut line) = (BufReader::new(file), HashSet::new(), Vec::new());
    let (mut end, mut number) = (0, 0);
    loop {
        line.clear();
        let length = reader.read_until(b'\n', &mut line).map_err(|error| {
            Failure::usage(
                format!("cannot read {}: {error}", path.display()),
                "check the file, or give another --output",
            )
        })?;
        if length == 0 {
            return Ok((finished, None));
        }
        number += 1;
        let complete = line.ends_with(b"\n");
        match serde_json::from_slice::<StoredResult>(&line) {
            Ok(StoredResult { id, error: None, .. }) => {
                finished.extend(id.as_str().map_or_else(|| id.as_u64().map(|id| id.to_string()), |id| Some(id.into())));
            }
            Ok(_) => {}
            Err(error) if !complete && error.is_eof() && starts_like_a_result(&line) => {
                return Ok((finished, Some(Repair::Truncate(end))));
            }
            Err(error) => {
                return Err(Failure::usage(
                    format!("{}, line {number} is not a result of `generate --batch`: {error}", path.display()),
                    "give --output a new file, or the results of an earlier run",
                ));
            }
        }
        if !complete {
            return Ok((finished, Some(Repair::EndLine)));
        }
        end += length as u64;
    }
}

/// Whether an incomplete line can be the start of a result: `{"id":…,"line":…`. The incomplete last
/// line of another file is not removed.
fn starts_like_a_result(line: &[u8]) -> bool {
    let follows = |text: &[u8], key: &[u8]| text.starts_with(key) || key.starts_with(text);
    let (start, next): (&[u8], &[u8]) = (b"{\"id\":", b",\"line\":");
    let Some(rest) = line.strip_prefix(start) else { return follows(line, start) };
    let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<Value>();
    match values.next() {
        Some(Ok(_)) => follows(&rest[values.byte_offset()..], next),
        // The id itself is incomplete.
        Some(Err(error)) => error.is_eof(),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished_in(text: &str) -> Result<(Vec<String>, Option<Repair>), Failure> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(text.as_bytes()).and_then(|()| file.rewind()).expect("written");
        let (finished, repair) = read_finished(Path::new("results.jsonl"), &file)?;
        let mut finished: Vec<String> = finished.into_iter().collect();
        finished.sort();
        Ok((finished, repair))
    }

    #[test]
    fn finished_ids_are_read_and_an_incomplete_last_line_is_found() {
        let whole =
            "{\"id\":\"a\",\"line\":1,\"tokens\":[]}\n{\"id\":2,\"line\":2,\"error\":\"x\"}\n{\"id\":3,\"line\":3}";
        assert_eq!(finished_in(whole).expect("results"), (vec!["3".into(), "a".into()], Some(Repair::EndLine)));
        let complete = format!("{whole}\n");
        assert_eq!(finished_in(&complete).expect("results").1, None);
        // Every cut of a last line is repaired to the lines before it.
        let last = "{\"id\":\"b\",\"line\":4,\"text\":\"ü\"}";
        for cut in (1..last.len()).filter(|cut| last.is_char_boundary(*cut)) {
            let torn = format!("{complete}{}", &last[..cut]);
            let repair = finished_in(&torn).expect("results").1;
            assert_eq!(repair, Some(Repair::Truncate(complete.len() as u64)), "{torn}");
        }
    }

    #[test]
    fn other_files_are_refused_and_not_cut() {
        for text in [
            "hello",
            "hello\n",
            "{\"id\": \"a\", \"prompt\": \"x\"}\n",
            "{}\n{\"id\":1,\"line\":1}\n",
            "{\"id\":\"a\",\"prompt\":\"x\"}",
            "{\"id\":\"a\",\"prompt\":\"x",
        ] {
            let failure = finished_in(text).expect_err("not results");
            assert!(failure.message().contains("results.jsonl, line 1"), "{text}: {failure}");
        }
    }
}
