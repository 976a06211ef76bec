//! Streams of one search in changing company: what the search holds of each between steps is its own, whoever joins,
//! leaves, is copied or goes on from a snapshot beside it.

mod backend;
mod company;
mod decoders;

use company::run;
use decoders::{Kind, Model};
use proptest::prelude::*;
use voce_models::transducer::{Search, SearchOptions, SearchState};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn company_changes_nothing(
        seed in 0u64..1000,
        events in prop::collection::vec((0u8..9, 0usize..64, 0u64..64), 1..14),
    ) {
        for kind in Kind::ALL {
            run(kind, seed, &events)?;
        }
    }
}

/// The next search has other rows: a state that one holds is not another's.
#[test]
#[should_panic(expected = "stays with its search")]
fn a_stream_of_another_search_is_noticed() {
    let (mut exec, model) = (backend::exec(1), Model::new(Kind::Rnnt, 3));
    let mut state = [SearchState::new(&model.decoder, &SearchOptions::default()).unwrap()];
    let frames = model.frames(3, 2);
    model.feed(&mut exec, &mut Search::new(&model.decoder, 1), &mut state, &frames, 0..1);
    model.feed(&mut exec, &mut Search::new(&model.decoder, 1), &mut state, &frames, 1..2);
}
