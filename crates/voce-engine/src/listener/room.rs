//! How large a device's steps are: what slots and steps take of its memory is decided, and taken, when a listener opens.

use voce_models::hearing::{EarRoom, Footprint};

use crate::EngineError;

/// One part in this many of a device's free memory is left for graphs, for libraries and for others.
const LEFT_FREE: usize = 24;
/// One part in this many of what slots leave is for steps: other models share the device.
const FOR_STEPS: usize = 2;
/// Frames of a step that a device has room for at least, if it has enough streams.
const LEAST_FRAMES: usize = 512;

/// The slots of a listener, and what bounds its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Streams side by side, in all lanes.
    pub slots: usize,
    pub lanes: usize,
    /// Frames of one stream in a step at most.
    pub slot_frames: usize,
    /// Frames of a lane's step at most.
    pub most: usize,
}

impl Asked {
    /// The largest lane, with steps of this many frames.
    pub(super) fn lane(&self, frames: usize) -> EarRoom {
        EarRoom { slots: self.slots.div_ceil(self.lanes), slot_frames: self.slot_frames, frames }
    }

    /// Frames that a lane's step can have at all.
    pub(super) fn usable(&self) -> usize {
        self.most.min(self.lane(0).slots * self.slot_frames).max(self.slot_frames)
    }

    /// Frames below which steps are not made smaller.
    pub(super) fn least(&self) -> usize {
        LEAST_FRAMES.max(self.slot_frames).min(self.usable())
    }

    /// The frames of a lane's step where this many bytes are free, by what the model says it needs; an error says how
    /// many slots would fit.
    pub(super) fn frames(
        &self,
        needs: impl Fn(EarRoom) -> Footprint,
        free: u64,
    ) -> Result<usize, EngineError> {
        let free = usize::try_from(free).unwrap_or(usize::MAX);
        let with = |slots: usize| Self { slots, lanes: self.lanes.min(slots), ..*self }.fitting(&needs, free);
        with(self.slots).ok_or_else(|| {
            // The largest number that fits: what is not a slot's own depends on it, too.
            let (mut fit, mut too_many) = (0, self.slots);
            while too_many - fit > 1 {
                let middle = fit.midpoint(too_many);
                *(if with(middle).is_some() { &mut fit } else { &mut too_many }) = middle;
            }
            let each = needs(self.lane(self.usable())).slot;
            EngineError::NoRoom { slots: self.slots, fit, each }
        })
    }

    /// The frames of a lane's step, if the slots fit.
    fn fitting(&self, needs: impl Fn(EarRoom) -> Footprint, free: usize) -> Option<usize> {
        let Footprint { slot, frame, fixed } = needs(self.lane(self.usable()));
        let taken = self.slots * slot + self.lanes * (fixed + self.least() * frame);
        let rest = (free - free / LEFT_FREE).checked_sub(taken)?;
        Some((self.least() + rest / FOR_STEPS / self.lanes / frame.max(1)).min(self.usable()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: usize = 1_000_000_000;
    const NEEDS: Footprint = Footprint { slot: 10_000_000, frame: 500_000, fixed: GB / 4 };

    fn asked(slots: usize) -> Asked {
        Asked { slots, lanes: 2, slot_frames: 14, most: 32_768 }
    }

    fn frames(slots: usize, free: usize) -> Result<usize, (usize, usize)> {
        asked(slots).frames(|_| NEEDS, free as u64).map_err(|e| match e {
            EngineError::NoRoom { slots, fit, .. } => (slots, fit),
            other => panic!("{other}"),
        })
    }

    #[test]
    fn steps_take_what_slots_leave_and_no_more_than_they_can_use() {
        // Two lanes of 32 slots of 14 frames use no more than that.
        assert_eq!(frames(64, 48 * GB), Ok(32 * 14));
        assert_eq!(frames(10_000, 480 * GB), Ok(32_768));
        // Of 96 GB, 80 are the slots', and a half of what is left is for steps.
        let some = frames(8_000, 96 * GB).unwrap();
        assert!((3_000..6_500).contains(&some), "{some}");
        let all = 8_000 * NEEDS.slot + 2 * (NEEDS.fixed + some * NEEDS.frame);
        assert!(all < 96 * GB - 96 * GB / LEFT_FREE, "{all}");
    }

    #[test]
    fn too_many_slots_are_told_how_many_would_fit() {
        let (slots, fit) = frames(8_000, 48 * GB).unwrap_err();
        assert_eq!(slots, 8_000);
        assert!(frames(fit, 48 * GB).is_ok() && frames(fit + 1, 48 * GB).is_err(), "{fit}");
        assert_eq!(frames(1, 0).unwrap_err(), (1, 0));
    }
}
