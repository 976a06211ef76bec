//! Which files of a repository a pull takes.

/// Whether `path` is matched by `pattern`, in which `*` stands for any text, also across `/`, and `?` for one character.
pub(super) fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<char>, Vec<char>) = (pattern.chars().collect(), path.chars().collect());
    let (mut p, mut s) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while s < path.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, s));
                p += 1;
            }
            Some(c) if *c == '?' || *c == path[s] => {
                p += 1;
                s += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    s = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

const NEVER_NEEDED: [&str; 16] = [
    ".git*",
    "*/.git*",
    "*.md",
    "*.png",
    "*.jpg",
    "*.jpeg",
    "*.gif",
    "*.svg",
    "*.mp4",
    "*.pdf",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.onnx_data",
    "*.tflite",
    "*.gguf",
];

/// The files to take: those under `place`, and of them those that match one of `patterns`.
///
/// Without patterns, what no model needs is left out, and so are pickled weights and `.nemo`
/// archives where safetensors are there.
pub(super) fn select(files: &[String], place: Option<&str>, patterns: &[String]) -> Vec<String> {
    if let Some(exact) = place.and_then(|place| files.iter().find(|file| *file == place)) {
        return vec![exact.clone()];
    }
    let below = |file: &str| match place {
        Some(place) => file.strip_prefix(place).is_some_and(|rest| rest.starts_with('/')),
        None => true,
    };
    let inside: Vec<&String> = files.iter().filter(|file| below(file)).collect();
    let safetensors = inside.iter().any(|file| file.ends_with(".safetensors"));
    let pickled =
        |file: &str| [".bin", ".pt", ".pth", ".ckpt", ".nemo"].iter().any(|end| file.ends_with(end));
    let wanted = |file: &str| {
        if patterns.is_empty() {
            let needless = NEVER_NEEDED.iter().any(|pattern| matches(pattern, file));
            !needless && (!safetensors || !pickled(file))
        } else {
            patterns.iter().any(|pattern| matches(pattern, file))
        }
    };
    inside.into_iter().filter(|file| wanted(file)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, path, expected) in [
            ("*", "a/b", true),
            ("*.json", "a/b.json", true),
            ("*.json", "a/b.jsonl", false),
            ("a/*/c", "a/b/b/c", true),
            ("m?del", "model", true),
            ("m?del", "mdel", false),
            ("", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn default_choice() {
        let files: Vec<String> =
            [".gitattributes", "README.md", "config.json", "model.safetensors", "pytorch_model.bin"]
                .map(str::to_owned)
                .to_vec();
        assert_eq!(select(&files, None, &[]), ["config.json", "model.safetensors"]);
        assert_eq!(select(&files[4..], None, &[]), ["pytorch_model.bin"]);
        assert_eq!(select(&files, None, &["*.md".to_owned()]), ["README.md"]);
        let both: Vec<String> =
            ["m.nemo", "config.json", "model.safetensors", "tokenizer.json"].map(str::to_owned).to_vec();
        assert_eq!(select(&both, None, &[]), both[1..]);
        assert_eq!(select(&both[..1], None, &[]), ["m.nemo"]);
        assert_eq!(select(&files, Some("README.md"), &[]), ["README.md"]);
    }

    #[test]
    fn folders() {
        let files: Vec<String> =
            ["en/m.safetensors", "en2/m.safetensors", "m.safetensors"].map(str::to_owned).to_vec();
        assert_eq!(select(&files, Some("en"), &[]), ["en/m.safetensors"]);
        assert!(select(&files, Some("fr"), &[]).is_empty());
    }
}
