//! Kyutai's models on a device: a conversation and a passage as the published package has them, in company. The CUDA
//! kernels are emulated on machines without a GPU; `VOCE_TEST_DEVICE=cuda` runs the same on one.

mod backend;
mod kyutai;

use std::sync::Arc;

use kyutai::Case;
use voce_models::dialogue::{Dialogue as _, TalkRequest};
use voce_models::kyutai::moshi::{Moshi, MoshiParts};
use voce_models::kyutai::tts::{KyutaiTts, TtsParts};
use voce_models::speech::{Frame, Line, Passage, Prompt, SpeakRequest, Speech as _, VoiceSource};
use voce_nn::weights::SafetensorsFile;
use voce_text::Tokenizer;

/// Frames that are compared: the kernels are emulated slowly.
const FRAMES: usize = 4;

#[test]
fn a_conversation_is_the_packages() {
    backend::on_device();
    let mut exec = backend::exec(1);
    let case = Case::open("talk");
    let c = case.config.clone();
    let mimi = case.mimi(c.dep_q.max(c.given()));
    let tokenizer = Tokenizer::from_file(case.dir.join("tokenizer.model")).unwrap();
    let parts = MoshiParts { config: c, tokenizer, mimi, formats: case.formats };
    let model = Moshi::load(&mut exec, &case.loader, parts).unwrap().unwrap();
    let (size, pcm) = (model.info().frame_size, case.dump("pcm"));
    let [_, columns, frames] = case.shape("frames")[..] else { panic!("frames") };
    let [_, length] = case.shape("pcm")[..] else { panic!("samples") };
    let want = case.tokens("frames");
    let mut partner = model.partner(2);
    partner.reserve(&mut exec).unwrap();
    let greedy = TalkRequest::default().with_temperature(Some(0.0));
    (0..2).for_each(|slot| partner.start(&mut exec, slot, &greedy));
    for t in 0..FRAMES {
        let samples: Vec<f32> = (0..2).flat_map(|s| &pcm[s * length + t * size..][..size]).copied().collect();
        partner.step(&mut exec, &[0, 1], &samples);
        let mut out = Vec::new();
        partner.fetch(&mut exec, &[0, 1], &mut out);
        for (s, uttered) in out.iter().enumerate() {
            let column: Vec<u32> = (0..columns).map(|k| want[(s * columns + k) * frames + t]).collect();
            assert_eq!(uttered.tokens, column, "stream {s}, frame {t}");
            assert_eq!(uttered.samples.len(), size);
        }
    }
}

#[test]
fn a_passage_is_the_packages() {
    backend::on_device();
    let mut exec = backend::exec(1);
    let case = Case::open("say");
    let config = case.config.clone();
    let tokenizer = Tokenizer::from_file(case.dir.join("tokenizer.model")).unwrap();
    let mimi = case.mimi(config.n_q);
    let parts = TtsParts { config, tokenizer, mimi, formats: case.formats, languages: Vec::new() };
    let model = KyutaiTts::load(&mut exec, &case.loader, parts).unwrap().unwrap();
    let file = SafetensorsFile::open(&case.dir.join("voices/anna.wav.abcd@7.safetensors")).unwrap();
    let voice = model.voice(&mut exec, VoiceSource::Tensors(&file)).unwrap();
    let trace = case.json("trace.json");
    let request = SpeakRequest::default().with_greedy(true).with_guidance(Some(2.0));
    let mut passages = Vec::new();
    model.script(&request).unwrap().whole(trace[0]["script"][0].as_str().unwrap(), &mut passages).unwrap();
    let Some(Passage::New(line)) = passages.pop() else { panic!("one line") };
    let mut synth = model.synth(2);
    synth.reserve(&mut exec).unwrap();
    let prompt = |slot| Prompt {
        slot,
        line: Line { open: false, ..line.clone() },
        voice: Some(voice.clone()),
        request: Arc::new(request.clone()),
        number: 0,
        limit: None,
    };
    // The second joins when the first has steps of text behind it: both look at one source.
    synth.begin(&mut exec, &[prompt(1)]).unwrap();
    let mut codes: [Vec<Vec<u32>>; 2] = Default::default();
    let mut live = vec![1];
    let mut round = 0;
    while codes[0].len() < FRAMES {
        if round == 3 {
            synth.begin(&mut exec, &[prompt(0)]).unwrap();
            live = vec![0, 1];
        }
        synth.step(&mut exec, &live);
        let mut out = Vec::new();
        synth.fetch(&mut exec, &live, &mut out);
        for (&slot, made) in live.iter().zip(out) {
            codes[slot].extend(made.frame.and_then(Frame::codes));
        }
        round += 1;
    }
    let [books, frames] = case.shape("frames0")[..] else { panic!("frames") };
    let want = case.tokens("frames0");
    for codes in &codes {
        for (t, frame) in codes.iter().take(frames).enumerate() {
            let column: Vec<u32> = (0..books).map(|k| want[k * frames + t]).collect();
            assert_eq!(*frame, column, "frame {t}");
        }
    }
}
