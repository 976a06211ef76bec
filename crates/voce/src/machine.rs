//! What this machine is and what it reaches: processor, memory, disk, measured bandwidth.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use voce_runtime::AlignedVec;

/// Rounds over the buffer; the best counts.
const ROUNDS: usize = 5;
/// Bytes of a thread at least.
const SMALLEST_SHARE: usize = 1 << 16;
/// No bandwidth measurement goes on for longer than this.
const PATIENCE: Duration = Duration::from_millis(600);

/// The processor's name.
pub(crate) fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"));
    line.and_then(|l| l.split_once(':'))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// What the machine is called.
#[cfg(feature = "nats")]
pub(crate) fn host_name() -> String {
    let file = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = file.or_else(|| std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME")).ok());
    name.map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).unwrap_or_else(|| "machine".into())
}

/// Threads that can run at once.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A field of a `/proc` file that is given in kB, in bytes.
fn proc_bytes(file: &str, field: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kb| kb * 1024)
}

/// The most memory this process has had resident, in MB.
pub(crate) fn peak_rss_mb() -> Option<f64> {
    proc_bytes("/proc/self/status", "VmHWM").map(|b| (b as f64 / 1e4).round() / 1e2)
}

/// Lets the peak be counted anew from now on, where the system allows it.
pub(crate) fn reset_peak_rss() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Processor time of this process so far, all threads together, where the system tells it.
pub(crate) fn cpu_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Some(Duration::new(u64::try_from(t.tv_sec).ok()?, u32::try_from(t.tv_nsec).ok()?))
    }
    #[cfg(not(unix))]
    {
        None
    }
}

/// All memory, and what is free for use.
pub(crate) fn memory() -> Option<(u64, u64)> {
    Some((proc_bytes("/proc/meminfo", "MemTotal")?, proc_bytes("/proc/meminfo", "MemAvailable")?))
}

/// The system's setting for transparent huge pages.
pub(crate) fn huge_pages() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = text.split_once('[')?.1.split_once(']')?.0;
    Some(chosen.to_owned())
}

/// Bytes free on the disk that holds `path` or its nearest parent that exists.
pub(crate) fn free_disk(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let existing = path.ancestors().find(|p| p.exists())?;
        let stat = rustix::fs::statvfs(existing).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// Bytes a second at which `threads` threads read a buffer of `bytes` over and over: the best of a few rounds.
///
/// Halves of equal content are compared, which the system's `memcmp` does as fast as memory goes.
pub(crate) fn read_bandwidth(bytes: usize, threads: usize) -> f64 {
    let threads = threads.max(1);
    let mut buffer = AlignedVec::<u8>::zeroed(bytes.max(threads * SMALLEST_SHARE));
    buffer.fill(0x5a);
    let share = buffer.len().div_ceil(threads);
    let begun = Instant::now();
    let mut best = 0f64;
    while best == 0.0 || begun.elapsed() < PATIENCE {
        best = best.max((ROUNDS * buffer.len()) as f64 / rounds(&buffer, share).as_secs_f64().max(1e-9));
    }
    best
}

/// From the first thread's start to the last one's end, with every thread reading its share `ROUNDS` times.
fn rounds(buffer: &[u8], share: usize) -> Duration {
    let together = std::sync::Barrier::new(buffer.len().div_ceil(share));
    let read = |part: &[u8]| {
        let (a, b) = part.split_at(part.len() / 2);
        together.wait();
        let start = Instant::now();
        for _ in 0..ROUNDS {
            black_box(black_box(a) == black_box(&b[..a.len()]));
        }
        (start, Instant::now())
    };
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let readers: Vec<_> = buffer.chunks(share).map(|part| scope.spawn(|| read(part))).collect();
        readers.into_iter().filter_map(|r| r.join().ok()).collect()
    });
    let start = times.iter().map(|t| t.0).min();
    let end = times.iter().map(|t| t.1).max();
    start.zip(end).map_or(Duration::MAX, |(start, end)| end - start)
}

/// Lets this process open as many files as the system allows, up to `wanted`.
pub(crate) fn raise_file_limit(wanted: u64) {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        if limit.current.is_some_and(|now| now < wanted) {
            let current = limit.maximum.map_or(wanted, |most| most.min(wanted));
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum });
        }
    }
    #[cfg(not(unix))]
    let _ = wanted;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_a_number() {
        let rate = read_bandwidth(1 << 20, 2);
        assert!(rate > 1e6 && rate < 1e13, "{rate}");
        assert!(!cpu_name().is_empty() && cores() >= 1);
    }
}
