//! Streams of one search in changing company.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use proptest::prelude::*;
use voce_models::transducer::{Hypothesis, Search, SearchOptions, SearchState};
use voce_runtime::{Buffer, Exec, Span};

use crate::backend;
use crate::decoders::{Kind, Model};

/// A stream: what it is searched with, its frames, where it is.
struct Stream {
    options: SearchOptions,
    frames: Buffer,
    at: usize,
    state: SearchState,
    whole: Vec<Hypothesis>,
}

impl Stream {
    fn new(model: &Model, exec: &mut Exec, seed: u64, rows: usize) -> Self {
        let options = SearchOptions::with_beam([1, 3, 1, 2][seed as usize % 4]);
        let frames = model.frames(seed, rows);
        let whole = model.search(exec, &options, &frames, &[rows]);
        let state = SearchState::new(&model.decoder, &options).unwrap();
        Self { options, frames, at: 0, state, whole }
    }

    fn copy(&self) -> Self {
        let Self { options, frames, at, state, whole } = self;
        Self {
            options: options.clone(),
            frames: frames.clone(),
            at: *at,
            state: state.clone(),
            whole: whole.clone(),
        }
    }
}

/// Gives each named stream the number of its frames that stands beside it, in one step.
fn step(
    model: &Model,
    exec: &mut Exec,
    search: &mut Search,
    streams: &mut [Stream],
    takes: &[(usize, usize)],
) {
    let width = model.decoder.frame_width();
    let (mut values, mut spans, mut picked) = (Vec::new(), Vec::new(), Vec::new());
    let mut left: Vec<Option<&mut Stream>> = streams.iter_mut().map(Some).collect();
    for &(i, rows) in takes {
        let Some(stream) = left[i].take() else { continue };
        let rows = rows.min(stream.frames.rows() - stream.at);
        (stream.at..stream.at + rows).for_each(|r| values.extend_from_slice(stream.frames.row(r)));
        stream.at += rows;
        spans.push(Span { slot: 0, rows });
        picked.push(&mut stream.state);
    }
    let mut frames = Buffer::new(values.len() / width, width);
    frames.head_mut(values.len() / width).copy_from_slice(&values);
    search.step(exec, &model.decoder, &mut frames, &spans, &mut picked);
}

fn check(
    model: &Model,
    exec: &mut Exec,
    search: &mut Search,
    mut stream: Stream,
) -> Result<(), TestCaseError> {
    let rest = stream.frames.rows() - stream.at;
    step(model, exec, search, std::slice::from_mut(&mut stream), &[(0, rest)]);
    search.flush(exec, &model.decoder, std::slice::from_mut(&mut stream.state));
    let got = stream.state.finish();
    if backend::device().is_none() {
        prop_assert_eq!(got, stream.whole);
        return Ok(());
    }
    // Products of other sizes may sum in another order there.
    let labels = |h: &Hypothesis| h.tokens.iter().map(|t| (t.id, t.frame)).collect::<Vec<_>>();
    prop_assert_eq!(labels(&got[0]), labels(&stream.whole[0]));
    prop_assert!((got[0].score - stream.whole[0].score).abs() < 1e-3);
    Ok(())
}

/// What happens before a step (see `run`), to which stream, and a number by which the step's streams are picked.
pub type Event = (u8, usize, u64);

/// Lets streams join, leave, be copied and saved, and compares each with what it gives alone.
pub fn run(kind: Kind, seed: u64, events: &[Event]) -> Result<(), TestCaseError> {
    let mut exec = backend::exec(1);
    let model = Model::new(kind, seed);
    let mut search = Search::new(&model.decoder, 1);
    let mut streams = Vec::new();
    for (n, &(what, which, salt)) in events.iter().enumerate() {
        let which = which % streams.len().max(1);
        match what {
            // Streams join: more than there are rows.
            0..=3 => (0..1 + salt % 9).for_each(|i| {
                let seed = seed + 31 * n as u64 + i;
                streams.push(Stream::new(&model, &mut exec, seed, 4 + (salt + i) as usize % 12));
            }),
            _ if streams.is_empty() => {}
            // One leaves before its end.
            4 => drop(streams.swap_remove(which)),
            // One ends, and has to be what it is alone.
            5 => check(&model, &mut exec, &mut search, streams.swap_remove(which))?,
            // One is copied; the two go on apart.
            6 => streams.push(streams[which].copy()),
            // One goes on from a snapshot in its own place.
            _ => {
                let Stream { options, state, .. } = &mut streams[which];
                let saved = search.save(&mut exec, state);
                *state = SearchState::from_bytes(&saved, &model.decoder, options).unwrap();
                prop_assert_eq!(search.save(&mut exec, state), saved);
            }
        }
        // Some of them, in another order each time.
        let count = streams.len();
        let takes: Vec<(usize, usize)> = (0..count)
            .map(|i| ((i * 7 + n) % count.max(1), (salt as usize + i) % 4))
            .filter(|&(i, _)| !(i as u64 + salt).is_multiple_of(3))
            .collect();
        step(&model, &mut exec, &mut search, &mut streams, &takes);
    }
    for stream in streams {
        check(&model, &mut exec, &mut search, stream)?;
    }
    exec.status().unwrap();
    Ok(())
}
