//! Parcels that other machines have left here for clients that are on their way: bounded in number and in bytes, each for
//! its time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::seal::Id;
use crate::core::aside::now;

/// Most parcels at once.
pub const MAX_PARCELS: usize = 16_384;

/// The parcels of one machine.
pub(super) struct Shelf {
    most: usize,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    parcels: HashMap<Id, (u64, Bytes)>,
    bytes: usize,
}

impl Inside {
    fn remove(&mut self, id: Id) -> Option<Bytes> {
        let (_, parcel) = self.parcels.remove(&id)?;
        self.bytes -= parcel.len();
        Some(parcel)
    }
}

impl Shelf {
    /// A shelf for this many bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { most, inside: Mutex::default() }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a parcel until it expires; a later one of the same name takes its place. False where there is no room.
    pub(super) fn put(&self, id: Id, expires: u64, parcel: Bytes) -> bool {
        let mut inside = self.inside();
        let (now, before) = (now(), inside.parcels.get(&id).map_or(0, |(_, parcel)| parcel.len()));
        let is_full = |inside: &Inside| {
            inside.bytes - before + parcel.len() > self.most
                || inside.parcels.len() - usize::from(before > 0) >= MAX_PARCELS
        };
        if is_full(&inside) {
            let old: Vec<Id> =
                inside.parcels.iter().filter(|(_, (expires, _))| *expires < now).map(|(id, _)| *id).collect();
            for id in old.into_iter().filter(|old| *old != id) {
                inside.remove(id);
            }
        }
        if expires < now || is_full(&inside) {
            return false;
        }
        inside.remove(id);
        inside.bytes += parcel.len();
        inside.parcels.insert(id, (expires, parcel));
        true
    }

    /// Takes a parcel; whoever asks next finds none.
    pub(super) fn take(&self, id: Id) -> Option<Bytes> {
        self.inside().remove(id)
    }

    /// Takes all that are good still.
    pub(super) fn take_all(&self) -> Vec<(Id, Bytes)> {
        let now = now();
        let inside = std::mem::take(&mut *self.inside());
        let good = inside.parcels.into_iter().filter(|(_, (expires, _))| *expires >= now);
        good.map(|(id, (_, parcel))| (id, parcel)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> Id {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&n.to_le_bytes());
        Id(id)
    }

    fn bytes(n: usize) -> Bytes {
        vec![1; n].into()
    }

    #[test]
    fn bytes_are_bounded_and_what_is_old_makes_room() {
        let shelf = Shelf::new(100);
        let soon = now() + 60;
        assert!(shelf.put(id(1), soon, bytes(60)));
        assert!(!shelf.put(id(2), soon, bytes(41)), "one past the limit");
        assert!(shelf.put(id(2), soon, bytes(40)), "at the limit");
        // A later parcel of the same name takes the place of the first.
        assert!(shelf.put(id(2), soon, bytes(39)) && !shelf.put(id(2), soon, bytes(41)));
        assert_eq!(shelf.take(id(2)).map(|b| b.len()), Some(39));
        assert_eq!(shelf.take(id(2)), None);
        shelf.inside().parcels.get_mut(&id(1)).unwrap().0 = 1;
        assert!(!shelf.put(id(3), 1, bytes(1)), "it is old already");
        assert!(shelf.put(id(3), soon, bytes(100)));
        assert_eq!(shelf.take(id(1)), None);
        let all = shelf.take_all();
        assert_eq!(all.len(), 1);
        assert_eq!(shelf.inside().bytes, 0);
    }

    #[test]
    fn their_number_is_bounded() {
        let shelf = Shelf::new(usize::MAX);
        let soon = now() + 60;
        assert!((0..MAX_PARCELS as u32).all(|n| shelf.put(id(n), soon, bytes(1))));
        assert!(!shelf.put(id(u32::MAX), soon, bytes(1)));
        assert!(shelf.put(id(0), soon, bytes(2)), "in the place of another");
        assert!(shelf.take(id(1)).is_some() && shelf.put(id(u32::MAX), soon, bytes(1)));
    }
}
