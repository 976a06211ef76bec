//! A passage that does not end is spoken again in halves, and told where those fail as well.

use std::sync::Arc;

use voce_engine::{SpeakRequest, Speaker, SpeakerOptions, Voice};
use voce_models::speech::{
    Frame, Line, Made, Passage, PassageEnd, Prompt, Script, Speech, SpeechError, SpeechInfo, StepTimes,
    Synth, Vocoder, VocoderRoom, VoiceError, VoiceSource, VoiceTensor,
};
use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Span};
use voce_text::TextError;

const FRAME: usize = 4;
/// A line of more words than this babbles, and does not end.
const ABLE: usize = 2;
/// Frames of a line that does not end.
const LIMIT: usize = 12;
/// What babble sounds like; a word sounds like its number.
const BABBLE: f32 = -1.0;

/// A model whose words are numbers: one frame each.
struct Counter(SpeechInfo);

impl Counter {
    fn speaker(slots: usize) -> Speaker {
        let info = SpeechInfo {
            family: "Counter",
            sample_rate: 40,
            frame_size: FRAME,
            group: 2,
            fade_in: 0,
            temperature: 1.0,
            languages: Vec::new(),
            speakers: Vec::new(),
            stages: Vec::new(),
        };
        let options = SpeakerOptions::default().with_threads(1).with_slots(slots);
        Speaker::new("counter", Arc::new(Counter(info)), &options).unwrap()
    }
}

fn line(words: &[u32]) -> Line {
    let text: Vec<String> = words.iter().map(u32::to_string).collect();
    Line { text: text.join(" "), tokens: words.to_vec(), ..Line::default() }
}

impl Speech for Counter {
    fn info(&self) -> &SpeechInfo {
        &self.0
    }

    fn script(&self, request: &SpeakRequest) -> Result<Box<dyn Script>, SpeechError> {
        request.check()?;
        Ok(Box::new(Lines))
    }

    fn halves(&self, line: &Line) -> Option<[Line; 2]> {
        let (first, second) = line.tokens.split_at(line.tokens.len() / 2);
        (!first.is_empty()).then(|| [self::line(first), self::line(second)])
    }

    fn synth(&self, slots: usize) -> Box<dyn Synth> {
        Box::new(Slots { slots: vec![Vec::new(); slots], made: Vec::new() })
    }

    fn vocoder(&self, _: VocoderRoom) -> Box<dyn Vocoder> {
        Box::new(Tones(Vec::new()))
    }

    fn count_tokens(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn can_clone(&self, _: Option<&str>) -> Result<(), VoiceError> {
        Err(VoiceError::NoEncoder)
    }

    fn voice(&self, _: &mut Exec, _: VoiceSource<'_>) -> Result<Voice, VoiceError> {
        Err(VoiceError::NoEncoder)
    }

    fn fits(&self, _: &Voice) -> bool {
        false
    }

    fn export(&self, _: &mut Exec, _: &Voice) -> Result<Vec<VoiceTensor>, VoiceError> {
        Ok(Vec::new())
    }
}

/// A passage of each line of text.
struct Lines;

impl Script for Lines {
    fn whole(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        for words in text.lines() {
            let words: Vec<u32> = words.split_whitespace().map(|word| word.parse().unwrap()).collect();
            out.push(Passage::New(line(&words)));
        }
        Ok(())
    }

    fn push(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        self.whole(text, out)
    }

    fn finish(&mut self, _: &mut Vec<Passage>) -> Result<(), TextError> {
        Ok(())
    }
}

/// The frames that are left of each slot, the last first; the number of a word that no half can say is 99.
struct Slots {
    slots: Vec<Vec<Made>>,
    made: Vec<Made>,
}

impl Synth for Slots {
    fn reserve(&mut self, _: &mut Exec) -> Result<Reserved, RuntimeError> {
        Ok(Reserved::default())
    }

    fn begin(&mut self, _: &mut Exec, prompts: &[Prompt]) -> Result<(), RuntimeError> {
        for prompt in prompts {
            let words = &prompt.line.tokens;
            let ends = words.len() <= ABLE && !words.contains(&99);
            let values: Vec<f32> = match ends {
                true => words.iter().map(|word| *word as f32).collect(),
                false => vec![BABBLE; prompt.limit.unwrap_or(LIMIT)],
            };
            let frame = |value: &f32| Made { frame: Some(Frame::Latent(vec![*value])), ..Made::default() };
            let mut frames: Vec<Made> = values.iter().map(frame).collect();
            frames.last_mut().unwrap().end = Some(if ends { PassageEnd::Spoken } else { PassageEnd::Limit });
            frames.reverse();
            self.slots[prompt.slot] = frames;
        }
        Ok(())
    }

    fn feed(&mut self, _: usize, _: Line) {}

    fn wants_text(&self, _: usize) -> bool {
        false
    }

    fn step(&mut self, _: &mut Exec, live: &[usize]) {
        self.made = live.iter().map(|&slot| self.slots[slot].pop().unwrap()).collect();
    }

    fn fetch(&mut self, _: &mut Exec, _: &[usize], out: &mut Vec<Made>) -> StepTimes {
        out.append(&mut self.made);
        Vec::new()
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot].clear();
    }

    fn warm(&mut self, _: &mut Exec) {}
}

/// Every sample of a frame is its value.
struct Tones(Vec<f32>);

impl Vocoder for Tones {
    fn reserve(&mut self, _: &mut Exec) -> Result<Reserved, RuntimeError> {
        Ok(Reserved::default())
    }

    fn start(&mut self, _: &mut Exec, _: usize, _: Option<&Voice>) {}

    fn step(&mut self, _: &mut Exec, _: &[Span], frames: &[Frame]) {
        self.0.clear();
        for frame in frames {
            let Frame::Latent(values) = frame else { panic!("{frame:?}") };
            self.0.extend([values[0]; FRAME]);
        }
    }

    fn fetch(&mut self, _: &mut Exec) -> &[f32] {
        &self.0
    }

    fn warm(&mut self, _: &mut Exec) {}
}

/// A value for each frame that was heard, babble included, and the numbers of passages, of those spoken again and of those
/// that did not end.
fn said(slots: usize, text: &str, request: SpeakRequest) -> (Vec<i32>, [usize; 3]) {
    let speaker = Counter::speaker(slots);
    let mut stream = speaker.speak(text, &request).unwrap();
    let mut samples = Vec::new();
    for chunk in stream.by_ref() {
        samples.extend(chunk.unwrap().samples);
    }
    let frames = samples.chunks(FRAME).map(|frame| frame[0] as i32).collect();
    let stats = stream.stats();
    assert_eq!(stats.samples, samples.len());
    (frames, [stats.passages, stats.respoken, stats.unended])
}

fn babble(frames: usize) -> Vec<i32> {
    vec![BABBLE as i32; frames]
}

#[test]
fn what_did_not_end_is_spoken_again_in_halves_and_never_heard_where_passages_are_whole() {
    let text = "1 2\n3 4 5 6\n7\n8 9 10 11 12 13 14 15\n16";
    let all: Vec<i32> = (1..=16).collect();
    for slots in [1, 2, 8] {
        let whole = SpeakRequest::default().with_whole_passages(true);
        assert_eq!(said(slots, text, whole), (all.clone(), [5, 2, 0]), "{slots}");
        // A reader who has heard it hears the halves after it, and the rest in its order.
        let heard = [vec![1, 2], babble(LIMIT), vec![3, 4, 5, 6, 7], babble(LIMIT)];
        let heard =
            [heard.concat(), babble(LIMIT), vec![8, 9, 10, 11], babble(LIMIT), vec![12, 13, 14, 15, 16]];
        assert_eq!(said(slots, text, SpeakRequest::default()), (heard.concat(), [5, 2, 0]), "{slots}");
    }
}

#[test]
fn what_fails_in_quarters_as_well_is_heard_and_told() {
    let whole = || SpeakRequest::default().with_whole_passages(true);
    let heard = |parts: &[Vec<i32>]| parts.concat();
    assert_eq!(
        said(4, "1 2 99 3\n4", whole()),
        (heard(&[vec![1, 2], babble(LIMIT), vec![3, 4]]), [2, 1, 1]),
        "a word that cannot be said costs no other"
    );
    // Nine words are quarters of two and of three, which is one too many, and no more halves are made of it.
    let (frames, counts) = said(4, "1 2 3 4 5 6 7 8 9", whole());
    assert_eq!((frames, counts), (heard(&[(1..=6).collect(), babble(LIMIT)]), [1, 1, 1]));
    // One word has no halves.
    assert_eq!(said(1, "99\n1", whole()), (heard(&[babble(LIMIT), vec![1]]), [2, 0, 1]));
}

#[test]
fn a_limit_of_the_callers_is_no_failure() {
    let limited = SpeakRequest::default().with_max_frames(Some(5)).with_whole_passages(true);
    assert_eq!(said(2, "1 2 3 4", limited), (babble(5), [1, 0, 1]));
}
