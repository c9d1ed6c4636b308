//! Drivers on paused time, and claims that are taken by them.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::TokioClock;
use lockkit_core::driver::{Acquisition, LockDriver, Patience};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
use lockkit_store::testing::TestStore;
use lockkit_store::{Store, StoreDriver, StoreOptions};

pub(crate) const TTL: Duration = Duration::from_secs(6);

pub(crate) fn options() -> StoreOptions {
    StoreOptions::default().clock(TokioClock::shared())
}

pub(crate) async fn connect(store: impl Store, options: StoreOptions) -> StoreDriver {
    StoreDriver::connect(Arc::new(store), options).await.expect("the store works")
}

pub(crate) async fn driver(store: &TestStore) -> StoreDriver {
    connect(store.clone(), options()).await
}

pub(crate) fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).expect("it is valid"));
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, TTL, TTL, me))
}

pub(crate) async fn attempt(
    driver: &StoreDriver,
    claim: &Arc<Claim>,
    patience: Patience,
) -> Acquisition {
    driver.acquire(claim, patience).await.expect("the store works").result
}

/// Waits for a claim that is queued, and renews it meanwhile.
pub(crate) async fn granted(driver: &StoreDriver, claim: &Arc<Claim>) {
    let renews = async {
        loop {
            tokio::time::sleep(claim.wait_ttl / 4).await;
            driver.renew_single(claim).await.expect("the store works");
        }
    };
    tokio::select! {
        granted = driver.granted(claim) => drop(granted.expect("its turn comes")),
        () = renews => unreachable!("it renews for ever"),
    }
}

/// The token of a claim that gets its lock at once.
pub(crate) async fn take(driver: &StoreDriver, claim: &Arc<Claim>) -> u64 {
    match attempt(driver, claim, Patience::Try).await {
        Acquisition::Granted(grant) => grant.token.get(),
        other => panic!("{other:?}"),
    }
}
