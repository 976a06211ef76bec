//! Configuration files that are broken: read, or refused with words, never a panic. `VOCE_FUZZ_SECONDS` tries for longer.

use std::time::{Duration, Instant};

use super::settings::Settings;
use super::{moshi_config, options};

/// Files that are tried at least.
const FILES: usize = 3_000;

const SEEDS: [&str; 4] = [
    "host = '0.0.0.0'\nport = 9000\nspeak = ['pocket']\nspeak-slots = 3\nprecision = 'bf16'\napi-key = ['a', 'b']\n\
     keep-alive = '5m'\nkeep-warm = 'off'\ndevice = ['cuda:0', 'cpu']\nalias = ['a=b']\nmax-body-bytes = 1\n",
    "authorized_ids = ['a']\n[modules.asr]\npath = '/api/asr'\ntype = 'BatchedAsr'\nbatch_size = 64\n[modules.tts]\n\
     type = 'Tts'\npath = '/api/tts'\n[modules.tts.py]\nn_q = 24\n",
    include_str!("../../../../packaging/voce.toml"),
    "",
];

/// What TOML and its readers trip over.
const SHARP: [&str; 16] = [
    "'",
    "\"",
    "\"\"\"",
    "[",
    "]",
    "[[",
    "{",
    "}",
    "=",
    "\n",
    "#",
    "9223372036854775808",
    "-1",
    "1e999",
    "\\u{0}",
    "é\u{202e}",
];

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

fn broken(dice: &mut Dice) -> String {
    let mut letters: Vec<char> =
        SEEDS[dice.below(SEEDS.len())].chars().filter(|c| *c != '#' || dice.below(2) > 0).collect();
    for _ in 0..1 + dice.below(5) {
        let at = dice.below(letters.len() + 1);
        let end = (at + dice.below(12)).min(letters.len());
        match dice.below(4) {
            0 => drop(letters.drain(at..end)),
            1 => {
                let part = letters[at..end].to_vec();
                letters.splice(at..at, part);
            }
            2 => letters.truncate(at),
            _ => drop(letters.splice(at..end, SHARP[dice.below(SHARP.len())].chars())),
        }
    }
    letters.into_iter().collect()
}

#[test]
fn files_that_are_broken_are_read_or_refused() {
    let seconds = std::env::var("VOCE_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let flags = Settings { hear: vec!["x".into()], speak: vec!["y".into()], ..Settings::default() };
    let (mut dice, mut tried, mut good) = (Dice(1), 0, 0);
    while tried < FILES || Instant::now() < end {
        tried += 1;
        let text = broken(&mut dice);
        let Ok(table) = text.parse::<toml::Table>() else { continue };
        let settings = if moshi_config::is_one(&table) {
            moshi_config::read(&text, &flags)
        } else {
            toml::from_str::<Settings>(&text).map_err(|e| e.to_string())
        };
        match settings {
            Ok(settings) if settings.api_key_file.is_none() => {
                good += usize::from(options(&flags.clone().over(settings)).is_ok());
            }
            Ok(_) => {}
            Err(words) => assert!(!words.is_empty(), "{text}"),
        }
    }
    assert!(good > 0, "some are still good");
}
