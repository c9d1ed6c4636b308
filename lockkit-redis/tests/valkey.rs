//! Valkey, a single server: the families of cases that what differs from Redis could break. Each case
//! runs beside the others of its family, in a namespace of its own.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkit_conformance::run::{case, runtime};
use lockkit_conformance::{CASES, Harness, Outcome, Time};
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_lab::{Server, missing_valkey};
use lockkit_redis::RedisDriver;

struct Valkey(Server);

#[async_trait]
impl Harness for Valkey {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let url = format!("{}?timeout=30s", self.0.url());
        Ok(Arc::new(RedisDriver::connect(&url).await?))
    }
}

async fn passes(family: &str) {
    if let Some(why) = missing_valkey() {
        eprintln!("skipped: {why}");
        return;
    }
    let server = Arc::new(Valkey(Server::start_valkey().await.unwrap()));
    let driver = server.driver().await.unwrap();
    let served = driver.health().await.unwrap().server;
    assert!(served.starts_with("Valkey "), "{served}");
    let cases = CASES.iter().filter(|it| it.group == family);
    let reports = join_all(cases.map(|it| case(server.clone(), it))).await;
    assert!(!reports.is_empty(), "{family} has cases");
    let failed = reports.iter().filter(|it| matches!(it.outcome, Outcome::Failed(_)));
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

macro_rules! families {
    ($($name:ident $family:ident)*) => {
        $(
            #[test]
            fn $name() {
                runtime(Time::Real).block_on(passes(stringify!($family)));
            }
        )*
    };
}

families! {
    exclusion_on_valkey exclusion
    order_on_valkey order
    modes_on_valkey modes
    resize_on_valkey resize
    lease_on_valkey lease
    queue_on_valkey queue
    batch_on_valkey batch
    loss_on_valkey loss
    release_on_valkey release
    token_on_valkey token
    cancel_on_valkey cancel
    names_on_valkey names
    inspect_on_valkey inspect
    register_on_valkey register
    robust_on_valkey robust
    slots_on_valkey slots
    stay_on_valkey stay
}
