//! The recogniser's encoder against the published package, on random weights, at every stage that it shows.

mod backend;
mod recogniser;

use proptest::prelude::*;
use recogniser::{Case, error, look_aheads, rows, snr, stream};
use voce_audio::mel::MelStream;
use voce_models::fastconformer::{Attention, EncoderState, StreamShape};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Precision, Weights};
use voce_runtime::{Buffer, Exec, FrameSpan, Isa};

const STREAMING: [&str; 3] = ["stream", "stream_left70", "stream_nobias"];
const OFFLINE: [&str; 3] = ["tdt", "rnnt", "ctc"];

#[test]
fn the_front_end_agrees_with_and_without_rounded_filters() {
    let frontend =
        SafetensorsFile::open(&recogniser::folder().join("frontend/expected.safetensors")).unwrap();
    let samples = recogniser::samples("audio/b.wav");
    for (rounded, name) in [(false, "mel80/raw"), (true, "mel80/bf16_filters")] {
        let mut front_end = MelStream::new(80);
        if rounded {
            front_end = front_end.with_bf16_filters();
        }
        let mut got = Vec::new();
        front_end.process(&samples, &mut got);
        front_end.finish(&mut got);
        let want = frontend.get(name, &[]).unwrap().unwrap().values;
        assert!(error(&got, &want) < 1e-4, "{name}: {:e}", error(&got, &want));
    }
}

#[test]
fn streaming_has_the_rows_and_the_caches_of_the_package() {
    for name in STREAMING {
        let case = Case::new(name, Precision::F32);
        let mut exec = backend::exec(2);
        let encoder = case.encoder(&mut exec);
        let mel = case.mel();
        assert_eq!(mel.rows() as u64, case.json["mel_frames"].as_u64().unwrap(), "{name}");
        for r in look_aheads(&case) {
            let shape = StreamShape { look_ahead: r, language: 0 };
            let got = stream(&mut exec, &encoder, &mel, shape, &[1], |exec, i, state, made| {
                let Some(want) = case.kept(&format!("R{r}/chunk.{i}/encoder")) else { return };
                assert!(error(made, &want) < 1e-5, "{name} R{r} chunk {i}");
                caches_agree(exec, &case, state, &format!("R{r}/chunk.{i}"));
            });
            let e = error(&got, &case.expected(&format!("R{r}/encoder")));
            assert!(e < 1e-5, "{name} R{r}: {e:e}");
        }
    }
}

/// Compares keys and values of slot 1 with those that the package kept.
fn caches_agree(exec: &mut Exec, case: &Case, state: &EncoderState, at: &str) {
    let c = &case.config.encoder;
    let dim = c.dim / c.heads;
    for layer in 0..c.layers {
        for (kv, name) in ["k", "v"].into_iter().enumerate() {
            let want = case.expected(&format!("{at}/{name}.{layer}"));
            let kept = want.len() / (c.heads * dim);
            let end = state.position(1);
            let all = exec.read_cache(state.cache(), 1, end - kept..end);
            let layer_rows = all.chunks_exact(dim).skip(layer * c.heads * kept * 2).take(c.heads * kept * 2);
            let got: Vec<f32> = layer_rows.skip(kv).step_by(2).flatten().copied().collect();
            let e = error(&got, &want);
            assert!(e < 1e-5, "{at} {name} of layer {layer}: {e:e}");
        }
    }
}

#[test]
fn offline_models_agree_alone_and_beside_a_shorter_clip() {
    for name in OFFLINE {
        let case = Case::new(name, Precision::F32);
        let mut exec = backend::exec(2);
        let encoder = case.encoder(&mut exec);
        assert!(encoder.is_offline());
        let (a, b) = (case.mel(), case.mel_of("audio/b.wav"));
        let mut both = Buffer::new(a.rows() + b.rows(), a.cols());
        for r in 0..both.rows() {
            let row = if r < a.rows() { a.row(r) } else { b.row(r - a.rows()) };
            both.row_mut(r).copy_from_slice(row);
        }
        let mut state = encoder.state(2, 16);
        let shape = StreamShape { look_ahead: 0, language: 0 };
        let mut run = |mel: &Buffer, spans: &[FrameSpan]| {
            spans.iter().for_each(|s| encoder.start(&mut state, s.slot, shape));
            let (x, made) = encoder.step(&mut exec, &mut state, mel, spans);
            let first = made[0].rows;
            let total: usize = made.iter().map(|s| s.rows).sum();
            exec.fetch(x, total);
            (x.head(first).to_vec(), x.head(total)[first * x.cols()..].to_vec())
        };
        let (alone, _) = run(&a, &[FrameSpan { slot: 1, rows: a.rows(), last: true }]);
        let (first, second) = run(
            &both,
            &[
                FrameSpan { slot: 1, rows: a.rows(), last: true },
                FrameSpan { slot: 0, rows: b.rows(), last: true },
            ],
        );
        let e = error(&alone, &case.expected("encoder"));
        assert!(e < 1e-5, "{name}: {e:e}");
        assert!(alone == first, "{name}: bits depend on the neighbour");
        let e = error(&second, &case.expected("b/encoder"));
        assert!(e < 1e-5, "{name} shorter clip: {e:e}");
    }
}

#[test]
fn the_language_prompt_agrees() {
    let case = Case::new("prompt", Precision::F32);
    let mut exec = backend::exec(2);
    let encoder = case.encoder(&mut exec);
    let (mel, prompt) = (case.mel(), case.config.prompt.clone().unwrap());
    for language in ["auto", "en-US", "de-DE"] {
        let slot = match prompt.languages.iter().find(|(name, _)| name == language) {
            Some((_, slot)) => *slot,
            None => prompt.default,
        };
        let shape = StreamShape { look_ahead: 3, language: slot };
        let got = stream(&mut exec, &encoder, &mel, shape, &[2], |_, _, _, _| ());
        let e = error(&got, &case.expected(&format!("R3/{language}/prompted")));
        assert!(e < 1e-5, "{language}: {e:e}");
    }
}

#[test]
fn smaller_precisions_stay_close() {
    for (precision, bound) in [(Precision::Bf16, 36.0), (Precision::Int8, 26.0), (Precision::Int4, 14.0)] {
        for name in STREAMING {
            let case = Case::new(name, precision);
            let mut exec = backend::exec(1);
            let encoder = case.encoder(&mut exec);
            let r = look_aheads(&case)[0];
            let shape = StreamShape { look_ahead: r, language: 0 };
            let got = stream(&mut exec, &encoder, &case.mel(), shape, &[1], |_, _, _, _| ());
            let snr = snr(&got, &case.expected(&format!("R{r}/encoder")));
            assert!(snr > bound, "{name} {precision}: {snr:.1} dB");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// How many chunks come at once, how many threads there are: no bit depends on it.
    #[test]
    fn any_cut_has_the_same_bits(
        cuts in prop::collection::vec(1usize..6, 1..5), threads in 1usize..4, which in 0usize..3,
        precision in prop::sample::select(&Precision::ON_CPU[..]),
    ) {
        let case = Case::new(STREAMING[which], precision);
        let mut exec = backend::exec(1);
        let encoder = case.encoder(&mut exec);
        let r = look_aheads(&case)[0];
        let shape = StreamShape { look_ahead: r, language: 0 };
        let mel = case.mel();
        let whole = stream(&mut exec, &encoder, &mel, shape, &[1], |_, _, _, _| ());
        let mut exec = backend::exec(threads);
        let cut = stream(&mut exec, &encoder, &mel, shape, &cuts, |_, _, _, _| ());
        prop_assert!(whole == cut, "{cuts:?} on {threads} threads");
    }

    /// Streams of different chunk sizes that join and leave at random have the bits of each alone.
    #[test]
    fn neighbours_change_nothing(seed in any::<u64>(), precision in prop::sample::select(&Precision::ON_CPU[..])) {
        let case = Case::new("stream", precision);
        let mut exec = backend::exec(2);
        let encoder = case.encoder(&mut exec);
        let mel = case.mel();
        let sizes = look_aheads(&case);
        let alone: Vec<Vec<f32>> = sizes.iter().map(|&look_ahead| {
            let shape = StreamShape { look_ahead, language: 0 };
            stream(&mut exec, &encoder, &mel, shape, &[1], |_, _, _, _| ())
        }).collect();
        let mut state = encoder.state(3, 8);
        let mut random = seed | 1;
        let mut next = |n: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 33) as usize % n
        };
        // Per slot: which size runs, how far it is, what it made.
        let mut live: [Option<(usize, usize, Vec<f32>)>; 3] = [const { None }; 3];
        let mut finished = 0;
        while finished < 6 {
            let (mut spans, mut input): (Vec<FrameSpan>, Vec<f32>) = (Vec::new(), Vec::new());
            for (slot, stream) in live.iter_mut().enumerate() {
                if stream.is_none() && next(3) == 0 {
                    let size = next(sizes.len());
                    encoder.start(&mut state, slot, StreamShape { look_ahead: sizes[size], language: 0 });
                    *stream = Some((size, 0, Vec::new()));
                }
                if let Some((size, at, _)) = stream && next(2) == 0 {
                    let n = encoder.mel_rows(sizes[*size], 1, *at == 0).min(mel.rows() - *at);
                    input.extend_from_slice(rows(&mel, *at..*at + n).head(n));
                    *at += n;
                    spans.push(FrameSpan { slot, rows: n, last: *at == mel.rows() });
                }
            }
            let mut batch = Buffer::new((input.len() / mel.cols()).max(1), mel.cols());
            batch.head_mut(input.len() / mel.cols()).copy_from_slice(&input);
            let (x, made) = encoder.step(&mut exec, &mut state, &batch, &spans);
            exec.fetch(x, made.iter().map(|s| s.rows).sum());
            let mut row = 0;
            for (span, made) in spans.iter().zip(made) {
                let (size, _, got) = live[made.slot].as_mut().unwrap();
                (row..row + made.rows).for_each(|r| got.extend_from_slice(x.row(r)));
                row += made.rows;
                if span.last {
                    prop_assert!(*got == alone[*size], "slot {} of size {size}", made.slot);
                    live[made.slot] = None;
                    finished += 1;
                }
            }
        }
    }
}

#[test]
fn a_saved_stream_goes_on_elsewhere_with_the_same_bits() {
    for precision in Precision::ON_CPU {
        let case = Case::new("stream_left70", precision);
        let mut exec = backend::exec(2);
        let encoder = case.encoder(&mut exec);
        let mel = case.mel();
        let shape = StreamShape { look_ahead: 6, language: 0 };
        let mut saved = Vec::new();
        let mut made_before = 0;
        let whole = stream(&mut exec, &encoder, &mel, shape, &[1], |exec, i, state, made| {
            if i <= 5 {
                made_before += made.len();
            }
            if i == 5 {
                saved = encoder.save(exec, state, 1);
            }
        });
        let mut state = encoder.state(4, 30);
        encoder.restore(&mut exec, &mut state, 2, &saved).unwrap();
        let at = encoder.mel_rows(6, 6, true);
        let span = FrameSpan { slot: 2, rows: mel.rows() - at, last: true };
        let mut state = {
            // Rings of another length hold the same past.
            let mut longer = encoder.state(3, 100);
            let saved = encoder.save(&mut exec, &state, 2);
            encoder.restore(&mut exec, &mut longer, 2, &saved).unwrap();
            longer
        };
        let (x, made) = encoder.step(&mut exec, &mut state, &rows(&mel, at..mel.rows()), &[span]);
        exec.fetch(x, made[0].rows);
        assert!(x.head(made[0].rows) == &whole[made_before..], "{precision}");
        for cut in [0, 7, 8, 40, saved.len() / 2, saved.len() - 1] {
            assert!(encoder.restore(&mut exec, &mut state, 0, &saved[..cut]).is_err(), "cut at {cut}");
        }
        saved.push(0);
        assert!(encoder.restore(&mut exec, &mut state, 0, &saved).is_err(), "too long");
        saved[8] ^= 1;
        assert!(encoder.restore(&mut exec, &mut state, 0, &saved).is_err(), "another model");
    }
}

#[test]
fn every_instruction_set_agrees() {
    let case = Case::new("stream", Precision::F32);
    for isa in Isa::available() {
        let mut exec = Exec::with_isa(2, isa).unwrap();
        let encoder = case.encoder(&mut exec);
        let Attention::Chunked { look_aheads, .. } = &case.config.encoder.attention else {
            panic!("streams")
        };
        let r = look_aheads[0];
        let shape = StreamShape { look_ahead: r, language: 0 };
        let got = stream(&mut exec, &encoder, &case.mel(), shape, &[3], |_, _, _, _| ());
        assert!(error(&got, &case.expected(&format!("R{r}/encoder"))) < 1e-5, "{isa}");
    }
}
