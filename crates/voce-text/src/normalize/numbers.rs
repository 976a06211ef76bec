//! Numbers as words: cardinals, ordinals, decimals, years and digits one by one.

/// A whole or decimal number, with or without thousands commas.
pub(super) const NUMBER: &str = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?";

const ONES: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [&str; 12] = [
    "",
    "thousand",
    "million",
    "billion",
    "trillion",
    "quadrillion",
    "quintillion",
    "sextillion",
    "septillion",
    "octillion",
    "nonillion",
    "decillion",
];

/// The longest whole number that has a name here; longer ones are read digit by digit.
const NAMED_DIGITS: usize = SCALES.len() * 3;

fn below_hundred(number: usize) -> String {
    match number {
        0..=19 => ONES[number].to_owned(),
        _ if number.is_multiple_of(10) => TENS[number / 10].to_owned(),
        _ => format!("{}-{}", TENS[number / 10], ONES[number % 10]),
    }
}

fn below_thousand(number: usize) -> String {
    match (number / 100, number % 100) {
        (0, rest) => below_hundred(rest),
        (hundreds, 0) => format!("{} hundred", ONES[hundreds]),
        (hundreds, rest) => format!("{} hundred {}", ONES[hundreds], below_hundred(rest)),
    }
}

/// Digits one by one; anything but a digit is passed over.
pub(super) fn spell(digits: &str) -> String {
    let words = digits.bytes().filter(u8::is_ascii_digit).map(|digit| ONES[usize::from(digit - b'0')]);
    words.collect::<Vec<_>>().join(" ")
}

/// A whole number; leading zeros and numbers too long for a name are read digit by digit.
pub(super) fn cardinal(text: &str) -> String {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if digits.len() > NAMED_DIGITS || (digits.len() > 1 && digits.starts_with('0')) {
        return spell(&digits);
    }
    let first = (digits.len() + 2) % 3 + 1;
    let mut words = Vec::new();
    let mut start = 0;
    let mut end = first.min(digits.len());
    while start < digits.len() {
        let group: usize = digits[start..end].parse().unwrap_or(0);
        if group > 0 {
            words.push(below_thousand(group));
            let scale = SCALES[(digits.len() - end) / 3];
            if !scale.is_empty() {
                words.push(scale.to_owned());
            }
        }
        (start, end) = (end, end + 3);
    }
    if words.is_empty() { ONES[0].to_owned() } else { words.join(" ") }
}

/// A small whole number.
pub(super) fn small(number: u32) -> String {
    cardinal(&number.to_string())
}

/// A number as [`NUMBER`] matches it.
pub(super) fn number(text: &str) -> String {
    match text.split_once('.') {
        Some((whole, fraction)) => format!("{} point {}", whole_part(whole), spell(fraction)),
        None => cardinal(text),
    }
}

fn whole_part(whole: &str) -> String {
    if whole.is_empty() { String::new() } else { cardinal(whole) }
}

/// The ordinal of a cardinal in words: its last word changes.
fn ordinal_word(cardinal: &str) -> String {
    let start = cardinal.rfind([' ', '-']).map_or(0, |at| at + 1);
    let (head, last) = cardinal.split_at(start);
    let last = match last {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        _ => match last.strip_suffix('y') {
            Some(stem) => format!("{stem}ieth"),
            None => format!("{last}th"),
        },
    };
    format!("{head}{last}")
}

/// The ordinal of a whole number.
pub(super) fn ordinal(text: &str) -> String {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_start_matches('0');
    ordinal_word(&cardinal(if digits.is_empty() { "0" } else { digits }))
}

/// A year as it is said: nineteen oh five, two thousand five, twenty twenty-four.
pub(super) fn year(number: u32) -> String {
    let (century, rest) = (number / 100, number % 100);
    match (century, rest) {
        _ if !(1000..10_000).contains(&number) => small(number),
        (_, 0) if century.is_multiple_of(10) => small(number),
        (20, 1..=9) => small(number),
        (_, 0) => format!("{} hundred", small(century)),
        (_, 1..=9) => format!("{} oh {}", small(century), small(rest)),
        _ => format!("{} {}", small(century), small(rest)),
    }
}

/// The plural of the last word: nineties, thousands.
pub(super) fn plural(words: &str) -> String {
    match words.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if words.ends_with('x') => format!("{words}es"),
        None => format!("{words}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (digits, expected) in [
            ("0", "zero"),
            ("7", "seven"),
            ("13", "thirteen"),
            ("40", "forty"),
            ("99", "ninety-nine"),
            ("100", "one hundred"),
            ("115", "one hundred fifteen"),
            ("1000", "one thousand"),
            ("1,001", "one thousand one"),
            ("1234567", "one million two hundred thirty-four thousand five hundred sixty-seven"),
            ("1000000000000", "one trillion"),
            ("007", "zero zero seven"),
        ] {
            assert_eq!(cardinal(digits), expected);
        }
        assert_eq!(cardinal(&format!("1{}", "0".repeat(35))), "one hundred decillion");
        assert_eq!(cardinal(&"1".repeat(37)).split(' ').count(), 37);
        for (digits, expected) in [
            ("1", "first"),
            ("2", "second"),
            ("12", "twelfth"),
            ("20", "twentieth"),
            ("22", "twenty-second"),
            ("100", "one hundredth"),
            ("101", "one hundred first"),
            ("1,000", "one thousandth"),
            ("08", "eighth"),
            ("0", "zeroth"),
        ] {
            assert_eq!(ordinal(digits), expected);
        }
        for (number, expected) in [
            (1999, "nineteen ninety-nine"),
            (1900, "nineteen hundred"),
            (1905, "nineteen oh five"),
            (2000, "two thousand"),
            (2005, "two thousand five"),
            (2010, "twenty ten"),
            (2024, "twenty twenty-four"),
            (1066, "ten sixty-six"),
            (987, "nine hundred eighty-seven"),
        ] {
            assert_eq!(year(number), expected);
        }
    }
}
