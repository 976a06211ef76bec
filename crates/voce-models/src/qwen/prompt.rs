//! Prompts as each variant was trained with them: which text token and which codes stand at every position.
//!
//! A position is a row of tokens, the codes of a frame and one of text; what is absent is [`NONE`]. The model adds the
//! embeddings of a row.

use super::config::QwenConfig;
use crate::speech::TextMode;

/// No token.
pub const NONE: u32 = u32::MAX;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who<'a> {
    /// Nobody in particular, or whom the instruction describes.
    Nobody,
    /// One of the model's speakers, by the id of its embedding.
    Speaker(u32),
    /// The speaker of a recording, whose embedding stands at a position of its own.
    Cloned(Option<Clip<'a>>),
}

/// A recording that the model goes on from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip<'a> {
    /// Tokens of what is said in it.
    pub text: &'a [u32],
    /// Its codes, frame by frame.
    pub codes: &'a [u32],
}

/// What a passage is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask<'a> {
    /// Tokens of the text, or of its beginning; at least one.
    pub text: &'a [u32],
    /// Whether more text is to come.
    pub open: bool,
    /// Tokens of the instruction's message.
    pub instruct: &'a [u32],
    /// Tokens that begin the message whose text is spoken.
    pub role: &'a [u32],
    /// The id of a language or dialect; none leaves it to the model.
    pub language: Option<u32>,
    /// Who speaks.
    pub who: Who<'a>,
    /// Where the text stands.
    pub mode: TextMode,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Rows of tokens; the last is the input of the first frame.
    pub rows: Vec<u32>,
    /// The row that the embedding of a cloned speaker is added to.
    pub speaker: Option<usize>,
    /// Text tokens beside the frames that follow; after them comes padding.
    pub trailing: Vec<u32>,
}

struct Rows<'a> {
    config: &'a QwenConfig,
    rows: Vec<u32>,
}

impl Rows<'_> {
    fn columns(&self) -> usize {
        self.config.talker_config.num_code_groups + 1
    }

    /// A position with a text token and, where `codes` has any, codes from the first on.
    fn push(&mut self, text: u32, codes: &[u32]) {
        let groups = self.columns() - 1;
        self.rows.extend_from_slice(codes);
        self.rows.extend(std::iter::repeat_n(NONE, groups - codes.len()));
        self.rows.push(text);
    }
}

impl Ask<'_> {
    /// Text tokens that a prompt in context pairs with the recording's frames: those must be there before it begins.
    pub fn paired(&self, groups: usize) -> usize {
        match (self.who, self.mode) {
            (Who::Cloned(Some(clip)), TextMode::Streaming) => {
                (clip.codes.len() / groups + 1).saturating_sub(clip.text.len())
            }
            _ => 1,
        }
    }

    /// The prompt.
    pub fn layout(&self, config: &QwenConfig) -> Layout {
        let t = &config.talker_config;
        let (pad, eos) = (config.tts_pad_token_id, config.tts_eos_token_id);
        let mut out = Rows { config, rows: Vec::new() };
        self.instruct.iter().chain(self.role).for_each(|&token| out.push(token, &[]));
        let tags = match self.language {
            Some(id) => vec![t.codec_think_id, t.codec_think_bos_id, id, t.codec_think_eos_id],
            None => vec![t.codec_nothink_id, t.codec_think_bos_id, t.codec_think_eos_id],
        };
        tags.iter().for_each(|&tag| out.push(pad, &[tag]));
        let mut speaker = None;
        match self.who {
            Who::Nobody => {}
            Who::Speaker(id) => out.push(pad, &[id]),
            Who::Cloned(_) => {
                speaker = Some(out.rows.len() / out.columns());
                out.push(pad, &[]);
            }
        }
        out.push(config.tts_bos_token_id, &[t.codec_pad_id]);
        let end: &[u32] = if self.open { &[] } else { &[eos] };
        let clip = match self.who {
            Who::Cloned(clip) => clip,
            _ => None,
        };
        let before = clip.map_or(&[][..], |clip| clip.text);
        let text: Vec<u32> = before.iter().chain(self.text).chain(end).copied().collect();
        let frames = clip.iter().flat_map(|clip| clip.codes.chunks_exact(t.num_code_groups));
        let bos = [t.codec_bos_id];
        let spoken: Vec<&[u32]> = std::iter::once(&bos[..]).chain(frames).collect();
        let mut trailing = Vec::new();
        match self.mode {
            TextMode::Whole => {
                text.iter().for_each(|&token| out.push(token, &[t.codec_pad_id]));
                spoken.iter().for_each(|codes| out.push(pad, codes));
            }
            TextMode::Streaming => {
                for (i, codes) in spoken.iter().enumerate() {
                    out.push(text.get(i).copied().unwrap_or(pad), codes);
                }
                trailing.extend(text.iter().skip(spoken.len()));
            }
        }
        Layout { rows: out.rows, speaker, trailing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qwen::named;

    fn rows(layout: &Layout, columns: usize) -> Vec<(u32, Vec<u32>)> {
        let row = |row: &[u32]| {
            let codes = row[..columns - 1].iter().copied().filter(|&code| code != NONE).collect();
            (row[columns - 1], codes)
        };
        layout.rows.chunks_exact(columns).map(row).collect()
    }

    #[test]
    fn every_position_of_a_prompt_is_where_it_was_in_training() {
        let config = named("qwen3-tts-0.6b").unwrap();
        let (pad, bos, eos) = (151_671, 151_672, 151_673);
        let ask = Ask {
            text: &[10, 11, 12],
            open: false,
            instruct: &[7],
            role: &[1, 2, 3],
            language: Some(2050),
            who: Who::Speaker(3065),
            mode: TextMode::Whole,
        };
        let head = [(7, vec![]), (1, vec![]), (2, vec![]), (3, vec![])].into_iter();
        let tags = [2154, 2156, 2050, 2157, 3065].map(|tag| (pad, vec![tag]));
        let start: Vec<_> = head.chain(tags).chain([(bos, vec![2148])]).collect();
        let whole = ask.layout(&config);
        let text = [10, 11, 12, eos].map(|token| (token, vec![2148])).into_iter();
        assert_eq!(rows(&whole, 17), [start.clone(), text.chain([(pad, vec![2149])]).collect()].concat());
        assert_eq!((whole.trailing.len(), whole.speaker), (0, None));

        let streaming = Ask { mode: TextMode::Streaming, ..ask }.layout(&config);
        assert_eq!(rows(&streaming, 17), [start, vec![(10, vec![2149])]].concat());
        assert_eq!(streaming.trailing, [11, 12, eos]);
        let open = Ask { mode: TextMode::Streaming, open: true, ..ask }.layout(&config);
        assert_eq!((open.rows, open.trailing), (streaming.rows, vec![11, 12]));

        // The language is left to the model, and nobody speaks: two positions less.
        let free = Ask { language: None, who: Who::Nobody, ..ask }.layout(&config);
        assert_eq!(free.rows.len() + 2 * 17, whole.rows.len());
    }

    #[test]
    fn a_recording_is_paired_with_its_text() {
        let config = named("qwen3-tts-0.6b").unwrap();
        let codes: Vec<u32> = (0..3 * 16).collect();
        let clip = Clip { text: &[20, 21], codes: &codes };
        let ask = Ask {
            text: &[10, 11, 12],
            open: false,
            instruct: &[],
            role: &[1, 2, 3],
            language: None,
            who: Who::Cloned(Some(clip)),
            mode: TextMode::Streaming,
        };
        let made = ask.layout(&config);
        assert_eq!(made.speaker, Some(6), "after role and tags");
        let paired: Vec<u32> = rows(&made, 17)[8..].iter().map(|(text, _)| *text).collect();
        assert_eq!((paired, &made.trailing[..]), (vec![20, 21, 10, 11], &[12, 151_673][..]));
        assert_eq!(rows(&made, 17)[9].1, codes[..16]);
        // Of a text that arrives, two tokens must be there; a short one is filled up.
        assert_eq!(ask.paired(16), 2);
        let short = Ask { text: &[10], ..ask }.layout(&config);
        let paired: Vec<u32> = rows(&short, 17)[8..].iter().map(|(text, _)| *text).collect();
        assert_eq!((paired, short.trailing.len()), (vec![20, 21, 10, 151_673], 0));
        let whole = Ask { mode: TextMode::Whole, ..ask }.layout(&config);
        assert_eq!(rows(&whole, 17).len(), 8 + 6 + 4);
        assert_eq!(Ask { mode: TextMode::Whole, ..ask }.paired(16), 1);
    }
}
