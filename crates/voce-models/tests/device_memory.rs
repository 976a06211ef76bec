//! Models on a device whose memory is full: what was reserved at the start is enough for every step, and what was not is
//! an error that others do not notice. The device is emulated, with as much memory as a test gives it.

mod backend;
mod fixture;
mod recogniser;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use recogniser::{error, look_aheads, rows};
use voce_models::fastconformer::{Encoder, EncoderState, StreamShape};
use voce_models::mimi::MimiDecoder;
use voce_models::transducer::{Decoder, Method, Search, SearchOptions, SearchState};
use voce_nn::{Formats, Loader, Precision, WeightError};
use voce_runtime::cuda::Device;
use voce_runtime::{Buffer, Exec, FrameSpan, Span};

fn device(bytes: u64) -> (Arc<Device>, Arc<AtomicU64>) {
    let memory = Arc::new(AtomicU64::new(bytes));
    (Device::emulated_with(memory.clone()).unwrap(), memory)
}

/// Leaves nothing beyond what is in use.
fn fill(device: &Device, memory: &AtomicU64) {
    let (free, total) = device.memory().unwrap();
    memory.store(total - free, Ordering::SeqCst);
}

/// A recogniser with all of its slots.
struct Ear {
    encoder: Encoder,
    decoder: Decoder,
    state: EncoderState,
    search: Search,
    mel: Buffer,
    projected: Buffer,
}

impl Ear {
    fn open(case: &recogniser::Case, device: &Arc<Device>, exec: &mut Exec) -> Result<Self, WeightError> {
        let loader = Loader::new(case.loader.source()).on(device.clone());
        let encoder = Encoder::load(&loader, &case.config, case.formats, exec)?;
        let decoder = Decoder::load(&loader, &case.config, case.formats)?;
        Ok(Self {
            state: encoder.state(SLOTS, 16),
            search: Search::new(&decoder, SLOTS),
            mel: Buffer::new(1, case.config.mel.bins),
            projected: Buffer::new(1, decoder.frame_width()),
            encoder,
            decoder,
        })
    }

    /// The same mel rows for each of the first streams; gives the first one's frames.
    fn step(&mut self, exec: &mut Exec, mel: &Buffer, last: bool, states: &mut [SearchState]) -> Vec<f32> {
        let spans: Vec<_> =
            (0..states.len()).map(|slot| FrameSpan { slot, rows: mel.rows(), last }).collect();
        self.mel.shape(mel.rows() * states.len(), mel.cols());
        (0..self.mel.rows()).for_each(|r| self.mel.row_mut(r).copy_from_slice(mel.row(r % mel.rows())));
        let (x, made) = self.encoder.step(exec, &mut self.state, &self.mel, &spans);
        let made: Vec<Span> = made.to_vec();
        let frames = made.iter().map(|s| s.rows).sum();
        self.projected.shape(frames, self.decoder.frame_width());
        self.decoder.project(exec, x, frames, &mut self.projected);
        exec.fetch(x, made[0].rows);
        let first = x.head(made[0].rows).to_vec();
        self.search.step(exec, &self.decoder, &mut self.projected, &made, states);
        first
    }
}

const SLOTS: usize = 6;

#[test]
fn a_recogniser_that_reserved_its_largest_step_runs_on_a_full_device() {
    backend::on_device();
    let case = recogniser::Case::new("stream", Precision::F32);
    let shape = StreamShape { look_ahead: look_aheads(&case)[0], language: 0 };
    for (method, beam) in [(Method::Greedy, 1), (Method::Malsd, 4)] {
        let (device, memory) = device(512 << 20);
        let mut exec = Exec::on(&device).unwrap();
        let mut ear = Ear::open(&case, &device, &mut exec).unwrap();
        let options = SearchOptions { method, beam, ..SearchOptions::default() };
        let states = |ear: &Ear, n: usize| -> Vec<SearchState> {
            (0..n).map(|_| SearchState::new(&ear.decoder, &options).unwrap()).collect()
        };
        let mel = case.mel();
        let most = ear.encoder.mel_rows(shape.look_ahead, 2, false);
        let all: Vec<usize> = (0..SLOTS).collect();
        let start = |ear: &mut Ear| all.iter().for_each(|&s| ear.encoder.start(&mut ear.state, s, shape));
        start(&mut ear);
        let mut fresh = states(&ear, SLOTS);
        let reserved = exec
            .rehearse(|exec| {
                // Twice, since buffers of the subsampling change places from step to step.
                (0..2).for_each(|_| drop(ear.step(exec, &rows(&mel, 0..most), false, &mut fresh)));
                ear.search.flush(exec, &ear.decoder, &mut fresh);
            })
            .unwrap();
        reserved.check().unwrap();
        assert!(reserved.given > 100_000, "{reserved:?}");
        drop(fresh);
        start(&mut ear);
        fill(&device, &memory);
        let (mut at, mut got) = (0, Vec::new());
        let mut live = states(&ear, SLOTS);
        while at < mel.rows() {
            let n = ear.encoder.mel_rows(shape.look_ahead, 1, at == 0).min(mel.rows() - at);
            got.extend(ear.step(&mut exec, &rows(&mel, at..at + n), at + n == mel.rows(), &mut live));
            at += n;
            exec.status().unwrap_or_else(|e| panic!("{method:?}, row {at}: {e}"));
        }
        ear.search.flush(&mut exec, &ear.decoder, &mut live);
        exec.status().unwrap();
        let e = error(&got, &case.expected(&format!("R{}/encoder", shape.look_ahead)));
        assert!(e < 5e-5, "{method:?}: {e:e}");
        let found: Vec<_> = live.into_iter().map(|s| s.finish()).collect();
        assert!(found.iter().all(|f| f[0].tokens == found[0][0].tokens), "{method:?}");
    }
}

#[test]
fn a_recogniser_that_does_not_fit_is_an_error_of_its_load_and_fits_later() {
    backend::on_device();
    let case = recogniser::Case::new("stream", Precision::F32);
    let (device, memory) = device(60 << 10);
    let mut exec = Exec::on(&device).unwrap();
    match Ear::open(&case, &device, &mut exec).map(drop) {
        Err(WeightError::Device(e)) => assert!(e.is_out_of_memory(), "{e}"),
        other => panic!("{other:?}"),
    }
    device.status().unwrap();
    memory.store(512 << 20, Ordering::SeqCst);
    exec.recover().unwrap();
    Ear::open(&case, &device, &mut exec).unwrap();
}

#[test]
fn a_voice_that_reserved_its_largest_step_speaks_on_a_full_device() {
    backend::on_device();
    let case = fixture::Case::f32("lsd4");
    let (device, memory) = device(512 << 20);
    let loader = Loader::new(case.loader.source()).on(device.clone());
    let formats = Formats::on_device(Precision::F32);
    let mut exec = Exec::on(&device).unwrap();
    let codec = MimiDecoder::load(&loader.sub("mimi"), &case.config.mimi, formats, None).unwrap();
    let (mut state, frames) = (codec.state(3, 6), 2);
    let latents: Vec<f32> = (0..6 * codec.latent_dim()).map(|i| (i as f32 * 0.7).sin()).collect();
    let spans = |slots: usize| -> Vec<Span> { (0..slots).map(|slot| Span { slot, rows: frames }).collect() };
    let decode = |exec: &mut Exec, state: &mut _, slots: usize| {
        codec.decode(exec, state, &spans(slots), &latents[..slots * frames * codec.latent_dim()]).to_vec()
    };
    let want = decode(&mut exec, &mut codec.state(3, 6), 3);
    let reserved = exec.rehearse(|exec| drop(decode(exec, &mut state, 3))).unwrap();
    reserved.check().unwrap();
    (0..3).for_each(|slot| state.reset(slot));
    fill(&device, &memory);
    let used = device.used();
    let got = decode(&mut exec, &mut state, 3);
    exec.status().unwrap();
    assert_eq!(got, want);
    for slots in [1, 2, 3] {
        decode(&mut exec, &mut state, slots);
        exec.status().unwrap();
    }
    assert_eq!(device.used(), used);
}
