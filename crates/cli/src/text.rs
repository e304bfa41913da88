//! Bytes as text and back: plain, hexadecimal and base64.

use std::fmt::Write as _;

/// Encoding of keys and values on the command line and in output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// As they are; in output, bytes that are not printable text become `\xNN`.
    #[default]
    Text,
    /// Two hexadecimal digits a byte.
    Hex,
    /// Base64 with the standard alphabet and padding.
    Base64,
}

impl Encoding {
    /// Decodes a word of the command line.
    pub(crate) fn decode(self, text: &str) -> Result<Vec<u8>, String> {
        match self {
            Encoding::Text => Ok(text.as_bytes().to_vec()),
            Encoding::Hex => decode_hex(text),
            Encoding::Base64 => decode_base64(text),
        }
    }

    /// Decodes the bytes of a field in place; they are never longer than the text. Returns their
    /// number.
    pub(crate) fn decode_in_place(self, text: &mut [u8]) -> Result<usize, String> {
        match self {
            Encoding::Text => Ok(text.len()),
            Encoding::Hex => decode_hex_in_place(text),
            Encoding::Base64 => decode_base64_in_place(text),
        }
    }

    /// Returns the end of the name of a field with this encoding.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Encoding::Text => "",
            Encoding::Hex => "_hex",
            Encoding::Base64 => "_base64",
        }
    }

    /// Formats bytes for a line of output.
    pub(crate) fn show(self, bytes: &[u8]) -> String {
        match self {
            Encoding::Text => escape(bytes),
            Encoding::Hex => encode_hex(bytes),
            Encoding::Base64 => encode_base64(bytes),
        }
    }
}

/// Escapes bytes: printable UTF-8 stays; backslash, tab and line ends get their usual escapes,
/// other bytes become `\xNN`.
fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                _ if letter.is_control() => {
                    let mut utf8 = [0; 4];
                    push_hex_escapes(&mut text, letter.encode_utf8(&mut utf8).as_bytes());
                }
                _ => text.push(letter),
            }
        }
        push_hex_escapes(&mut text, chunk.invalid());
    }
    text
}

fn push_hex_escapes(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

pub(crate) fn encode_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn decode_hex(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = text.as_bytes().to_vec();
    let length = decode_hex_in_place(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

fn decode_hex_in_place(text: &mut [u8]) -> Result<usize, String> {
    let wrong = |text: &[u8], why| format!("{} is not hexadecimal{why}", abridged(text));
    if !text.len().is_multiple_of(2) {
        return Err(wrong(text, ": its number of digits is odd"));
    }
    // Checked before anything is overwritten, so that the message quotes the original text.
    if !text.iter().all(u8::is_ascii_hexdigit) {
        return Err(wrong(text, ""));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let half = text.len() / 2;
    for at in 0..half {
        let (high, low) = (digit(text[2 * at]), digit(text[2 * at + 1]));
        text[at] = high.unwrap_or(0) << 4 | low.unwrap_or(0);
    }
    Ok(half)
}

/// Returns the beginning of a text that may be megabytes long, for a message.
pub(crate) fn abridged(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

/// Shortens a message that may quote megabytes of its input.
pub(crate) fn shortened(message: &str) -> String {
    const SHOWN: usize = 200;
    match message.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message.to_owned(),
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes base64 with padding (RFC 4648, section 4).
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=chunk.len()].copy_from_slice(chunk);
        let word = u32::from_be_bytes(padded);
        for place in 0..4 {
            if place <= chunk.len() {
                let index = (word >> (18 - 6 * place)) & 63;
                text.push(char::from(ALPHABET[usize::try_from(index).unwrap_or(0)]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Decodes base64; padding may be left out.
fn decode_base64(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = text.as_bytes().to_vec();
    let length = decode_base64_in_place(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Decodes base64 in place, where the bytes take less space. Returns their number.
fn decode_base64_in_place(text: &mut [u8]) -> Result<usize, String> {
    const DIGITS: [u8; 256] = {
        let mut digits = [u8::MAX; 256];
        let mut index = 0;
        while index < ALPHABET.len() {
            digits[ALPHABET[index] as usize] = index as u8;
            index += 1;
        }
        digits
    };
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let length = text.len() - padding;
    let wrong = |text: &[u8]| format!("{} is not base64", abridged(text));
    // Checked before anything is overwritten, so that the message quotes the original text.
    let digits = &text[..length];
    if padding > 2
        || length % 4 == 1
        || digits.iter().any(|digit| DIGITS[usize::from(*digit)] == u8::MAX)
    {
        return Err(wrong(text));
    }
    let word_of = |digits: &[u8]| {
        let bits = |(place, digit): (usize, &u8)| {
            u32::from(DIGITS[usize::from(*digit)]) << (18 - 6 * place)
        };
        digits.iter().enumerate().map(bits).fold(0, |word, bits| word | bits).to_be_bytes()
    };
    // Bits beyond the last byte would be lost: two texts must not mean the same bytes.
    let last = &digits[length / 4 * 4..];
    if word_of(last)[last.len().max(1)..].iter().any(|&byte| byte != 0) {
        return Err(wrong(text));
    }
    let mut written = 0;
    for read in (0..length).step_by(4) {
        let end = (read + 4).min(length);
        let [_, three @ ..] = word_of(&text[read..end]);
        let kept = end - read - 1;
        text[written..written + kept].copy_from_slice(&three[..kept]);
        written += kept;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_standard() {
        let examples = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in examples {
            assert_eq!(encode_base64(plain.as_bytes()), encoded);
            assert_eq!(decode_base64(encoded).unwrap(), plain.as_bytes());
        }
    }

    #[test]
    fn what_is_not_an_encoding_is_refused() {
        for text in ["0", "0g", "zz", "+1"] {
            assert!(decode_hex(text).is_err(), "{text}");
        }
        for text in ["Z", "Zg===", "Zh==", "Z\u{e9}==", "Zm9v!"] {
            assert!(decode_base64(text).is_err(), "{text}");
        }
    }

    #[test]
    fn unprintable_bytes_are_escaped() {
        assert_eq!(escape(b"a\tb\\c\x00\xff\xc3\xa9"), "a\\tb\\\\c\\x00\\xff\u{e9}");
    }

    proptest! {
        #[test]
        fn encodings_are_read_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode_hex(&encode_hex(&bytes)).unwrap(), bytes.clone());
            prop_assert_eq!(decode_base64(&encode_base64(&bytes)).unwrap(), bytes);
        }

        #[test]
        fn decoders_do_not_panic(text: String) {
            let _ = decode_hex(&text);
            let _ = decode_base64(&text);
        }
    }
}
