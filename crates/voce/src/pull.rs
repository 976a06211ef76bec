//! `voce pull`: models from the hub into the cache, with bars for those who watch.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use voce_engine::store::{Event, PullOptions, PullVoices, Reference, Settings, Store};

use crate::args::PullArgs;
use crate::console::{Console, bytes};
use crate::embedded;
use crate::failure::Outcome;
use crate::interrupt;

/// Runs the command.
pub(crate) fn run(console: Console, args: PullArgs) -> Outcome {
    let mut settings = Settings::from_env()?;
    settings.offline |= args.offline;
    let store = Store::new(settings);
    let voices = match args.voices.as_slice() {
        [] => PullVoices::Default,
        [all] if all == "all" => PullVoices::All,
        names => PullVoices::Named(names.to_vec()),
    };
    let options = PullOptions { voices, ..PullOptions::default() };
    let (here, wanted): (Vec<_>, Vec<_>) = args.ids.iter().partition(|id| embedded::find(id).is_some());
    for id in here {
        console.note(&format!("{id} is in the binary: nothing to fetch"));
        if console.json {
            console.json(&json!({"id": id, "fetched_bytes": 0, "files": []}))?;
        }
    }
    let references = wanted
        .into_iter()
        .map(|id| Reference::parse(id).map(|r| if args.cloning { r.with_cloning() } else { r }))
        .collect::<Result<Vec<_>, _>>()?;
    // A name that nothing has is told before anything is fetched.
    for reference in &references {
        if matches!(reference, Reference::Local(_) | Reference::Path(_)) {
            store.locate(reference)?;
        }
    }
    for reference in &references {
        interrupt::check()?;
        let mut watcher = Watcher::new(console);
        let pulled = store.pull(reference, &options, interrupt::switch(), &mut |event| watcher.see(event))?;
        watcher.bar.finish_and_clear();
        if console.json {
            let files: Vec<_> = pulled
                .files
                .iter()
                .map(|f| json!({"source": f.source.url(), "path": f.path, "bytes": f.bytes, "cached": f.cached}))
                .collect();
            console.json(&json!({"id": pulled.id, "fetched_bytes": pulled.fetched_bytes, "files": files}))?;
        } else {
            let fetched = bytes(pulled.fetched_bytes);
            console.note(&format!("{} is ready: {} files, {fetched} fetched", pulled.id, pulled.files.len()));
        }
    }
    Ok(())
}

/// Fetches what is missing of one model or file, with a bar for those who watch.
pub(crate) fn fetch(
    console: Console,
    store: &Store,
    reference: &Reference,
    options: &PullOptions,
) -> Outcome {
    let mut watcher = Watcher::new(console);
    store.pull(reference, options, interrupt::switch(), &mut |event| watcher.see(event))?;
    watcher.bar.finish_and_clear();
    Ok(())
}

/// Shows events: a bar on a terminal, else a line for each file.
struct Watcher {
    console: Console,
    bar: ProgressBar,
    terminal: bool,
}

impl Watcher {
    fn new(console: Console) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if console.quiet || !terminal { ProgressBar::hidden() } else { ProgressBar::no_length() };
        let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { console, bar, terminal }
    }

    fn see(&mut self, event: &Event<'_>) {
        match *event {
            Event::Planned { files, missing, bytes: size } => {
                self.line(&format!("{files} files, {missing} to fetch, {}", bytes(size)));
            }
            Event::Waiting { file } => self.line(&format!("{file}: another process is fetching it, waiting")),
            Event::Started { file, resumed, total } => {
                self.bar.reset();
                self.bar.set_length(total);
                self.bar.set_position(resumed);
                self.bar.reset_eta();
                self.bar.set_message(file.to_owned());
                if !self.terminal {
                    let from =
                        if resumed > 0 { format!(", resuming at {}", bytes(resumed)) } else { String::new() };
                    self.line(&format!("{file}: {}{from}", bytes(total)));
                }
            }
            Event::Bytes { done, .. } => self.bar.set_position(done),
            Event::Retrying { file, attempt, wait, reason } => {
                self.line(&format!("{file}: {reason}; try {attempt} in {:.1} s", wait.as_secs_f64()));
            }
            Event::Finished { file, bytes: size, cached: false } => {
                self.line(&format!("{file}: done, {}", bytes(size)));
            }
            _ => {}
        }
    }

    fn line(&self, text: &str) {
        self.bar.suspend(|| self.console.note(text));
    }
}
