//! Money, percentages and physical units.

use std::borrow::Cow;

use super::numbers::{NUMBER, cardinal, number};
use super::rewrite::{Found, pattern, rewrite};

struct Currency {
    one: &'static str,
    many: &'static str,
    cent: &'static str,
    cents: &'static str,
}

fn currency(sign: &str) -> Option<Currency> {
    let (one, many, cent, cents) = match sign.trim_end() {
        "$" => ("dollar", "dollars", "cent", "cents"),
        "US$" | "USD" => ("US dollar", "US dollars", "cent", "cents"),
        "A$" | "AUD" => ("Australian dollar", "Australian dollars", "cent", "cents"),
        "C$" | "CAD" => ("Canadian dollar", "Canadian dollars", "cent", "cents"),
        "£" | "GBP" => ("pound", "pounds", "penny", "pence"),
        "€" | "EUR" => ("euro", "euros", "cent", "cents"),
        "¥" | "JPY" => ("yen", "yen", "sen", "sen"),
        "₹" | "INR" => ("rupee", "rupees", "paisa", "paise"),
        "₩" => ("won", "won", "jeon", "jeon"),
        "CHF" => ("Swiss franc", "Swiss francs", "centime", "centimes"),
        _ => return None,
    };
    Some(Currency { one, many, cent, cents })
}

const SIGN: &str = r"(US\$|A\$|C\$|[$£€¥₹₩])";
const CODE: &str = r"[ \x{a0}]?([€£]|(?:USD|GBP|EUR|JPY|AUD|CAD|CHF|INR)\b)";
const SCALE: &str = r"(?:[ \x{a0}]?(thousand|million|billion|trillion|bn|tn|[kKmMbB])\b)?";

fn scale(text: &str) -> &str {
    match text {
        "k" | "K" => "thousand",
        "m" | "M" => "million",
        "b" | "B" | "bn" => "billion",
        "tn" => "trillion",
        word => word,
    }
}

fn amount(currency: &Currency, text: &str, scale_text: Option<&str>) -> String {
    let many = |words: String| format!("{words} {}", currency.many);
    if let Some(text_scale) = scale_text {
        return many(format!("{} {}", number(text), scale(text_scale)));
    }
    let unit = |words: &str| if words == "one" { currency.one } else { currency.many };
    match text.split_once('.') {
        Some((whole, cents)) if cents.len() == 2 => {
            let coins = cardinal(cents.trim_start_matches('0'));
            let coins = format!("{coins} {}", if coins == "one" { currency.cent } else { currency.cents });
            let notes = cardinal(whole);
            match (notes.as_str(), cents) {
                (_, "00") => format!("{notes} {}", unit(&notes)),
                ("zero", _) => coins,
                _ => format!("{notes} {} and {coins}", unit(&notes)),
            }
        }
        Some(_) => many(number(text)),
        None => {
            let notes = cardinal(text);
            format!("{notes} {}", unit(&notes))
        }
    }
}

/// A minus sign right before the match, to be read out.
fn minus(found: &Found<'_>, group: usize) -> &'static str {
    if found.get(group).is_some() { "minus " } else { "" }
}

/// Amounts with a currency sign before them or a sign or code after them.
pub(super) fn money(text: Cow<'_, str>) -> Cow<'_, str> {
    let range = pattern!(SIGN, " ?(", NUMBER, ")[-\u{2013}]", r"[$£€¥₹₩]?(", NUMBER, ")", SCALE);
    let text = rewrite(text, range, |found| {
        if found.ends_inside() {
            return None;
        }
        let upper = amount(&currency(found.text(1))?, found.text(3), found.get(4));
        Some(format!("{} to {upper}", number(found.text(2))))
    });
    let before = pattern!("([-\u{2212}])?", SIGN, " ?(", NUMBER, ")", SCALE);
    let text = rewrite(text, before, |found| {
        let words = amount(&currency(found.text(2))?, found.text(3), found.get(4));
        let joins = found.next().is_some_and(char::is_alphanumeric);
        Some(format!("{}{words}{}", minus(found, 1), if joins { " " } else { "" }))
    });
    let after = pattern!("(", NUMBER, ")", SCALE, CODE);
    rewrite(text, after, |found| {
        if found.starts_inside() {
            return None;
        }
        Some(amount(&currency(found.text(3))?, found.text(1), found.get(2)))
    })
}

/// Percentages and ranges of them.
pub(super) fn percents(text: Cow<'_, str>) -> Cow<'_, str> {
    let percent = pattern!(r"([-\x{2212}])?(", NUMBER, r")(?:%?[-\x{2013}](", NUMBER, r"))? ?([%\x{2030}])");
    rewrite(text, percent, |found| {
        let unit = if found.text(4) == "%" { "percent" } else { "per mille" };
        let join = if found.next().is_some_and(char::is_alphanumeric) { " " } else { "" };
        let sign = match (found.get(1), found.previous()) {
            (None, _) => "",
            (Some(_), Some(letter)) if letter.is_alphanumeric() => " ",
            _ => "minus ",
        };
        let first = number(found.text(2));
        Some(match found.get(3) {
            Some(second) => format!("{sign}{first} to {} {unit}{join}", number(second)),
            None => format!("{sign}{first} {unit}{join}"),
        })
    })
}

/// Units: sign, one, many. Longer signs stand first where one starts another.
const UNITS: &[(&str, &str, &str)] = &[
    ("km/h", "kilometer per hour", "kilometers per hour"),
    ("kph", "kilometer per hour", "kilometers per hour"),
    ("m/s", "meter per second", "meters per second"),
    ("mph", "mile per hour", "miles per hour"),
    ("km²", "square kilometer", "square kilometers"),
    ("m²", "square meter", "square meters"),
    ("m³", "cubic meter", "cubic meters"),
    ("cm", "centimeter", "centimeters"),
    ("mm", "millimeter", "millimeters"),
    ("km", "kilometer", "kilometers"),
    ("kg", "kilogram", "kilograms"),
    ("mg", "milligram", "milligrams"),
    ("µg", "microgram", "micrograms"),
    ("lbs", "pound", "pounds"),
    ("lb", "pound", "pounds"),
    ("oz", "ounce", "ounces"),
    ("ft", "foot", "feet"),
    ("mi", "mile", "miles"),
    ("ml", "milliliter", "milliliters"),
    ("mL", "milliliter", "milliliters"),
    ("°C", "degree Celsius", "degrees Celsius"),
    ("°F", "degree Fahrenheit", "degrees Fahrenheit"),
    ("°", "degree", "degrees"),
    ("kWh", "kilowatt hour", "kilowatt hours"),
    ("kW", "kilowatt", "kilowatts"),
    ("MW", "megawatt", "megawatts"),
    ("GW", "gigawatt", "gigawatts"),
    ("GHz", "gigahertz", "gigahertz"),
    ("MHz", "megahertz", "megahertz"),
    ("kHz", "kilohertz", "kilohertz"),
    ("Hz", "hertz", "hertz"),
    ("Mbps", "megabit per second", "megabits per second"),
    ("Gbps", "gigabit per second", "gigabits per second"),
    ("TB", "terabyte", "terabytes"),
    ("GB", "gigabyte", "gigabytes"),
    ("MB", "megabyte", "megabytes"),
    ("KB", "kilobyte", "kilobytes"),
    ("kB", "kilobyte", "kilobytes"),
    ("dB", "decibel", "decibels"),
    ("ms", "millisecond", "milliseconds"),
    ("µs", "microsecond", "microseconds"),
    ("sec", "second", "seconds"),
    ("min", "minute", "minutes"),
    ("hrs", "hour", "hours"),
    ("hr", "hour", "hours"),
    ("fps", "frame per second", "frames per second"),
    ("rpm", "revolution per minute", "revolutions per minute"),
    ("px", "pixel", "pixels"),
    ("W", "watt", "watts"),
    ("V", "volt", "volts"),
    ("L", "liter", "liters"),
    ("¢", "cent", "cents"),
    ("in", "inch", "inches"),
    ("s", "second", "seconds"),
    ("m", "meter", "meters"),
    ("g", "gram", "grams"),
    ("h", "hour", "hours"),
];

/// Numbers and ranges with a unit after them.
pub(super) fn units(text: Cow<'_, str>) -> Cow<'_, str> {
    let height = pattern!(r"\b([0-9]{1,2})['\x{2032}] ?([0-9]{1,2})(?:\x22|''|\x{2033}|\x{201d})");
    let text = rewrite(text, height, |found| {
        (!found.starts_inside())
            .then(|| format!("{} foot {}", cardinal(found.text(1)), cardinal(found.text(2))))
    });
    let pattern = pattern!(
        r"([-\x{2212}])?(",
        NUMBER,
        r")(?:([-\x{2013}])(",
        NUMBER,
        r"))?([ \x{a0}-]?)(km/h|m/s|km²|m²|m³|¢|°[CF]?|[µA-Za-z]{1,4}\b)",
    );
    rewrite(text, pattern, |found| {
        let sign = found.text(6);
        let (_, one, many) = UNITS.iter().find(|(unit, ..)| *unit == sign)?;
        let gap = found.text(5);
        let spelled = match sign {
            // `10 in` is a preposition, `7s` a plural.
            "in" => !gap.is_empty(),
            "s" => gap != " " && !found.text(2).contains('.'),
            _ => sign.len() == 1 && gap == "-",
        };
        let minus_before = found.get(1).is_some();
        if (found.starts_inside() && !minus_before) || found.ends_inside() || spelled {
            return None;
        }
        let sign = match found.previous() {
            Some(letter) if minus_before && letter.is_alphanumeric() => "-",
            _ => minus(found, 1),
        };
        let first = number(found.text(2));
        let attributive = gap == "-";
        let unit = if attributive || (first == "one" && found.get(4).is_none()) { one } else { many };
        let join = if attributive { "-" } else { " " };
        Some(match found.get(4) {
            Some(second) => format!("{sign}{first} to {}{join}{unit}", number(second)),
            None => format!("{sign}{first}{join}{unit}"),
        })
    })
}
