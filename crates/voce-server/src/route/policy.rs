//! Which machine a stream goes to. Pure: it is told what is known of machines, and chooses; no clock, no socket, no thread.
//!
//! A stream goes to the roomier of two machines drawn by lot among those with room: with one router that is nearly the
//! roomiest of all, and many routers that know the same do not all run to the same machine.

use super::dice::Dice;

/// Probes without an answer after which a machine is taken for dead.
const MISSED: u32 = 2;
/// Machines that are drawn before those that may be are listed.
const THROWS: usize = 8;

/// What is known of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing yet.
    Unknown,
    /// It takes streams.
    Up,
    /// It takes no new ones: it loads, is stuck, or is on its way out.
    Unready,
    /// It does not answer.
    Down,
}

/// What a machine says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether it takes new streams.
    pub is_ready: bool,
    /// Slots that are free, of those there are.
    pub free: u32,
    /// Slots there are.
    pub slots: u32,
}

#[derive(Clone, Debug)]
struct Node {
    health: Health,
    free: u32,
    slots: u32,
    /// Streams sent there since the last report, and since the one before: a slot is taken with the first audio.
    placed: [u32; 2],
    missed: u32,
}

impl Node {
    const NEW: Self = Self { health: Health::Unknown, free: 0, slots: 0, placed: [0; 2], missed: 0 };

    /// Slots that are free as far as anybody knows.
    fn room(&self) -> u32 {
        self.free.saturating_sub(self.placed[0] + self.placed[1])
    }

    /// Whether it has a larger share of its slots free than another.
    fn is_roomier(&self, than: &Self) -> bool {
        u64::from(self.room()) * u64::from(than.slots.max(1))
            > u64::from(than.room()) * u64::from(self.slots.max(1))
    }
}

/// The machines that streams may go to, by their numbers.
#[derive(Clone, Debug)]
pub struct Fleet {
    nodes: Vec<Node>,
    dice: Dice,
}

impl Fleet {
    /// This many machines, of which nothing is known; the seed decides between equals.
    pub fn new(nodes: usize, seed: u64) -> Self {
        Self { nodes: vec![Node::NEW; nodes], dice: Dice::new(seed) }
    }

    /// Adds a machine, and gives its number.
    pub fn add(&mut self) -> usize {
        self.nodes.push(Node::NEW);
        self.nodes.len() - 1
    }

    /// Another machine takes the place of one.
    pub fn replace(&mut self, node: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            *node = Node::NEW;
        }
    }

    /// How many machines there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// What is known of a machine, and how many streams it has room for.
    pub fn node(&self, node: usize) -> (Health, u32) {
        self.nodes.get(node).map_or((Health::Down, 0), |n| (n.health, n.room()))
    }

    /// A machine has answered a probe.
    pub fn reported(&mut self, node: usize, report: Report) {
        let Some(node) = self.nodes.get_mut(node) else { return };
        node.health = if report.is_ready { Health::Up } else { Health::Unready };
        (node.free, node.slots, node.missed) = (report.free.min(report.slots), report.slots, 0);
        node.placed = [0, node.placed[0]];
    }

    /// A machine has not answered a probe.
    pub fn missed(&mut self, node: usize) {
        let Some(node) = self.nodes.get_mut(node) else { return };
        node.missed = node.missed.saturating_add(1);
        if node.missed >= MISSED {
            node.health = Health::Down;
        }
    }

    /// A machine could not be reached for a stream: it gets none until it has answered a probe.
    pub fn failed(&mut self, node: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.health = Health::Down;
        }
    }

    /// A machine has no slot after all: it gets no stream until its next report.
    pub fn refused(&mut self, node: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.free = 0;
        }
    }

    /// The machine for a stream that was refused by those of `tried`; none where no other can be asked.
    pub fn choose(&mut self, tried: &[usize]) -> Option<usize> {
        // Reports may be out of date: if no machine is known to have room, one that is up is asked, and refuses if it is full.
        let wanted: [fn(&Node) -> bool; 3] = [
            |n| n.health == Health::Up && n.room() > 0,
            |n| n.health == Health::Up,
            |n| n.health == Health::Unknown,
        ];
        for wanted in wanted {
            let Some(one) = self.draw(tried, wanted) else { continue };
            let two = self.draw(tried, wanted).unwrap_or(one);
            let chosen = if self.nodes[two].is_roomier(&self.nodes[one]) { two } else { one };
            self.nodes[chosen].placed[0] = self.nodes[chosen].placed[0].saturating_add(1);
            return Some(chosen);
        }
        None
    }

    /// One of the machines that are `wanted` and not among `tried`, each as likely as any other. In a large fleet most are
    /// wanted, so that a few throws find one sooner than a list of all.
    fn draw(&mut self, tried: &[usize], wanted: fn(&Node) -> bool) -> Option<usize> {
        let Self { nodes, dice } = self;
        if nodes.is_empty() {
            return None;
        }
        let is_open = |i: &usize| wanted(&nodes[*i]) && !tried.contains(i);
        if let Some(thrown) = (0..THROWS).map(|_| dice.below(nodes.len())).find(is_open) {
            return Some(thrown);
        }
        let open: Vec<usize> = (0..nodes.len()).filter(is_open).collect();
        (!open.is_empty()).then(|| open[dice.below(open.len())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(free: u32, slots: u32) -> Report {
        Report { is_ready: true, free, slots }
    }

    #[test]
    fn streams_go_where_there_is_room_and_fill_machines_evenly() {
        let mut fleet = Fleet::new(3, 1);
        fleet.reported(0, report(8, 8));
        fleet.reported(1, report(8, 8));
        fleet.reported(2, report(0, 8));
        let mut placed = [0u32; 3];
        for _ in 0..16 {
            placed[fleet.choose(&[]).unwrap()] += 1;
        }
        assert_eq!(placed[2], 0);
        assert!(placed[0].abs_diff(placed[1]) <= 4, "{placed:?}");
        // Nobody has room by now, as far as is known: those who are up are asked all the same.
        assert!(fleet.choose(&[]).is_some());
        assert_eq!(fleet.choose(&[0, 1, 2]), None);
        // A slot is taken with the first audio: what was sent counts for two reports.
        fleet.reported(0, report(8, 8));
        assert!(fleet.node(0).1 < 8);
        fleet.reported(0, report(8, 8));
        assert_eq!(fleet.node(0).1, 8);
    }

    #[test]
    fn each_open_machine_is_drawn_as_often_by_throws_as_from_the_list() {
        let mut fleet = Fleet::new(40, 5);
        for open in [0, 7, 39] {
            fleet.reported(open, report(4, 4));
        }
        let mut drawn = [0u32; 40];
        for _ in 0..3_000 {
            drawn[fleet.draw(&[7], |n| n.health == Health::Up).unwrap()] += 1;
        }
        assert_eq!(drawn[0] + drawn[39], 3_000, "{drawn:?}");
        assert!(drawn[0].abs_diff(drawn[39]) < 200, "{drawn:?}");
        assert_eq!(fleet.draw(&[0, 7, 39], |n| n.health == Health::Up), None);
    }

    #[test]
    fn the_share_counts_and_not_the_number() {
        let mut fleet = Fleet::new(2, 7);
        fleet.reported(0, report(10, 100));
        fleet.reported(1, report(8, 10));
        let small = (0..8).filter(|_| fleet.choose(&[]) == Some(1)).count();
        assert!(small >= 5, "{small}");
    }

    #[test]
    fn who_drains_fails_or_refuses_gets_none() {
        let mut fleet = Fleet::new(2, 3);
        assert!(fleet.choose(&[]).is_some(), "unknown machines are tried");
        fleet.reported(0, report(4, 4));
        assert_eq!(fleet.choose(&[]), Some(0));
        fleet.reported(1, Report { is_ready: false, free: 4, slots: 4 });
        assert_eq!(fleet.choose(&[0]), None);
        fleet.missed(0);
        assert_eq!(fleet.choose(&[]), Some(0), "one probe may be lost");
        fleet.missed(0);
        assert_eq!((fleet.node(0).0, fleet.choose(&[])), (Health::Down, None));
        fleet.reported(0, report(4, 4));
        fleet.failed(0);
        assert_eq!(fleet.choose(&[]), None);
        fleet.reported(0, report(4, 4));
        fleet.reported(1, report(1, 4));
        fleet.refused(0);
        assert_eq!(fleet.choose(&[]), Some(1));
        assert_eq!(Fleet::new(0, 0).choose(&[]), None);
        assert!(Fleet::new(0, 0).is_empty());
    }
}
