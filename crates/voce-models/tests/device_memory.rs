//! What a recogniser takes of a device's memory: as much as its shape says, all of it beforehand.

mod backend;
mod decoders;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use decoders::{Kind, Model};
use voce_models::fastconformer::{FastConformer, FastConformerConfig, FastConformerParts, random_weights};
use voce_models::hearing::{EarRoom, Hearing};
use voce_models::transducer::{Search, SearchOptions, SearchState};
use voce_nn::{Formats, Loader, Precision};
use voce_runtime::Exec;
use voce_runtime::cuda::Device;
use voce_text::Tokenizer;

/// A tokeniser of as many tokens, whose text means nothing.
fn tokenizer(tokens: usize) -> Tokenizer {
    let vocab: Vec<(String, f32)> = (0..tokens).map(|i| (format!("t{i}"), -1.0)).collect();
    let json = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": null, "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": vocab},
    });
    Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap()
}

fn model(device: &Arc<Device>, precision: Precision) -> FastConformer {
    let config = FastConformerConfig::named("nano-ear").unwrap();
    let loader = Loader::new(random_weights(1, &config)).on(device.clone());
    let (tokenizer, formats) = (tokenizer(config.vocab), Formats::on_device(precision));
    let parts =
        FastConformerParts { config, tokenizer, precision, formats, on_device: true, languages: Vec::new() };
    FastConformer::load(parts, &loader, &mut Exec::on(device).unwrap()).unwrap()
}

#[test]
fn an_ear_takes_what_its_shape_says() {
    let device = Device::emulated().unwrap();
    for precision in [Precision::Bf16, Precision::F32] {
        let model = model(&device, precision);
        for (slots, slot_frames, frames) in [(1, 28, 28), (64, 14, 896), (100, 14, 1400)] {
            let room = EarRoom { slots, slot_frames, frames };
            let mut exec = Exec::on(&device).unwrap();
            let before = device.used();
            let mut ear = model.ear(room);
            let reserved = ear.reserve(&mut exec).unwrap();
            reserved.check().unwrap();
            let (took, said) = (device.used() - before, model.footprint(room).total(room));
            assert!(took <= said, "{precision}: {took} of {said} for {room:?}");
            assert!(said < 2 * took, "{precision}: {said} was said and {took} taken for {room:?}");
        }
    }
}

#[test]
fn a_search_that_finds_no_room_for_more_beams_goes_on() {
    let memory = Arc::new(AtomicU64::new(8 << 30));
    let device = Device::emulated_with(memory.clone()).unwrap();
    let mut exec = Exec::on(&device).unwrap();
    let model = Model::on(&device, Kind::Rnnt, 1);
    let (options, frames) = (SearchOptions::with_beam(3), model.frames(5, 24));
    let heard = |exec: &mut Exec, refuse: bool| {
        let mut search = Search::new(&model.decoder, 1);
        let mut state = [SearchState::new(&model.decoder, &options).unwrap()];
        model.feed(exec, &mut search, &mut state, &frames, 0..12);
        if refuse {
            memory.store(device.used() as u64, Ordering::Relaxed);
            assert!(search.make_room(exec, 1, 1 << 20, 12).unwrap_err().is_out_of_memory());
            exec.status().unwrap();
            memory.store(8 << 30, Ordering::Relaxed);
            search.make_room(exec, 1, 1 << 10, 12).unwrap();
        }
        model.feed(exec, &mut search, &mut state, &frames, 12..24);
        search.flush(exec, &model.decoder, &mut state);
        state[0].finish()
    };
    let want = heard(&mut exec, false);
    assert_eq!(heard(&mut exec, true), want);
    assert!(!want[0].tokens.is_empty());
}
