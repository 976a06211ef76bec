//! Subtitles from words: cues of readable length, as SubRip or WebVTT.

use std::fmt::Write as _;

use super::event::Word;

/// Letters of a line.
const LINE: usize = 42;
/// Lines of a cue.
const LINES: usize = 2;
/// Seconds that a cue lasts at most.
const LONGEST: f64 = 7.0;
/// Silence in seconds that ends a cue.
const GAP: f64 = 0.8;
/// Seconds that a cue lasts at least, where the next one allows it.
const SHORTEST: f64 = 1.0;

/// Some lines of text and when they are seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Cue {
    /// Begin, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
    /// One or two lines.
    pub text: String,
}

/// Groups words into cues: up to two lines of 42 letters and seven seconds, ending at silences and, where there is
/// enough text, after sentences.
pub fn cues(words: &[Word]) -> Vec<Cue> {
    let mut groups: Vec<&[Word]> = Vec::new();
    let mut begin = 0;
    for i in 1..=words.len() {
        if i == words.len() || ends(&words[begin..i], &words[i]) {
            groups.push(&words[begin..i]);
            begin = i;
        }
    }
    let mut cues: Vec<Cue> = groups
        .iter()
        .filter_map(|g| {
            let (first, last) = (g.first()?, g.last()?);
            Some(Cue { start: first.start, end: last.end, text: lines(g) })
        })
        .collect();
    for i in 0..cues.len() {
        let next = cues.get(i + 1).map_or(f64::INFINITY, |c| c.start);
        let cue = &mut cues[i];
        cue.end = cue.end.max(cue.start + SHORTEST).min(next.max(cue.end));
    }
    cues
}

/// Whether a cue ends before `next`.
fn ends(cue: &[Word], next: &Word) -> bool {
    let (Some(first), Some(last)) = (cue.first(), cue.last()) else { return false };
    let length: usize = cue.iter().map(|w| w.text.chars().count() + 1).sum();
    let sentence = last.text.ends_with(['.', '!', '?', '\u{3002}']) && length > LINE / 2;
    let longer = length + next.text.chars().count();
    sentence || longer > LINE * LINES || next.end - first.start > LONGEST || next.start - last.end > GAP
}

/// The words as one line, or two of about the same length.
fn lines(words: &[Word]) -> String {
    let text = words.iter().map(|w| w.text.as_str()).collect::<Vec<_>>().join(" ");
    let letters = text.chars().count();
    if letters <= LINE {
        return text;
    }
    let spaces = text.char_indices().enumerate().filter(|(_, (_, c))| *c == ' ');
    let best = spaces.min_by_key(|(n, _)| n.abs_diff(letters / 2));
    match best {
        Some((_, (at, _))) => format!("{}\n{}", &text[..at], &text[at + 1..]),
        None => text,
    }
}

/// SubRip.
pub fn srt(cues: &[Cue]) -> String {
    let mut out = String::new();
    for (i, cue) in cues.iter().enumerate() {
        let (start, end) = (stamp(cue.start, ','), stamp(cue.end, ','));
        // Writing to a string cannot fail.
        let _ = write!(out, "{}\n{start} --> {end}\n{}\n\n", i + 1, cue.text);
    }
    out
}

/// WebVTT.
pub fn vtt(cues: &[Cue]) -> String {
    let mut out = String::from("WEBVTT\n\n");
    for cue in cues {
        let (start, end) = (stamp(cue.start, '.'), stamp(cue.end, '.'));
        let text = cue.text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = write!(out, "{start} --> {end}\n{text}\n\n");
    }
    out
}

/// Seconds as `HH:MM:SS,mmm`.
fn stamp(seconds: f64, point: char) -> String {
    let ms = (seconds.max(0.0) * 1e3).round() as u64;
    format!("{:02}:{:02}:{:02}{point}{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str, from: f64) -> Vec<Word> {
        let word = |(i, w): (usize, &str)| Word {
            text: w.into(),
            start: from + i as f64 * 0.4,
            end: from + i as f64 * 0.4 + 0.3,
            confidence: 1.0,
        };
        text.split(' ').enumerate().map(word).collect()
    }

    #[test]
    fn cues_end_at_silence_and_sentences() {
        let mut words = said("The kettle is warm today. The window", 0.0);
        words.extend(said("is open & <new>", 5.0));
        let cues = cues(&words);
        let texts: Vec<_> = cues.iter().map(|c| c.text.as_str()).collect();
        assert_eq!(texts, ["The kettle is warm today.", "The window", "is open & <new>"]);
        let srt = srt(&cues);
        assert!(
            srt.starts_with("1\n00:00:00,000 --> 00:00:01,900\nThe kettle is warm today.\n\n2\n"),
            "{srt}"
        );
        let vtt = vtt(&cues);
        assert!(vtt.starts_with("WEBVTT\n\n00:00:00.000 --> "), "{vtt}");
        assert!(vtt.ends_with("00:00:05.000 --> 00:00:06.500\nis open &amp; &lt;new&gt;\n\n"), "{vtt}");
    }

    #[test]
    fn long_speech_is_cut_and_wrapped() {
        let words = said(&vec!["several"; 60].join(" "), 3600.0);
        let cues = cues(&words);
        assert!(cues.len() > 3);
        assert_eq!(cues.iter().map(|c| c.text.split_whitespace().count()).sum::<usize>(), 60);
        for pair in cues.windows(2) {
            assert!(pair[0].end <= pair[1].start && pair[0].end - pair[0].start <= 7.0);
        }
        assert!(cues.iter().all(|c| c.text.lines().count() <= 2 && c.text.lines().all(|l| l.len() <= 50)));
        assert!(srt(&cues).contains("\n01:00:0"));
        assert!(cues_of_nothing());
    }

    fn cues_of_nothing() -> bool {
        cues(&[]).is_empty() && srt(&[]).is_empty()
    }
}
