//! A line for load balancers that ask over TCP, as HAProxy's `agent-check` does: how much room there is, or that the server
//! drains. Whoever connects is told and let go; nothing is read.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::admission::Load;
use super::models::Served;
use super::state::AppState;

/// How long a balancer may take to be told, and how long no connection is taken after one could not be.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers until the drain is over: a balancer must see the way out.
pub(crate) async fn run(listener: TcpListener, state: AppState) {
    let over = state.drain.clone();
    let answer = async {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else {
                tokio::time::sleep(PATIENCE).await;
                continue;
            };
            // A line fits into any socket's buffer, so that nobody can keep the next one waiting.
            let line = line(state.readiness(), state.served().map(Served::gate).map(|gate| gate.load()));
            let _ = tokio::time::timeout(PATIENCE, stream.write_all(line.as_bytes())).await;
        }
    };
    tokio::select! {
        () = answer => {}
        () = over.over() => {}
    }
}

/// `up` with the share of slots that is free where they are scarcest, `drain` on the way out, else `down` with the reason.
///
/// HAProxy multiplies a server's weight by the share: 0 % gets no new streams and keeps those it has.
fn line(readiness: &str, loads: impl Iterator<Item = Load>) -> String {
    match readiness {
        "ok" => {
            let free = |load: Load| {
                let taken = (load.used + load.waiting).min(load.total);
                100 * (load.total - taken) / load.total.max(1)
            };
            format!("up ready {}%\n", loads.map(free).min().unwrap_or(100))
        }
        "draining" => "drain\n".to_owned(),
        reason => format!("down #{reason}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(used: usize, total: usize, waiting: usize) -> Load {
        Load { used, total, waiting, age: Duration::ZERO }
    }

    #[test]
    fn the_scarcest_slots_count() {
        let say = |loads: Vec<Load>| line("ok", loads.into_iter());
        assert_eq!(say(vec![]), "up ready 100%\n");
        assert_eq!(say(vec![load(0, 8, 0), load(6, 8, 0)]), "up ready 25%\n");
        assert_eq!(say(vec![load(8, 8, 3)]), "up ready 0%\n");
        assert_eq!(say(vec![load(0, 0, 0)]), "up ready 0%\n");
        assert_eq!(line("draining", [load(0, 8, 0)].into_iter()), "drain\n");
        assert_eq!(line("stuck", [].into_iter()), "down #stuck\n");
    }
}
