//! A reader of the protobuf wire format, as far as SentencePiece model files need it.
//! Lengths are checked against what is there; nothing is allocated from a length field.

use crate::TokenizerError;

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub(crate) fn bytes(self) -> Result<&'a [u8], TokenizerError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(wrong_type()),
        }
    }

    pub(crate) fn text(self) -> Result<&'a str, TokenizerError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| TokenizerError::broken("a piece is not UTF-8"))
    }

    pub(crate) fn varint(self) -> Result<u64, TokenizerError> {
        match self {
            Self::Varint(number) => Ok(number),
            _ => Err(wrong_type()),
        }
    }

    pub(crate) fn float(self) -> Result<f32, TokenizerError> {
        match self {
            Self::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => Err(wrong_type()),
        }
    }
}

fn wrong_type() -> TokenizerError {
    TokenizerError::broken("a field of the SentencePiece model has the wrong type")
}

fn cut() -> TokenizerError {
    TokenizerError::broken("the SentencePiece model ends early")
}

/// Iterates over the (field number, value) pairs of one message.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, TokenizerError> {
        let mut number = 0u64;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or_else(cut)?;
            self.0 = rest;
            if shift < 64 {
                number |= u64::from(byte & 0x7f) << shift;
            }
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(TokenizerError::broken("a number in the SentencePiece model is too long"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], TokenizerError> {
        let length = usize::try_from(length).map_err(|_| cut())?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(cut)?;
        self.0 = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), TokenizerError> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| cut())?)),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| cut())?)),
            other => return Err(TokenizerError::broken(format!("unknown protobuf wire type {other}"))),
        };
        Ok((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), TokenizerError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_wire_type() {
        let bytes =
            [0x08, 0x96, 0x01, 0x15, 0, 0, 0x80, 0x3f, 0x1a, 2, b'h', b'i', 0x21, 1, 0, 0, 0, 0, 0, 0, 0];
        let fields: Vec<_> = Fields(&bytes).collect::<Result<_, _>>().unwrap();
        assert_eq!(
            fields,
            [
                (1, Value::Varint(150)),
                (2, Value::Fixed32(0x3f80_0000)),
                (3, Value::Bytes(b"hi")),
                (4, Value::Fixed64(1))
            ]
        );
        assert_eq!(fields[1].1.float().unwrap(), 1.0);
        assert!(fields[0].1.text().is_err());
    }

    #[test]
    fn a_length_past_the_end_is_an_error() {
        let mut fields = Fields(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, b'x']);
        assert!(fields.next().unwrap().is_err());
        assert!(fields.next().is_none());
        assert!(Fields(&[0xff; 20]).next().unwrap().is_err());
        assert!(Fields(&[0x0b]).next().unwrap().is_err());
    }
}
