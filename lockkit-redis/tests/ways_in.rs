//! Ways to reach a server: TLS, users with few rights, databases by number, connections of the
//! user's own. On each of them a lock is taken, waited for and handed over by a message.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, BreakMode, LockDriver, Patience, Precondition, RegisterKey, Registers, Released,
    Renewal, Write, WriteId, WriteResult,
};
use lockkit_core::state::ListRequest;
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Key, Mode, Name, Namespace, Space, Token};
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Clients, Group, Layout, Proxy, Server, ServerKind, TestCertificates};
use lockkit_redis::redis::Client;
use lockkit_redis::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use lockkit_redis::{RedisDriver, RedisOptions};

/// Longer than any machine stands still.
const LONG: Duration = Duration::from_secs(30);

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let ttl = Duration::from_secs(300);
    Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, ClientIdentity::of_this_process().into()))
}

async fn take(driver: &RedisDriver, claim: &Arc<Claim>) -> Token {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Granted(grant) => grant.token,
        other => panic!("it is free: {other:?}"),
    }
}

/// One claim holds, another waits, and is told of its turn.
async fn hands_over(driver: &RedisDriver) {
    let (first, second) = (claim("handed over"), claim("handed over"));
    let token = take(driver, &first).await;
    let queued = driver.acquire(&second, Patience::Wait).await.unwrap().result;
    assert_eq!(queued, Acquisition::Queued { ahead: 1 });
    assert_eq!(driver.release(&first).await.unwrap(), Released::Removed);
    let next = tokio::time::timeout(LONG, driver.granted(&second)).await.expect("told").unwrap();
    assert!(next.token > token);
    let renewed = driver.renew_single(&second).await.unwrap();
    assert!(matches!(renewed, Renewal::Holds(grant) if grant.token == next.token));
    assert_eq!(driver.release(&second).await.unwrap(), Released::Removed);
}

async fn server() -> Server {
    Server::start(ServerKind::Redis).await.unwrap()
}

#[tokio::test]
async fn a_server_is_reached_over_tls_when_somebody_trusted_vouches_for_it() {
    let server = server().await;
    let tls = TestCertificates::begin(server.addr(), Clients::Anybody).await.unwrap();
    for host in ["127.0.0.1", "localhost"] {
        let (port, ca) = (tls.addr().port(), tls.authority());
        let url = format!("rediss://{host}:{port}/2?ca={}&timeout=30s", ca.display());
        hands_over(&RedisDriver::connect(&url).await.unwrap()).await;
    }
}

#[tokio::test]
async fn a_server_for_which_nobody_trusted_vouches_is_refused_for_good() {
    let server = server().await;
    let tls = TestCertificates::begin(server.addr(), Clients::Anybody).await.unwrap();
    let stranger = format!("rediss://{}?ca={}&timeout=30s", tls.addr(), tls.stranger().display());
    // Without a word about it the authorities of the system count, and ours is none of them.
    let system = format!("rediss://{}?timeout=30s", tls.addr());
    for url in [stranger, system] {
        let error = RedisDriver::connect(&url).await.unwrap_err();
        assert!(!error.is_retryable() && error.to_string().contains("certificate"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_asks_who_is_there_is_shown_a_certificate() {
    let server = server().await;
    let tls = TestCertificates::begin(server.addr(), Clients::WithCertificate).await.unwrap();
    let url = format!("rediss://{}?ca={}&timeout=30s", tls.addr(), tls.authority().display());
    RedisDriver::connect(&url).await.unwrap_err();
    let (cert, key) = tls.client();
    let url = format!("{url}&cert={}&key={}", cert.display(), key.display());
    hands_over(&RedisDriver::connect(&url).await.unwrap()).await;
}

/// As `docs/redis.md` says it.
const RIGHTS: &str = "~lockkit:* &lockkit:wake:* +@read +@write +@connection +eval +evalsha \
                      +publish +subscribe +info +time +wait";

#[tokio::test]
async fn a_user_with_the_rights_that_the_docs_name_can_do_everything_in_the_database_of_the_url() {
    let server = server().await;
    let mut set = vec!["ACL", "SETUSER", "app", "reset", "on", ">p@ss:w/rd"];
    set.extend(RIGHTS.split_whitespace());
    resp::ask(server.addr(), &set).await.unwrap();
    let url = format!("redis://app:p%40ss%3Aw%2Frd@{}/3?timeout=30s", server.addr());
    let driver = RedisDriver::connect(&url).await.unwrap();
    hands_over(&driver).await;
    let held = claim("held");
    let token = take(&driver, &held).await;
    assert!(matches!(driver.shorten(&held, LONG).await.unwrap(), Renewal::Holds(_)));
    let raised = Token::new(token.get() + 1).unwrap();
    assert!(matches!(driver.raise(&held, raised).await.unwrap(), Renewal::Holds(_)));
    assert!(matches!(driver.downgrade(&held).await.unwrap(), Renewal::Holds(_)));
    let request = ListRequest {
        namespace: Namespace::default(),
        space: None,
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    assert_eq!(driver.list(&request).await.unwrap().states.len(), 1);
    let by = ClientIdentity::of_this_process();
    let record = BreakRecord::from_parts(by, 0, None, true);
    let broken = driver.break_claim(&held.key, raised, BreakMode::Forced, &record).await;
    assert!(broken.unwrap());
    let at = RegisterKey { namespace: Namespace::default(), name: Name::new("r").unwrap() };
    let (value, write_id) = (b"1".to_vec(), WriteId::random());
    let store = Write {
        value: Some(value),
        expect: Precondition::Absent,
        token: Some(raised),
        write_id,
        ttl: None,
        repeated: false,
    };
    assert!(matches!(driver.write(&at, &store).await.unwrap().result, WriteResult::Stored(_)));
    assert!(driver.load(&at).await.unwrap().is_some());
    driver.raise_namespace_counter(&Namespace::default(), 1).await.unwrap();
    assert_eq!(driver.namespace_counter(&Namespace::default()).await.unwrap(), 1);
    driver.health().await.unwrap();
    // All of it went into the database of the URL.
    let RespReply::Number(in_first) = resp::ask(server.addr(), &["DBSIZE"]).await.unwrap() else {
        panic!("a number")
    };
    assert_eq!(in_first, 0);
    let log = resp::ask(server.addr(), &["ACL", "LOG"]).await.unwrap();
    assert_eq!(log, RespReply::Array(Vec::new()), "something was refused");
}

#[tokio::test]
async fn a_user_without_rights_is_a_lasting_error() {
    let server = server().await;
    let set = ["ACL", "SETUSER", "app", "reset", "on", ">secret", "+@connection"];
    resp::ask(server.addr(), &set).await.unwrap();
    let url = format!("redis://app:secret@{}?timeout=30s", server.addr());
    let error = RedisDriver::connect(&url).await.unwrap_err();
    assert!(!error.is_retryable() && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn the_users_own_client_and_connection_manager_are_used() {
    let server = server().await;
    let client = Client::open(server.url()).unwrap();
    let options = RedisOptions::default().timeout(LONG);
    hands_over(&options.clone().client(client.clone()).await.unwrap()).await;
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(2)
        .set_connection_timeout(Some(LONG))
        .set_response_timeout(Some(LONG));
    let manager = ConnectionManager::new_with_config(client.clone(), config).await.unwrap();
    hands_over(&options.connection_manager(manager, client).await.unwrap()).await;
}

#[tokio::test]
async fn the_users_own_clients_of_a_cluster_are_used() {
    let group = Group::start(Layout::RedisCluster).await.unwrap();
    let nodes = group.members().iter().map(|node| Client::open(node.url()).unwrap()).collect();
    let options = RedisOptions::default().timeout(LONG);
    hands_over(&options.cluster(nodes).await.unwrap()).await;
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_is_known_to_have_happened() {
    let server = server().await;
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let url = format!("{}?timeout=30s", server.url_at(proxy.addr()));
    let driver = RedisDriver::connect(&url).await.unwrap();
    let held = claim("held");
    take(&driver, &held).await;
    let mut strike = proxy.fault(ProxyFault::Cut, When::Answer(1));
    assert_eq!(driver.release(&held).await.unwrap(), Released::Removed);
    strike.struck().await;
    assert_eq!(driver.release(&held).await.unwrap(), Released::NoSuchLock);
}
