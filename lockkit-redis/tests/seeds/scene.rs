//! What the stories share: servers, clients, and a resource that looks at tokens. Decides nothing
//! about locks.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Guard, LockManager, Settings, Token};
use lockkit_lab::raw::resp::{RespConnection, RespReply};
use lockkit_lab::{Server, ServerKind, Shift};
use lockkit_redis::RedisDriver;

/// A lease that no story outlives.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Later than the end of any lease.
pub(crate) const AFTERWARDS: Shift = Shift::Ahead(Duration::from_secs(700));

/// A lease whose end a story waits for.
const SHORT: Duration = Duration::from_secs(2);

/// A server whose clock moves.
pub(crate) async fn server() -> Server {
    Server::start_with_clock(ServerKind::Redis).await.unwrap()
}

/// A client of the recipes.
pub(crate) async fn client(server: &Server) -> RespConnection {
    RespConnection::open(server.addr()).await.unwrap()
}

/// A client of lockkit.
pub(crate) async fn lockkit(server: &Server) -> LockManager {
    manager(Arc::new(RedisDriver::connect(&server.url()).await.unwrap()))
}

pub(crate) fn manager(driver: Arc<dyn LockDriver>) -> LockManager {
    LockManager::with(driver, Settings::default().ttl(LONG).wait_ttl(LONG)).unwrap()
}

/// What is answered, as soon as something is: machines that run tests stand still for seconds.
pub(crate) async fn answered<T>(
    mut ask: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    loop {
        match ask().await {
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

/// Whether somebody who does not wait gets the lock.
pub(crate) async fn gets_in(locks: &LockManager, name: &str) -> Option<Guard> {
    let lock = locks.mutex(name);
    answered(async || lock.try_lock().await).await.unwrap()
}

/// A holder of whom nobody hears again.
pub(crate) async fn hold_and_die(locks: &LockManager, name: &str) {
    std::mem::forget(locks.mutex(name).auto_renew(false).lock().await.unwrap());
}

/// What a recipe's command answered; none of them may fail.
pub(crate) async fn ask(redis: &mut RespConnection, words: &[&str]) -> RespReply {
    match redis.call(words).await.unwrap() {
        RespReply::Error(said) => panic!("{words:?}: {said}"),
        reply => reply,
    }
}

/// What the lock protects. It refuses a write with a token that is lower than one it has seen;
/// without a token it has nothing to go by.
#[derive(Debug, Default)]
pub(crate) struct Resource {
    highest: Option<Token>,
}

impl Resource {
    /// Whether the write was accepted.
    pub(crate) fn write(&mut self, token: Option<Token>) -> bool {
        if token.is_some() && token < self.highest {
            return false;
        }
        self.highest = self.highest.max(token);
        true
    }
}

/// A holder that stood still for longer than its lease, and who came after it.
pub(crate) struct Overtaken {
    pub(crate) paused: Guard,
    /// What the one that stood still had in its hands when it stopped.
    pub(crate) stale: Token,
    pub(crate) next: Guard,
}

/// `a` holds, stands still beyond the end of its lease, and `b`, which waited, holds.
pub(crate) async fn overtake(a: &LockManager, b: &LockManager, name: &str) -> Overtaken {
    let lock = a.mutex(name).ttl(SHORT).auto_renew(false);
    let (paused, stale) = loop {
        // On a machine that stands still itself, the lease may be over before it begins.
        match lock.lock().await.map(|guard| (guard.token(), guard)) {
            Ok((Ok(stale), paused)) => break (paused, stale),
            Ok((Err(Error::Lost { .. }), _)) | Err(Error::Lost { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    let next = b.mutex(name).lock().await.unwrap();
    Overtaken { paused, stale, next }
}

impl Overtaken {
    /// The one that stood still knows, is refused, and takes nothing from the one after it.
    pub(crate) async fn does_no_harm(self, others: &LockManager) {
        let mut resource = Resource::default();
        assert!(resource.write(Some(self.next.token().unwrap())));
        assert!(!self.paused.is_valid(), "its guard ended before the lock was handed on");
        assert!(!resource.write(Some(self.stale)), "what it had begun to write is refused");
        let name = self.next.name().as_str().to_owned();
        let released = self.paused.release().await;
        assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
        let verified = answered(async || self.next.verify().await).await;
        verified.expect("a release by another takes nothing away");
        assert!(gets_in(others, &name).await.is_none(), "nobody else gets in");
    }
}
