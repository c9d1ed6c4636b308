//! What all connections of a proxy share: latency, faults that wait for their
//! message, and the delivery on each message. May not touch sockets, but to dial.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;

use super::connection::{ConnectionState, Delivery, ProxiedConnection, lock};
use super::counts::Counts;
use super::fault::{End, FaultFired, PendingFault, ProxyFault, When};
use super::message::{Message, Protocol};

pub(crate) struct Hub {
    protocol: Protocol,
    /// Ports of servers, as they tell them, and what clients hear instead.
    port_rewrites: Vec<(u16, u16)>,
    /// False while nothing passes.
    open: watch::Sender<bool>,
    state: Mutex<HubState>,
}

#[derive(Default)]
struct HubState {
    to_server: Duration,
    to_client: Duration,
    pending: Vec<PendingFault>,
    connections: Vec<Arc<ProxiedConnection>>,
}

impl Hub {
    pub(crate) fn new(protocol: Protocol, told: Vec<(u16, u16)>) -> Self {
        Self {
            protocol,
            port_rewrites: told,
            open: watch::Sender::new(true),
            state: Mutex::default(),
        }
    }

    pub(crate) fn new_connection(&self, target: SocketAddr) -> Arc<ProxiedConnection> {
        let connection = Arc::new(ProxiedConnection::new(target, self.protocol.wire()));
        lock(&self.state).connections.push(Arc::clone(&connection));
        connection
    }

    /// Connects to the server, once anything passes.
    pub(crate) async fn dial(&self, target: SocketAddr) -> io::Result<TcpStream> {
        self.passage().await;
        let server = TcpStream::connect(target).await?;
        server.set_nodelay(true)?;
        Ok(server)
    }

    /// Returns when messages may pass.
    pub(crate) async fn passage(&self) {
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }

    /// Has a client hear of ports of this proxy rather than of servers.
    pub(crate) fn translate(&self, message: &mut [u8]) {
        for (server, proxy) in &self.port_rewrites {
            rename(message, server.to_string().as_bytes(), proxy.to_string().as_bytes());
        }
    }

    pub(crate) fn set_latency(&self, to_server: Duration, to_client: Duration) {
        let mut state = lock(&self.state);
        (state.to_server, state.to_client) = (to_server, to_client);
    }

    pub(crate) fn latency(&self, to: End) -> Duration {
        let state = lock(&self.state);
        match to {
            End::Server => state.to_server,
            End::Client => state.to_client,
        }
    }

    /// Counts a message that arrived for `to`, and decides what becomes of it.
    pub(crate) fn judge(
        &self,
        connection: &ProxiedConnection,
        to: End,
        message: &Message,
    ) -> Delivery {
        if to == End::Server {
            lock(&connection.tally).sent(&message.begins);
        }
        let struck = {
            let pending = &mut lock(&self.state).pending;
            // All count, also those that do not strike.
            pending.extract_if(.., |pending| pending.meets(&message.begins)).collect::<Vec<_>>()
        };
        let mut delivery = Delivery::Pass(self.latency(to));
        for pending in struck {
            delivery = match (self.inject(connection, pending.fault, &pending.fired), delivery) {
                (Delivery::Pass(more), Delivery::Pass(before)) => Delivery::Pass(before + more),
                (_, Delivery::End) => Delivery::End,
                (new, _) => new,
            };
        }
        let is_mute = to == End::Client && self.is_silenced(connection);
        if is_mute && delivery != Delivery::End { Delivery::Lose } else { delivery }
    }

    pub(crate) fn order(&self, fault: ProxyFault, when: When) -> FaultFired {
        let message = if when == When::Now { When::Request(1) } else { when };
        let (pending, fired) = PendingFault::new(fault, message);
        if when != When::Now || matches!(fault, ProxyFault::Delay(_)) {
            lock(&self.state).pending.push(pending);
            return fired;
        }
        let connections = lock(&self.state).connections.clone();
        for connection in connections
            .iter()
            .filter(|connection| *connection.state.borrow() == ConnectionState::Open)
        {
            self.inject(connection, fault, &pending.fired);
        }
        if fault == ProxyFault::BlackHole {
            self.open.send_replace(false);
        }
        if fault != ProxyFault::Mute {
            pending.fired.send_replace(true);
        }
        fired
    }

    pub(crate) fn heal(&self) {
        lock(&self.state).pending.clear();
        let connections = lock(&self.state).connections.clone();
        for connection in connections {
            // What a mute connection has missed does not come back: it cannot go on.
            let mute = lock(&connection.mute).is_some();
            let half = matches!(*connection.state.borrow(), ConnectionState::HalfOpen { .. });
            if mute || half {
                connection.state.send_replace(ConnectionState::Cut);
            }
        }
        self.open.send_replace(true);
    }

    /// Ends all connections.
    pub(crate) fn end(&self) {
        for connection in lock(&self.state).connections.drain(..) {
            connection.state.send_replace(ConnectionState::Cut);
        }
    }

    pub(crate) fn counts(&self) -> Vec<Counts> {
        lock(&self.state)
            .connections
            .iter()
            .map(|connection| lock(&connection.tally).counts)
            .collect()
    }

    pub(crate) fn reset(&self) {
        let mut state = lock(&self.state);
        state.connections.retain(|connection| *connection.state.borrow() != ConnectionState::Over);
        state.connections.iter().for_each(|connection| lock(&connection.tally).reset());
    }

    /// Does what a fault means for a connection; the delivery is on the message.
    fn inject(
        &self,
        connection: &ProxiedConnection,
        fault: ProxyFault,
        fired: &watch::Sender<bool>,
    ) -> Delivery {
        let delivery = match fault {
            ProxyFault::Delay(by) => Delivery::Pass(by),
            ProxyFault::BlackHole => {
                self.open.send_replace(false);
                Delivery::Pass(Duration::ZERO)
            }
            ProxyFault::Mute => {
                lock(&connection.mute).get_or_insert_default().push(fired.clone());
                return Delivery::Pass(Duration::ZERO);
            }
            ProxyFault::Cut => meet(connection, ConnectionState::Cut),
            ProxyFault::HalfOpen { receiver } => {
                meet(connection, ConnectionState::HalfOpen { receiver })
            }
        };
        fired.send_replace(true);
        delivery
    }

    /// Whether the server's messages are lost; a test that waits for that is notified.
    fn is_silenced(&self, connection: &ProxiedConnection) -> bool {
        let mut mute = lock(&connection.mute);
        mute.iter_mut().flat_map(|waiting| waiting.drain(..)).for_each(|fired| {
            fired.send_replace(true);
        });
        mute.is_some()
    }
}

/// Replaces a word that stands alone by one of the same length, so that whatever
/// counts bytes around it stays right. (Ports of labs have five digits.)
fn rename(message: &mut [u8], old: &[u8], new: &[u8]) {
    let length = old.len();
    if new.len() != length || message.len() < length {
        return;
    }
    for at in 0..=message.len() - length {
        let (before, rest) = message.split_at(at);
        let alone = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
        if rest.starts_with(old) && alone(before.last()) && alone(rest.get(length)) {
            message[at..at + length].copy_from_slice(new);
        }
    }
}

fn meet(connection: &ProxiedConnection, fate: ConnectionState) -> Delivery {
    connection.state.send_replace(fate);
    Delivery::End
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_renamed_where_they_stand_alone() {
        let mut said = *b":12345\r\n$5\r\n12345\r\n-MOVED 1 h:12345\r\n$6\r\n123456\r\n+a12345\r\n";
        rename(&mut said, b"12345", b"23456");
        let observed = b":23456\r\n$5\r\n23456\r\n-MOVED 1 h:23456\r\n$6\r\n123456\r\n+a12345\r\n";
        assert_eq!(&said, observed);
        rename(&mut said, b"23456", b"999");
        assert_eq!(&said, observed);
    }
}
