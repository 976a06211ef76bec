//! The header is what cbindgen makes of the sources, and every entry stops panics.

use std::path::Path;

/// Set to write the header instead of comparing it.
const WRITE: &str = "VOCE_WRITE_HEADER";

#[test]
fn the_header_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let (path, text) = (root.join("include/voce.h"), String::from_utf8(text).unwrap());
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "include/voce.h is stale: `{WRITE}=1 cargo test -p voce-c --test header` writes it"
    );
    for word in ["voce_speak(", "VOCE_STATUS_OK", "VOCE_EVENT_KIND_FINAL", "voce_speaker **speaker"] {
        assert!(text.contains(word), "{word} is not in the header");
    }
}

#[test]
fn every_entry_goes_through_the_guard() {
    let mut entries = 0;
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for entry in text.split("extern \"C\" fn voce_").skip(1) {
            let (signature, body) = entry.split_once("{\n").unwrap();
            let first = body.lines().map(str::trim).find(|l| !l.starts_with("const ")).unwrap_or_default();
            let name = signature.split('(').next().unwrap_or_default();
            assert!(
                first.starts_with("guard(") || first.starts_with("guard_or("),
                "voce_{name} in {}",
                path.display()
            );
            entries += 1;
        }
    }
    assert!(entries > 20, "{entries} entries found");
}
