//! `voce doctor`: what this machine is, what will run on it, and about how fast.

use serde_json::json;
use voce_engine::speaker::default_threads;
use voce_engine::store::{Store, catalogue};
use voce_nn::{Formats, Precision};
use voce_runtime::{CPU_ENV, Exec, Isa};

use crate::bench::limits::product_rate;
use crate::console::{Console, bytes, round, table};
use crate::embedded;
use crate::failure::Outcome;
use crate::machine;
use crate::parameters::Parameters;

/// Frames a second of every Pocket TTS model.
const FRAME_RATE: f64 = 12.5;

/// Runs the command.
pub(crate) fn run(console: Console) -> Outcome {
    let store = Store::from_env()?;
    let settings = store.settings();
    let isa = Isa::from_env()?;
    let threads = default_threads();
    let names: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    let parts = catalogue::find("pocket").map(|e| Parameters::of_shape(&e.shape)).unwrap_or_default();
    let working_set = parts.frame_bytes(Precision::Int8, isa) as usize;
    let progress = console.progress();
    progress.set_message("measuring memory bandwidth");
    let one = machine::read_bandwidth(working_set, 1);
    let all = if threads > 1 { machine::read_bandwidth(working_set, threads) } else { one };
    progress.set_message("measuring products");
    let mut exec = Exec::with_isa(threads, isa)?;
    let mut rates = Vec::new();
    for p in Precision::ON_CPU {
        let formats = Formats::new(p, isa);
        let frame = parts.frame_bytes(p, isa);
        // Both numbers are floors: no kernel reads faster than memory, and other work comes on top.
        let rtf = frame as f64 / all * FRAME_RATE;
        rates.push((p, formats, frame, product_rate(&mut exec, formats.backbone), rtf));
    }
    progress.finish_and_clear();
    let memory = machine::memory();
    let free = machine::free_disk(&settings.hub_cache);
    let device = cfg!(feature = "device");
    let (built_in, fetched) =
        (embedded::all().len(), store.list().iter().filter(|m| embedded::behind(m).is_none()).count());
    let gpus = voce_runtime::cuda::devices();
    let gpu = match &gpus {
        Ok(gpus) => gpus.iter().map(|g| format!("{g}: {}", gpu_precisions(g))).collect::<Vec<_>>().join("; "),
        Err(e) => e.to_string(),
    };
    if console.json {
        let precisions: Vec<_> = rates
            .iter()
            .map(|(p, f, frame, rate, rtf)| {
                json!({
                    "precision": p.name(), "backbone": f.backbone.name(), "linear": f.linear.name(),
                    "conv": f.conv.name(), "frame_bytes": frame, "gmac_per_s": round(rate / 1e9, 1),
                    "rtf_limit": round(*rtf, 4),
                })
            })
            .collect();
        return console.json(&json!({
            "cpu": machine::cpu_name(), "cores": machine::cores(), "threads": threads, "isa": isa.name(),
            "isa_available": names, "memory_bytes": memory.map(|m| m.0), "memory_free_bytes": memory.map(|m| m.1),
            "huge_pages": machine::huge_pages(), "read_gb_per_s_1": round(one / 1e9, 2),
            "read_gb_per_s": round(all / 1e9, 2), "hub_cache": settings.hub_cache, "voce_home": settings.voce_home,
            "free_disk_bytes": free, "offline": settings.offline, "sound_card": device, "gpu": gpus.is_ok(), "gpus": gpu,
            "models": fetched, "embedded": built_in, "pocket_100m": precisions,
        }));
    }
    let unknown = || "unknown".to_owned();
    let facts = [
        ("CPU", format!("{}, {} cores, {threads} threads by default", machine::cpu_name(), machine::cores())),
        ("instructions", format!("{isa} in use, of {} ({CPU_ENV} overrides)", names.join(", "))),
        (
            "memory",
            memory.map_or_else(unknown, |(all, free)| format!("{}, {} available", bytes(all), bytes(free))),
        ),
        ("huge pages", machine::huge_pages().unwrap_or_else(unknown)),
        ("bandwidth", format!("{:.1} GB/s with 1 thread, {:.1} with {threads}", one / 1e9, all / 1e9)),
        ("GPU", gpu),
        (
            "sound card",
            if device { "built in".into() } else { "not built in: build with --features device".to_owned() },
        ),
        (
            "models",
            format!("{built_in} in the binary, {fetched} here; cache {}", settings.hub_cache.display()),
        ),
        ("disk", free.map_or_else(unknown, |n| format!("{} free for models", bytes(n)))),
        ("voices", format!("{} of yours in {}", store.voices().list().len(), store.voices().dir().display())),
        ("network", if settings.offline { "offline mode is on".into() } else { settings.endpoint.clone() }),
    ];
    let mut out = table(&facts.map(|(name, value)| vec![name.to_owned(), value]), &[]);
    let mut rows = vec![
        ["PRECISION", "BACKBONE", "LINEAR", "CONV", "GMAC/S", "PER FRAME", "RTF AT BEST"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (p, f, frame, rate, rtf) in rates {
        rows.push(vec![
            if p == Precision::Int8 { format!("{p} (auto)") } else { p.to_string() },
            f.backbone.name().into(),
            f.linear.name().into(),
            f.conv.name().into(),
            format!("{:.0}", rate / 1e9),
            bytes(frame),
            format!("{rtf:.4}"),
        ]);
    }
    out.push_str("\nWhat runs, and the real-time factor of pocket-100m if memory were the only limit:\n");
    out.push_str(&table(&rows, &[4, 5, 6]));
    out.push_str("`voce bench say --shape pocket-100m` measures the real one.\n");
    console.result(&out)
}

/// The precisions that a GPU has kernels for.
fn gpu_precisions(gpu: &voce_runtime::cuda::DeviceInfo) -> String {
    let runs = Precision::ON_GPU.into_iter().filter(|p| *p != Precision::Fp8 || gpu.has_fp8());
    let name = |p: Precision| if p == Precision::Bf16 { format!("{p} (auto)") } else { p.to_string() };
    runs.map(name).collect::<Vec<_>>().join(", ")
}
