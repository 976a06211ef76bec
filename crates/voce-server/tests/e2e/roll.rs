//! A deploy under load: twenty paced streams of real speech through a router, and through HAProxy, while both servers behind it
//! are replaced. Every word of the serial transcript comes once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use voce_server::route::{Route, RouteOptions};
use voce_server::{Limits, ServerOptions};

use crate::balance::Balancer;
use crate::doorways::{Door, Told, addresses, client, connect, handover, speech, start};
use crate::patience::{TcpStream, within};
use crate::server::Running;

const STREAMS: usize = 20;
/// Between two messages of 80 ms, as people speak.
const PACE: Duration = Duration::from_millis(80);
/// Clips of speech in a stream.
const CLIPS: usize = 3;
const ACTIVE: &str = "voce_streams_active{kind=\"recognition\"}";

async fn serve(addr: SocketAddr, peer: SocketAddr, agent: SocketAddr) -> Running {
    let limits = Limits { drain: Duration::from_secs(3600), ..Limits::default() };
    let agent = Some(agent);
    let handover = Some(handover(&[peer]));
    start(
        ServerOptions { addr, limits, agent, refuse_upgrades: true, handover, ..ServerOptions::default() },
        STREAMS,
    )
    .await
}

/// What a stream says: one of four kinds, by its number.
struct Script {
    door: Door,
    messages: Vec<Message>,
}

/// The four kinds of a crowd. Made before anybody is probed: decoding speech takes the cores that servers would answer with.
fn scripts() -> Arc<[Script]> {
    let script =
        |(door, first): (Door, usize)| Script { door, messages: door.messages(&speech(first, CLIPS)) };
    [(Door::Moshi, 0), (Door::Deepgram, 0), (Door::Moshi, 1), (Door::Deepgram, 1)].map(script).into()
}

/// What each kind of stream is told when it is alone.
async fn serial(at: SocketAddr, scripts: &[Script]) -> Vec<Told> {
    let mut all = Vec::new();
    for Script { door, messages } in scripts {
        let told = client(*door, at, |_| unreachable!(), messages, Duration::ZERO, |_| {}, |_, _| true);
        all.push(told.await);
    }
    all
}

/// Runs all streams to `at` while `roll`, which is told how many messages each has sent, replaces the servers; it says who serves
/// now and when it began. No stream ends before that, however slow the machine is.
async fn crowd<F>(
    at: SocketAddr,
    scripts: &Arc<[Script]>,
    roll: impl FnOnce(Arc<Vec<AtomicUsize>>) -> F,
) -> (Vec<Told>, Instant)
where
    F: Future<Output = (Running, Instant)>,
{
    let sent: Arc<Vec<AtomicUsize>> = Arc::new((0..STREAMS).map(|_| AtomicUsize::new(0)).collect());
    let rolled = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for n in 0..STREAMS {
        let (sent, rolled, scripts) = (sent.clone(), rolled.clone(), scripts.clone());
        clients.spawn(async move {
            let Script { door, messages } = &scripts[n % scripts.len()];
            let count = |k: usize| sent[n].store(k, Ordering::Relaxed);
            let may = |next: usize, _| next + 1 < messages.len() || rolled.load(Ordering::Relaxed);
            (n, client(*door, at, |_| at, messages, PACE, count, may).await)
        });
    }
    let (mut last, begun) = tokio::select! {
        last = roll(sent) => last,
        // None has reason to end now; one that has failed says why.
        early = clients.join_next() => panic!("a stream ended too soon: {:?}", early.unwrap().unwrap()),
    };
    rolled.store(true, Ordering::Relaxed);
    let mut told = clients.join_all().await;
    told.sort_by_key(|(n, _)| *n);
    last.stop();
    last.gone().await;
    (told.into_iter().map(|(_, told)| told).collect(), begun)
}

/// Waits until every stream has sent some messages and all are heard by one server or the other.
async fn until(sent: &[AtomicUsize], messages: usize, one: &Running, two: &Running) {
    let all = async {
        while sent.iter().any(|n| n.load(Ordering::Relaxed) < messages)
            || one.metric(ACTIVE).await + two.metric(ACTIVE).await < STREAMS as f64
        {
            tokio::time::sleep(PACE).await;
        }
    };
    within("all streams", one.addr, all).await;
}

#[allow(clippy::print_stderr)]
fn check(what: &str, alone: &[Told], told: &[Told], begun: Instant) {
    for (n, told) in told.iter().enumerate() {
        assert_eq!(told.words(), alone[n % 4].words(), "{what} {n}");
        assert_eq!(told.settled(), alone[n % 4].settled(), "{what} {n}");
    }
    // The longest pause in the answers of each moshi stream that ended before the servers were replaced, and after.
    let longest = |before: bool| {
        let of = |t: &Told| {
            let gaps = t.answers.windows(2).filter(|w| (w[1] < begun) == before);
            gaps.map(|w| (w[1] - w[0]).as_millis()).max().unwrap_or(0)
        };
        let mut all: Vec<u128> = told.iter().step_by(2).map(of).collect();
        all.sort_unstable();
        all
    };
    eprintln!(
        "{what}: longest pause of each stream, ms: {:?} before, {:?} since",
        longest(true),
        longest(false)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_moves_twenty_streams_twice_and_clients_do_not_notice() {
    let scripts = scripts();
    let [a, b, agent_a, agent_b] = addresses();
    let (mut one, mut two) = (serve(a, b, agent_a).await, serve(b, a, agent_b).await);
    let alone = serial(b, &scripts).await;
    let to = vec![a.to_string(), b.to_string()];
    let route = Route::bind(RouteOptions::new("127.0.0.1:0".parse().unwrap(), to)).await.unwrap();
    let at = route.addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(route.run(async move {
        let _ = stopped.await;
    }));
    let status = || async move {
        let reply = ask(at).await;
        serde_json::from_slice::<Value>(&reply).unwrap()
    };
    let all_up = async {
        while status().await["servers"].as_array().unwrap().iter().any(|s| s["health"] != "up") {
            tokio::time::sleep(PACE).await;
        }
    };
    within("servers that are up", at, all_up).await;
    let (told, begun) = crowd(at, &scripts, |sent| async move {
        until(&sent, 40, &one, &two).await;
        let begun = Instant::now();
        one.stop();
        one.gone().await;
        let again = serve(a, b, agent_a).await;
        let up = async {
            while status().await["servers"][0]["health"] != "up" {
                tokio::time::sleep(PACE).await;
            }
        };
        within("the new server", at, up).await;
        two.stop();
        two.gone().await;
        (again, begun)
    })
    .await;
    // Clients saw one socket each.
    assert!(told.iter().all(|t| t.moves == 0));
    check("route", &alone, &told, begun);
    let seen = status().await;
    assert!(seen["moved"].as_u64().unwrap() > STREAMS as u64 && seen["lost"] == 0, "{seen}");
    stop.send(()).unwrap();
    within("the router's end", at, running).await.unwrap();
}

/// The status of a router.
async fn ask(at: SocketAddr) -> Vec<u8> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(b"GET /route/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await.unwrap();
    let end = reply.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    reply.split_off(end + 4)
}

/// Waits until a balancer sends streams to both servers: one that was slow to answer its first probe is left out for a while.
async fn until_both_are_used(at: SocketAddr, one: &Running, two: &Running) {
    let (mut first, mut second) = (false, false);
    let both = async || {
        let Ok(mut socket) = connect(at, Door::Deepgram.path(), &[]).await else {
            tokio::time::sleep(PACE).await;
            return false;
        };
        socket.binary(vec![0; 3840]).await;
        let mut active = (0.0, 0.0);
        while active == (0.0, 0.0) {
            active = (one.metric(ACTIVE).await, two.metric(ACTIVE).await);
        }
        first |= active.0 > 0.0;
        second |= active.1 > 0.0;
        drop(socket);
        one.until(ACTIVE, 0.0).await;
        two.until(ACTIVE, 0.0).await;
        first && second
    };
    one.when("streams at both", both).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr)]
async fn haproxy_leads_twenty_streams_to_the_machine_that_goes_on() {
    let scripts = scripts();
    let [a, b, agent_a, agent_b] = addresses();
    let (mut one, mut two) = (serve(a, b, agent_a).await, serve(b, a, agent_b).await);
    let Some(balancer) = Balancer::start(&one, &two).await else {
        return eprintln!("skipped: haproxy is not installed");
    };
    let alone = serial(b, &scripts).await;
    let at = balancer.1;
    until_both_are_used(at, &one, &two).await;
    let (told, begun) = crowd(at, &scripts, |sent| async move {
        until(&sent, 40, &one, &two).await;
        let active = (one.metric(ACTIVE).await, two.metric(ACTIVE).await);
        assert!(active.0 > 0.0, "haproxy left one server without a stream: {active:?}");
        let begun = Instant::now();
        one.stop();
        one.gone().await;
        let again = serve(a, b, agent_a).await;
        two.stop();
        two.gone().await;
        (again, begun)
    })
    .await;
    drop(balancer);
    let moves: Vec<usize> = told.iter().map(|t| t.moves).collect();
    assert!(moves.iter().all(|n| *n > 0) && moves.contains(&2), "{moves:?}");
    check("haproxy", &alone, &told, begun);
}
