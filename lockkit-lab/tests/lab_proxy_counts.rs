//! The proxy's counts for a known exchange in each protocol, compared with what
//! the server itself has counted.

mod lab_http2;

use std::net::SocketAddr;
use std::time::Duration;

use lab_http2::Http2;
use lockkit_lab::proxy::{Counts, Protocol, Proxy};
use lockkit_lab::raw::{etcd, mysql, postgres, resp, zookeeper};
use lockkit_lab::{Server, ServerKind};

/// Under it a flight is a flight, however the client's pieces are scheduled.
const LATENCY: Duration = Duration::from_millis(10);

async fn before(kind: ServerKind, protocol: Protocol) -> (Server, Proxy) {
    let server = Server::start(kind).await.unwrap();
    let proxy = Proxy::start(server.addr(), protocol).await.unwrap();
    proxy.latency(LATENCY);
    (server, proxy)
}

/// Requests, answers, pushes, round trips.
fn brief(counts: Counts) -> [u64; 4] {
    eprintln!("{counts:?}");
    [counts.requests, counts.answers, counts.pushes, counts.round_trips]
}

#[tokio::test]
async fn redis_commands_are_counted_as_redis_counts_them() {
    let (server, proxy) = before(ServerKind::Redis, Protocol::Resp).await;
    let mut client = resp::RespConnection::open(proxy.addr()).await.unwrap();
    client.call(&["CONFIG", "RESETSTAT"]).await.unwrap();
    proxy.reset();
    client.call(&["SET", "k", "v"]).await.unwrap();
    client.send(&[&["INCR", "n"], &["INCR", "n"], &["GET", "k"]]).await.unwrap();
    for _ in 0..3 {
        client.read().await.unwrap();
    }
    assert_eq!(brief(proxy.counts()), [4, 4, 0, 2]);
    // In pieces, too, what leaves before an answer comes back is one flight.
    client.send(&[&["INCR", "n"]]).await.unwrap();
    tokio::task::yield_now().await;
    client.send(&[&["INCR", "n"]]).await.unwrap();
    client.read().await.unwrap();
    client.read().await.unwrap();
    assert_eq!(brief(proxy.counts()), [6, 6, 0, 3]);
    let stats = resp::ask(server.addr(), &["INFO", "commandstats"]).await.unwrap();
    let calls = |name: &str| -> u64 {
        let line = stats.text().lines().find(|line| line.starts_with(name)).unwrap_or_default();
        let count = line.split(['=', ',']).nth(1).unwrap_or("0");
        count.parse().unwrap()
    };
    assert_eq!(calls("cmdstat_set:") + calls("cmdstat_incr:") + calls("cmdstat_get:"), 6);
}

#[tokio::test]
async fn published_messages_are_counted_apart_in_both_dialects() {
    let (server, proxy) = before(ServerKind::Redis, Protocol::Resp).await;
    for dialect in ["2", "3"] {
        let mut client = resp::RespConnection::open(proxy.addr()).await.unwrap();
        client.call(&["HELLO", dialect]).await.unwrap();
        proxy.reset();
        client.send(&[&["SUBSCRIBE", "a", "b"]]).await.unwrap();
        client.read().await.unwrap();
        client.read().await.unwrap();
        for _ in 0..3 {
            resp::ask(server.addr(), &["PUBLISH", "a", "hello"]).await.unwrap();
            client.read().await.unwrap();
        }
        assert_eq!(brief(proxy.counts()), [1, 2, 3, 1], "RESP{dialect}");
    }
}

#[tokio::test]
async fn postgres_requests_are_counted_as_its_log_shows_them() {
    let (server, proxy) = before(ServerKind::Postgres, Protocol::Postgres).await;
    let mut client = postgres::PostgresConnection::open(proxy.addr()).await.unwrap();
    assert_eq!(brief(proxy.counts()), [1, 1, 0, 1], "the login");
    client.query("SET log_statement = 'all'").await.unwrap();
    proxy.reset();
    client.query("SELECT 1; SELECT 2").await.unwrap();
    assert_eq!(brief(proxy.counts()), [1, 1, 0, 1], "two statements in one message");
    // An extended query, the way that drivers send it, twice in one piece.
    let once: [(u8, &[u8]); 5] = [
        (b'P', b"\0SELECT 3\0\0\0"),
        (b'B', b"\0\0\0\0\0\0\0\0"),
        (b'D', b"P\0"),
        (b'E', b"\0\0\0\0\0"),
        (b'S', b""),
    ];
    client.send(&[once, once].concat()).await.unwrap();
    assert_eq!(client.rows().await.unwrap().len(), 1);
    assert_eq!(client.rows().await.unwrap().len(), 1);
    assert_eq!(brief(proxy.counts()), [3, 3, 0, 2], "two requests in one flight");
    let log = server.log_tail();
    assert_eq!(log.matches("statement: SELECT 1; SELECT 2").count(), 1, "{log}");
    assert_eq!(log.matches("execute <unnamed>: SELECT 3").count(), 2, "{log}");
    // A failed statement is answered, too.
    client.query("SELECT 1/0").await.unwrap_err();
    assert_eq!(brief(proxy.counts()), [4, 4, 0, 3]);
}

#[tokio::test]
async fn notifications_of_postgres_are_counted_apart() {
    let (server, proxy) = before(ServerKind::Postgres, Protocol::Postgres).await;
    let mut client = postgres::PostgresConnection::open(proxy.addr()).await.unwrap();
    client.query("LISTEN lab").await.unwrap();
    proxy.reset();
    let mut other = postgres::PostgresConnection::open(server.addr()).await.unwrap();
    other.query("NOTIFY lab, 'one'").await.unwrap();
    assert_eq!(client.read().await.unwrap().0, b'A');
    assert_eq!(brief(proxy.counts()), [0, 0, 1, 0]);
    // One that arrives within an answer.
    client.query("NOTIFY lab, 'two'").await.unwrap();
    assert_eq!(brief(proxy.counts()), [1, 1, 2, 1]);
}

#[tokio::test]
async fn mariadb_commands_are_counted_as_mariadb_counts_them() {
    let (_server, proxy) = before(ServerKind::MariaDb, Protocol::MySql).await;
    let mut client = mysql::MySqlClient::open(proxy.addr()).await.unwrap();
    let counts = proxy.counts();
    assert_eq!(brief(counts), [1, 1, 0, 1], "the login");
    assert_eq!(counts.chatter, 1, "the greeting");
    let questions = "SHOW SESSION STATUS LIKE 'Questions'";
    let said =
        |rows: Vec<Vec<Option<String>>>| rows[0][1].as_ref().unwrap().parse::<u64>().unwrap();
    let start = said(client.query(questions).await.unwrap());
    proxy.reset();
    client.query("CREATE TABLE lockkit.t (a INT)").await.unwrap();
    client.query("INSERT INTO lockkit.t VALUES (1), (2), (3)").await.unwrap();
    assert_eq!(client.query("SELECT a FROM lockkit.t").await.unwrap().len(), 3);
    client.query("SELECT nothing FROM nowhere").await.unwrap_err();
    let end = said(client.query(questions).await.unwrap());
    assert_eq!(brief(proxy.counts()), [5, 5, 0, 5]);
    assert_eq!(end - start, 5);
}

#[tokio::test]
async fn zookeepers_requests_pings_and_events_are_counted_as_it_counts_them() {
    let (server, proxy) = before(ServerKind::ZooKeeper, Protocol::ZooKeeper).await;
    let mut client = zookeeper::ZkConnection::open(proxy.addr()).await.unwrap();
    client.create("/a").await.unwrap();
    assert!(client.exists("/a", true).await.unwrap());
    assert_eq!(brief(proxy.counts()), [3, 3, 0, 3]);
    // Create and look, back to back, and a ping among them.
    let (create, look) = (client.create_request("/b"), client.exists_request("/b", false));
    let ping = client.ping_request();
    client.send(&[&create, &ping, &look]).await.unwrap();
    for _ in 0..3 {
        assert_eq!(client.read().await.unwrap().error, 0);
    }
    assert_eq!(brief(proxy.counts()), [5, 5, 0, 4]);
    assert_eq!(proxy.counts().chatter, 2, "the ping and its answer");
    let mut other = zookeeper::ZkConnection::open(server.addr()).await.unwrap();
    other.delete("/a").await.unwrap();
    other.close().await.unwrap();
    assert_eq!(client.read().await.unwrap().xid, zookeeper::EVENT);
    assert_eq!(brief(proxy.counts()), [5, 5, 1, 4]);
    // Five requests and a ping; as many answers and an event.
    let connections = zookeeper::four_letters(server.addr(), "cons").await.unwrap();
    assert!(connections.contains("recved=6,sent=7"), "{connections}");
    assert_eq!(zookeeper::four_letters(proxy.addr(), "ruok").await.unwrap(), "imok");
    assert_eq!(brief(proxy.counts()), [6, 6, 1, 5], "a four letter word");
}

#[tokio::test]
async fn etcds_calls_and_events_are_counted_as_etcd_counts_them() {
    let (server, proxy) = before(ServerKind::Etcd, Protocol::Grpc).await;
    let asked_if_ready = received(server.addr(), "Range").await;
    let mut client = Http2::open(proxy.addr()).await;
    client.unary(1, "/etcdserverpb.KV/Range", b"\x0a\x03lab").await;
    assert_eq!(brief(proxy.counts()), [1, 1, 0, 1]);
    proxy.reset();
    // Three calls in one flight.
    client.head(3, "/etcdserverpb.KV/Put").await;
    client.message(3, b"\x0a\x03lab\x12\x011", true).await;
    client.head(5, "/etcdserverpb.KV/Range").await;
    client.head(7, "/etcdserverpb.KV/Range").await;
    client.message(7, b"\x0a\x03lab", true).await;
    client.message(5, b"\x0a\x03lab", true).await;
    for _ in 0..3 {
        client.end_of_a_stream().await;
    }
    assert_eq!(brief(proxy.counts()), [3, 3, 0, 1]);
    // An error instead of an answer: a lease that does not exist.
    client.unary(9, "/etcdserverpb.Lease/LeaseRevoke", b"\x08\x07").await;
    assert_eq!(brief(proxy.counts()), [4, 4, 0, 2]);

    client.head(11, "/etcdserverpb.Watch/Watch").await;
    client.message(11, b"\x0a\x05\x0a\x03lab", false).await;
    client.data(11).await;
    assert_eq!(brief(proxy.counts()), [5, 5, 0, 3], "the watch is made");
    for value in ["Mg==", "Mw=="] {
        let put = serde_json::json!({ "key": "bGFi", "value": value });
        etcd::ask(server.addr(), "kv/put", &put).await.unwrap();
        client.data(11).await;
    }
    assert_eq!(brief(proxy.counts()), [5, 5, 2, 3], "two events");
    assert_eq!(received(server.addr(), "Watch").await, 1);
    assert_eq!(received(server.addr(), "LeaseRevoke").await, 1);
    assert_eq!(received(server.addr(), "Range").await - asked_if_ready, 3);
    assert_eq!(received(server.addr(), "Put").await, 1 + 2, "two came through the gateway");
}

/// Messages of clients that etcd has counted for this method.
async fn received(addr: SocketAddr, method: &str) -> u64 {
    let metrics = etcd::metrics(addr).await.unwrap();
    let line = metrics.lines().find(|line| {
        line.starts_with("grpc_server_msg_received_total")
            && line.contains(&format!("grpc_method=\"{method}\""))
    });
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}
