//! Searches on a device: in changing company, and decided there as the host decides. The CUDA kernels, emulated on
//! machines without a GPU.

mod backend;
mod company;
mod decoders;

use decoders::{Kind, Model};
use voce_models::transducer::{Hypothesis, RepeatGuard, Search, SearchOptions, SearchState};
use voce_runtime::{Buffer, Span};

#[test]
fn company_changes_nothing_on_a_device() {
    backend::on_device();
    let scripts: [(Kind, &[company::Event]); 2] = [
        (Kind::Rnnt, &[(0, 0, 3), (8, 1, 7), (0, 0, 4), (6, 2, 3), (4, 0, 5), (8, 5, 2), (5, 3, 9)]),
        (Kind::Tdt, &[(0, 0, 2), (6, 1, 2), (6, 1, 4), (4, 1, 1), (8, 2, 3)]),
    ];
    for (kind, events) in scripts {
        company::run(kind, 1, events).unwrap();
    }
}

/// Nothing is repeated so often, but the host decides where there is a guard.
const GUARD: Option<RepeatGuard> = Some(RepeatGuard { cycle: 1, repeats: 1000 });
const STREAMS: usize = 9;

/// What streams find whose frames come in cuts of many sizes, none among them; `options` are stream i's.
fn readings(model: &Model, options: impl Fn(usize) -> SearchOptions) -> Vec<Vec<Hypothesis>> {
    let mut exec = backend::exec(1);
    let mut search = Search::new(&model.decoder, 2);
    let width = model.decoder.frame_width();
    let frames: Vec<Buffer> = (0..STREAMS).map(|i| model.frames(7 + i as u64, 100)).collect();
    let mut states: Vec<SearchState> =
        (0..STREAMS).map(|i| SearchState::new(&model.decoder, &options(i)).unwrap()).collect();
    for step in 0..4 {
        // The last step is longer than what a device does before it tells.
        let rows = |i: usize| if step < 3 { (5 * i + 3 * step) % 11 } else { 7 * i % 40 };
        let spans: Vec<Span> = (0..STREAMS).map(|i| Span { slot: 0, rows: rows(i) }).collect();
        let mut part = Buffer::new(spans.iter().map(|s| s.rows).sum(), width);
        let mut to = 0;
        for (i, state) in states.iter_mut().enumerate() {
            for row in 0..rows(i) {
                part.row_mut(to).copy_from_slice(frames[i].row(state.frames() + row));
                to += 1;
            }
            if i % 5 == step {
                let saved = search.save(&mut exec, state);
                *state = SearchState::from_bytes(&saved, &model.decoder, &options(i)).unwrap();
            }
        }
        search.step(&mut exec, &model.decoder, &mut part, &spans, &mut states);
    }
    search.flush(&mut exec, &model.decoder, &mut states);
    exec.status().unwrap();
    states.iter().map(SearchState::finish).collect()
}

/// Compares what a device decided (of every other stream, or of all) with what the host did.
fn agree(model: &Model, options: impl Fn(usize) -> SearchOptions) {
    let guarded = |i| SearchOptions { repeat_guard: GUARD, ..options(i) };
    let want = readings(model, guarded);
    assert!(want.iter().filter(|w| w[0].tokens.len() > 3).count() > STREAMS / 2, "too little to find");
    let mixed = readings(model, |i| if i % 2 == 0 { guarded(i) } else { options(i) });
    for got in [readings(model, &options), mixed] {
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.len(), want.len(), "stream {i}");
            for (got, want) in got.iter().zip(want) {
                assert!((got.score - want.score).abs() < 1e-3, "stream {i}: {} {}", got.score, want.score);
                let facts = |h: &Hypothesis| -> Vec<_> {
                    h.tokens.iter().map(|t| (t.id, t.frame, t.duration)).collect()
                };
                assert_eq!(facts(got), facts(want), "stream {i}");
                for (a, b) in got.tokens.iter().zip(&want.tokens) {
                    assert!((a.log_prob - b.log_prob).abs() < 1e-4, "stream {i}");
                    assert!((a.confidence - b.confidence).abs() < 1e-4, "stream {i}");
                }
            }
        }
    }
}

#[test]
fn greedy_searches_are_decided_as_by_the_host() {
    backend::on_device();
    for kind in [Kind::Rnnt, Kind::Tdt] {
        let model = Model::new(kind, 5);
        let symbols = [None, Some(1), None, Some(2)];
        agree(&model, |i| SearchOptions { max_symbols: symbols[i % 4], ..SearchOptions::default() });
    }
}

#[test]
fn beams_are_searched_as_by_the_host() {
    backend::on_device();
    for kind in [Kind::Rnnt, Kind::Tdt] {
        let model = Model::new(kind, 5);
        agree(&model, |i| SearchOptions {
            max_symbols: [None, Some(1), Some(3)][i % 3],
            max_gap: [None, Some(6.0)][i / 2 % 2],
            sync_chunks: i % 4 == 3,
            ..SearchOptions::with_beam([4, 2, 3, 5][i % 4])
        });
    }
}
