//! Records as CSV, TSV and JSON lines, read and written so that what is exported imports as the same bytes.
//!
//! * **JSON lines**, as exported: `{"key": .., "value": ..}`; bytes that are not UTF-8 are in `key_base64` or `value_base64` instead.
//! * **CSV, TSV**, as exported: a header `key,value`, then the raw bytes, quoted where needed.
//!
//! Other people's files are read by naming the field of the key, and of the value; without the latter the value is the whole record:
//! the line itself for JSON lines, a JSON object of the fields (an array when there is no header) for CSV and TSV.

use std::io::{BufRead, Write};

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::text::{decode_base64, encode_base64};

/// A record: its key and its value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

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
    sink: &mut dyn FnMut(u64, Result<Record, String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match format {
        Format::Csv => read_separated(b',', fields, input, sink),
        Format::Tsv => read_separated(b'\t', fields, input, sink),
        Format::Jsonl => read_lines(fields, input, sink),
    }
}

fn read_lines(
    fields: &Fields,
    input: &mut dyn BufRead,
    sink: &mut dyn FnMut(u64, Result<Record, String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let text = line.trim_ascii();
        if !text.is_empty() {
            sink(number, parse_line(text, fields))?;
        }
    }
    Ok(())
}

fn parse_line(line: &[u8], fields: &Fields) -> Result<Record, String> {
    let object: Map<String, Value> =
        serde_json::from_slice(line).map_err(|error| format!("not a JSON object: {error}"))?;
    let Some(key) = &fields.key else {
        return Ok((exported_field(&object, "key")?, exported_field(&object, "value")?));
    };
    let plain = |name: &str| match object.get(name) {
        None => Err(format!("there is no field {name:?}")),
        Some(Value::String(text)) => Ok(text.clone().into_bytes()),
        Some(other) => Ok(other.to_string().into_bytes()),
    };
    let value = match &fields.value {
        Some(value) => plain(value)?,
        None => line.to_vec(),
    };
    Ok((plain(key)?, value))
}

/// A field as an export writes it: text under its name, or anything under its name and `_base64`.
fn exported_field(object: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let encoded = format!("{name}_base64");
    match (object.get(name), object.get(&encoded)) {
        (Some(Value::String(text)), None) => Ok(text.clone().into_bytes()),
        (None, Some(Value::String(text))) => decode_base64(text),
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
    sink: &mut dyn FnMut(u64, Result<Record, String>) -> Result<(), Failure>,
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
            let found = record.get(index).map(<[u8]>::to_vec);
            found.ok_or_else(|| {
                format!("there are {} fields, none is number {}", record.len(), index + 1)
            })
        };
        let parsed = field(key).and_then(|key| {
            let value = match value {
                Some(value) => field(value)?,
                None => whole(&record, names.as_deref())?,
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
    let text = |bytes: &[u8]| {
        String::from_utf8(bytes.to_vec())
            .map_err(|_| "a field is not UTF-8, so the record cannot become JSON".to_owned())
    };
    let json = match names {
        None => Value::Array(
            record.iter().map(|field| text(field).map(Value::String)).collect::<Result<_, _>>()?,
        ),
        Some(names) if names.len() < record.len() => {
            return Err(format!(
                "there are {} fields, but the header names {}",
                record.len(),
                names.len()
            ));
        }
        Some(names) => {
            let pairs = names
                .iter()
                .zip(record)
                .map(|(name, field)| Ok((text(name)?, Value::String(text(field)?))));
            Value::Object(pairs.collect::<Result<_, String>>()?)
        }
    };
    Ok(json.to_string().into_bytes())
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

    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self {
            Writer::Separated(mut writer) => Ok(writer.flush()?),
            Writer::Lines(mut output) => Ok(output.flush()?),
        }
    }
}

/// A record, or only its key, as a JSON object on one line.
pub(crate) fn to_json(key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    let mut put = |name: &str, bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), Value::String(text.to_owned())),
        Err(_) => object.insert(format!("{name}_base64"), Value::String(encode_base64(bytes))),
    };
    put("key", key);
    if let Some(value) = value {
        put("value", value);
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(key: Option<&str>, value: Option<&str>, header: bool) -> Fields {
        Fields { key: key.map(str::to_owned), value: value.map(str::to_owned), header }
    }

    type Found = Vec<(u64, Result<Record, String>)>;

    fn read_all(format: Format, fields: &Fields, text: &[u8]) -> Result<Found, Failure> {
        let mut found = Vec::new();
        read(format, fields, &mut &text[..], &mut |line, record| {
            found.push((line, record));
            Ok(())
        })?;
        Ok(found)
    }

    fn pair(key: &str, value: &str) -> Record {
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
                let found: Vec<Record> = found.into_iter().map(|(_, record)| record.unwrap()).collect();
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
