//! A thousand machines, ten routers, a deploy that rolls over all of them, machines and a rack that die: the real policy decides
//! where seventy thousand streams go. Simulated time, no sockets, always the same.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use voce_server::route::policy::{Fleet, Report};

const NODES: usize = 1_000;
const SLOTS: u32 = 100;
const ROUTERS: usize = 10;
/// Streams at once in the mean: seven tenths of the slots.
const STREAMS: usize = 70_000;
/// A tick is 50 ms; probes come every fifth.
const TICKS: u64 = 12_000;
const SECOND: u64 = 20;
const PROBE: u64 = 5;
/// Streams last 1 to 9 minutes, 5 in the mean.
const SHORTEST: u64 = 60 * SECOND;
const LONGEST: u64 = 540 * SECOND;
/// A rack.
const RACK: std::ops::Range<usize> = 400..420;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Up,
    /// Answers no probes until this tick.
    Away(u64),
}

#[derive(Default, Debug)]
struct Tally {
    placed: u64,
    refusals: u64,
    moved: u64,
    revived: u64,
    lost: u64,
}

struct World {
    nodes: Vec<State>,
    /// Streams of each machine, by their numbers.
    on: Vec<Vec<usize>>,
    /// Where a stream is, by its number.
    at: Vec<Option<usize>>,
    routers: Vec<Fleet>,
    tally: Tally,
}

impl World {
    fn new() -> Self {
        let routers = (0..ROUTERS).map(|seed| Fleet::new(NODES, seed as u64)).collect();
        let nodes = vec![State::Up; NODES];
        Self { nodes, on: vec![Vec::new(); NODES], at: Vec::new(), routers, tally: Tally::default() }
    }

    /// A stream asks its router for a machine, and that machine for a slot, until one says yes.
    fn place(&mut self, stream: usize) {
        let router = &mut self.routers[stream % ROUTERS];
        let mut tried = Vec::new();
        while let Some(node) = router.choose(&tried) {
            tried.push(node);
            if self.nodes[node] != State::Up {
                router.failed(node);
            } else if self.on[node].len() >= SLOTS as usize {
                router.refused(node);
            } else {
                self.on[node].push(stream);
                self.at[stream] = Some(node);
                self.tally.placed += 1;
                self.tally.refusals += tried.len() as u64 - 1;
                return;
            }
        }
        self.tally.lost += 1;
    }

    /// A machine goes for a while, on its way out or dead: its streams go elsewhere.
    fn away(&mut self, node: usize, until: u64) -> u64 {
        self.nodes[node] = State::Away(until);
        let streams = std::mem::take(&mut self.on[node]);
        for &stream in &streams {
            self.at[stream] = None;
            self.place(stream);
        }
        streams.len() as u64
    }

    fn probe(&mut self, tick: u64) {
        for (r, router) in self.routers.iter_mut().enumerate() {
            let first = (tick + PROBE - r as u64 % PROBE) % PROBE;
            for node in (first as usize..NODES).step_by(PROBE as usize) {
                match self.nodes[node] {
                    State::Up => {
                        let free = SLOTS - self.on[node].len() as u32;
                        router.reported(node, Report { is_ready: true, free, slots: SLOTS });
                    }
                    State::Away(_) => router.missed(node),
                }
            }
        }
    }

    fn end(&mut self, stream: usize) {
        if let Some(node) = self.at[stream].take() {
            let on = &mut self.on[node];
            let at = on.iter().position(|s| *s == stream).expect("it is there");
            on.swap_remove(at);
        }
    }

    /// Streams of the machine in the middle, and of the fullest but for a hundredth, of those that are up.
    fn spread(&self) -> (usize, usize) {
        let up = (0..NODES).filter(|n| self.nodes[*n] == State::Up);
        let mut loads: Vec<usize> = up.map(|n| self.on[n].len()).collect();
        loads.sort_unstable();
        (loads[loads.len() / 2], loads[loads.len() - 1 - loads.len() / 100])
    }
}

#[test]
fn a_thousand_machines_roll_and_die_and_no_stream_is_lost() {
    let mut world = World::new();
    let mut dice = Dice(1);
    let mut ends: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let begin =
        |world: &mut World, dice: &mut Dice, ends: &mut BTreeMap<u64, Vec<usize>>, tick: u64, from: u64| {
            let stream = world.at.len();
            world.at.push(None);
            world.place(stream);
            ends.entry(tick + from + dice.below(LONGEST - from)).or_default().push(stream);
        };
    (0..PROBE).for_each(|tick| world.probe(tick));
    for n in 0..STREAMS {
        begin(&mut world, &mut dice, &mut ends, 0, 1);
        // Routers learn of what they and others have placed as time goes on.
        if n % 500 == 0 {
            world.probe(n as u64 / 500);
        }
    }
    let (mut owed, mut rolled) = (0u64, 0);
    for tick in 1..=TICKS {
        for node in 0..NODES {
            if world.nodes[node] == State::Away(tick) {
                world.nodes[node] = State::Up;
            }
        }
        world.probe(tick);
        for stream in ends.remove(&tick).unwrap_or_default() {
            world.end(stream);
        }
        // As many come as go in the mean.
        owed += STREAMS as u64;
        while owed >= (SHORTEST + LONGEST) / 2 {
            owed -= (SHORTEST + LONGEST) / 2;
            begin(&mut world, &mut dice, &mut ends, tick, SHORTEST);
        }
        // A deploy: five machines a second, each away for five seconds.
        if tick > 60 * SECOND && tick % 4 == 0 && rolled < NODES {
            world.tally.moved += world.away(rolled, tick + 5 * SECOND);
            rolled += 1;
        }
        // A machine dies every two seconds, for half a minute.
        if tick % (2 * SECOND) == 0 {
            let node = dice.below(NODES as u64) as usize;
            if world.nodes[node] == State::Up {
                world.tally.revived += world.away(node, tick + 30 * SECOND);
            }
        }
        if tick == 300 * SECOND {
            for node in RACK {
                if world.nodes[node] == State::Up {
                    world.tally.revived += world.away(node, tick + 120 * SECOND);
                }
            }
        }
        assert!(world.on.iter().all(|on| on.len() <= SLOTS as usize));
    }
    let live = world.at.iter().flatten().count();
    let (middle, most) = world.spread();
    let Tally { placed, refusals, moved, revived, lost } = world.tally;
    let told = format!(
        "{live} live, {placed} placed, {refusals} refusals, {moved} moved, {revived} revived, {middle} and {most} of {SLOTS}"
    );
    assert_eq!((rolled, lost), (NODES, 0), "{told}");
    assert!(moved > 60_000 && revived > 15_000, "{told}");
    // Routers know machines as they were a moment ago: few streams are sent to one that is full or gone.
    assert!(refusals * 50 < placed, "{told}");
    assert!((65..=77).contains(&middle) && most <= 85, "{told}");
}

#[test]
fn a_fleet_that_is_full_fills_to_the_last_slot() {
    let mut world = World::new();
    (0..PROBE).for_each(|tick| world.probe(tick));
    for stream in 0..NODES * SLOTS as usize {
        world.at.push(None);
        world.place(stream);
        if stream % 1_000 == 0 {
            world.probe(stream as u64 / 1_000);
        }
    }
    assert_eq!(world.tally.lost, 0);
    assert_eq!(world.at.iter().flatten().count(), NODES * SLOTS as usize);
    world.at.push(None);
    world.place(NODES * SLOTS as usize);
    assert_eq!(world.tally.lost, 1);
}
