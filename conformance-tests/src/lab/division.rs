//! What passes between the members of an etcd cluster, in relays of this process, so that one
//! member can be cut off from the others while clients still reach all of them. A cut is like that
//! of a network: nothing is closed, and what was sent arrives when it is over. May not know what
//! servers are.
//!
//! Members find each other at one address each, so the address alone does not tell who dials; they
//! say it themselves in a header of their requests, and one connection belongs to one member.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::error::{Doing, Result};
use super::port::Port;

/// In which a member says who it is.
const SENDER: &[u8] = b"\r\nX-Server-From: ";

/// A relay before each member, for the others.
#[derive(Debug)]
pub(super) struct Division {
    ports: Vec<Port>,
    cut: watch::Sender<Option<Cut>>,
    acceptors: Vec<JoinHandle<()>>,
}

/// One that is alone: its place among the members, and what it calls itself.
#[derive(Debug, Clone)]
struct Cut {
    place: usize,
    id: String,
}

impl Division {
    /// Relays to these members.
    pub(super) async fn start(members: &[SocketAddr]) -> Result<Self> {
        let mut division =
            Self { ports: Vec::new(), cut: watch::Sender::new(None), acceptors: Vec::new() };
        for (place, member) in members.iter().copied().enumerate() {
            let port = Port::take()?;
            let listener =
                TcpListener::bind(port.addr()).await.doing("listening between members")?;
            division.ports.push(port);
            let cut = division.cut.subscribe();
            division.acceptors.push(tokio::spawn(accept(listener, place, member, cut)));
        }
        Ok(division)
    }

    /// Where the others find a member.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(Port::addr).collect()
    }

    /// Cuts off the member at this place, which calls itself by this id.
    pub(super) fn cut_off(&self, place: usize, id: String) {
        self.cut.send_replace(Some(Cut { place, id }));
    }

    /// Lets all reach each other again.
    pub(super) fn rejoin(&self) {
        self.cut.send_replace(None);
    }
}

impl Drop for Division {
    fn drop(&mut self) {
        self.acceptors.iter().for_each(JoinHandle::abort);
    }
}

async fn accept(
    listener: TcpListener,
    place: usize,
    member: SocketAddr,
    cut: watch::Receiver<Option<Cut>>,
) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((client, _)) = listener.accept().await {
            let line = Line { to: place, from: Arc::default(), cut: cut.clone() };
            connections.spawn(line.carry(client, member));
        }
        while connections.try_join_next().is_some() {}
    }
}

/// One connection to a member.
#[derive(Clone)]
struct Line {
    to: usize,
    /// Who dialled, once it has said so.
    from: Arc<OnceLock<String>>,
    cut: watch::Receiver<Option<Cut>>,
}

impl Line {
    async fn carry(mut self, client: TcpStream, member: SocketAddr) {
        self.passage().await;
        let Ok(server) = TcpStream::connect(member).await else {
            return;
        };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (asked, answered) = (self.clone(), self);
        // Also when one direction has failed, which the other end is to see.
        tokio::select! {
            Err(_) = asked.pass_on(from_client, to_server, true) => {}
            Err(_) = answered.pass_on(from_server, to_client, false) => {}
            else => {}
        }
    }

    async fn pass_on(
        mut self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        requests: bool,
    ) -> std::io::Result<()> {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut bytes).await;
            let length = *read.as_ref().unwrap_or(&0);
            if requests && let Some(sender) = sender(&bytes[..length]) {
                let _ = self.from.set(sender); // it may have said so before
            }
            self.passage().await;
            if read? == 0 {
                return to.shutdown().await;
            }
            to.write_all(&bytes[..length]).await?;
        }
    }

    /// Waits until both ends can reach each other.
    async fn passage(&mut self) {
        let (to, from) = (self.to, &self.from);
        let reaches = |cut: &Option<Cut>| match cut {
            Some(Cut { place, id }) => *place != to && from.get() != Some(id),
            None => true,
        };
        // An error: the relays are gone, and this goes with them.
        let _ = self.cut.wait_for(reaches).await;
    }
}

/// Who says in these bytes that it sends them.
fn sender(bytes: &[u8]) -> Option<String> {
    let begins = bytes.windows(SENDER.len()).position(|w| w.eq_ignore_ascii_case(SENDER))?;
    let rest = &bytes[begins + SENDER.len()..];
    let ends = rest.iter().position(|byte| *byte == b'\r')?;
    String::from_utf8(rest[..ends].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_says_who_it_is() {
        let request = b"GET /raft/stream/message/1 HTTP/1.1\r\nX-Server-From: a8c2\r\n\r\n";
        assert_eq!(sender(request).as_deref(), Some("a8c2"));
        assert_eq!(sender(b"GET /raft/probing HTTP/1.1\r\nHost: a\r\n\r\n"), None);
    }

    #[tokio::test]
    async fn what_was_sent_while_a_member_was_cut_off_arrives_afterwards() {
        let member = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let division = Division::start(&[member.local_addr().unwrap()]).await.unwrap();
        let mut client = TcpStream::connect(division.addrs()[0]).await.unwrap();
        let (mut server, _) = member.accept().await.unwrap();
        division.cut_off(1, "b".into());
        client.write_all(b"\r\nX-Server-From: b\r\n").await.unwrap();
        // Another member still reaches it.
        let mut other = TcpStream::connect(division.addrs()[0]).await.unwrap();
        other.write_all(b"\r\nX-Server-From: c\r\n").await.unwrap();
        let (mut its, _) = member.accept().await.unwrap();
        let mut said = [0; 20];
        its.read_exact(&mut said).await.unwrap();
        assert!(said.ends_with(b"c\r\n"));
        assert!(server.try_read(&mut said).is_err(), "it arrived during the cut");
        division.rejoin();
        server.read_exact(&mut said).await.unwrap();
        assert!(said.ends_with(b"b\r\n"));
    }
}
