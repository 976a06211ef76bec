//! What is printed and where: results on standard output, talk on standard error.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Outcome, one_line};

/// How a command talks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    /// Nothing but errors on standard error.
    pub(crate) quiet: bool,
    /// Results as one JSON object.
    pub(crate) json: bool,
}

impl Console {
    /// Writes a result and its line end.
    pub(crate) fn result(self, text: &str) -> Outcome {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", text.trim_end_matches('\n'))?;
        Ok(out.flush()?)
    }

    /// Writes a result as one line of JSON.
    pub(crate) fn json(self, value: &impl Serialize) -> Outcome {
        self.result(&to_json(value)?)
    }

    /// Says something on standard error, unless told to be quiet.
    pub(crate) fn note(self, text: &str) {
        if !self.quiet {
            note(text);
        }
    }

    /// A line on standard error that is rewritten while work goes on; hidden unless a terminal sees it.
    pub(crate) fn progress(self) -> ProgressBar {
        if self.quiet || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }
}

/// Says something on standard error, whatever the settings; a closed one is no reason to stop.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The one line that an error is.
pub(crate) fn error(text: &str) {
    note(&format!("voce: error: {}", one_line(text)));
}

/// A value as one line of JSON.
pub(crate) fn to_json(value: &impl Serialize) -> Outcome<String> {
    serde_json::to_string(value).map_err(|e| Failure::failed(format!("cannot write JSON: {e}")))
}

/// Rows as aligned columns; the first row is the head. Columns named in `right` are aligned to the right.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(c, cell)| {
                let w = widths[c];
                if right.contains(&c) { format!("{cell:>w$}") } else { format!("{cell:<w$}") }
            })
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Bytes for people: `6.2 MB`.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

/// Milliseconds, to the microsecond.
pub(crate) fn milliseconds(d: Duration) -> f64 {
    round(d.as_secs_f64() * 1e3, 3)
}

/// A number rounded to `decimals`, so that reports stay readable.
pub(crate) fn round(x: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (x * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".into(), "bb".into()], vec!["ccc".into(), "d".into()]];
        assert_eq!(table(&rows, &[1]), "a    bb\nccc   d\n");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(6_195_000), "6.2 MB");
    }
}
