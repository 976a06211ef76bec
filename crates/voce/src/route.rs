//! `voce route`: one address in front of several servers, for clients that know nothing of handover.

use std::net::{IpAddr, SocketAddr};

use clap::Args;
use serde_json::json;
use voce_server::limits::{DRAIN, MAX_CONNECTIONS};
use voce_server::route::{HOLD, HOLD_BYTES, Route, RouteOptions};

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::serve::{seconds, stopped};

/// Arguments of `voce route`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  voce route --to 10.0.0.1:8080,10.0.0.2:8080                    one address for two servers, on http://127.0.0.1:8000
  voce route --host 0.0.0.0 --port 80 --to http://voce:8080      every address that the name stands for, looked up every 5 s
  curl -s http://127.0.0.1:8000/route/status                     servers, their room, and what became of streams

Servers that hand streams over share a secret (voce serve --handover-secret-file FILE --peer URL): when one is told to stop, its
live recognition goes on at another, and clients do not notice. With `voce serve --checkpoint 5s` the same holds when one dies.
Keys, paths and bodies pass through as they are; without encryption: end TLS in front, and keep servers in a network of their own.
/readyz passes through to a server that is ready. A first Ctrl-C lets streams end, a second one ends at once.")]
pub(crate) struct RouteArgs {
    /// Servers, as HOST:PORT or http://HOST:PORT; a name that stands for several addresses is all of them, and is looked up
    /// again every 5 s. Several: repeat, or commas
    #[arg(long, value_name = "SERVER", value_delimiter = ',', required = true, env = "VOCE_ROUTE_TO")]
    to: Vec<String>,
    /// IP to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "IP", env = "VOCE_ROUTE_HOST")]
    host: Option<String>,
    /// Port to listen on [default: 8000]
    #[arg(long, env = "VOCE_ROUTE_PORT")]
    port: Option<u16>,
    /// How long a stream's messages are held for another server [default: 10s]
    #[arg(long, value_name = "TIME", env = "VOCE_ROUTE_HOLD")]
    hold: Option<String>,
    /// Bytes of them, of one stream [default: 4194304]
    #[arg(long, value_name = "BYTES", env = "VOCE_ROUTE_HOLD_BYTES")]
    hold_bytes: Option<usize>,
    /// Sockets open at once [default: 16384]
    #[arg(long, value_name = "N", env = "VOCE_ROUTE_MAX_CONNECTIONS")]
    max_connections: Option<usize>,
    /// How long streams have at the end [default: 30s]
    #[arg(long, value_name = "TIME", env = "VOCE_ROUTE_DRAIN")]
    drain: Option<String>,
}

/// Runs the command.
pub(crate) fn run(console: Console, args: RouteArgs) -> Outcome {
    let options = options(&args)?;
    // A stream has a socket on each side.
    crate::machine::raise_file_limit(2 * options.connections as u64 + 256);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start the network: {e}")))?;
    let outcome = runtime.block_on(async {
        let servers = options.to.clone();
        let route = Route::bind(options).await.map_err(|e| Failure::failed(e.to_string()))?;
        if let Some(addr) = route.addr() {
            let url = format!("http://{addr}/");
            if console.json {
                console.json(&json!({"url": url, "addr": addr, "to": servers}))?;
            } else {
                console.result(&url)?;
            }
        }
        route.run(stopped()).await;
        Ok(())
    });
    runtime.shutdown_background();
    outcome
}

/// What the arguments mean.
fn options(args: &RouteArgs) -> Outcome<RouteOptions> {
    let host = args.host.as_deref().unwrap_or("127.0.0.1");
    let ip: IpAddr = match host {
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => host.parse().map_err(|_| {
            Failure::usage(format!("'{host}' is no address: use an IP such as 127.0.0.1 or 0.0.0.0"))
        })?,
    };
    let to = args.to.iter().map(|server| name(server)).collect::<Outcome<Vec<String>>>()?;
    let time = |text: &Option<String>, usual| text.as_deref().map_or(Ok(usual), seconds);
    let addr = SocketAddr::from((ip, args.port.unwrap_or(8000)));
    Ok(RouteOptions {
        hold: time(&args.hold, HOLD)?,
        hold_bytes: args.hold_bytes.unwrap_or(HOLD_BYTES),
        connections: args.max_connections.unwrap_or(MAX_CONNECTIONS),
        drain: time(&args.drain, DRAIN)?,
        ..RouteOptions::new(addr, to)
    })
}

/// A server as `HOST:PORT`.
fn name(server: &str) -> Outcome<String> {
    let bad = |why: &str| Failure::usage(format!("--to {server}: {why}"));
    if server.starts_with("https://") {
        return Err(bad(
            "servers are reached without encryption: use http://HOST:PORT in a network of their own",
        ));
    }
    let plain = server.strip_prefix("http://").unwrap_or(server).trim_end_matches('/');
    match plain.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok() => {
            Ok(plain.to_owned())
        }
        _ => Err(bad("use HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_by_address_and_by_name() {
        for text in ["127.0.0.1:8080", "http://127.0.0.1:8080", "http://127.0.0.1:8080/"] {
            assert_eq!(name(text).unwrap(), "127.0.0.1:8080");
        }
        assert_eq!(name("http://[::1]:80").unwrap(), "[::1]:80");
        for bad in ["", "127.0.0.1", "https://a.example:1", "http://", "a:b", "http://a/b:1", ":80"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
