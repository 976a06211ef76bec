//! Marks inside of a line: emphasis, code, escapes, cells, and where links, tags and addresses begin.

use super::emoji;
use super::{Ahead, Line, MarkupStream, Step, boundary};

/// Characters that emphasis by underscores may span.
const MAX_EMPHASIS: usize = 256;
/// What web addresses begin with.
const SCHEMES: [&str; 5] = ["https://", "http://", "ftp://", "mailto:", "www."];

impl MarkupStream {
    pub(super) fn inline(&mut self, ahead: Ahead<'_>) -> Step {
        let Some(first) = ahead.text.chars().next() else { return Step::Wait };
        if first == '\n' || first == '\r' {
            return self.newline(ahead, first);
        }
        if self.code > 0 {
            return self.in_code(ahead, first);
        }
        let step = match first {
            '`' => self.backticks(ahead),
            '*' => self.by_stars(ahead),
            '_' => self.by_underscores(ahead),
            '~' => self.by_tildes(ahead),
            '[' | '!' => self.link(ahead),
            '<' => self.tag(ahead),
            '&' => self.entity(ahead),
            '\\' => self.escape(ahead),
            '|' if self.line == Line::Row => Some(self.cell(ahead)),
            'h' | 'H' | 'f' | 'F' | 'm' | 'M' | 'w' | 'W' => self.address(ahead),
            _ if emoji::is_left_out(first, self.before) => {
                self.dropped = true;
                Some(Step::Took(first.len_utf8()))
            }
            _ => None,
        };
        step.unwrap_or_else(|| {
            self.letter(first);
            Step::Took(first.len_utf8())
        })
    }

    fn newline(&mut self, ahead: Ahead<'_>, first: char) -> Step {
        match ahead.text.as_bytes() {
            [b'\r'] if !ahead.last => Step::Wait,
            [b'\r', b'\n', ..] => {
                self.end_line("\r\n");
                Step::Took(2)
            }
            _ if first == '\n' => {
                self.end_line("\n");
                Step::Took(1)
            }
            _ => {
                self.letter(first);
                Step::Took(1)
            }
        }
    }

    fn in_code(&mut self, ahead: Ahead<'_>, first: char) -> Step {
        if first != '`' {
            self.letter(first);
            return Step::Took(first.len_utf8());
        }
        let Some(length) = ahead.run('`') else { return Step::Wait };
        if length == self.code {
            self.code = 0;
        } else {
            self.say(&ahead.text[..length]);
        }
        Step::Took(length)
    }

    fn backticks(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let Some(length) = ahead.run('`') else { return Some(Step::Wait) };
        self.code = length;
        Some(Step::Took(length))
    }

    fn by_stars(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let Some(length) = ahead.run('*') else { return Some(Step::Wait) };
        let after = ahead.text[length..].chars().next();
        let before = self.before;
        let word = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        let space = |letter: Option<char>| letter.is_none_or(char::is_whitespace);
        // Scripts without spaces have emphasis between letters; elsewhere it is a product or an omission.
        let wide = |letter: Option<char>| letter.is_some_and(super::is_wide);
        let between = length == 2 && (wide(before) || wide(after)) && !space(before) && !space(after);
        let closes = !space(before)
            && (self.stars > 0 && (!word(after) || !word(before))
                || (word(before)
                    || before.is_some_and(|letter| ".,!?:;)\"'\u{201d}\u{2019}".contains(letter)))
                    && (space(after)
                        || after.is_some_and(|letter| ".,!?:;)\"'\u{201d}\u{2019}".contains(letter))));
        let opens = !word(before)
            && before.is_none_or(|letter| !"/.\\*".contains(letter))
            && (word(after) || after.is_some_and(|letter| "\"'([`_~\\<\u{201c}\u{2018}".contains(letter)));
        if length > 3 || !(closes || opens || between) {
            self.say(&ahead.text[..length]);
        } else if closes || between && self.stars > 0 {
            self.stars = self.stars.saturating_sub(1);
        } else {
            self.stars += 1;
        }
        Some(Step::Took(length))
    }

    /// Underscores belong to names more often than not: only what opens and closes around words is emphasis.
    fn by_underscores(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let Some(length) = ahead.run('_') else { return Some(Step::Wait) };
        let starts = self
            .before
            .is_none_or(|letter| letter.is_whitespace() || "([\"'*~\u{201c}\u{2018}".contains(letter));
        let body = &ahead.text[length..];
        if length > 3 || !starts || body.starts_with(char::is_whitespace) {
            self.say(&ahead.text[..length]);
            return Some(Step::Took(length));
        }
        let limit = boundary(body, MAX_EMPHASIS);
        let span = &body[..body[..limit].find('\n').unwrap_or(limit)];
        let mut from = 0;
        while let Some(found) = span[from..].find('_').map(|at| from + at) {
            let marks = span[found..].chars().take_while(|letter| *letter == '_').count();
            let after = &body[found + marks..];
            // What follows the mark, and what follows that, tell whether a name goes on.
            if after.chars().nth(1).is_none() && !ahead.last && !after.starts_with('\n') {
                return Some(Step::Wait);
            }
            let mut next = after.chars();
            let (next, second) = (next.next(), next.next());
            let name = next.is_some_and(|letter| {
                letter.is_alphanumeric()
                    || "/(\\".contains(letter)
                    || letter == '.' && second.is_some_and(char::is_alphanumeric)
            });
            if marks == length && found > 0 && !name && !span[..found].ends_with(char::is_whitespace) {
                self.expect(self.at + length + found, length);
                return Some(Step::Took(length));
            }
            from = found + marks;
        }
        if span.len() == body.len() && body.len() < MAX_EMPHASIS && !ahead.last {
            return Some(Step::Wait);
        }
        self.say(&ahead.text[..length]);
        Some(Step::Took(length))
    }

    fn by_tildes(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let Some(length) = ahead.run('~') else { return Some(Step::Wait) };
        let open = !ahead.text[length..].starts_with(char::is_whitespace) && ahead.text.len() > length;
        let close = self.struck && self.before.is_some_and(|letter| !letter.is_whitespace());
        if length == 2 && (open || close) && !self.before.is_some_and(|letter| "/:".contains(letter)) {
            self.struck = !close;
        } else {
            self.say(&ahead.text[..length]);
        }
        Some(Step::Took(length))
    }

    fn escape(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let Some(next) = ahead.text[1..].chars().next() else {
            return (!ahead.last).then_some(Step::Wait);
        };
        match next {
            // A line break that is asked for.
            '\n' | '\r' if self.before.is_some_and(|letter| !"\\:".contains(letter)) => Some(Step::Took(1)),
            '*' | '_' | '#' | '`' | '~' | '|' | '<' | '>' | '[' | ']'
                if self.before.is_none_or(|letter| !"\\:/".contains(letter)) =>
            {
                self.letter(next);
                Some(Step::Took(2))
            }
            _ => None,
        }
    }

    fn cell(&mut self, ahead: Ahead<'_>) -> Step {
        let after = ahead.text[1..].trim_start_matches([' ', '\t']);
        if after.is_empty() && !ahead.last {
            return Step::Wait;
        }
        self.comma = true;
        self.dropped = true;
        Step::Took(ahead.text.len() - after.len())
    }

    /// Web addresses are passed on whole, whatever signs are in them.
    fn address(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        if self.before.is_some_and(char::is_alphanumeric) {
            return None;
        }
        let text = ahead.text;
        let lower =
            |start: &str| text.get(..start.len()).is_some_and(|have| have.eq_ignore_ascii_case(start));
        let partial = |start: &&str| {
            text.len() < start.len() && start.get(..text.len()).is_some_and(|s| s.eq_ignore_ascii_case(text))
        };
        if !SCHEMES.into_iter().any(lower) {
            return (!ahead.last && SCHEMES.iter().any(partial)).then_some(Step::Wait);
        }
        let emphasis = self.stars > 0;
        let end = text.find(|letter: char| {
            letter.is_whitespace() || "<>\"`|".contains(letter) || (emphasis && letter == '*')
        });
        if end.is_none() && !ahead.last {
            return Some(Step::Wait);
        }
        // The end of a link, or of emphasis, that was found before.
        let known = self.ends.front().and_then(|(at, _)| at.checked_sub(self.at));
        let end = end.unwrap_or(text.len()).min(known.unwrap_or(usize::MAX));
        self.say(&text[..end]);
        Some(Step::Took(end))
    }

    /// Leaves `length` bytes out when the text comes to `at`.
    pub(super) fn expect(&mut self, at: usize, length: usize) {
        let place = self.ends.partition_point(|(other, _)| *other < at);
        self.ends.insert(place, (at, length));
    }
}
