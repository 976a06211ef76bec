//! Ends the run of a suite when one of its tests lasts too long, and says which: a thread that is blocked can be ended in no
//! other way. Waits have limits of their own; this is for what they do not see.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Seconds that a test may last since it last started a server or a program; `VOCE_TEST_LIMIT` says it otherwise.
const LIMIT: u64 = 600;

/// A test that runs.
struct Watched {
    number: u64,
    name: String,
    since: Instant,
    /// A server of it.
    at: Option<SocketAddr>,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// The number of this thread's test, until the thread ends.
struct Armed(u64);

thread_local! {
    static ARMED: Armed = {
        let mut watched = watched();
        let number = watched.iter().map(|w| w.number).max().unwrap_or(0) + 1;
        let name = std::thread::current().name().unwrap_or("a thread").to_owned();
        watched.push(Watched { number, name, since: Instant::now(), at: None });
        Armed(number)
    };
}

impl Drop for Armed {
    fn drop(&mut self) {
        watched().retain(|w| w.number != self.0);
    }
}

fn watched() -> std::sync::MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives this thread's test its time from now on; `at` is a server of it.
pub(crate) fn arm(at: Option<SocketAddr>) {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| drop(std::thread::spawn(watch)));
    // A thread on its way out has no test any more.
    let _ = ARMED.try_with(|armed| {
        if let Some(this) = watched().iter_mut().find(|w| w.number == armed.0) {
            (this.since, this.at) = (Instant::now(), at.or(this.at));
        }
    });
}

/// The server that this thread's test started last.
#[allow(dead_code)]
pub(crate) fn server() -> Option<SocketAddr> {
    ARMED.try_with(|armed| watched().iter().find(|w| w.number == armed.0).and_then(|w| w.at)).ok().flatten()
}

fn watch() {
    let limit = std::env::var("VOCE_TEST_LIMIT").ok().and_then(|s| s.parse().ok()).unwrap_or(LIMIT);
    loop {
        std::thread::park_timeout(Duration::from_secs(1));
        let watched = watched();
        let Some(late) = watched.iter().find(|w| w.since.elapsed().as_secs() >= limit) else { continue };
        let under_way: Vec<&str> = watched.iter().map(|w| w.name.as_str()).collect();
        let said = late.at.map(series).unwrap_or_default();
        let text = format!(
            "\n{} has lasted for {limit} s: the run ends. Under way were {}.\n{said}\n",
            late.name,
            under_way.join(", ")
        );
        // What a test prints is kept until it ends, and this one does not.
        let _ = std::io::stderr().write_all(text.as_bytes());
        std::process::exit(101);
    }
}

/// The series of a server that are not zero, or why there are none.
pub(crate) fn series(at: SocketAddr) -> String {
    let patience = Duration::from_secs(5);
    let asked = TcpStream::connect_timeout(&at, patience).and_then(|mut stream| {
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    });
    match asked {
        Ok(text) => {
            let told =
                |line: &&str| !line.starts_with('#') && !line.ends_with(" 0") && !line.contains("_bucket{");
            text.lines().filter(told).fold(format!("/metrics of {at} says:"), |all, line| all + "\n  " + line)
        }
        Err(error) => format!("/metrics of {at} does not answer: {error}"),
    }
}
