//! JSON from clients: nested no deeper than a limit, so that no body costs the stack or the patience of a parser.

use serde::Deserialize;

use super::limits::MAX_JSON_DEPTH;

/// What is wrong with a client's JSON.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JsonError {
    /// It is nested too deeply.
    #[error("it is nested deeper than {MAX_JSON_DEPTH} levels")]
    Deep,
    /// It is not what was expected.
    #[error(transparent)]
    Bad(#[from] serde_json::Error),
}

/// Parses JSON of a client.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, JsonError> {
    if is_deep(bytes) {
        return Err(JsonError::Deep);
    }
    Ok(serde_json::from_slice(bytes)?)
}

/// Whether brackets nest deeper than the limit. Text that is no JSON may get either answer: the parser refuses it.
fn is_deep(mut bytes: &[u8]) -> bool {
    let mut depth = 0usize;
    while let Some((&first, rest)) = bytes.split_first() {
        bytes = rest;
        match first {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => bytes = after_string(bytes),
            _ => {}
        }
        if depth > MAX_JSON_DEPTH {
            return true;
        }
    }
    false
}

/// What follows the string whose inside begins here.
fn after_string(mut bytes: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', bytes) {
        let step = if bytes[at] == b'"' { 1 } else { 2 };
        let rest = bytes.get(at + step..).unwrap_or_default();
        if step == 1 {
            return rest;
        }
        bytes = rest;
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn the_limit_and_one_past_it() {
        assert!(parse::<Value>(nested(MAX_JSON_DEPTH).as_bytes()).is_ok());
        assert!(matches!(parse::<Value>(nested(MAX_JSON_DEPTH + 1).as_bytes()), Err(JsonError::Deep)));
        let objects = "{\"a\":".repeat(MAX_JSON_DEPTH + 1);
        assert!(matches!(parse::<Value>(objects.as_bytes()), Err(JsonError::Deep)));
    }

    #[test]
    fn brackets_in_strings_do_not_count() {
        let text = serde_json::json!(["[".repeat(100), "\\\"[{", {"[[[": "]\\"}]).to_string();
        assert!(parse::<Value>(text.as_bytes()).is_ok());
        for bad in ["\"", "\"\\", "\"\\\"", "]]]]", "", "\"abc"] {
            assert!(matches!(parse::<Value>(bad.as_bytes()), Err(JsonError::Bad(_))), "{bad}");
        }
        // Many values side by side are not deep.
        assert!(parse::<Value>(format!("[{}[]]", "[],".repeat(1000)).as_bytes()).is_ok());
    }
}
