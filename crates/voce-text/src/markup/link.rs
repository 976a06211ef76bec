//! Links, images and references to notes: the words are read, the addresses are not.

use super::{Ahead, MarkupStream, Step};

/// Brackets inside of brackets.
const MAX_DEPTH: usize = 4;
/// Bytes of a link's words, and of its address.
const MAX_PART: usize = 1024;

/// What a search for a closing bracket has come to.
enum Close {
    At(usize),
    None,
    Unknown,
}

impl MarkupStream {
    /// At `[` or `![`.
    pub(super) fn link(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let image = ahead.text.starts_with('!');
        let open = usize::from(image);
        if ahead.text.len() < open + 2 && !ahead.last {
            return Some(Step::Wait);
        }
        if !ahead.text[open..].starts_with('[') {
            return None;
        }
        let inside = &ahead.text[open + 1..];
        // A pause does not wait for what follows it.
        if inside.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("pause")) {
            return None;
        }
        let close = match closing(inside, ('[', ']'), ahead.last) {
            Close::At(close) => close,
            Close::None => return None,
            Close::Unknown => return Some(Step::Wait),
        };
        if inside.starts_with('^') && close > 1 && !inside[..close].contains(char::is_whitespace) {
            self.dropped = true;
            return Some(Step::Took(open + close + 2));
        }
        let after = &inside[close + 1..];
        if after.is_empty() && !ahead.last {
            return Some(Step::Wait);
        }
        // `a[i](x)` and `a[i][j]` are no links.
        let glued =
            self.before.is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == '_') && !image;
        let tail = match after.chars().next() {
            Some('(') => match closing(&after[1..], ('(', ')'), ahead.last) {
                Close::At(end) if is_target(&after[1..=end]) && !(glued && end == 0) => end + 2,
                Close::Unknown => return Some(Step::Wait),
                _ => return None,
            },
            Some('[') if !glued => match closing(&after[1..], ('[', ']'), ahead.last) {
                Close::At(end) if !after[1..=end].contains(['\n', '[']) => end + 2,
                Close::Unknown => return Some(Step::Wait),
                _ => return None,
            },
            _ => return None,
        };
        let words = &inside[..close];
        self.expect(self.at + open + 1 + close, 1 + tail);
        if words.trim().is_empty() {
            self.dropped = true;
        }
        Some(Step::Took(open + 1))
    }
}

/// Whether what stands in the parentheses after a link's words is an address, with or without a title.
fn is_target(inside: &str) -> bool {
    let inside = inside.strip_suffix(')').unwrap_or(inside).trim();
    let target = match inside.split_once([' ', '\n']) {
        Some((target, title)) if title.trim_start().starts_with(['"', '\'', '(']) => target,
        Some(_) => return false,
        None => inside,
    };
    target.is_empty() || target.contains(['/', '.', '#', ':', '<'])
}

/// The bracket that closes what is open at the start of the text, in the same paragraph.
fn closing(text: &str, (open, close): (char, char), last: bool) -> Close {
    let mut depth = 0;
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        if at > MAX_PART || (letter == '\n' && before == '\n') {
            return Close::None;
        }
        if before == '\\' {
        } else if letter == open {
            depth += 1;
            if depth > MAX_DEPTH {
                return Close::None;
            }
        } else if letter == close {
            if depth == 0 {
                return Close::At(at);
            }
            depth -= 1;
        }
        before = if before == '\\' { ' ' } else { letter };
    }
    if last { Close::None } else { Close::Unknown }
}
