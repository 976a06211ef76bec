//! Who owns a loaded model: any number of owners, none of whom waits for its threads.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use super::Model;

/// An owner of a loaded model. The last one hands it to a thread of its own to be dropped: that joins the model's threads,
/// which takes a step, or for ever where one hangs, and owners are dropped on async workers and under locks.
pub(crate) struct Kept<M: Model>(Arc<LetGo<M>>);

/// A model until its last owner is gone.
struct LetGo<M: Model>(Option<M>);

impl<M: Model> Kept<M> {
    pub(super) fn new(model: M) -> Self {
        Self(Arc::new(LetGo(Some(model))))
    }
}

impl<M: Model> Clone for Kept<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: Model> Deref for Kept<M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.0.0.as_ref().expect("it is there until its last owner is gone")
    }
}

impl<M: Model> Drop for LetGo<M> {
    fn drop(&mut self) {
        // The thread is there before it gets the model: where there can be none, the model stays rather than be waited for.
        let (hand, taken) = sync_channel(1);
        let thread = std::thread::Builder::new().name("voce-unload".into());
        match thread.spawn(move || drop(taken.recv())) {
            Ok(_) => drop(hand.send(self.0.take())),
            Err(_) => std::mem::forget(self.0.take()),
        }
    }
}
