//! Searches as streams: cuts, neighbours, snapshots and utterances change nothing that they should not.

mod backend;
mod decoders;

use std::sync::Arc;

use decoders::{Kind, Model, labels};
use proptest::prelude::*;
use voce_models::transducer::{
    Boost, BoostRule, Method, Ngram, RepeatGuard, Search, SearchOptions, SearchState, Token,
};
use voce_runtime::{Buffer, Exec, Span};

/// Options of many sorts for a model.
fn sorts(kind: Kind) -> Vec<SearchOptions> {
    let boost = Boost::new([(vec![3, 4, 5], 1.0), (vec![4, 1], 2.0)], BoostRule::default()).unwrap();
    let boost = Some(Arc::new(boost));
    let lm = Some(Arc::new(decoders::lm()));
    let beam = SearchOptions::with_beam;
    let mut all = vec![
        beam(1),
        SearchOptions { boost: boost.clone(), ..beam(1) },
        beam(2),
        SearchOptions { max_gap: Some(3.0), ..beam(5) },
        SearchOptions { lm: lm.clone(), boost: boost.clone(), ..beam(4) },
        SearchOptions { repeat_guard: Some(RepeatGuard { cycle: 3, repeats: 2 }), ..beam(3) },
        SearchOptions { lm, max_symbols: Some(2), ..beam(1) },
    ];
    if kind == Kind::Rnnt {
        all.push(SearchOptions { method: Method::ModifiedBeam, boost, ..beam(4) });
    }
    all
}

fn exec() -> Exec {
    backend::exec(1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn cuts_do_not_change_the_result(seed in 0u64..1000, cuts in prop::collection::vec(0usize..9, 1..8)) {
        let mut exec = exec();
        for kind in Kind::ALL {
            let model = Model::new(kind, seed);
            let frames = model.frames(seed, cuts.iter().sum());
            for options in sorts(kind) {
                let whole = model.search(&mut exec, &options, &frames, &[frames.rows()]);
                let parts = model.search(&mut exec, &options, &frames, &cuts);
                prop_assert_eq!(whole, parts, "{:?} {:?}", kind, options);
            }
        }
    }

    #[test]
    fn neighbours_do_not_change_the_result(seed in 0u64..1000, lengths in prop::collection::vec(0usize..14, 8)) {
        let mut exec = exec();
        for kind in Kind::ALL {
            let model = Model::new(kind, seed);
            let sorts = sorts(kind);
            let streams: Vec<Buffer> =
                lengths.iter().enumerate().map(|(i, &n)| model.frames(seed + i as u64, n)).collect();
            let option = |i: usize| &sorts[i % sorts.len()];
            let alone: Vec<_> = (0..streams.len())
                .map(|i| model.search(&mut exec, option(i), &streams[i], &[streams[i].rows()]))
                .collect();
            // Stream i joins at step i / 2, takes i % 3 + 1 frames a step, and leaves when it has no more.
            let mut search = Search::new(&model.decoder, 2);
            let mut states: Vec<SearchState> =
                (0..streams.len()).map(|i| SearchState::new(&model.decoder, option(i)).unwrap()).collect();
            let mut at = vec![0; streams.len()];
            let mut step = 0;
            while at.iter().zip(&streams).any(|(&at, s)| at < s.rows()) {
                let mut rows = Vec::new();
                let mut live: Vec<(usize, &mut SearchState)> = states
                    .iter_mut()
                    .enumerate()
                    .filter(|(i, _)| i / 2 <= step && at[*i] < streams[*i].rows())
                    .collect();
                let spans: Vec<Span> = live
                    .iter()
                    .map(|(i, _)| {
                        let n = (i % 3 + 1).min(streams[*i].rows() - at[*i]);
                        rows.extend((at[*i]..at[*i] + n).flat_map(|r| streams[*i].row(r).iter().copied()));
                        at[*i] += n;
                        Span { slot: 0, rows: n }
                    })
                    .collect();
                let width = model.decoder.frame_width();
                let mut frames = Buffer::new(rows.len() / width, width);
                frames.head_mut(rows.len() / width).copy_from_slice(&rows);
                let mut live: Vec<&mut SearchState> = live.iter_mut().map(|(_, s)| &mut **s).collect();
                search.step(&mut exec, &model.decoder, &mut frames, &spans, &mut live);
                step += 1;
            }
            search.flush(&mut exec, &model.decoder, &mut states);
            for (i, state) in states.iter().enumerate() {
                prop_assert_eq!(&state.finish(), &alone[i], "{:?} stream {}", kind, i);
            }
        }
    }

    #[test]
    fn a_restored_stream_goes_on_as_if_nothing_had_been(seed in 0u64..1000, first in 0usize..12, rest in 1usize..12) {
        let mut exec = exec();
        for kind in Kind::ALL {
            let model = Model::new(kind, seed);
            let frames = model.frames(seed, first + rest);
            for options in sorts(kind) {
                let whole = model.search(&mut exec, &options, &frames, &[first, rest]);
                let mut search = Search::new(&model.decoder, 1);
                let mut state = [SearchState::new(&model.decoder, &options).unwrap()];
                model.feed(&mut exec, &mut search, &mut state, &frames, 0..first);
                let bytes = search.save(&mut exec, &state[0]);
                let mut state = [SearchState::from_bytes(&bytes, &model.decoder, &options).unwrap()];
                prop_assert_eq!(&search.save(&mut exec, &state[0]), &bytes);
                model.feed(&mut exec, &mut search, &mut state, &frames, first..first + rest);
                search.flush(&mut exec, &model.decoder, &mut state);
                prop_assert_eq!(state[0].finish(), whole, "{:?}", kind);
            }
        }
    }

    #[test]
    fn damaged_snapshots_are_refused_or_usable(seed in 0u64..50, at in 0.0f64..1.0, byte: u8, cut: bool) {
        let mut exec = exec();
        for kind in Kind::ALL {
            let model = Model::new(kind, seed);
            let frames = model.frames(seed, 9);
            for options in sorts(kind) {
                let mut search = Search::new(&model.decoder, 1);
                let mut state = [SearchState::new(&model.decoder, &options).unwrap()];
                model.feed(&mut exec, &mut search, &mut state, &frames, 0..8);
                let mut bytes = search.save(&mut exec, &state[0]);
                let place = (at * bytes.len() as f64) as usize;
                if cut {
                    bytes.truncate(place);
                } else {
                    bytes[place] = byte;
                }
                if let Ok(state) = SearchState::from_bytes(&bytes, &model.decoder, &options) {
                    let mut state = [state];
                    model.feed(&mut exec, &mut search, &mut state, &frames, 8..9);
                    search.flush(&mut exec, &model.decoder, &mut state);
                    state[0].finish();
                    state[0].silence();
                }
            }
        }
    }
}

#[test]
fn stable_labels_never_change_and_end_as_the_result() {
    let mut exec = exec();
    for kind in Kind::ALL {
        for seed in 0..12 {
            let model = Model::new(kind, seed);
            let frames = model.frames(seed, 40);
            for options in sorts(kind) {
                let mut search = Search::new(&model.decoder, 1);
                let mut state = [SearchState::new(&model.decoder, &options).unwrap()];
                let mut taken: Vec<Token> = Vec::new();
                for at in (0..40).step_by(4) {
                    model.feed(&mut exec, &mut search, &mut state, &frames, at..at + 4);
                    taken.extend_from_slice(state[0].take_stable());
                    assert!(state[0].take_stable().is_empty());
                    assert_eq!(state[0].stable(), taken);
                    assert!(state[0].tokens().starts_with(&taken));
                }
                search.flush(&mut exec, &model.decoder, &mut state);
                let all = state[0].finish();
                assert!(all.iter().all(|h| h.tokens.starts_with(&taken)), "{kind:?} seed {seed}");
            }
        }
    }
}

#[test]
fn utterances_after_a_reset_are_as_if_alone_but_for_the_clock() {
    let mut exec = exec();
    for kind in Kind::ALL {
        for seed in 0..8 {
            let model = Model::new(kind, seed);
            let (a, b) = (model.frames(seed, 15), model.frames(seed + 100, 12));
            for options in sorts(kind) {
                let mut search = Search::new(&model.decoder, 1);
                let mut state = [SearchState::new(&model.decoder, &options).unwrap()];
                model.feed(&mut exec, &mut search, &mut state, &a, 0..15);
                search.flush(&mut exec, &model.decoder, &mut state);
                let first = state[0].finish();
                state[0].reset_utterance(&model.decoder);
                assert!(state[0].tokens().is_empty() && state[0].stable().is_empty());
                assert_eq!(state[0].frames(), 15);
                assert_eq!(state[0].silence(), 0);
                model.feed(&mut exec, &mut search, &mut state, &b, 0..12);
                search.flush(&mut exec, &model.decoder, &mut state);
                let second = state[0].finish();
                assert_eq!(model.search(&mut exec, &options, &a, &[15]), first);
                // A duration or a repeated label may reach over the border: only then may it differ.
                let reaches = kind == Kind::Tdt || kind == Kind::Ctc;
                if !reaches {
                    let mut alone = model.search(&mut exec, &options, &b, &[12]);
                    alone.iter_mut().for_each(|h| h.tokens.iter_mut().for_each(|t| t.frame += 15));
                    assert_eq!(second, alone, "{kind:?} seed {seed} {options:?}");
                }
                assert!(second.iter().all(|h| h.tokens.iter().all(|t| t.frame >= 15)));
            }
        }
    }
}

#[test]
fn silence_counts_frames_after_the_last_label() {
    let mut exec = exec();
    for kind in Kind::ALL {
        let model = Model::new(kind, 5);
        let options = SearchOptions::default();
        let mut search = Search::new(&model.decoder, 1);
        let mut state = [SearchState::new(&model.decoder, &options).unwrap()];
        let frames = model.frames(5, 30);
        for at in 0..30 {
            model.feed(&mut exec, &mut search, &mut state, &frames, at..at + 1);
            let end = state[0].tokens().last().map_or(0, |t| t.frame + t.duration.max(1));
            assert_eq!(state[0].silence(), (at + 1).saturating_sub(end), "{kind:?}");
        }
    }
}

#[test]
fn the_guard_ends_repetition_in_every_search() {
    let mut exec = exec();
    let guard = Some(RepeatGuard { cycle: 2, repeats: 3 });
    for kind in Kind::ALL {
        for seed in 0..20 {
            let model = Model::new(kind, seed);
            let frames = model.frames(seed, 60);
            for beam in [1, 4] {
                let options = SearchOptions { repeat_guard: guard, ..SearchOptions::with_beam(beam) };
                for h in model.search(&mut exec, &options, &frames, &[20, 20, 20]) {
                    let ids = labels(&h.tokens);
                    for cycle in 1..=2 {
                        let long = ids.windows(4 * cycle).any(|w| w[cycle..] == w[..3 * cycle]);
                        assert!(!long, "{kind:?} beam {beam} seed {seed}: {ids:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let model = Model::new(Kind::Tdt, 1);
    let new = |o: SearchOptions| SearchState::new(&model.decoder, &o).map(|_| ()).unwrap_err().to_string();
    let base = SearchOptions::default;
    assert!(new(SearchOptions { beam: 0, ..base() }).contains("beam of 0"));
    assert!(new(SearchOptions { beam: 33, ..base() }).contains("beam of 33"));
    assert!(new(SearchOptions { method: Method::ModifiedBeam, beam: 4, ..base() }).contains("malsd"));
    assert!(new(SearchOptions { lm_weight: f32::NAN, ..base() }).contains("NaN"));
    assert!(new(SearchOptions { max_gap: Some(0.0), ..base() }).contains("gap of 0"));
    assert!(new(SearchOptions { max_symbols: Some(0), ..base() }).contains("symbols"));
    let boost = Boost::new([(vec![500], 1.0)], BoostRule::default()).unwrap();
    assert!(new(SearchOptions { boost: Some(Arc::new(boost)), ..base() }).contains("500"));
    let arpa = "\\data\\\nngram 1=1\n\n\\1-grams:\n-1 a\n\n\\end\\\n";
    let lm = Some(Arc::new(Ngram::read(arpa.as_bytes(), &["a", "b"]).unwrap()));
    assert!(new(SearchOptions { lm, ..base() }).contains("2 labels"));
}
