//! The two hashes by which the hub names a file's content: SHA-256 for large files, git's blob hash for others.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// A hash in progress, of the kind that an entity tag asks for.
pub(super) enum Digest {
    /// A large file: the tag is the SHA-256 of the content.
    Sha256(Sha256),
    /// A file kept in git: the tag is the SHA-1 of a header and the content.
    GitBlob(Sha1),
    /// The tag is no hash, so that only the size can be checked.
    None,
}

impl Digest {
    /// The digest that `etag` can be compared with, for a file of `size` bytes.
    pub(super) fn for_etag(etag: &str, size: u64) -> Self {
        let hex = etag.bytes().all(|b| b.is_ascii_hexdigit());
        match (hex, etag.len()) {
            (true, 64) => Self::Sha256(Sha256::new()),
            (true, 40) => {
                let mut hash = Sha1::new();
                hash.update(format!("blob {size}\0").as_bytes());
                Self::GitBlob(hash)
            }
            _ => Self::None,
        }
    }

    /// Adds bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
            Self::None => {}
        }
    }

    /// The hash in lower-case hex; `None` where there was nothing to compare with.
    pub(super) fn finish(self) -> Option<String> {
        match self {
            Self::Sha256(hash) => Some(hex(&hash.finalize())),
            Self::GitBlob(hash) => Some(hex(&hash.finalize())),
            Self::None => None,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]])
        .map(char::from)
        .collect()
}

/// An entity tag without its quotes and weakness mark; `None` where it could not be a file's name.
pub(super) fn clean_etag(header: &str) -> Option<String> {
    let tag = header.trim();
    let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
    let good = (1..=128).contains(&tag.len())
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !tag.starts_with('.')
        && !tag.ends_with(".incomplete");
    good.then(|| tag.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(etag: &str, content: &[u8]) -> Option<String> {
        let mut digest = Digest::for_etag(etag, content.len() as u64);
        digest.update(content);
        digest.finish()
    }

    #[test]
    fn known_hashes() {
        // `printf 'hello\n' | git hash-object --stdin` and `| sha256sum`.
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(digest(git, b"hello\n").as_deref(), Some(git));
        assert_eq!(digest(sha, b"hello\n").as_deref(), Some(sha));
        assert_eq!(digest("opaque-7", b"hello\n"), None);
    }

    #[test]
    fn etags() {
        assert_eq!(clean_etag("\"abc\"").as_deref(), Some("abc"));
        assert_eq!(clean_etag("W/\"abc\"").as_deref(), Some("abc"));
        assert_eq!(clean_etag("abc-12").as_deref(), Some("abc-12"));
        for bad in ["", "\"\"", "../x", "a/b", ".hidden", "a b", "x.incomplete"] {
            assert_eq!(clean_etag(bad), None, "{bad}");
        }
    }
}
