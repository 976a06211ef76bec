//! Who calls: the key that was sent, and the address that it came from.

use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};

/// A key that was accepted, as its digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeyId(pub(super) [u8; 32]);

impl KeyId {
    /// The digest.
    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyId(..)")
    }
}

/// Who a request, a socket or a stream belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The key, where the server has keys and one was sent.
    pub(crate) key: Option<KeyId>,
    /// The address, as [`address`] makes it.
    pub(crate) address: IpAddr,
}

/// One of the two names that a caller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    Key(KeyId),
    Address(IpAddr),
}

impl Default for Caller {
    fn default() -> Self {
        Self { key: None, address: Ipv6Addr::UNSPECIFIED.into() }
    }
}

tokio::task_local! {
    static CALLER: Caller;
}

impl Caller {
    /// Runs what is done for this caller. No async function, which would keep `what` twice.
    pub(crate) fn scope<F: Future>(self, what: F) -> impl Future<Output = F::Output> {
        CALLER.scope(self, what)
    }

    /// Who the present task works for; nobody in particular where none was named.
    pub(crate) fn current() -> Self {
        CALLER.try_with(|c| *c).unwrap_or_default()
    }

    /// All names that it has.
    pub(crate) fn names(&self) -> impl Iterator<Item = Who> + use<> {
        self.key.map(Who::Key).into_iter().chain([Who::Address(self.address)])
    }

    /// The name that tells callers apart best: the key, or else the address.
    pub(crate) fn who(&self) -> Who {
        self.key.map_or(Who::Address(self.address), Who::Key)
    }
}

/// An address as limits see it: IPv4 in IPv6 is IPv4, and of others the network counts, which one person has whole.
pub(crate) fn address(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)))
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one() {
        let of = |text: &str| address(text.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("2001:db8:1:2:ffff::1"), of("2001:db8:1:2::9"));
        assert_ne!(of("2001:db8:1:3::1"), of("2001:db8:1:2::1"));
        assert_eq!(
            (of("::ffff:10.0.0.7"), of("10.0.0.7"), of("::1")),
            ("10.0.0.7".into(), "10.0.0.7".into(), "::1".into())
        );
    }
}
