//! The speech tokenizer and the speaker encoder of Qwen3-TTS on a device against the published package: the CUDA kernels,
//! emulated on machines without a GPU. `VOCE_TEST_DEVICE=cuda` runs the same on one.

mod backend;
mod qwen_codec;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qwen_codec::{Case, check, snr};
use voce_models::qwen::codec::CodecCodes;
use voce_models::speech::{Frame, SlotVocoder, Vocoder as _, VocoderRoom};
use voce_nn::Precision;
use voce_runtime::Span;

/// Sums in another order than the CPU's, f32 all the same.
const TOLERANCE: f32 = 1e-4;

/// One test at a time: they share a device, whose memory one of them counts.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    backend::on_device();
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_decoder_agrees_whole_in_pieces_and_in_company() {
    let _turn = turn();
    for (case_name, precision) in
        [("custom_1b7", Precision::F32), ("design_1b7", Precision::Bf16), ("base_0b6", Precision::F32)]
    {
        let case = Case::new(case_name, precision);
        let mut exec = backend::exec(1);
        let decoder = case.decoder();
        let (codes, books, frame) = (case.codes("dec/codes"), decoder.codebooks(), decoder.frame_size());
        let want = case.dump("dec/audio");
        let close = |what: &str, got: &[f32], want: &[f32]| match precision {
            Precision::F32 => check(&format!("{case_name} {what}"), got, want, TOLERANCE),
            _ => {
                let db = snr(got, want);
                assert!(db > 25.0, "{case_name} {what}: {db:.1} dB");
            }
        };
        let rows = 5;
        let mut state = decoder.state(1, rows);
        let spans = [Span { slot: 0, rows }];
        let whole = decoder.decode(&mut exec, &mut state, &spans, &codes[..rows * books]).to_vec();
        close("whole", &whole, &want[..rows * frame]);
        // Two streams, the second of which begins two frames later and is the first one's beginning again.
        let (mut state, mut got) = (decoder.state(3, 4), [Vec::new(), Vec::new()]);
        for t in 0..rows {
            let mut spans = vec![Span { slot: 2, rows: 1 }];
            let mut now = codes[t * books..][..books].to_vec();
            if t >= 2 {
                spans.push(Span { slot: 0, rows: 1 });
                now.extend_from_slice(&codes[(t - 2) * books..][..books]);
            }
            let audio = decoder.decode(&mut exec, &mut state, &spans, &now);
            got[0].extend_from_slice(&audio[..frame]);
            got[1].extend_from_slice(&audio[frame..]);
        }
        close("in pieces", &got[0], &whole);
        close("in company", &got[1], &whole[..(rows - 2) * frame]);
        // A slot that goes on from frames that nobody heard.
        decoder.prime(&mut exec, &mut state, 1, &codes[..3 * books]);
        let next = &codes[3 * books..5 * books];
        let audio = decoder.decode(&mut exec, &mut state, &[Span { slot: 1, rows: 2 }], next);
        close("primed", audio, &whole[3 * frame..]);
        exec.status().unwrap();
    }
}

#[test]
fn a_vocoder_reserves_what_its_steps_need() {
    let _turn = turn();
    let case = Case::f32("custom_0b6");
    let mut exec = backend::exec(1);
    let decoder = Arc::new(case.decoder());
    let (codes, books) = (case.codes("dec/codes"), decoder.codebooks());
    let room = VocoderRoom { slots: 2, frames: 3, slot_frames: 2 };
    let mut vocoder = SlotVocoder::new(CodecCodes(decoder.clone()), room);
    assert_eq!(vocoder.reserve(&mut exec).unwrap().missing, 0);
    let held = exec.held_memory();
    vocoder.warm(&mut exec);
    vocoder.start(&mut exec, 1, None);
    let frames: Vec<Frame> = codes.chunks(books).take(3).map(|c| Frame::Codes(c.to_vec())).collect();
    let mut got = Vec::new();
    for frames in [&frames[..2], &frames[2..]] {
        vocoder.step(&mut exec, &[Span { slot: 1, rows: frames.len() }], frames);
        got.extend_from_slice(vocoder.fetch(&mut exec));
    }
    check("vocoder", &got, &case.dump("dec/audio")[..3 * decoder.frame_size()], TOLERANCE);
    assert_eq!(exec.held_memory(), held, "steps ask for no more memory");
}

#[test]
fn the_encoders_agree() {
    let _turn = turn();
    let case = Case::f32("base_0b6");
    let mut exec = backend::exec(1);
    let (encoder, samples) = (case.encoder(), case.reference());
    // Three frames and a part of one; a short last frame changes nothing before it but the frame it is in.
    let n = 3 * encoder.frame_size() + 100;
    let codes = encoder.encode(&mut exec, &samples[..n]).unwrap();
    let want = case.codes("enc/codes");
    let got: Vec<u32> = (0..3).flat_map(|t| codes.iter().map(move |book| book[t])).collect();
    assert_eq!(codes[0].len(), 4);
    assert_eq!(got[..2 * encoder.codebooks()], want[..2 * encoder.codebooks()]);
    let got = case.speaker().embed(&mut exec, &samples).unwrap();
    check("embedding", &got, &case.dump("speaker/embedding"), TOLERANCE);
    exec.status().unwrap();
}
