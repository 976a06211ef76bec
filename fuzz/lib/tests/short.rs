//! A short run of every target: its seeds, then seeds that were broken. `VOCE_FUZZ_SECONDS` gives each target more time,
//! `VOCE_FUZZ_TARGET` chooses one, `VOCE_FUZZ_SEED` begins elsewhere. What fails is written to `fuzz/artifacts/`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voce_fuzz::TARGETS;

/// Largest seed: small ones are tried more often.
const MAX_SEED: u64 = 64 * 1024;

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Values that lengths and counts do not like.
const SHARP: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

fn mutate(dice: &mut Dice, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[dice.below(seeds.len())].clone();
    for _ in 0..1 + dice.below(6) {
        // Heads are where the promises are.
        let reach = if dice.below(2) == 0 { bytes.len().min(128) } else { bytes.len() };
        let at = dice.below(reach);
        match dice.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
            1 if !bytes.is_empty() => bytes[at] = dice.next() as u8,
            2 => bytes.truncate(at),
            3 | 4 => {
                let value = SHARP[dice.below(SHARP.len())];
                let size = [1, 2, 4, 8][dice.below(4)];
                let value =
                    if dice.below(2) == 0 { value.to_le_bytes() } else { value.swap_bytes().to_le_bytes() };
                let value = if value[0] == 0 && value[7] != 0 { &value[8 - size..] } else { &value[..size] };
                let end = (at + size).min(bytes.len());
                bytes.splice(at.min(end)..end, value.iter().copied());
            }
            5 => {
                let length = dice.below(64);
                let part: Vec<u8> = bytes.iter().skip(at).take(length).copied().collect();
                bytes.splice(at..at, part);
            }
            6 => {
                let other = &seeds[dice.below(seeds.len())];
                let from = dice.below(other.len());
                let part: Vec<u8> =
                    other[from.min(other.len())..].iter().take(dice.below(256)).copied().collect();
                let end = (at + part.len()).min(bytes.len());
                bytes.splice(at.min(end)..end, part);
            }
            _ => {
                let end = (at + dice.below(16)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
        }
    }
    bytes
}

fn read(folder: &Path, seeds: &mut Vec<Vec<u8>>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        if path.metadata().is_ok_and(|m| m.is_file() && m.len() <= MAX_SEED) {
            seeds.extend(std::fs::read(path));
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_target_returns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let time = Duration::from_secs(setting("VOCE_FUZZ_SECONDS").unwrap_or(1));
    let chosen = std::env::var("VOCE_FUZZ_TARGET").ok();
    let mut failures = Vec::new();
    for &(name, target, others) in TARGETS {
        if chosen.as_deref().is_some_and(|c| c != name) {
            continue;
        }
        let mut seeds = Vec::new();
        read(&root.join("fuzz/corpus").join(name), &mut seeds);
        let own = seeds.len();
        others.iter().for_each(|folder| read(&root.join(folder), &mut seeds));
        assert!(own > 0 || !others.is_empty(), "{name} has no corpus");
        seeds.push(Vec::new());
        let mut dice = Dice(setting("VOCE_FUZZ_SEED").unwrap_or(0));
        let begun = Instant::now();
        let mut runs = 0usize;
        let mut slowest = Duration::ZERO;
        while runs < seeds.len() || begun.elapsed() < time {
            let input = if runs < seeds.len() { seeds[runs].clone() } else { mutate(&mut dice, &seeds) };
            runs += 1;
            let now = Instant::now();
            if std::panic::catch_unwind(|| target(&input)).is_err() {
                let folder = root.join("fuzz/artifacts");
                std::fs::create_dir_all(&folder).unwrap();
                let path = folder.join(format!("{name}-{runs}"));
                std::fs::write(&path, &input).unwrap();
                failures.push(path);
                break;
            }
            slowest = slowest.max(now.elapsed());
        }
        println!("{name}: {runs} inputs from {} seeds, the slowest {slowest:?}", seeds.len());
    }
    assert!(failures.is_empty(), "{failures:?}");
}
