//! The query of a request: names and values in order, decoded; repeated names are kept.

use super::error::ServerError;

/// Fields of a query.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=1&b=%32`; what does not decode is kept as it is.
    pub(crate) fn parse(text: &str) -> Self {
        let field = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(name), decode(value))
        };
        Self(text.split('&').filter(|p| !p.is_empty()).map(field).collect())
    }

    /// The first value of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// All values of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// All names and values, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A number, or an error that names the field.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, ServerError> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                ServerError::bad(name, format!("{name} must be a number, not '{}'", short(text)))
            }),
        }
    }

    /// Whether a field says yes; absent is no, and what is neither is an error that names the field.
    pub(crate) fn is_on(&self, name: &'static str) -> Result<bool, ServerError> {
        match self.get(name) {
            None => Ok(false),
            Some(value) if is_no(value) => Ok(false),
            Some(value) if is_yes(value) => Ok(true),
            Some(other) => {
                Err(ServerError::bad(name, format!("{name} is true or false, not '{}'", short(other))))
            }
        }
    }
}

/// Whether a value says yes; a name without a value does.
fn is_yes(value: &str) -> bool {
    ["true", "1", "yes", "on", ""].iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

/// Whether a value says no.
pub(crate) fn is_no(value: &str) -> bool {
    ["false", "0", "no", "off"].iter().any(|no| value.eq_ignore_ascii_case(no))
}

/// The beginning of a value, for an error's text.
pub(crate) fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A path without its escapes.
pub(crate) fn decode_path(text: &str) -> String {
    decode(&text.replace('+', "%2B"))
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = |b: u8| (b as char).to_digit(16);
        match bytes[i] {
            b'+' => out.push(b' '),
            b'%' => {
                match (bytes.get(i + 1).copied().and_then(hex), bytes.get(i + 2).copied().and_then(hex)) {
                    (Some(high), Some(low)) => {
                        out.push((high * 16 + low) as u8);
                        i += 2;
                    }
                    _ => out.push(b'%'),
                }
            }
            b => out.push(b),
        }
        i += 1;
    }
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes() {
        let q = Query::parse("a=1&b=x%20y+z&a=2&&flag&bad=%zz%4&u=%C3%A9");
        assert_eq!(q.get("a"), Some("1"));
        assert_eq!(q.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(q.get("b"), Some("x y z"));
        assert!(q.is_on("flag").unwrap() && !q.is_on("none").unwrap() && q.is_on("b").is_err());
        assert_eq!(q.get("bad"), Some("%zz%4"));
        assert_eq!(q.get("u"), Some("é"));
        assert_eq!(q.number::<u32>("a").unwrap(), Some(1));
        assert!(q.number::<u32>("b").is_err());
    }
}
