//! Dumps of other engines: what `ldb dump` of RocksDB and `mdb_dump` of LMDB write. `db_dump` of
//! Berkeley DB writes the latter, too.
//!
//! ```text
//!   ldb dump --hex          mdb_dump
//!   0x6F616B ==> 0x33       VERSION=3
//!   Keys in range: 1        format=bytevalue
//!                           HEADER=END
//!                            6f616b
//!                            33
//!                           DATA=END
//! ```
//!
//! A record that cannot be read is refused, and the next one may be better. A line out of place, or
//! a cut, ends the import. Both formats say where they end, so the end of the file alone is never
//! taken for the end of a dump.

use std::borrow::Cow;
use std::io::BufRead;

use clap::ValueEnum;

use crate::exit::Failure;
use crate::json::read_line;
use crate::records::{Record, Sink};
use crate::text::{Encoding, abridged};

/// A format of dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dump {
    /// Dump of RocksDB, by `ldb dump --hex`.
    Ldb,
    /// Dump of RocksDB, by `ldb dump` without --hex: keys and values without line ends.
    LdbText,
    /// Dump of LMDB or Berkeley DB, by `mdb_dump` or `db_dump`.
    Mdb,
}

/// Reads every record of a dump and hands it to `sink` with the number of its line, or why it is
/// none. Stops when the sink fails.
pub(crate) fn read(dump: Dump, input: &mut dyn BufRead, sink: Sink<'_>) -> Result<(), Failure> {
    let lines = Lines { input, line: Vec::new(), number: 0 };
    match dump {
        Dump::Ldb => read_ldb(Encoding::Hex, lines, sink),
        Dump::LdbText => read_ldb(Encoding::Text, lines, sink),
        Dump::Mdb => read_mdb(lines, sink),
    }
}

/// The lines of a dump.
struct Lines<'a> {
    input: &'a mut dyn BufRead,
    line: Vec<u8>,
    /// Number of the line, from 1.
    number: u64,
}

impl Lines<'_> {
    /// Reads the next line, without its end; says whether there was one. A line that the file ends
    /// in does not count, unless it is the end of the dump.
    fn next(&mut self, is_end: impl Fn(&[u8]) -> bool) -> Result<bool, Failure> {
        if !read_line(self.input, &mut self.line)? {
            return Ok(false);
        }
        self.number += 1;
        if self.line.pop_if(|byte| *byte == b'\n').is_some() {
            return Ok(true);
        }
        Ok(is_end(&self.line))
    }

    /// Why the import ends in this line.
    fn wrong(&self, why: impl std::fmt::Display) -> Failure {
        Failure::usage(format!("line {}: {why}", self.number))
    }

    fn cut_off(&self, end: &str) -> Failure {
        match self.number {
            0 => Failure::usage("the input is empty"),
            number => Failure::usage(format!(
                "the dump is cut off: the input ends in line {number}, before {end:?}"
            )),
        }
    }

    /// Refuses everything but empty lines after the end of a dump.
    fn check_end(&mut self, end: &str) -> Result<(), Failure> {
        while self.next(|_| true)? {
            if self.line.starts_with(VERSION) {
                return Err(self.wrong(
                    "another database begins here, and is not imported; dump each into a file of \
                     its own (mdb_dump -s NAME)",
                ));
            }
            if !self.line.is_empty() {
                return Err(self.wrong(format!("there is more after {end:?}")));
            }
        }
        Ok(())
    }
}

/// What `ldb dump` writes between key and value.
const ARROW: &[u8] = b" ==> ";

/// What the last line of `ldb dump` begins with; the number of records follows.
const KEYS_IN_RANGE: &str = "Keys in range: ";

fn find_arrow(line: &[u8]) -> Option<usize> {
    line.windows(ARROW.len()).position(|window| window == ARROW)
}

fn read_ldb(encoding: Encoding, mut lines: Lines<'_>, sink: Sink<'_>) -> Result<(), Failure> {
    let count_of = |line: &[u8]| -> Option<Vec<u8>> {
        let count = line.strip_prefix(KEYS_IN_RANGE.as_bytes())?;
        find_arrow(line).is_none().then(|| count.to_vec())
    };
    let mut records = 0u64;
    while lines.next(|line| count_of(line).is_some())? {
        let Some(count) = count_of(&lines.line) else {
            records += 1;
            sink(lines.number, parse_ldb(&mut lines.line, encoding))?;
            continue;
        };
        if str::from_utf8(&count).ok().and_then(|count| count.parse().ok()) != Some(records) {
            return Err(lines.wrong(format!(
                "the dump should hold {} records, and there are {records} lines before this one; \
                 keys or values with line ends are read from `ldb dump --hex` only",
                abridged(&count)
            )));
        }
        return lines.check_end(KEYS_IN_RANGE);
    }
    Err(lines.cut_off(KEYS_IN_RANGE))
}

/// A line `KEY ==> VALUE`.
fn parse_ldb(line: &mut [u8], encoding: Encoding) -> Result<Record<'_>, String> {
    let at = find_arrow(line).ok_or("there is no \" ==> \" between a key and a value")?;
    if encoding == Encoding::Text && find_arrow(&line[at + 1..]).is_some() {
        return Err(
            "\" ==> \" is there more than once; `ldb dump --hex` tells keys from values".into()
        );
    }
    let (key, value) = line.split_at_mut(at);
    let key = ldb_field(key, encoding)?;
    let value = ldb_field(&mut value[ARROW.len()..], encoding)?;
    Ok((Cow::Borrowed(key), Cow::Borrowed(value)))
}

fn ldb_field(field: &mut [u8], encoding: Encoding) -> Result<&[u8], String> {
    if encoding == Encoding::Text {
        return Ok(field);
    }
    if !field.starts_with(b"0x") {
        let field = abridged(field);
        return Err(format!(
            "{field} does not begin with 0x; without --hex, `ldb dump` writes --format ldb-text"
        ));
    }
    let digits = &mut field[2..];
    let length = encoding.decode_in_place(digits)?;
    Ok(&digits[..length])
}

/// What the first line of `mdb_dump` begins with.
const VERSION: &[u8] = b"VERSION=";

/// The last line of a header, and of the records.
const HEADER_END: &str = "HEADER=END";
const DATA_END: &str = "DATA=END";

/// How `mdb_dump` writes bytes.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Two hexadecimal digits a byte.
    ByteValue,
    /// Printable bytes as they are, others as a backslash and two hexadecimal digits.
    Print,
}

fn read_mdb(mut lines: Lines<'_>, sink: Sink<'_>) -> Result<(), Failure> {
    let is_end = |line: &[u8]| line == DATA_END.as_bytes();
    let form = read_header(&mut lines)?;
    let mut last_key: Option<Vec<u8>> = None;
    loop {
        if !lines.next(is_end)? {
            return Err(lines.cut_off(DATA_END));
        }
        if is_end(&lines.line) {
            return lines.check_end(DATA_END);
        }
        let key_line = lines.number;
        let key = mdb_field(&mut lines, form)?.map(<[u8]>::to_vec);
        if !lines.next(is_end)? {
            return Err(lines.cut_off(DATA_END));
        }
        if is_end(&lines.line) {
            return Err(lines.wrong(format!("the key in line {key_line} has no value")));
        }
        let value_line = lines.number;
        let value = mdb_field(&mut lines, form)?;
        match (key, value) {
            (Err(why), _) => sink(key_line, Err(why))?,
            (_, Err(why)) => sink(value_line, Err(why))?,
            (Ok(key), Ok(_)) if last_key.as_ref() == Some(&key) => {
                let key = abridged(&key);
                let why = format!("key {key} has another value (DUPSORT); its first value is kept");
                sink(key_line, Err(why))?;
            }
            (Ok(key), Ok(value)) => {
                sink(key_line, Ok((Cow::Borrowed(&key), Cow::Borrowed(value))))?;
                last_key = Some(key);
            }
        }
    }
}

/// Reads the lines `NAME=VALUE` before the records.
fn read_header(lines: &mut Lines<'_>) -> Result<Form, Failure> {
    let mut form = None;
    loop {
        if !lines.next(|_| false)? {
            return Err(lines.cut_off(HEADER_END));
        }
        if lines.number == 1 && lines.line != b"VERSION=3" {
            return Err(lines.wrong("a dump of mdb_dump or db_dump begins with VERSION=3"));
        }
        let line = String::from_utf8_lossy(&lines.line);
        let Some((name, value)) = line.split_once('=') else {
            let line = abridged(&lines.line);
            return Err(lines.wrong(format!("{line} in the header is not NAME=VALUE")));
        };
        match (name, value) {
            ("HEADER", "END") => break,
            ("format", "bytevalue") => form = Some(Form::ByteValue),
            ("format", "print") => form = Some(Form::Print),
            ("type", "btree" | "hash") | ("keys", "1") => {}
            // Their keys are numbers, written otherwise, or missing.
            ("format" | "type" | "keys", _) => {
                let line = abridged(&lines.line);
                return Err(lines.wrong(format!("a dump with {line} is not supported")));
            }
            _ => {}
        }
    }
    form.ok_or_else(|| lines.wrong("the header has no format=bytevalue or format=print"))
}

/// The bytes of a line of records, or why it has none. A line that does not begin with a space is
/// out of place and ends the import.
fn mdb_field<'a>(
    lines: &'a mut Lines<'_>,
    form: Form,
) -> Result<Result<&'a [u8], String>, Failure> {
    if lines.line.first() != Some(&b' ') {
        return Err(
            lines.wrong("a line with a key or a value begins with a space, and this one does not")
        );
    }
    let field = &mut lines.line[1..];
    let length = match form {
        Form::ByteValue => Encoding::Hex.decode_in_place(field),
        Form::Print => unescape_in_place(field),
    };
    Ok(length.map(|length| &lines.line[1..=length]))
}

/// Puts the bytes that `\\` and `\hh` stand for in their place; returns how many bytes there are.
fn unescape_in_place(text: &mut [u8]) -> Result<usize, String> {
    let (mut read, mut written) = (0, 0);
    while read < text.len() {
        let mut taken = 1;
        if text[read] == b'\\' {
            if text.get(read + 1) == Some(&b'\\') {
                taken = 2;
            } else {
                let digits = text.get_mut(read + 1..read + 3).unwrap_or_default();
                if Encoding::Hex.decode_in_place(digits) != Ok(1) {
                    let why = "neither a backslash nor two hexadecimal digits follow a backslash";
                    return Err(why.into());
                }
                text[read] = text[read + 1];
                taken = 3;
            }
        }
        text[written] = text[read];
        read += taken;
        written += 1;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Found = (u64, Result<(Vec<u8>, Vec<u8>), String>);

    /// The records before the end, and how that was.
    fn read_all(dump: Dump, text: &[u8]) -> (Vec<Found>, Result<(), String>) {
        let mut found: Vec<Found> = Vec::new();
        let ended = read(dump, &mut &text[..], &mut |line, record| {
            let owned = record.map(|(key, value)| (key.into_owned(), value.into_owned()));
            found.push((line, owned));
            Ok(())
        });
        let told = ended.map_err(|failure| {
            assert!(matches!(failure, Failure::Usage(_)), "{failure}");
            failure.to_string()
        });
        (found, told)
    }

    fn record(line: u64, key: &[u8], value: &[u8]) -> Found {
        (line, Ok((key.to_vec(), value.to_vec())))
    }

    const HEADER: &str = "VERSION=3\nformat=bytevalue\ntype=btree\nmapsize=1048576\n\
                          maxreaders=126\ndb_pagesize=4096\nHEADER=END\n";
    const PRINTED: &str = "VERSION=3\nformat=print\ndatabase=trees\ntype=btree\nHEADER=END\n";

    #[test]
    fn a_dump_of_ldb_is_read() {
        let text = b"0x6F616B ==> 0x00FF\n0x ==> 0x\nKeys in range: 2\n";
        let records = vec![record(1, b"oak", b"\x00\xff"), record(2, b"", b"")];
        assert_eq!(read_all(Dump::Ldb, text), (records, Ok(())));
        let text = b"oak ==> tall = 3\n0x61 ==>  b \nKeys in range: 2 ==> x\nKeys in range: 3\n\n";
        let records = vec![
            record(1, b"oak", b"tall = 3"),
            record(2, b"0x61", b" b "),
            record(3, b"Keys in range: 2", b"x"),
        ];
        assert_eq!(read_all(Dump::LdbText, text), (records, Ok(())));
        assert_eq!(read_all(Dump::Ldb, b"Keys in range: 0\n"), (vec![], Ok(())));
    }

    #[test]
    fn a_dump_of_mdb_is_read() {
        let text = format!("{HEADER} 6f616b\n 00fF\n 62\n \nDATA=END\n");
        let records = vec![record(8, b"oak", b"\x00\xff"), record(10, b"b", b"")];
        assert_eq!(read_all(Dump::Mdb, text.as_bytes()), (records, Ok(())));
        let text = format!("{PRINTED} oak\n a \\00\\fFb\\\\61\nDATA=END");
        let records = vec![record(6, b"oak", b"a \x00\xffb\\61")];
        assert_eq!(read_all(Dump::Mdb, text.as_bytes()), (records, Ok(())));
        assert_eq!(read_all(Dump::Mdb, format!("{HEADER}DATA=END\n").as_bytes()), (vec![], Ok(())));
    }

    /// A record that cannot be read is refused by the number of its line; those around it are read.
    #[test]
    fn broken_records_are_refused() {
        let good = "0x61 ==> 0x62\n";
        for (line, why) in [
            ("0x616 ==> 0x62", "odd"),
            ("0x61 ==> 0x6g", "\"6g\" is not hexadecimal"),
            ("0x61 = 0x62", "no \" ==> \""),
            ("", "no \" ==> \""),
            ("oak ==> 0x62", "\"oak\" does not begin with 0x"),
            ("0x61 ==> tall", "--format ldb-text"),
            ("0x61|timestamp:7 ==> 0x62", "not hexadecimal"),
            ("0x61 ==> :0x62 name:0x63", "does not begin with 0x"),
            ("0x61 ==> 0x62 ==> 0x63", "not hexadecimal"),
        ] {
            let text = format!("{good}{line}\n{good}Keys in range: 3\n");
            let (found, ended) = read_all(Dump::Ldb, text.as_bytes());
            assert!(ended.is_ok() && found.len() == 3, "{line}: {found:?}, {ended:?}");
            assert!(found[0].1.is_ok() && found[2].1.is_ok(), "{line}: {found:?}");
            let told = found[1].1.as_ref().unwrap_err();
            assert!(found[1].0 == 2 && told.contains(why), "{line}: {told}");
        }
        for text in ["a ==> b ==> c", "a ==> ==> c"] {
            let (found, _) = read_all(Dump::LdbText, format!("{text}\n").as_bytes());
            assert!(found[0].1.as_ref().unwrap_err().contains("more than once"), "{found:?}");
        }
        for (header, lines, at, why) in [
            (HEADER, " 616\n 62\n", 10, "odd"),
            (HEADER, " 61\n 6\n", 11, "odd"),
            (HEADER, " 61\n 6x\n", 11, "\"6x\" is not hexadecimal"),
            (PRINTED, " a\n b\\\n", 9, "backslash"),
            (PRINTED, " a\\6\n b\n", 8, "backslash"),
            (PRINTED, " a\n b\\6x\n", 9, "backslash"),
            (HEADER, " 78\n 7a\n", 10, "\"x\" has another value"),
        ] {
            let text = format!("{header} 78\n 79\n{lines} 7a\n 7a\nDATA=END\n");
            let (found, ended) = read_all(Dump::Mdb, text.as_bytes());
            assert!(ended.is_ok() && found.len() == 3, "{lines}: {found:?}, {ended:?}");
            assert!(found[0].1.is_ok() && found[2].1.is_ok(), "{lines}: {found:?}");
            let told = found[1].1.as_ref().unwrap_err();
            assert!(found[1].0 == at && told.contains(why), "{lines}: {found:?}");
        }
    }

    /// What is out of place ends the import, and no line of it is taken for a record.
    #[test]
    fn broken_dumps_end_the_import() {
        let cases: [(Dump, String, &str); 20] = [
            (Dump::Ldb, String::new(), "the input is empty"),
            (Dump::Ldb, "0x61 ==> 0x62\n".into(), "ends in line 1, before \"Keys in range: \""),
            (Dump::Ldb, "0x61 ==> 0x62\n0x62 ==> 0x63".into(), "ends in line 2"),
            (Dump::Ldb, "0x61 ==> 0x62\nKeys in ra".into(), "ends in line 2"),
            (
                Dump::Ldb,
                "0x61 ==> 0x62\nKeys in range: 12\n".into(),
                "line 2: the dump should hold \"12\"",
            ),
            (Dump::Ldb, "0x61 ==> 0x62\nKeys in range: \n".into(), "there are 1 lines before"),
            (Dump::LdbText, "a ==> b\nKeys in range: 1\nc\n".into(), "line 3: there is more after"),
            (Dump::Mdb, String::new(), "the input is empty"),
            (
                Dump::Mdb,
                "0x61 ==> 0x62\n".into(),
                "line 1: a dump of mdb_dump or db_dump begins with",
            ),
            (Dump::Mdb, "VERSION=2\n".into(), "VERSION=3"),
            (Dump::Mdb, "VERSION=3\nformat=bytevalue\n".into(), "line 2, before \"HEADER=END\""),
            (Dump::Mdb, "VERSION=3\nHEADER=END\n".into(), "line 2: the header has no format"),
            (Dump::Mdb, "VERSION=3\nformat=xml\n".into(), "\"format=xml\" is not supported"),
            (Dump::Mdb, "VERSION=3\ntype=recno\n".into(), "\"type=recno\" is not supported"),
            (Dump::Mdb, "VERSION=3\nformat=print\n 61\n".into(), "line 3: \" 61\" in the header"),
            (Dump::Mdb, format!("{HEADER} 61\n 62\n"), "ends in line 9, before \"DATA=END\""),
            (Dump::Mdb, format!("{HEADER} 61\n 62\n 63\n 6"), "ends in line 11, before"),
            (
                Dump::Mdb,
                format!("{HEADER} 61\n 62\n 63\nDATA=END\n"),
                "the key in line 10 has no value",
            ),
            (
                Dump::Mdb,
                format!("{HEADER} 61\n 62\n63\n 64\nDATA=END\n"),
                "line 10: a line with a key",
            ),
            (
                Dump::Mdb,
                format!("{HEADER}DATA=END\n{PRINTED} a\n b\nDATA=END\n"),
                "line 9: another database",
            ),
        ];
        for (dump, text, why) in cases {
            let (found, ended) = read_all(dump, text.as_bytes());
            let told = ended.unwrap_err();
            assert!(told.contains(why), "{text:?}: {told}");
            let first = [b"a" as &[u8]; 1];
            let keys = found.iter().map(|(_, record)| record.as_ref().unwrap().0.as_slice());
            assert!(
                keys.clone().count() <= 1 && keys.zip(first).all(|(a, b)| a == b),
                "{text:?}: {found:?}"
            );
        }
    }

    fn escaped(bytes: &[u8]) -> String {
        let one = |byte: &u8| match byte {
            b'\\' => "\\\\".to_owned(),
            b' '..=b'~' => char::from(*byte).to_string(),
            byte => format!("\\{byte:02x}"),
        };
        bytes.iter().map(one).collect()
    }

    proptest! {
        /// Any bytes come through. A dump that is cut anywhere yields whole records and an error.
        #[test]
        fn dumps_are_read_or_their_cut_is_an_error(
            records in prop::collection::btree_map(any::<Vec<u8>>(), any::<Vec<u8>>(), 0..5),
            cut: prop::sample::Index,
        ) {
            let hex = |bytes: &[u8]| Encoding::Hex.show(bytes);
            let count = records.len();
            let upper = |bytes: &[u8]| hex(bytes).to_uppercase();
            let ldb = records.iter();
            let ldb = ldb.map(|(key, value)| format!("0x{} ==> 0x{}\n", upper(key), upper(value)));
            let ldb = ldb.chain([format!("Keys in range: {count}\n")]).collect::<String>();
            let pairs = |show: &dyn Fn(&[u8]) -> String| -> String {
                let pair = |(key, value): (&Vec<u8>, &Vec<u8>)| {
                    format!(" {}\n {}\n", show(key), show(value))
                };
                records.iter().map(pair).collect()
            };
            let bytes = format!("{HEADER}{}DATA=END\n", pairs(&hex));
            let print = format!("{PRINTED}{}DATA=END\n", pairs(&escaped));
            for (dump, text) in [(Dump::Ldb, ldb), (Dump::Mdb, bytes), (Dump::Mdb, print)] {
                let (found, ended) = read_all(dump, text.as_bytes());
                prop_assert_eq!(ended, Ok(()));
                let found: Vec<_> = found.into_iter().map(|(_, record)| record.unwrap()).collect();
                let all: Vec<_> = records.clone().into_iter().collect();
                prop_assert_eq!(&found, &all);
                // All but the last line end may be missing.
                let (found, ended) = read_all(dump, &text.as_bytes()[..cut.index(text.len() - 1)]);
                prop_assert!(ended.is_err());
                let found: Vec<_> = found.into_iter().map(|(_, record)| record.unwrap()).collect();
                prop_assert!(all.starts_with(&found));
            }
        }

        #[test]
        fn readers_do_not_panic(
            text: Vec<u8>,
            lines in "(( |0x|[a-f\\\\]|DATA=END| ==> |Keys in range: 1)?\n?){0,20}",
        ) {
            for dump in [Dump::Ldb, Dump::LdbText, Dump::Mdb] {
                let _ = read_all(dump, &text);
                let _ = read_all(dump, lines.as_bytes());
                let _ = read_all(dump, format!("{PRINTED}{lines}").as_bytes());
            }
        }
    }
}
