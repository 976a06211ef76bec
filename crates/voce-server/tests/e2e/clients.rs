//! The real clients, in Python, Node and a browser: `tests/clients/run.sh` has the packages and runs this.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use voce_server::ServerOptions;

use crate::counter::Counter;
use crate::server::Setup;

const KEY: &str = "public_token";

async fn succeeds(mut command: Command) {
    let name = format!("{command:?}");
    let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap().unwrap();
    assert!(status.success(), "{name}");
}

fn script(program: &str, folder: &Path, script: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg(script).args(args).current_dir(folder);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr)]
#[ignore = "needs packages: run tests/clients/run.sh"]
async fn the_real_clients_work() {
    let python =
        std::env::var("VOCE_CLIENT_PYTHON").expect("VOCE_CLIENT_PYTHON names a Python with the packages");
    let options = ServerOptions {
        keys: vec![KEY.into()],
        wyoming: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        ..Default::default()
    };
    let server =
        Setup { options, hear: Some(Arc::new(Counter::default())), ..Default::default() }.start().await;
    let url = format!("http://{}", server.addr);
    let wyoming = server.wyoming.unwrap();
    let (host, port) = (wyoming.ip().to_string(), wyoming.port().to_string());
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    for (name, args) in [
        ("openai_client.py", [url.as_str(), KEY]),
        ("moshi_client.py", [&url, KEY]),
        ("deepgram_client.py", [&url, KEY]),
        ("wyoming_client.py", [&host, &port]),
        ("pipecat_client.py", [&url, KEY]),
        ("browser.py", [&url, KEY]),
    ] {
        succeeds(script(&python, &folder, &folder.join(name), &args)).await;
    }
    // Programs of others, which are not in this repository.
    for (variable, name) in [("VOCE_DSM", "kyutai_scripts.py"), ("VOCE_UNMUTE", "unmute_client.py")] {
        match std::env::var(variable) {
            Ok(checkout) => {
                succeeds(script(&python, &folder, &folder.join(name), &[&url, KEY, &checkout])).await;
            }
            Err(_) => eprintln!("{variable} names no checkout: {name} was not run"),
        }
    }
    if let Ok(packages) = std::env::var("VOCE_CLIENT_NODE") {
        succeeds(script("node", Path::new(&packages), &folder.join("openai_client.mjs"), &[&url, KEY])).await;
    }
}
