//! Roman numerals where the word before them says that they are numerals: Henry VIII, World War II, Chapter IV.

use std::borrow::Cow;

use super::numbers::{ordinal, small};
use super::rewrite::{pattern, rewrite};

/// Names whose numeral is an ordinal.
const RULERS: &[&str] = &[
    "Henry",
    "Louis",
    "Elizabeth",
    "George",
    "Edward",
    "Charles",
    "William",
    "James",
    "Richard",
    "Mary",
    "Philip",
    "Napoleon",
    "Pius",
    "Paul",
    "Benedict",
    "Leo",
    "Francis",
    "Gregory",
    "Clement",
    "Innocent",
    "Alexander",
    "Catherine",
    "Nicholas",
    "Ivan",
    "Peter",
    "Frederick",
    "Wilhelm",
    "Ferdinand",
    "Alfonso",
    "Carlos",
    "Ramses",
    "Ramesses",
    "Ptolemy",
    "Cleopatra",
    "Thutmose",
    "Darius",
    "Xerxes",
    "Haakon",
    "Harald",
    "Gustav",
    "Christian",
    "Margrethe",
    "Victor",
    "Umberto",
    "Otto",
    "Rudolf",
    "Maximilian",
    "Joseph",
    "Leopold",
    "Albert",
    "Constantine",
    "Michael",
    "Urban",
    "Boniface",
    "Sixtus",
    "Julius",
    "Stephen",
    "Robert",
    "Kenneth",
    "John",
    "Emmanuel",
    "Selim",
    "Mehmed",
];

/// Words whose numeral is a number.
const COUNTED: &[&str] = &[
    "War", "Chapter", "Part", "Act", "Scene", "Volume", "Book", "Type", "Phase", "Title", "Section",
    "Article", "Bowl", "Level", "Stage", "Class", "Appendix", "Figure", "Table", "Round", "Episode",
    "Season", "Mark", "Fantasy", "Apollo", "Rocky", "Tier", "Group", "Version", "Schedule", "Division",
    "Factor", "Saturn",
];

const TITLES: &[&str] =
    &["King", "Queen", "Pope", "Emperor", "Empress", "Tsar", "Kaiser", "Prince", "Sultan"];

/// Numerals after a ruler's name or a counted word.
pub(super) fn numerals(text: Cow<'_, str>) -> Cow<'_, str> {
    let numeral = pattern!(r"\b(?:([A-Z][a-z]+) )?([A-Z][a-z]+) ([IVXLC]+)\b");
    rewrite(text, numeral, |found| {
        let (title, name, numeral) = (found.text(1), found.text(2), found.text(3));
        let value = value(numeral)?;
        let lead = found.text(0).strip_suffix(numeral)?;
        if COUNTED.contains(&name) && (numeral != "I" || !found.after.starts_with(' ') || name == "War") {
            return Some(format!("{lead}{}", small(value)));
        }
        let certain = numeral != "I"
            || TITLES.contains(&title)
            || found.after.starts_with(['\'', '\u{2019}', ',', '.', ';', ':', ')'])
            || found.after.starts_with(" of ");
        (RULERS.contains(&name) && certain).then(|| format!("{lead}the {}", ordinal(&value.to_string())))
    })
}

/// The value of a numeral in its one proper spelling.
fn value(numeral: &str) -> Option<u32> {
    const STEPS: [(u32, &str); 9] =
        [(100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")];
    let mut total = 0;
    let mut rest = numeral;
    for (worth, sign) in STEPS {
        let most = if sign.len() == 1 && !matches!(sign, "V" | "L") { 3 } else { 1 };
        for _ in 0..most {
            let Some(shorter) = rest.strip_prefix(sign) else { break };
            rest = shorter;
            total += worth;
        }
    }
    (rest.is_empty() && total > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn values() {
        for (numeral, expected) in
            [("I", 1), ("IV", 4), ("VIII", 8), ("XIV", 14), ("XLII", 42), ("XCIX", 99), ("CC", 200)]
        {
            assert_eq!(value(numeral), Some(expected));
        }
        for wrong in ["", "IIII", "VV", "IC", "XIIX"] {
            assert_eq!(value(wrong), None);
        }
    }
}
