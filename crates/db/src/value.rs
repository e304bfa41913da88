//! Values that reads return.

use std::array::TryFromSliceError;
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::Deref;
use std::string::FromUtf8Error;

/// A value, owned by the caller. It dereferences to a byte slice, compares with bytes and text, and
/// converts into a vector without a copy.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use spinney_db::Value;
/// let value = Value::from("plum");
/// assert_eq!(value, "plum");
/// assert_eq!(value.len(), 4);
/// assert_eq!(String::try_from(value)?, "plum");
/// let eight = Value::from(7u64.to_be_bytes());
/// assert_eq!(u64::from_be_bytes(eight.try_into()?), 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Value(Vec<u8>);

impl Value {
    /// Returns the bytes as a vector, without a copy.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Value(bytes)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Value(bytes.to_vec())
    }
}

impl<const N: usize> From<[u8; N]> for Value {
    fn from(bytes: [u8; N]) -> Self {
        Value(bytes.to_vec())
    }
}

impl<const N: usize> From<&[u8; N]> for Value {
    fn from(bytes: &[u8; N]) -> Self {
        Value(bytes.to_vec())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value(text.into_bytes())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value(text.as_bytes().to_vec())
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        value.0
    }
}

impl From<Value> for Box<[u8]> {
    fn from(value: Value) -> Self {
        value.0.into_boxed_slice()
    }
}

impl TryFrom<Value> for String {
    type Error = FromUtf8Error;

    fn try_from(value: Value) -> Result<String, FromUtf8Error> {
        String::from_utf8(value.0)
    }
}

impl<const N: usize> TryFrom<Value> for [u8; N] {
    type Error = TryFromSliceError;

    fn try_from(value: Value) -> Result<[u8; N], TryFromSliceError> {
        value.0.as_slice().try_into()
    }
}

impl<const N: usize> TryFrom<&Value> for [u8; N] {
    type Error = TryFromSliceError;

    fn try_from(value: &Value) -> Result<[u8; N], TryFromSliceError> {
        value.0.as_slice().try_into()
    }
}

impl IntoIterator for Value {
    type Item = u8;
    type IntoIter = std::vec::IntoIter<u8>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Value {
    type Item = &'a u8;
    type IntoIter = std::slice::Iter<'a, u8>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Implements `==` in both directions for types that lend bytes.
macro_rules! compares {
    ($([$($generics:tt)*] $other:ty),+ $(,)?) => {$(
        impl<$($generics)*> PartialEq<$other> for Value {
            fn eq(&self, other: &$other) -> bool {
                let other: &[u8] = other.as_ref();
                self.0 == other
            }
        }

        impl<$($generics)*> PartialEq<Value> for $other {
            fn eq(&self, other: &Value) -> bool {
                other == self
            }
        }
    )+};
}

compares!(
    [] [u8],
    [] &[u8],
    [] Vec<u8>,
    [] &Vec<u8>,
    [] Cow<'_, [u8]>,
    [] str,
    [] &str,
    [] String,
    [const N: usize] [u8; N],
    [const N: usize] &[u8; N],
);

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}
