//! Fields of records as columns of fixed widths, for stores with columns.
//!
//! ```text
//!   value of a workload   4 bytes | length 2, text      | 8 bytes        no padding
//!   row of a table        4 bytes | length 2, text, 0.. | 8 bytes        fixed widths
//! ```
//!
//! The encoding of values is that of the crate's records.

use spinney_base::{Error, Result};

use crate::record::unreadable;

/// Bytes of the length of a text.
const LENGTH_BYTES: usize = 2;

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// This many bytes.
    Fixed(usize),
    /// A text of at most this many bytes.
    Text(usize),
}

impl Field {
    pub(crate) const fn width(self) -> usize {
        match self {
            Field::Fixed(bytes) => bytes,
            Field::Text(bytes) => LENGTH_BYTES + bytes,
        }
    }
}

/// Fields of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFields {
    /// Most bytes of a key.
    pub key: usize,
    /// Fields of the records, in their order.
    pub fields: &'static [Field],
}

impl TableFields {
    /// Widths of the columns.
    pub(crate) fn widths(&self) -> Vec<usize> {
        self.fields.iter().map(|field| field.width()).collect()
    }

    /// Replaces `row` by the columns of a value.
    pub(crate) fn split(&self, value: &[u8], row: &mut Vec<u8>) -> Result<()> {
        row.clear();
        let mut rest = value;
        for field in self.fields {
            let bytes = match field {
                Field::Fixed(bytes) => *bytes,
                Field::Text(_) => LENGTH_BYTES + text_bytes(rest),
            };
            let Some((bytes, more)) = rest.split_at_checked(bytes) else {
                return Err(unreadable("record of the table", value));
            };
            if bytes.len() > field.width() {
                return Err(Error::invalid("a text is longer than its column"));
            }
            row.extend_from_slice(bytes);
            row.resize(row.len() + field.width() - bytes.len(), 0);
            rest = more;
        }
        if rest.is_empty() { Ok(()) } else { Err(unreadable("record of the table", value)) }
    }

    /// Replaces `value` by the value that has these columns.
    pub(crate) fn join(&self, row: &[u8], value: &mut Vec<u8>) {
        value.clear();
        let mut rest = row;
        for field in self.fields {
            let (column, more) = rest.split_at(field.width());
            let bytes = match field {
                Field::Fixed(bytes) => *bytes,
                Field::Text(_) => (LENGTH_BYTES + text_bytes(column)).min(column.len()),
            };
            value.extend_from_slice(&column[..bytes]);
            rest = more;
        }
    }
}

fn text_bytes(from: &[u8]) -> usize {
    from.first_chunk().map_or(0, |length| usize::from(u16::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use crate::tpcc::load::records;
    use crate::tpcc::query2::TABLES_WITH_SUPPLIERS as TABLES;
    use crate::tpcc::schema::{FIELDS, Size, table};

    #[test]
    fn each_record_of_tpcc_has_its_columns() {
        assert_eq!(FIELDS.len(), TABLES.len());
        let size = Size { warehouses: 2, divisor: 300 };
        let (mut row, mut back) = (Vec::new(), Vec::new());
        for table in 0..TABLES.len() {
            let fields = FIELDS[table];
            let width: usize = fields.widths().iter().sum();
            for (key, value) in records(size, 1, table) {
                fields.split(&value, &mut row).unwrap();
                assert!(key.len() <= fields.key && row.len() == width, "{}", TABLES[table]);
                fields.join(&row, &mut back);
                assert_eq!(back, value);
            }
        }
        assert_eq!(FIELDS[table::STOCK].fields.len(), 15);
        assert!(FIELDS[table::ORDERS].split(&[0; 14], &mut row).is_err());
        assert!(FIELDS[table::ORDERS].split(&[0; 16], &mut row).is_err());
    }
}
