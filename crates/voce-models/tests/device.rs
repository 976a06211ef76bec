//! Models on a device against the published packages: the CUDA kernels, emulated on machines without a GPU.
//!
//! `VOCE_TEST_DEVICE=cuda` runs the same on a GPU. What is compared stage by stage on the CPU elsewhere is compared in
//! fewer places here: the emulated device is slow.

mod backend;
mod fixture;
mod recogniser;

use fixture::check;
use recogniser::{error, look_aheads, rows, snr, stream};
use voce_audio::mel::{
    DEVIATION_GUARD, LOG_GUARD, MEL_FFT, MEL_HOP, MelStream, MelTables, MelWindows, normalise_per_feature,
};
use voce_models::fastconformer::StreamShape;
use voce_models::mimi::{MimiDecoder, Stage};
use voce_models::pocket::{Voice, random_weights};
use voce_models::transducer::{Decoder, Hypothesis, Method, RepeatGuard, Search, SearchOptions, SearchState};
use voce_nn::{Formats, Loader, Precision};
use voce_runtime::{Buffer, Exec, FrameSpan, Isa, MelFilters, MelOp, MelSpan, Span, Staging};

/// Sums in another order than the CPU's, f32 all the same.
const TOLERANCE: f32 = 5e-5;

#[test]
fn streaming_recognisers_agree_and_go_on_from_a_snapshot() {
    backend::on_device();
    let case = recogniser::Case::new("stream", Precision::F32);
    let mut exec = backend::exec(1);
    let encoder = case.encoder(&mut exec);
    let mel = case.mel();
    let r = look_aheads(&case)[0];
    let shape = StreamShape { look_ahead: r, language: 0 };
    let (mut saved, mut before) = (Vec::new(), 0);
    let got = stream(&mut exec, &encoder, &mel, shape, &[1], |exec, i, state, made| {
        if i <= 2 {
            before += made.len();
        }
        if i == 2 {
            saved = encoder.save(exec, state, 1);
        }
    });
    let e = error(&got, &case.expected(&format!("R{r}/encoder")));
    assert!(e < TOLERANCE, "{e:e}");
    let mut state = encoder.state(3, 40);
    encoder.restore(&mut exec, &mut state, 2, &saved).unwrap();
    let at = encoder.mel_rows(r, 3, true);
    let span = FrameSpan { slot: 2, rows: mel.rows() - at, last: true };
    let (x, made) = encoder.step(&mut exec, &mut state, &rows(&mel, at..mel.rows()), &[span]);
    exec.fetch(x, made[0].rows);
    let e = error(x.head(made[0].rows), &got[before..]);
    assert!(e < TOLERANCE, "after a snapshot: {e:e}");
    exec.status().unwrap();
}

#[test]
fn spectrograms_are_those_of_the_host() {
    backend::on_device();
    let mut exec = backend::exec(1);
    // Speech, then silence, then noise that is hardly there.
    let mut wave = recogniser::samples("audio/b.wav");
    wave.truncate(9_000);
    wave.extend([0.0; 1_700]);
    wave.extend((0..1_111).map(|i| ((i * 7919) % 1000) as f32 * 1e-7));
    for (bins, rounded) in [(80, false), (128, true)] {
        let mut tables = MelTables::new(bins);
        if rounded {
            tables = tables.with_bf16_filters();
        }
        let filters = MelFilters::new(tables.window().to_vec(), MEL_HOP, MEL_FFT, LOG_GUARD, tables.bands());
        let mut host = MelStream::with_tables(tables);
        let mut want = Vec::new();
        host.process(&wave, &mut want);
        host.finish(&mut want);
        // However the samples come, the windows are the same.
        let (mut windows, mut values, mut rows) = (MelWindows::default(), Vec::new(), 0);
        for piece in wave.chunks(997) {
            rows += windows.process(piece, &mut values);
        }
        rows += windows.finish(&mut values);
        assert_eq!((rows * bins, values.len()), (want.len(), filters.samples(rows)));
        let mut staging = Staging::default();
        exec.stage(&mut staging, values.len()).copy_from_slice(&values);
        let mut mel = Buffer::new(rows, bins);
        let spans = [MelSpan { rows, to: 0 }];
        exec.mel(&MelOp { filters: &filters, samples: &staging, spans: &spans }, &mut mel);
        exec.fetch(&mut mel, rows);
        let worst = |got: &Buffer, want: &[f32]| {
            got.head(rows).iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        let e = worst(&mel, &want);
        assert!(e < 1e-4, "{bins}: {e:e}");
        let span = FrameSpan { slot: 0, rows, last: true };
        exec.standardise(&mut mel, &[span], DEVIATION_GUARD);
        exec.fetch(&mut mel, rows);
        normalise_per_feature(&mut want, bins);
        let e = worst(&mel, &want);
        assert!(e < 1e-4, "{bins}, normalised: {e:e}");
    }
    exec.status().unwrap();
}

#[test]
fn offline_recognisers_agree_beside_a_shorter_clip() {
    backend::on_device();
    let case = recogniser::Case::new("tdt", Precision::F32);
    let mut exec = backend::exec(1);
    let encoder = case.encoder(&mut exec);
    let (a, b) = (case.mel(), case.mel_of("audio/b.wav"));
    let mut both = Buffer::new(a.rows() + b.rows(), a.cols());
    for r in 0..both.rows() {
        let row = if r < a.rows() { a.row(r) } else { b.row(r - a.rows()) };
        both.row_mut(r).copy_from_slice(row);
    }
    let mut state = encoder.state(2, 16);
    let shape = StreamShape { look_ahead: 0, language: 0 };
    let spans = [(1, a.rows()), (0, b.rows())].map(|(slot, rows)| FrameSpan { slot, rows, last: true });
    spans.iter().for_each(|s| encoder.start(&mut state, s.slot, shape));
    let (x, made) = encoder.step(&mut exec, &mut state, &both, &spans);
    exec.fetch(x, made.iter().map(|s| s.rows).sum());
    let e = error(x.head(made[0].rows), &case.expected("encoder"));
    assert!(e < TOLERANCE, "{e:e}");
    exec.status().unwrap();
}

#[test]
fn smaller_formats_stay_close() {
    backend::on_device();
    for (precision, least) in [(Precision::Bf16, 25.0), (Precision::Int8, 20.0)] {
        let case = recogniser::Case::new("stream", precision);
        let mut exec = backend::exec(1);
        let encoder = case.encoder(&mut exec);
        let r = look_aheads(&case)[0];
        let shape = StreamShape { look_ahead: r, language: 0 };
        let got = stream(&mut exec, &encoder, &case.mel(), shape, &[4], |_, _, _, _| ());
        let db = snr(&got, &case.expected(&format!("R{r}/encoder")));
        assert!(db > least, "{precision}: {db:.1} dB");
        exec.status().unwrap();
    }
}

#[test]
fn searches_find_what_they_find_on_a_cpu() {
    backend::on_device();
    for name in ["stream", "tdt", "ctc"] {
        let case = recogniser::Case::new(name, Precision::F32);
        let host = Loader::new(case.loader.source());
        let decoders = [
            Decoder::load(&case.loader, &case.config, case.formats).unwrap(),
            Decoder::load(&host, &case.config, case.formats).unwrap(),
        ];
        let width = decoders[0].frame_width();
        let file = std::fs::read_to_string(recogniser::folder().join(name).join("search.json")).unwrap();
        let file: serde_json::Value = serde_json::from_str(&file).unwrap();
        let frames = case.expected(file["input"].as_str().unwrap());
        let rows = (frames.len() / width).min(20);
        for (method, beam) in [(Method::Greedy, 1), (Method::Malsd, 3)] {
            let options = SearchOptions { method, beam, ..SearchOptions::default() };
            let run = |decoder: &Decoder, exec: &mut Exec| {
                let mut search = Search::new(decoder, 2);
                let mut states = [(); 2].map(|()| SearchState::new(decoder, &options).unwrap());
                // The second stream is behind the first and takes its frames in other cuts.
                for (a, b) in [(0..7, 0..2), (7..rows, 2..9), (rows..rows, 9..rows)] {
                    let spans = [a.len(), b.len()].map(|rows| Span { slot: 0, rows });
                    let mut part = Buffer::new(a.len() + b.len(), width);
                    for (to, from) in a.chain(b).enumerate() {
                        part.row_mut(to).copy_from_slice(&frames[from * width..(from + 1) * width]);
                    }
                    search.step(exec, decoder, &mut part, &spans, &mut states);
                }
                search.flush(exec, decoder, &mut states);
                exec.status().unwrap();
                states.map(|s| s.finish())
            };
            let got = run(&decoders[0], &mut backend::exec(1));
            let want = run(&decoders[1], &mut Exec::new(1).unwrap());
            for (got, want) in got.iter().zip(&want) {
                let labels = |h: &Hypothesis| h.tokens.iter().map(|t| (t.id, t.frame)).collect::<Vec<_>>();
                assert_eq!(labels(&got[0]), labels(&want[0]), "{name} {method:?}");
                for (a, b) in got[0].tokens.iter().zip(&want[0].tokens) {
                    assert!((a.log_prob - b.log_prob).abs() < 1e-3, "{name} {method:?}");
                }
            }
            assert!(!want[0][0].tokens.is_empty(), "{name}: nothing to find");
        }
    }
}

/// So many that several threads go on with them; the host does, as a device's guard takes no cycles as long as this.
#[test]
fn many_beams_find_what_each_finds_alone() {
    backend::on_device();
    const STREAMS: usize = 260;
    const KINDS: usize = 5;
    let case = recogniser::Case::new("stream", Precision::F32);
    let host = Loader::new(case.loader.source());
    let on_device = Decoder::load(&case.loader, &case.config, case.formats).unwrap();
    let on_host = Decoder::load(&host, &case.config, case.formats).unwrap();
    let width = on_host.frame_width();
    let file = std::fs::read_to_string(recogniser::folder().join("stream").join("search.json")).unwrap();
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    let frames = case.expected(file["input"].as_str().unwrap());
    let repeat_guard = Some(RepeatGuard { cycle: 20, repeats: 1000 });
    let options = SearchOptions { repeat_guard, ..SearchOptions::with_beam(2) };
    // Stream i hears the frames from i % KINDS on, one more of them in the second step than in the first.
    let run = |decoder: &Decoder, exec: &mut Exec, streams: usize| {
        let mut search = Search::new(decoder, streams);
        let mut states: Vec<_> = (0..streams).map(|_| SearchState::new(decoder, &options).unwrap()).collect();
        for (begin, rows) in [(0, 2), (2, 3)] {
            let spans = vec![Span { slot: 0, rows }; streams];
            let mut part = Buffer::new(streams * rows, width);
            for row in 0..streams * rows {
                let from = (row / rows % KINDS + begin + row % rows) * width;
                part.row_mut(row).copy_from_slice(&frames[from..from + width]);
            }
            search.step(exec, decoder, &mut part, &spans, &mut states);
        }
        search.flush(exec, decoder, &mut states);
        exec.status().unwrap();
        states.into_iter().map(|s| s.finish().swap_remove(0)).collect::<Vec<Hypothesis>>()
    };
    let got = run(&on_device, &mut backend::exec(3), STREAMS);
    let want = run(&on_host, &mut Exec::new(1).unwrap(), KINDS);
    let labels = |h: &Hypothesis| h.tokens.iter().map(|t| (t.id, t.frame)).collect::<Vec<_>>();
    for (i, got) in got.iter().enumerate() {
        assert_eq!(labels(got), labels(&want[i % KINDS]), "stream {i}");
    }
    assert!(want.iter().any(|h| !h.tokens.is_empty()), "nothing to find");
}

#[test]
fn pocket_agrees_layer_by_layer() {
    backend::on_device();
    for name in ["lsd4", "drifting_gqa"] {
        let case = fixture::Case::f32(name);
        let mut exec = backend::exec(1);
        let lm = case.lm();
        let voice = case.voice(&mut exec, &lm);
        let (tokens, latent, frames) = (case.tokens(), lm.latent_dim(), 3);
        let mut state = lm.state(2, voice.positions() + tokens.len() + frames);
        lm.start(&mut exec, &mut state, 1, &voice);
        lm.prefill_watched(
            &mut exec,
            &mut state,
            1,
            &tokens,
            Some(&mut |i, rows| {
                let want = case.dump(&format!("prefill/layer.{i}"));
                check(&format!("{name} prefill layer {i}"), rows, &want, TOLERANCE);
            }),
        );
        let (noise, want) = (case.dump("noise/noise"), case.dump("noise/latent"));
        for t in 0..frames {
            let part = t * latent..(t + 1) * latent;
            let out = lm.step(&mut exec, &mut state, &[1], &noise[part.clone()], case.steps());
            check(&format!("{name} latent {t}"), out.latents, &want[part.clone()], 1e-4);
            state.set_last(&mut exec, 1, &want[part]);
        }
        exec.status().unwrap();
    }
}

#[test]
fn prompts_begun_together_are_as_begun_alone() {
    backend::on_device();
    let case = fixture::Case::f32("lsd4");
    let mut exec = backend::exec(1);
    let lm = case.lm();
    let (voice, none) = (case.voice(&mut exec, &lm), Voice::empty(&lm));
    let long: Vec<u32> = case.tokens().into_iter().cycle().take(70).collect();
    let texts = [&long[..17], &long[3..5], &long[..], &long[1..6]];
    let voices = [&voice, &none, &voice, &voice];
    let slots = [3, 0, 4, 1];
    let positions = voice.positions() + long.len();
    let mut together = lm.state(5, positions);
    let streams: Vec<_> = slots.into_iter().zip(voices).collect();
    lm.start_all(&mut exec, &mut together, &streams);
    let prompts: Vec<_> = slots.into_iter().zip(texts).collect();
    lm.prefill_texts(&mut exec, &mut together, &prompts);
    for ((slot, text), voice) in prompts.into_iter().zip(voices) {
        let mut alone = lm.state(1, positions);
        lm.start(&mut exec, &mut alone, 0, voice);
        lm.prefill_tokens(&mut exec, &mut alone, 0, text);
        let n = voice.positions() + text.len();
        assert_eq!((together.position(slot), alone.position(0)), (n, n));
        let [got, want] =
            [(&together, slot), (&alone, 0)].map(|(state, slot)| exec.read_cache(state.cache(), slot, 0..n));
        check(&format!("slot {slot}"), &got, &want, TOLERANCE);
    }
    exec.status().unwrap();
}

#[test]
fn the_codec_in_bf16_stays_close_to_the_cpu_with_streams_side_by_side() {
    backend::on_device();
    // Wide enough for the kernels of whole residual blocks.
    let mut config = fixture::Case::f32("lsd").config.mimi;
    (config.seanet.n_filters, config.seanet.ratios) = (16, vec![6, 4, 5]);
    let source = random_weights(3);
    let load =
        |loader: Loader, formats| MimiDecoder::load(&loader.sub("mimi"), &config, formats, None).unwrap();
    let device = load(backend::loader(source.clone()), backend::formats(Precision::Bf16));
    let host = load(Loader::new(source), Formats::new(Precision::F32, Isa::from_env().unwrap()));
    let (mut exec, mut cpu) = (backend::exec(1), Exec::new(2).unwrap());
    let (mut state, mut alone) = (device.state(3, 3), [host.state(1, 2), host.state(1, 2)]);
    let frame: Vec<f32> = (0..3 * device.latent_dim()).map(|i| (i as f32 * 0.7).sin()).collect();
    for (a, b) in [(1, 2), (1, 1)] {
        let spans = [Span { slot: 2, rows: a }, Span { slot: 0, rows: b }];
        let latents = &frame[..(a + b) * device.latent_dim()];
        let got = device.decode(&mut exec, &mut state, &spans, latents);
        let (one, two) = latents.split_at(a * device.latent_dim());
        let mut want = host.decode(&mut cpu, &mut alone[0], &[Span { slot: 0, rows: a }], one).to_vec();
        want.extend_from_slice(host.decode(&mut cpu, &mut alone[1], &[Span { slot: 0, rows: b }], two));
        let db = snr(got, &want);
        assert!(db > 30.0, "{a} and {b} frames: {db:.1} dB");
    }
    exec.status().unwrap();
}

#[test]
fn the_codec_agrees_stage_by_stage() {
    backend::on_device();
    let case = fixture::Case::f32("lsd");
    let mut exec = backend::exec(1);
    let decoder = case.decoder(None);
    let mut state = decoder.state(2, 8);
    for call in 0..2 {
        let input = case.dump(&format!("dec/call.{call}/input"));
        let frames = input.len() / decoder.latent_dim();
        let spans = [Span { slot: 1, rows: frames }];
        let mut compared = 0;
        decoder.decode_watched(
            &mut exec,
            &mut state,
            &spans,
            &input,
            Some(&mut |stage, rows| {
                let name = match stage {
                    Stage::Quantizer => "quantizer".into(),
                    Stage::Upsample => "upsample".into(),
                    Stage::TransformerLayer(i) => format!("transformer.{i}"),
                    Stage::Transformer => "transformer".into(),
                    Stage::Seanet(i) => format!("seanet.{i}"),
                    Stage::Downsample => return,
                };
                let want = case.rows(&format!("dec/call.{call}/{name}")).unwrap();
                check(&format!("call {call} {name}"), &rows[..want.len()], &want, TOLERANCE);
                compared += 1;
            }),
        );
        assert!(compared >= 8, "only {compared} stages compared");
    }
    exec.status().unwrap();
}
