//! Kyutai's recogniser against the published package: tokens, pauses and words of recordings, alone and in company.

mod backend;
mod kyutai_mimi;
mod kyutai_stt;

use std::collections::VecDeque;

use kyutai_mimi::Dice;
use kyutai_stt::{CASES, Case, Notes, Queues, Story, alone, alone_as, plain, rows, step};
use voce_models::hearing::{Ear, EarRoom, Hearing, HearingError, Hotword, Offer, Planned, TrackRequest};
use voce_models::kyutai::stt::Stt;
use voce_runtime::Exec;

/// Frames of the recordings that a device, which is emulated and slow, is given.
fn some(audio: &[f32], frames: usize, size: usize) -> &[f32] {
    if backend::device().is_some() { &audio[..(frames * size).min(audio.len())] } else { audio }
}

#[test]
fn tokens_pauses_and_words_are_the_packages() {
    for name in CASES {
        let case = Case::new(name);
        let mut exec = backend::exec(2);
        let stt = case.load(&mut exec);
        assert_eq!(stt.delay() as u64, case.json["delay"].as_u64().unwrap(), "{name}");
        for most in if backend::device().is_some() { vec![8] } else { vec![1, 3, 8] } {
            let story = alone(&stt, &mut exec, &case.audio(), most);
            assert_eq!(story.drawn, case.tokens(), "{name}: {most} frames a step");
            check_words(&case, &story);
            check_pauses(&case, &story);
            assert_eq!(story.concluded, 1);
            // All frames of the recording have their text.
            let frames = case.audio().len().div_ceil(case.mimi.frame_size());
            assert!(story.frames.abs_diff(frames) <= 1, "{name}: {} of {frames} frames", story.frames);
        }
    }
}

/// Words and their ends are told when and where Kyutai's server tells them.
fn check_words(case: &Case, story: &Story) {
    let prefix = case.config.stt_config.unwrap().audio_silence_prefix_seconds;
    let prefix = (prefix * case.mimi.frame_rate).ceil();
    // The package counts silence that was put before the audio.
    let frame = |seconds: f64| ((seconds * 12.5).round() - prefix).max(0.0) as usize;
    let of = |kind: &str| -> Vec<&serde_json::Value> {
        case.json["messages"].as_array().unwrap().iter().filter(|m| m["type"] == kind).collect()
    };
    let words: Vec<_> = of("Word")
        .into_iter()
        .map(|m| {
            let tokens = m["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
            (tokens, frame(m["start_time"].as_f64().unwrap()), m["step"].as_u64().unwrap() as usize)
        })
        .collect();
    assert!(words.len() >= 5);
    assert_eq!(story.words, words);
    let ends: Vec<_> = of("EndWord")
        .into_iter()
        .map(|m| (frame(m["stop_time"].as_f64().unwrap()), m["step"].as_u64().unwrap() as usize))
        .collect();
    assert_eq!(story.ends, ends);
}

fn check_pauses(case: &Case, story: &Story) {
    let (count, values) = (case.config.extra_heads_num_heads, case.config.extra_heads_dim);
    if count == 0 {
        return assert!(story.pauses.is_empty());
    }
    let heads = case.dump.floats("heads");
    // Of step 0, which sees no audio, nothing is told.
    let want: Vec<&[f32]> = heads.chunks_exact(count * values).skip(1).collect();
    assert_eq!(story.pauses.len(), want.len());
    for (got, want) in story.pauses.iter().zip(want) {
        for (p, head) in got.iter().zip(want.chunks_exact(values)) {
            assert!((p - head[0]).abs() < 1e-4, "{p} and {}", head[0]);
        }
    }
}

/// Every case, or on a device, which is emulated and slow, the smaller one.
fn cases() -> &'static [&'static str] {
    Case::new(CASES[1]);
    if backend::device().is_some() { &CASES[1..] } else { &CASES }
}

/// A step of some streams and some of their frames, by the dice.
fn planned_by(
    dice: &mut Dice,
    ear: &mut dyn Ear,
    room: EarRoom,
    who: &[Option<usize>],
    queues: &Queues,
    size: usize,
) -> Vec<Planned> {
    let (mut planned, mut left) = (Vec::new(), room.frames);
    for slot in (0..room.slots).filter(|&slot| who[slot].is_some()) {
        let waiting = queues.0.lock().unwrap()[slot].len() / size;
        let frames = (1 + dice.below(room.slot_frames)).min(left);
        if frames == 0 || dice.below(4) == 0 {
            continue;
        }
        if let Some(p) = ear.plan(slot, Offer { rows: waiting, closes: true }, frames) {
            left -= p.frames;
            planned.push(p);
        }
    }
    planned
}

#[test]
fn streams_in_company_are_streams_alone() {
    for name in cases() {
        let case = Case::new(name);
        let mut exec = backend::exec(3);
        let stt = case.load(&mut exec);
        let size = case.mimi.frame_size();
        let mut dice = Dice(99);
        let whole = case.audio();
        // Streams of other lengths, which begin elsewhere in the recording.
        let most = if backend::device().is_some() { 5 } else { 24 };
        let audios: Vec<Vec<f32>> = (0..if backend::device().is_some() { 4 } else { 9 })
            .map(|i| {
                let first = dice.below(whole.len() / 3);
                let length = (1 + dice.below(most)) * size - i * size / 10;
                whole[first..(first + length).min(whole.len())].to_vec()
            })
            .collect();
        let room = EarRoom { slots: 3, slot_frames: 4, frames: 7 };
        let mut ear = stt.ear(room);
        let track = stt.track(&plain(), None).unwrap();
        let queues = Queues(vec![VecDeque::new(); room.slots].into());
        let mut notes = Notes(vec![Story::default(); room.slots]);
        let mut stories: Vec<Option<Story>> = vec![None; audios.len()];
        let mut who: Vec<Option<usize>> = vec![None; room.slots];
        let mut next = 0;
        while stories.iter().any(Option::is_none) {
            for (slot, who) in who.iter_mut().enumerate() {
                if who.is_none() && next < audios.len() && dice.below(2) == 0 {
                    ear.start(&mut exec, slot, &track).unwrap();
                    queues.0.lock().unwrap()[slot] = rows(&stt, &audios[next]).into();
                    (*who, notes.0[slot]) = (Some(next), Story::default());
                    next += 1;
                }
            }
            let planned = planned_by(&mut dice, &mut *ear, room, &who, &queues, size);
            if !planned.is_empty() {
                step(&mut *ear, &mut exec, &planned, &queues, &mut notes);
            }
            let closing: Vec<usize> = planned.iter().filter(|p| p.closes).map(|p| p.slot).collect();
            if !closing.is_empty() {
                ear.flush(&mut exec, &closing, &mut notes);
            }
            for slot in closing {
                ear.free(slot);
                stories[who[slot].take().unwrap()] = Some(std::mem::take(&mut notes.0[slot]));
            }
        }
        for (audio, story) in audios.iter().zip(stories) {
            let (mut story, mut solo) = (story.unwrap(), alone(&stt, &mut exec, audio, 1));
            if backend::device().is_some() {
                // Sums in another order.
                (story.pauses, solo.pauses) = Default::default();
            }
            assert_eq!(story, solo, "{name}");
        }
    }
}

/// Streams that join, leave and begin anew by the dice; with `ahead` a step is told after the next was asked for. The
/// stories of those that came to their end.
fn crowd(stt: &Stt, exec: &mut Exec, audios: &[Vec<f32>], ahead: bool) -> Vec<Option<Story>> {
    let (size, mut dice) = (stt.info().frame_size, Dice(7));
    let room = EarRoom { slots: 3, slot_frames: 3, frames: 7 };
    let mut ear = stt.ear(room);
    ear.reserve(exec).unwrap().check().unwrap();
    let hot = TrackRequest { temperature: Some(0.8), seed: Some(3), ..plain() };
    let tracks = [stt.track(&plain(), None).unwrap(), stt.track(&hot, None).unwrap()];
    let queues = Queues(vec![VecDeque::new(); room.slots].into());
    let mut notes = Notes(vec![Story::default(); room.slots]);
    let mut stories = vec![None; audios.len()];
    let mut who: Vec<Option<usize>> = vec![None; room.slots];
    let (mut next, mut over, mut overlaps) = (0, 0, 0);
    let mut under_way: VecDeque<Vec<Planned>> = VecDeque::new();
    while over < audios.len() {
        for (slot, who) in who.iter_mut().enumerate() {
            // Somebody leaves, whatever is under way, or another part begins in the same slot.
            if who.is_some() && dice.below(12) == 0 {
                ear.free(slot);
                (*who, over) = (None, over + 1);
            }
            if who.is_none() && next < audios.len() && dice.below(2) == 0 {
                ear.start(exec, slot, &tracks[next % 2]).unwrap();
                queues.0.lock().unwrap()[slot] = rows(stt, &audios[next]).into();
                (*who, notes.0[slot]) = (Some(next), Story::default());
                next += 1;
            }
        }
        let planned = planned_by(&mut dice, &mut *ear, room, &who, &queues, size);
        if !planned.is_empty() {
            ear.take(exec, &planned, &queues);
            ear.encode(exec, &planned);
            ear.begin(exec, &planned);
            under_way.push_back(planned.clone());
        }
        // A step that closes somebody is told before anything else.
        let closing: Vec<usize> = planned.iter().filter(|p| p.closes).map(|p| p.slot).collect();
        overlaps += usize::from(under_way.len() > 1);
        let keep = usize::from(ahead && closing.is_empty() && !planned.is_empty());
        while under_way.len() > keep {
            ear.decode(exec, &under_way.pop_front().unwrap(), &mut notes);
        }
        if !closing.is_empty() {
            ear.flush(exec, &closing, &mut notes);
        }
        for slot in closing {
            ear.free(slot);
            stories[who[slot].take().unwrap()] = Some(std::mem::take(&mut notes.0[slot]));
            over += 1;
        }
    }
    exec.status().unwrap();
    assert_eq!(overlaps > 4, ahead, "{overlaps} steps");
    stories
}

#[test]
fn steps_that_overlap_hear_what_steps_in_turn_hear() {
    for name in cases() {
        let case = Case::new(name);
        let mut exec = backend::exec(1);
        let stt = case.load(&mut exec);
        let (size, whole, mut dice) = (case.mimi.frame_size(), case.audio(), Dice(5));
        let is_device = backend::device().is_some();
        let audios: Vec<Vec<f32>> = (0..if is_device { 8 } else { 30 })
            .map(|_| {
                let first = dice.below(whole.len() / 3);
                let length = (3 + dice.below(if is_device { 9 } else { 24 })) * size - dice.below(size);
                whole[first..(first + length).min(whole.len())].to_vec()
            })
            .collect();
        let [turns, overlapped] = [false, true].map(|ahead| crowd(&stt, &mut exec, &audios, ahead));
        assert_eq!(turns, overlapped, "{name}");
        let told = turns.iter().flatten().count();
        assert!(told >= 3 && told < audios.len(), "{name}: {told} came to their end");
    }
}

#[test]
fn a_saved_stream_goes_on_elsewhere() {
    for name in cases() {
        let case = Case::new(name);
        let mut exec = backend::exec(1);
        let stt = case.load(&mut exec);
        let size = case.mimi.frame_size();
        let track = stt.track(&plain(), None).unwrap();
        let audio = case.audio();
        let audio = some(&audio, 6, size);
        let whole = alone(&stt, &mut exec, audio, 1);
        for at in [0, 1, 4] {
            let mut ear = stt.ear(EarRoom { slots: 1, slot_frames: 1, frames: 1 });
            ear.start(&mut exec, 0, &track).unwrap();
            let values = rows(&stt, audio);
            let queues = Queues(vec![VecDeque::from(values.clone())].into());
            let mut notes = Notes(vec![Story::default()]);
            for _ in 0..at {
                let p = ear.plan(0, Offer { rows: 1, closes: false }, 1).unwrap();
                step(&mut *ear, &mut exec, &[p], &queues, &mut notes);
            }
            let bytes = ear.save(&mut exec, 0, &[]);
            let track = stt.track(&plain(), Some(&bytes)).unwrap();
            let mut other = stt.ear(EarRoom { slots: 2, slot_frames: 3, frames: 3 });
            other.start(&mut exec, 1, &track).unwrap();
            other.restore(&mut exec, 1, &track, &bytes).unwrap();
            let queues = Queues(vec![VecDeque::new(), values[at * size..].to_vec().into()].into());
            let mut left = values.len() / size - at;
            let mut later = Notes(vec![Story::default(), std::mem::take(&mut notes.0[0])]);
            while left > 0 {
                let p = other.plan(1, Offer { rows: left, closes: true }, 3).unwrap();
                step(&mut *other, &mut exec, &[p], &queues, &mut later);
                left -= p.advance;
            }
            other.flush(&mut exec, &[1], &mut later);
            assert_eq!(later.0[1].drawn, whole.drawn, "{name} after {at} frames");
            assert_eq!(later.0[1].words, whole.words, "{name} after {at} frames");
            // Nothing in the bytes is believed.
            for cut in [0, 7, 8, 20, bytes.len() / 2, bytes.len() - 1] {
                assert!(other.restore(&mut exec, 1, &track, &bytes[..cut]).is_err(), "{cut}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(other.restore(&mut exec, 1, &track, &longer).is_err());
            let hot = TrackRequest { temperature: Some(0.5), ..plain() };
            assert!(matches!(stt.track(&hot, Some(&bytes)), Err(HearingError::Snapshot(_))));
        }
    }
}

#[test]
fn tokens_are_drawn_by_temperature_and_seed() {
    let case = Case::new("stt_late");
    let mut exec = backend::exec(1);
    let stt = case.load(&mut exec);
    let audio = case.audio();
    let audio = some(&audio, 5, case.mimi.frame_size());
    let ask = |temperature, seed| TrackRequest { temperature, seed, ..plain() };
    let mut hear =
        |temperature, seed, most| alone_as(&stt, &mut exec, audio, most, &ask(temperature, seed)).drawn;
    let greedy = hear(None, None, 1);
    assert_eq!(greedy, hear(Some(0.0), Some(5), 4));
    let drawn = hear(Some(1.0), Some(5), 1);
    assert_eq!(drawn, hear(Some(1.0), Some(5), 4), "however many frames a step has");
    assert_ne!(drawn, greedy);
    assert_ne!(drawn, hear(Some(1.0), Some(6), 1));
}

#[test]
fn what_it_cannot_do_is_refused_by_name() {
    let case = Case::new("stt_heads");
    let mut exec = backend::exec(1);
    let stt = case.load(&mut exec);
    let refused = |ask: TrackRequest<'_>, says: &str| match stt.track(&ask, None) {
        Ok(_) => panic!("{says} was accepted"),
        Err(e) => assert!(e.to_string().contains(says), "{e}"),
    };
    refused(TrackRequest { beam: 4, ..plain() }, "beam");
    let words = [Hotword { phrase: "rain".into(), weight: 1.0 }];
    refused(TrackRequest { hotwords: &words, ..plain() }, "hotwords");
    refused(TrackRequest { chunk_ms: Some(160), ..plain() }, "80");
    refused(TrackRequest { language: Some("de"), ..plain() }, "en, fr");
    assert!(stt.track(&TrackRequest { language: Some("FR"), ..plain() }, None).is_ok());
    refused(TrackRequest { temperature: Some(3.0), ..plain() }, "temperature");
    assert_eq!(stt.info().pauses, [0.5, 1.0, 2.0, 3.0]);
    // A stream without audio has no text, and ends all the same.
    let track = stt.track(&plain(), None).unwrap();
    let mut ear = stt.ear(EarRoom { slots: 1, slot_frames: 1, frames: 1 });
    ear.start(&mut exec, 0, &track).unwrap();
    let mut notes = Notes(vec![Story::default()]);
    ear.flush(&mut exec, &[0], &mut notes);
    assert_eq!((notes.0[0].concluded, notes.0[0].drawn.len()), (1, 0));
}
