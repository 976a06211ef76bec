//! Where frames go: to a codec thread of their own, or through the lane's own executor.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use voce_runtime::Exec;

use super::codec::{CodecStage, Message};
use crate::EngineError;
use crate::lane::Team;
use crate::pulse::{Life, Pulse};

/// Steps that the language model may be ahead of the codec.
const AHEAD_STEPS: usize = 8;

/// The longest wait for a codec to be done with what it has.
const SETTLED: Duration = Duration::from_millis(20);

/// Where frames go.
pub(super) enum Codec {
    /// To a thread of their own, what a step has made together: frames that are made together are decoded so.
    Beside { sender: SyncSender<Vec<Message>>, held: Vec<Message> },
    /// Through the same executor.
    InLine(Box<CodecStage>),
    /// Nowhere: the codec's thread has ended.
    Gone,
}

impl Codec {
    /// Starts a thread for the stage.
    pub(super) fn beside(
        stage: CodecStage,
        team: Team,
        pulse: std::sync::Arc<Pulse>,
    ) -> Result<(Self, JoinHandle<()>), EngineError> {
        let (sender, messages) = sync_channel(AHEAD_STEPS);
        let life = Life(pulse);
        let thread = team.spawn("voce-codec", move |exec| run(stage, exec, messages, life))?;
        Ok((Self::Beside { sender, held: Vec::new() }, thread))
    }

    /// Passes a message on, or keeps it for [`Codec::flush`].
    pub(super) fn send(&mut self, message: Message) {
        match self {
            Codec::Beside { held, .. } => held.push(message),
            Codec::InLine(stage) => stage.handle(message),
            Codec::Gone => {}
        }
    }

    /// Passes on what was kept.
    pub(super) fn flush(&mut self) {
        if let Codec::Beside { sender, held } = self
            && !held.is_empty()
            && sender.send(std::mem::take(held)).is_err()
        {
            *self = Codec::Gone;
        }
    }

    /// Passes on what was kept, and waits until it is decoded, though not for long.
    pub(super) fn settle(&mut self) {
        if let Codec::Beside { held, .. } = self {
            let (done, settled) = sync_channel(1);
            held.push(Message::Tell(done));
            self.flush();
            // A codec that is late or gone is found out elsewhere.
            let _ = settled.recv_timeout(SETTLED);
        }
    }

    /// Decodes what is due, where that is the lane's work. Returns whether anything was.
    pub(super) fn work(&mut self, exec: &mut Exec) -> bool {
        let Codec::InLine(stage) = self else { return false };
        let decoded = stage.work(exec);
        stage.hand_over();
        decoded
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Codec::Gone)
    }

    /// Ends every stream that is in the lane's own stage.
    pub(super) fn fail(&mut self, reason: &str) {
        if let Codec::InLine(stage) = self {
            stage.fail(reason);
        }
    }
}

/// Runs the codec stage until the lane is gone.
fn run(mut stage: CodecStage, mut exec: Exec, messages: Receiver<Vec<Message>>, life: Life) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        while let Some(step) = messages.try_recv().ok().or_else(|| {
            // The device has nothing to do beside it: what is held goes out before the wait.
            stage.hand_over();
            messages.recv().ok()
        }) {
            // No more than the channel holds, or what is ready would wait for a model that is faster.
            let mut waiting = Vec::new();
            for message in std::iter::once(step).chain(messages.try_iter().take(AHEAD_STEPS)).flatten() {
                if let Message::Tell(done) = message {
                    waiting.push(done);
                    continue;
                }
                // A slot's next passage may come before the frames of its last one are decoded.
                if matches!(message, Message::Begin { slot, .. } if stage.is_busy(slot)) {
                    stage.work(&mut exec);
                }
                stage.handle(message);
            }
            stage.work(&mut exec);
            if !waiting.is_empty() {
                stage.hand_over();
            }
            // Whoever has stopped waiting is not told.
            waiting.into_iter().for_each(|done| {
                let _ = done.try_send(());
            });
            if exec.status().is_err() {
                break;
            }
        }
    }));
    drop(life);
    let reason = match (result, exec.status()) {
        (Err(_), _) => "the codec thread panicked".to_owned(),
        (Ok(()), Err(e)) => e.to_string(),
        (Ok(()), Ok(())) => "it was closed".to_owned(),
    };
    stage.fail(&reason);
    // Requests that the stage has not met yet; the lane finds the channel closed and ends the others.
    for message in messages.try_iter().flatten() {
        if let Message::Open { output, .. } = message {
            output.finish(Err(EngineError::Stopped(reason.clone())));
        }
    }
}
