//! The codes of what was said, as a file that scripts read.

use std::path::Path;

use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::whole_file;

/// Writes the frames' codes as one tensor `codes` of 32-bit integers, `[codebooks, frames]`.
pub(crate) fn write(path: &Path, frames: &[Vec<u32>]) -> Outcome {
    let Some(books) = frames.first().map(Vec::len) else {
        return Err(Failure::failed("this model speaks in no codes, or it said nothing: leave --codes out"));
    };
    let bytes = 4 * books * frames.len();
    let header = json!({
        "codes": {"dtype": "I32", "shape": [books, frames.len()], "data_offsets": [0, bytes]},
    });
    let mut header = header.to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    for book in 0..books {
        out.extend(frames.iter().flat_map(|frame| frame[book].to_le_bytes()));
    }
    whole_file::write(path, &out)
}
