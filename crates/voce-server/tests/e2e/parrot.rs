//! A dialogue model for tests: it says in each frame what it heard in the one before, and counts aloud.

use std::sync::Arc;
use std::time::Duration;

use voce_engine::talker::{TalkRequest, Talker, TalkerOptions};
use voce_models::dialogue::{Dialogue, DialogueError, DialogueInfo, Partner, Uttered};
use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError};
use voce_server::partner::PartnerOptions;

/// Samples of a frame, and in a second.
pub(crate) const FRAME: usize = 1920;
pub(crate) const RATE: usize = 24_000;

/// How it speaks.
#[derive(Clone, Copy)]
pub(crate) struct Parrot {
    /// What it says before each number.
    pub(crate) word: &'static str,
    /// How often it says that.
    pub(crate) times: usize,
    /// Frames after which it hangs up.
    pub(crate) longest: usize,
}

impl Default for Parrot {
    fn default() -> Self {
        Self { word: "", times: 1, longest: usize::MAX }
    }
}

impl Parrot {
    /// It under a name, with slots.
    pub(crate) fn served(self, id: &str, slots: usize) -> PartnerOptions {
        let open = move || {
            let info = DialogueInfo {
                family: "Parrot",
                sample_rate: RATE,
                frame_size: FRAME,
                longest: None,
                stages: Vec::new(),
            };
            let options = TalkerOptions::default().with_threads(1).with_slots(slots);
            Talker::new(Arc::new(Model { info, parrot: self }), &options)
        };
        PartnerOptions::new(id, slots, Box::new(open))
    }
}

struct Model {
    info: DialogueInfo,
    parrot: Parrot,
}

struct Slots {
    parrot: Parrot,
    slots: Vec<Option<(Vec<f32>, usize)>>,
    made: Vec<Uttered>,
}

impl Dialogue for Model {
    fn info(&self) -> &DialogueInfo {
        &self.info
    }

    fn check(&self, request: &TalkRequest) -> Result<(), DialogueError> {
        match request.temperature {
            Some(t) if t > 10.0 => {
                Err(DialogueError::Value { what: "temperature", value: t.to_string(), rule: "use 0 to 10" })
            }
            _ => Ok(()),
        }
    }

    fn partner(&self, slots: usize) -> Box<dyn Partner> {
        Box::new(Slots { parrot: self.parrot, slots: vec![None; slots], made: Vec::new() })
    }
}

impl Partner for Slots {
    fn reserve(&mut self, _: &mut Exec) -> Result<Reserved, RuntimeError> {
        Ok(Reserved::default())
    }

    fn start(&mut self, _: &mut Exec, slot: usize, _: &TalkRequest) {
        self.slots[slot] = Some((Vec::new(), 0));
    }

    fn step(&mut self, _: &mut Exec, live: &[usize], samples: &[f32]) {
        self.made.clear();
        for (&slot, heard) in live.iter().zip(samples.chunks_exact(FRAME)) {
            let (before, frames) = self.slots[slot].as_mut().unwrap();
            *frames += 1;
            let text = format!("{}{frames} ", self.parrot.word.repeat(self.parrot.times));
            let ended = *frames >= self.parrot.longest;
            let samples = std::mem::replace(before, heard.to_vec());
            self.made.push(Uttered { samples, text, ended, ..Uttered::default() });
        }
    }

    fn fetch(&mut self, _: &mut Exec, _: &[usize], out: &mut Vec<Uttered>) -> Vec<(&'static str, Duration)> {
        out.append(&mut self.made);
        Vec::new()
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn warm(&mut self, _: &mut Exec) {}
}
