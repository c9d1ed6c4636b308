//! What the scripts do where the server is not as usual: a clock without a battery, memory that is
//! full, keys that are gone, older or not lockkit's, rights that are missing; and what leases they give in lists in which somebody waits or shares.

mod clocks;
mod foreign;
mod full_memory;
mod leases;
mod lost_keys;
mod old_data;
mod registers;
mod rights;

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, Grant, LockDriver, Patience, Renewal};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Token};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Server, ServerKind};
use lockkit_redis::{RedisDriver, RedisOptions};

/// Longer than any machine stands still.
const LONG: Duration = Duration::from_secs(60);

const PERMIT: Mode = Mode::Permits { permits: 1, limit: 2 };

fn claim(mode: Mode) -> Arc<Claim> {
    with_ttls(mode, LONG, LONG)
}

fn named(name: &str, mode: Mode) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), mode.space(), Name::new(name).unwrap());
    Arc::new(Claim::new(key, mode, LONG, LONG, ClientIdentity::of_this_process().into()))
}

fn with_ttls(mode: Mode, hold: Duration, wait: Duration) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), mode.space(), Name::new("a").unwrap());
    Arc::new(Claim::new(key, mode, hold, wait, ClientIdentity::of_this_process().into()))
}

async fn start() -> (Server, RedisDriver) {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let driver = connect(&server).await;
    (server, driver)
}

async fn connect(server: &Server) -> RedisDriver {
    RedisOptions::default().timeout(LONG).connect(&server.url()).await.unwrap()
}

async fn ask(server: &Server, words: &[&str]) -> RespReply {
    resp::ask(server.addr(), words).await.unwrap()
}

async fn take(driver: &RedisDriver, claim: &Arc<Claim>) -> Token {
    match driver.acquire(claim, Patience::Try).await.unwrap().result {
        Acquisition::Granted(grant) => grant.token,
        other => panic!("it is free: {other:?}"),
    }
}

async fn queue(driver: &RedisDriver, claim: &Arc<Claim>) {
    let answer = driver.acquire(claim, Patience::Wait).await.unwrap().result;
    assert!(matches!(answer, Acquisition::Queued { .. }), "{answer:?}");
}

async fn granted(driver: &RedisDriver, claim: &Arc<Claim>) -> Grant {
    tokio::time::timeout(LONG, driver.granted(claim)).await.expect("its turn came").unwrap()
}

async fn holds(driver: &RedisDriver, claim: &Arc<Claim>) -> Token {
    match driver.renew_single(claim).await.unwrap() {
        Renewal::Holds(grant) => grant.token,
        other => panic!("it holds: {other:?}"),
    }
}

async fn waits(driver: &RedisDriver, claim: &Arc<Claim>) {
    let renewed = driver.renew_single(claim).await.unwrap();
    assert!(matches!(renewed, Renewal::Waits { .. }), "{renewed:?}");
}
