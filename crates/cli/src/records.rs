//! Records as CSV, TSV and JSON lines, read and written so that what is exported imports as the same bytes.
//!
//! * **JSON lines**, as exported: `{"key": .., "value": ..}`; bytes that are not UTF-8 are in `key_base64` or `value_base64` instead.
//! * **CSV, TSV**, as exported: a header `key,value`, then the raw bytes, quoted where needed.
//!
//! Other people's files are read by naming the field of the key, and of the value; without the latter the value is the whole record:
//! the line itself for JSON lines, a JSON object of the fields (an array when there is no header) for CSV and TSV.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};

use clap::ValueEnum;
use spinney::ValueReader;

use crate::exit::Failure;
use crate::json::{Place, find_fields, read_line, to_json, write_long};
use crate::text::decode_base64_in_place;

/// Longer values are written piece by piece.
const LONG_VALUE_BYTES: u64 = 64 << 10;

/// A record: its key and its value, borrowed from what was read where they are in it as they are.
pub(crate) type Record<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// Is handed each record with its number, or why it is none.
pub(crate) type Sink<'a> =
    &'a mut dyn FnMut(u64, Result<Record<'_>, String>) -> Result<(), Failure>;

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Comma-separated values.
    Csv,
    /// The same with tabs.
    Tsv,
    /// One JSON object a line.
    Jsonl,
}

impl Format {
    /// What the numbers of [`read`] count.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Format::Csv | Format::Tsv => "record",
            Format::Jsonl => "line",
        }
    }
}

/// Which fields of a record are the key and the value.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    /// The field of the key: a name, or without a header a number from 1. `None`: the file is an export.
    pub(crate) key: Option<String>,
    /// The field of the value; `None`: the whole record, or the export's.
    pub(crate) value: Option<String>,
    /// Whether the first line of CSV or TSV names the fields.
    pub(crate) header: bool,
}

/// Reads every record of `input` and hands it to `sink` with its number (of the line for JSON lines, of the record
/// after the header for CSV and TSV), or why it is not one. Stops when the sink fails.
pub(crate) fn read(
    format: Format,
    fields: &Fields,
    input: &mut dyn BufRead,
    sink: Sink<'_>,
) -> Result<(), Failure> {
    match format {
        Format::Csv => read_separated(b',', fields, input, sink),
        Format::Tsv => read_separated(b'\t', fields, input, sink),
        Format::Jsonl => read_lines(fields, input, sink),
    }
}

fn read_lines(fields: &Fields, input: &mut dyn BufRead, sink: Sink<'_>) -> Result<(), Failure> {
    let mut line = Vec::new();
    for number in 1.. {
        if !read_line(input, &mut line)? {
            break;
        }
        let begin = line.len() - line.trim_ascii_start().len();
        let end = line.trim_ascii_end().len();
        if begin < end {
            sink(number, parse_line(&mut line[begin..end], fields))?;
        }
    }
    Ok(())
}

fn parse_line<'a>(line: &'a mut [u8], fields: &Fields) -> Result<Record<'a>, String> {
    let Some(key_name) = &fields.key else { return exported_record(line) };
    let missing = |name: &str| format!("there is no field {name:?}");
    let value_name = fields.value.as_deref().unwrap_or(key_name);
    let [key, value] = find_fields(line, [key_name, value_name])?;
    let key = key.ok_or_else(|| missing(key_name))?;
    // Before anything is changed in its place.
    let key_bytes = key.copied(line)?;
    let value = match value {
        _ if fields.value.is_none() => Cow::Borrowed(&*line),
        // Both are of one field, which is found once.
        None if value_name == key_name => Cow::Owned(key_bytes.clone()),
        None => return Err(missing(value_name)),
        Some(place) if place.is_text => Cow::Borrowed(&*place.unescaped(line)?),
        Some(place) => Cow::Owned(place.copied(line)?),
    };
    Ok((Cow::Owned(key_bytes), value))
}

/// A record as an export writes it: text under the name of a field, or anything under its name and
/// `_base64`.
fn exported_record(line: &mut [u8]) -> Result<Record<'_>, String> {
    let names = ["key", "key_base64", "value", "value_base64"];
    let [key, key_base64, value, value_base64] = find_fields(line, names)?;
    let (key, is_base64) = exported_field("key", key, key_base64)?;
    let mut key = key.copied(line)?;
    if is_base64 {
        let length = decode_base64_in_place(&mut key)?;
        key.truncate(length);
    }
    let (value, is_base64) = exported_field("value", value, value_base64)?;
    let mut value = value.unescaped(line)?;
    if is_base64 {
        let length = decode_base64_in_place(value)?;
        value = &mut value[..length];
    }
    Ok((Cow::Owned(key), Cow::Borrowed(value)))
}

/// The one place that a field has, and whether it is base64.
fn exported_field(
    name: &str,
    plain: Option<Place>,
    base64: Option<Place>,
) -> Result<(Place, bool), String> {
    let encoded = format!("{name}_base64");
    match (plain, base64) {
        (Some(place), None) if place.is_text => Ok((place, false)),
        (None, Some(place)) if place.is_text => Ok((place, true)),
        (None, None) => Err(format!(
            "there is no field {name:?}, nor {encoded:?} (name the fields with --key and --value)"
        )),
        (Some(_), Some(_)) => Err(format!("there are both {name:?} and {encoded:?}")),
        _ => Err(format!("{name:?} is not a string")),
    }
}

fn read_separated(
    delimiter: u8,
    fields: &Fields,
    input: &mut dyn BufRead,
    sink: Sink<'_>,
) -> Result<(), Failure> {
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .has_headers(fields.header)
        // A record that lacks a field is refused by itself and does not end the import.
        .flexible(true)
        .from_reader(input);
    let names: Option<Vec<Vec<u8>>> = match fields.header {
        true => {
            Some(reader.byte_headers().map_err(csv_failure)?.iter().map(<[u8]>::to_vec).collect())
        }
        false => None,
    };
    let key = column(fields.key.as_deref(), names.as_deref(), "key", 0)?;
    let value = match (&fields.value, &fields.key) {
        (None, Some(_)) => None,
        (value, _) => Some(column(value.as_deref(), names.as_deref(), "value", 1)?),
    };
    let mut record = csv::ByteRecord::new();
    let mut number = 0;
    while reader.read_byte_record(&mut record).map_err(csv_failure)? {
        // Not the line: a quoted field may hold line ends, so lines tell less than records.
        number += 1;
        let field = |index: usize| {
            let found = record.get(index).map(Cow::Borrowed);
            found.ok_or_else(|| {
                format!("there are {} fields, none is number {}", record.len(), index + 1)
            })
        };
        let parsed = field(key).and_then(|key| {
            let value = match value {
                Some(value) => field(value)?,
                None => Cow::Owned(whole(&record, names.as_deref())?),
            };
            Ok((key, value))
        });
        sink(number, parsed)?;
    }
    Ok(())
}

/// The place of a field that was named on the command line, or of `default` in an export.
fn column(
    wanted: Option<&str>,
    names: Option<&[Vec<u8>]>,
    default: &str,
    place: usize,
) -> Result<usize, Failure> {
    let Some(names) = names else {
        let Some(wanted) = wanted else { return Ok(place) };
        let number = wanted.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        return number.ok_or_else(|| {
            Failure::usage(format!("without a header, a field is a number from 1, not {wanted:?}"))
        });
    };
    let wanted = wanted.unwrap_or(default);
    names.iter().position(|name| name == wanted.as_bytes()).ok_or_else(|| {
        let names: Vec<String> =
            names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        Failure::usage(format!("the header has no field {wanted:?}, only {}", names.join(", ")))
    })
}

/// A record of CSV or TSV as JSON: an object by the header's names, or an array.
fn whole(record: &csv::ByteRecord, names: Option<&[Vec<u8>]>) -> Result<Vec<u8>, String> {
    fn text(bytes: &[u8]) -> Result<&str, String> {
        str::from_utf8(bytes)
            .map_err(|_| "a field is not UTF-8, so the record cannot become JSON".to_owned())
    }
    let json = match names {
        None => {
            let fields: Vec<&str> = record.iter().map(text).collect::<Result<_, _>>()?;
            serde_json::to_vec(&fields)
        }
        Some(names) if names.len() < record.len() => {
            return Err(format!(
                "there are {} fields, but the header names {}",
                record.len(),
                names.len()
            ));
        }
        Some(names) => {
            let pairs =
                names.iter().zip(record).map(|(name, field)| Ok((text(name)?, text(field)?)));
            serde_json::to_vec(&pairs.collect::<Result<BTreeMap<_, _>, String>>()?)
        }
    };
    json.map_err(|error| error.to_string())
}

fn csv_failure(error: csv::Error) -> Failure {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => Failure::Stream(error),
        other => Failure::usage(format!("the file is not understood: {other:?}")),
    }
}

/// Writes records in the form that [`read`] takes for an export.
pub(crate) enum Writer<W: Write> {
    Separated(Box<csv::Writer<W>>),
    Lines(W),
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(format: Format, output: W) -> Result<Self, Failure> {
        let delimiter = match format {
            Format::Jsonl => return Ok(Writer::Lines(output)),
            Format::Csv => b',',
            Format::Tsv => b'\t',
        };
        let mut writer = csv::WriterBuilder::new().delimiter(delimiter).from_writer(output);
        writer.write_record(["key", "value"]).map_err(csv_failure)?;
        Ok(Writer::Separated(Box::new(writer)))
    }

    pub(crate) fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        match self {
            Writer::Separated(writer) => writer.write_record([key, value]).map_err(csv_failure),
            Writer::Lines(output) => Ok(writeln!(output, "{}", to_json(key, Some(value)))?),
        }
    }

    /// The same for a value of any length; only as a field of CSV or TSV it is whole in memory.
    pub(crate) fn write_from(
        &mut self,
        key: &[u8],
        value: &mut ValueReader,
    ) -> Result<(), Failure> {
        if let Writer::Lines(output) = self
            && value.len() > LONG_VALUE_BYTES
        {
            return write_long(output, key, value, ValueReader::rewind);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(value.len()).unwrap_or(0));
        value.read_to_end(&mut bytes).map_err(Failure::of_reader)?;
        self.write(key, &bytes)
    }

    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self {
            Writer::Separated(mut writer) => Ok(writer.flush()?),
            Writer::Lines(mut output) => Ok(output.flush()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(key: Option<&str>, value: Option<&str>, header: bool) -> Fields {
        Fields { key: key.map(str::to_owned), value: value.map(str::to_owned), header }
    }

    type Owned = (Vec<u8>, Vec<u8>);
    type Found = Vec<(u64, Result<Owned, String>)>;

    fn read_all(format: Format, fields: &Fields, text: &[u8]) -> Result<Found, Failure> {
        let mut found = Vec::new();
        read(format, fields, &mut &text[..], &mut |line, record| {
            let owned = record.map(|(key, value)| (key.into_owned(), value.into_owned()));
            found.push((line, owned));
            Ok(())
        })?;
        Ok(found)
    }

    fn pair(key: &str, value: &str) -> Owned {
        (key.as_bytes().to_vec(), value.as_bytes().to_vec())
    }

    #[test]
    fn named_fields_of_json_lines() {
        let text = br#"{"name": "oak", "height": 30, "in": {"a": 1}}

            not json
            {"height": 3}"#;
        let found =
            read_all(Format::Jsonl, &fields(Some("name"), Some("height"), true), text).unwrap();
        assert_eq!(found[0], (1, Ok(pair("oak", "30"))));
        assert!(found[1].0 == 3 && found[1].1.as_ref().unwrap_err().contains("not a JSON object"));
        assert!(found[2].0 == 4 && found[2].1.as_ref().unwrap_err().contains("\"name\""));
        let whole = read_all(Format::Jsonl, &fields(Some("name"), None, true), text).unwrap();
        assert_eq!(whole[0].1, Ok(pair("oak", r#"{"name": "oak", "height": 30, "in": {"a": 1}}"#)));
    }

    #[test]
    fn named_fields_of_csv() {
        let text = b"id,name,note\r\n1,oak,\"tall, \"\"old\"\"\"\r\n2\r\n3,elm,x\r\n";
        let found = read_all(Format::Csv, &fields(Some("name"), Some("note"), true), text).unwrap();
        assert_eq!(found[0].1, Ok(pair("oak", "tall, \"old\"")));
        assert!(found[1].1.as_ref().unwrap_err().contains("none is number 2"));
        assert_eq!(found[2], (3, Ok(pair("elm", "x"))));
        let whole = read_all(Format::Csv, &fields(Some("id"), None, true), text).unwrap();
        assert_eq!(whole[2].1, Ok(pair("3", r#"{"id":"3","name":"elm","note":"x"}"#)));
        let bare = read_all(Format::Csv, &fields(Some("2"), None, false), b"1,oak\n").unwrap();
        assert_eq!(bare[0].1, Ok(pair("oak", r#"["1","oak"]"#)));
    }

    #[test]
    fn fields_that_are_not_there_are_the_users_error() {
        for (key, header) in [(Some("nobody"), true), (Some("name"), false), (Some("0"), false)] {
            let found = read_all(Format::Csv, &fields(key, None, header), b"id,name\n1,oak\n");
            assert!(matches!(found, Err(Failure::Usage(_))), "{key:?} {header}");
        }
    }

    #[test]
    fn an_export_is_named_by_its_fields() {
        let none = fields(None, None, true);
        let found =
            read_all(Format::Jsonl, &none, br#"{"key": "a", "value_base64": "/w=="}"#).unwrap();
        assert_eq!(found[0].1, Ok((b"a".to_vec(), vec![0xFF])));
        for text in [
            r#"{"key": "a"}"#,
            r#"{"key": 1, "value": "b"}"#,
            r#"{"key": "a", "key_base64": "YQ==", "value": "b"}"#,
        ] {
            let found = read_all(Format::Jsonl, &none, text.as_bytes()).unwrap();
            assert!(found[0].1.is_err(), "{text}");
        }
    }

    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            any::<Vec<u8>>(),
            any::<String>().prop_map(String::into_bytes),
            "[\"\r\n\t, a]{0,6}".prop_map(String::into_bytes)
        ]
    }

    proptest! {
        #[test]
        fn what_is_exported_imports_as_the_same_bytes(records in prop::collection::vec((any_bytes(), any_bytes()), 0..8)) {
            for format in [Format::Csv, Format::Tsv, Format::Jsonl] {
                let mut text = Vec::new();
                let mut writer = Writer::new(format, &mut text).unwrap();
                for (key, value) in &records {
                    writer.write(key, value).unwrap();
                }
                writer.finish().unwrap();
                let found = read_all(format, &fields(None, None, true), &text).unwrap();
                let found: Vec<Owned> = found.into_iter().map(|(_, record)| record.unwrap()).collect();
                prop_assert_eq!(&found, &records, "{:?}", format);
            }
        }

        #[test]
        fn readers_do_not_panic(text: Vec<u8>, header: bool) {
            for format in [Format::Csv, Format::Tsv, Format::Jsonl] {
                let _ = read_all(format, &fields(None, None, header), &text);
                let _ = read_all(format, &fields(Some("1"), None, header), &text);
            }
        }
    }
}
