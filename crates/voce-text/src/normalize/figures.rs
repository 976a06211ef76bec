//! Figures that are no money, date or measure: phone numbers, fractions, versions, ranges, ordinals, years, numbers.

use std::borrow::Cow;

use super::numbers::{NUMBER, cardinal, number, ordinal, plural, small, spell, year};
use super::rewrite::{Found, pattern, rewrite};

/// Years outside this span need a word before them that asks for a year.
const PLAIN_YEARS: std::ops::Range<u32> = 1900..2100;
/// Numbers outside this span are never read as years.
const YEARS: std::ops::Range<u32> = 1000..2100;

/// Phone numbers: groups of digits, one by one.
pub(super) fn phones(text: Cow<'_, str>) -> Cow<'_, str> {
    let national = pattern!(r"(?:(\+?[0-9]{1,3})[ .-]?)?\(?\b([0-9]{3})\)?[ .-]([0-9]{3})[ .-]([0-9]{4})\b");
    let text = rewrite(text, national, |found| {
        let inside = found.starts_inside() || found.ends_inside() || found.previous() == Some('-');
        (!inside).then(|| groups(found.text(0)))
    });
    let international = pattern!(r"\+[0-9]{1,3}(?:[ -][0-9]{2,5}){2,5}\b");
    let text = rewrite(text, international, |found| {
        (!found.starts_inside() && !found.ends_inside()).then(|| groups(found.text(0)))
    });
    let local = pattern!(r"\b([0-9]{3})-([0-9]{4})\b");
    let text = rewrite(text, local, |found| {
        let inside = found.starts_inside() || found.ends_inside();
        let chained = found.previous() == Some('-') || found.next() == Some('-');
        (!inside && !chained && !found.text(2).ends_with("00")).then(|| groups(found.text(0)))
    });
    let run = pattern!(r"\b[0-9]{10,11}\b");
    rewrite(text, run, |found| {
        let inside = found.starts_inside() || found.ends_inside();
        (!inside && !found.text(0).ends_with("000")).then(|| spell(found.text(0)))
    })
}

fn groups(text: &str) -> String {
    let plus = if text.starts_with('+') { "plus " } else { "" };
    let groups = text.split(|letter: char| !letter.is_ascii_digit()).filter(|group| !group.is_empty());
    plus.to_owned() + &groups.map(spell).collect::<Vec<_>>().join(", ")
}

/// Fractions, written out or as one character.
pub(super) fn fractions(text: Cow<'_, str>) -> Cow<'_, str> {
    let single = pattern!(r"(?:([0-9]+) ?)?([½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])");
    let text = rewrite(text, single, |found| {
        let (over, under) = match found.text(2) {
            "½" => (1, 2),
            "⅓" => (1, 3),
            "⅔" => (2, 3),
            "¼" => (1, 4),
            "¾" => (3, 4),
            "⅕" => (1, 5),
            "⅖" => (2, 5),
            "⅗" => (3, 5),
            "⅘" => (4, 5),
            "⅙" => (1, 6),
            "⅚" => (5, 6),
            "⅛" => (1, 8),
            "⅜" => (3, 8),
            "⅝" => (5, 8),
            _ => (7, 8),
        };
        let tail = if found.next().is_some_and(char::is_alphabetic) { " " } else { "" };
        Some(mixed(found.get(1), over, under) + tail)
    });
    let slashed = pattern!(r"(?:\b([0-9]+) )?\b([0-9]{1,4})/([0-9]{1,4})\b");
    rewrite(text, slashed, |found| {
        let beside = |letter| matches!(letter, Some('/' | '-' | '.'));
        if found.starts_inside()
            || found.ends_inside()
            || beside(found.previous())
            || found.next() == Some('/')
        {
            return None;
        }
        let (over, under): (u32, u32) = (found.text(2).parse().ok()?, found.text(3).parse().ok()?);
        Some(match (found.get(1), over, under) {
            (None, 24, 7) => "twenty-four seven".to_owned(),
            (None, 9, 11) => "nine eleven".to_owned(),
            (whole, 1.., 2..=20 | 32 | 64 | 100 | 1000) if over < under => mixed(whole, over, under),
            (whole, ..) => {
                let lead = whole.map_or(String::new(), |whole| format!("{} ", cardinal(whole)));
                let word = if over == under { "out of" } else { "over" };
                format!("{lead}{} {word} {}", cardinal(found.text(2)), cardinal(found.text(3)))
            }
        })
    })
}

fn mixed(whole: Option<&str>, over: u32, under: u32) -> String {
    let part = match under {
        2 => "half".to_owned(),
        4 => "quarter".to_owned(),
        _ => ordinal(&under.to_string()),
    };
    let part = if over == 1 { part } else { plural(&part) };
    match whole {
        Some(whole) if over == 1 => {
            let article = if part.starts_with("eigh") || part.starts_with("elev") { "an" } else { "a" };
            format!("{} and {article} {part}", cardinal(whole))
        }
        Some(whole) => format!("{} and {} {part}", cardinal(whole), small(over)),
        None => format!("{} {part}", small(over)),
    }
}

/// Version numbers and other dotted numbers, and `v2`.
pub(super) fn versions(text: Cow<'_, str>) -> Cow<'_, str> {
    let dotted = pattern!(r"\b([vV])?([0-9]+(?:\.[0-9]+){2,})");
    let text = rewrite(text, dotted, |found| {
        let words: Vec<String> = found.text(2).split('.').map(cardinal).collect();
        let tail = if found.next().is_some_and(char::is_alphanumeric) { " " } else { "" };
        Some(format!("{}{}{tail}", version_word(found), words.join(" point ")))
    });
    let short = pattern!(r"\b([vV])([0-9]+(?:\.[0-9]+)?)\b");
    rewrite(text, short, |found| {
        (!found.starts_inside() && !found.ends_inside())
            .then(|| format!("{}{}", version_word(found), number(found.text(2))))
    })
}

fn version_word(found: &Found<'_>) -> &'static str {
    let said = found.word_before().eq_ignore_ascii_case("version");
    if found.get(1).is_some() && !said { "version " } else { "" }
}

fn four_digit_year(text: &str) -> Option<u32> {
    (text.len() == 4).then(|| text.parse().ok()).flatten().filter(|number| YEARS.contains(number))
}

/// Ranges, ratios, sizes and powers: two numbers and a sign between them.
pub(super) fn ranges(text: Cow<'_, str>) -> Cow<'_, str> {
    let range = pattern!("(", NUMBER, r")( ?\x{2013} ?|-)(", NUMBER, ")");
    let text = rewrite(text, range, |found| {
        let chained = |letter| matches!(letter, Some('-' | '\u{2013}'));
        if found.starts_inside() || found.ends_inside() || chained(found.previous()) || chained(found.next())
        {
            return None;
        }
        let (from, to) = (found.text(1), found.text(3));
        Some(match (four_digit_year(from), four_digit_year(to)) {
            (Some(from), Some(to)) => format!("{} to {}", year(from), year(to)),
            (Some(from), None) if to.len() == 2 => format!("{} to {}", year(from), cardinal(to)),
            _ => format!("{} to {}", number(from), number(to)),
        })
    });
    let pair = pattern!("(", NUMBER, r")( ?[x×] ?|[:^])(-?)(", NUMBER, ")");
    rewrite(text, pair, |found| {
        if found.starts_inside() || found.ends_inside() {
            return None;
        }
        let word = match (found.text(2).trim(), found.text(3)) {
            ("^", "") => "to the power of",
            ("^", _) => "to the power of minus",
            (_, "-") => return None,
            (":", _) => "to",
            _ => "by",
        };
        Some(format!("{} {word} {}", number(found.text(1)), number(found.text(4))))
    })
}

/// 1st, 22nd, 1,000th.
pub(super) fn ordinals(text: Cow<'_, str>) -> Cow<'_, str> {
    let pattern = pattern!(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:st|nd|rd|th|ST|ND|RD|TH)\b");
    rewrite(text, pattern, |found| (!found.starts_inside()).then(|| ordinal(found.text(1))))
}

/// Decades, years and every number that is still there.
pub(super) fn plain(text: Cow<'_, str>) -> Cow<'_, str> {
    let decade = pattern!(r"(['\x{2019}]?)\b([0-9]{2})?([0-9])0s\b");
    let text = rewrite(text, decade, |found| {
        let tens = |tens: &str| plural(&cardinal(&format!("{tens}0")));
        if found.starts_inside() {
            return None;
        }
        match (found.get(2), found.text(3)) {
            (Some("20"), "0") => Some("two thousands".to_owned()),
            (Some(century), "0") => Some(format!("{} hundreds", cardinal(century))),
            (Some(century), "1") => Some(format!("{} tens", cardinal(century))),
            (Some(century), decade) => Some(format!("{} {}", cardinal(century), tens(decade))),
            (None, "0") => None,
            (None, decade) => Some(tens(decade)),
        }
    });
    let number = pattern!(r"([-\x{2212}])?(\.[0-9]+|", NUMBER, r")(k|M|B|bn)?");
    rewrite(text, number, say_number)
}

fn say_number(found: &Found<'_>) -> Option<String> {
    let text = found.text(2);
    let previous = found.previous();
    let lead = match (found.get(1), previous) {
        (Some(_), Some(letter)) if letter.is_alphabetic() => " ",
        (Some(sign), Some(letter)) if letter.is_alphanumeric() => sign,
        (Some(_), _) => "minus ",
        (None, Some(letter)) if letter.is_alphanumeric() => " ",
        (None, _) => "",
    };
    let word_goes_on = found.next().is_some_and(char::is_alphanumeric);
    let after_letter = previous.is_some_and(char::is_alphabetic);
    let scale = match found.get(3).filter(|_| !word_goes_on && !after_letter) {
        Some("k") => " thousand",
        Some("M") => " million",
        // `7B` is as often a room or a seat.
        Some("B") if !text.contains('.') => "",
        Some(_) => " billion",
        None => "",
    };
    let words = match four_digit_year(text) {
        Some(number) if scale.is_empty() && found.get(1).is_none() && is_year(found, number) => year(number),
        _ => number(text).trim_start().to_owned(),
    };
    // A letter after the number that is no scale belongs to the next word.
    let letter = found.text(3);
    let tail = match (scale, letter) {
        ("", "") if word_goes_on => " ".to_owned(),
        ("", "") => String::new(),
        ("", letter) => format!(" {letter}"),
        _ => String::new(),
    };
    Some(format!("{lead}{words}{scale}{tail}"))
}

const YEAR_WORDS: &[&str] = &[
    "in",
    "since",
    "by",
    "of",
    "from",
    "until",
    "till",
    "year",
    "circa",
    "before",
    "after",
    "during",
    "around",
    "between",
    "spring",
    "summer",
    "autumn",
    "fall",
    "winter",
    "early",
    "late",
    "mid",
    "ad",
    "copyright",
];

const VERBS: &[&str] = &[
    "was", "is", "has", "its", "this", "as", "does", "plus", "versus", "sees", "shows", "marks", "brings",
    "starts", "ends", "begins",
];

fn is_year(found: &Found<'_>, number: u32) -> bool {
    if found.previous().is_some_and(char::is_alphanumeric) || found.next().is_some_and(char::is_alphanumeric)
    {
        return false;
    }
    let mut ahead =
        found.after.strip_prefix(' ').unwrap_or_default().split(|letter: char| !letter.is_alphabetic());
    let next = ahead.next().unwrap_or_default();
    let counted =
        next == "people" || (next.len() > 2 && next.ends_with('s') && next.chars().all(char::is_lowercase));
    let counted = counted && !VERBS.contains(&next);
    let asked_for = YEAR_WORDS.contains(&found.word_before().to_lowercase().as_str());
    if PLAIN_YEARS.contains(&number) { asked_for || !counted } else { asked_for && !counted }
}
