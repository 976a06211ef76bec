//! Tokens, frames, durations and text are those of the published packages.

use voce_engine::listener::ListenRequest;

use crate::support::{chunk, clip, expected, hear, numbers, open};

#[test]
fn streaming_models_hear_what_the_package_hears_at_every_chunk() {
    for name in ["stream", "stream_left70", "stream_nobias"] {
        let (listener, json) = (open(name, 1), expected(name));
        let audio = clip(json["audio"].as_str().unwrap().trim_start_matches("audio/"));
        for run in json["runs"].as_array().unwrap() {
            let ahead = run["lookahead"].as_u64().unwrap() as u32;
            let heard = hear(&listener, &chunk((ahead + 1) * 80), &audio);
            assert_eq!(heard.tokens(), numbers(&run["greedy"]["tokens"]), "{name} {ahead}");
            assert_eq!(heard.frames(), numbers(&run["greedy"]["frames"]), "{name} {ahead}");
            assert_eq!(heard.segments.len(), 1);
            assert_eq!(heard.segments[0].text, run["text"].as_str().unwrap());
            assert!(heard.segments[0].durations.is_empty());
        }
    }
}

#[test]
fn offline_models_hear_what_the_package_hears() {
    for name in ["tdt", "rnnt", "ctc"] {
        let (listener, json) = (open(name, 2), expected(name));
        let heard = hear(&listener, &ListenRequest::default(), &clip("a.wav"));
        let greedy = &json["greedy"];
        assert_eq!(heard.tokens(), numbers(&greedy["tokens"]), "{name}");
        assert_eq!(heard.frames(), numbers(&greedy["frames"]), "{name}");
        assert_eq!(heard.segments[0].text, json["text"].as_str().unwrap(), "{name}");
        if name == "tdt" {
            assert_eq!(heard.segments[0].durations, numbers(&greedy["durations"]));
        }
    }
}

#[test]
fn archives_and_folders_are_the_same_model() {
    let audio = clip("a.wav");
    for (name, archive) in [("stream", "nemo/stream.nemo"), ("tdt", "nemo/tdt.nemo")] {
        let (a, b) = (open(name, 1), open(archive, 1));
        let request = ListenRequest::default();
        assert_eq!(hear(&a, &request, &audio), hear(&b, &request, &audio), "{name}");
    }
}

#[test]
fn languages_choose_the_prompt() {
    let (listener, json) = (open("prompt", 1), expected("prompt"));
    assert!(listener.info().languages.iter().any(|l| l == "de-DE"));
    for run in json["runs"].as_array().unwrap() {
        let language = run["language"].as_str().unwrap();
        let ahead = run["lookahead"].as_u64().unwrap() as u32;
        let asked = (language != "auto").then(|| language.to_owned());
        let request = chunk((ahead + 1) * 80).with_language(asked);
        let heard = hear(&listener, &request, &clip("a.wav"));
        assert_eq!(heard.tokens(), numbers(&run["greedy"]["tokens"]), "{language}");
        // However it is spelled.
        let spelled =
            request.with_language((language != "auto").then(|| language.replace('-', "_").to_uppercase()));
        assert_eq!(hear(&listener, &spelled, &clip("a.wav")), heard, "{language}");
    }
    for unknown in ["ja", "zz", ""] {
        let refused = listener.check(&ListenRequest::default().with_language(Some(unknown.into())));
        assert!(refused.unwrap_err().to_string().contains("de-DE"), "{unknown}");
    }
}

#[test]
fn words_have_times_and_confidences() {
    let listener = open("stream", 1);
    let heard = hear(&listener, &chunk(320).with_partials(true), &clip("a.wav"));
    let segment = &heard.segments[0];
    assert_eq!(heard.words, segment.words, "every word was told once");
    assert!(heard.partials > 0);
    let joined: Vec<_> = segment.words.iter().map(|w| w.text.as_str()).collect();
    assert_eq!(joined.join(" "), segment.text);
    for w in &segment.words {
        assert!(w.start < w.end && (0.0..=1.0).contains(&w.confidence), "{w:?}");
    }
    assert!(segment.words.windows(2).all(|p| p[0].start <= p[1].start));
    assert_eq!(segment.words[0].start, segment.frames[0] as f64 * 0.08);
    assert_eq!((segment.start, segment.end), (segment.words[0].start, segment.words.last().unwrap().end));
}

#[test]
fn beams_tell_readings() {
    let listener = open("stream", 1);
    let request = chunk(320).with_beam(4).with_nbest(3);
    let heard = hear(&listener, &request, &clip("a.wav"));
    let nbest = &heard.segments[0].nbest;
    assert_eq!(nbest.len(), 3);
    assert_eq!((&nbest[0].text, &nbest[0].tokens), (&heard.segments[0].text, &heard.segments[0].tokens));
    let text = std::fs::read_to_string(crate::support::fixtures().join("stream/search.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let run = json["runs"].as_array().unwrap().iter().find(|r| r["name"] == "malsd4").unwrap();
    for (got, want) in nbest.iter().zip(run["nbest"].as_array().unwrap()) {
        let tokens: Vec<usize> = got.tokens.iter().map(|&t| t as usize).collect();
        assert_eq!(tokens, numbers(&want["tokens"]));
        assert!((f64::from(got.score) - want["score"].as_f64().unwrap()).abs() < 1e-3);
    }
}
