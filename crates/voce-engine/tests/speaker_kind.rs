//! What the kind allows and Pocket TTS does not use: text for a slot that already speaks, steps without a frame, codes,
//! words with times, speakers of the model's own, instructions and languages. A small model that spells has all of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use voce_engine::{EngineError, SpeakRequest, Speaker, SpeakerOptions, SpokenWord, Voice};
use voce_models::speech::{
    Frame, Line, Made, Passage, PassageEnd, Prompt, Script, Speech, SpeechError, SpeechInfo, StepTimes,
    Synth, Vocoder, VocoderRoom, VoiceError, VoiceSource, VoiceTensor,
};
use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Span};
use voce_text::TextError;

const FRAME: usize = 4;
const RATE: usize = 40;

/// A model whose every word takes two steps: one to think, one to say its length in a frame.
struct Speller(SpeechInfo);

impl Speller {
    fn speaker(slots: usize) -> Speaker {
        let info = SpeechInfo {
            family: "Speller",
            sample_rate: RATE,
            frame_size: FRAME,
            group: 2,
            fade_in: 0,
            temperature: 1.0,
            languages: vec!["english".into(), "french".into()],
            speakers: vec!["bee".into()],
            stages: Vec::new(),
        };
        let options = SpeakerOptions::default().with_threads(1).with_slots(slots);
        Speaker::new("speller", Arc::new(Speller(info)), &options).unwrap()
    }
}

impl Speech for Speller {
    fn info(&self) -> &SpeechInfo {
        &self.0
    }

    fn script(&self, request: &SpeakRequest) -> Result<Box<dyn Script>, SpeechError> {
        request.check()?;
        match request.language.as_deref() {
            None | Some("english" | "french") => Ok(Box::new(Words { begun: false, pending: String::new() })),
            Some(other) => {
                Err(SpeechError::Language { asked: other.to_owned(), has: self.0.languages.clone() })
            }
        }
    }

    fn synth(&self, slots: usize) -> Box<dyn Synth> {
        Box::new(Slots { slots: (0..slots).map(|_| None).collect(), made: Vec::new() })
    }

    fn vocoder(&self, room: VocoderRoom) -> Box<dyn Vocoder> {
        Box::new(Tones { started: vec![0; room.slots], audio: Vec::new() })
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

/// A line of the first word; every other goes to the slot that speaks it. A `|` is a pause of 100 ms.
struct Words {
    begun: bool,
    pending: String,
}

impl Words {
    fn word(&mut self, word: &str, out: &mut Vec<Passage>) {
        if word == "|" {
            self.begun = false;
            return out.push(Passage::Pause(Duration::from_millis(100)));
        }
        let line = Line { text: word.into(), tokens: vec![word.len() as u32], open: true, ..Line::default() };
        let begun = std::mem::replace(&mut self.begun, true);
        out.push(if begun { Passage::More(line) } else { Passage::New(line) });
    }
}

impl Script for Words {
    fn whole(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        self.push(text, out)?;
        self.finish(out)
    }

    fn push(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError> {
        self.pending.push_str(text);
        while let Some((word, rest)) = self.pending.split_once(' ') {
            let (word, rest) = (word.to_owned(), rest.to_owned());
            if !word.is_empty() {
                self.word(&word, out);
            }
            self.pending = rest;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<Passage>) -> Result<(), TextError> {
        let word = std::mem::take(&mut self.pending);
        if !word.is_empty() {
            self.word(&word, out);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Slot {
    words: VecDeque<String>,
    open: bool,
    thinks: bool,
    frames: usize,
}

struct Slots {
    slots: Vec<Option<Slot>>,
    made: Vec<Made>,
}

impl Synth for Slots {
    fn reserve(&mut self, _: &mut Exec) -> Result<Reserved, RuntimeError> {
        Ok(Reserved::default())
    }

    fn begin(&mut self, _: &mut Exec, prompts: &[Prompt]) -> Result<(), RuntimeError> {
        for p in prompts {
            assert!(self.slots[p.slot].is_none(), "the slot is taken");
            self.slots[p.slot] = Some(Slot::default());
            self.feed(p.slot, p.line.clone());
        }
        Ok(())
    }

    fn feed(&mut self, slot: usize, line: Line) {
        let slot = self.slots[slot].as_mut().expect("text for a slot that speaks");
        slot.words.extend((!line.text.is_empty()).then_some(line.text));
        slot.open = line.open;
    }

    fn wants_text(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|s| s.open && s.words.is_empty())
    }

    fn step(&mut self, _: &mut Exec, live: &[usize]) {
        for &i in live {
            let s = self.slots[i].as_mut().expect("live");
            s.thinks = !s.thinks;
            if s.thinks {
                let end = (s.words.is_empty() && !s.open).then_some(PassageEnd::Spoken);
                self.made.push(Made { end, ..Made::default() });
                continue;
            }
            let text = s.words.pop_front().expect("a starved slot is not stepped");
            let at = |frames: usize| (frames * FRAME) as f64 / RATE as f64;
            let (start, end) = (at(s.frames), at(s.frames + 1));
            s.frames += 1;
            let frame = Some(Frame::Codes(vec![text.len() as u32]));
            self.made.push(Made { frame, words: vec![SpokenWord { text, start, end }], end: None });
        }
    }

    fn fetch(&mut self, _: &mut Exec, _: &[usize], out: &mut Vec<Made>) -> StepTimes {
        out.append(&mut self.made);
        Vec::new()
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn warm(&mut self, _: &mut Exec) {}
}

/// A frame of a code is that code, over and over, less a tenth for each frame of the passage before it.
struct Tones {
    started: Vec<usize>,
    audio: Vec<f32>,
}

impl Vocoder for Tones {
    fn reserve(&mut self, _: &mut Exec) -> Result<Reserved, RuntimeError> {
        Ok(Reserved::default())
    }

    fn start(&mut self, _: &mut Exec, slot: usize, _: Option<&Voice>) {
        self.started[slot] = 0;
    }

    fn step(&mut self, _: &mut Exec, spans: &[Span], frames: &[Frame]) {
        self.audio.clear();
        let mut frames = frames.iter();
        for span in spans {
            for frame in frames.by_ref().take(span.rows) {
                let Frame::Codes(codes) = frame else { panic!("{frame:?}") };
                let value = codes[0] as f32 - self.started[span.slot] as f32 / 10.0;
                self.audio.extend([value; FRAME]);
                self.started[span.slot] += 1;
            }
        }
    }

    fn fetch(&mut self, _: &mut Exec) -> &[f32] {
        &self.audio
    }

    fn warm(&mut self, _: &mut Exec) {}
}

type Said = (Vec<f32>, Vec<SpokenWord>);

fn all(chunks: impl Iterator<Item = Result<voce_engine::AudioChunk, EngineError>>) -> Said {
    let (mut audio, mut words) = (Vec::new(), Vec::new());
    for chunk in chunks {
        let chunk = chunk.unwrap();
        audio.extend(chunk.samples);
        words.extend(chunk.words);
    }
    (audio, words)
}

fn frames(values: &[f32]) -> Vec<f32> {
    values.iter().flat_map(|v| [*v; FRAME]).collect()
}

#[test]
fn words_go_to_the_slot_that_speaks_and_come_back_with_their_times() {
    let speaker = Speller::speaker(2);
    let request = SpeakRequest::default().with_voice(voce_engine::VoiceChoice::Nobody);
    let (audio, words) = all(speaker.speak("one three | fifteen a", &request).unwrap());
    // Two passages, each with its own count, and 100 ms between them.
    assert_eq!(audio, frames(&[3.0, 4.9, 0.0, 7.0, 0.9]));
    let told: Vec<(&str, f64, f64)> = words.iter().map(|w| (w.text.as_str(), w.start, w.end)).collect();
    let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
    let want = [("one", 0.0, 0.1), ("three", 0.1, 0.2), ("fifteen", 0.3, 0.4), ("a", 0.4, 0.5)];
    assert!(
        told.len() == 4 && told.iter().zip(want).all(|(g, w)| g.0 == w.0 && near(g.1, w.1) && near(g.2, w.2)),
        "{told:?}"
    );
}

#[test]
fn text_that_arrives_slowly_starves_its_slot_and_nobody_else() {
    let speaker = Speller::speaker(2);
    let request = SpeakRequest::default().with_voice(voce_engine::VoiceChoice::Nobody);
    let (mut text, mut slow) = speaker.speak_live(&request).unwrap();
    text.push("first ").unwrap();
    // Its frame comes although more text may follow.
    assert_eq!(slow.next().unwrap().unwrap().samples, frames(&[5.0]));
    // Others speak meanwhile, through the other slot.
    for _ in 0..3 {
        assert_eq!(all(speaker.speak("two words", &request).unwrap()).0, frames(&[3.0, 4.9]));
    }
    text.push("then ").unwrap();
    text.push("last").unwrap();
    text.finish().unwrap();
    assert_eq!(all(slow).0, frames(&[3.9, 3.8]));
}

#[test]
fn every_word_that_came_is_heard_before_the_next_one_comes() {
    let speaker = Speller::speaker(1);
    let request = SpeakRequest::default().with_voice(voce_engine::VoiceChoice::Nobody);
    let (mut text, mut heard) = speaker.speak_live(&request).unwrap();
    // From the third frame on two are decoded together, and here there is one at a time.
    for i in 0..5 {
        text.push("word ").unwrap();
        assert_eq!(heard.next().unwrap().unwrap().samples, frames(&[4.0 - i as f32 / 10.0]), "frame {i}");
    }
    text.finish().unwrap();
    assert!(heard.next().is_none());
}

#[test]
fn what_a_model_does_not_have_is_refused_by_name() {
    let speaker = Speller::speaker(1);
    let ask = |request: SpeakRequest| speaker.speak("word", &request).map(drop).unwrap_err();
    let request = SpeakRequest::default().with_voice(voce_engine::VoiceChoice::Nobody);
    let told = ask(request.clone().with_language(Some("klingon".into())));
    assert!(told.to_string().contains("klingon") && told.to_string().contains("english, french"), "{told}");
    assert_eq!(told.code(), "bad_request");
    assert!(matches!(ask(SpeakRequest::voice("wasp")), EngineError::UnknownVoice { .. }));
    assert!(matches!(ask(SpeakRequest::voice("bee")), EngineError::Voice { .. }), "its own speaker is asked");
    assert_eq!(speaker.voice_names(), ["bee"]);
    let told = speaker.clone_samples(&[0.1; 100], None).map(drop).unwrap_err();
    assert!(told.to_string().contains("speller cannot clone a voice: use one of its own (bee)"), "{told}");
    assert!(told.code() == "no_cloning" && !speaker.clones(), "{told}");
}
