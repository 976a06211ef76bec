//! Pause tags: `[pause]`, `[pause:300ms]`, and SSML's `<break time="0.5s"/>` and `<break strength="strong"/>`.
//!
//! A tag whose duration cannot be read is an error that names it. Whatever else looks like a tag stays text.

use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;

use crate::TextError;

/// The longest pause one tag may ask for.
pub const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The longest that all pauses of one request may be together.
pub const MAX_TOTAL_PAUSE: Duration = Duration::from_secs(300);

/// What `[pause]` and `<break/>` without a duration mean.
pub const DEFAULT_PAUSE: Duration = Duration::from_millis(500);

/// A stretch of a text with pauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Text to speak.
    Text(String),
    /// Silence.
    Pause(Duration),
}

static TAG: LazyLock<Regex> = LazyLock::new(|| {
    let pattern =
        r"(?i)\[\s*pause\s*(?::([^\]\[\n]*))?\]|<\s*break((?:\s[^<>]*?)?)\s*/?>(?:\s*</\s*break\s*>)?";
    Regex::new(pattern).expect("a fixed pattern")
});

static ATTRIBUTE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?i)\b(time|strength)\s*=\s*(?:"([^"]*)"|'([^']*)')"#).expect("a fixed pattern")
});

/// The pauses that the rest of a request's text may still ask for, from [`MAX_TOTAL_PAUSE`] down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseBudget(Duration);

impl Default for PauseBudget {
    fn default() -> Self {
        Self(MAX_TOTAL_PAUSE)
    }
}

impl PauseBudget {
    fn spend(&mut self, length: Duration) -> Result<(), TextError> {
        let left = self.0.checked_sub(length);
        self.0 = left.ok_or(TextError::PausesTooLong { max_seconds: MAX_TOTAL_PAUSE.as_secs() })?;
        Ok(())
    }
}

/// Cuts a whole text at its pause tags; stretches of only white space between them, and pauses of no length, are left
/// out.
pub fn parse_pauses(text: &str) -> Result<Vec<Segment>, TextError> {
    parse_pauses_within(text, &mut PauseBudget::default())
}

/// The same for a part of a text, whose pauses count against what the request has left.
pub fn parse_pauses_within(text: &str, budget: &mut PauseBudget) -> Result<Vec<Segment>, TextError> {
    let mut segments = Vec::new();
    let mut done = 0;
    for found in TAG.captures_iter(text) {
        let Some(whole) = found.get(0) else { continue };
        let length = match (found.get(1), found.get(2)) {
            (Some(value), _) => parse_duration(value.as_str()),
            (None, Some(attributes)) => parse_attributes(attributes.as_str()),
            (None, None) => Some(DEFAULT_PAUSE),
        };
        let tag = || whole.as_str().to_owned();
        let length = length.ok_or_else(|| TextError::PauseDuration { tag: tag() })?;
        if length > MAX_PAUSE {
            return Err(TextError::PauseTooLong { tag: tag(), max_seconds: MAX_PAUSE.as_secs() });
        }
        budget.spend(length)?;
        push_text(&text[done..whole.start()], &mut segments);
        if !length.is_zero() {
            segments.push(Segment::Pause(length));
        }
        done = whole.end();
    }
    push_text(&text[done..], &mut segments);
    Ok(segments)
}

fn push_text(text: &str, segments: &mut Vec<Segment>) {
    if !text.trim().is_empty() {
        segments.push(Segment::Text(text.to_owned()));
    }
}

/// Reads `300ms`, `1.5s`, `.5 s`.
fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim().to_ascii_lowercase();
    let (number, per_second) = match text.strip_suffix("ms") {
        Some(number) => (number, 1000.0),
        None => (text.strip_suffix('s')?, 1.0),
    };
    let number = number.trim_end();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? / per_second).ok()
}

fn parse_attributes(attributes: &str) -> Option<Duration> {
    let (mut time, mut strength) = (None, None);
    for found in ATTRIBUTE.captures_iter(attributes) {
        let value = found.get(2).or(found.get(3)).map_or("", |value| value.as_str());
        if found[1].eq_ignore_ascii_case("time") {
            time = Some(value);
        } else {
            strength = Some(value);
        }
    }
    if let Some(time) = time {
        return parse_duration(time);
    }
    let milliseconds = match strength.map(|strength| strength.trim().to_ascii_lowercase()).as_deref() {
        Some("none") => 0,
        Some("x-weak") => 100,
        Some("weak") => 250,
        Some("medium") => 500,
        Some("strong") => 1000,
        Some("x-strong") => 1500,
        None if attributes.trim().is_empty() => return Some(DEFAULT_PAUSE),
        _ => return None,
    };
    Some(Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(text: &str) -> String {
        let parts = parse_pauses(text).unwrap().into_iter().map(|segment| match segment {
            Segment::Text(text) => text,
            Segment::Pause(length) => format!("|{}|", length.as_millis()),
        });
        parts.collect()
    }

    #[test]
    fn reads_every_form() {
        for (text, expected) in [
            ("a[pause:300ms]b", "a|300|b"),
            ("a [pause:1.5s] b", "a |1500| b"),
            ("[PAUSE]", "|500|"),
            ("[ pause : .5 s ]x", "|500|x"),
            ("a<break time=\"0.5s\"/>b", "a|500|b"),
            ("a<break time='300ms' />b", "a|300|b"),
            ("<break/><break />", "|500||500|"),
            ("<break strength=\"strong\"/>x", "|1000|x"),
            ("<break strength='none'/>x", "x"),
            ("<BREAK TIME=\"2S\"></BREAK>x", "|2000|x"),
            ("<break strength=\"weak\" time=\"1s\"/>", "|1000|"),
            ("[pause:30s]", "|30000|"),
            ("[pause:1s] [pause:1s]", "|1000||1000|"),
            ("", ""),
        ] {
            assert_eq!(said(text), expected, "{text}");
        }
    }

    #[test]
    fn other_brackets_stay_text() {
        for text in
            ["[paused]", "[pause", "<breakfast/>", "<b>x</b>", "a < b > c", "[1]", "<break", "[[pause-x]"]
        {
            assert_eq!(said(text), text);
        }
    }

    #[test]
    fn unreadable_and_too_long_are_errors() {
        for tag in
            ["[pause:]", "[pause:300]", "[pause:fast]", "[pause:-1s]", "[pause:1.2.3s]", "[pause:nans]"]
        {
            let error = parse_pauses(&format!("a {tag} b")).unwrap_err();
            assert_eq!(error, TextError::PauseDuration { tag: tag.into() });
            assert!(error.to_string().contains(tag));
        }
        for tag in
            ["<break time=\"\"/>", "<break time=\"5\"/>", "<break strength=\"huge\"/>", "<break foo=\"1s\"/>"]
        {
            assert_eq!(parse_pauses(tag).unwrap_err(), TextError::PauseDuration { tag: tag.into() });
        }
        for tag in ["[pause:30001ms]", "[pause:31s]", "<break time='99999999s'/>"] {
            assert_eq!(
                parse_pauses(tag).unwrap_err(),
                TextError::PauseTooLong { tag: tag.into(), max_seconds: 30 }
            );
        }
    }

    #[test]
    fn all_pauses_together_at_the_limit_and_one_past_it() {
        let ten = "[pause:30s]".repeat(10);
        assert_eq!(parse_pauses(&ten).unwrap().len(), 10);
        let error = parse_pauses(&format!("{ten} a [pause:1ms]")).unwrap_err();
        assert_eq!(error, TextError::PausesTooLong { max_seconds: 300 });
        // The same in parts; text without pauses goes on.
        let mut budget = PauseBudget::default();
        for _ in 0..10 {
            parse_pauses_within("[pause:30s] word", &mut budget).unwrap();
        }
        parse_pauses_within("word <break strength='none'/>", &mut budget).unwrap();
        assert_eq!(parse_pauses_within("[pause:1ms]", &mut budget).unwrap_err(), error);
    }

    proptest! {
        #[test]
        fn never_panics(text in "(\\[pause:?|\\]|<break |time=|\"|'|/>|[0-9.]{1,3}|m?s|\\PC){0,20}") {
            let _ = parse_pauses(&text);
        }

        #[test]
        fn text_without_tags_is_kept(text in "[a-z ,.]{0,40}") {
            prop_assert_eq!(said(&text), if text.trim().is_empty() { "" } else { &text });
        }
    }
}
