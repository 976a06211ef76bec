//! `voce doctor --compile-kernels`: GPU kernels compiled ahead of their first use, for this machine or for a package.

use std::path::Path;
use std::time::Instant;

use serde_json::json;
use voce_runtime::cuda::{self, GENERATIONS};

use crate::console::{Console, bytes, milliseconds};
use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// Compiles for the generations that are named, each into its file.
pub(crate) fn run(console: Console, generations: &str, folder: Option<&Path>) -> Outcome {
    let mut made = Vec::new();
    for capability @ (major, minor) in chosen(generations)? {
        interrupt::check()?;
        let progress = console.progress();
        progress.set_message(format!("compiling kernels for sm_{major}{minor}"));
        let begun = Instant::now();
        let path = cuda::compile_kernels(folder, capability).map_err(|e| Failure::failed(e.to_string()))?;
        progress.finish_and_clear();
        let size = std::fs::metadata(&path).map_or(0, |file| file.len());
        let took = begun.elapsed();
        console.note(&format!(
            "sm_{major}{minor}: {} in {:.1} s, {}",
            bytes(size),
            took.as_secs_f64(),
            path.display()
        ));
        made.push(json!({
            "generation": format!("{major}{minor}"), "file": path, "bytes": size, "compile_ms": milliseconds(took),
        }));
    }
    if console.json { console.json(&json!({ "kernels": made })) } else { Ok(()) }
}

/// Compute capabilities by their names.
fn chosen(generations: &str) -> Outcome<Vec<(u32, u32)>> {
    match generations {
        "all" => return Ok(GENERATIONS.to_vec()),
        "here" => {
            let found = cuda::devices().map_err(|e| Failure::failed(e.to_string()))?;
            let mut found: Vec<(u32, u32)> = found.iter().map(|gpu| gpu.capability).collect();
            found.sort_unstable();
            found.dedup();
            return Ok(found);
        }
        _ => {}
    }
    let known = |name: &str| {
        let name = name.trim();
        let digits = name.strip_prefix("sm_").or(name.strip_prefix("sm")).unwrap_or(name).replace('.', "");
        let found = GENERATIONS.into_iter().find(|(major, minor)| digits == format!("{major}{minor}"));
        found.ok_or_else(|| {
            let all: Vec<String> =
                GENERATIONS.iter().map(|(major, minor)| format!("{major}{minor}")).collect();
            let all = all.join(", ");
            Failure::usage(format!(
                "'{name}' is no generation that kernels are compiled for: use all, or some of {all}"
            ))
        })
    };
    generations.split(',').map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_have_several_names() {
        assert_eq!(chosen("80,sm_90, 12.0").unwrap(), [(8, 0), (9, 0), (12, 0)]);
        assert_eq!(chosen("all").unwrap(), GENERATIONS);
        for bad in ["", "70", "sm_9", "80,,90", "volta"] {
            assert!(chosen(bad).is_err(), "{bad}");
        }
    }
}
