//! What a line is by its first characters: headings, lists, quotations, tables, rules, fences, definitions.

use super::{Ahead, Fence, Line, MarkupStream, Step, ends_clause};

/// Names after a fence whose block is text and not code.
const SPOKEN: [&str; 6] = ["", "text", "txt", "plain", "md", "markdown"];
/// Digits of a list's number.
const MAX_NUMBER: usize = 3;

impl MarkupStream {
    pub(super) fn start_line(&mut self, ahead: Ahead<'_>) -> Step {
        let trimmed = ahead.text.trim_start_matches([' ', '\t']);
        let indent = ahead.text.len() - trimmed.len();
        let Some(first) = trimmed.chars().next() else {
            if !ahead.last {
                return Step::Wait;
            }
            if self.line == Line::Item {
                self.part()
            } else {
                self.resume()
            }
            self.say(ahead.text);
            return Step::Took(ahead.text.len());
        };
        let line = Ahead { text: trimmed, ..ahead };
        if self.fence.is_some() {
            return self.fenced(line, indent);
        }
        let step = match first {
            '\n' | '\r' => self.blank(line, &ahead.text[..indent]),
            '#' => self.heading(line),
            '`' | '~' => self.open_fence(line, first),
            '>' => self.quotation(line),
            '-' | '*' | '+' | '_' | '=' | ':' => self.rule(line).or_else(|| self.bullet(line, first)),
            '\u{2022}' => self.bullet(line, first),
            '0'..='9' => self.number(line),
            '|' => self.rule(line).or_else(|| self.row(line)),
            '[' => self.definition(line),
            _ => None,
        };
        match step {
            Some(Step::Took(bytes)) => Step::Took(indent + bytes),
            Some(Step::Wait) => Step::Wait,
            None => {
                // A line that goes on with what the one before has begun.
                self.resume();
                if self.line != Line::Item {
                    self.line = Line::Plain;
                }
                self.starts_line = false;
                self.say(&ahead.text[..indent]);
                Step::Took(indent)
            }
        }
    }

    /// The end of a line, inside of it.
    pub(super) fn end_line(&mut self, line_break: &'static str) {
        self.starts_line = true;
        match self.line {
            Line::Heading | Line::Row => {
                self.stop();
                self.line_break(line_break);
                self.line = Line::Plain;
            }
            // Whether it is an end, the next line tells.
            _ if self.visible.is_some_and(|last| !ends_clause(last)) => self.broken = Some(line_break),
            _ => self.line_break(line_break),
        }
    }

    /// Passes the line break on that has waited.
    fn resume(&mut self) {
        if let Some(line_break) = self.broken.take() {
            self.line_break(line_break);
        }
    }

    /// The same before something of another kind, which what was said before does not go on into.
    fn part(&mut self) {
        if let Some(line_break) = self.broken.take() {
            self.stop();
            self.line_break(line_break);
        }
    }

    fn begin(&mut self, line: Line) {
        self.part();
        self.line = line;
        self.starts_line = false;
        self.dropped = true;
    }

    fn blank(&mut self, ahead: Ahead<'_>, indent: &str) -> Option<Step> {
        let text = ahead.text;
        let line_break = match (text.starts_with("\r\n"), text == "\r" && !ahead.last) {
            (true, _) => "\r\n",
            (_, true) => return Some(Step::Wait),
            _ if text.starts_with('\n') => "\n",
            _ => return None,
        };
        if self.line == Line::Item {
            self.part()
        } else {
            self.resume()
        }
        self.line = Line::Plain;
        self.end_paragraph();
        self.out.push_str(indent);
        self.line_break(line_break);
        Some(Step::Took(line_break.len()))
    }

    fn heading(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let Some(marks) = ahead.run('#') else { return Some(Step::Wait) };
        let after = &ahead.text[marks..];
        if marks > 6 || !(after.is_empty() || after.starts_with([' ', '\t', '\n', '\r'])) {
            return None;
        }
        let spaces = after.len() - after.trim_start_matches([' ', '\t']).len();
        self.begin(Line::Heading);
        Some(Step::Took(marks + spaces))
    }

    /// Rules, underlines of headings, and the second row of tables: lines of signs alone, which are left out.
    fn rule(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let signs = |letter: char| "-*_=:| \t".contains(letter);
        let (line, line_break) = match ahead.line() {
            Some(found) => found,
            None if ahead.text.trim_end_matches('\r').chars().all(signs) => return Some(Step::Wait),
            None => return None,
        };
        let solid: Vec<char> = line.chars().filter(|letter| !matches!(letter, ' ' | '\t')).collect();
        let mark = solid[0];
        let same = solid.iter().all(|letter| *letter == mark);
        let is_rule = match mark {
            '-' | '*' | '_' if same => solid.len() >= 3,
            '=' if same => solid.len() >= 2 && self.broken.is_some(),
            // What separates a table's head: dashes, colons and at least one bar.
            _ => {
                let dashes = solid.iter().filter(|letter| **letter == '-').count();
                dashes >= 2 && solid.contains(&'|') && solid.iter().all(|letter| "-:|".contains(*letter))
            }
        };
        if !is_rule {
            return None;
        }
        self.part();
        self.line = Line::Plain;
        self.end_paragraph();
        Some(Step::Took(line.len() + line_break))
    }

    fn bullet(&mut self, ahead: Ahead<'_>, mark: char) -> Option<Step> {
        if !matches!(mark, '-' | '*' | '+' | '\u{2022}') {
            return None;
        }
        let after = &ahead.text[mark.len_utf8()..];
        let item = after.trim_start_matches([' ', '\t']);
        if item.is_empty() && !ahead.last {
            return Some(Step::Wait);
        }
        if item.len() == after.len() && !item.is_empty() && mark != '\u{2022}' {
            return None;
        }
        // A sum begins with a plus, too.
        if mark == '+' && item.starts_with(|letter: char| letter.is_ascii_digit()) {
            return None;
        }
        let mut taken = ahead.text.len() - item.len();
        // The box of a task.
        if item.starts_with('[') {
            if item.len() < 4 && !ahead.last {
                return Some(Step::Wait);
            }
            if ["[ ] ", "[x] ", "[X] "].iter().any(|open| item.starts_with(open)) {
                taken += 4;
            }
        }
        self.begin(Line::Item);
        Some(Step::Took(taken))
    }

    /// The number of an item is read, as a person would.
    fn number(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let digits = ahead.text.bytes().take_while(u8::is_ascii_digit).count();
        let after = &ahead.text[digits..];
        if digits > MAX_NUMBER {
            return None;
        }
        match after.as_bytes() {
            [] | [b'.' | b')'] if !ahead.last => Some(Step::Wait),
            [b'.' | b')', b' ' | b'\t', ..] => {
                self.begin(Line::Item);
                self.dropped = false;
                self.say(&ahead.text[..digits + 2]);
                Some(Step::Took(digits + 2))
            }
            _ => None,
        }
    }

    fn quotation(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let after = &ahead.text[1..];
        let quoted = after.strip_prefix(' ').unwrap_or(after);
        if quoted.is_empty() && !ahead.last {
            return Some(Step::Wait);
        }
        // Greater than a number, or than or equal to it.
        if quoted.starts_with(|letter: char| letter.is_ascii_digit() || "=.-$£€".contains(letter)) {
            return None;
        }
        // `[!NOTE]` heads a note.
        if quoted.starts_with('[') {
            let Some((line, line_break)) = ahead.line() else { return Some(Step::Wait) };
            if line.trim_start_matches(['>', ' ']).starts_with("[!") && line.trim_end().ends_with(']') {
                self.part();
                return Some(Step::Took(line.len() + line_break));
            }
        }
        // Lines of a quotation follow each other as lines do; what stands before it does not go on into it.
        let empty = quoted.starts_with(['\n', '\r']);
        if self.line != Line::Item && !empty {
            self.resume();
        }
        Some(Step::Took(ahead.text.len() - quoted.len()))
    }

    fn row(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let Some((line, _)) = ahead.line() else { return Some(Step::Wait) };
        let cells = line.trim_end();
        if cells.len() < 2 || !cells.ends_with('|') {
            return None;
        }
        self.begin(Line::Row);
        Some(Step::Took(1))
    }

    /// Notes and addresses that the text refers to: a note is read, an address is not.
    fn definition(&mut self, ahead: Ahead<'_>) -> Option<Step> {
        let inside = &ahead.text[1..];
        let Some(close) = inside.find([']', '\n', '[']) else {
            return (!ahead.last).then_some(Step::Wait);
        };
        if !inside[close..].starts_with(']') || inside[..close].is_empty() {
            return None;
        }
        let after = &inside[close + 1..];
        if after.is_empty() && !ahead.last {
            return Some(Step::Wait);
        }
        let body = after.strip_prefix(':')?;
        if inside.starts_with('^') {
            self.part();
            self.line = Line::Plain;
            let spaces = body.len() - body.trim_start_matches([' ', '\t']).len();
            self.dropped = true;
            self.starts_line = false;
            return Some(Step::Took(ahead.text.len() - body.len() + spaces));
        }
        let Some((line, line_break)) = ahead.line() else { return Some(Step::Wait) };
        let target = line[line.len().min(close + 3)..].trim();
        let address = ["http://", "https://", "mailto:", "<", "/", "#", "./", "../", "www."];
        if !address.iter().any(|start| target.starts_with(start)) {
            return None;
        }
        self.part();
        Some(Step::Took(line.len() + line_break))
    }

    fn open_fence(&mut self, ahead: Ahead<'_>, mark: char) -> Option<Step> {
        let Some(length) = ahead.run(mark) else { return Some(Step::Wait) };
        if length < 3 {
            return None;
        }
        let Some((line, line_break)) = ahead.line() else { return Some(Step::Wait) };
        let info = line[length..].trim();
        if mark == '`' && info.contains('`') {
            return None;
        }
        let name = info.split([' ', '{', ',']).next().unwrap_or_default();
        let spoken = SPOKEN.iter().any(|known| name.eq_ignore_ascii_case(known));
        self.part();
        self.line = Line::Plain;
        self.end_paragraph();
        self.fence = Some(Fence { mark, length, spoken });
        Some(Step::Took(line.len() + line_break))
    }

    /// A line of a block of code; `ahead` is what follows its indentation.
    fn fenced(&mut self, ahead: Ahead<'_>, indent: usize) -> Step {
        let Some(fence) = self.fence else { return Step::Took(indent) };
        let Some((line, line_break)) = ahead.line() else { return Step::Wait };
        let marks = line.chars().take_while(|letter| *letter == fence.mark).count();
        if marks >= fence.length && line[marks..].trim().is_empty() {
            self.fence = None;
        } else if fence.spoken {
            self.say(line);
            self.line_break(&ahead.text[line.len()..line.len() + line_break]);
        }
        Step::Took(indent + line.len() + line_break)
    }
}
