//! The slots that an op names: all of them there, and none twice, since workers and blocks each take one.

/// Room to mark slots in.
#[derive(Default)]
pub(super) struct Marks(Vec<u64>);

impl Marks {
    /// Panics unless every slot is below `count` and is named once. Slots in ascending order, or ascending from somewhere in
    /// the middle as steps name them, cost one comparison each.
    pub(super) fn check(&mut self, count: usize, slots: impl Iterator<Item = usize> + Clone) {
        let (mut first, mut last, mut turns) = (0, None, 0);
        for slot in slots.clone() {
            assert!(slot < count, "slot {slot} of {count}");
            match last {
                None => first = slot,
                Some(last) => turns += usize::from(slot <= last),
            }
            last = Some(slot);
        }
        if turns == 0 || (turns == 1 && last.is_some_and(|last| last < first)) {
            return;
        }
        self.0.clear();
        self.0.resize(count.div_ceil(64), 0);
        for slot in slots {
            let (word, bit) = (&mut self.0[slot / 64], 1 << (slot % 64));
            assert!(*word & bit == 0, "slot {slot} is named twice");
            *word |= bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(slots: &[usize], count: usize) -> bool {
        let check = || Marks::default().check(count, slots.iter().copied());
        std::panic::catch_unwind(check).is_ok()
    }

    #[test]
    fn slots_that_are_there_once_pass_in_any_order() {
        for slots in [&[][..], &[0], &[129], &[0, 1, 5], &[5, 7, 0, 3], &[7, 5, 3, 64, 0, 129]] {
            assert!(passes(slots, 130), "{slots:?}");
        }
    }

    #[test]
    fn slots_that_are_missing_or_named_twice_do_not() {
        for slots in
            [&[130][..], &[0, usize::MAX], &[3, 3], &[0, 5, 0], &[5, 7, 0, 5], &[5, 7, 0, 9, 7], &[64, 0, 64]]
        {
            assert!(!passes(slots, 130), "{slots:?}");
        }
    }
}
