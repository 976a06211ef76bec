//! Conversations: the lane, slots and streams of a talker, over a small model that answers with what it heard a frame ago.

use std::sync::Arc;
use std::time::Duration;

use voce_engine::EngineError;
use voce_engine::talker::{HungUp, TalkEvent, TalkRequest, TalkStream, Talker, TalkerOptions};
use voce_models::dialogue::{Dialogue, DialogueError, DialogueInfo, Partner, Uttered};
use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError};

const FRAME: usize = 8;
const RATE: usize = 100;

/// Says in each frame what it heard in the one before, a little softer with the seed, and counts aloud.
struct Echo(DialogueInfo);

struct EchoSlots {
    slots: Vec<Option<(Vec<f32>, f32, usize)>>,
    made: Vec<Uttered>,
}

impl Echo {
    fn talker(slots: usize) -> Talker {
        let info = DialogueInfo {
            family: "Echo",
            sample_rate: RATE,
            frame_size: FRAME,
            longest: Some(1000),
            stages: Vec::new(),
        };
        let options = TalkerOptions::default().with_threads(1).with_slots(slots);
        Talker::new(Arc::new(Echo(info)), &options).unwrap()
    }
}

impl Dialogue for Echo {
    fn info(&self) -> &DialogueInfo {
        &self.0
    }

    fn check(&self, request: &TalkRequest) -> Result<(), DialogueError> {
        match request.top_k {
            Some(_) => Err(DialogueError::Unsupported { family: "Echo", option: "top-k" }),
            None => Ok(()),
        }
    }

    fn partner(&self, slots: usize) -> Box<dyn Partner> {
        Box::new(EchoSlots { slots: vec![None; slots], made: Vec::new() })
    }
}

impl Partner for EchoSlots {
    fn reserve(&mut self, _: &mut Exec) -> Result<Reserved, RuntimeError> {
        Ok(Reserved::default())
    }

    fn start(&mut self, _: &mut Exec, slot: usize, request: &TalkRequest) {
        assert!(self.slots[slot].is_none(), "the slot is taken");
        self.slots[slot] = Some((Vec::new(), 1.0 / (request.seed + 1) as f32, 0));
    }

    fn step(&mut self, _: &mut Exec, live: &[usize], samples: &[f32]) {
        self.made.clear();
        for (&slot, heard) in live.iter().zip(samples.chunks_exact(FRAME)) {
            let (before, scale, frames) = self.slots[slot].as_mut().unwrap();
            let said = before.iter().map(|s| s * *scale).collect();
            *before = heard.to_vec();
            *frames += 1;
            self.made.push(Uttered {
                samples: said,
                text: format!("{frames} "),
                ended: *frames == 1000,
                ..Uttered::default()
            });
        }
    }

    fn fetch(
        &mut self,
        _: &mut Exec,
        live: &[usize],
        out: &mut Vec<Uttered>,
    ) -> Vec<(&'static str, Duration)> {
        assert_eq!(live.len(), self.made.len());
        out.append(&mut self.made);
        Vec::new()
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn warm(&mut self, _: &mut Exec) {}
}

fn wave(seed: usize, samples: usize) -> Vec<f32> {
    (0..samples).map(|i| ((i * 7 + seed * 13) % 101) as f32 / 101.0 - 0.5).collect()
}

/// All audio and text of a conversation.
fn all(stream: &mut TalkStream) -> (Vec<f32>, String) {
    let (mut audio, mut text) = (Vec::new(), String::new());
    for event in stream {
        match event.unwrap() {
            TalkEvent::Audio(samples) => audio.extend(samples),
            TalkEvent::Text(more) => text += &more,
            _ => {}
        }
    }
    (audio, text)
}

#[test]
fn a_conversation_is_answered_frame_by_frame_to_its_end() {
    let talker = Echo::talker(1);
    let (mut sender, mut stream) = talker.talk(&TalkRequest::default()).unwrap();
    let said = wave(1, 5 * FRAME + 3);
    said.chunks(5).for_each(|part| sender.push(part).unwrap());
    drop(sender);
    let (audio, text) = all(&mut stream);
    // The last frame is filled up with silence, and the answer is a frame behind.
    assert_eq!(audio, said[..5 * FRAME]);
    assert_eq!(text, "1 2 3 4 5 6 ");
    assert_eq!(stream.stats().frames, 6);
}

#[test]
fn company_changes_nothing_and_slots_are_given_back() {
    let talker = Echo::talker(3);
    let alone: Vec<(Vec<f32>, String)> = (0..12)
        .map(|i| {
            let (mut sender, mut stream) = talker.talk(&TalkRequest::default().with_seed(i as u64)).unwrap();
            sender.push(&wave(i, (i + 2) * FRAME)).unwrap();
            drop(sender);
            all(&mut stream)
        })
        .collect();
    std::thread::scope(|scope| {
        for third in 0..3 {
            let (talker, alone) = (&talker, &alone);
            scope.spawn(move || {
                for i in (third..12).step_by(3) {
                    let request = TalkRequest::default().with_seed(i as u64);
                    let (mut sender, mut stream) = talker.talk(&request).unwrap();
                    wave(i, (i + 2) * FRAME).chunks(3 + i).for_each(|part| sender.push(part).unwrap());
                    drop(sender);
                    assert_eq!(all(&mut stream), alone[i], "{i}");
                }
            });
        }
    });
}

#[test]
fn more_than_there_are_slots_are_refused_until_a_reader_goes() {
    let talker = Echo::talker(2);
    let mut held: Vec<_> = (0..2).map(|_| talker.talk(&TalkRequest::default()).unwrap()).collect();
    assert!(matches!(talker.talk(&TalkRequest::default()), Err(EngineError::Busy(2))));
    let (mut sender, stream) = held.pop().unwrap();
    drop(stream);
    // The slot is free once the sender is told so.
    while sender.push(&[0.0; FRAME]).is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(sender.try_push(&[0.0]), Err(HungUp));
    assert!(talker.talk(&TalkRequest::default()).is_ok());
}

#[test]
fn a_reader_that_goes_at_once_leaves_no_slot_taken() {
    let talker = Echo::talker(1);
    for _ in 0..200 {
        // The slot of the round before is free.
        let (mut sender, stream) = talker.talk(&TalkRequest::default()).unwrap();
        drop(stream);
        // The sender is still there, and is told when its slot is.
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        while sender.poll_hung_up(&mut cx).is_pending() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_reader_that_does_not_read_pauses_its_own_conversation() {
    let talker = Echo::talker(2);
    let (mut slow, mut unread) = talker.talk(&TalkRequest::default()).unwrap();
    let said = wave(3, 50 * RATE);
    let mut pushed = 0;
    // Ten seconds wait at either end, whatever is offered: then nothing more is taken.
    let (mut quick, mut read) = talker.talk(&TalkRequest::default()).unwrap();
    quick.push(&wave(4, 50 * FRAME)).unwrap();
    drop(quick);
    assert_eq!(all(&mut read).0.len(), 49 * FRAME);
    while pushed < 15 * RATE {
        pushed += slow.try_push(&said[pushed..]).unwrap();
        std::thread::yield_now();
    }
    assert!(pushed <= 21 * RATE, "{pushed} samples were taken for a reader that does not read");
    let reader = std::thread::spawn(move || all(&mut unread).0);
    slow.push(&said[pushed..]).unwrap();
    drop(slow);
    assert_eq!(reader.join().unwrap(), said[..said.len() - FRAME - said.len() % FRAME]);
}

#[test]
fn what_is_no_audio_and_options_that_a_family_lacks_are_refused() {
    let talker = Echo::talker(2);
    let (mut sender, mut stream) = talker.talk(&TalkRequest::default()).unwrap();
    let (mut other, mut goes_on) = talker.talk(&TalkRequest::default()).unwrap();
    assert_eq!(sender.push(&[0.0, f32::NAN]), Err(HungUp));
    let told = stream.find_map(Result::err).unwrap();
    assert!(told.to_string().contains("numbers from -1 to 1"), "{told}");
    other.push(&wave(5, 2 * FRAME)).unwrap();
    drop(other);
    assert_eq!(all(&mut goes_on).0.len(), FRAME);
    let refused = talker.talk(&TalkRequest::default().with_top_k(Some(5))).err().unwrap();
    assert_eq!(refused.code(), "bad_request");
    assert!(refused.to_string().contains("Echo takes no top-k"), "{refused}");
}
