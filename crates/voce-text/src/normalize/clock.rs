//! Times of day: 3:30 pm, 15:45, 5pm.

use std::borrow::Cow;

use super::numbers::small;
use super::rewrite::{Found, pattern, rewrite};

const HALF: &str = r"(?:[ \x{a0}]?([AaPp])(?:\.[Mm]\.|[Mm]\b))";

/// Times with minutes, then whole hours with AM or PM.
pub(super) fn times(text: Cow<'_, str>) -> Cow<'_, str> {
    let range = pattern!(
        r"([0-9](?: ?[AaPp]\.?[Mm]\.?)?) ?[-\x{2013}] ?([0-9]{1,2}(?::[0-9]{2}\b| ?[AaPp]\.?[Mm]\b))",
    );
    let text = rewrite(text, range, |found| Some(format!("{} to {}", found.text(1), found.text(2))));
    let clock = pattern!(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?", HALF, "?");
    let text = rewrite(text, clock, |found| {
        let (hour, minute) = (found.text(1).parse::<u32>().ok()?, found.text(2).parse::<u32>().ok()?);
        let half = half(found, 4);
        let inside = found.starts_inside() || found.previous() == Some(':') || found.next() == Some(':');
        if inside || (half.is_none() && found.ends_inside()) || hour > 24 || minute > 59 {
            return None;
        }
        let mut words = match (minute, &half) {
            (0, Some(_)) => small(hour),
            (0, None) if found.get(3).is_some() => small(hour),
            (0, None) if (1..=12).contains(&hour) => format!("{} o'clock", small(hour)),
            (0, None) => format!("{} hundred", small(hour)),
            (1..=9, _) => format!("{} oh {}", small(hour), small(minute)),
            _ => format!("{} {}", small(hour), small(minute)),
        };
        if let Some(second) = found.get(3).and_then(|second| second.parse().ok()) {
            let unit = if second == 1 { "second" } else { "seconds" };
            words += &format!(" and {} {unit}", small(second));
        }
        Some(words + &half.unwrap_or_default())
    });
    let hour = pattern!(r"\b([0-9]{1,2})", HALF);
    rewrite(text, hour, |found| {
        let hour: u32 = found.text(1).parse().ok().filter(|hour| (1..=12).contains(hour))?;
        if found.starts_inside() {
            return None;
        }
        Some(small(hour) + &half(found, 2)?)
    })
}

/// ` AM` or ` PM`, with the full stop that `p.m.` shares with the end of its sentence.
fn half(found: &Found<'_>, group: usize) -> Option<String> {
    let letter = found.get(group)?.to_ascii_uppercase();
    let dotted = found.text(0).ends_with('.');
    Some(format!(" {letter}M{}", if dotted && found.ends_sentence() { "." } else { "" }))
}
