//! Archives of models: what is read, and what hostile ones end in.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use voce_nn::WeightError;
use voce_nn::weights::{MAX_MEMBERS, TarFile};

fn block(name: &[u8], size: &str, kind: u8) -> Vec<u8> {
    let mut b = vec![0u8; 512];
    b[..name.len()].copy_from_slice(name);
    b[100..108].copy_from_slice(b"0000644\0");
    b[124..124 + size.len()].copy_from_slice(size.as_bytes());
    b[156] = kind;
    b[257..265].copy_from_slice(b"ustar\x0000");
    checksum(&mut b);
    b
}

fn checksum(b: &mut [u8]) {
    b[148..156].fill(b' ');
    let sum: u32 = b.iter().map(|&x| u32::from(x)).sum();
    b[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

fn member(name: &str, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = block(name.as_bytes(), &format!("{:011o}", body.len()), kind);
    out.extend(body);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn tar(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut out = parts.concat();
    out.extend([0; 1024]);
    out
}

fn open(bytes: &[u8]) -> Result<TarFile, WeightError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    TarFile::open(file.path())
}

fn error(bytes: &[u8]) -> String {
    match open(bytes) {
        Ok(_) => panic!("accepted"),
        Err(e) => e.to_string(),
    }
}

fn text(tar: &TarFile, name: &str) -> Vec<u8> {
    tar.required(name).unwrap().bytes(1000).unwrap()
}

#[test]
fn members_are_found_under_every_kind_of_name() {
    let long = format!("{}/x", "d".repeat(120));
    let record = |text: &str| {
        let len = text.len() + 1;
        let digits = (len + 3).to_string().len();
        format!("{} {text}\n", len + 1 + digits)
    };
    let pax = record(&format!("path={long}2")) + &record("mtime=1.5");
    let bytes = tar(&[
        member("./", b'5', b""),
        member("./model_config.yaml", b'0', b"a: 1"),
        member("plain", 0, b"p"),
        member("././@LongLink", b'L', format!("./{long}\0").as_bytes()),
        member("cut off", b'0', b"long"),
        member("PaxHeader", b'x', pax.as_bytes()),
        member("cut off", b'0', b"pax"),
        member("global", b'g', record("comment=x").as_bytes()),
    ]);
    let tar = open(&bytes).unwrap();
    assert_eq!(text(&tar, "model_config.yaml"), b"a: 1");
    assert_eq!(text(&tar, "plain"), b"p");
    assert_eq!(text(&tar, &long), b"long");
    assert_eq!(text(&tar, &format!("{long}2")), b"pax");
    assert_eq!(tar.names().count(), 4);
    let Err(e) = tar.required("model_weights.ckpt") else { panic!() };
    assert!(e.to_string().contains("no 'model_weights.ckpt'"), "{e}");
    assert!(tar.required("plain").unwrap().bytes(0).is_err());
}

#[test]
fn gzip_is_unpacked_and_bombs_are_not() {
    let pack = |bytes: &[u8]| {
        let mut gz = GzEncoder::new(Vec::new(), Compression::default());
        gz.write_all(bytes).unwrap();
        gz.finish().unwrap()
    };
    let packed = pack(&tar(&[member("a", b'0', b"body")]));
    assert_eq!(text(&open(&packed).unwrap(), "a"), b"body");
    assert!(error(&packed[..packed.len() - 9]).contains("gzip"));
    let bomb = pack(&vec![0u8; 70 << 20]);
    assert!(error(&bomb).contains("unpacks to more than"));
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for name in ["../x", "a/../../x", "/etc/passwd", "./../x", "a\\..\\x", "c:x", "a//b", "."] {
        let text = error(&tar(&[member(name, b'0', b"")]));
        assert!(text.contains("leave the archive"), "{name}: {text}");
    }
}

#[test]
fn links_devices_and_doubles_are_refused() {
    for (kind, word) in [(b'1', "link"), (b'2', "link"), (b'3', "kind"), (b'6', "kind")] {
        assert!(error(&tar(&[member("x", kind, b"")])).contains(word));
    }
    assert!(error(&tar(&[member("x", b'0', b"1"), member("./x", b'0', b"2")])).contains("twice"));
}

#[test]
fn sizes_that_lie_are_refused() {
    for size in ["00000002001", "77777777777", "notanumber!"] {
        let mut bytes = block(b"x", size, b'0');
        bytes.extend([0; 1024]);
        let _ = error(&bytes);
    }
    // A binary size of all ones, and one of the member's real length.
    for (digits, fine) in [([0xffu8; 8], false), (4u64.to_be_bytes(), true)] {
        let mut bytes = member("x", b'0', b"body");
        bytes[124..136].fill(0);
        bytes[124] = 0x80;
        bytes[128..136].copy_from_slice(&digits);
        checksum(&mut bytes[..512]);
        bytes.extend([0; 1024]);
        assert_eq!(open(&bytes).is_ok(), fine);
    }
    let many: Vec<Vec<u8>> = (0..=MAX_MEMBERS).map(|i| member(&format!("m{i}"), b'0', b"")).collect();
    assert!(error(&tar(&many)).contains("members"));
    assert!(open(&tar(&many[1..])).is_ok());
}

#[test]
fn truncations_and_other_files_are_errors() {
    let whole = tar(&[member("a", b'0', &[7; 700]), member("b", b'0', b"x")]);
    for cut in [0, 1, 511, 512, 900, 1023] {
        let _ = error(&whole[..cut]);
    }
    assert!(error(b"PK\x03\x04 something else entirely").contains("not a tar"));
    assert!(error(&[b'x'; 4096]).contains("not a tar"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damage_never_panics(edits in prop::collection::vec((0usize..2600, any::<u8>()), 1..4), fix in any::<bool>()) {
        let pax = "17 path=somewhere\n12 size=700\n";
        let mut bytes = tar(&[member("p", b'x', pax.as_bytes()), member("a", b'0', &[7; 700])]);
        let len = bytes.len();
        for (at, byte) in edits {
            bytes[at % len] = byte;
        }
        if fix {
            checksum(&mut bytes[..512]);
            checksum(&mut bytes[1024..1536]);
        }
        if let Ok(tar) = open(&bytes) {
            let names: Vec<String> = tar.names().map(str::to_owned).collect();
            for name in names {
                let _ = tar.required(&name).unwrap().bytes(1 << 20);
            }
        }
    }
}
