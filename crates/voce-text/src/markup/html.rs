//! HTML: tags are left out, entities become their characters. What Voce itself reads (`<break/>`, `<turn/>`) stays.

use super::{Ahead, MarkupStream, Step, boundary};

/// Bytes of a tag.
const MAX_TAG: usize = 1024;
/// Letters of an entity's name.
const MAX_ENTITY: usize = 12;

/// Tags that are passed on.
const OURS: [&str; 2] = ["break", "turn"];
/// Tags whose end ends what is said.
const PARTS: [&str; 24] = [
    "p",
    "div",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "li",
    "tr",
    "dt",
    "dd",
    "title",
    "caption",
    "figcaption",
    "blockquote",
    "section",
    "article",
    "header",
    "footer",
    "summary",
    "option",
    "pre",
    "address",
];
/// Tags that are left out and say nothing.
const OTHERS: [&str; 84] = [
    "html", "head", "body", "main", "nav", "aside", "span", "a", "b", "i", "u", "s", "em", "strong", "small",
    "sub", "sup", "mark", "del", "ins", "code", "kbd", "samp", "var", "q", "cite", "abbr", "time", "ul",
    "ol", "dl", "table", "thead", "tbody", "tfoot", "td", "th", "colgroup", "col", "img", "picture",
    "source", "figure", "video", "audio", "iframe", "canvas", "svg", "path", "g", "script", "style",
    "noscript", "template", "form", "input", "button", "label", "select", "textarea", "fieldset", "legend",
    "details", "font", "center", "strike", "big", "tt", "br", "hr", "wbr", "link", "meta", "bdi", "bdo",
    "ruby", "rt", "rp", "speak", "prosody", "emphasis", "say-as", "phoneme", "voice",
];
/// Tags whose contents are left out as well.
const SILENT: [&str; 4] = ["script", "style", "template", "noscript"];

const ENTITIES: [(&str, &str); 44] = [
    ("amp", "&"),
    ("lt", "<"),
    ("gt", ">"),
    ("quot", "\""),
    ("apos", "'"),
    ("nbsp", " "),
    ("ensp", " "),
    ("emsp", " "),
    ("thinsp", " "),
    ("shy", ""),
    ("hellip", "\u{2026}"),
    ("mdash", "\u{2014}"),
    ("ndash", "\u{2013}"),
    ("lsquo", "\u{2018}"),
    ("rsquo", "\u{2019}"),
    ("ldquo", "\u{201c}"),
    ("rdquo", "\u{201d}"),
    ("laquo", "«"),
    ("raquo", "»"),
    ("bull", "\u{2022}"),
    ("middot", "·"),
    ("copy", "©"),
    ("reg", "®"),
    ("trade", "™"),
    ("deg", "°"),
    ("plusmn", "±"),
    ("times", "×"),
    ("divide", "÷"),
    ("frac12", "½"),
    ("frac14", "¼"),
    ("frac34", "¾"),
    ("euro", "€"),
    ("pound", "£"),
    ("yen", "¥"),
    ("cent", "¢"),
    ("sect", "§"),
    ("para", "¶"),
    ("eacute", "é"),
    ("agrave", "à"),
    ("ouml", "ö"),
    ("uuml", "ü"),
    ("auml", "ä"),
    ("szlig", "ß"),
    ("ccedil", "ç"),
];

impl MarkupStream {
    /// At `<`.
    pub(super) fn tag(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let inside = &ahead.text[1..];
        if inside.is_empty() || ("!--".starts_with(inside) && inside.len() < 3) {
            return (!ahead.last).then_some(Step::Wait);
        }
        if inside.starts_with("!--") {
            return match ahead.text.find("-->") {
                Some(end) => {
                    self.dropped = true;
                    Some(Step::Took(end + 3))
                }
                None => (!ahead.last).then_some(Step::Wait),
            };
        }
        if !inside.starts_with(|letter: char| letter.is_ascii_alphabetic() || "/!".contains(letter)) {
            return None;
        }
        // A name that is none does not wait for its end.
        if inside
            .trim_start_matches('/')
            .split_once(char::is_whitespace)
            .is_some_and(|(name, _)| !is_known(name))
        {
            return None;
        }
        let limit = boundary(inside, MAX_TAG);
        let close = match inside[..limit].find(['>', '<']) {
            Some(at) if inside[at..].starts_with('>') => at,
            None if limit == inside.len() && !ahead.last => return Some(Step::Wait),
            _ => return None,
        };
        let (body, length) = (&inside[..close], close + 2);
        if is_address(body) {
            self.expect(self.at + 1 + close, 1);
            return Some(Step::Took(1));
        }
        let closes = body.starts_with('/');
        let named = body.trim_start_matches('/');
        let end = named.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
        let end = end.unwrap_or(named.len());
        let (name, attributes) = (named[..end].to_ascii_lowercase(), &named[end..]);
        let name = name.as_str();
        if OURS.contains(&name) {
            self.say(&ahead.text[..length]);
            return Some(Step::Took(length));
        }
        let plain = attributes.trim_end_matches('/').trim();
        // `a<b and c>d` compares.
        let valid = plain.is_empty() || attributes.starts_with(char::is_whitespace) && plain.contains('=');
        let doctype =
            body.starts_with('!') && inside.get(..8).is_some_and(|s| s.eq_ignore_ascii_case("!doctype"));
        let part = PARTS.contains(&name);
        if !doctype && !(valid && (part || OTHERS.contains(&name))) {
            return None;
        }
        if SILENT.contains(&name) && !closes && !attributes.ends_with('/') {
            match silent_end(&inside[close + 1..], name) {
                Some(bytes) => {
                    self.dropped = true;
                    return Some(Step::Took(length + bytes));
                }
                None if !ahead.last => return Some(Step::Wait),
                None => {}
            }
        }
        match name {
            "br" | "hr" => self.line_break("\n"),
            "td" | "th" if closes => self.comma = true,
            _ if part && closes => {
                self.stop();
                self.line_break("\n");
            }
            _ => {}
        }
        self.dropped = true;
        Some(Step::Took(length))
    }

    /// At `&`.
    pub(super) fn entity(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let name = &ahead.text[1..];
        let end = name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '#');
        let end = end.unwrap_or(name.len());
        if end == name.len() && end <= MAX_ENTITY && !ahead.last {
            return Some(Step::Wait);
        }
        if end == 0 || end > MAX_ENTITY || !name[end..].starts_with(';') {
            return None;
        }
        let name = &name[..end];
        let letter = match name.strip_prefix('#') {
            Some(number) => {
                let code = match number.strip_prefix(['x', 'X']) {
                    Some(hex) => u32::from_str_radix(hex, 16),
                    None => number.parse(),
                };
                let letter = char::from_u32(code.ok()?).filter(|letter| !letter.is_control())?;
                letter.to_string()
            }
            None => ENTITIES.iter().find(|(known, _)| *known == name)?.1.to_owned(),
        };
        self.say(&letter);
        Some(Step::Took(end + 2))
    }
}

/// Whether a tag has this name, or its beginning closes it already.
fn is_known(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let all = OURS.iter().chain(&PARTS).chain(&OTHERS);
    name.contains(['>', '<']) || name == "!doctype" || all.into_iter().any(|known| *known == name)
}

/// `<https://...>` and `<name@host>`.
fn is_address(body: &str) -> bool {
    let solid = !body.contains(|letter: char| letter.is_whitespace() || letter == '"');
    let mail = body.split_once('@').is_some_and(|(name, host)| !name.is_empty() && host.contains('.'));
    solid && (body.contains("://") || body.starts_with("mailto:") || mail)
}

/// Bytes up to the end of the tag that closes `name`.
fn silent_end(text: &str, name: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find("</")?;
        let found = text.get(at + 2..at + 2 + name.len()).is_some_and(|tag| tag.eq_ignore_ascii_case(name));
        if found {
            return text[at..].find('>').map(|end| at + end + 1);
        }
        from = at + 2;
    }
}
