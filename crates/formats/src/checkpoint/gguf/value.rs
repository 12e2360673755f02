//! The values in a GGUF file's metadata: their types, and their places in the file.

use crate::table_enum::table_enum;
use std::fmt;
use std::ops::Range;

table_enum! {
    /// The type of a value, in the order of the format's codes (`gguf_metadata_value_type`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum ValueType;

    /// Returns the name, and the number of bytes of a value; `None` for texts and arrays, whose
    /// lengths are stored.
    fn form() -> (&'static str, Option<usize>);

    U8 = ("u8", Some(1)),
    I8 = ("i8", Some(1)),
    U16 = ("u16", Some(2)),
    I16 = ("i16", Some(2)),
    U32 = ("u32", Some(4)),
    I32 = ("i32", Some(4)),
    F32 = ("f32", Some(4)),
    Bool = ("bool", Some(1)),
    Text = ("string", None),
    Array = ("array", None),
    U64 = ("u64", Some(8)),
    I64 = ("i64", Some(8)),
    F64 = ("f64", Some(8)),
}

impl ValueType {
    pub(super) fn code(self) -> u32 {
        self as u32
    }

    pub(super) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|value_type| value_type.code() == code)
    }

    /// Returns the number of bytes of a value; `None` for texts and arrays.
    pub(super) fn width(self) -> Option<usize> {
        self.form().1
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.form().0)
    }
}

/// The type of a value, and the place of its content in the file.
#[derive(Clone, Debug)]
pub(super) struct StoredValue {
    /// The type of the value, or of an array's elements.
    pub(super) value_type: ValueType,
    /// The number of elements, if the value is an array.
    pub(super) array_length: Option<usize>,
    /// The bytes of the value or the elements, without the type and the length of a whole text or
    /// array.
    pub(super) bytes: Range<usize>,
}

/// One value that is not an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(&'a str),
}

impl<'a> Scalar<'a> {
    /// Decodes a value. Returns `None` if the bytes are no value of this type: a text that is not
    /// UTF-8, a bool other than 0 and 1, or an array.
    pub(super) fn decode(value_type: ValueType, bytes: &'a [u8]) -> Option<Self> {
        Some(match value_type {
            ValueType::U8 => Self::Integer(u8::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::I8 => Self::Integer(i8::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::U16 => Self::Integer(u16::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::I16 => Self::Integer(i16::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::U32 => Self::Integer(u32::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::I32 => Self::Integer(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::U64 => Self::Integer(u64::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::I64 => Self::Integer(i64::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::F32 => Self::Float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
            ValueType::F64 => Self::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::Bool => match bytes {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                _ => return None,
            },
            ValueType::Text => Self::Text(str::from_utf8(bytes).ok()?),
            ValueType::Array => return None,
        })
    }

    pub(super) fn integer<T: TryFrom<i128>>(self) -> Option<T> {
        match self {
            Self::Integer(value) => T::try_from(value).ok(),
            _ => None,
        }
    }

    pub(super) fn float(self) -> Option<f32> {
        match self {
            Self::Float(value) => Some(value as f32),
            _ => None,
        }
    }

    pub(super) fn bool(self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(formatter, "{value}"),
            Self::Float(value) => write!(formatter, "{}", *value as f32),
            Self::Bool(value) => write!(formatter, "{value}"),
            Self::Text(text) => write!(formatter, "{:?}", crate::load_error::shortened(text)),
        }
    }
}
