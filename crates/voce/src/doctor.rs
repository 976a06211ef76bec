//! `voce doctor`: what this machine is, what will run on it, and about how fast.

use serde::Serialize;
use serde_json::{Map, Value, json};
use voce_engine::describe::AttentionInfo;
use voce_engine::speaker::default_threads;
use voce_engine::store::{Store, Task};
use voce_engine::{Description, DeviceChoice, auto, describe_shape, shapes};
use voce_nn::{Formats, Precision};
use voce_runtime::cuda::DeviceInfo;
use voce_runtime::{CPU_ENV, Exec, Format, Isa};

use crate::bench::limits::product_rate;
use crate::console::{Console, bytes, round, table};
use crate::embedded;
use crate::failure::Outcome;
use crate::machine;

/// A model to compare machines with: nothing of it is loaded.
struct Yardstick {
    task: Task,
    shape: &'static str,
    model: Description,
}

impl Yardstick {
    fn all() -> Outcome<Vec<Self>> {
        let mut all = Vec::new();
        for task in [Task::Speech, Task::Hearing, Task::Dialogue] {
            if let Some(shape) = shapes(task).next() {
                all.push(Self { task, shape, model: describe_shape(task, shape)? });
            }
        }
        Ok(all)
    }

    /// The command that measures it.
    fn command(&self) -> String {
        let command = match self.task {
            Task::Speech => "say",
            Task::Hearing => "hear",
            Task::Dialogue => "talk",
        };
        format!("`voce bench {command} --shape {}`", self.shape)
    }

    /// The kernels that its attention would run by, on a GPU or this CPU.
    fn attention(&self, precision: Precision, gpu: Option<&DeviceInfo>, isa: Isa) -> Vec<Attention> {
        let kernel = |part: &AttentionInfo| match gpu {
            Some(gpu) => part.shape(&Formats::on_device(precision)).on_device(gpu),
            None => part.shape(&Formats::new(precision, isa)).on_cpu(isa),
        };
        let parts = self.model.attention.iter();
        parts.map(|part| Attention { model: self.shape, part: part.name, kernel: kernel(part) }).collect()
    }

    /// The key of its figures.
    fn key(&self) -> String {
        self.shape.replace(['-', '.'], "_")
    }
}

/// Which kernel runs the attention of a part.
#[derive(Serialize)]
struct Attention {
    model: &'static str,
    part: &'static str,
    kernel: &'static str,
}

impl Attention {
    fn text(&self) -> String {
        format!("{} of {} by {}", self.part, self.model, self.kernel)
    }
}

/// What this machine reaches at one precision.
struct Reached {
    precision: Precision,
    formats: Formats,
    macs_per_s: f64,
}

impl Reached {
    /// The real-time factor of one stream if memory were the only limit.
    fn rtf(&self, model: &Description, read: f64) -> f64 {
        model.bytes_per_second(&self.formats) / read
    }
}

/// Runs the command.
pub(crate) fn run(console: Console) -> Outcome {
    let store = Store::from_env()?;
    let settings = store.settings();
    let isa = Isa::from_env()?;
    let threads = default_threads();
    let names: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    let yardsticks = Yardstick::all()?;
    let auto = auto(isa);
    let int8 = Formats::new(Precision::Int8, isa);
    let working_set = yardsticks.first().map_or(1 << 20, |y| y.model.frame_bytes(&int8) as usize);
    let progress = console.progress();
    progress.set_message("measuring memory bandwidth");
    let one = machine::read_bandwidth(working_set, 1);
    let all = if threads > 1 { machine::read_bandwidth(working_set, threads) } else { one };
    progress.set_message("measuring products");
    let mut exec = Exec::with_isa(threads, isa)?;
    let mut measured: Vec<(Format, f64)> = Vec::new();
    let mut rate = |format: Format| match measured.iter().find(|(of, _)| *of == format) {
        Some((_, rate)) => *rate,
        None => {
            let rate = product_rate(&mut exec, format);
            measured.push((format, rate));
            rate
        }
    };
    let reached = Precision::ON_CPU.map(|precision| {
        let formats = Formats::new(precision, isa);
        Reached { precision, formats, macs_per_s: rate(formats.backbone) }
    });
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
    // What `auto` would run each yardstick's attention by.
    let on = match (auto.device, &gpus) {
        (DeviceChoice::Cuda(n), Ok(gpus)) => gpus.get(n),
        _ => None,
    };
    let attention: Vec<Attention> =
        yardsticks.iter().flat_map(|y| y.attention(auto.precision, on, isa)).collect();
    if console.json {
        let mut values = json!({
            "cpu": machine::cpu_name(), "cores": machine::cores(), "threads": threads, "isa": isa.name(),
            "isa_available": names, "memory_bytes": memory.map(|m| m.0), "memory_free_bytes": memory.map(|m| m.1),
            "huge_pages": machine::huge_pages(), "read_gb_per_s_1": round(one / 1e9, 2),
            "read_gb_per_s": round(all / 1e9, 2), "hub_cache": settings.hub_cache, "voce_home": settings.voce_home,
            "free_disk_bytes": free, "offline": settings.offline, "sound_card": device, "gpu": gpus.is_ok(), "gpus": gpu,
            "models": fetched, "embedded": built_in, "attention": attention,
            "auto": {
                "device": auto.device.to_string(), "device_reason": auto.device_reason,
                "precision": auto.precision.name(), "precision_reason": auto.precision_reason,
            },
        });
        if let Value::Object(values) = &mut values {
            values.extend(figures(&yardsticks, &reached, all));
        }
        return console.json(&values);
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
        ("--device", format!("auto is {}: {}", auto.device, auto.device_reason)),
        ("--precision", format!("auto is {}: {}", auto.precision, auto.precision_reason)),
        ("attention", attention.iter().map(Attention::text).collect::<Vec<_>>().join("; ")),
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
    for yardstick in &yardsticks {
        out.push_str(&limits(yardstick, &reached, all, isa));
    }
    console.result(&out)
}

/// The figures of every yardstick, by its name.
fn figures(yardsticks: &[Yardstick], reached: &[Reached], read: f64) -> Map<String, Value> {
    let row = |model: &Description, r: &Reached| {
        json!({
            "precision": r.precision.name(), "backbone": r.formats.backbone.name(),
            "linear": r.formats.linear.name(), "conv": r.formats.conv.name(),
            "codec": r.formats.codec.format.name(),
            "frame_bytes": model.frame_bytes(&r.formats), "gmac_per_s": round(r.macs_per_s / 1e9, 1),
            "rtf_limit": round(r.rtf(model, read), 4),
        })
    };
    let rows = |y: &Yardstick| reached.iter().map(|r| row(&y.model, r)).collect::<Vec<_>>();
    yardsticks.iter().map(|y| (y.key(), rows(y).into())).collect()
}

/// A yardstick's table.
fn limits(yardstick: &Yardstick, reached: &[Reached], read: f64, isa: Isa) -> String {
    let mut rows = vec![
        ["PRECISION", "BACKBONE", "LINEAR", "CONV", "GMAC/S", "PER FRAME", "RTF AT BEST"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for r in reached {
        let (p, f) = (r.precision, &r.formats);
        rows.push(vec![
            if p == Precision::auto(isa).0 { format!("{p} (auto)") } else { p.to_string() },
            f.backbone.name().into(),
            f.linear.name().into(),
            convolutions(f),
            format!("{:.0}", r.macs_per_s / 1e9),
            bytes(yardstick.model.frame_bytes(f)),
            format!("{:.4}", r.rtf(&yardstick.model, read)),
        ]);
    }
    format!(
        "\nWhat runs, and the real-time factor of {} if memory were the only limit ({} measures the real one):\n{}",
        yardstick.shape,
        yardstick.command(),
        table(&rows, &[4, 5, 6]),
    )
}

/// The formats of convolutions, by name.
pub(crate) fn convolutions(f: &Formats) -> String {
    if f.codec.format == f.conv {
        return f.conv.name().to_owned();
    }
    format!("{}, codec {}", f.conv.name(), f.codec.format.name())
}

/// The precisions that a GPU has kernels for.
fn gpu_precisions(gpu: &DeviceInfo) -> String {
    let runs = Precision::ON_GPU.into_iter().filter(|p| *p != Precision::Fp8 || gpu.has_fp8());
    let auto = voce_engine::auto_precision(true, Isa::Scalar).0;
    let name = |p: Precision| if p == auto { format!("{p} (auto)") } else { p.to_string() };
    runs.map(name).collect::<Vec<_>>().join(", ")
}
