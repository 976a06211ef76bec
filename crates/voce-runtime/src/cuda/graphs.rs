//! Which recordings a queue has captured: found by their hash, and by their size too.

use std::collections::HashMap;

use super::driver::{Command, Graph};
use super::fingerprint::Fingerprint;
use super::frame::Fused;

/// Graphs that a queue keeps.
const MAX_GRAPHS: usize = 256;

/// The hash of a recording.
pub(super) type Key = (u64, u64);

/// What a recording is known by beside its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    commands: usize,
    /// Bytes of all arguments.
    args: usize,
}

struct Kept {
    size: Size,
    /// Absent while it was seen once only.
    graph: Option<Graph>,
    /// What is enqueued in its place.
    fused: Option<Fused>,
    used: u64,
}

/// What is to be done with a recording.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is new: it runs as it is. A graph that made room for it is given up.
    Not(Option<Graph>),
    /// It came before, and is worth capturing: [`Graphs::keep`].
    Once(Key),
    /// It was captured.
    As(Graph),
}

/// Graphs by what they were captured from.
#[derive(Default)]
pub(super) struct Graphs {
    kept: HashMap<Key, Kept>,
    clock: u64,
    /// What may still run of recordings that were forgotten.
    dropped: Vec<Fused>,
}

impl Graphs {
    /// What is known of a recording; from now on it counts as seen.
    pub(super) fn find(&mut self, commands: &[Command], args: &[u8]) -> (Key, Known) {
        use std::hash::Hash;
        let mut hash = Fingerprint::default();
        (commands, args).hash(&mut hash);
        let key = hash.wide();
        (key, self.look_up(key, Size { commands: commands.len(), args: args.len() }))
    }

    fn look_up(&mut self, key: Key, size: Size) -> Known {
        self.clock += 1;
        match self.kept.get_mut(&key) {
            Some(kept) if kept.size == size => {
                kept.used = self.clock;
                kept.graph.map_or(Known::Once(key), Known::As)
            }
            // Another recording with the same hash: the newer one stays.
            Some(kept) => {
                let fresh = Kept { size, graph: None, fused: None, used: self.clock };
                let other = std::mem::replace(kept, fresh);
                self.dropped.extend(other.fused);
                Known::Not(other.graph)
            }
            None => {
                let dropped = self.make_room();
                self.kept.insert(key, Kept { size, graph: None, fused: None, used: self.clock });
                Known::Not(dropped)
            }
        }
    }

    /// Keeps the graph of a recording that was found once.
    pub(super) fn keep(&mut self, key: Key, graph: Graph) {
        if let Some(kept) = self.kept.get_mut(&key) {
            kept.graph = Some(graph);
        }
    }

    /// Forgets the recording that was not used for longest, when there are too many, and gives its graph.
    fn make_room(&mut self) -> Option<Graph> {
        if self.kept.len() < MAX_GRAPHS {
            return None;
        }
        let (&key, _) = self.kept.iter().min_by_key(|(_, k)| k.used)?;
        let forgotten = self.kept.remove(&key)?;
        self.dropped.extend(forgotten.fused);
        forgotten.graph
    }

    /// Keeps what is enqueued in place of a recording.
    pub(super) fn keep_fused(&mut self, key: Key, fused: Fused) {
        if let Some(kept) = self.kept.get_mut(&key) {
            kept.fused = Some(fused);
        }
    }

    /// What is enqueued in place of a recording.
    pub(super) fn fused(&self, key: Key) -> Option<&Fused> {
        self.kept.get(&key)?.fused.as_ref()
    }

    /// What was enqueued in place of recordings that were forgotten; it may still run.
    pub(super) fn take_dropped(&mut self) -> Vec<Fused> {
        std::mem::take(&mut self.dropped)
    }

    /// Forgets what was enqueued in place of recordings, and their graphs.
    pub(super) fn unfuse(&mut self) -> Vec<Graph> {
        let fused = self.kept.values_mut().filter(|k| k.fused.is_some());
        let mut graphs = Vec::new();
        for kept in fused {
            self.dropped.extend(kept.fused.take());
            graphs.extend(kept.graph.take());
        }
        graphs
    }

    /// Every graph.
    pub(super) fn all(&self) -> impl Iterator<Item = Graph> + '_ {
        self.kept.values().filter_map(|k| k.graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { commands: 5, args: 800 };

    #[test]
    fn a_recording_is_captured_when_it_comes_again() {
        let mut graphs = Graphs::default();
        let commands = [Command::Note(1), Command::Zero { to: 64, bytes: 8 }];
        assert_eq!(graphs.find(&commands, &[1, 2]).1, Known::Not(None));
        let (_, Known::Once(key)) = graphs.find(&commands, &[1, 2]) else { panic!("it came before") };
        assert_eq!(graphs.find(&commands, &[1, 2]).1, Known::Once(key), "not captured yet");
        graphs.keep(key, Graph(7));
        assert_eq!(graphs.find(&commands, &[1, 2]).1, Known::As(Graph(7)));
        assert_eq!(graphs.find(&commands, &[1, 3]).1, Known::Not(None), "other arguments");
        assert_eq!(graphs.find(&commands[1..], &[1, 2]).1, Known::Not(None), "other commands");
    }

    #[test]
    fn a_recording_of_another_size_with_the_same_hash_is_another() {
        for other in [Size { commands: 6, ..SIZE }, Size { args: 801, ..SIZE }] {
            let mut graphs = Graphs::default();
            let key = (1, 2);
            assert_eq!(graphs.look_up(key, SIZE), Known::Not(None));
            assert_eq!(graphs.look_up(key, SIZE), Known::Once(key));
            graphs.keep(key, Graph(7));
            assert_eq!(
                graphs.look_up(key, other),
                Known::Not(Some(Graph(7))),
                "{other:?} and its graph goes"
            );
            assert_eq!(graphs.look_up(key, other), Known::Once(key));
            assert_eq!(graphs.look_up(key, SIZE), Known::Not(None));
        }
    }

    #[test]
    fn the_one_not_used_for_longest_makes_room() {
        let mut graphs = Graphs::default();
        for i in 0..MAX_GRAPHS as u64 {
            assert_eq!(graphs.look_up((i, i), SIZE), Known::Not(None));
            graphs.keep((i, i), Graph(i));
        }
        assert_eq!(graphs.look_up((0, 0), SIZE), Known::As(Graph(0)));
        assert_eq!(graphs.look_up((999, 0), SIZE), Known::Not(Some(Graph(1))), "one past the limit");
        assert_eq!(graphs.look_up((0, 0), SIZE), Known::As(Graph(0)));
        assert_eq!(graphs.all().count(), MAX_GRAPHS - 1);
    }
}
