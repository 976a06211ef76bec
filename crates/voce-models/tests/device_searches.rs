//! Searches on a device: in changing company, and decided there as the host decides. The CUDA kernels, emulated on
//! machines without a GPU.

mod backend;
mod company;
mod decoders;

use decoders::{Kind, Model};
use voce_models::transducer::{Hypothesis, MAX_BEAM, RepeatGuard, Search, SearchOptions, SearchState};
use voce_runtime::{Buffer, Exec, Span};

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

/// The number of streams, and the most frames that their last step has.
type Size = (usize, usize);

/// What streams find whose frames come in cuts of many sizes, none among them; `options` are stream i's.
fn readings(
    exec: &mut Exec,
    model: &Model,
    (streams, longest): Size,
    options: impl Fn(usize) -> SearchOptions,
) -> Vec<Vec<Hypothesis>> {
    let mut search = Search::new(&model.decoder, 2);
    let width = model.decoder.frame_width();
    let mut frames: Vec<Buffer> = (0..streams).map(|i| model.frames(7 + i as u64, 70)).collect();
    // Logits without a number.
    frames[1].row_mut(4).fill(f32::INFINITY);
    let mut states: Vec<SearchState> =
        (0..streams).map(|i| SearchState::new(&model.decoder, &options(i)).unwrap()).collect();
    for step in 0..4 {
        let rows = |i: usize| if step < 3 { (5 * i + 3 * step) % 11 } else { longest - i % (longest + 1) };
        let spans: Vec<Span> = (0..streams).map(|i| Span { slot: 0, rows: rows(i) }).collect();
        let mut part = Buffer::new(spans.iter().map(|s| s.rows).sum(), width);
        let mut to = 0;
        for (i, state) in states.iter_mut().enumerate() {
            for row in 0..rows(i) {
                part.row_mut(to).copy_from_slice(frames[i].row(state.frames() + row));
                to += 1;
            }
            if i % 5 == step {
                let saved = search.save(exec, state);
                *state = SearchState::from_bytes(&saved, &model.decoder, &options(i)).unwrap();
            }
        }
        search.step(exec, &model.decoder, &mut part, &spans, &mut states);
    }
    search.flush(exec, &model.decoder, &mut states);
    exec.status().unwrap();
    states.iter().map(SearchState::finish).collect()
}

/// Compares what a device decided with what a CPU finds: of all streams, and of some beside others that the host decides.
fn agree(kind: Kind, seed: u64, size: Size, options: impl Fn(usize) -> SearchOptions) {
    let want = readings(&mut Exec::new(1).unwrap(), &Model::on_cpu(kind, seed), size, &options);
    let found = want.iter().map(|w| w[0].tokens.len()).sum::<usize>();
    assert!(found > 3 * size.0, "too little to find");
    let model = Model::new(kind, seed);
    // A device's guard takes no cycles as long as this.
    let guard = Some(RepeatGuard { cycle: 20, repeats: 1000 });
    let mixed = |i: usize| {
        let o = options(i);
        let repeat_guard = if i % 2 == 1 && o.repeat_guard.is_none() { guard } else { o.repeat_guard };
        SearchOptions { repeat_guard, ..o }
    };
    let mut exec = backend::exec(1);
    for got in [readings(&mut exec, &model, size, &options), readings(&mut exec, &model, size, mixed)] {
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
fn greedy_searches_are_decided_as_by_a_cpu() {
    backend::on_device();
    for kind in [Kind::Rnnt, Kind::Tdt] {
        // The longest is more than what a device does before it tells.
        agree(kind, 5, (7, 30), |i| SearchOptions {
            max_symbols: [None, Some(1), None, Some(2)][i % 4],
            repeat_guard: (i % 3 == 0).then_some(RepeatGuard { cycle: 2, repeats: 1 + i % 2 }),
            ..SearchOptions::default()
        });
    }
}

#[test]
fn beams_are_searched_as_by_a_cpu() {
    backend::on_device();
    for kind in [Kind::Rnnt, Kind::Tdt] {
        agree(kind, 5, (7, 18), |i| SearchOptions {
            max_symbols: [None, Some(1), Some(3)][i % 3],
            max_gap: [None, Some(6.0)][i / 2 % 2],
            sync_chunks: i % 4 == 3,
            repeat_guard: (i % 3 == 2).then_some(RepeatGuard { cycle: 2, repeats: 2 }),
            ..SearchOptions::with_beam([4, 2, 3, 5][i % 4])
        });
    }
}

#[test]
fn the_widest_beam_fits() {
    backend::on_device();
    for kind in [Kind::Rnnt, Kind::Tdt] {
        agree(kind, 5, (2, 1), |_| SearchOptions::with_beam(MAX_BEAM));
    }
}
