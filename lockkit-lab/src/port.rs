//! Ports of the loopback address that no other lab on this machine takes, even
//! while the server that uses one is down. May not know what servers are.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net;

use rand::Rng;

use super::error::{LabError, Result};

/// Below it are ports that need privileges or belong to well-known services.
const LOWEST: u16 = 10_000;

/// A port that belongs to this process until the value is dropped.
///
/// Asking the system for "any free port" is not enough: between the answer and
/// the server's start, or while the server is down, anybody gets the same port,
/// and any outgoing connection may sit on it. So ports come from outside the
/// range of outgoing connections, and are claimed among all labs by a socket in
/// the abstract name space, which the kernel takes back if the process dies.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claim: net::UnixListener,
}

impl Port {
    pub(crate) fn take() -> Result<Self> {
        let (from, to) = range();
        let span = to - from;
        let start = rand::rng().random_range(0..span);
        (0..span)
            .map(|step| from + (start + step) % span)
            .find_map(Self::claim)
            .ok_or_else(|| LabError::Answer(format!("no port from {from} to {to} is free")))
    }

    fn claim(number: u16) -> Option<Self> {
        let name = format!("lockkit-lab-port-{number}");
        let name = net::SocketAddr::from_abstract_name(name).ok()?;
        let claim = net::UnixListener::bind_addr(&name).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _claim: claim })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// The ports that the kernel does not use for outgoing connections.
fn range() -> (u16, u16) {
    let outgoing = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = outgoing.split_whitespace().filter_map(|end| end.parse::<u16>().ok());
    match (ends.next(), ends.next()) {
        (Some(low), _) if low > LOWEST + 5_000 => (LOWEST, low),
        (Some(_), Some(high)) if high < 60_000 => (high + 1, u16::MAX),
        _ => (LOWEST, 30_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_not_given_twice_while_it_is_held() {
        let held = Port::take().unwrap();
        assert!(Port::claim(held.number()).is_none());
        let number = held.number();
        drop(held);
        assert!(Port::claim(number).is_some());
    }
}
