//! Broken audio of every container at the doors that take files: always 2xx or 4xx, and never a decoder that panics.
//! `bench/malformed.py` sends 20,000 such files to a release build; these are a few of them on every commit.

use std::sync::Arc;

use voce_server::ears::NullEars;

use crate::dice::Dice;
use crate::server::{Body, Part, Setup};

/// Files of each container; `VOCE_MALFORMED` says otherwise.
const EACH: usize = 20;
/// Values that sizes and counts do not like.
const SHARP: [u64; 11] =
    [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, i64::MAX as u64, u64::MAX];

fn seeds() -> Vec<(String, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../voce-audio/tests/fixtures");
    let kinds = ["mp3", "m4a", "aac", "ogg", "opus", "webm", "aiff", "flac", "wav"];
    let mut seeds: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| kinds.iter().any(|k| e == *k)))
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&p).unwrap()))
        .collect();
    seeds.sort();
    assert!(kinds.iter().all(|k| seeds.iter().any(|(name, _)| name.ends_with(k))), "every container");
    seeds
}

/// New checksums for Ogg pages, so that what is broken in them is looked at.
fn mend_ogg(file: &mut [u8]) {
    let mut at = 0;
    while file.get(at..at + 27).is_some_and(|head| head.starts_with(b"OggS")) {
        let lacing = file.get(at + 27..at + 27 + usize::from(file[at + 26])).unwrap_or_default();
        let end = at + 27 + lacing.len() + lacing.iter().map(|&n| usize::from(n)).sum::<usize>();
        let Some(page) = file.get_mut(at..end) else { return };
        page[22..26].fill(0);
        let mut crc = 0u32;
        for &byte in &*page {
            crc ^= u32::from(byte) << 24;
            for _ in 0..8 {
                crc = if crc & 0x8000_0000 != 0 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
            }
        }
        page[22..26].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

fn damage(dice: &mut Dice, seeds: &[(String, Vec<u8>)], file: &[u8]) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..1 + dice.below(4) {
        // Heads are where the promises are.
        let reach = if dice.one_in(3) { bytes.len() } else { bytes.len().min(512) };
        let at = dice.below(reach);
        match dice.below(7) {
            0 => bytes.truncate(at),
            1 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
            2 | 3 => {
                let (value, size) = (*dice.pick(&SHARP), *dice.pick(&[1, 2, 4, 8]));
                let value = if dice.one_in(2) { value.to_le_bytes() } else { value.to_be_bytes() };
                let end = (at + size).min(bytes.len());
                bytes.splice(at..end, value[..end - at].iter().copied());
            }
            4 => {
                let other = &dice.pick(seeds).1;
                let from = dice.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            5 => {
                let part: Vec<u8> = bytes.iter().skip(at).take(dice.below(500)).copied().collect();
                bytes.splice(at..at, part.repeat(1 + dice.below(20)));
            }
            _ => {
                let end = (at + dice.below(300)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
    if dice.below(3) > 0 {
        mend_ogg(&mut bytes);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_files_of_every_container() {
    let each = std::env::var("VOCE_MALFORMED").ok().and_then(|n| n.parse().ok()).unwrap_or(EACH);
    let setup = Setup { speak: false, hear: Some(Arc::new(NullEars)), ..Default::default() };
    let server = setup.start().await;
    let seeds = seeds();
    for (name, file) in &seeds {
        for number in 0..each {
            let mut dice = Dice::new(number as u64 * 1_000 + name.len() as u64);
            let broken = damage(&mut dice, &seeds, file);
            let reply = if number % 2 == 0 {
                let request = server.request("POST", "/v1/listen").header("content-type", "audio/x");
                server.send(request.body(Body::new(broken.into())).unwrap()).await
            } else {
                let form = [("file", Part::File("a", broken.as_slice()))];
                server.form("/v1/audio/transcriptions", &form).await
            };
            let is_answer = reply.status.is_success() || reply.status.is_client_error();
            assert!(is_answer, "{name} {number}: {} {}", reply.status, reply.text());
            assert!(!reply.text().contains("decoder_fault"), "{name} {number}: a decoder panicked");
        }
    }
    server.until("voce_streams_active{kind=\"recognition\"}", 0.0).await;
}
