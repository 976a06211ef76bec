//! A session's claim on a recogniser: a slot is taken with the first audio, it holds one stream at a time, and the one before
//! is closed before the next is opened. Another model is entered by its own door.

use std::sync::Arc;

use super::{Ear, HearRequest, Hearing, Saved, SavedStream, Step};
use crate::core::admission::Permit;
use crate::core::error::ServerError;

/// What a session has of a recogniser: nothing, a slot, or a slot with a stream in it.
pub(crate) struct Claim {
    ear: Arc<Ear>,
    permit: Option<Arc<Permit>>,
    hearing: Option<Hearing>,
    /// The session is to be saved, and has no stream.
    saves_nothing: bool,
}

impl Claim {
    /// A claim without a slot; refused where there would be none now.
    pub(crate) fn new(ear: Arc<Ear>) -> Result<Self, ServerError> {
        ear.check()?;
        Ok(Self { ear, permit: None, hearing: None, saves_nothing: false })
    }

    /// A claim that goes on with a stream that was saved, or without one where none was open.
    pub(crate) async fn resume(ear: Arc<Ear>, stream: Option<SavedStream>) -> Result<Self, ServerError> {
        let mut this = Self::new(ear)?;
        if let Some(stream) = stream {
            let permit = this.ear.admit().await?;
            this.hearing = Some(this.ear.resume_in(&permit, &stream).await?);
            this.permit = Some(permit);
        }
        Ok(this)
    }

    /// Saves the stream after the audio so far, of which [none may wait](Self::has_room); it comes as a step.
    pub(crate) fn save(&mut self) {
        match &mut self.hearing {
            Some(hearing) => hearing.save(),
            None => self.saves_nothing = true,
        }
    }

    /// The session goes on elsewhere.
    pub(crate) fn moved(&mut self) {
        if let Some(hearing) = self.hearing.take() {
            hearing.moved();
        }
        self.permit = None;
    }

    pub(crate) fn ear(&self) -> &Arc<Ear> {
        &self.ear
    }

    /// The stream that is open.
    pub(crate) fn hearing(&mut self) -> Option<&mut Hearing> {
        self.hearing.as_mut()
    }

    /// Whether audio may be added.
    pub(crate) fn has_room(&self) -> bool {
        self.hearing.as_ref().is_none_or(Hearing::has_room)
    }

    /// Seconds of audio of the stream that is open.
    pub(crate) fn seconds(&self) -> f64 {
        self.hearing.as_ref().map_or(0.0, Hearing::seconds)
    }

    /// The stream, opened in the session's slot if there is none.
    pub(crate) async fn open(&mut self, request: &HearRequest) -> Result<&mut Hearing, ServerError> {
        if self.hearing.is_none() {
            // Boxed, since it is large, seldom, and part of every future that may have to open a stream.
            Box::pin(self.begin(request)).await?;
        }
        Ok(self.hearing.as_mut().expect("opened above"))
    }

    async fn begin(&mut self, request: &HearRequest) -> Result<(), ServerError> {
        let permit = match self.permit.take() {
            Some(permit) => permit,
            None => self.ear.admit().await?,
        };
        // A slot without a stream is given back.
        self.hearing = Some(self.ear.open_in(&permit, request).await?);
        self.permit = Some(permit);
        Ok(())
    }

    /// What the stream does next; nothing where none is open.
    pub(crate) async fn step(&mut self) -> Step {
        match &mut self.hearing {
            Some(hearing) => hearing.step().await,
            None if std::mem::take(&mut self.saves_nothing) => Step::Saved(Saved::NoStream),
            None => std::future::pending().await,
        }
    }

    /// Closes the stream, and keeps the slot for the next one.
    pub(crate) async fn close(&mut self) {
        if let Some(hearing) = self.hearing.take() {
            hearing.close().await;
        }
    }

    /// Closes the stream and gives the slot back.
    pub(crate) async fn release(&mut self) {
        self.close().await;
        self.permit = None;
    }

    /// Goes to another recogniser, where a slot is taken with the next audio.
    pub(crate) async fn move_to(&mut self, ear: Arc<Ear>) {
        if !Arc::ptr_eq(&self.ear, &ear) {
            self.release().await;
            self.ear = ear;
        }
    }
}
