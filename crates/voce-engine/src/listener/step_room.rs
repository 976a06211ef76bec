//! How large a device's step may be: what steps work in comes on top of the slots, and must not be more than is free.

/// Bytes of a frame's activations before a step has shown what they are.
const GUESS: usize = 1 << 20;
/// What they may be found to be: memory that others take meanwhile is counted in.
const LEAST: usize = 64 << 10;
const MOST: usize = 4 << 20;
/// Frames of a step from which its memory tells something.
const TELLING: usize = 256;

/// What the steps of one lane have taken of the device's memory so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepRoom {
    /// Frames of the largest step.
    pub largest: usize,
    taken: usize,
}

impl StepRoom {
    /// Frames that the next step may have where so many bytes are free and so many lanes may ask for them; never fewer
    /// than there was memory for before.
    pub(super) fn frames(&self, free: u64, lanes: usize) -> usize {
        let each =
            if self.largest < TELLING { GUESS } else { (self.taken / self.largest).clamp(LEAST, MOST) };
        // Buffers that grow are made anew, and somewhat larger, before the old ones are freed.
        let fit = usize::try_from(free).unwrap_or(usize::MAX) / lanes.max(1) / (each + each / 4);
        fit.max(self.largest)
    }

    /// A step had so many frames, and the process held so many bytes of the device before it and holds so many now.
    pub(super) fn count(&mut self, frames: usize, before: usize, now: usize) {
        if frames > self.largest {
            self.largest = frames;
            self.taken += now.saturating_sub(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_grows_with_what_is_free_and_never_shrinks() {
        let mut room = StepRoom::default();
        assert_eq!(room.frames(10 << 30, 2), 4096, "by the guess");
        room.count(1000, 1 << 30, (1 << 30) + 1000 * 400_000);
        assert_eq!(room.frames(1_000_000_000, 1), 2000, "by what it took");
        assert_eq!(room.frames(1_000_000_000, 2), 1000);
        assert_eq!(room.frames(0, 2), 1000, "as many as there was memory for");
        room.count(500, 0, usize::MAX);
        assert_eq!(room.frames(1_000_000_000, 1), 2000, "a smaller step takes nothing");
        // Half of a device went to another model meanwhile.
        room.count(1001, 0, 70 << 30);
        assert_eq!(room.frames(10 << 30, 1), 2048);
    }
}
