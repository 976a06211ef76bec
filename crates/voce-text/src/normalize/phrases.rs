//! Abbreviations and symbols.

use std::borrow::Cow;

use super::rewrite::{Found, pattern, rewrite};

/// Abbreviations with their full stop, and the few that go without.
pub(super) fn abbreviations(text: Cow<'_, str>) -> Cow<'_, str> {
    let dotted = pattern!(
        r"\b(Mr|Mrs|Ms|Dr|Prof|Capt|Lt|Gen|Col|Sgt|Rev|Sen|Rep|Gov|Hon|Pres|St|Mt|Ft|Jr|Sr|Inc|Ltd|Corp|Co|Ave|Blvd|Rd|",
        r"[Vv]s|[Ee]tc|[Aa]pprox|[Dd]ept|[Ff]igs?|[Vv]ol|[Nn]os?|pp?|[Ee]\.g|[Ii]\.e|a\.k\.a|w\.r\.t)\.",
    );
    let text = rewrite(text, dotted, expand);
    let bare = pattern!(r"\b(Mr|Mrs|Dr|Prof|vs)( )");
    rewrite(text, bare, |found| {
        let word = match found.text(1) {
            "vs" => "versus",
            _ if !found.next().is_some_and(char::is_uppercase) => return None,
            title => title_word(title)?,
        };
        Some(format!("{word} "))
    })
}

fn title_word(title: &str) -> Option<&'static str> {
    Some(match title {
        "Mr" => "Mister",
        "Mrs" => "Missus",
        "Ms" => "Ms",
        "Dr" => "Doctor",
        "Prof" => "Professor",
        "Capt" => "Captain",
        "Lt" => "Lieutenant",
        "Gen" => "General",
        "Col" => "Colonel",
        "Sgt" => "Sergeant",
        "Rev" => "Reverend",
        "Sen" => "Senator",
        "Rep" => "Representative",
        "Gov" => "Governor",
        "Hon" => "Honorable",
        "Pres" => "President",
        "St" => "Saint",
        "Mt" => "Mount",
        "Ft" => "Fort",
        _ => return None,
    })
}

fn expand(found: &Found<'_>) -> Option<String> {
    let short = found.text(1);
    let next = found.after.trim_start_matches([' ', '\u{a0}']);
    let before_name = next.len() < found.after.len() && next.starts_with(char::is_uppercase);
    let before_number = next.starts_with(|letter: char| letter.is_ascii_digit());
    let glued = found.next().is_some_and(char::is_alphanumeric);
    if glued && !before_number {
        return None;
    }
    let with_stop = |word: &str| format!("{word}{}", if found.ends_sentence() { "." } else { "" });
    if before_name
        && !(short == "St" && is_street(found))
        && let Some(word) = title_word(short)
    {
        return Some(word.to_owned());
    }
    let numbered = |word: &str| before_number.then(|| format!("{word}{}", if glued { " " } else { "" }));
    Some(match short {
        "Mr" | "Mrs" | "Ms" | "Prof" => title_word(short)?.to_owned(),
        // A name before it makes it an address, as in "Main St."
        "St" | "Dr" if found.word_before().starts_with(char::is_uppercase) => {
            with_stop(if short == "St" { "Street" } else { "Drive" })
        }
        "Dr" => "Doctor".to_owned(),
        "Jr" => with_stop("Junior"),
        "Sr" => with_stop("Senior"),
        "Inc" => with_stop("Incorporated"),
        "Ltd" => with_stop("Limited"),
        "Corp" => with_stop("Corporation"),
        "Co" => with_stop("Company"),
        "Ave" => with_stop("Avenue"),
        "Blvd" => with_stop("Boulevard"),
        "Rd" => with_stop("Road"),
        "vs" | "Vs" => "versus".to_owned(),
        "etc" | "Etc" => with_stop("et cetera"),
        "approx" => "approximately".to_owned(),
        "Approx" => "Approximately".to_owned(),
        "dept" | "Dept" => with_stop("department"),
        "e.g" => "for example".to_owned(),
        "E.g" => "For example".to_owned(),
        "i.e" => "that is".to_owned(),
        "I.e" => "That is".to_owned(),
        "a.k.a" => "also known as".to_owned(),
        "w.r.t" => "with respect to".to_owned(),
        "No" | "no" => return numbered("number"),
        "Nos" | "nos" => return numbered("numbers"),
        "p" => return numbered("page"),
        "pp" => return numbered("pages"),
        "fig" | "Fig" => return numbered("figure"),
        "figs" | "Figs" => return numbered("figures"),
        "vol" | "Vol" => return numbered("volume"),
        _ => return None,
    })
}

/// Whether the words before `St.` name a street: a house number or a preposition, then a name.
fn is_street(found: &Found<'_>) -> bool {
    let name = found.word_before();
    let before = found.before.trim_end();
    let before = before.strip_suffix(name).unwrap_or(before).trim_end();
    let place = before.rsplit(char::is_whitespace).next().unwrap_or_default();
    let numbered = before.ends_with(|letter: char| letter.is_ascii_digit());
    name.starts_with(char::is_uppercase)
        && (numbered || ["on", "at", "along", "near", "down"].contains(&place))
}

/// Signs that say what the number beside them is.
pub(super) fn marked_numbers(text: Cow<'_, str>) -> Cow<'_, str> {
    let pattern = pattern!(r"(#|§+|~|≈|±|\+/-|<=|>=|≤|≥|<|>) ?([-\x{2212}]?[$£€]?[0-9.])");
    let text = rewrite(text, pattern, |found| {
        let word = match found.text(1) {
            "#" => "number",
            "~" | "≈" => "about",
            "±" | "+/-" => "plus or minus",
            "<=" | "≤" => "less than or equal to",
            ">=" | "≥" => "greater than or equal to",
            "<" => "less than",
            ">" => "greater than",
            _ => "section",
        };
        let gap = if found.previous().is_some_and(|letter| !letter.is_whitespace() && letter != '(') {
            " "
        } else {
            ""
        };
        Some(format!("{gap}{word} {}", found.text(2)))
    });
    let rate = pattern!(
        r"([0-9](?: ?[A-Za-z]{1,7})?)/(hr|hour|day|week|wk|month|mo|year|yr|min|sec|person|night)\b",
    );
    let text = rewrite(text, rate, |found| {
        let unit = match found.text(2) {
            "hr" => "hour",
            "wk" => "week",
            "mo" => "month",
            "yr" => "year",
            "min" => "minute",
            "sec" => "second",
            word => word,
        };
        Some(format!("{} per {unit}", found.text(1)))
    });
    let times = pattern!(r"([0-9])[x×]( |$)");
    rewrite(text, times, |found| {
        let size = found.after.starts_with(|letter: char| letter.is_ascii_digit());
        (!size).then(|| format!("{} times{}", found.text(1), found.text(2)))
    })
}

/// Signs between and before words.
pub(super) fn symbols(text: Cow<'_, str>) -> Cow<'_, str> {
    let languages = pattern!(r"\b(C|F|J)(\+\+|#)");
    let text = rewrite(text, languages, |found| {
        let sign = if found.text(2) == "#" { "sharp" } else { "plus plus" };
        (!found.starts_inside() && !found.ends_inside()).then(|| format!("{} {sign}", found.text(1)))
    });
    let tags = pattern!(r"([@#])([A-Za-z_])");
    let text = rewrite(text, tags, |found| {
        let word = if found.text(1) == "@" { "at" } else { "hashtag" };
        let starts = found.previous().is_none_or(|letter| !letter.is_alphanumeric());
        starts.then(|| format!("{word} {}", found.text(2)))
    });
    let between = pattern!(r"\s*(&amp;|[&+×÷@]|==?)\s*");
    let text = rewrite(text, between, |found| {
        let word = match found.text(1) {
            "&" | "&amp;" => "and",
            "+" => "plus",
            "×" => "times",
            "÷" => "divided by",
            "@" => "at",
            _ => "equals",
        };
        let left = found.before.is_empty()
            || found
                .before
                .ends_with(|letter: char| letter.is_alphanumeric() || ")]\"'.,:(".contains(letter));
        let right =
            found.after.starts_with(|letter: char| letter.is_alphanumeric() || "([\"'".contains(letter));
        if !left || !right {
            return None;
        }
        let lead = if found.before.is_empty() || found.before.ends_with('(') { "" } else { " " };
        Some(format!("{lead}{word} "))
    });
    let after = pattern!(r" ?([%²³°])");
    rewrite(text, after, |found| {
        let word = match found.text(1) {
            "%" => "percent",
            "²" => "squared",
            "³" => "cubed",
            _ => "degrees",
        };
        let tail = if found.next().is_some_and(char::is_alphanumeric) { " " } else { "" };
        found.previous().is_some_and(char::is_alphanumeric).then(|| format!(" {word}{tail}"))
    })
}
