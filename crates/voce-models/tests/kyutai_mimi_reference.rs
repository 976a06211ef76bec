//! Kyutai's Mimi against the published package: latents, codes and samples, in streams and in slots.

mod backend;
mod kyutai_mimi;

use kyutai_mimi::{CASES, Case, Dice, check, check_codes};
use voce_models::codec::{Codec, CodecError};
use voce_models::mimi::{KyutaiMimiConfig, Mimi, MimiTokenizerState, Stage};
use voce_models::saved::{Reader, Writer};
use voce_runtime::{Exec, Span, Tokens};

/// Latents and samples agree to this part of the largest value.
const TOLERANCE: f32 = 2e-4;

/// Column `t` of `[rows, frames]` values.
fn column<T: Copy>(values: &[T], frames: usize, t: usize) -> Vec<T> {
    values.chunks_exact(frames).map(|row| row[t]).collect()
}

#[test]
fn latents_codes_and_samples_are_the_packages() {
    for name in CASES {
        let case = Case::f32(name);
        let (mimi, mut exec) = (case.mimi(), backend::exec(2));
        let size = case.config.frame_size();
        let (books, first) = (case.codebooks(), case.config.quantizer.first);
        let &[streams, width, frames] = &case.dump.shape("latent")[..] else { panic!() };
        let [pcm, latent, margin, quantized, decoded] =
            ["pcm", "latent", "margin", "quantized", "decoded"].map(|n| case.dump.floats(n));
        let codes = case.dump.numbers("codes");
        let mut compared = 0;
        let streams_run = if backend::device().is_some() { 1 } else { streams };
        for stream in 0..streams_run {
            let of =
                |values: &[f32]| values[stream * values.len() / streams..][..values.len() / streams].to_vec();
            let (pcm, latent, margin) = (of(&pcm), of(&latent), of(&margin));
            let (quantized, decoded) = (of(&quantized), of(&decoded));
            let codes = &codes[stream * books * frames..][..books * frames];
            let (tokenizer, decoder) = (mimi.tokenizer(), mimi.decoder());
            let mut state = tokenizer.state(1, 1, 1);
            let mut bare = tokenizer.encoder().state_for(1, 1, 1);
            let mut samples = decoder.state(1, 1);
            let mut tokens = Tokens::new(1, books, 0);
            let span = [Span { slot: 0, rows: 1 }];
            for t in 0..frames {
                let what = format!("{name}, stream {stream}, frame {t}");
                let chunk = &pcm[t * size..][..size];
                let rows = tokenizer.encoder().encode_frames(&mut exec, &mut bare, &span, chunk);
                exec.fetch(rows, 1);
                check(&what, rows.head(1), &column(&latent, frames, t), TOLERANCE);
                tokenizer.encode(&mut exec, &mut state, &span, chunk, &[0], &mut tokens, 0);
                exec.fetch_tokens(&mut tokens);
                let want = column(codes, frames, t);
                compared += check_codes(&what, tokens.row(0), &want, &column(&margin, frames, t), first);
                // The decoder goes on from the package's codes, whatever was found.
                let want: Vec<u32> = want.iter().map(|&c| c as u32).collect();
                let mut shown = 0;
                let mut see = |stage: Stage, rows: &[f32]| {
                    if stage == Stage::Quantizer {
                        check(&what, rows, &column(&quantized, frames, t), TOLERANCE);
                        shown += 1;
                    }
                };
                let heard =
                    decoder.decode_codes_watched(&mut exec, &mut samples, &span, &want, Some(&mut see));
                check(&what, heard, &decoded[t * size..][..size], TOLERANCE);
                assert_eq!(shown, 1);
            }
            assert_eq!(width, latent.len() / frames);
        }
        assert!(compared > streams_run * frames * books * 8 / 10, "{name}: {compared} codes compared");
    }
}

#[test]
fn slots_that_pause_and_start_anew_are_the_packages() {
    for name in CASES {
        let case = Case::f32(name);
        let (mimi, mut exec) = (case.mimi(), backend::exec(2));
        let (size, books, first) = (case.config.frame_size(), case.codebooks(), case.config.quantizer.first);
        let &[frames, slots] = &case.dump.shape("slots/active")[..] else { panic!() };
        let [pcm, margin, decoded] =
            ["pcm", "margin", "decoded"].map(|n| case.dump.floats(&format!("slots/{n}")));
        let [active, reset, codes] =
            ["active", "reset", "codes"].map(|n| case.dump.numbers(&format!("slots/{n}")));
        let (tokenizer, decoder) = (mimi.tokenizer(), mimi.decoder());
        let mut state = tokenizer.state(slots, slots, 1);
        let mut samples = decoder.state_for(slots, slots, 1);
        let mut tokens = Tokens::new(slots, books, 0);
        let mut compared = 0;
        for t in 0..frames {
            for slot in (0..slots).filter(|s| reset[t * slots + s] == 1) {
                state.reset(slot);
                samples.reset(slot);
            }
            let live: Vec<usize> = (0..slots).filter(|s| active[t * slots + s] == 1).collect();
            let spans: Vec<Span> = live.iter().map(|&slot| Span { slot, rows: 1 }).collect();
            let chunk: Vec<f32> =
                live.iter().flat_map(|s| pcm[(s * frames + t) * size..][..size].to_vec()).collect();
            tokenizer.encode(&mut exec, &mut state, &spans, &chunk, &live, &mut tokens, 0);
            exec.fetch_tokens(&mut tokens);
            let mut want = Vec::new();
            for &slot in &live {
                let at = (t * slots + slot) * books;
                let what = format!("{name}, frame {t}, slot {slot}");
                let codes = &codes[at..at + books];
                compared += check_codes(&what, tokens.row(slot), codes, &margin[at..at + books], first);
                want.extend(codes.iter().map(|&c| c as u32));
            }
            let heard = decoder.decode_codes(&mut exec, &mut samples, &spans, &want);
            for (heard, &slot) in heard.chunks_exact(size).zip(&live) {
                let want = &decoded[(t * slots + slot) * size..][..size];
                check(&format!("{name}, frame {t}, slot {slot}"), heard, want, TOLERANCE);
            }
        }
        let all = active.iter().sum::<i64>() as usize * books;
        assert!(compared > all * 8 / 10, "{name}: {compared} of {all} codes compared");
    }
}

#[test]
fn fewer_codebooks_are_the_first_ones() {
    for (name, fewer) in [("mimi_plain", 3), ("mimi_odd", 1)] {
        let case = Case::f32(name);
        let mut exec = backend::exec(1);
        let &[streams, books, frames] = &case.dump.shape("codes")[..] else { panic!() };
        let codes = case.dump.numbers("codes");
        let codes: Vec<Vec<u32>> = codes[..fewer * frames]
            .chunks_exact(frames)
            .map(|b| b.iter().map(|&c| c as u32).collect())
            .collect();
        let want = case.dump.floats(&format!("decoded_{fewer}"));
        // A file of few codes, decoded by a codec of few codebooks and by one of all.
        for loaded in [fewer, books] {
            let mut heard = Vec::new();
            let mimi = case.mimi_with(loaded);
            mimi.decode(&mut exec, &codes, &mut |piece| {
                heard.extend_from_slice(piece);
                true
            })
            .unwrap();
            check(name, &heard, &want[..want.len() / streams], TOLERANCE);
        }
        let pcm = case.dump.floats("pcm");
        let pcm = &pcm[..pcm.len() / streams];
        let [few, all] = [fewer, books].map(|n| case.mimi_with(n).encode(&mut exec, pcm).unwrap());
        assert_eq!(few, all[..fewer], "{name}");
        let too_many = vec![vec![0; 2]; fewer + 1];
        let error = case.mimi_with(fewer).decode(&mut exec, &too_many, &mut |_| true).unwrap_err();
        assert!(matches!(error, CodecError::Shape { .. }), "{error}");
    }
}

/// Encodes and decodes frames of a stream alone, each call with as many frames as `cuts` says.
fn alone(mimi: &Mimi, exec: &mut Exec, pcm: &[f32], cuts: &[usize]) -> (Vec<u32>, Vec<f32>) {
    let (size, books) = (mimi.info().frame_size, mimi.info().codebooks);
    let most = cuts.iter().copied().max().unwrap_or(1);
    let mut state = mimi.tokenizer().state(1, most, most);
    let mut samples = mimi.decoder().state(1, most);
    let mut tokens = Tokens::new(most, books, 0);
    let (mut codes, mut heard, mut at) = (Vec::new(), Vec::new(), 0);
    for &rows in cuts {
        let list: Vec<usize> = (0..rows).collect();
        let span = [Span { slot: 0, rows }];
        let chunk = &pcm[at * size..][..rows * size];
        mimi.tokenizer().encode(exec, &mut state, &span, chunk, &list, &mut tokens, 0);
        exec.fetch_tokens(&mut tokens);
        let found: Vec<u32> = list.iter().flat_map(|&row| tokens.row(row).to_vec()).collect();
        heard.extend_from_slice(mimi.decoder().decode_codes(exec, &mut samples, &span, &found));
        codes.extend(found);
        at += rows;
    }
    (codes, heard)
}

#[test]
fn whole_is_in_pieces() {
    for name in CASES {
        let case = Case::f32(name);
        let (mimi, mut exec) = (case.mimi(), backend::exec(2));
        let frames = if backend::device().is_some() { 9 } else { case.dump.shape("codes")[2] };
        let pcm = case.dump.floats("pcm");
        let whole = alone(&mimi, &mut exec, &pcm, &[frames]);
        let mut dice = Dice(7);
        for _ in 0..if backend::device().is_some() { 1 } else { 3 } {
            let (mut cuts, mut left) = (Vec::new(), frames);
            while left > 0 {
                cuts.push(left.min(1 + dice.below(4)));
                left -= cuts[cuts.len() - 1];
            }
            let pieces = alone(&mimi, &mut exec, &pcm, &cuts);
            assert_eq!(whole.0, pieces.0, "{name}");
            if backend::device().is_none() {
                assert_eq!(whole.1, pieces.1, "{name}");
            } else {
                check(name, &pieces.1, &whole.1, 1e-5);
            }
        }
    }
}

#[test]
fn slots_in_company_are_streams_alone() {
    const SLOTS: usize = 5;
    for name in CASES {
        let case = Case::f32(name);
        let (mimi, mut exec) = (case.mimi(), backend::exec(3));
        let (size, books) = (case.config.frame_size(), case.codebooks());
        let mut dice = Dice(0x5eed);
        // The emulated device is slow.
        let steps = if backend::device().is_some() { 14 } else { 60 };
        let mut state = mimi.tokenizer().state(SLOTS, 2 * SLOTS, 2);
        let mut samples = mimi.decoder().state_for(SLOTS, 2 * SLOTS, 2);
        let mut tokens = Tokens::new(2 * SLOTS, books, 0);
        // What the stream in each slot has had: samples, codes, sound.
        let mut streams: Vec<(Vec<f32>, Vec<u32>, Vec<f32>)> = vec![Default::default(); SLOTS];
        let mut done = Vec::new();
        for _ in 0..steps {
            let mut spans = Vec::new();
            let mut chunk = Vec::new();
            for (slot, stream) in streams.iter_mut().enumerate() {
                if dice.below(12) == 0 {
                    // Somebody else joins in the slot.
                    state.reset(slot);
                    samples.reset(slot);
                    done.push(std::mem::take(stream));
                }
                let rows = dice.below(3);
                if rows > 0 {
                    let new: Vec<f32> = (0..rows * size).map(|_| dice.sample()).collect();
                    stream.0.extend_from_slice(&new);
                    chunk.extend(new);
                    spans.push(Span { slot, rows });
                }
            }
            let count: usize = spans.iter().map(|s| s.rows).sum();
            let rows: Vec<usize> = (0..count).collect();
            mimi.tokenizer().encode(&mut exec, &mut state, &spans, &chunk, &rows, &mut tokens, 0);
            exec.fetch_tokens(&mut tokens);
            let codes: Vec<u32> = rows.iter().flat_map(|&r| tokens.row(r).to_vec()).collect();
            let heard = mimi.decoder().decode_codes(&mut exec, &mut samples, &spans, &codes);
            let (mut codes, mut heard) = (&codes[..], heard);
            for s in &spans {
                let (own, rest) = codes.split_at(s.rows * books);
                let (sound, later) = heard.split_at(s.rows * size);
                streams[s.slot].1.extend_from_slice(own);
                streams[s.slot].2.extend_from_slice(sound);
                (codes, heard) = (rest, later);
            }
        }
        done.extend(streams);
        for (pcm, codes, heard) in done.into_iter().filter(|s| !s.0.is_empty()) {
            let cuts = vec![1; pcm.len() / size];
            if backend::device().is_some() && cuts.len() > 10 {
                continue;
            }
            let solo = alone(&mimi, &mut exec, &pcm, &cuts);
            assert_eq!(solo.0, codes, "{name}: codes");
            if backend::device().is_none() {
                assert_eq!(solo.1, heard, "{name}: bits");
            } else {
                check(name, &heard, &solo.1, 1e-5);
            }
        }
    }
}

#[test]
fn a_saved_stream_goes_on_elsewhere() {
    const MAGIC: [u8; 8] = *b"mimitest";
    for name in CASES {
        let case = Case::f32(name);
        let (mimi, mut exec) = (case.mimi(), backend::exec(1));
        let (size, books) = (case.config.frame_size(), case.codebooks());
        let pcm = case.dump.floats("pcm");
        let tokenizer = mimi.tokenizer();
        let step = |exec: &mut Exec, state: &mut MimiTokenizerState, slot, t: usize| {
            let mut tokens = Tokens::new(1, books, 0);
            let span = [Span { slot, rows: 1 }];
            tokenizer.encode(exec, state, &span, &pcm[t * size..][..size], &[0], &mut tokens, 0);
            exec.fetch_tokens(&mut tokens);
            tokens.row(0).to_vec()
        };
        for at in if backend::device().is_some() { [0, 1, 7] } else { [0, 1, 11] } {
            let mut state = tokenizer.state(1, 1, 1);
            (0..at).for_each(|t| drop(step(&mut exec, &mut state, 0, t)));
            let mut w = Writer::new(MAGIC);
            tokenizer.save(&mut exec, &mut state, 0, &mut w);
            let bytes = w.into_bytes();
            // Another slot, which somebody else has had.
            let mut other = tokenizer.state(3, 3, 1);
            (0..3).for_each(|t| drop(step(&mut exec, &mut other, 2, t + 4)));
            let mut r = Reader::new(&bytes, MAGIC).unwrap();
            tokenizer.restore(&mut exec, &mut other, 2, at, &mut r).unwrap();
            r.finish().unwrap();
            for t in at..at + 3 {
                assert_eq!(
                    step(&mut exec, &mut state, 0, t),
                    step(&mut exec, &mut other, 2, t),
                    "{name} {at} {t}"
                );
            }
            let mut r = Reader::new(&bytes, MAGIC).unwrap();
            assert!(tokenizer.restore(&mut exec, &mut other, 2, at + 1, &mut r).is_err());
        }
    }
}

#[test]
fn recordings_of_any_length_are_encoded_in_blocks() {
    let case = Case::f32("mimi_plain");
    let (mimi, mut exec) = (case.mimi(), backend::exec(1));
    let size = case.config.frame_size();
    let pcm = case.dump.floats("pcm");
    let short = &pcm[..9 * size + 5];
    let whole = mimi.encode(&mut exec, short).unwrap();
    assert_eq!(whole.iter().map(Vec::len).collect::<Vec<_>>(), [10; 8]);
    let mut blocks = short.chunks(37);
    let pieces = mimi
        .encode_from(&mut exec, &mut |out| {
            blocks.next().is_some_and(|b| {
                out.extend_from_slice(b);
                true
            })
        })
        .unwrap();
    assert_eq!(whole, pieces);
    assert!(matches!(mimi.encode(&mut exec, &[]), Err(CodecError::Samples(_))));
}

#[test]
fn shapes_of_tensors_tell_what_they_can() {
    for name in CASES {
        let case = Case::f32(name);
        // Eight heads, which the file cannot tell, fit one of the cases only.
        match KyutaiMimiConfig::from_tensors(&case.named()) {
            Ok(found) => {
                let mut want = case.config.clone();
                let t = &mut want.transformer;
                (t.num_heads, t.context, t.max_period) = (8, 250, 10_000.0);
                (want.sample_rate, want.frame_rate) = (24_000, 24_000.0 / want.frame_size() as f64);
                assert_eq!(found, want, "{name}");
            }
            Err(e) => assert!(name == "mimi_odd" && e.to_string().contains("heads"), "{name}: {e}"),
        }
    }
    let case = Case::f32("mimi_plain");
    let error = KyutaiMimiConfig::from_tensors(&case.loader.sub("nothing")).unwrap_err();
    assert!(error.to_string().contains("file of Mimi"), "{error}");
}
