//! The parts of full-size models, each compared with what the published package computed.
#![allow(unreachable_pub)]

use voce_models::decoder::FrameShape;
use voce_models::kyutai::{Branch, Condition, FrameLm, FrameRow, Lm, NONE};
use voce_models::speech::SpeakRequest;
use voce_nn::Precision;
use voce_runtime::{Buffer, Sampling, Span, Tokens};

use super::Part;
use super::backend;
use super::kyutai;
use super::kyutai_mimi;
use super::meter::Meter;
use super::qwen::{self, Model, Place};
use super::qwen_codec;

/// Talker and code predictor of Qwen3-TTS in every run.
pub fn talker(folder: &str, precision: Precision) -> Vec<Part> {
    let mut place = Place::cpu();
    let model = Model::load(&mut place, folder.to_owned().leak(), precision);
    let (groups, shape) = (model.talker.groups(), FrameShape { slots: 1, positions: 256, prefill: 128 });
    let (mut first, mut rest) = (Meter::default(), Meter::default());
    for run in model.dump.runs() {
        let of = |part: &str| format!("{}/{part}", run.name);
        let mut state = model.talker.frames().state(shape);
        let layout = qwen::begin(&mut place, &model, &mut state, &run, 0);
        let draws = model.talker.draws(&model.generation, &SpeakRequest::default().with_greedy(true), 0);
        let (logits, others) = (model.dump.floats(&of("logits")), model.dump.floats(&of("cp_logits")));
        let codes = model.dump.frames(&of("codes"), groups);
        let entries = logits.len() / model.dump.ids(&of("sequence")).len();
        let rest_entries = model.config.codebook_sizes().1;
        for (step, frame) in codes.iter().enumerate() {
            if step > 0 {
                let text = layout.trailing.get(step - 1).copied().unwrap_or(model.config.tts_pad_token_id);
                state.give(&mut place.exec, &[0], groups, &[text]);
            }
            let row = model.talker.row(0, &draws, step);
            let mut seen = Vec::new();
            model.talker.frames().step_watched(&mut place.exec, &mut state, &[row], &mut |_, got| {
                seen.push(got.to_vec());
            });
            let drawn = state.tokens(&mut place.exec).row(0)[..groups].to_vec();
            first.choose(&seen[0][..entries], &logits[step * entries..][..entries]);
            // A draw knows the codes before it: those of other codes say nothing.
            for draw in (1..groups).take_while(|&draw| drawn[..draw] == frame[..draw]) {
                let at = (step * (groups - 1) + draw - 1) * rest_entries;
                rest.choose(&seen[draw][..rest_entries], &others[at..][..rest_entries]);
            }
            state.give(&mut place.exec, &[0], 0, frame);
        }
    }
    vec![("talker", first), ("code predictor", rest)]
}

/// The 12Hz codec both ways, and the speaker encoder of Base.
pub fn codec(folder: &str, precision: Precision, is_base: bool) -> Vec<Part> {
    let case = qwen_codec::Case::new(folder, precision);
    let mut exec = backend::exec(2);
    let (decoder, codes) = (case.decoder(), case.codes("dec/codes"));
    let rows = codes.len() / decoder.codebooks();
    let mut state = decoder.state(1, rows);
    let mut sound = Meter::default();
    sound.add(
        decoder.decode(&mut exec, &mut state, &[Span { slot: 0, rows }], &codes),
        &case.dump("dec/audio"),
    );
    drop(decoder);
    let found = case.encoder().encode(&mut exec, &case.reference()).unwrap();
    let want = case.codes("enc/codes");
    let books = found.len();
    let mut encoded = Meter::default();
    for (t, frame) in want.chunks_exact(books).enumerate() {
        // A codebook searches what those before it left.
        for (book, code) in frame.iter().enumerate() {
            encoded.values += 1;
            encoded.chose(found[book][t] == *code, 0.0);
        }
    }
    let mut parts = vec![("codec decoder", sound), ("codec encoder", encoded)];
    if is_base {
        let mut speaker = Meter::default();
        speaker.add(
            &case.speaker().embed(&mut exec, &case.reference()).unwrap(),
            &case.dump("speaker/embedding"),
        );
        parts.push(("speaker encoder", speaker));
    }
    parts
}

/// Mimi's latents, codes and samples, frame by frame.
pub fn mimi(folder: &str, precision: Precision) -> Vec<Part> {
    let mut case = kyutai_mimi::Case::f32(folder);
    case.formats = backend::formats(precision);
    let (mimi, mut exec) = (case.mimi(), backend::exec(2));
    let (size, books) = (case.config.frame_size(), case.codebooks());
    let &[_, _, frames] = &case.dump.shape("latent")[..] else { panic!("latents of streams") };
    let [pcm, latent, margin, decoded] = ["pcm", "latent", "margin", "decoded"].map(|n| case.dump.floats(n));
    let codes = case.dump.numbers("codes");
    let (tokenizer, decoder) = (mimi.tokenizer(), mimi.decoder());
    let (mut state, mut samples) = (tokenizer.state(1, 1, 1), decoder.state(1, 1));
    let mut bare = tokenizer.encoder().state_for(1, 1, 1);
    let mut tokens = Tokens::new(1, books, 0);
    let span = [Span { slot: 0, rows: 1 }];
    let column =
        |values: &[f32], t: usize| values.iter().skip(t).step_by(frames).copied().collect::<Vec<_>>();
    let (mut latents, mut found, mut sound) = (Meter::default(), Meter::default(), Meter::default());
    for t in 0..frames {
        let chunk = &pcm[t * size..][..size];
        let rows = tokenizer.encoder().encode_frames(&mut exec, &mut bare, &span, chunk);
        exec.fetch(rows, 1);
        latents.add(rows.head(1), &column(&latent, t));
        tokenizer.encode(&mut exec, &mut state, &span, chunk, &[0], &mut tokens, 0);
        exec.fetch_tokens(&mut tokens);
        let want: Vec<u32> = codes.iter().skip(t).step_by(frames).map(|&c| c as u32).collect();
        let margins = column(&margin, t);
        for part in [0..1, 1..books] {
            // Codebooks after another choice search another remainder.
            for book in part {
                let same = tokens.row(0)[book] == want[book];
                found.values += 1;
                found.chose(same, margins[book]);
                if !same {
                    break;
                }
            }
        }
        sound.add(decoder.decode_codes(&mut exec, &mut samples, &span, &want), &decoded[t * size..][..size]);
    }
    vec![("encoder", latents), ("codes", found), ("decoder", sound)]
}

/// A recogniser's language model: rows, logits, heads.
pub fn language_model(folder: &str, precision: Precision) -> Vec<Part> {
    let mut case = kyutai::Case::open(folder);
    case.formats = backend::formats(precision);
    let mut exec = backend::exec(2);
    let lm = Lm::load(&mut exec, &case.loader, &case.config, case.formats).unwrap();
    let mut state = lm.state(1);
    lm.start(&mut exec, &mut state, 0, &[]);
    let [steps, columns] = case.shape("inputs")[..] else { panic!("inputs by step") };
    let (inputs, hidden, logits) = (case.tokens("inputs"), case.dump("hidden"), case.dump("logits"));
    let (width, card) = (case.config.dim, case.config.text_out());
    let (mut rows, mut text, mut heads) = (Meter::default(), Meter::default(), Meter::default());
    let count = case.config.extra_heads_num_heads * case.config.extra_heads_dim;
    let wanted = if count > 0 { case.dump("heads") } else { Vec::new() };
    for step in 0..steps {
        state.give(&mut exec, &[0], 0, &inputs[step * columns..][..columns]);
        lm.step(&mut exec, &mut state, &[0]);
        rows.add(state.hidden(&mut exec, 1), &hidden[step * width..][..width]);
        text.choose(state.logits(&mut exec, 1), &logits[step * card..][..card]);
        if count > 0 {
            heads.add(&state.heads(&mut exec, 1), &wanted[step * count..][..count]);
        }
    }
    let mut parts = vec![("hidden", rows), ("text", text)];
    if count > 0 {
        parts.push(("pauses", heads));
    }
    parts
}

/// A model that speaks: rows, text and every code.
pub fn speech(folder: &str, precision: Precision) -> Vec<Part> {
    let mut case = kyutai::Case::open(folder);
    case.formats = backend::formats(precision);
    let (c, trace) = (case.config.clone(), case.json("trace.json"));
    let mut exec = backend::exec(2);
    let model = FrameLm::load(&mut exec, &case.loader, &c, case.formats).unwrap().unwrap();
    let [steps, _, columns] = case.shape("inputs")[..] else { panic!("inputs") };
    let [_, source_rows, width] = case.shape("source")[..] else { panic!("source") };
    let (inputs, hidden) = (case.tokens("inputs"), case.dump("hidden"));
    let (text, depth) = (case.dump("text_logits"), case.dump("depth_logits"));
    let mut state = model.looking_state(1, 1, source_rows);
    let named = |name: &str, value: &str| Condition { name: name.into(), value: Some(value.into()) };
    model.start(
        &mut exec,
        &mut state,
        0,
        &[named("control", "ok"), named("cfg", trace["cfg"][0].as_str().unwrap())],
    );
    let mut source = Buffer::new(source_rows, width);
    source.head_mut(source_rows).copy_from_slice(&case.dump("source"));
    let seen = model.lm().decoder().look_at(&mut exec, &source, None);
    state.set_source(&mut exec, 0, &seen);
    let card = c.text_card as u32 + 1;
    let pair = |token: u32| match token {
        NONE => [NONE, NONE],
        both => [both % card, (both / card).checked_sub(1).unwrap_or(NONE)],
    };
    let lead = trace["delay_steps"].as_u64().unwrap() as usize;
    let (mut rows, mut told, mut codes) = (Meter::default(), Meter::default(), Meter::default());
    // The text after the last step is unknown.
    for step in 0..steps - 1 {
        let given = &inputs[step * columns..][..columns];
        let tokens: Vec<u32> = pair(given[0]).into_iter().chain(given[1..].iter().copied()).collect();
        state.give(&mut exec, &[0], 0, &tokens);
        let next = pair(inputs[(step + 1) * columns]);
        let greedy = Sampling::default();
        let row = FrameRow {
            slot: 0,
            text: greedy,
            branch: Some(Branch { then: next, otherwise: next, key: 0, free: true }),
            audio: greedy,
            codes: if step >= lead { c.dep_q } else { 0 },
            source: 0,
            guide: None,
        };
        let mut off = false;
        model.step_watched(&mut exec, &mut state, &mut [row], &mut |draw, _, logits| match draw {
            0 => told.choose(logits, &text[step * logits.len()..][..logits.len()]),
            k if !off => {
                let at = ((step - lead) * c.dep_q + k - 1) * logits.len();
                let same = codes.same;
                codes.choose(logits, &depth[at..][..logits.len()]);
                // Later codes follow from another one.
                off = codes.same == same;
            }
            _ => {}
        });
        rows.add(state.hidden(&mut exec, 1), &hidden[step * c.dim..][..c.dim]);
    }
    vec![("hidden", rows), ("text", told), ("codes", codes)]
}
