//! The queue of one executor: work is recorded op by op and enqueued when its result is wanted.
//!
//! Recording costs some tens of nanoseconds a command. When the same commands with the same arguments come
//! again, they are captured into a graph, and from then on enqueued by one launch. What differs from step to
//! step (slots, positions, row numbers) is not an argument: it is in *tables*, host arrays that travel
//! to fixed device addresses in one copy before the commands run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::CudaError;
use super::driver::{ARRIVALS, Address, Command, Graph, MOMENTS, Product, Shape, Stream};
use super::fingerprint::Fingerprint;
use super::frame;
use super::graphs::{Graphs, Key, Known};
use super::memory::Device;
use super::program::KernelOf;
use super::room::Rehearsal;
use super::tables::{Area, TABLES};

/// Bytes from which host data go to the device in a copy of their own and not among the tables.
pub(super) const LARGE: usize = 256 << 10;
/// Commands below which a graph is not worth keeping.
const WORTH_CAPTURING: usize = 4;

/// Arguments of a kernel: one value of fields without padding.
///
/// # Safety
/// The type has no padding; its fields are those that the kernels declare, whose size is checked where they are compiled.
pub(crate) unsafe trait Args: Copy {}

/// Recorded work.
pub(crate) struct Queue {
    pub(crate) device: Arc<Device>,
    /// Its number, unique in the process.
    pub(super) number: u64,
    stream: Stream,
    commands: Vec<Command>,
    args: Vec<u8>,
    areas: Vec<Area>,
    /// Tables of this recording by their hash: area and offset.
    known: HashMap<(u64, u64), (usize, usize)>,
    graphs: Graphs,
    /// Which of the moments of arrival was taken last.
    sent: usize,
    /// Lack of memory, after which nothing is enqueued.
    pub(super) failed: Option<CudaError>,
    /// While a rehearsal lasts nothing is enqueued.
    pub(super) rehearsal: Option<Rehearsal>,
    /// Whether repeated work is captured.
    pub(crate) use_graphs: bool,
    /// Whether one stream's work becomes one kernel.
    pub(crate) use_frames: bool,
    /// Whether each command is timed, which makes steps slower.
    pub(crate) use_events: bool,
}

impl Queue {
    pub(crate) fn new(device: Arc<Device>, first: bool) -> Result<Self, CudaError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let stream = device.driver.stream(first)?;
        Ok(Self {
            device,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            stream,
            commands: Vec::new(),
            args: Vec::new(),
            areas: Vec::new(),
            known: HashMap::new(),
            graphs: Graphs::default(),
            sent: 0,
            failed: None,
            rehearsal: None,
            use_graphs: true,
            use_frames: false,
            use_events: false,
        })
    }

    fn push(&mut self, command: Command) {
        if self.commands.is_empty() {
            self.device.recording_begins();
        }
        self.commands.push(command);
    }

    /// Records a launch.
    pub(crate) fn launch<A: Args>(&mut self, kernel: KernelOf<A>, shape: Shape, args: &A) {
        if shape.grid.contains(&0) {
            return;
        }
        // SAFETY: `Args` have no padding, so all of their bytes are initialised.
        let bytes =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(args).cast::<u8>(), size_of::<A>()) };
        let at = self.args.len().next_multiple_of(16);
        self.args.resize(at, 0);
        self.args.extend_from_slice(bytes);
        self.push(Command::Launch { kernel: kernel.id(), shape, args: at, len: bytes.len() });
    }

    /// Records a product.
    pub(crate) fn product(&mut self, product: Product) {
        self.push(Command::Product(product));
    }

    /// Records a copy within the device.
    pub(crate) fn copy(&mut self, from: Address, to: Address, bytes: usize) {
        if bytes > 0 {
            self.push(Command::Copy { from, to, bytes });
        }
    }

    /// Records that the time is noted when this point is reached.
    pub(crate) fn note(&mut self, moment: usize) {
        self.push(Command::Note(moment));
    }

    /// Time between two moments, after the queue was waited for.
    pub(crate) fn between(&self, from: usize, to: usize) -> Option<Duration> {
        let ms = self.device.driver.between(self.stream, from, to)?;
        Some(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }

    /// Puts a host array where kernels of this step can read it, until the next flush. The same array twice is
    /// there once.
    pub(crate) fn table<T: super::Plain>(&mut self, values: &[T]) -> Address {
        // SAFETY: `Plain` values have no padding.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        let hash = Fingerprint::of(bytes);
        if let Some(&(area, at)) = self.known.get(&hash)
            && self.rehearsal.is_none()
            && self.areas[area].has(at, bytes)
        {
            return self.areas[area].address(at);
        }
        let index = match self.areas.iter().position(|a| a.has_room(bytes.len())) {
            Some(index) => index,
            None => {
                let whose = std::ptr::from_ref(&self.areas) as usize;
                let Some(memory) = self.alloc(TABLES.max(bytes.len()), whose) else { return 0 };
                self.areas.push(Area::new(&self.device, memory));
                self.areas.len() - 1
            }
        };
        let area = &mut self.areas[index];
        let at = area.put(bytes);
        self.known.insert(hash, (index, at));
        area.address(at)
    }

    /// Enqueues all that was recorded.
    pub(crate) fn flush(&mut self) {
        if self.commands.is_empty() {
            return;
        }
        if self.rehearsal.is_none() && self.status().is_ok() {
            let result = self.enqueue();
            self.check(result);
        }
        self.commands.clear();
        self.args.clear();
        // Every area is asked: none may be left with the old recording.
        if self.areas.iter_mut().fold(false, |waits, a| a.next() | waits) {
            self.check(self.device.driver.wait(self.stream));
            self.arrived();
        }
        self.known.clear();
        self.device.recording_ends();
    }

    fn enqueue(&mut self) -> Result<(), CudaError> {
        let driver = &self.device.driver;
        for area in &mut self.areas {
            let (to, bytes) = (area.address(0), area.sent());
            if !bytes.is_empty() {
                driver.upload(self.stream, to, bytes)?;
            }
        }
        if self.use_events {
            let ms = driver.enqueue_timed(self.stream, &self.commands, &self.args)?;
            self.device.note(&self.commands, &ms);
            return Ok(());
        }
        if !self.use_graphs || self.commands.len() < WORTH_CAPTURING {
            return driver.enqueue(self.stream, &self.commands, &self.args);
        }
        let (key, known) = self.graphs.find(&self.commands, &self.args);
        if let Known::Not(old) = known {
            self.forget(old)?;
            self.fuse(key)?;
        }
        match self.enqueue_known(key, known) {
            // Another program has a part of the device: its blocks cannot all be there at once.
            Err(e) if e.is_for_want_of_room() && self.use_frames => {
                self.use_frames = false;
                let graphs = self.graphs.unfuse();
                graphs.into_iter().try_for_each(|graph| self.forget(Some(graph)))?;
                self.device.driver.enqueue(self.stream, &self.commands, &self.args)
            }
            result => result,
        }
    }

    /// Enqueues the recording, or what stands for it.
    fn enqueue_known(&mut self, key: Key, known: Known) -> Result<(), CudaError> {
        let driver = &self.device.driver;
        let (commands, args) = match self.graphs.fused(key) {
            Some(fused) => (&fused.commands[..], &fused.args[..]),
            None => (&self.commands[..], &self.args[..]),
        };
        let graph = match known {
            Known::As(graph) => Some(graph),
            Known::Not(_) => None,
            Known::Once(_) => match driver.capture(self.stream, commands, args) {
                Ok(graph) => graph,
                // A graph only saves time: without memory for it the step still runs.
                Err(e) if e.is_out_of_memory() => None,
                Err(e) => return Err(e),
            },
        };
        match graph {
            Some(graph) => {
                if let Known::Once(key) = known {
                    self.graphs.keep(key, graph);
                }
                driver.replay(self.stream, graph)
            }
            None => driver.enqueue(self.stream, commands, args),
        }
    }

    /// Gives up a graph, and what was enqueued in place of recordings that are forgotten.
    fn forget(&mut self, graph: Option<Graph>) -> Result<(), CudaError> {
        let dropped = self.graphs.take_dropped();
        if graph.is_some() || !dropped.is_empty() {
            self.device.driver.wait(self.stream)?;
        }
        if let Some(graph) = graph {
            self.device.driver.drop_graph(graph);
        }
        Ok(())
    }

    /// Makes one launch of what can be one.
    fn fuse(&mut self, key: Key) -> Result<(), CudaError> {
        if !self.use_frames {
            return Ok(());
        }
        match frame::fuse(&self.device, &self.commands, &self.args) {
            Ok(fused) => fused.into_iter().for_each(|f| self.graphs.keep_fused(key, f)),
            // Without memory for it the step still runs, command by command.
            Err(e) if e.is_out_of_memory() => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Copies host bytes to the device, after what was recorded. Large ones flush: tables of an op are to be
    /// made after its uploads.
    pub(crate) fn upload(&mut self, to: Address, bytes: &[u8]) {
        if bytes.len() < LARGE || self.rehearsal.is_some() {
            // A later, smaller step may have to send this among its tables.
            let bytes = &bytes[..bytes.len().min(LARGE)];
            let from = self.table(bytes);
            return self.copy(from, to, bytes.len());
        }
        self.flush();
        if self.rehearsal.is_none() && self.status().is_ok() {
            self.check(self.device.driver.upload(self.stream, to, bytes));
        }
    }

    /// Runs what was recorded, waits for it, and copies its result to the host; zeros where nothing runs.
    pub(crate) fn download<T: super::Plain>(&mut self, from: Address, to: &mut [T]) {
        self.flush();
        // SAFETY: any bytes are `Plain` values.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), size_of_val(to)) };
        if self.rehearsal.is_some() {
            return bytes.fill(0);
        }
        let result = self.status().and_then(|()| self.device.driver.download(self.stream, from, bytes));
        match result {
            Ok(()) => self.arrived(),
            Err(e) => {
                bytes.fill(0);
                self.fail(e);
            }
        }
    }

    /// Runs what was recorded and sends its result to host memory that stays where it is; does not wait. Returns the
    /// moment at which it is there, for [`Queue::pass`]. Zeros where nothing runs.
    pub(crate) fn send<T: super::Plain>(&mut self, from: Address, to: &mut [T]) -> usize {
        self.flush();
        self.sent = (self.sent + 1) % ARRIVALS;
        let moment = MOMENTS + self.sent;
        // SAFETY: any bytes are `Plain` values.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), size_of_val(to)) };
        if self.rehearsal.is_some() || self.status().is_err() {
            bytes.fill(0);
        } else {
            let result = self.device.driver.send(self.stream, from, bytes, moment);
            self.check(result);
        }
        moment
    }

    /// Waits until the device has passed a moment.
    pub(crate) fn pass(&mut self, moment: usize) {
        if self.rehearsal.is_none() {
            let passed = self.device.driver.pass(self.stream, moment);
            self.check(passed);
        }
    }

    /// Later recordings of this queue run after everything recorded so far on another queue of the device.
    pub(crate) fn follow(&mut self, other: &mut Self) {
        other.flush();
        self.flush();
        if self.rehearsal.is_none() && other.rehearsal.is_none() && self.status().is_ok() {
            self.check(self.device.driver.follow(self.stream, other.stream));
        }
    }

    /// The device has copied all tables.
    fn arrived(&mut self) {
        self.areas.iter_mut().for_each(Area::arrived);
    }

    /// Waits until all that was recorded has run.
    pub(crate) fn wait(&mut self) {
        self.flush();
        let waited = self.device.driver.wait(self.stream);
        if waited.is_ok() {
            self.arrived();
        }
        self.check(waited);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.wait();
        self.graphs.all().for_each(|graph| self.device.driver.drop_graph(graph));
        self.device.driver.close(self.stream);
    }
}
