//! Reads request traces: JSON lines in the public Mooncake format.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::{fmt, str};

use serde::{Deserialize, Serialize};

use crate::builtin;

/// Tokens that one hash stands for; the last block of a request may be shorter.
pub(crate) const BLOCK_TOKENS: u64 = 512;

/// A file that is no trace may be one endless line.
const LINE_BYTES: usize = 16 << 20;

/// One request. Fields that we do not know are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// When it arrives, in milliseconds from the start.
    pub(crate) timestamp: u64,
    /// Tokens of the prompt.
    pub(crate) input_length: u64,
    /// Tokens of the answer.
    pub(crate) output_length: u64,
    /// One per block of the prompt; equal numbers mean equal blocks after an equal beginning.
    pub(crate) hash_ids: Vec<u64>,
}

/// Requests in the order of their arrival; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) requests: Vec<Request>,
}

/// Why a file is no usable trace; prints as one line.
#[derive(Debug)]
pub(crate) struct TraceError {
    file: PathBuf,
    /// From 1; `None` when it is about the whole file.
    line: Option<usize>,
    fault: Fault,
}

/// What is wrong.
#[derive(Debug)]
pub(crate) enum Fault {
    Io(io::Error),
    Empty,
    LongLine,
    NotUtf8,
    Json(serde_json::Error),
    NoInput,
    Blocks {
        input_length: u64,
        expected: u64,
        found: usize,
    },
    Backwards {
        from: u64,
        to: u64,
    },
}

impl Trace {
    /// Reads the first `limit` requests of `file`; what comes after them is not looked at.
    pub(crate) fn open(file: &Path, limit: Option<usize>) -> Result<Self, TraceError> {
        let at = |line| {
            move |fault| TraceError {
                file: file.to_owned(),
                line,
                fault,
            }
        };
        let input = File::open(file).map_err(Fault::Io).map_err(at(None))?;
        let requests = read(BufReader::new(input), limit.unwrap_or(usize::MAX))
            .map_err(|(line, fault)| at(line)(fault))?;
        Ok(Self { requests })
    }

    /// The first `limit` requests of `file`, or of the built-in trace.
    pub(crate) fn load(file: Option<&Path>, limit: Option<usize>) -> Result<Self, TraceError> {
        let Some(file) = file else {
            let mut trace = Self::builtin();
            trace.requests.truncate(limit.unwrap_or(usize::MAX));
            return Ok(trace);
        };
        Self::open(file, limit)
    }

    /// A small trace that is always there.
    pub(crate) fn builtin() -> Self {
        Self {
            requests: builtin::requests(),
        }
    }
}

fn read(mut input: impl BufRead, limit: usize) -> Result<Vec<Request>, (Option<usize>, Fault)> {
    let mut requests: Vec<Request> = Vec::new();
    let mut line = Vec::new();
    let mut number = 0;
    while requests.len() < limit {
        line.clear();
        // One byte more than allowed tells a long line from a full one.
        input
            .by_ref()
            .take(LINE_BYTES as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(|error| (None, Fault::Io(error)))?;
        if line.is_empty() {
            break;
        }
        number += 1;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let request = parse(&line, requests.last()).map_err(|fault| (Some(number), fault))?;
        requests.push(request);
    }
    if requests.is_empty() && limit > 0 {
        return Err((None, Fault::Empty));
    }
    Ok(requests)
}

fn parse(line: &[u8], previous: Option<&Request>) -> Result<Request, Fault> {
    if line.len() > LINE_BYTES {
        return Err(Fault::LongLine);
    }
    let text = str::from_utf8(line).map_err(|_| Fault::NotUtf8)?;
    let request: Request = serde_json::from_str(text).map_err(Fault::Json)?;
    let Request {
        timestamp,
        input_length,
        ref hash_ids,
        ..
    } = request;
    if input_length == 0 {
        return Err(Fault::NoInput);
    }
    let expected = input_length.div_ceil(BLOCK_TOKENS);
    if hash_ids.len() as u64 != expected {
        return Err(Fault::Blocks {
            input_length,
            expected,
            found: hash_ids.len(),
        });
    }
    match previous {
        Some(previous) if timestamp < previous.timestamp => Err(Fault::Backwards {
            from: previous.timestamp,
            to: timestamp,
        }),
        _ => Ok(request),
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trace {}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Empty => write!(f, "no requests in it"),
            Self::LongLine => write!(f, "longer than {} MiB", LINE_BYTES >> 20),
            Self::NotUtf8 => write!(f, "not UTF-8"),
            Self::Json(error) => {
                // It counts lines from the start of the line that it was given.
                let text = error.to_string();
                let cause = text
                    .rsplit_once(" at line ")
                    .map_or(&*text, |(cause, _)| cause);
                write!(f, "{cause} (column {})", error.column())
            }
            Self::NoInput => write!(f, "input_length is 0"),
            Self::Blocks {
                input_length,
                expected,
                found,
            } => write!(
                f,
                "input_length {input_length} needs {expected} hash_ids, one per {BLOCK_TOKENS} tokens, not {found}"
            ),
            Self::Backwards { from, to } => {
                write!(f, "timestamp goes back from {from} to {to}")
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Io(error) => Some(error),
            Fault::Json(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GOOD: &str =
        r#"{"timestamp": 5, "input_length": 513, "output_length": 2, "hash_ids": [0, 7]}"#;

    fn open(content: &[u8], limit: Option<usize>) -> Result<Trace, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.jsonl");
        fs::write(&file, content).unwrap();
        Trace::open(&file, limit).map_err(|error| {
            let text = error.to_string();
            let file = file.display().to_string();
            assert!(text.contains(&file) && !text.contains('\n'), "{text}");
            text.replace(&file, "FILE")
        })
    }

    fn fault(content: &str) -> String {
        open(content.as_bytes(), None).unwrap_err()
    }

    fn with(field: &str, value: &str) -> String {
        let mut line: serde_json::Value = serde_json::from_str(GOOD).unwrap();
        line[field] = serde_json::from_str(value).unwrap();
        line.to_string()
    }

    #[test]
    fn lines_may_end_in_any_way_and_have_more_fields() {
        let expected = Request {
            timestamp: 5,
            input_length: 513,
            output_length: 2,
            hash_ids: vec![0, 7],
        };
        let more = with("chat_id", r#"{"deep": [1, null]}"#);
        for content in [
            format!("{GOOD}\n{GOOD}\n"),
            format!("{GOOD}\r\n{GOOD}\r\n\r\n"),
            format!("{more}\n{GOOD}"),
            format!("\n{GOOD}\n \n{GOOD}\n\n\n"),
        ] {
            let trace = open(content.as_bytes(), None).unwrap();
            assert_eq!(trace.requests, [expected.clone(), expected.clone()]);
        }
    }

    #[test]
    fn a_limit_hides_what_comes_after_it() {
        let content = format!("{GOOD}\n{GOOD}\n{GOOD}\nrubbish\n");
        assert_eq!(open(content.as_bytes(), Some(2)).unwrap().requests.len(), 2);
        assert_eq!(open(content.as_bytes(), Some(3)).unwrap().requests.len(), 3);
        assert_eq!(open(content.as_bytes(), Some(0)).unwrap().requests, []);
        assert!(
            open(content.as_bytes(), Some(4))
                .unwrap_err()
                .contains("line 4")
        );
    }

    #[test]
    fn bad_json_is_named_with_line_and_column() {
        let six = format!("{GOOD}\n").repeat(6);
        assert_eq!(
            fault(&format!("{six}{{\"timestamp\": x}}\n")),
            "trace FILE, line 7: expected value (column 15)"
        );
        assert_eq!(
            fault(&format!("\n{}", &GOOD[..15])),
            "trace FILE, line 2: EOF while parsing an object (column 15)"
        );
        assert_eq!(
            fault(&format!("{GOOD}{GOOD}")),
            "trace FILE, line 1: trailing characters (column 78)"
        );
        assert_eq!(
            fault("true"),
            "trace FILE, line 1: invalid type: boolean `true`, expected struct Request (column 4)"
        );
    }

    #[test]
    fn missing_fields_and_wrong_types_are_named() {
        for field in ["timestamp", "input_length", "output_length", "hash_ids"] {
            let line = GOOD.replacen(field, "other", 1);
            assert!(fault(&line).starts_with(&format!(
                "trace FILE, line 1: missing field `{field}` (column "
            )));
        }
        for (field, value, message) in [
            (
                "timestamp",
                "\"soon\"",
                "invalid type: string \"soon\", expected u64",
            ),
            (
                "timestamp",
                "1.5",
                "invalid type: floating point `1.5`, expected u64",
            ),
            (
                "input_length",
                "-1",
                "invalid value: integer `-1`, expected u64",
            ),
            ("output_length", "null", "invalid type: null, expected u64"),
            (
                "hash_ids",
                "3",
                "invalid type: integer `3`, expected a sequence",
            ),
            (
                "hash_ids",
                "[\"\\n\"]",
                "invalid type: string \"\\n\", expected u64",
            ),
        ] {
            let text = fault(&with(field, value));
            assert!(
                text.starts_with(&format!("trace FILE, line 1: {message} (column ")),
                "{text}"
            );
        }
    }

    #[test]
    fn hashes_must_fit_the_input() {
        let text = |length, needed, found| {
            format!(
                "trace FILE, line 1: input_length {length} needs {needed} hash_ids, one per 512 tokens, not {found}"
            )
        };
        assert_eq!(fault(&with("input_length", "512")), text("512", "1", "2"));
        assert_eq!(fault(&with("input_length", "1025")), text("1025", "3", "2"));
        assert_eq!(fault(&with("hash_ids", "[]")), text("513", "2", "0"));
        let most = u64::MAX.to_string();
        assert_eq!(
            fault(&with("input_length", &most)),
            text(&most, "36028797018963968", "2")
        );
        assert!(open(with("input_length", "1024").as_bytes(), None).is_ok());
        assert_eq!(
            fault(&with("input_length", "0")),
            "trace FILE, line 1: input_length is 0"
        );
    }

    #[test]
    fn time_never_goes_back() {
        let earlier = with("timestamp", "4");
        assert_eq!(
            fault(&format!("{GOOD}\n{GOOD}\n{earlier}\n")),
            "trace FILE, line 3: timestamp goes back from 5 to 4"
        );
    }

    #[test]
    fn files_without_requests_are_refused() {
        for content in ["", "\n", " \r\n\n"] {
            assert_eq!(fault(content), "trace FILE: no requests in it");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let mut content = format!("{GOOD}\n").into_bytes();
        content.extend(b"{\"timestamp\": \xff}\n");
        assert_eq!(
            open(&content, None).unwrap_err(),
            "trace FILE, line 2: not UTF-8"
        );
    }

    #[test]
    fn a_line_has_an_end() {
        let mut line = GOOD.to_owned();
        line.push_str(&" ".repeat(LINE_BYTES - GOOD.len() - 1));
        assert!(open(format!("{line}\n").as_bytes(), None).is_ok());
        line.push(' ');
        assert_eq!(
            fault(&format!("{GOOD}\n{line}\n")),
            "trace FILE, line 2: longer than 16 MiB"
        );
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| Trace::open(path, None).unwrap_err().to_string();
        let name = folder.path().display();
        assert_eq!(
            message(folder.path()),
            format!("trace {name}: Is a directory (os error 21)")
        );
        let missing = folder.path().join("missing");
        assert_eq!(
            message(&missing),
            format!("trace {name}/missing: No such file or directory (os error 2)")
        );
    }
}
