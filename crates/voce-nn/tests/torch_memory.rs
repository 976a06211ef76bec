//! Memory while a hostile checkpoint is read stays within a bound. Alone in its process: it looks at the process's peak.
#![cfg(target_os = "linux")]

use voce_nn::weights::{MAX_OPCODES, MAX_PICKLE, TorchFile};

/// Bytes that reading a checkpoint may add to the peak, its file not counted.
const BOUND: u64 = 256 << 20;

/// Most bytes that this process has held at once.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// A zip of one stored member.
fn zip(name: &str, bytes: &[u8]) -> Vec<u8> {
    let size = (bytes.len() as u32).to_le_bytes();
    let length = (name.len() as u16).to_le_bytes();
    let mut out = b"PK\x03\x04\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    out.extend([&size[..], &size, &length, &[0, 0], name.as_bytes(), bytes].concat());
    let directory = out.len() as u32;
    out.extend(b"PK\x01\x02\x2d\0\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0");
    out.extend([&size[..], &size, &length, &[0; 16], name.as_bytes()].concat());
    let directory_size = out.len() as u32 - directory;
    out.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    out.extend([directory_size.to_le_bytes(), directory.to_le_bytes()].concat());
    out.extend([0, 0]);
    out
}

/// Reads a checkpoint with this pickle; says what is wrong with it and what the peak grew by.
fn read(pickle: Vec<u8>) -> (String, u64) {
    assert!(pickle.len() as u64 <= MAX_PICKLE);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), zip("a/data.pkl", &pickle)).unwrap();
    drop(pickle);
    // The peak counts from here on; where that cannot be asked for, what was held before hides some of the growth.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = peak();
    let error = TorchFile::open(file.path()).err().map_or_else(String::new, |e| e.to_string());
    assert!(error.len() < 1000, "{} bytes of message", error.len());
    (error, peak() - before)
}

#[test]
fn hostile_pickles_take_bounded_memory() {
    // A tensor, remembered as 0; and one name of sixteen megabytes, remembered as 1.
    let mut start =
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n".to_vec();
    start.extend(b"X\x01\0\0\x000X\x03\0\0\0cpuK\x04tQK\0K\x04\x85K\x01\x85\x89NtRq\x000");
    let mut name = vec![b'X'];
    name.extend((16u32 << 20).to_le_bytes());
    name.extend(vec![b'n'; 16 << 20]);
    name.extend(b"q\x010");

    let under = |entries: usize| [&start, &name, &b"}("[..], &b"h\x01h\0".repeat(entries), b"u."].concat();
    let (said, grown) = read(under(20_000));
    assert!(said.contains("a name is too long"), "{said}");
    assert!(grown < BOUND, "20,000 entries under one name: {grown} bytes");
    let (said, grown) = read(under(2_000_000));
    assert!(said.contains("too many opcodes"), "{said}");
    assert!(grown < BOUND, "two million entries under one name: {grown} bytes");

    // A storage of that name, for as many tensors as there may be.
    let mut storage = b"\x80\x02".to_vec();
    storage.extend(&name);
    storage.extend(b"(X\x07\0\0\0storagectorch\nFloatStorage\nh\x01X\x03\0\0\0cpuK\x04tQq\x020");
    storage.extend(b"ctorch._utils\n_rebuild_tensor_v2\n(h\x02K\0))\x89NtR0".repeat(20_000));
    storage.extend(b"}.");
    let (said, grown) = read(storage);
    assert!(said.contains("a name is too long"), "{said}");
    assert!(grown < BOUND, "{grown} bytes");

    // As much of everything that takes memory as the opcodes allow.
    for (what, each) in [
        ("tuples", &b")"[..]),
        ("nested tuples", b"\x85"),
        ("dicts", b"}"),
        ("texts", b"X\0\0\0\0"),
        ("memos", b"\x94"),
        ("marks", b"("),
    ] {
        let many = [&b"\x80\x02N"[..], &each.repeat(MAX_OPCODES - 4), b"."].concat();
        let (_, grown) = read(many);
        assert!(grown < BOUND, "{what}: {grown} bytes");
    }
}
