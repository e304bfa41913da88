//! JSON lines in little memory: values are decoded in place, in the buffer of the line. So no part
//! of a record of megabytes is in memory twice.

use std::fmt;
use std::io::{BufRead, Read, Write};
use std::ops::Range;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::text::Encoding;

/// Length in bytes from which a line grows by an eighth, and is not kept for the next.
const LONG_LINE_BYTES: usize = 1 << 20;

/// Bytes of a piece in which values are written: whole groups of base64.
const PIECE_BYTES: usize = 48 << 10;

/// Reads a line, with its end. Returns whether there was one.
pub(crate) fn read_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    line.shrink_to(LONG_LINE_BYTES);
    loop {
        if line.len() == line.capacity() {
            let more = if line.len() < LONG_LINE_BYTES { line.len() } else { line.len() / 8 };
            line.reserve_exact(more.max(4096));
        }
        let room = (line.capacity() - line.len()) as u64;
        let read = Read::take(&mut *input, room).read_until(b'\n', line)?;
        if read == 0 || line.ends_with(b"\n") {
            return Ok(!line.is_empty());
        }
    }
}

/// Position of a field's value in a line, without its quotes if it is text.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    range: Range<usize>,
    pub(crate) is_text: bool,
}

impl Place {
    /// Returns a copy of the value of the field. See [`Place::bytes`].
    pub(crate) fn copied(&self, line: &[u8], encoding: Encoding) -> Result<Vec<u8>, String> {
        let mut text = line[self.range.clone()].to_vec();
        let whole = Place { range: 0..text.len(), is_text: self.is_text };
        let length = whole.bytes(&mut text, encoding)?.len();
        text.truncate(length);
        Ok(text)
    }

    /// Decodes the value of the field in place. A string becomes its text; everything else keeps
    /// its text in the line, so that no digit of a number changes.
    pub(crate) fn bytes<'a>(
        &self,
        line: &'a mut [u8],
        encoding: Encoding,
    ) -> Result<&'a mut [u8], String> {
        let text = &mut line[self.range.clone()];
        let length = if self.is_text { unescape_in_place(text)? } else { text.len() };
        let length = encoding.decode_in_place(&mut text[..length])?;
        Ok(&mut text[..length])
    }

    /// Refuses what cannot be a key. Two texts of one object or array mean the same and would be
    /// two keys, and null means that there is no key.
    pub(crate) fn check_key(&self, line: &[u8]) -> Result<(), String> {
        let kind = match line.get(self.range.start) {
            _ if self.is_text => return Ok(()),
            Some(b'n') => "null",
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            _ => return Ok(()),
        };
        Err(format!("the key is {kind}; a key is a string, a number, true or false"))
    }
}

/// Finds the values of fields in the object of a line; of a repeated field, the last one.
pub(crate) fn find_fields<const N: usize>(
    line: &[u8],
    names: [&str; N],
) -> Result<[Option<Place>; N], String> {
    let text = std::str::from_utf8(line).map_err(not_an_object)?;
    let mut parser = serde_json::Deserializer::from_str(text);
    let raw = parser.deserialize_map(Fields(names)).map_err(not_an_object)?;
    parser.end().map_err(not_an_object)?;
    Ok(raw.map(|raw| {
        let raw = raw?.get();
        let begin = raw.as_ptr().addr() - text.as_ptr().addr();
        let is_text = raw.starts_with('"');
        let quote = usize::from(is_text);
        Some(Place { range: begin + quote..begin + raw.len() - quote, is_text })
    }))
}

fn not_an_object(error: impl fmt::Display) -> String {
    format!("not a JSON object: {error}")
}

struct Fields<'n, const N: usize>([&'n str; N]);

impl<'de, const N: usize> Visitor<'de> for Fields<'_, N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; N];
        while let Some(name) = map.next_key::<String>()? {
            match self.0.iter().position(|wanted| *wanted == name) {
                Some(place) => found[place] = Some(map.next_value()?),
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(found)
    }
}

/// Replaces the inside of a JSON string by its text, which is never longer. Returns the number of
/// bytes. The parser has checked that escapes are complete.
fn unescape_in_place(text: &mut [u8]) -> Result<usize, String> {
    let (mut read, mut written) = (0, 0);
    loop {
        let plain = text[read..].iter().position(|byte| *byte == b'\\');
        let end = plain.map_or(text.len(), |plain| read + plain);
        text.copy_within(read..end, written);
        written += end - read;
        let Some(&[_, kind]) = text.get(end..end + 2).and_then(|two| two.first_chunk()) else {
            return Ok(written);
        };
        read = end + 2;
        let letter = match kind {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let (letter, used) = unicode(&text[end..])?;
                read = end + used;
                letter
            }
            // Quotes, slashes and backslashes stand for themselves.
            other => char::from(other),
        };
        // Never longer than its escape: six bytes for up to three, twelve for four.
        written += letter.encode_utf8(&mut text[written..]).len();
    }
}

/// Decodes the letter of `\uXXXX`, or of two of them together. Returns it and the length of its
/// escape.
fn unicode(text: &[u8]) -> Result<(char, usize), String> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6).filter(|escape| escape.starts_with(b"\\u"))?;
        u16::from_str_radix(std::str::from_utf8(&digits[2..]).ok()?, 16).ok()
    };
    let units = [unit(0), unit(6)].into_iter().map_while(|unit| unit);
    match char::decode_utf16(units).next() {
        Some(Ok(letter)) => Ok((letter, 6 * letter.len_utf16())),
        _ => Err(not_an_object("half of a letter in an escape")),
    }
}

/// Formats a record, or only its key, as a JSON object on one line. Bytes that are not text become
/// base64.
pub(crate) fn to_json(key: &[u8], value: Option<&[u8]>, encoding: Encoding) -> Value {
    let mut object = Map::new();
    let mut put = |name: &str, bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok().filter(|_| encoding == Encoding::Text);
        let (encoding, text) = match (text, encoding) {
            (Some(text), _) => (encoding, text.to_owned()),
            (None, Encoding::Text) => (Encoding::Base64, Encoding::Base64.show(bytes)),
            (None, _) => (encoding, encoding.show(bytes)),
        };
        object.insert(format!("{name}{}", encoding.suffix()), Value::String(text));
    };
    put("key", key);
    if let Some(value) = value {
        put("value", value);
    }
    Value::Object(object)
}

/// Writes the line of [`to_json`] in pieces. The value is read twice, because only its end shows
/// whether it is text; `rewind` returns the reader to its beginning.
pub(crate) fn write_long<R: Read>(
    out: &mut impl Write,
    key: &[u8],
    value: &mut R,
    rewind: impl Fn(&mut R),
    encoding: Encoding,
) -> Result<(), Failure> {
    let key = to_json(key, None, encoding).to_string();
    let mut encoding = encoding;
    if encoding == Encoding::Text {
        if !in_pieces(value, |piece| Ok(valid(piece).len()))?.is_empty() {
            encoding = Encoding::Base64;
        }
        rewind(value);
    }
    let suffix = encoding.suffix();
    write!(out, "{},\"value{suffix}\":\"", key.strip_suffix('}').unwrap_or(&key))?;
    if encoding == Encoding::Text {
        in_pieces(value, |piece| {
            let text = serde_json::to_string(valid(piece))?;
            out.write_all(&text.as_bytes()[1..text.len() - 1])?;
            Ok(valid(piece).len())
        })?;
    } else {
        let last = in_pieces(value, |piece| {
            let whole = piece.len() / 3 * 3;
            out.write_all(encoding.show(&piece[..whole]).as_bytes())?;
            Ok(whole)
        })?;
        out.write_all(encoding.show(&last).as_bytes())?;
    }
    Ok(writeln!(out, "\"}}")?)
}

/// Returns the leading part of these bytes that is text, up to the first invalid or incomplete
/// character.
fn valid(bytes: &[u8]) -> &str {
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// Passes a value on in pieces. What `take` leaves of one comes again with the next. Ends if it
/// leaves more than a character may have, and returns the rest.
fn in_pieces<R: Read>(
    value: &mut R,
    mut take: impl FnMut(&[u8]) -> std::io::Result<usize>,
) -> Result<Vec<u8>, Failure> {
    let mut piece = Vec::with_capacity(PIECE_BYTES + char::MAX_LEN_UTF8);
    loop {
        let read = Read::take(&mut *value, PIECE_BYTES as u64).read_to_end(&mut piece);
        if read.map_err(Failure::of_reader)? == 0 {
            return Ok(piece);
        }
        let taken = take(&piece)?;
        piece.drain(..taken);
        if piece.len() > char::MAX_LEN_UTF8 {
            return Ok(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(line: &str) -> Result<Vec<u8>, String> {
        let [place] = find_fields(line.as_bytes(), ["a"])?;
        let place = place.ok_or("missing")?;
        let copied = place.copied(line.as_bytes(), Encoding::Text);
        let mut line = line.as_bytes().to_vec();
        assert_eq!(place.bytes(&mut line, Encoding::Text).map(|text| text.to_vec()), copied);
        copied
    }

    #[test]
    fn fields_are_found_where_they_lie() {
        for (line, expected) in [
            (r#"{"a":"x"}"#, "x"),
            (
                r#" { "b" : [1, {"a": 2}] , "a" : "x\"y\\\/\b\f\n\r\t" } "#,
                "x\"y\\/\u{8}\u{c}\n\r\t",
            ),
            (r#"{"a":"1","a":"2"}"#, "2"),
            (r#"{"\u0061":"\u00e9\u20AC\ud83d\ude00!"}"#, "\u{e9}\u{20ac}\u{1f600}!"),
            (r#"{"a": [1,  2.50, {"x" : null}]}"#, r#"[1,  2.50, {"x" : null}]"#),
            (r#"{"a": 1.50 }"#, "1.50"),
            (r#"{"a":18446744073709551617}"#, "18446744073709551617"),
            (r#"{"a":1E400}"#, "1E400"),
            (r#"{"a": null}"#, "null"),
            (r#"{"a":""}"#, ""),
            (r#"{"a":-0.0}"#, "-0.0"),
        ] {
            assert_eq!(field(line).as_deref(), Ok(expected.as_bytes()), "{line}");
        }
        for line in [
            "",
            "1",
            "[]",
            "{",
            r#"{"a":"x"} 1"#,
            r#"{"a":"x}"#,
            r#"{"a":"\ud83d"}"#,
            r#"{"a":"\ude00\ud83d"}"#,
            r#"{"a":"\u12"}"#,
            r#"{"a":"\x"}"#,
            "{\"a\":\"\n\"}",
            r#"{"b":1}"#,
        ] {
            assert!(field(line).is_err(), "{line}");
        }
        assert!(find_fields(b"{\"a\":\"\xff\"}", ["a"]).is_err());
    }

    #[test]
    fn lines_of_all_lengths_are_read_whole() {
        let lengths = [0, 1, 4094, 4095, 4096, 5000, 70_000, (1 << 20) - 1, 1 << 20, 3 << 20, 10];
        let lines = lengths.map(|length| [vec![b'x'; length], b"\n".to_vec()].concat());
        let text = lines.concat();
        let mut input = std::io::BufReader::with_capacity(1000, &text[..text.len() - 1]);
        let mut line = Vec::new();
        for (length, expected) in lengths.into_iter().zip(lines) {
            assert!(read_line(&mut input, &mut line).unwrap());
            assert!(line.trim_ascii_end() == expected.trim_ascii_end());
            assert!(line.capacity() <= (length + length / 4).max(3 << 20), "{}", line.capacity());
        }
        assert!(!read_line(&mut input, &mut line).unwrap());
    }

    const ENCODINGS: [Encoding; 3] = [Encoding::Text, Encoding::Hex, Encoding::Base64];

    fn long(key: &[u8], value: &[u8], encoding: Encoding) -> Vec<u8> {
        let mut out = Vec::new();
        let mut reader = std::io::Cursor::new(value);
        write_long(&mut out, key, &mut reader, |reader| reader.set_position(0), encoding).unwrap();
        out
    }

    #[test]
    fn long_values_are_written_as_short_ones() {
        let letters = "a\u{e9}\u{20ac}\u{1f600}\"\n\0".repeat(40_000);
        let halved = [letters.as_bytes(), b"\xe2\x82"].concat();
        let broken = [letters.as_bytes(), b"\xff", letters.as_bytes()].concat();
        for skip in 0..5 {
            for value in [letters.as_bytes(), &halved, &broken, &[0xff; 100_000]] {
                let value = &value[skip..];
                for encoding in ENCODINGS {
                    let expected = to_json(b"k}", Some(value), encoding);
                    let expected = format!("{expected}\n").into_bytes();
                    assert!(long(b"k}", value, encoding) == expected);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn strings_are_read_back(text: String, key: Vec<u8>, value: Vec<u8>) {
            let line = serde_json::json!({ "a": text, "b": 1 }).to_string();
            prop_assert_eq!(field(&line).unwrap(), text.into_bytes());
            for encoding in ENCODINGS {
                let expected = format!("{}\n", to_json(&key, Some(&value), encoding)).into_bytes();
                prop_assert_eq!(long(&key, &value, encoding), expected);
            }
        }

        #[test]
        fn lines_do_not_panic(line: String, bytes: Vec<u8>) {
            let _ = field(&line);
            let _ = find_fields(&bytes, ["a"]);
            let _ = unescape_in_place(&mut line.into_bytes());
        }
    }
}
