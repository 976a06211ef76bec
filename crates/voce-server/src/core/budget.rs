//! The server's budget: the one place that knows how much of everything may be in flight, in all, for each key and for each
//! address. Purses are opened when something begins and closed when it ends; nothing here is touched by the messages of a
//! stream that runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::caller::{Caller, Who};
use super::error::ServerError;
use super::limits::Limits;

/// No limit.
const ANY: usize = usize::MAX;
/// What lines are counted in.
const LINE_UNIT: usize = 1024;
/// The most of it that a line has: a tebibyte.
const MOST_UNITS: usize = 1 << 30;
/// Lines that are kept before those that nobody stands in are looked for.
const LINES: usize = 256;

/// Whose limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// That of the whole server.
    All,
    Key,
    Address,
}

impl Over {
    pub(crate) const EACH: [Self; 3] = [Self::All, Self::Key, Self::Address];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Over::All => "all",
            Over::Key => "key",
            Over::Address => "address",
        }
    }
}

/// How much there is of something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) in_all: usize,
    pub(crate) per_key: usize,
    pub(crate) per_address: usize,
    /// Whether addresses of this machine have no limit: behind a proxy here, all callers have the same one.
    pub(crate) spares_loopback: bool,
}

/// Something finite that callers hold.
pub(crate) struct Purse {
    what: &'static str,
    most: Most,
    used: AtomicUsize,
    held: Mutex<HashMap<Who, usize>>,
    refused: [AtomicU64; 3],
}

impl Purse {
    pub(crate) fn new(what: &'static str, most: Most) -> Arc<Self> {
        let (used, held, refused) = Default::default();
        Arc::new(Self { what, most, used, held, refused })
    }

    /// What it holds, for a label.
    pub(crate) fn what(&self) -> &'static str {
        self.what
    }

    /// What is held now, and what there is.
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.used.load(Ordering::Relaxed), self.most.in_all)
    }

    /// Times somebody was refused.
    pub(crate) fn refused(&self, by: Over) -> u64 {
        self.refused[by as usize].load(Ordering::Relaxed)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Who, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a caller a share, or says whose limit stands in the way.
    pub(crate) fn take(self: &Arc<Self>, caller: &Caller, amount: usize) -> Result<Share, Over> {
        self.add(caller, amount)?;
        Ok(Share { purse: self.clone(), caller: *caller, amount })
    }

    /// Whether a caller would be given a share now.
    pub(crate) fn check(&self, caller: &Caller, amount: usize) -> Result<(), Over> {
        self.over(&self.held(), caller, amount).map_or(Ok(()), Err)
    }

    /// The first limit that a share would be past.
    fn over(&self, held: &HashMap<Who, usize>, caller: &Caller, amount: usize) -> Option<Over> {
        let of = |who| held.get(&who).copied().unwrap_or(0);
        let is_over = |has: usize, most: usize| has.saturating_add(amount) > most;
        let is_spared = self.most.spares_loopback && caller.address.is_loopback();
        if is_over(self.used.load(Ordering::Relaxed), self.most.in_all) {
            Some(Over::All)
        } else if caller.key.is_some_and(|k| is_over(of(Who::Key(k)), self.most.per_key)) {
            Some(Over::Key)
        } else if !is_spared && is_over(of(Who::Address(caller.address)), self.most.per_address) {
            Some(Over::Address)
        } else {
            None
        }
    }

    fn add(&self, caller: &Caller, amount: usize) -> Result<(), Over> {
        if amount == 0 {
            return Ok(());
        }
        // The look and what follows it are one.
        let mut held = self.held();
        if let Some(by) = self.over(&held, caller, amount) {
            self.refused[by as usize].fetch_add(1, Ordering::Relaxed);
            return Err(by);
        }
        self.used.fetch_add(amount, Ordering::Relaxed);
        for who in caller.names() {
            *held.entry(who).or_default() += amount;
        }
        Ok(())
    }

    fn give_back(&self, caller: &Caller, amount: usize) {
        let mut held = self.held();
        self.used.fetch_sub(amount, Ordering::Relaxed);
        for who in caller.names() {
            if let Some(has) = held.get_mut(&who) {
                *has -= amount;
                if *has == 0 {
                    held.remove(&who);
                }
            }
        }
    }
}

/// What somebody holds of a purse; dropping it gives it back.
pub(crate) struct Share {
    purse: Arc<Purse>,
    caller: Caller,
    amount: usize,
}

impl Share {
    /// Takes more.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), Over> {
        self.purse.add(&self.caller, more)?;
        self.amount += more;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.purse.give_back(&self.caller, self.amount);
        }
    }
}

/// All purses of a server.
pub(crate) struct Budget {
    pub(crate) limits: Limits,
    keys: usize,
    pub(crate) connections: Arc<Purse>,
    /// Bytes of request bodies on their way in.
    pub(crate) bodies: Arc<Purse>,
    /// Threads that decode audio.
    pub(crate) decoders: Arc<Purse>,
    /// Voices that are being cloned.
    pub(crate) clones: Arc<Purse>,
    /// Bodies of one caller come one after the other where together they are too many.
    pub(crate) body_line: Line,
    /// Large WebSocket messages on their way in or at work.
    pub(crate) messages: Line,
}

impl Budget {
    /// The budget of a server with this many keys.
    pub(crate) fn new(limits: Limits, keys: usize) -> Self {
        let all = |what, in_all| {
            Purse::new(what, Most { in_all, per_key: ANY, per_address: ANY, spares_loopback: true })
        };
        let connections = Most {
            in_all: limits.connections,
            per_key: ANY,
            per_address: share(limits.connections_per_address, limits.connections.div_ceil(4)),
            spares_loopback: limits.connections_per_address.is_none(),
        };
        Self {
            keys,
            connections: Purse::new("connections", connections),
            bodies: all("body_bytes", limits.bodies),
            decoders: all("decoders", limits.decoders),
            clones: all("clones", limits.clones),
            body_line: Line::new(ANY, limits.bodies_per_caller),
            messages: Line::new(limits.messages, limits.messages_per_caller),
            limits,
        }
    }

    /// The shares of a model's slots. Where there may be several callers, none of them gets all unless the limits say so:
    /// those are the keys where there are keys, and else the addresses beyond this machine.
    pub(crate) fn slots(&self, what: &'static str, slots: usize) -> Arc<Purse> {
        let most_of_them = (slots * 3).div_ceil(4);
        let per_key = share(self.limits.slots_per_key, if self.keys > 1 { most_of_them } else { ANY });
        let per_address =
            share(self.limits.slots_per_address, if self.keys == 0 { most_of_them } else { ANY });
        let spares_loopback = self.limits.slots_per_address.is_none();
        Purse::new(what, Most { in_all: ANY, per_key, per_address, spares_loopback })
    }

    /// Every purse that is not a model's.
    pub(crate) fn purses(&self) -> [&Arc<Purse>; 4] {
        [&self.connections, &self.bodies, &self.decoders, &self.clones]
    }
}

/// Bytes that are waited for: there is a limit for all together, and one for each caller.
pub(crate) struct Line {
    all: Arc<Semaphore>,
    all_units: usize,
    own_units: usize,
    by_caller: Mutex<HashMap<Who, Weak<Semaphore>>>,
}

/// What somebody has of a line; the next one's turn comes when it is dropped.
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
    // The line of a caller is there as long as somebody stands in it.
    _line: Arc<Semaphore>,
}

impl Line {
    fn new(in_all: usize, per_caller: usize) -> Self {
        let units = |bytes: usize| (bytes / LINE_UNIT).clamp(1, MOST_UNITS);
        let (all_units, own_units) = (units(in_all), units(per_caller));
        Self { all: Arc::new(Semaphore::new(all_units)), all_units, own_units, by_caller: Mutex::default() }
    }

    /// Waits for room, behind what the same caller asked for before. What is larger than its caller's room has all of it.
    pub(crate) async fn enter(&self, caller: &Caller, bytes: usize) -> Result<Turn, ServerError> {
        let line = {
            let mut lines = self.by_caller.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() >= LINES {
                lines.retain(|_, line| line.strong_count() > 0);
            }
            let line = lines.get(&caller.who()).and_then(Weak::upgrade);
            let line = line.unwrap_or_else(|| Arc::new(Semaphore::new(self.own_units)));
            lines.insert(caller.who(), Arc::downgrade(&line));
            line
        };
        let units = bytes.div_ceil(LINE_UNIT).clamp(1, self.own_units.min(self.all_units)) as u32;
        // Neither is ever closed.
        let own = line.clone().acquire_many_owned(units).await.map_err(|_| ServerError::Internal)?;
        let all = self.all.clone().acquire_many_owned(units).await.map_err(|_| ServerError::Internal)?;
        Ok(Turn { _own: own, _all: all, _line: line })
    }

    /// Bytes that are held, and that there are.
    pub(crate) fn used(&self) -> (usize, usize) {
        let free = self.all.available_permits().min(self.all_units);
        ((self.all_units - free) * LINE_UNIT, self.all_units * LINE_UNIT)
    }
}

/// A limit as it was written, 0 being none, or else as it usually is.
fn share(written: Option<usize>, usual: usize) -> usize {
    match written {
        Some(0) => ANY,
        Some(n) => n,
        None => usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::caller::KeyId;

    fn caller(key: u8, address: &str) -> Caller {
        let key = Some(KeyId([key; 32])).filter(|_| key > 0);
        Caller { key, address: address.parse().unwrap() }
    }

    #[test]
    fn shares_in_all_by_key_and_by_address() {
        let purse = Purse::new("x", Most { in_all: 6, per_key: 3, per_address: 2, spares_loopback: true });
        let take = |caller: &Caller, n| purse.take(caller, n);
        let (a, b) = (caller(1, "10.0.0.1"), caller(1, "10.0.0.2"));
        let first = take(&a, 2).unwrap();
        assert_eq!(take(&a, 1).err(), Some(Over::Address));
        let second = take(&b, 1).unwrap();
        assert_eq!(take(&b, 1).err(), Some(Over::Key));
        // A proxy on this machine is many.
        let mut local = take(&caller(0, "127.0.0.1"), 3).unwrap();
        assert_eq!(local.grow(1), Err(Over::All));
        assert_eq!(purse.used(), (6, 6));
        assert_eq!(Over::EACH.map(|by| purse.refused(by)), [1, 1, 1]);
        drop((first, local));
        assert!(purse.check(&a, 2).is_ok() && purse.check(&a, 3).is_err());
        drop(second);
        assert!(purse.used().0 == 0 && purse.held().is_empty());
        drop(take(&a, 0).unwrap());
        assert!(purse.held().is_empty());
    }

    #[test]
    fn nobody_gets_all_slots_where_there_are_others() {
        let room = |limits: Limits, keys, caller: Caller| {
            let purse = Budget::new(limits, keys).slots("x", 8);
            (0..=8).take_while(|n| purse.check(&caller, *n).is_ok()).count() - 1
        };
        let (near, far) = (caller(0, "127.0.0.1"), caller(0, "10.0.0.1"));
        let usual = Limits::default;
        assert_eq!((room(usual(), 0, near), room(usual(), 0, far)), (8, 6));
        // One key is one service; of several none gets all, wherever it comes from.
        assert_eq!(room(usual(), 1, caller(1, "10.0.0.1")), 8);
        assert_eq!(room(usual(), 2, caller(1, "127.0.0.1")), 6);
        let written = || Limits { slots_per_key: Some(2), slots_per_address: Some(1), ..usual() };
        assert_eq!((room(written(), 1, caller(1, "10.0.0.1")), room(written(), 0, near)), (1, 1));
        let off = || Limits { slots_per_key: Some(0), slots_per_address: Some(0), ..usual() };
        assert_eq!((room(off(), 3, caller(1, "10.0.0.1")), room(off(), 0, far)), (8, 8));
    }

    #[tokio::test]
    async fn bodies_of_one_caller_come_one_after_the_other() {
        let limits = Limits { bodies_per_caller: 64 << 10, ..Limits::default() };
        let budget = Budget::new(limits, 0);
        let (a, b) = (caller(0, "10.0.0.1"), caller(0, "10.0.0.2"));
        let first = budget.body_line.enter(&a, 40 << 10).await.unwrap();
        let mut second = Box::pin(budget.body_line.enter(&a, 40 << 10));
        assert!(futures_util::FutureExt::now_or_never(second.as_mut()).is_none());
        // Another caller's does not wait, however large it is.
        drop(budget.body_line.enter(&b, 1 << 30).await.unwrap());
        drop(first);
        second.await.unwrap();
    }

    #[tokio::test]
    async fn one_caller_does_not_have_all_room_for_messages() {
        let limits = Limits { messages: 64 << 10, messages_per_caller: 32 << 10, ..Limits::default() };
        let budget = Budget::new(limits, 0);
        let (a, b) = (caller(0, "10.0.0.1"), caller(0, "10.0.0.2"));
        let first = budget.messages.enter(&a, 32 << 10).await.unwrap();
        let mut second = Box::pin(budget.messages.enter(&a, 1));
        assert!(futures_util::FutureExt::now_or_never(second.as_mut()).is_none());
        let other = budget.messages.enter(&b, 1 << 30).await.unwrap();
        assert_eq!(budget.messages.used(), (64 << 10, 64 << 10));
        drop(first);
        assert!(futures_util::FutureExt::now_or_never(second.as_mut()).is_some());
        drop(other);
        assert_eq!(budget.messages.used().0, 0);
    }
}
