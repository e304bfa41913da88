//! Quotes of CSV and TSV that are never closed.
//!
//! A parser takes the end of the file for the end of a quoted field, so one forgotten quote
//! silently swallows the rest of a file. [`Quotes`] lies below the parser and follows the quotes by
//! the same rules. The end of the file is an error while a quote is open.

use std::fmt;
use std::io::Read;

use spinney::limits::VALUE_BYTES_MAX;

/// Longest quoted field, in bytes as written. Any value fits, even if each byte of it takes four. A
/// longer field is an unclosed quote, and would be read into memory whole.
const QUOTED_BYTES_MAX: u64 = 4 * VALUE_BYTES_MAX as u64;

/// A quote that is never closed.
#[derive(Debug)]
pub(crate) struct Unclosed {
    line: u64,
}

impl fmt::Display for Unclosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the quote that opens in line {} is never closed", self.line)
    }
}

impl std::error::Error for Unclosed {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first byte of a field: only here can a quote open.
    Start,
    Plain,
    Quoted,
    /// After a quote in a quoted field: another one makes both a quote.
    Closing,
}

/// Passes on what it reads, and fails if a quote is open at the end.
#[derive(Debug)]
pub(crate) struct Quotes<R> {
    inner: R,
    delimiter: u8,
    state: State,
    /// Current line, and the line in which the last quote opened.
    line: u64,
    opened: u64,
    /// Bytes of the field since then.
    quoted: u64,
}

impl<R: Read> Quotes<R> {
    pub(crate) fn new(inner: R, delimiter: u8) -> Self {
        Quotes { inner, delimiter, state: State::Start, line: 1, opened: 0, quoted: 0 }
    }

    fn take(&mut self, byte: u8) {
        let ends = byte == self.delimiter || byte == b'\n' || byte == b'\r';
        self.state = match (self.state, byte) {
            (State::Start, b'"') => {
                (self.opened, self.quoted) = (self.line, 0);
                State::Quoted
            }
            (State::Quoted, b'"') => State::Closing,
            (State::Closing, b'"') | (State::Quoted, _) => State::Quoted,
            _ if ends => State::Start,
            _ => State::Plain,
        };
        self.quoted += 1;
        self.line += u64::from(byte == b'\n');
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buf)?;
        buf[..read].iter().for_each(|byte| self.take(*byte));
        let ended = read == 0 && !buf.is_empty();
        if self.state == State::Quoted && (ended || self.quoted > QUOTED_BYTES_MAX) {
            return Err(std::io::Error::other(Unclosed { line: self.opened }));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends_open(text: &str) -> Option<u64> {
        let mut quotes = Quotes::new(text.as_bytes(), b',');
        let error = quotes.read_to_end(&mut Vec::new()).err()?;
        Some(error.downcast::<Unclosed>().unwrap().line)
    }

    #[test]
    fn the_line_of_an_open_quote_is_told() {
        for (text, line) in [
            ("a,b\n1,\"x\n2,y\n", Some(2)),
            ("\"", Some(1)),
            ("\"a\"\"", Some(1)),
            ("a\r\n\"b\"\r\n,\"c", Some(3)),
            ("\"a\nb\nc\",\"", Some(3)),
            ("\"a\nb\"\"\nc\"", None),
            ("a\"b,c\"\n", None),
            ("\"a\"b\"\n", None),
            ("\"\",\"\"\"\"\n", None),
            ("", None),
        ] {
            assert_eq!(ends_open(text), line, "{text:?}");
        }
    }

    proptest! {
        /// The rules are the parser's: where a quote is open a line end ends no record, and
        /// elsewhere it does.
        #[test]
        fn the_parser_agrees(text in "[\"\r\n,a]{0,24}") {
            let records = |text: &str| {
                let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
                reader.byte_records().count()
            };
            let open = ends_open(&text).is_some();
            let (whole, more) = (records(&format!("{text}b")), records(&format!("{text}b\nb")));
            prop_assert_eq!(more == whole, open, "{:?}", text);
        }
    }
}
