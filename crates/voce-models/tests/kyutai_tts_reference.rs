//! Kyutai's models that speak against the published package: logits of every draw, whole passages, words and samples, on
//! this CPU or on the device that `VOCE_TEST_DEVICE` names.

mod backend;
mod kyutai;

use std::sync::Arc;

use kyutai::{Case, check};
use voce_models::kyutai::tts::{KyutaiTts, SynthSetting, TtsParts, Voice as TtsVoice, synth_of};
use voce_models::kyutai::{Branch, Condition, FrameLm, FrameRow, NONE};
use voce_models::speech::{
    Frame, Line, LineWord, Passage, PassageEnd, Prompt, SpeakRequest, Speech as _, Synth, VocoderRoom, Voice,
    VoiceSource,
};
use voce_nn::weights::SafetensorsFile;
use voce_runtime::{Buffer, Exec, Sampling, Span};
use voce_text::Tokenizer;

const TOLERANCE: f32 = 5e-5;

/// Every step from the package's own inputs: two texts in one number, sources, guidance by a table.
#[test]
fn every_draw_is_the_packages_in_both_namings() {
    for (name, file) in
        [("tts", "model.safetensors"), ("tts", "candle.safetensors"), ("tts_prefix", "model.safetensors")]
    {
        let case = Case::with(name, file);
        let (c, trace) = (&case.config, case.json("trace.json"));
        let mut exec = backend::exec(2);
        let model = FrameLm::load(&mut exec, &case.loader, c, case.formats).unwrap().unwrap();
        let [steps, streams, columns] = case.shape("inputs")[..] else { panic!("inputs") };
        let (inputs, hidden) = (case.tokens("inputs"), case.dump("hidden"));
        let (text, depth) = (case.dump("text_logits"), case.dump("depth_logits"));
        let looks = c.cross_attention;
        let mut state = if looks { model.looking_state(streams, streams, 40) } else { model.state(streams) };
        for slot in 0..streams {
            let named = |name: &str, value: &str| Condition { name: name.into(), value: Some(value.into()) };
            let cfg = trace["cfg"][slot].as_str().unwrap();
            model.start(&mut exec, &mut state, slot, &[named("control", "ok"), named("cfg", cfg)]);
            if looks {
                let [_, rows, width] = case.shape("source")[..] else { panic!("source") };
                let mut source = Buffer::new(rows, width);
                source
                    .head_mut(rows)
                    .copy_from_slice(&case.dump("source")[slot * rows * width..][..rows * width]);
                let seen = model.lm().decoder().look_at(&mut exec, &source, None);
                state.set_source(&mut exec, slot, &seen);
            }
        }
        let card = c.text_card as u32 + 1;
        let slots: Vec<usize> = (0..streams).collect();
        let lead = trace["delay_steps"].as_u64().unwrap() as usize;
        let mut draws = 0;
        for step in 0..steps {
            for slot in 0..streams {
                let row = &inputs[(step * streams + slot) * columns..][..columns];
                let mut tokens = match (c.demux_second_stream, row[0]) {
                    (false, token) => vec![token],
                    (true, NONE) => vec![NONE, NONE],
                    (true, both) => vec![both % card, (both / card).checked_sub(1).unwrap_or(NONE)],
                };
                tokens.extend_from_slice(&row[1..]);
                state.give(&mut exec, &[slot], 0, &tokens);
            }
            // What the depth transformer sees of the text is the next step's.
            let next = |slot: usize| inputs.get(((step + 1) * streams + slot) * columns).copied();
            let mut rows: Vec<FrameRow> = slots
                .iter()
                .map(|&slot| {
                    let pair = match (c.demux_second_stream, next(slot).unwrap_or(NONE)) {
                        (true, both) if both != NONE => {
                            [both % card, (both / card).checked_sub(1).unwrap_or(NONE)]
                        }
                        (_, token) => [token, NONE],
                    };
                    let branch = Some(Branch { then: pair, otherwise: pair, key: 0, free: true });
                    let greedy = Sampling::default();
                    let codes = if step >= lead { c.dep_q } else { 0 };
                    FrameRow { slot, text: greedy, branch, audio: greedy, codes, source: slot, guide: None }
                })
                .collect();
            if step + 1 == steps {
                break; // nobody knows the text after the last step
            }
            model.step_watched(&mut exec, &mut state, &mut rows, &mut |draw, slots, logits| {
                for (logits, &slot) in logits.chunks_exact(logits.len() / slots.len()).zip(slots) {
                    let want = match draw {
                        0 => &text[(step * streams + slot) * logits.len()..][..logits.len()],
                        k => {
                            let at = ((step - lead) * streams + slot) * c.dep_q + k - 1;
                            &depth[at * logits.len()..][..logits.len()]
                        }
                    };
                    check(&format!("{name}: draw {draw} of step {step}"), logits, want, TOLERANCE);
                    draws += 1;
                }
            });
            let mut by_slot = vec![0.0; streams * c.dim];
            for (row, values) in rows.iter().zip(state.hidden(&mut exec, streams).chunks_exact(c.dim)) {
                by_slot[row.slot * c.dim..][..c.dim].copy_from_slice(values);
            }
            check("hidden", &by_slot, &hidden[step * streams * c.dim..][..streams * c.dim], TOLERANCE);
        }
        assert_eq!(draws, streams * ((steps - 1) + (steps - 1 - lead) * c.dep_q));
    }
}

fn tts(exec: &mut Exec) -> (Case, KyutaiTts) {
    let case = Case::open("say");
    let config = case.config.clone();
    let tokenizer = Tokenizer::from_file(case.dir.join("tokenizer.model")).unwrap();
    let mimi = case.mimi(config.n_q);
    let parts = TtsParts { config, tokenizer, mimi, formats: case.formats, languages: Vec::new() };
    let model = KyutaiTts::load(exec, &case.loader, parts).unwrap().unwrap();
    (case, model)
}

fn voice(case: &Case, model: &KyutaiTts, exec: &mut Exec, name: &str) -> Voice {
    let path = case.dir.join(format!("voices/{name}.wav.abcd@7.safetensors"));
    model.voice(exec, VoiceSource::Tensors(&SafetensorsFile::open(&path).unwrap())).unwrap()
}

/// What a passage gave: codes by frame, words, and why it ended.
type Said = (Vec<Vec<u32>>, Vec<(String, f64, f64)>, Option<PassageEnd>);

/// Takes what a step of a slot gave.
fn take(said: &mut Said, made: voce_models::speech::Made) {
    said.0.extend(made.frame.and_then(Frame::codes));
    said.1.extend(made.words.into_iter().map(|w| (w.text, w.start, w.end)));
    said.2 = made.end;
}

fn lines(model: &KyutaiTts, request: &SpeakRequest, text: &str) -> Vec<Line> {
    let mut out = Vec::new();
    model.script(request).unwrap().whole(text, &mut out).unwrap();
    out.into_iter()
        .map(|p| match p {
            Passage::New(line) | Passage::More(line) => line,
            Passage::Pause(_) => panic!("breaks are words without text"),
        })
        .collect()
}

fn alone(exec: &mut Exec, synth: &mut dyn Synth, slot: usize, prompt: Prompt) -> Said {
    synth.begin(exec, &[Prompt { slot, ..prompt }]).unwrap();
    synth.feed(slot, Line::default());
    let mut said = Said::default();
    while said.2.is_none() {
        assert!(!synth.wants_text(slot));
        synth.step(exec, &[slot]);
        let mut out = Vec::new();
        synth.fetch(exec, &[slot], &mut out);
        take(&mut said, out.remove(0));
    }
    synth.free(slot);
    said
}

#[test]
fn whole_passages_are_the_packages() {
    let mut exec = backend::exec(2);
    let (case, model) = tts(&mut exec);
    let mut synth = model.synth(2);
    let room = VocoderRoom { slots: 1, frames: 4, slot_frames: 4 };
    for (run, trace) in case.json("trace.json").as_array().unwrap().iter().enumerate() {
        let turns: Vec<&str> =
            trace["script"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        let request =
            SpeakRequest::default().with_greedy(true).with_guidance(trace["cfg"].as_f64().map(|c| c as f32));
        let mut line = lines(&model, &request, &turns.join("<turn/>"));
        assert_eq!(line.len(), 1);
        let names = trace["voices"].as_array().unwrap();
        let mut voices: Vec<Voice> =
            names.iter().map(|name| voice(&case, &model, &mut exec, name.as_str().unwrap())).collect();
        let voice = match voices.len() {
            1 => voices.remove(0),
            _ => model.together(&mut exec, &voices).unwrap(),
        };
        let prompt = Prompt {
            slot: 0,
            line: line.remove(0),
            voice: Some(voice),
            request: Arc::new(request),
            number: 0,
            limit: None,
        };
        let (codes, words, end) = alone(&mut exec, synth.as_mut(), run % 2, prompt);
        assert_eq!(end, Some(PassageEnd::Spoken));
        // The package stops with the longest delay still under way; the frames after it are ours alone.
        let [books, frames] = case.shape(&format!("frames{run}"))[..] else { panic!("frames") };
        let last = trace["end"].as_u64().unwrap() + trace["final_padding"].as_u64().unwrap();
        assert_eq!(codes.len() as u64, last);
        assert_eq!(frames + case.config.max_delay(), codes.len());
        let want = case.tokens(&format!("frames{run}"));
        for (t, frame) in codes.iter().take(frames).enumerate() {
            let column: Vec<u32> = (0..books).map(|k| want[k * frames + t]).collect();
            assert_eq!(*frame, column, "run {run}, frame {t}");
        }
        let expected = trace["words"].as_array().unwrap();
        assert_eq!(words.len(), expected.len());
        for ((text, start, end), want) in words.iter().zip(expected) {
            assert_eq!(text, want[0].as_str().unwrap());
            assert!((start - want[1].as_f64().unwrap() / 12.5).abs() < 1e-9 && end > start);
        }
        assert!(words.windows(2).all(|w| w[0].2 <= w[1].1), "words follow each other: {words:?}");
        if run == 2 {
            continue; // samples of the same codec, which the dump leaves out
        }
        let mut vocoder = model.vocoder(room);
        let want = case.dump(&format!("decoded{run}"));
        let mut samples = Vec::new();
        vocoder.start(&mut exec, 0, None);
        for frames in codes.chunks(4) {
            let spans = [Span { slot: 0, rows: frames.len() }];
            let frames: Vec<Frame> = frames.iter().cloned().map(Frame::Codes).collect();
            vocoder.step(&mut exec, &spans, &frames);
            samples.extend_from_slice(vocoder.fetch(&mut exec));
        }
        let clipped: Vec<f32> = want.iter().map(|s| s.clamp(-0.99, 0.99)).collect();
        check("samples", &samples[..want.len()], &clipped, 1e-4);
    }
}

#[test]
fn company_and_text_that_arrives_change_nothing() {
    let mut exec = backend::exec(2);
    let (case, model) = tts(&mut exec);
    let [anna, ben] = ["anna", "ben"].map(|name| voice(&case, &model, &mut exec, name));
    let texts = ["hello there, this is a test", "one two three <break time=\"0.3s\"/> four", "the lazy dog"];
    let requests: Vec<SpeakRequest> =
        (0..3).map(|i| SpeakRequest::default().with_seed(i).with_codebooks((i == 1).then_some(2))).collect();
    let prompt = |i: usize, slot: usize, line: Line| Prompt {
        slot,
        line,
        voice: [Some(anna.clone()), Some(ben.clone()), Some(anna.clone())][i].clone(),
        request: Arc::new(requests[i].clone()),
        number: 0,
        limit: None,
    };
    let mut synth = model.synth(3);
    let solo: Vec<Said> = (0..3)
        .map(|i| {
            let line = lines(&model, &requests[i], texts[i]).remove(0);
            alone(&mut exec, synth.as_mut(), 0, prompt(i, 0, line))
        })
        .collect();
    assert!(solo[1].0.iter().all(|codes| codes.len() == 2), "as many codes as were asked for");
    assert!(solo[0].0.iter().all(|codes| codes.len() == case.config.dep_q));
    // They join at different times, to other slots; their text comes a word at a time.
    let mut scripts: Vec<_> = requests.iter().map(|r| model.script(r).unwrap()).collect();
    let mut rest: Vec<Vec<char>> = texts.iter().map(|t| t.chars().rev().collect()).collect();
    let slots = [2, 0, 1];
    let mut said: Vec<Said> = vec![Said::default(); 3];
    let (mut begun, mut closed, mut waits) = ([false; 3], [false; 3], 0);
    for round in 0.. {
        if said.iter().all(|s| s.2.is_some()) {
            break;
        }
        for i in (0..3).filter(|i| round >= 7 * i) {
            let mut out = Vec::new();
            match rest[i].is_empty() {
                false => {
                    let piece: String = (0..2).filter_map(|_| rest[i].pop()).collect();
                    scripts[i].push(&piece, &mut out).unwrap();
                }
                true if !closed[i] => {
                    scripts[i].finish(&mut out).unwrap();
                    closed[i] = true;
                }
                true => continue,
            }
            for passage in out {
                match passage {
                    Passage::New(line) => {
                        synth.begin(&mut exec, &[prompt(i, slots[i], line)]).unwrap();
                        begun[i] = true;
                    }
                    Passage::More(line) => synth.feed(slots[i], line),
                    Passage::Pause(_) => panic!("breaks are words without text"),
                }
            }
            if closed[i] {
                synth.feed(slots[i], Line::default());
            }
        }
        let there: Vec<usize> = (0..3).filter(|&i| begun[i] && said[i].2.is_none()).collect();
        waits += there.iter().filter(|&&i| synth.wants_text(slots[i])).count();
        let live: Vec<usize> = there.into_iter().filter(|&i| !synth.wants_text(slots[i])).collect();
        if live.is_empty() {
            continue;
        }
        let rows: Vec<usize> = live.iter().map(|&i| slots[i]).collect();
        synth.step(&mut exec, &rows);
        let mut out = Vec::new();
        synth.fetch(&mut exec, &rows, &mut out);
        for (&i, made) in live.iter().zip(out) {
            take(&mut said[i], made);
            if said[i].2.is_some() {
                synth.free(slots[i]);
            }
        }
    }
    assert!(waits > 0, "text came slower than it was spoken");
    for (i, (got, want)) in said.iter().zip(&solo).enumerate() {
        assert_eq!(got, want, "passage {i}");
    }
}

#[test]
fn what_the_model_cannot_follow_is_named() {
    let mut exec = backend::exec(1);
    let (case, model) = tts(&mut exec);
    let ask = SpeakRequest::default;
    for (request, says) in [
        (ask().with_guidance(Some(1.7)), "guidance"),
        (ask().with_codebooks(Some(0)), "codebooks"),
        (ask().with_codebooks(Some(case.config.dep_q + 1)), "codebooks"),
        (ask().with_instruct(Some("softly".into())), "instruction"),
        (ask().with_top_p(Some(0.5)), "top p"),
        (ask().with_noise_clamp(Some(1.0)), "noise clamp"),
    ] {
        let error = model.script(&request).err().expect("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(model.script(&ask().with_guidance(Some(3.0)).with_codebooks(Some(case.config.dep_q))).is_ok());
    let open = |path: &str| SafetensorsFile::open(&case.dir.join(path)).unwrap();
    let error = model.voice(&mut exec, VoiceSource::Tensors(&open("mimi.safetensors"))).unwrap_err();
    assert!(error.to_string().contains("speaker_wavs"), "{error}");
    let clip = VoiceSource::Clip { samples: &[0.0; 24_000], text: None };
    assert!(model.voice(&mut exec, clip).unwrap_err().to_string().contains("encoder"));
    let anna = voice(&case, &model, &mut exec, "anna");
    let six = vec![anna.clone(); 6];
    assert!(model.together(&mut exec, &six).unwrap_err().to_string().contains('5'));
    assert!(model.fits(&anna) && model.together(&mut exec, &six[..5]).is_ok());
    let tensors = model.export(&mut exec, &anna).unwrap();
    assert_eq!((tensors[0].name.as_str(), &tensors[0].shape[..]), ("speaker_wavs", &[1, 12, 5][..]));
}

/// A voice by its codes, and guidance by a second pass without text: the package's frames.
#[test]
fn a_voice_of_codes_and_guidance_are_the_packages() {
    let mut exec = backend::exec(2);
    let case = Case::open("tts_prefix");
    let (c, trace) = (&case.config, case.json("trace.json"));
    let number = |key: &str| trace[key].as_u64().unwrap() as usize;
    for run in trace["runs"].as_array().unwrap() {
        let prefix = run["prefix"].as_str().unwrap();
        let [streams, columns, frames] = case.shape(&format!("{prefix}frames"))[..] else { panic!("frames") };
        let want = case.tokens(&format!("{prefix}frames"));
        let guidance = run["guidance"].as_f64().unwrap() as f32;
        let setting = SynthSetting {
            max_padding: number("max_padding"),
            initial_padding: number("initial_padding"),
            final_padding: number("final_padding"),
            frame_rate: 12.5,
        };
        let frames_lm = FrameLm::load(&mut exec, &case.loader, c, case.formats).unwrap().unwrap();
        let mut synth = synth_of(frames_lm, &setting, streams);
        for stream in 0..streams {
            let mut line = Line::default();
            for e in run["entries"][stream].as_array().unwrap() {
                let tokens = e["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32);
                let before = line.tokens.len();
                line.tokens.extend(tokens);
                line.words.push(LineWord {
                    text: e["text"].as_str().unwrap().into(),
                    tokens: line.tokens.len() - before,
                    pause: e["padding"].as_u64().unwrap() as usize,
                });
            }
            let [_, length] = case.shape(&format!("prefix{stream}"))[..] else { panic!("codes") };
            let codes = case.tokens(&format!("prefix{stream}"));
            let books = codes.chunks_exact(length).map(<[u32]>::to_vec).collect();
            let voice = Voice::Looked(Arc::new(TtsVoice::prefix(books)));
            let request = SpeakRequest::default().with_greedy(true).with_guidance(Some(guidance));
            let prompt = Prompt {
                slot: stream,
                line,
                voice: Some(voice),
                request: Arc::new(request),
                number: 0,
                limit: None,
            };
            synth.begin(&mut exec, &[prompt]).unwrap();
        }
        let mut said: Vec<Said> = vec![Said::default(); streams];
        while said.iter().any(|s| s.2.is_none()) {
            let live: Vec<usize> = (0..streams).filter(|&s| said[s].2.is_none()).collect();
            synth.step(&mut exec, &live);
            let mut out = Vec::new();
            synth.fetch(&mut exec, &live, &mut out);
            live.iter().zip(out).for_each(|(&s, made)| take(&mut said[s], made));
        }
        let lead = number("delay_steps");
        for (stream, (codes, words, _)) in said.iter().enumerate() {
            let [_, length] = case.shape(&format!("prefix{stream}"))[..] else { panic!("codes") };
            let first = lead + length;
            let end = run["end_steps"][stream].as_u64().unwrap() as usize;
            for (t, frame) in codes.iter().enumerate().take(frames - first) {
                let column: Vec<u32> =
                    (1..columns).map(|k| want[(stream * columns + k) * frames + first + t]).collect();
                assert_eq!(*frame, column, "{prefix} stream {stream}, frame {t}");
            }
            assert_eq!(codes.len(), end + number("final_padding") - length);
            let times = run["transcripts"][stream].as_array().unwrap();
            assert_eq!(words.len(), times.len());
            for ((text, start, _), want) in words.iter().zip(times) {
                assert_eq!(text, want[0].as_str().unwrap());
                assert!((start - (want[1].as_f64().unwrap() - length as f64) / 12.5).abs() < 1e-9);
            }
        }
    }
}

/// A limit ends a passage early, and one that is not to end by itself goes on to its limit.
#[test]
fn limits_are_kept() {
    let mut exec = backend::exec(1);
    let (case, model) = tts(&mut exec);
    let anna = voice(&case, &model, &mut exec, "anna");
    let mut synth = model.synth(1);
    let mut said = |request: SpeakRequest, limit: usize| {
        let line = lines(&model, &request, "the lazy dog").remove(0);
        let (voice, request) = (Some(anna.clone()), Arc::new(request.with_greedy(true)));
        alone(
            &mut exec,
            synth.as_mut(),
            0,
            Prompt { slot: 0, line, voice, request, number: 0, limit: Some(limit) },
        )
    };
    let endless = || SpeakRequest::default().with_eos_threshold(Some(f32::INFINITY));
    let (all, words, end) = said(SpeakRequest::default(), 1000);
    assert_eq!((words.len(), end), (3, Some(PassageEnd::Spoken)));
    let (few, _, end) = said(SpeakRequest::default(), 5);
    assert_eq!((few.len(), end), (5, Some(PassageEnd::Limit)));
    let (more, words, end) = said(endless(), all.len() + 7);
    assert_eq!((more.len(), words.len(), end), (all.len() + 7, 3, Some(PassageEnd::Limit)));
    assert_eq!(more[..all.len()], all[..]);
    assert!(model.script(&SpeakRequest::default().with_eos_threshold(Some(1.0))).is_err());
}
