//! GGUF files: values of every type that is read, and files that are cut short, damaged or at the limits.

use std::io::Write as _;

use half::{bf16, f16};
use proptest::prelude::*;
use voce_nn::weights::{
    GgufFile, MAX_GGUF_DIMENSIONS, MAX_GGUF_ENTRIES, MAX_GGUF_NAME, MAX_GGUF_TENSORS, SafetensorsFile,
};
use voce_nn::{WeightError, Weights};

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut f = tempfile::NamedTempFile::new().unwrap();
    f.write_all(bytes).unwrap();
    f
}

/// A tensor of the file: name, dimensions with the innermost first, type and bytes.
type Made<'a> = (&'a str, &'a [u64], u32, Vec<u8>);

#[derive(Default)]
struct Writer {
    entries: Vec<u8>,
    count: u64,
    alignment: Option<u32>,
}

impl Writer {
    fn name(out: &mut Vec<u8>, name: &str) {
        out.extend((name.len() as u64).to_le_bytes());
        out.extend(name.as_bytes());
    }

    fn entry(mut self, name: &str, kind: u32, value: &[u8]) -> Self {
        Self::name(&mut self.entries, name);
        self.entries.extend(kind.to_le_bytes());
        self.entries.extend(value);
        self.count += 1;
        self
    }

    fn file(self, tensors: &[Made<'_>]) -> Vec<u8> {
        let alignment = self.alignment.unwrap_or(32) as usize;
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend(self.count.to_le_bytes());
        out.extend(&self.entries);
        let mut data: Vec<u8> = Vec::new();
        for (name, dimensions, kind, bytes) in tensors {
            data.resize(data.len().next_multiple_of(alignment), 0);
            Self::name(&mut out, name);
            out.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
        }
        out.resize(out.len().next_multiple_of(alignment), 0);
        out.extend(data);
        out
    }
}

fn q8(scale: f32, values: impl Fn(usize) -> i8) -> Vec<u8> {
    let mut block = f16::from_f32(scale).to_le_bytes().to_vec();
    block.extend((0..32).map(|i| values(i) as u8));
    block
}

fn sample() -> Vec<u8> {
    let f32s: Vec<u8> = [1f32, -2.0, 0.5, 4.0, 8.0, -16.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let halves: Vec<u8> = [0.5f32, -3.0].iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
    let brains: Vec<u8> = [0.25f32, 7.0].iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let mut blocks = q8(0.5, |i| i as i8 - 16);
    blocks.extend(q8(2.0, |i| -(i as i8)));
    let words: Vec<u8> = {
        let mut array = 8u32.to_le_bytes().to_vec();
        array.extend(2u64.to_le_bytes());
        for word in ["one", "two"] {
            Writer::name(&mut array, word);
        }
        array
    };
    Writer { alignment: Some(64), ..Writer::default() }
        .entry("general.alignment", 4, &64u32.to_le_bytes())
        .entry("general.name", 8, &[&4u64.to_le_bytes()[..], b"test"].concat())
        .entry("tokens", 9, &words)
        .entry("numbers", 9, &[&6u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[0; 8]].concat())
        .file(&[
            ("a", &[3, 2], 0, f32s),
            ("h", &[2], 1, halves),
            ("b", &[2], 30, brains),
            ("q", &[32, 2], 8, blocks),
            ("k", &[256], 12, vec![0; 144]),
        ])
}

#[test]
fn values_of_every_type_come_back() {
    let f = file(&sample());
    let g = GgufFile::open(f.path()).unwrap();
    let get = |name: &str| g.get(name, &[]).unwrap().unwrap();
    assert_eq!((get("a").shape, get("a").values), (vec![2, 3], vec![1.0, -2.0, 0.5, 4.0, 8.0, -16.0]));
    assert_eq!(get("h").values, [0.5, -3.0]);
    assert_eq!(get("b").values, [0.25, 7.0]);
    let q = get("q");
    assert_eq!(q.shape, [2, 32]);
    let expected = (0..32).map(|i| (i - 16) as f32 * 0.5).chain((0..32).map(|i| -(i as f32) * 2.0));
    assert_eq!(q.values, expected.collect::<Vec<_>>());
    assert_eq!(g.shape("q"), Some(vec![2, 32]));
    assert!(g.get("zzz", &[]).unwrap().is_none() && g.shape("zzz").is_none());
    let error = g.get("k", &[]).unwrap_err();
    assert!(matches!(error, WeightError::Type { .. }) && error.to_string().contains("Q8_0"), "{error}");
}

#[test]
fn a_file_is_known_by_its_first_bytes() {
    let gguf = file(&sample());
    let weights = voce_nn::weights::open(gguf.path()).unwrap();
    assert_eq!(weights.shape("a"), Some(vec![2, 3]));
    let listed = voce_nn::weights::shapes(gguf.path()).unwrap();
    assert!(listed.len() == 5 && listed.contains(&("q".into(), vec![2, 32])), "{listed:?}");
    let header = br#"{"s":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(1f32.to_le_bytes());
    let other = file(&bytes);
    assert!(SafetensorsFile::open(other.path()).is_ok());
    assert_eq!(voce_nn::weights::open(other.path()).unwrap().shape("s"), Some(vec![1]));
}

#[test]
fn every_truncation_is_an_error_that_names_the_file() {
    let whole = sample();
    // What comes after the last tensor that is read is padding of a type that is not.
    for cut in 0..whole.len() - 144 {
        let f = file(&whole[..cut]);
        let Err(error) = GgufFile::open(f.path()) else { panic!("cut at {cut} was accepted") };
        assert!(error.to_string().contains("fetch it again"), "{error}");
    }
}

/// The head of a file that claims so much and brings nothing.
fn claims(tensors: u64, entries: u64) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(tensors.to_le_bytes());
    out.extend(entries.to_le_bytes());
    out
}

fn refused(bytes: &[u8]) -> String {
    let f = file(bytes);
    GgufFile::open(f.path()).err().expect("it is refused").to_string()
}

#[test]
fn limits_and_one_past_them() {
    let many = (0..MAX_GGUF_TENSORS).map(|i| format!("{i}")).collect::<Vec<_>>();
    let tensors: Vec<Made<'_>> =
        many.iter().map(|name| (name.as_str(), &[0u64][..], 0, Vec::new())).collect();
    let f = file(&Writer::default().file(&tensors));
    assert_eq!(GgufFile::open(f.path()).unwrap().tensors().count() as u64, MAX_GGUF_TENSORS);
    assert!(refused(&claims(MAX_GGUF_TENSORS + 1, 0)).contains("claims"));
    assert!(refused(&claims(0, MAX_GGUF_ENTRIES)).contains("cut short"));
    assert!(refused(&claims(0, MAX_GGUF_ENTRIES + 1)).contains("claims"));
    for (length, fits) in [(MAX_GGUF_NAME, true), (MAX_GGUF_NAME + 1, false)] {
        let name = "x".repeat(length as usize);
        let f = file(&Writer::default().file(&[(&name, &[1], 0, vec![0; 4])]));
        assert_eq!(GgufFile::open(f.path()).is_ok(), fits, "{length}");
    }
    for (count, fits) in [(MAX_GGUF_DIMENSIONS, true), (MAX_GGUF_DIMENSIONS + 1, false)] {
        let dimensions = vec![1; count as usize];
        let f = file(&Writer::default().file(&[("x", &dimensions, 0, vec![0; 4])]));
        assert_eq!(GgufFile::open(f.path()).is_ok(), fits, "{count}");
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (tensors, why) in [
        (vec![("q", &[31u64, 2][..], 8, vec![0; 68])], "shape"),
        (vec![("q", &[u64::MAX, 2][..], 0, vec![0; 8])], "shape"),
        (vec![("q", &[3u64][..], 0, vec![0; 8])], "past the end"),
        (vec![("q", &[1u64][..], 0, vec![0; 4]), ("q", &[1][..], 0, vec![0; 4])], "twice"),
    ] {
        let error = refused(&Writer::default().file(&tensors));
        assert!(error.contains(why), "{why}: {error}");
    }
    let odd = Writer::default().entry("general.alignment", 4, &3u32.to_le_bytes()).file(&[]);
    assert!(refused(&odd).contains("general.alignment is 3"));
    let mut old = sample();
    old[4] = 1;
    assert!(refused(&old).contains("version 1"));
    let mut deep = 9u32.to_le_bytes().to_vec();
    deep.extend(1u64.to_le_bytes());
    let nested = Writer::default().entry("x", 9, &deep.repeat(20)).file(&[]);
    assert!(refused(&nested).contains("nested"));
    // An array that claims more strings than the file has bytes ends where the file does.
    let mut endless = 8u32.to_le_bytes().to_vec();
    endless.extend(u64::MAX.to_le_bytes());
    assert!(refused(&Writer::default().entry("x", 9, &endless).file(&[])).contains("cut short"));
}

proptest! {
    #[test]
    fn damaged_files_never_panic(at in 0usize..400, byte in any::<u8>()) {
        let mut bytes = sample();
        bytes[at] = byte;
        let f = file(&bytes);
        if let Ok(g) = GgufFile::open(f.path()) {
            for name in ["a", "h", "b", "q", "k"] {
                let _ = g.get(name, &[]);
            }
        }
    }
}
