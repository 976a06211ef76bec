//! `voce serve`: settings from flags, variables and a file, models from the store, and the server that answers.

#[cfg(test)]
mod broken;
mod check;
mod handover;
mod jobs;
mod models;
mod moshi;
mod moshi_config;
mod settings;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;
use serde_json::json;
use voce_engine::store::Store;
use voce_server::{
    Ended, JOURNAL_LIMIT, JournalOptions, Limits, Lobby, OtlpOptions, ServeError, Server, ServerOptions,
};

use crate::console::Console;
use crate::failure::{Failure, Outcome};
pub(crate) use settings::seconds;
use settings::{Settings, pairs};

/// Arguments of `voce serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  voce serve                                          a page, and every protocol, on http://127.0.0.1:8080
  voce serve --config voce.toml --check               read the settings, say what they mean, and go
  voce serve --host 0.0.0.0 --api-key-file keys.txt   for other machines
  voce serve --speak pocket --hear nemotron --wyoming 10300

Every setting is a flag, a variable and a key of voce.toml of the same name; flags win over variables, and both over the file.
A moshi-server configuration is taken as it is. A first Ctrl-C lets work in flight end, a second one ends at once.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    settings: Settings,
    /// Settings file: voce.toml, or a moshi-server configuration [default: voce.toml here, if it is there]
    #[arg(long, value_name = "FILE", env = "VOCE_CONFIG")]
    config: Option<PathBuf>,
    /// Check the settings, print what they mean, and do not serve
    #[arg(long)]
    check: bool,
    /// Level of the log: error, warn, info, debug or trace
    #[arg(short, long, value_name = "LEVEL", env = "VOCE_SERVE_LOG", default_value = "info")]
    pub(crate) log: String,
    /// No log at all
    #[arg(long, env = "VOCE_SILENT", value_parser = FalseyValueParser::new())]
    pub(crate) silent: bool,
    /// Run on the CPU: the same as --device cpu
    #[arg(long, hide = true)]
    cpu: bool,
    /// A switch of moshi-server without a meaning here
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    cuda_event_tracking: Option<String>,
    /// A switch of moshi-server without a meaning here
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    flash_attention: Option<String>,
}

/// Threads that may wait, beside those that decode.
const SPARE_THREADS: usize = 256;

/// The settings file that is read without being named.
const DEFAULT_CONFIG: &str = "voce.toml";

/// Runs the command.
pub(crate) fn run(console: Console, args: ServeArgs) -> Outcome {
    for (name, value) in
        [("--cuda-event-tracking", &args.cuda_event_tracking), ("--flash-attention", &args.flash_attention)]
    {
        if value.is_some() {
            console.note(&format!("{name} has no meaning here: see docs/cuda.md for what replaces it"));
        }
    }
    let store = Store::from_env()?;
    let mut settings = gather(&args)?;
    if args.cpu {
        settings.device = vec!["cpu".into()];
    }
    let options = options(&settings)?;
    if args.check {
        return check::run(console, &store, &settings, &options);
    }
    if !options.addr.ip().is_loopback() && options.keys.is_empty() {
        console.note(&format!(
            "warning: whoever reaches {} can use this server: set --api-key-file",
            options.addr
        ));
    }
    if let Some(addr) = options.wyoming.filter(|addr| !addr.ip().is_loopback()) {
        console.note(&format!("warning: whoever reaches {addr} can use Wyoming, which has no keys"));
    }
    for mount in options.mounts.iter().filter(|m| m.open && !options.keys.is_empty()) {
        console.note(&format!("{} needs no key, as moshi-server has it", mount.path));
    }
    if options.journal.tokens.is_some() || options.journal.audio.is_some() {
        console.note(
            "warning: what people say is kept on this machine (--log-tokens, --capture-audio): tell them",
        );
    }
    crate::machine::raise_file_limit(options.limits.connections as u64 + 256);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // Decoders have threads of their own; speech and files need some beside them.
        .max_blocking_threads(options.limits.decoders + SPARE_THREADS)
        .build()
        .map_err(|e| Failure::failed(format!("cannot start the network: {e}")))?;
    let outcome = runtime.block_on(serve(console, options, settings, store));
    // What still runs on threads that may wait, such as a model that loads, is not waited for.
    runtime.shutdown_background();
    outcome
}

/// `moshi-server worker`: a server of a configuration, which must be named.
pub(crate) fn worker(console: Console, args: ServeArgs) -> Outcome {
    if args.config.is_none() {
        return Err(Failure::usage(
            "worker needs --config FILE, as moshi-server does; `voce serve` does not",
        ));
    }
    run(console, args)
}

/// `moshi-server validate`: each configuration is read, and what it names is fetched.
pub(crate) fn validate(console: Console, configs: &[PathBuf]) -> Outcome {
    let store = Store::from_env()?;
    for path in configs {
        let settings = read(path, &Settings::default())?;
        options(&settings)?;
        models::load(console, &store, &settings)?;
        console.result(&format!("{}: loaded successfully", path.display()))?;
    }
    Ok(())
}

/// `moshi-server configs`: what it printed were scripts.
pub(crate) fn configs(which: &str) -> Outcome {
    Err(Failure::usage(format!(
        "'{which}' is a script of moshi-server's own: speech and recognition run without Python here, so that no \
         script is needed"
    )))
}

/// Flags and variables over the file's settings.
fn gather(args: &ServeArgs) -> Outcome<Settings> {
    let file = match &args.config {
        Some(path) => Some(path.as_path()),
        None => Some(Path::new(DEFAULT_CONFIG)).filter(|p| p.is_file()),
    };
    match file {
        Some(path) => Ok(args.settings.clone().over(read(path, &args.settings)?)),
        None => Ok(args.settings.clone()),
    }
}

/// A file's settings, with flags that say how to take it.
fn read(path: &Path, flags: &Settings) -> Outcome<Settings> {
    let text =
        std::fs::read_to_string(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
    let bad = |e: String| Failure::usage(format!("{}: {e}", path.display()));
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
    if moshi_config::is_one(&table) {
        moshi_config::read(&text, flags).map_err(bad)
    } else {
        toml::from_str::<Settings>(&text).map_err(|e| bad(e.to_string()))
    }
}

/// What the settings mean for the server.
fn options(settings: &Settings) -> Outcome<ServerOptions> {
    let host = settings.host.as_deref().unwrap_or("127.0.0.1");
    let ip: IpAddr = match host {
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => host.parse().map_err(|_| {
            Failure::usage(format!("'{host}' is no address: use an IP such as 127.0.0.1 or 0.0.0.0"))
        })?,
    };
    let mut keys = settings.api_key.clone();
    if let Some(path) = &settings.api_key_file {
        let text =
            std::fs::read_to_string(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        keys.extend(lines.map(str::to_owned));
        if keys.is_empty() {
            return Err(Failure::usage(format!("{} has no key: write one a line", path.display())));
        }
    }
    if keys.iter().any(|k| k.trim().is_empty()) {
        return Err(Failure::usage("an API key is empty"));
    }
    if settings.require_key && keys.is_empty() && !ip.is_loopback() {
        return Err(Failure::usage(format!(
            "whoever reaches {ip} could use this server: set a key (--api-key-file, or VOCE_API_KEY), or allow that \
             with VOCE_REQUIRE_KEY=0"
        )));
    }
    let wyoming = beside("wyoming", settings.wyoming.as_deref(), ip, !keys.is_empty())?;
    let agent = beside("agent-check", settings.agent_check.as_deref(), ip, !keys.is_empty())?;
    Ok(ServerOptions {
        addr: SocketAddr::from((ip, settings.port.unwrap_or(8080))),
        keys,
        cors: settings.cors.clone(),
        hosts: settings.allow_host.clone(),
        open_metrics: settings.open_metrics,
        aliases: pairs("alias", &settings.alias)?,
        limits: limits(settings)?,
        wyoming,
        agent,
        refuse_upgrades: settings.refuse_upgrades,
        voice_changes: !settings.fixed_voices,
        mounts: models::mounts(settings),
        static_dir: static_dir(settings),
        otlp: otlp(settings, |name| std::env::var(name).ok().filter(|v| !v.is_empty()))?,
        journal: journal(settings)?,
        handover: handover::options(settings)?,
        jobs: jobs::options(settings)?,
    })
}

/// The folder of a configuration's own pages, where it is there.
fn static_dir(settings: &Settings) -> Option<PathBuf> {
    let folder = settings.modules.static_dir.as_deref()?;
    let folder = PathBuf::from(moshi::files::with_variables(folder, |name| std::env::var(name).ok()));
    folder.is_dir().then_some(folder)
}

/// Where something without keys listens beside the server: where the server has some, a port alone is on this machine.
fn beside(flag: &str, written: Option<&str>, ip: IpAddr, has_keys: bool) -> Outcome<Option<SocketAddr>> {
    let Some(text) = written.filter(|text| *text != "off") else { return Ok(None) };
    let ip = if has_keys { IpAddr::from([127, 0, 0, 1]) } else { ip };
    let at = text.parse::<u16>().map(|port| SocketAddr::from((ip, port))).or_else(|_| text.parse());
    at.map(Some).map_err(|_| Failure::usage(format!("--{flag} {text}: use a port, or IP:PORT")))
}

/// What clients may cost.
fn limits(settings: &Settings) -> Outcome<Limits> {
    let usual = Limits::default();
    let time = |text: &Option<String>, usual| {
        Ok::<_, Failure>(text.as_deref().map(seconds).transpose()?.unwrap_or(usual))
    };
    Ok(Limits {
        body: settings.max_body_bytes.unwrap_or(usual.body),
        text: settings.max_text_bytes.unwrap_or(usual.text),
        connections: settings.max_connections.unwrap_or(usual.connections),
        connections_per_address: settings.connections_per_address,
        slots_per_key: settings.slots_per_key,
        slots_per_address: settings.slots_per_address,
        slot_idle: time(&settings.slot_idle, usual.slot_idle)?,
        socket_idle: time(&settings.socket_idle, usual.socket_idle)?,
        session_time: time(&settings.session_time, usual.session_time)?,
        body_time: time(&settings.body_time, usual.body_time)?,
        bodies: settings.bodies_bytes.unwrap_or(usual.bodies),
        bodies_per_caller: settings.bodies_per_caller_bytes.unwrap_or(usual.bodies_per_caller),
        messages: settings.messages_bytes.unwrap_or(usual.messages),
        messages_per_caller: settings.messages_per_caller_bytes.unwrap_or(usual.messages_per_caller),
        decoders: settings.max_decoders.unwrap_or(usual.decoders),
        voices: settings.max_voices.unwrap_or(usual.voices),
        voices_per_key: settings.voices_per_key.unwrap_or(usual.voices_per_key),
        voice_bytes: settings.max_voice_bytes.unwrap_or(usual.voice_bytes),
        voice_bytes_per_key: settings.voices_per_key_bytes.unwrap_or(usual.voice_bytes_per_key),
        drain: time(&settings.drain, usual.drain)?,
        job: settings.max_job_bytes.unwrap_or(usual.job),
        jobs: settings.max_jobs.unwrap_or(usual.jobs),
        jobs_per_key: settings.jobs_per_key.unwrap_or(usual.jobs_per_key),
        job_bytes: settings.max_jobs_bytes.unwrap_or(usual.job_bytes),
        job_bytes_per_key: settings.jobs_per_key_bytes.unwrap_or(usual.job_bytes_per_key),
        ..usual
    })
}

/// Where spans go: as the settings say, else as OpenTelemetry's own variables do.
fn otlp(settings: &Settings, var: impl Fn(&str) -> Option<String>) -> Outcome<Option<OtlpOptions>> {
    if var("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let theirs = || var("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| var("OTEL_EXPORTER_OTLP_ENDPOINT"));
    let address = match settings.otlp.as_deref() {
        Some("off") => None,
        Some(address) => Some(address.to_owned()),
        None => theirs(),
    };
    let Some(address) = address else { return Ok(None) };
    let mut options = OtlpOptions::new(&address).map_err(|e| Failure::usage(format!("--otlp: {e}")))?;
    if let Some(name) = settings.otlp_service.clone().or_else(|| var("OTEL_SERVICE_NAME")) {
        options = options.service(name);
    }
    let headers = var("OTEL_EXPORTER_OTLP_TRACES_HEADERS").or_else(|| var("OTEL_EXPORTER_OTLP_HEADERS"));
    if let Some(list) = headers {
        options = options.headers(&list).map_err(Failure::usage)?;
    }
    Ok(Some(options))
}

/// What is kept of streams. A folder that cannot be made is told now: later it would only cost what should be kept.
fn journal(settings: &Settings) -> Outcome<JournalOptions> {
    for folder in [&settings.log_tokens, &settings.capture_audio].into_iter().flatten() {
        std::fs::create_dir_all(folder).map_err(|e| {
            Failure::usage(format!("{}: {e}: streams cannot be kept there", folder.display()))
        })?;
    }
    Ok(JournalOptions {
        tokens: settings.log_tokens.clone(),
        audio: settings.capture_audio.clone(),
        limit: settings.capture_bytes.unwrap_or(JOURNAL_LIMIT),
    })
}

async fn serve(console: Console, options: ServerOptions, settings: Settings, store: Store) -> Outcome {
    let needs_key = !options.keys.is_empty();
    let server = tokio::select! {
        server = open(console, options, settings, store) => server?,
        // A signal ends the server before it has begun.
        () = stopped() => return Ok(()),
    };
    let addr = server.addr();
    // A wildcard is where it listens, not where it is.
    let shown =
        if addr.ip().is_unspecified() { SocketAddr::from(([127, 0, 0, 1], addr.port())) } else { addr };
    if console.json {
        console.json(
            &json!({"url": format!("http://{shown}/"), "addr": addr, "wyoming": server.wyoming_addr(), "agent_check": server.agent_addr()}),
        )?;
    } else {
        let key = if needs_key { "?api_key=KEY" } else { "" };
        console.result(&format!("http://{shown}/{key}"))?;
    }
    match server.run(stopped()).await {
        Ended::Stopped => Ok(()),
        Ended::Broken(reason) => Err(Failure::Broken(reason)),
    }
}

/// Takes the address, and answers there that it is not ready until models are loaded.
async fn open(console: Console, options: ServerOptions, settings: Settings, store: Store) -> Outcome<Server> {
    let failed = |e: ServeError| Failure::failed(e.to_string());
    let lobby = Lobby::open(options.addr).await.map_err(failed)?;
    let models = {
        let store = store.clone();
        tokio::task::spawn_blocking(move || models::load(console, &store, &settings))
    };
    let models = lobby.wait(models).await.map_err(|e| Failure::failed(e.to_string()))??;
    let server = Server::within(lobby, options, models, store).await.map_err(failed)?;
    server.load().await.map_err(failed)?;
    Ok(server)
}

/// Waits for the first signal. The second one ends the process, as in every command.
pub(crate) async fn stopped() {
    let mut look = tokio::time::interval(Duration::from_millis(50));
    while !crate::interrupt::raised() {
        look.tick().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_where_flags_or_variables_say() {
        let of = |flag: Option<&str>, vars: &[(&str, &str)]| {
            let settings = Settings { otlp: flag.map(str::to_owned), ..Settings::default() };
            otlp(&settings, |name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        let to = |url: &str| OtlpOptions::new(url).unwrap();
        assert_eq!(of(None, &[]).unwrap(), None);
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");
        assert_eq!(of(None, &[endpoint]).unwrap(), Some(to("http://a:4318")));
        assert_eq!(of(Some("http://b:1"), &[endpoint]).unwrap(), Some(to("http://b:1")));
        assert_eq!(of(Some("off"), &[endpoint]).unwrap(), None);
        assert_eq!(of(None, &[endpoint, ("OTEL_SDK_DISABLED", "true")]).unwrap(), None);
        let named =
            of(None, &[endpoint, ("OTEL_SERVICE_NAME", "ears"), ("OTEL_EXPORTER_OTLP_HEADERS", "k=v")]);
        assert_eq!(named.unwrap(), Some(to("http://a:4318").service("ears").headers("k=v").unwrap()));
        assert!(of(Some("a:4318"), &[]).is_err());
    }
}
