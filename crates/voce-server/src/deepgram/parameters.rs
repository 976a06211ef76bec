//! What becomes of each of Deepgram's parameters. One that would change what is returned, cost money or keep a secret is
//! never ignored: it is done, or refused by name. docs/protocols/deepgram.md has the same lists.

use crate::core::error::ServerError;
use crate::core::query::{Query, is_no, short};

/// Those that are done.
const DONE: [&str; 14] = [
    "beam",
    "channels",
    "chunk_ms",
    "detect_language",
    "encoding",
    "endpointing",
    "interim_results",
    "keyterm",
    "keywords",
    "language",
    "model",
    "sample_rate",
    "utterance_end_ms",
    "vad_events",
];
/// Those that are taken and change nothing: how a text is written that the model writes in its own way, and labels of the
/// client's own. Stock clients send some of them with every request.
const WITHOUT_EFFECT: [&str; 16] = [
    "callback_method",
    "dictation",
    "extra",
    "filler_words",
    "measurements",
    "mip_opt_out",
    "no_delay",
    "numerals",
    "paragraphs",
    "punctuate",
    "smart_format",
    "tag",
    "tier",
    "utt_split",
    "utterances",
    "version",
];
/// Those that are refused unless they are off.
const REFUSED: [&str; 23] = [
    "alternatives",
    "callback",
    "custom_intent",
    "custom_intent_mode",
    "custom_topic",
    "custom_topic_mode",
    "detect_entities",
    "detect_topics",
    "diarize",
    "diarize_model",
    "diarize_version",
    "intents",
    "language_hint",
    "multichannel",
    "ner",
    "profanity_filter",
    "redact",
    "replace",
    "search",
    "sentiment",
    "summarize",
    "topics",
    "translate",
];
/// Keys and tokens of this server, which are read elsewhere.
const OWN: [&str; 4] = ["api_key", "auth_id", "resume", "token"];

/// Refuses what is asked for and not done.
pub(super) fn check(query: &Query) -> Result<(), ServerError> {
    for (name, value) in query.iter() {
        let is_known = [&DONE[..], &WITHOUT_EFFECT, &OWN].iter().any(|names| names.contains(&name));
        // One alternative is what there is.
        let is_one = name == "alternatives" && value == "1";
        if is_known || is_one || is_no(value) {
            continue;
        }
        if let Some(name) = REFUSED.into_iter().find(|refused| *refused == name) {
            let message = format!("{name} is not done here: leave it out, or send {name}=false");
            return Err(ServerError::bad(name, message));
        }
        let name = short(name);
        return Err(ServerError::malformed(format!(
            "the parameter '{name}' is not known here: leave it out"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(query: &str) -> Option<String> {
        check(&Query::parse(query)).err().map(|error| error.to_string())
    }

    #[test]
    fn every_name_has_one_fate() {
        let all = [&DONE[..], &WITHOUT_EFFECT, &REFUSED, &OWN].concat();
        let mut names = all.clone();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn what_would_change_the_answer_is_refused_by_name_unless_it_is_off() {
        for name in REFUSED {
            for off in ["false", "False", "0", "off", "no"] {
                assert_eq!(said(&format!("{name}={off}")), None);
            }
            for on in ["=true", "=2", "=pci", "=http://a.example/", "=x&model=nova-3", ""] {
                assert!(said(&format!("model=nova-3&{name}{on}")).unwrap().contains(name), "{name}{on}");
            }
        }
        assert!(said("redact=false&redact=ssn").unwrap().contains("redact"));
        assert!(said("alternatives=3").unwrap().contains("alternatives"));
        assert_eq!(said("alternatives=1"), None);
        assert!(said("brand_new=yes").unwrap().contains("brand_new"));
        assert_eq!(said("brand_new=false"), None);
    }

    /// As deepgram-sdk 7.16 of Python, 5.13 of Node, LiveKit's plugin 1.8.9 and pipecat 1.14 write their queries.
    #[test]
    fn what_stock_clients_send_is_taken() {
        for query in [
            "model=nova-3&encoding=linear16&sample_rate=16000",
            "model=nova-3&punctuate=true&smart_format=false&no_delay=true&interim_results=true&encoding=linear16&\
             vad_events=true&sample_rate=16000&channels=1&endpointing=25&filler_words=true&profanity_filter=false&\
             numerals=false&mip_opt_out=false&language=en-US",
            "model=nova-3&punctuate=true&detect_language=false&smart_format=false&profanity_filter=false&numerals=false&\
             mip_opt_out=false&language=en-US",
            "detect_entities=false&diarize=false&dictation=false&interim_results=true&numerals=false&punctuate=true&\
             smart_format=false&model=nova-3-general&language=en&encoding=linear16&channels=1&multichannel=false&\
             sample_rate=16000",
            "tag=a&extra=k:v&version=latest&tier=nova&utterances=true&utt_split=0.8&paragraphs=true",
            "token=k1&resume=abc",
        ] {
            assert_eq!(said(query), None, "{query}");
        }
    }
}
