//! What passes between the members of a group, in relays of this process, so that one member can be
//! cut off from the others while clients still reach all of them. A cut is like that of a network:
//! nothing is closed, and what was sent arrives when it is over. May not know what servers are.
//!
//! A relay must know both ends of a connection. Where it stands before one member, who dials says
//! so itself, in a header of its requests, and one connection belongs to one member (etcd). Where
//! it stands behind one, through which that member dials all others, it asks for an address
//! (ZooKeeper, whose members tell each other their addresses).

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::error::{Doing, Result};
use super::port::Port;
use super::socks;

/// In which a member says who it is.
const SENDER: &[u8] = b"\r\nX-Server-From: ";

/// What the others see of it when a member is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rift {
    /// As little as the member itself: it falls silent.
    Silent,
    /// Their connections to it break at once and new ones are refused, while the member itself
    /// gets no message, and goes on believing in them.
    OthersSee,
}

/// A relay for each member.
#[derive(Debug)]
pub(super) struct Division {
    ports: Vec<Port>,
    cut: watch::Sender<Option<Cut>>,
    acceptors: Vec<JoinHandle<()>>,
}

/// One that is alone: its place among the members, and what it calls itself.
#[derive(Debug, Clone)]
struct Cut {
    member: usize,
    id: String,
    rift: Rift,
}

/// Who uses a relay.
#[derive(Debug, Clone)]
enum DivisionEntry {
    /// All who dial this member.
    To(usize, SocketAddr),
    /// This member, to dial any at its addresses.
    From(usize, Arc<Vec<(SocketAddr, usize)>>),
}

impl Division {
    /// Relays before these members, for the others.
    pub(super) async fn before(members: &[SocketAddr]) -> Result<Self> {
        let places = members.iter().enumerate();
        Self::start(places.map(|(place, member)| DivisionEntry::To(place, *member)).collect()).await
    }

    /// SOCKS proxies through which these members dial each other: each has a few addresses, and
    /// calls itself by its place.
    pub(super) async fn behind(members: &[Vec<SocketAddr>]) -> Result<Self> {
        let of = |(place, addrs): (usize, &Vec<SocketAddr>)| {
            addrs.iter().map(|addr| (*addr, place)).collect::<Vec<_>>()
        };
        let all: Arc<Vec<_>> = Arc::new(members.iter().enumerate().flat_map(of).collect());
        Self::start(
            (0..members.len()).map(|place| DivisionEntry::From(place, all.clone())).collect(),
        )
        .await
    }

    async fn start(entries: Vec<DivisionEntry>) -> Result<Self> {
        let mut division =
            Self { ports: Vec::new(), cut: watch::Sender::new(None), acceptors: Vec::new() };
        for entry in entries {
            let port = Port::take()?;
            let listener =
                TcpListener::bind(port.addr()).await.doing("listening between members")?;
            division.ports.push(port);
            let cut = division.cut.subscribe();
            division.acceptors.push(tokio::spawn(accept(listener, entry, cut)));
        }
        Ok(division)
    }

    /// Where the relays listen.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(Port::addr).collect()
    }

    /// Cuts off the member at this place, which calls itself by this id.
    pub(super) fn cut_off(&self, place: usize, id: String, rift: Rift) {
        self.cut.send_replace(Some(Cut { member: place, id, rift }));
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

async fn accept(listener: TcpListener, entry: DivisionEntry, cut: watch::Receiver<Option<Cut>>) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((client, _)) = listener.accept().await {
            connections.spawn(admit(client, entry.clone(), cut.clone()));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn admit(mut client: TcpStream, entry: DivisionEntry, cut: watch::Receiver<Option<Cut>>) {
    let from = Arc::default();
    match entry {
        DivisionEntry::To(to, member) => {
            let line = MemberConnection { to, from, cut };
            if let Some(server) = line.dial(member).await {
                line.relay(client, server).await;
            }
        }
        DivisionEntry::From(place, members) => {
            let Ok(asked) = socks::asked(&mut client).await else {
                return;
            };
            let Some((_, to)) = members.iter().find(|(addr, _)| *addr == asked) else {
                return;
            };
            let line = MemberConnection { to: *to, from, cut };
            let _ = line.from.set(place.to_string()); // set here only
            if let Some(server) = line.dial(asked).await
                && socks::connected(&mut client).await.is_ok()
            {
                line.relay(client, server).await;
            }
        }
    }
}

/// One connection to a member.
#[derive(Clone)]
struct MemberConnection {
    to: usize,
    /// Who dialled, once it has said so.
    from: Arc<OnceLock<String>>,
    cut: watch::Receiver<Option<Cut>>,
}

impl MemberConnection {
    /// Connects to the member, when it can be reached; not while the dialler sees that it cannot.
    async fn dial(&self, member: SocketAddr) -> Option<TcpStream> {
        let refused = async {
            while !self.breaks_for_dialler().await {
                self.passage().await;
            }
        };
        tokio::select! {
            biased;
            () = self.passage() => TcpStream::connect(member).await.ok(),
            () = refused => None,
        }
    }

    async fn relay(self, mut client: TcpStream, mut server: TcpStream) {
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let dialler = tokio::select! {
            biased;
            dialler = self.breaks_for_dialler() => dialler,
            () = self.exchange(&mut client, &mut server) => return,
        };
        let (sees, alone) = if dialler { (client, server) } else { (server, client) };
        let _ = sees.set_zero_linger();
        drop(sees);
        self.passage().await;
        drop(alone);
    }

    async fn exchange(&self, client: &mut TcpStream, server: &mut TcpStream) {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        // Also when one direction has failed, which the other end is to see.
        tokio::select! {
            Err(_) = self.pass_on(from_client, to_server, true) => {}
            Err(_) = self.pass_on(from_server, to_client, false) => {}
            else => {}
        }
    }

    async fn pass_on(
        &self,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
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

    fn is_cut(&self, cut: &Cut) -> bool {
        cut.member == self.to || self.from.get() == Some(&cut.id)
    }

    /// Waits until both ends can reach each other.
    async fn passage(&self) {
        let reaches = |cut: &Option<Cut>| !cut.as_ref().is_some_and(|cut| self.is_cut(cut));
        // An error: the relays are gone, and this goes with them.
        let _ = self.cut.clone().wait_for(reaches).await;
    }

    /// Waits until one end is to see that they cannot: whether that is the one who dialled.
    async fn breaks_for_dialler(&self) -> bool {
        let breaks = |cut: &Option<Cut>| {
            cut.as_ref().is_some_and(|cut| cut.rift == Rift::OthersSee && self.is_cut(cut))
        };
        let mut cut = self.cut.clone();
        let cut = cut.wait_for(breaks).await;
        cut.is_ok_and(|cut| cut.as_ref().is_some_and(|cut| cut.member == self.to))
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

    /// One member that was told where the relay before it is, and two that dial it there.
    #[tokio::test]
    async fn what_was_sent_while_a_member_was_cut_off_arrives_afterwards() {
        let member = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let division = Division::before(&[member.local_addr().unwrap()]).await.unwrap();
        let mut client = TcpStream::connect(division.addrs()[0]).await.unwrap();
        let (mut server, _) = member.accept().await.unwrap();
        division.cut_off(1, "b".into(), Rift::Silent);
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

    /// Three members that dial each other through proxies.
    struct Three {
        listeners: Vec<TcpListener>,
        division: Division,
    }

    impl Three {
        async fn start() -> Self {
            let mut listeners = Vec::new();
            for _ in 0..3 {
                listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
            }
            let addrs: Vec<_> = listeners.iter().map(|l| vec![l.local_addr().unwrap()]).collect();
            let division = Division::behind(&addrs).await.unwrap();
            Self { listeners, division }
        }

        /// Asks for a connection, and returns without waiting for the answer.
        async fn ask(&self, from: usize, to: usize) -> TcpStream {
            let mut stream = TcpStream::connect(self.division.addrs()[from]).await.unwrap();
            stream.write_all(&[5, 2, 0, 2]).await.unwrap();
            stream.read_exact(&mut [0; 2]).await.unwrap();
            let port = self.listeners[to].local_addr().unwrap().port().to_be_bytes();
            let wish = [5, 1, 0, 1, 127, 0, 0, 1, port[0], port[1]];
            stream.write_all(&wish).await.unwrap();
            stream
        }

        async fn dial(&self, from: usize, to: usize) -> (TcpStream, TcpStream) {
            let mut client = self.ask(from, to).await;
            client.read_exact(&mut [0; 10]).await.unwrap();
            (client, self.listeners[to].accept().await.unwrap().0)
        }
    }

    async fn passes(from: &mut TcpStream, to: &mut TcpStream) {
        from.write_all(b"x").await.unwrap();
        to.read_exact(&mut [0]).await.unwrap();
    }

    #[tokio::test]
    async fn a_member_that_dials_by_itself_is_cut_off_both_ways_and_the_others_are_not() {
        let three = Three::start().await;
        let (mut out, mut out_end) = three.dial(0, 1).await;
        let (mut inward, mut inward_end) = three.dial(2, 0).await;
        let (mut others, mut others_end) = three.dial(1, 2).await;
        three.division.cut_off(0, "0".into(), Rift::Silent);
        out.write_all(b"x").await.unwrap();
        inward.write_all(b"x").await.unwrap();
        let mut new = three.ask(0, 1).await;
        passes(&mut others, &mut others_end).await;
        let (mut fresh, mut fresh_end) = three.dial(2, 1).await;
        passes(&mut fresh_end, &mut fresh).await;
        for silent in [&mut out_end, &mut inward_end, &mut new] {
            assert!(silent.try_read(&mut [0]).is_err(), "it arrived during the cut");
        }
        three.division.rejoin();
        out_end.read_exact(&mut [0]).await.unwrap();
        inward_end.read_exact(&mut [0]).await.unwrap();
        new.read_exact(&mut [0; 10]).await.unwrap();
    }

    #[tokio::test]
    async fn where_the_others_see_it_their_ends_break_and_its_own_stay() {
        let three = Three::start().await;
        let (mut out, mut out_end) = three.dial(0, 1).await;
        let (mut inward, mut inward_end) = three.dial(2, 0).await;
        three.division.cut_off(0, "0".into(), Rift::OthersSee);
        assert!(out_end.read_exact(&mut [0]).await.is_err());
        assert!(inward.read_exact(&mut [0]).await.is_err());
        let mut refused = three.ask(1, 0).await;
        assert!(refused.read_exact(&mut [0; 10]).await.is_err());
        let waits = three.ask(0, 2).await;
        for silent in [&mut out, &mut inward_end] {
            silent.write_all(b"x").await.unwrap();
            let read = silent.try_read(&mut [0]).unwrap_err();
            assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock);
        }
        assert_eq!(waits.try_read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        three.division.rejoin();
        assert!(out.read_exact(&mut [0]).await.is_err(), "what broke stays broken");
        let (mut again, mut again_end) = three.dial(1, 0).await;
        passes(&mut again, &mut again_end).await;
    }
}
