//! The decoders of a `tokenizer.json`: how tokens become text again, at once or as they arrive.

use serde_json::Value;

use super::byte_level::decode_piece;
use super::byte_run::ByteRun;
use super::hf::{letters, list, type_name};
use super::hf_normalizer::Pattern;
use super::hf_split::{Prefix, replacement};
use super::piece_byte;
use crate::TokenizerError;

#[derive(Debug)]
enum Step {
    ByteFallback,
    Metaspace {
        replacement: char,
        strip_first: bool,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    Fuse,
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    /// No decoder in the file: tokens are joined with spaces.
    Spaces,
    /// Letters of a byte-level model are bytes.
    ByteLevel,
}

/// The decoder steps of a file, in order.
#[derive(Debug)]
pub(crate) struct Decoder(Vec<Step>);

impl Decoder {
    pub(crate) fn parse(value: Option<&Value>) -> Result<Self, TokenizerError> {
        let mut steps = Vec::new();
        match value {
            Some(value) => add_steps(value, &mut steps)?,
            None => steps.push(Step::Spaces),
        }
        // After Fuse the text is one token: only what can be done at its start keeps decoding incremental.
        let after_fuse = steps.iter().skip_while(|step| !matches!(step, Step::Fuse));
        for step in after_fuse {
            if !matches!(step, Step::Fuse | Step::Strip { stop: 0, .. }) {
                return Err(TokenizerError::unsupported(
                    "decoder",
                    "Fuse followed by anything but a left Strip",
                ));
            }
        }
        Ok(Self(steps))
    }

    /// The decoder of a byte-level model.
    pub(crate) fn byte_level() -> Self {
        Self(vec![Step::ByteLevel])
    }

    pub(crate) fn decode(&self, mut tokens: Vec<String>) -> String {
        for step in &self.0 {
            match step {
                Step::ByteFallback => tokens = join_bytes(tokens),
                Step::Metaspace { replacement, strip_first } => {
                    for (index, token) in tokens.iter_mut().enumerate() {
                        *token = metaspace(token, *replacement, *strip_first && index == 0);
                    }
                }
                Step::Replace { pattern, content } => {
                    for token in &mut tokens {
                        *token = pattern.replace(token, content).into_owned();
                    }
                }
                Step::Fuse => tokens = vec![tokens.concat()],
                Step::Strip { content, start, stop } => {
                    for token in &mut tokens {
                        *token = strip(token, *content, *start, *stop).to_owned();
                    }
                }
                Step::Spaces => return tokens.join(" "),
                Step::ByteLevel => {
                    let (mut run, mut text) = (ByteRun::default(), String::new());
                    tokens.iter().for_each(|token| decode_piece(token, &mut run, &mut text));
                    run.finish(&mut text);
                    tokens = vec![text];
                }
            }
        }
        tokens.concat()
    }

    /// A fresh state for decoding as tokens arrive.
    pub(crate) fn stream(&self) -> DecoderStream {
        let states = self.0.iter().map(|step| match step {
            Step::Strip { start, .. } => State { strip_left: *start, ..State::default() },
            _ => State::default(),
        });
        DecoderStream(states.collect())
    }
}

fn add_steps(value: &Value, steps: &mut Vec<Step>) -> Result<(), TokenizerError> {
    steps.push(match type_name(value, "decoder")? {
        "Sequence" => return list(value, "decoders")?.iter().try_for_each(|value| add_steps(value, steps)),
        "ByteFallback" => Step::ByteFallback,
        "Metaspace" => Step::Metaspace {
            replacement: replacement(value)?,
            strip_first: Prefix::parse(value)? != Prefix::Never,
        },
        "Replace" => Step::Replace {
            pattern: Pattern::parse(value.get("pattern"))?,
            content: letters(value, "content")?,
        },
        "Fuse" => Step::Fuse,
        "Strip" => {
            let content = letters(value, "content")?;
            let count = |name| value.get(name).and_then(Value::as_u64).map_or(0, |count| count as usize);
            Step::Strip {
                content: content
                    .chars()
                    .next()
                    .ok_or_else(|| TokenizerError::broken("an empty Strip decoder"))?,
                start: count("start"),
                stop: count("stop"),
            }
        }
        other => return Err(TokenizerError::unsupported("decoder", other)),
    });
    Ok(())
}

/// Runs of byte tokens become text, or one U+FFFD per byte when a run is not UTF-8.
fn join_bytes(tokens: Vec<String>) -> Vec<String> {
    let mut out = Vec::with_capacity(tokens.len());
    let mut run = Vec::new();
    let flush = |run: &mut Vec<u8>, out: &mut Vec<String>| {
        if !run.is_empty() {
            match String::from_utf8(std::mem::take(run)) {
                Ok(text) => out.push(text),
                Err(error) => out.extend(error.as_bytes().iter().map(|_| "\u{fffd}".to_owned())),
            }
        }
    };
    for token in tokens {
        match piece_byte(&token) {
            Some(byte) => run.push(byte),
            None => {
                flush(&mut run, &mut out);
                out.push(token);
            }
        }
    }
    flush(&mut run, &mut out);
    out
}

fn metaspace(token: &str, replacement: char, drop: bool) -> String {
    let spaced = token.chars().map(|letter| if letter == replacement { None } else { Some(letter) });
    if drop { spaced.flatten().collect() } else { spaced.map(|letter| letter.unwrap_or(' ')).collect() }
}

fn strip(token: &str, content: char, start: usize, stop: usize) -> &str {
    let mut rest = token;
    for _ in 0..start {
        let Some(shorter) = rest.strip_prefix(content) else { break };
        rest = shorter;
    }
    for _ in 0..stop {
        let Some(shorter) = rest.strip_suffix(content) else { break };
        rest = shorter;
    }
    rest
}

#[derive(Debug, Default)]
struct State {
    bytes: ByteRun,
    started: bool,
    strip_left: usize,
}

/// Where each decoder step stands in a text that is still arriving.
#[derive(Debug)]
pub(crate) struct DecoderStream(Vec<State>);

impl DecoderStream {
    pub(crate) fn push(&mut self, decoder: &Decoder, token: &str, text: &mut String) {
        feed(&decoder.0, &mut self.0, token, false, text);
    }

    pub(crate) fn finish(&mut self, decoder: &Decoder, text: &mut String) {
        for index in 0..decoder.0.len() {
            let mut rest = String::new();
            self.0[index].bytes.finish(&mut rest);
            if !rest.is_empty() {
                feed(&decoder.0[index + 1..], &mut self.0[index + 1..], &rest, false, text);
            }
        }
    }

    pub(crate) fn is_mid_character(&self) -> bool {
        self.0.iter().any(|state| !state.bytes.is_empty())
    }
}

fn feed(steps: &[Step], states: &mut [State], token: &str, fused: bool, text: &mut String) {
    let (Some((step, steps)), Some((state, states))) = (steps.split_first(), states.split_first_mut()) else {
        text.push_str(token);
        return;
    };
    match step {
        Step::ByteFallback => {
            let mut ready = String::new();
            if let Some(byte) = piece_byte(token) {
                state.bytes.push(byte, &mut ready);
            } else {
                state.bytes.finish(&mut ready);
            }
            if !ready.is_empty() {
                feed(steps, states, &ready, fused, text);
            }
            if piece_byte(token).is_none() {
                feed(steps, states, token, fused, text);
            }
        }
        Step::Metaspace { replacement, strip_first } => {
            let first = !std::mem::replace(&mut state.started, true);
            feed(steps, states, &metaspace(token, *replacement, *strip_first && first), fused, text);
        }
        Step::Replace { pattern, content } => {
            feed(steps, states, &pattern.replace(token, content), fused, text);
        }
        Step::Fuse => feed(steps, states, token, true, text),
        Step::Strip { content, .. } if fused => {
            let mut rest = token;
            while state.strip_left > 0 && !rest.is_empty() {
                match rest.strip_prefix(*content) {
                    Some(shorter) => {
                        rest = shorter;
                        state.strip_left -= 1;
                    }
                    None => state.strip_left = 0,
                }
            }
            feed(steps, states, rest, fused, text);
        }
        Step::Strip { content, start, stop } => {
            feed(steps, states, strip(token, *content, *start, *stop), fused, text);
        }
        Step::ByteLevel => {
            let mut ready = String::new();
            decode_piece(token, &mut state.bytes, &mut ready);
            feed(steps, states, &ready, fused, text);
        }
        Step::Spaces => {
            if std::mem::replace(&mut state.started, true) {
                text.push(' ');
            }
            text.push_str(token);
        }
    }
}
