//! Small files that appear whole or not at all.

use std::path::Path;

use voce_audio::output::{Output as _, open_output};

use crate::failure::Outcome;

/// Writes `bytes` as `path`.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Outcome {
    let mut output = open_output(path)?;
    output.put(bytes)?;
    Ok(output.commit()?)
}
