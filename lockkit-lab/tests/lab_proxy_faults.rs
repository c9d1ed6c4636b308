//! Every fault that the proxy can do, seen from both ends.

mod lab_memory;

use std::io;
use std::time::{Duration, Instant};

use lab_memory::{recalls, remember};
use lockkit_lab::proxy::{End, Protocol, Proxy, ProxyFault, When};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Server, ServerKind};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Nothing arrives for so long: it does not arrive at all.
const SILENCE: Duration = Duration::from_millis(300);

struct CaseContext {
    server: Server,
    proxy: Proxy,
    client: resp::RespConnection,
}

impl CaseContext {
    async fn new() -> Self {
        let server = Server::start(ServerKind::Redis).await.unwrap();
        let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
        let mut client = resp::RespConnection::open(proxy.addr()).await.unwrap();
        client.call(&["PING"]).await.unwrap();
        Self { server, proxy, client }
    }

    async fn increment(&mut self) -> io::Result<RespReply> {
        self.client.call(&["INCR", "n"]).await
    }

    async fn is_silent(&mut self) -> bool {
        timeout(SILENCE, self.client.read()).await.is_err()
    }

    /// How often the server has counted up.
    async fn acted(&self) -> String {
        resp::ask(self.server.addr(), &["GET", "n"]).await.unwrap().text().into()
    }

    /// Returns once the server sees so many clients, the asking one included.
    async fn server_sees(&self, clients: usize) {
        while self.clients().await != clients {
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn clients(&self) -> usize {
        let list = resp::ask(self.server.addr(), &["CLIENT", "LIST"]).await.unwrap();
        list.text().lines().count()
    }
}

#[tokio::test]
async fn an_answer_is_lost_after_the_server_acted_in_every_protocol() {
    for (kind, protocol, logins) in [
        (ServerKind::Redis, Protocol::Resp, 0),
        (ServerKind::Postgres, Protocol::Postgres, 1),
        (ServerKind::MariaDb, Protocol::MySql, 1),
        (ServerKind::ZooKeeper, Protocol::ZooKeeper, 1),
        (ServerKind::Etcd, Protocol::Unknown, 0),
    ] {
        let server = Server::start(kind).await.unwrap();
        let proxy = Proxy::start(server.addr(), protocol).await.unwrap();
        let strike = proxy.fault(ProxyFault::Cut, When::Request(logins + 1));
        remember(kind, proxy.addr()).await.unwrap_err();
        assert!(strike.has_struck());
        assert!(!recalls(kind, server.addr()).await.unwrap(), "{kind}: cut before it acted");

        let strike = proxy.fault(ProxyFault::Cut, When::Answer(logins + 1));
        remember(kind, proxy.addr()).await.unwrap_err();
        assert!(strike.has_struck());
        assert!(recalls(kind, server.addr()).await.unwrap(), "{kind}: cut after it acted");
        assert!(recalls(kind, proxy.addr()).await.unwrap(), "{kind}: faults strike once");
    }
}

#[tokio::test]
async fn a_cut_strikes_at_the_message_it_was_ordered_for() {
    let mut context = CaseContext::new().await;
    let strike = context.proxy.fault(ProxyFault::Cut, When::Answer(3));
    context.increment().await.unwrap();
    context.increment().await.unwrap();
    assert!(!strike.has_struck());
    context.increment().await.unwrap_err();
    assert!(strike.has_struck());
    assert_eq!(context.acted().await, "3");
    context.server_sees(1).await;
}

#[tokio::test]
async fn a_cut_now_ends_all_connections() {
    let mut context = CaseContext::new().await;
    let mut second = resp::RespConnection::open(context.proxy.addr()).await.unwrap();
    second.call(&["PING"]).await.unwrap();
    context.proxy.fault(ProxyFault::Cut, When::Now);
    context.client.read().await.unwrap_err();
    second.read().await.unwrap_err();
    context.server_sees(1).await;
}

#[tokio::test]
async fn a_mute_connection_swallows_answers_while_the_server_acts() {
    let mut context = CaseContext::new().await;
    let mut strike = context.proxy.fault(ProxyFault::Mute, When::Request(2));
    context.increment().await.unwrap();
    context.client.send(&[&["INCR", "n"]]).await.unwrap();
    strike.struck().await;
    assert_eq!(context.acted().await, "2", "it has struck once the server acted");
    assert!(context.is_silent().await);
    assert_eq!(context.clients().await, 2, "nothing is closed");
    assert_eq!(context.proxy.counts().answers, 2, "the ping's and the first one's");
    // What has missed an answer cannot go on.
    context.proxy.heal().await.unwrap();
    context.client.read().await.unwrap_err();
}

#[tokio::test]
async fn a_black_hole_holds_everything_until_it_is_healed() {
    let mut context = CaseContext::new().await;
    let mut strike = context.proxy.fault(ProxyFault::BlackHole, When::Request(1));
    context.client.send(&[&["INCR", "n"]]).await.unwrap();
    strike.struck().await;
    let late = resp::RespConnection::open(context.proxy.addr()).await;
    assert!(context.is_silent().await);
    assert_eq!(context.acted().await, "", "the request is held back");
    assert_eq!(context.clients().await, 2, "neither a close nor a new connection passes");
    context.proxy.heal().await.unwrap();
    assert_eq!(context.client.read().await.unwrap(), RespReply::Number(1));
    assert_eq!(late.unwrap().call(&["INCR", "n"]).await.unwrap(), RespReply::Number(2));
}

#[tokio::test]
async fn a_black_hole_can_begin_at_an_answer_and_hides_a_close() {
    let mut context = CaseContext::new().await;
    context.proxy.fault(ProxyFault::BlackHole, When::Answer(1));
    context.client.send(&[&["INCR", "n"]]).await.unwrap();
    while context.acted().await != "1" {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(context.is_silent().await);
    let CaseContext { server, proxy, client } = context;
    drop(client);
    let client = resp::RespConnection::open(server.addr()).await.unwrap();
    let context = CaseContext { server, proxy, client };
    sleep(SILENCE).await;
    assert_eq!(context.clients().await, 3, "the server has not observed that its client is gone");
    context.proxy.heal().await.unwrap();
    context.server_sees(2).await;
}

#[tokio::test]
async fn a_delay_holds_one_direction_and_keeps_its_order() {
    let mut context = CaseContext::new().await;
    let by = Duration::from_millis(200);
    context.proxy.fault(ProxyFault::Delay(by), When::Request(2));
    let since = Instant::now();
    context.client.send(&[&["INCR", "n"], &["INCR", "n"], &["INCR", "n"]]).await.unwrap();
    for nth in 1..=3 {
        assert_eq!(context.client.read().await.unwrap(), RespReply::Number(nth));
        assert!((nth == 1) || since.elapsed() >= by, "{nth}: {:?}", since.elapsed());
    }
    context.proxy.fault(ProxyFault::Delay(by), When::Now);
    let since = Instant::now();
    context.increment().await.unwrap();
    assert!(since.elapsed() >= by);
}

#[tokio::test]
async fn half_open_connections_are_closed_for_one_end_only() {
    let mut context = CaseContext::new().await;
    context.proxy.fault(ProxyFault::HalfOpen { receiver: End::Client }, When::Answer(1));
    context.increment().await.unwrap_err();
    sleep(SILENCE).await;
    assert_eq!(context.clients().await, 2, "the server has not heard of it");
    context.proxy.heal().await.unwrap();
    context.server_sees(1).await;

    let mut context = CaseContext::new().await;
    context.proxy.fault(ProxyFault::HalfOpen { receiver: End::Server }, When::Now);
    context.server_sees(1).await;
    context.client.send(&[&["INCR", "n"]]).await.unwrap();
    assert!(context.is_silent().await, "the client has not heard of it");
    assert_eq!(context.acted().await, "");
}

#[tokio::test]
async fn new_connections_are_refused_while_old_ones_go_on() {
    let mut context = CaseContext::new().await;
    context.proxy.refuse().await;
    let refused = TcpStream::connect(context.proxy.addr()).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    context.increment().await.unwrap();
    context.proxy.heal().await.unwrap();
    resp::ask(context.proxy.addr(), &["INCR", "n"]).await.unwrap();
    assert_eq!(context.acted().await, "2");
}

#[tokio::test]
async fn latency_is_added_each_way() {
    let mut context = CaseContext::new().await;
    context.proxy.latencies(Duration::from_millis(50), Duration::from_millis(100));
    let since = Instant::now();
    context.increment().await.unwrap();
    let took = since.elapsed();
    eprintln!("150 ms of latency: {took:?}");
    assert!(took >= Duration::from_millis(150));
    // A round trip of many requests is as long as one of one.
    let since = Instant::now();
    context.client.send(&vec![&["INCR", "n"][..]; 50]).await.unwrap();
    for _ in 0..50 {
        context.client.read().await.unwrap();
    }
    eprintln!("the same for 50 at once: {:?}", since.elapsed());
    assert!(since.elapsed() < 50 * took);
}

#[tokio::test]
async fn a_pushed_message_can_be_lost() {
    let mut context = CaseContext::new().await;
    context.client.call(&["SUBSCRIBE", "c"]).await.unwrap();
    let strike = context.proxy.fault(ProxyFault::Cut, When::Push(2));
    for _ in 0..2 {
        resp::ask(context.server.addr(), &["PUBLISH", "c", "x"]).await.unwrap();
        if !strike.has_struck() {
            let _ = context.client.read().await;
        }
    }
    assert!(strike.has_struck());
    context.client.read().await.unwrap_err();
    assert_eq!(context.proxy.counts().pushes, 1);
}

#[tokio::test]
async fn counts_are_kept_for_each_connection_and_for_all() {
    let context = CaseContext::new().await;
    context.proxy.reset();
    for _ in 0..3 {
        resp::ask(context.proxy.addr(), &["INCR", "n"]).await.unwrap();
    }
    let counts = context.proxy.counts();
    assert_eq!((counts.connections, counts.requests, counts.round_trips), (3, 3, 3));
    let each: Vec<_> = context.proxy.connections().iter().map(|one| one.requests).collect();
    assert_eq!(each, [0, 1, 1, 1]);
}

#[tokio::test]
async fn a_large_value_passes_unchanged() {
    let mut context = CaseContext::new().await;
    let large = "x".repeat(3_000_000);
    context.client.call(&["SET", "large", &large]).await.unwrap();
    assert_eq!(context.client.call(&["GET", "large"]).await.unwrap().text(), large);
    assert_eq!(context.proxy.counts().requests, 3);
}

#[tokio::test]
async fn a_server_that_is_down_shows_as_a_closed_connection() {
    let context = CaseContext::new().await;
    context.server.kill().await;
    resp::ask(context.proxy.addr(), &["PING"]).await.unwrap_err();
}
