//! Steps that trials about faults share: a holder and one who waits, tokens that must grow, and
//! what must be true when the fault is over. They stage nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Guard, LockManager, Token};
use tokio::task::JoinHandle;

use super::NotApplicable;
use crate::proxy::Proxy;
use lockkit_conformance::context::{CaseContext, PATIENCE};

/// What is kept under this fault; not applicable where it cannot happen.
pub(super) fn guarantee(context: &CaseContext, fault: Fault) -> Result<Guarantee, NotApplicable> {
    match context.capabilities().guarantee(fault) {
        Guarantee::Impossible => {
            NotApplicable::because("the table of faults: it cannot happen here")
        }
        guarantee => Ok(guarantee),
    }
}

/// The tokens of one lock's holders, in the order in which they held.
#[derive(Debug)]
pub(super) struct Tokens {
    highest: Option<Token>,
    kept: bool,
}

impl Tokens {
    pub(super) fn new(guarantee: Guarantee) -> Self {
        Self { highest: None, kept: guarantee >= Guarantee::Tokens }
    }

    /// Notes the token of the next holder, which must be greater where tokens are kept.
    pub(super) fn next(&mut self, guard: &Guard, what: &str) -> Token {
        let token = guard.token().unwrap_or_else(|e| panic!("{what}: a new guard holds: {e}"));
        let grows = self.highest < Some(token);
        assert!(grows || !self.kept, "{what}: {token} after {:?}", self.highest);
        self.highest = self.highest.max(Some(token));
        token
    }
}

/// A lock that is held when a fault begins, and how long its lease would last without any news.
pub(super) struct Held {
    token: Token,
    remaining: Duration,
    since: Instant,
}

impl Held {
    pub(super) fn by(guard: &Guard, token: Token) -> Self {
        Self { token, remaining: guard.remaining(), since: Instant::now() }
    }

    /// The fault must not have cost it: it is still held, under the same token, and no other claim
    /// has it; unless the fault lasted longer than the lease, as on a machine that stands still.
    pub(super) fn still(&self, verified: &Result<Token, Error>, others_wait: bool) {
        match verified {
            Ok(token) => {
                assert_eq!(*token, self.token, "it is held still");
                assert!(others_wait, "two hold");
            }
            Err(e) => {
                let over = e.loss().is_some() && self.since.elapsed() >= self.remaining;
                assert!(over, "it should be held still, for {:?}: {e}", self.remaining);
            }
        }
    }
}

/// Starts to wait for a lock, and returns once it is queued.
pub(super) async fn wait_in_line(
    context: &CaseContext,
    manager: &LockManager,
    name: &'static str,
) -> JoinHandle<Result<Guard, Error>> {
    let mutex = manager.mutex(name);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    context.waiters(&context.driver().await, &context.key(name), 1).await;
    waiting
}

/// The guard of who waited, once it has its turn. If exclusion is kept, the holder before must
/// know by then that it does not.
pub(super) async fn its_turn(
    context: &CaseContext,
    waiting: JoinHandle<Result<Guard, Error>>,
    limit: Duration,
    before: Option<(&Guard, Guarantee)>,
) -> Guard {
    let guard = context.within(limit, "the one who waits gets its turn", waiting).await;
    if let Some((old, Guarantee::All)) = before {
        let left = old.remaining();
        assert!(!old.is_valid(), "two hold: {left:?} are left to the guard before");
    }
    let guard = guard.expect("no panic");
    guard.unwrap_or_else(|e| panic!("a wait outlasts the fault, but not here: {e}"))
}

/// Asks until the answer is not an error that may pass.
pub(super) async fn answered<T, F: Future<Output = Result<T, Error>>>(
    context: &CaseContext,
    what: &str,
    mut ask: impl FnMut() -> F,
) -> Result<T, Error> {
    let asking = async {
        loop {
            match ask().await {
                Err(e) if e.is_retryable() => tokio::time::sleep(Duration::from_millis(50)).await,
                answer => return answer,
            }
        }
    };
    context.within(PATIENCE, what, asking).await
}

/// When a fault is over: within `limit` nothing is left, the lock works for all these managers,
/// tokens grow where they are kept, and nothing is left behind that either.
pub(super) async fn works_again(
    context: &CaseContext,
    managers: &[&LockManager],
    name: &str,
    tokens: &mut Tokens,
    limit: Duration,
) {
    let driver = answered(context, "a new driver connects", || context.harness().driver()).await;
    let driver = driver.unwrap_or_else(|e| panic!("a new driver connects afterwards: {e}"));
    nothing_left(context, &driver, limit).await;
    for manager in managers {
        let guard = context.within(limit, "the lock works again", manager.mutex(name).lock()).await;
        let guard = guard.unwrap_or_else(|e| panic!("the lock works again: {e}"));
        tokens.next(&guard, "afterwards");
        drop(guard);
        nothing_left(context, &driver, PATIENCE).await;
    }
}

/// Returns once no claim is in any queue.
pub(super) async fn nothing_left(
    context: &CaseContext,
    driver: &Arc<dyn LockDriver>,
    limit: Duration,
) {
    let seen = std::sync::Mutex::new(String::new());
    let looking = async {
        loop {
            match lockkit_conformance::listing::whole(driver, context.namespace(), None, "", 500)
                .await
            {
                Ok(states) if states.iter().all(|s| s.is_free()) => return,
                Ok(states) => *seen.lock().unwrap() = format!("{:?}", states[0].queue),
                Err(e) if e.is_retryable() => *seen.lock().unwrap() = e.to_string(),
                Err(e) => panic!("locks can be listed: {e}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(limit, looking).await.is_err() {
        panic!("something is left after {limit:?}: {}", seen.lock().unwrap());
    }
}

/// Returns once nothing more passes the proxy: what a driver says when it begins has been said.
pub(super) async fn settled(proxy: &Proxy) {
    let quiet = Duration::from_millis(150);
    let mut before = proxy.counts();
    for _ in 0..100 {
        tokio::time::sleep(quiet).await;
        let now = proxy.counts();
        if [now.requests, now.answers, now.pushes]
            == [before.requests, before.answers, before.pushes]
        {
            return;
        }
        before = now;
    }
}
