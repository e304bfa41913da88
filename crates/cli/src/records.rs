//! Records as CSV, TSV and JSON lines, read and written so that what is exported imports as the
//! same bytes.
//!
//! * **JSON lines**, as exported: `{"key": .., "value": ..}`; bytes that are not UTF-8 are in
//!   `key_base64` or `value_base64` instead, or all of them in `key_hex` and so on if that was
//!   asked for.
//! * **CSV, TSV**, as exported: a header `key,value`, then the raw bytes, quoted where needed; or a
//!   header `key_hex,value_hex` and so on.
//!
//! Other people's files are read by naming the field of the key, and of the value; without the
//! latter the value is the whole record: the line itself for JSON lines, a JSON object of the
//! fields (an array when there is no header) for CSV and TSV. What is read is not changed: a number
//! is the bytes that it has in the file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::path::Path;

use clap::ValueEnum;
use spinney::ValueReader;

use crate::exit::Failure;
use crate::json::{Place, find_fields, read_line, to_json, write_long};
use crate::quotes::{Quotes, Unclosed};
use crate::text::{Encoding, abridged};

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
    #[value(alias = "json", alias = "ndjson")]
    Jsonl,
}

impl Format {
    /// What the name of a file says, which is JSON lines where it says nothing.
    pub(crate) fn of_file(path: Option<&Path>) -> Self {
        let extension = path.and_then(Path::extension).unwrap_or_default();
        match extension.to_string_lossy().to_ascii_lowercase().as_str() {
            "csv" => Format::Csv,
            "tsv" => Format::Tsv,
            _ => Format::Jsonl,
        }
    }

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
    /// The field of the key: a name, or without a header a number from 1. `None`: the file is an
    /// export.
    pub(crate) key: Option<String>,
    /// The field of the value; `None`: the whole record, or the export's.
    pub(crate) value: Option<String>,
    /// Whether the first line of CSV or TSV names the fields.
    pub(crate) header: bool,
    /// How keys and values are written, where the name of a field does not say it.
    pub(crate) encoding: Encoding,
}

/// Reads every record of `input` and hands it to `sink` with its number (of the line for JSON
/// lines, of the record after the header for CSV and TSV), or why it is not one. Stops when the
/// sink fails.
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
    let Some(key_name) = &fields.key else { return exported_record(line, fields.encoding) };
    let missing = |name: &str| format!("there is no field {name:?}");
    let value_name = fields.value.as_deref().unwrap_or(key_name);
    let [key, value] = find_fields(line, [key_name, value_name])?;
    let key = key.ok_or_else(|| missing(key_name))?;
    key.check_key(line)?;
    // Before anything is changed in its place.
    let key_bytes = key.copied(line, fields.encoding)?;
    let value = match value {
        _ if fields.value.is_none() => Cow::Borrowed(&*line),
        // Both are of one field, which is found once.
        None if value_name == key_name => Cow::Owned(key_bytes.clone()),
        None => return Err(missing(value_name)),
        Some(place) => Cow::Borrowed(&*place.bytes(line, fields.encoding)?),
    };
    Ok((Cow::Owned(key_bytes), value))
}

/// A record as an export writes it: a string under the name of a field, or encoded under its name
/// and the encoding's.
fn exported_record(line: &mut [u8], encoding: Encoding) -> Result<Record<'_>, String> {
    let names = ["key", "key_hex", "key_base64", "value", "value_hex", "value_base64"];
    let [key, key_hex, key_base64, value, value_hex, value_base64] = find_fields(line, names)?;
    let (key, of_key) = exported_field("key", encoding, [key, key_hex, key_base64])?;
    let (value, of_value) = exported_field("value", encoding, [value, value_hex, value_base64])?;
    let key = key.copied(line, of_key)?;
    Ok((Cow::Owned(key), Cow::Borrowed(&*value.bytes(line, of_value)?)))
}

/// The one place that a field has, under one of its three names, and how it is encoded there.
fn exported_field(
    name: &str,
    encoding: Encoding,
    places: [Option<Place>; 3],
) -> Result<(Place, Encoding), String> {
    let encodings = [encoding, Encoding::Hex, Encoding::Base64];
    let mut found = places.into_iter().zip(encodings).filter_map(|(place, of)| Some((place?, of)));
    match (found.next(), found.next()) {
        (Some(one), None) if one.0.is_text => Ok(one),
        (Some(_), None) => Err(format!("{name:?} is not a string")),
        (Some(_), Some(_)) => Err(format!("there is more than one field for {name:?}")),
        (None, _) => Err(format!(
            "there is no field {name:?}, {name}_hex or {name}_base64 (name the fields with --key and --value)"
        )),
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
        .from_reader(Quotes::new(input, delimiter));
    let names: Option<Vec<Vec<u8>>> = match fields.header {
        true => {
            Some(reader.byte_headers().map_err(csv_failure)?.iter().map(<[u8]>::to_vec).collect())
        }
        false => None,
    };
    let column =
        |wanted, name, place| column(wanted, names.as_deref(), fields.encoding, name, place);
    let key = column(fields.key.as_deref(), "key", 0)?;
    let value = match (&fields.value, &fields.key) {
        (None, Some(_)) => None,
        (value, _) => Some(column(value.as_deref(), "value", 1)?),
    };
    let mut record = csv::ByteRecord::new();
    let mut number = 0;
    while reader.read_byte_record(&mut record).map_err(csv_failure)? {
        // Not the line: a quoted field may hold line ends, so lines tell less than records.
        number += 1;
        let surplus = names.as_ref().filter(|names| names.len() < record.len()).map(|names| {
            format!("there are {} fields, but the header names {}", record.len(), names.len())
        });
        let field = |(index, encoding): (usize, Encoding)| {
            let found = record.get(index).ok_or_else(|| {
                format!("there are {} fields, none is number {}", record.len(), index + 1)
            })?;
            if encoding == Encoding::Text {
                return Ok(Cow::Borrowed(found));
            }
            let mut bytes = found.to_vec();
            let length = encoding.decode_in_place(&mut bytes)?;
            bytes.truncate(length);
            Ok(Cow::Owned(bytes))
        };
        let parsed = surplus.map_or(Ok(()), Err).and_then(|()| field(key)).and_then(|key| {
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

/// The place of a field that was named on the command line, or of `default` in an export, and how
/// it is encoded: an export's header says that itself.
fn column(
    wanted: Option<&str>,
    names: Option<&[Vec<u8>]>,
    encoding: Encoding,
    default: &str,
    place: usize,
) -> Result<(usize, Encoding), Failure> {
    const NAMED: usize = 20;
    let Some(names) = names else {
        let Some(wanted) = wanted else { return Ok((place, encoding)) };
        let number = wanted.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        return number.map(|number| (number, encoding)).ok_or_else(|| {
            Failure::usage(format!("without a header, a field is a number from 1, not {wanted:?}"))
        });
    };
    if names.is_empty() {
        return Err(Failure::usage(
            "the input is empty: it lacks the header that names its fields",
        ));
    }
    let find = |wanted: &str| names.iter().position(|name| name == wanted.as_bytes());
    let found = match wanted {
        Some(wanted) => find(wanted).map(|place| (place, encoding)),
        None => [Encoding::Text, Encoding::Hex, Encoding::Base64].into_iter().find_map(|own| {
            let encoding = if own == Encoding::Text { encoding } else { own };
            Some((find(&format!("{default}{}", own.suffix()))?, encoding))
        }),
    };
    found.ok_or_else(|| {
        let wanted = wanted.unwrap_or(default);
        let mut known: Vec<String> = names.iter().take(NAMED).map(|name| abridged(name)).collect();
        if names.len() > NAMED {
            known.push(format!("and {} more", names.len() - NAMED));
        }
        Failure::usage(format!("the header has no field {wanted:?}, only {}", known.join(", ")))
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
        csv::ErrorKind::Io(error) => match error.downcast::<Unclosed>() {
            Ok(unclosed) => Failure::usage(unclosed.to_string()),
            Err(error) => Failure::Stream(error),
        },
        other => Failure::usage(format!("the file is not understood: {other:?}")),
    }
}

/// Writes records in the form that [`read`] takes for an export.
pub(crate) struct Writer<W: Write> {
    encoding: Encoding,
    form: Form<W>,
}

enum Form<W: Write> {
    Separated(Box<csv::Writer<W>>),
    Lines(W),
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(format: Format, encoding: Encoding, output: W) -> Result<Self, Failure> {
        let delimiter = match format {
            Format::Jsonl => return Ok(Writer { encoding, form: Form::Lines(output) }),
            Format::Csv => b',',
            Format::Tsv => b'\t',
        };
        let mut writer = csv::WriterBuilder::new().delimiter(delimiter).from_writer(output);
        let names = ["key", "value"].map(|name| format!("{name}{}", encoding.suffix()));
        writer.write_record(names).map_err(csv_failure)?;
        Ok(Writer { encoding, form: Form::Separated(Box::new(writer)) })
    }

    pub(crate) fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let encoding = self.encoding;
        match &mut self.form {
            Form::Separated(writer) if encoding == Encoding::Text => {
                writer.write_record([key, value]).map_err(csv_failure)
            }
            Form::Separated(writer) => {
                let fields = [key, value].map(|field| encoding.show(field));
                writer.write_record(fields).map_err(csv_failure)
            }
            Form::Lines(output) => Ok(writeln!(output, "{}", to_json(key, Some(value), encoding))?),
        }
    }

    /// The same for a value of any length; only as a field of CSV or TSV it is whole in memory.
    pub(crate) fn write_from(
        &mut self,
        key: &[u8],
        value: &mut ValueReader,
    ) -> Result<(), Failure> {
        if let Form::Lines(output) = &mut self.form
            && value.len() > LONG_VALUE_BYTES
        {
            return write_long(output, key, value, ValueReader::rewind, self.encoding);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(value.len()).unwrap_or(0));
        value.read_to_end(&mut bytes).map_err(Failure::of_reader)?;
        self.write(key, &bytes)
    }

    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self.form {
            Form::Separated(mut writer) => Ok(writer.flush()?),
            Form::Lines(mut output) => Ok(output.flush()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(key: Option<&str>, value: Option<&str>, header: bool) -> Fields {
        let encoding = Encoding::Text;
        Fields { key: key.map(str::to_owned), value: value.map(str::to_owned), header, encoding }
    }

    const FORMATS: [Format; 3] = [Format::Csv, Format::Tsv, Format::Jsonl];
    const ENCODINGS: [Encoding; 3] = [Encoding::Text, Encoding::Hex, Encoding::Base64];

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
            for (format, encoding) in FORMATS.into_iter().flat_map(|format| ENCODINGS.map(|encoding| (format, encoding))) {
                let mut text = Vec::new();
                let mut writer = Writer::new(format, encoding, &mut text).unwrap();
                for (key, value) in &records {
                    writer.write(key, value).unwrap();
                }
                writer.finish().unwrap();
                // What is exported says itself how it is encoded; JSON without an encoding has no
                // other name for text.
                let said = if encoding == Encoding::Text { vec![encoding] } else { ENCODINGS.to_vec() };
                for said in said {
                    let fields = Fields { encoding: said, ..fields(None, None, true) };
                    let found = read_all(format, &fields, &text).unwrap();
                    let found: Vec<Owned> = found.into_iter().map(|(_, record)| record.unwrap()).collect();
                    prop_assert_eq!(&found, &records, "{:?} {:?} {:?}", format, encoding, said);
                }
            }
        }

        /// Fields that are named are decoded as the command line says, in every format.
        #[test]
        fn named_fields_are_decoded(key: Vec<u8>, value: Vec<u8>) {
            for encoding in [Encoding::Hex, Encoding::Base64] {
                let [k, v] = [&key, &value].map(|bytes| encoding.show(bytes));
                let texts = [
                    (Format::Csv, format!("other,k,v\n1,{k},{v}\n")),
                    (Format::Tsv, format!("v\tk\n\"{v}\"\t{k}\n")),
                    (Format::Jsonl, serde_json::json!({ "v": v, "x": [1], "k": k }).to_string()),
                ];
                for (format, text) in texts {
                    let fields = Fields { encoding, ..fields(Some("k"), Some("v"), true) };
                    let found = read_all(format, &fields, text.as_bytes()).unwrap();
                    prop_assert_eq!(&found[0].1, &Ok((key.clone(), value.clone())));
                }
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
