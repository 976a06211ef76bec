//! `voce bench serve`: paced clients against a server in another process, and what they cost it.

pub(crate) mod args;
mod client;
mod process;
mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::{interrupt, machine};
use args::BenchServeArgs;
use client::{Heard, Stream};
use process::Served;
use report::{Churn, ServeReport, Steady};

/// How often each client asks for what was heard so far, to time the answer.
const ASK: Duration = Duration::from_secs(1);
/// How long after its client's end a slot may be taken.
const FREE_WITHIN: Duration = Duration::from_secs(10);
/// Streams opened at once while the others come up.
const RAMP: usize = 64;

/// Runs the command.
pub(super) fn run(console: Console, args: &BenchServeArgs) -> Outcome {
    if args.streams == 0 || !(1.0..=3600.0).contains(&args.seconds) {
        return Err(Failure::usage("use at least one stream and 1 to 3600 seconds"));
    }
    machine::raise_file_limit(2 * args.streams as u64 + 256);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start the clients: {e}")))?;
    let progress = console.progress();
    progress.set_message("starting the server");
    let served = Served::start(args)?;
    progress.set_message(format!("{} streams for {} s", args.streams, args.seconds));
    let steady = runtime.block_on(steady(&served, args))?;
    progress.set_message("refusals and freed slots");
    let churn = runtime.block_on(churn(&served, args))?;
    progress.finish_and_clear();
    ServeReport::new(args, &served, steady, churn).print(console)
}

/// All streams at once, each at the pace of speech.
async fn steady(served: &Served, args: &BenchServeArgs) -> Outcome<Steady> {
    let idle_rss = served.rss();
    let open = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    let (length, frame) = (Duration::from_secs_f64(args.seconds), Duration::from_millis(args.frame_ms));
    // All begin to count together, when the last has come.
    let ready = Arc::new(tokio::sync::Barrier::new(args.streams + 1));
    let gate = Arc::new(tokio::sync::Semaphore::new(RAMP));
    for i in 0..args.streams {
        let (url, key) = (served.listen_url(), args.api_key.clone());
        let (open, ready, gate) = (open.clone(), ready.clone(), gate.clone());
        tasks.spawn(async move {
            let permit = gate.acquire().await;
            let stream = Stream::open(&url, key.as_deref()).await;
            open.fetch_add(usize::from(stream.is_ok()), Ordering::Relaxed);
            drop(permit);
            ready.wait().await;
            let offset = frame.mul_f64((i % 97) as f64 / 97.0);
            tokio::time::sleep(offset).await;
            stream?.pace(length, frame, ASK).await
        });
    }
    ready.wait().await;
    let opened = begun.elapsed();
    let (started, cpu) = (Instant::now(), served.cpu());
    let rss = async {
        tokio::time::sleep(length / 2).await;
        served.rss()
    };
    let rss = rss.await;
    tokio::time::sleep((length / 2).saturating_sub(Duration::from_millis(200))).await;
    let cpu = served.cpu().zip(cpu).map(|(after, before)| after.saturating_sub(before));
    let window = started.elapsed();
    let mut all = Heard::default();
    let mut failed = Vec::new();
    while let Some(done) = tasks.join_next().await {
        interrupt::check()?;
        match done.map_err(|e| Failure::failed(e.to_string()))? {
            Ok(heard) => all.join(&heard),
            Err(e) => failed.push(e),
        }
    }
    if let Some(first) = failed.first()
        && failed.len() == args.streams
    {
        return Err(Failure::failed(format!("no stream could be opened: {first}")));
    }
    Ok(Steady {
        opened,
        window,
        cpu,
        idle_rss,
        rss,
        heard: all,
        open: open.load(Ordering::Relaxed),
        failed: failed.len(),
        first_failure: failed.into_iter().next(),
    })
}

/// How fast a full server refuses, and how fast a slot comes free when its client is gone.
async fn churn(served: &Served, args: &BenchServeArgs) -> Outcome<Option<Churn>> {
    let Some(capacity) = served.capacity.filter(|_| args.churn > 0) else { return Ok(None) };
    let url = served.listen_url();
    let key = args.api_key.as_deref();
    let mut held = Vec::new();
    // A server that fell behind still hears what the streams before sent.
    for _ in 0..capacity {
        held.push(slot(&url, key).await?);
    }
    let mut churn = Churn { refused: histogram(), freed: histogram(), wrongly_taken: 0 };
    for _ in 0..args.churn {
        interrupt::check()?;
        let begun = Instant::now();
        match Stream::open(&url, key).await {
            Ok(_) => churn.wrongly_taken += 1,
            Err(_) => churn.refused.saturating_record(begun.elapsed().as_micros() as u64),
        }
        // The connection is cut without a word.
        drop(held.pop());
        let begun = Instant::now();
        let next = slot(&url, key).await?;
        churn.freed.saturating_record(begun.elapsed().as_micros() as u64);
        held.push(next);
    }
    Ok(Some(churn))
}

/// A stream in a slot that is free or about to be.
async fn slot(url: &str, key: Option<&str>) -> Outcome<Stream> {
    let begun = Instant::now();
    loop {
        match Stream::open(url, key).await {
            Ok(stream) => return Ok(stream),
            Err(e) if begun.elapsed() > FREE_WITHIN => {
                let waited = FREE_WITHIN.as_secs();
                return Err(Failure::failed(format!(
                    "no slot came free within {waited} s of its client's end: {e}"
                )));
            }
            Err(_) => interrupt::check()?,
        }
    }
}

/// Microseconds up to a minute, to three figures.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are constants")
}
