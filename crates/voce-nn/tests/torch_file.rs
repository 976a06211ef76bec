//! Torch checkpoints: values of every type and layout, and what hostile ones end in.

use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use voce_nn::weights::{MAX_NAME, MAX_OPCODES, MAX_TENSORS, TorchFile, Weights};
use voce_nn::{Loader, WeightError};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch").join(name)
}

fn open(bytes: &[u8]) -> Result<TorchFile, WeightError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    TorchFile::open(file.path())
}

fn error(bytes: &[u8]) -> String {
    match open(bytes) {
        Ok(_) => panic!("accepted"),
        Err(e) => e.to_string(),
    }
}

/// A zip of stored members; sizes and offsets are 64-bit ones where `large`.
fn zip(members: &[(&str, &[u8])], large: bool) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let at = out.len() as u32;
        let size = bytes.len() as u32;
        out.extend(b"PK\x03\x04\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0");
        out.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
        out.extend((name.len() as u16).to_le_bytes());
        out.extend([4, 0]);
        out.extend(name.as_bytes());
        out.extend(b"FB\0\0");
        out.extend(*bytes);
        directory.extend(b"PK\x01\x02\x2d\0\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let (size, at) = if large { (u32::MAX, u32::MAX) } else { (size, at) };
        directory.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
        directory.extend((name.len() as u16).to_le_bytes());
        let extra = if large { 28u16 } else { 0 };
        directory.extend(extra.to_le_bytes());
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
        if large {
            directory.extend([1, 0, 24, 0]);
            directory.extend((bytes.len() as u64).to_le_bytes());
            directory.extend((bytes.len() as u64).to_le_bytes());
            let start = out.len() - bytes.len() - 4 - name.len() - 30;
            directory.extend((start as u64).to_le_bytes());
        }
    }
    let (start, size, count) = (out.len(), directory.len(), members.len());
    out.extend(&directory);
    if large {
        let record = out.len() as u64;
        out.extend(b"PK\x06\x06");
        out.extend(44u64.to_le_bytes());
        out.extend([0; 12]);
        for value in [count, count, size, start] {
            out.extend((value as u64).to_le_bytes());
        }
        out.extend(b"PK\x06\x07\0\0\0\0");
        out.extend(record.to_le_bytes());
        out.extend(1u32.to_le_bytes());
    }
    out.extend(b"PK\x05\x06\0\0\0\0");
    let (count, size, start) =
        if large { (u16::MAX, u32::MAX, u32::MAX) } else { (count as u16, size as u32, start as u32) };
    out.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    out.extend([size.to_le_bytes(), start.to_le_bytes()].concat());
    out.extend([0, 0]);
    out
}

/// The pickle of `{'t': tensor}` with a storage of four floats.
fn pickle(offset: u8, shape: &[u8], strides: &[u8]) -> Vec<u8> {
    let mut out = b"\x80\x02}(X\x01\0\0\0tctorch._utils\n_rebuild_tensor_v2\n((".to_vec();
    out.extend(b"X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQK");
    out.push(offset);
    for sizes in [shape, strides] {
        out.push(b'(');
        sizes.iter().for_each(|&n| out.extend([b'K', n]));
        out.push(b't');
    }
    out.extend(b"\x89NtRu.");
    out
}

/// The pickle of a dict that holds one tensor, whose storage is `storage`, under each of these names.
fn pickle_of(names: impl IntoIterator<Item = String>, storage: &str) -> Vec<u8> {
    let text = |text: &str| {
        let mut out = vec![b'X'];
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
        out
    };
    let mut out = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((".to_vec();
    out.extend(b"X\x07\0\0\0storagectorch\nFloatStorage\n");
    out.extend(text(storage));
    out.extend(b"X\x03\0\0\0cpuK\x04tQK\0K\x04\x85K\x01\x85\x89NtRq\x000}(");
    for name in names {
        out.extend(text(&name));
        out.extend(b"h\0");
    }
    out.extend(b"u.");
    out
}

fn checkpoint(pickle: &[u8]) -> Vec<u8> {
    let floats: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    zip(&[("a/data.pkl", pickle), ("a/byteorder", b"little"), ("a/data/0", &floats)], false)
}

#[test]
fn values_of_every_type_and_layout_come_back() {
    for name in ["state.ckpt", "lightning.ckpt"] {
        let f = TorchFile::open(&fixture(name)).unwrap();
        let get = |name: &str| {
            let t = f.get(name, &[]).unwrap().unwrap();
            (t.shape, t.values)
        };
        assert_eq!(get("plain.weight"), (vec![2, 3], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(get("half"), (vec![2], vec![0.5, -2.0]));
        assert_eq!(get("bf16"), (vec![2], vec![1.0, -3.0]));
        assert_eq!(get("double"), (vec![1], vec![0.25]));
        assert_eq!(get("scalar"), (vec![], vec![7.0]));
        assert_eq!(get("empty"), (vec![0, 3], vec![]));
        assert_eq!(get("transposed"), (vec![3, 2], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
        assert_eq!(get("slice"), (vec![2, 3], vec![8.0, 9.0, 10.0, 14.0, 15.0, 16.0]));
        assert_eq!(get("shared"), (vec![2], vec![3.0, 4.0]));
        assert_eq!(get("parameter"), (vec![2], vec![4.0, 5.0]));
        assert_eq!(f.shape("slice"), Some(vec![2, 3]));
        for other in ["extra._extra_state", "none._extra_state", "nothing"] {
            assert!(f.get(other, &[]).unwrap().is_none() && f.shape(other).is_none(), "{other}");
        }
        for integers in ["counter", "mask"] {
            assert!(matches!(f.get(integers, &[]), Err(WeightError::Type { .. })));
        }
    }
}

#[test]
fn large_zip_records_are_read() {
    let floats: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    for large in [false, true] {
        let bytes = zip(&[("a/data.pkl", &pickle(1, &[3], &[1])), ("a/data/0", &floats)], large);
        let t = open(&bytes).unwrap().get("t", &[]).unwrap().unwrap();
        assert_eq!((t.shape, t.values), (vec![3], vec![2.0, 3.0, 4.0]));
    }
}

#[test]
fn a_checkpoint_with_code_is_named_for_what_it_would_run() {
    let Err(e) = TorchFile::open(&fixture("code.ckpt")) else { panic!("accepted") };
    assert!(matches!(e, WeightError::Code { .. }), "{e}");
    let text = e.to_string();
    assert!(text.contains("would run code") && text.contains("system"), "{text}");
}

#[test]
fn every_way_to_call_something_is_refused() {
    let programs: [(&str, &[u8]); 9] = [
        ("GLOBAL", b"\x80\x02cos\nsystem\n(X\x04\0\0\0truetR."),
        ("STACK_GLOBAL", b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."),
        ("INST", b"(S'true'\nios\nsystem\n."),
        ("OBJ", b"(cos\nsystem\nS'true'\no."),
        ("NEWOBJ", b"\x80\x02ccollections\nOrderedDict\n)\x81."),
        ("EXT1", b"\x80\x02\x82\x01."),
        ("PERSID", b"P0\n."),
        ("calling a tensor type", b"\x80\x02ctorch\nFloatStorage\n)R."),
        ("BUILD on a name", b"\x80\x02ccollections\nOrderedDict\n}b."),
    ];
    for (what, program) in programs {
        let Err(e) = open(&checkpoint(program)) else { panic!("{what} was accepted") };
        assert!(matches!(e, WeightError::Code { .. }), "{what}: {e}");
    }
    assert!(error(&checkpoint(b"\x80\x02cbuiltins\neval\n.")).contains("builtins.eval"));
}

#[test]
fn tensors_outside_their_storage_are_refused() {
    for (offset, shape, strides) in [
        (0, &[5][..], &[1][..]),
        (1, &[4], &[1]),
        (0, &[2, 2], &[3, 1]),
        (0, &[255, 255, 255], &[0, 0, 0]),
        (0, &[8], &[0]),
        (5, &[0], &[1]),
    ] {
        let text = error(&checkpoint(&pickle(offset, shape, strides)));
        assert!(text.contains("tensor 't'") && text.contains("outside its storage"), "{text}");
    }
    let whole = open(&checkpoint(&pickle(0, &[2, 1, 2], &[1, 255, 2]))).unwrap();
    assert_eq!(whole.get("t", &[]).unwrap().unwrap().values, [1.0, 3.0, 2.0, 4.0]);
}

#[test]
fn what_is_missing_or_foreign_is_said() {
    let good = pickle(0, &[4], &[1]);
    let floats = [0u8; 16];
    assert!(error(&zip(&[("a/data.pkl", &good)], false)).contains("data of tensor 't' is missing"));
    assert!(error(&zip(&[("a/data.pkl", &good), ("a/data/0", &floats[..15])], false)).contains("outside"));
    assert!(error(&zip(&[("a/data/0", &floats)], false)).contains("no data.pkl"));
    assert!(error(&zip(&[("a/data.pkl", &good), ("b/data.pkl", &good)], false)).contains("data.pkl"));
    assert!(error(&zip(&[("a/data.pkl", &good), ("a/data.pkl", &good)], false)).contains("twice"));
    let big = [("a/data.pkl", &good[..]), ("a/byteorder", b"big"), ("a/data/0", &floats)];
    assert!(error(&zip(&big, false)).contains("big-endian"));
    assert!(error(b"").contains("zip archive"));
    assert!(error(&[0x80; 4000]).contains("zip archive"));
}

#[test]
fn what_a_model_misses_is_named_with_what_it_expected() {
    let floats: Vec<u8> = [1f32, f32::NAN, 3.0, f32::INFINITY].iter().flat_map(|v| v.to_le_bytes()).collect();
    let bytes = zip(&[("a/data.pkl", &pickle(0, &[4], &[1])), ("a/data/0", &floats)], false);
    let loader = Loader::new(std::sync::Arc::new(open(&bytes).unwrap()));
    let text = |name: &str, shape: &[usize]| loader.tensor(name, shape).unwrap_err().to_string();
    assert!(text("t", &[4]).contains("'t' holds 2 values that are NaN"), "{}", text("t", &[4]));
    assert!(text("t", &[2, 2]).contains("has shape [4], expected [2, 2]"), "{}", text("t", &[2, 2]));
    assert!(text("u", &[3]).contains("'u' is missing (expected shape [3])"), "{}", text("u", &[3]));
}

#[test]
fn memo_and_depth_cost_no_stack() {
    let mut deep = b"\x80\x02)".to_vec();
    deep.extend(std::iter::repeat_n(0x85, 1 << 20));
    deep.extend(b"0}.");
    assert_eq!(open(&checkpoint(&deep)).unwrap().tensors().count(), 0);
    let mut marks = vec![b'('; 5 << 20];
    marks.push(b'.');
    assert!(error(&checkpoint(&marks)).contains("too many opcodes"));
}

#[test]
fn names_up_to_the_limit_and_not_past_it() {
    let with = |name: usize, storage: usize| {
        let storage = "s".repeat(storage);
        let pickle = pickle_of(["n".repeat(name)], &storage);
        let place = format!("a/data/{storage}");
        open(&zip(&[("a/data.pkl", &pickle), (&place, &[0; 16])], false))
    };
    let file = with(MAX_NAME, MAX_NAME).unwrap();
    assert_eq!(file.tensors().next().unwrap().0.len(), MAX_NAME);
    for (name, storage) in [(MAX_NAME + 1, 1), (1, MAX_NAME + 1)] {
        let Err(e) = with(name, storage) else { panic!("accepted") };
        assert!(e.to_string().contains("a name is too long"), "{e}");
    }
}

#[test]
fn tensors_up_to_the_limit_and_not_past_it() {
    let of = |count: usize| checkpoint(&pickle_of((0..count).map(|i| i.to_string()), "0"));
    assert_eq!(open(&of(MAX_TENSORS)).unwrap().tensors().count(), MAX_TENSORS);
    assert!(error(&of(MAX_TENSORS + 1)).contains("too many tensors"));
    // Tensors that are made and never kept count, too.
    let rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n(h\x01K\0))\x89NtR0";
    let start = b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQq\x010";
    let of = |count: usize| checkpoint(&[&start[..], &rebuild.repeat(count), b"}."].concat());
    assert_eq!(open(&of(MAX_TENSORS)).unwrap().tensors().count(), 0);
    assert!(error(&of(MAX_TENSORS + 1)).contains("too many tensors"));
}

#[test]
fn opcodes_up_to_the_limit_and_not_past_it() {
    let of = |count: usize| checkpoint(&[&b"N0".repeat(count / 2 - 1)[..], b"}."].concat());
    assert_eq!(open(&of(MAX_OPCODES)).unwrap().tensors().count(), 0);
    assert!(error(&of(MAX_OPCODES + 2)).contains("too many opcodes"));
}

#[test]
fn every_truncation_is_an_error() {
    let whole = std::fs::read(fixture("state.ckpt")).unwrap();
    for cut in (0..whole.len()).step_by(7) {
        let _ = error(&whole[..cut]);
    }
    let pickle = pickle(0, &[4], &[1]);
    for cut in 0..pickle.len() {
        let _ = error(&checkpoint(&pickle[..cut]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn damage_never_panics(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = std::fs::read(fixture("state.ckpt")).unwrap();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(f) = open(&bytes) {
            let names: Vec<String> = f.tensors().map(|(n, _)| n.to_owned()).collect();
            for name in names {
                let _ = f.get(&name, &[]);
            }
        }
    }

    #[test]
    fn damaged_pickles_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = pickle(0, &[2, 2], &[2, 1]);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(f) = open(&checkpoint(&bytes)) {
            let names: Vec<String> = f.tensors().map(|(n, _)| n.to_owned()).collect();
            for name in names {
                let _ = f.get(&name, &[]);
            }
        }
    }

    #[test]
    fn random_pickles_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = open(&checkpoint(&bytes));
    }
}
