//! Dates: 2024-01-31, 1/31/2024, 31 Jan 2024, January 31st, Jan 2024.

use std::borrow::Cow;

use super::numbers::{ordinal, year};
use super::rewrite::{pattern, rewrite};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const MONTH: &str = r"(January|February|March|April|May|June|July|August|September|October|November|December|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)\b\.?)";

fn month(name: &str) -> Option<&'static str> {
    let start = name.get(..3)?;
    MONTHS.into_iter().find(|month| month.starts_with(start))
}

fn day(text: &str) -> Option<String> {
    let day: u32 = text.parse().ok()?;
    (1..=31).contains(&day).then(|| ordinal(text))
}

fn full_year(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    Some(match text.len() {
        2 if number < 70 => 2000 + number,
        2 => 1900 + number,
        _ => number,
    })
}

fn month_day_year(month: &str, day_text: &str, year_text: &str) -> Option<String> {
    let month: usize = month.parse().ok()?;
    let name = MONTHS.get(month.checked_sub(1)?)?;
    Some(format!("{name} {}, {}", day(day_text)?, year(full_year(year_text)?)))
}

/// Every form of date.
pub(super) fn dates(text: Cow<'_, str>) -> Cow<'_, str> {
    let iso = pattern!(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})");
    let text = rewrite(text, iso, |found| {
        if found.starts_inside() || (found.ends_inside() && found.next() != Some('T')) {
            return None;
        }
        let date = month_day_year(found.text(2), found.text(3), found.text(1))?;
        Some(if found.next() == Some('T') { date + " " } else { date })
    });
    let slashed = pattern!(r"([0-9]{1,2})/([0-9]{1,2})/([0-9]{4}|[0-9]{2})");
    let text = rewrite(text, slashed, |found| {
        if found.starts_inside() || found.ends_inside() || found.next() == Some('/') {
            return None;
        }
        month_day_year(found.text(1), found.text(2), found.text(3))
            .or_else(|| month_day_year(found.text(2), found.text(1), found.text(3)))
    });
    let day_first =
        pattern!(r"\b(?:(the) )?([0-9]{1,2})(?:st|nd|rd|th)?(?: of)? ", MONTH, r"(?:,? ([0-9]{4}))?");
    let text = rewrite(text, day_first, |found| {
        if found.starts_inside() || found.ends_inside() {
            return None;
        }
        let date = format!("the {} of {}", day(found.text(2))?, month(found.text(3))?);
        Some(match found.get(4) {
            Some(text) => format!("{date}, {}", year(full_year(text)?)),
            None => date,
        })
    });
    let month_first = pattern!(r"\b", MONTH, r" ([0-9]{1,2})(?:st|nd|rd|th)?(?:(?:, | )([0-9]{4}))?");
    let text = rewrite(text, month_first, |found| {
        if found.ends_inside() || found.after.starts_with([':', '/', '%']) {
            return None;
        }
        let date = format!("{} {}", month(found.text(1))?, day(found.text(2))?);
        Some(match found.get(3) {
            Some(text) => format!("{date}, {}", year(full_year(text)?)),
            None => date,
        })
    });
    let month_year = pattern!(r"\b", MONTH, r",? ([0-9]{4})");
    rewrite(text, month_year, |found| {
        if found.ends_inside() {
            return None;
        }
        Some(format!("{} {}", month(found.text(1))?, year(full_year(found.text(2))?)))
    })
}
