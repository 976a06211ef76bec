//! Limits of all that tests wait for: at the limit a program is killed and the test fails, and says what it waited for and what
//! `/metrics` of its server said.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::watchdog;

/// The longest wait, on a machine that has other things to do.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// What is said of a wait that lasted too long.
fn late(what: &str) -> String {
    let series = watchdog::server().map(watchdog::series).unwrap_or_default();
    format!("{what}: not within {LIMIT:?}; {series}")
}

/// Does what waits for a process; one that lasts too long is killed.
pub(crate) fn within<T>(what: &str, process: u32, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = sync_channel::<()>(0);
    let (named, server) = (what.to_owned(), watchdog::server());
    let watch = std::thread::spawn(move || {
        if is_done.recv_timeout(LIMIT) != Err(RecvTimeoutError::Timeout) {
            return None;
        }
        // Asked before the process is gone, and said at once: the work may fail when it goes.
        let series = server.map(watchdog::series).unwrap_or_default();
        let said = format!("{named}: not within {LIMIT:?}; {series}");
        let _ = writeln!(std::io::stderr(), "{said}");
        let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        Some(said)
    });
    let result = work();
    drop(done);
    if let Some(said) = watch.join().unwrap() {
        panic!("{said}");
    }
    result
}

/// Asks until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "{}", late(what));
        std::thread::yield_now();
    }
}

/// A connection that fails when nothing comes for too long.
pub(crate) fn connect(addr: &str) -> std::io::Result<TcpStream> {
    let at = addr.to_socket_addrs()?.next().expect("an address");
    let stream = TcpStream::connect_timeout(&at, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// A program that is waited for.
pub(crate) trait Ends {
    /// Waits for its end.
    fn ends(&mut self) -> ExitStatus;

    /// Waits for its end: what it said.
    fn says(self) -> Output;

    /// The first line that it says.
    fn line(&mut self) -> String;
}

impl Ends for Child {
    fn ends(&mut self) -> ExitStatus {
        within("the end of a program", self.id(), || self.wait().unwrap())
    }

    fn says(self) -> Output {
        within("the end of a program", self.id(), || self.wait_with_output().unwrap())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let from: ChildStdout = self.stdout.take().unwrap();
        within("a program's first line", self.id(), || BufReader::new(from).read_line(&mut line).unwrap());
        line
    }
}

/// Runs a program to its end.
pub(crate) fn output(command: &mut Command) -> Output {
    let what = format!("the end of {command:?}");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    within(&what, child.id(), || child.wait_with_output().unwrap())
}
