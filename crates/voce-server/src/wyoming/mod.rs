//! Wyoming, the protocol of Home Assistant, on a port of its own: one JSON line an event, with data and a payload after it.

pub(crate) mod event;
mod talk;

use std::io;

use tokio::io::{AsyncRead, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::core::aside::Work;
use crate::core::caller::Caller;
use crate::core::socket_io::StallGuard;
use crate::core::state::AppState;
use event::Event;

/// Events that wait to be handled.
const EVENTS: usize = 16;

/// Reads events until there are no more; then waits, because the conversation ends by itself.
async fn read_all(mut stream: BufReader<impl AsyncRead + Unpin>, sender: mpsc::Sender<io::Result<Event>>) {
    loop {
        let event = match event::read(&mut stream).await {
            Ok(Some(event)) => Ok(event),
            Ok(None) => break,
            Err(error) => Err(error),
        };
        let is_end = event.is_err();
        if sender.send(event).await.is_err() || is_end {
            break;
        }
    }
    drop(sender);
    std::future::pending().await
}

/// Accepts connections until the server drains.
pub(crate) async fn run(listener: TcpListener, state: AppState) {
    let mut tasks = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a Wyoming connection");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = state.drain.begun() => break,
            Some(_) = tasks.join_next() => continue,
        };
        let _ = stream.set_nodelay(true);
        let stream = StallGuard::new(stream, state.options.limits.write_stall);
        let caller = Caller { key: None, address: stream.peer().address() };
        let Ok(place) = state.budget.connections.take(&caller, 1) else {
            state.metrics.error("too_many_connections");
            continue;
        };
        let state = state.clone();
        let session = state.drain.session();
        let work: Work = Box::pin(caller.scope(async move {
            let over = state.drain.clone();
            let (read, write) = tokio::io::split(stream);
            let (sender, events) = mpsc::channel(EVENTS);
            let mut talk = talk::Talk::new(write, events, state);
            tokio::select! {
                () = talk.run() => {}
                // Events are read by a task of their own, because half an event must not be lost.
                () = read_all(BufReader::new(read), sender) => {}
                () = over.over() => {}
            }
            drop((place, session));
        }));
        tasks.spawn(work);
    }
    // The server's own wait sees the sessions; this one only keeps their tasks.
    while tasks.join_next().await.is_some() {}
}
