//! The version of the format: installed where there is none, refused where it is another one.

use lockkit_core::driver::LockDriver;
use lockkit_core::state::ListRequest;
use lockkit_core::{Error, Namespace};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Group, Layout, Server, ServerKind};
use lockkit_redis::RedisDriver;

const KEY: &str = "lockkit:format";

async fn ask(server: &Server, words: &[&str]) -> RespReply {
    resp::ask(server.addr(), words).await.unwrap()
}

async fn connect(url: &str) -> Result<RedisDriver, Error> {
    RedisDriver::connect(&format!("{url}?timeout=30s")).await
}

/// The server that has the key is `server`.
async fn is_kept_and_checked_at(server: &Server, url: &str) {
    ask(server, &["DEL", KEY]).await;
    let driver = connect(url).await.unwrap();
    assert_eq!(ask(server, &["GET", KEY]).await.text(), "3");
    connect(url).await.unwrap();
    // It is the name of no lock, and of no namespace.
    let (namespace, prefix) = (Namespace::default(), String::new());
    let request = ListRequest { namespace, space: None, prefix, after: None, limit: 10 };
    assert!(driver.list(&request).await.unwrap().states.is_empty());
    assert!(driver.namespaces(None, 10).await.unwrap().items.is_empty());
    for other in ["0", "2", "17"] {
        ask(server, &["SET", KEY, other]).await;
        let error = connect(url).await.unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(&format!("format {other},")), "{message}");
        assert!(message.contains("format 3 "), "{message}");
        assert_eq!(ask(server, &["GET", KEY]).await.text(), other);
    }
    ask(server, &["SET", KEY, "one"]).await;
    let error = connect(url).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains(KEY), "{error}");
    assert_eq!(ask(server, &["GET", KEY]).await.text(), "one");
}

#[tokio::test]
async fn a_server_has_its_format_checked_when_a_driver_connects() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    is_kept_and_checked_at(&server, &server.url()).await;
}

#[tokio::test]
async fn a_cluster_has_its_format_checked_when_a_driver_connects() {
    let group = Group::start(Layout::RedisCluster).await.unwrap();
    is_kept_and_checked_at(group.holder_of(KEY).await.unwrap(), &group.url()).await;
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_connected_to_without_a_version() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    ask(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    connect(&server.url()).await.unwrap();
    ask(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    connect(&server.url()).await.unwrap();
    assert_eq!(ask(&server, &["EXISTS", KEY]).await, RespReply::Number(0));
}
