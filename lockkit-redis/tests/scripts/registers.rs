//! Registers: when the end of a ttl is told, and what a repeated write does.

use std::time::{Duration, Instant};

use lockkit_core::driver::{Precondition, RegisterKey, Registers, Write, WriteId, WriteResult};
use lockkit_core::{Name, Namespace};

use super::{LONG, start};

fn at(name: &str) -> RegisterKey {
    RegisterKey { namespace: Namespace::default(), name: Name::new(name).unwrap() }
}

#[tokio::test]
async fn the_end_of_a_values_ttl_is_told_when_it_comes() {
    let (_server, driver) = start().await;
    let ttl = Duration::from_millis(300);
    let store = Write {
        value: Some(vec![1]),
        expect: Precondition::Anything,
        token: None,
        write_id: WriteId::random(),
        ttl: Some(ttl),
        repeated: false,
    };
    let begun = Instant::now();
    let WriteResult::Stored(version) = driver.write(&at("a"), &store).await.unwrap().result else {
        panic!("nobody else writes")
    };
    let told = tokio::time::timeout(LONG, driver.changed(&at("a"), Some(version))).await;
    assert_eq!(told.expect("told").unwrap(), None);
    let took = begun.elapsed();
    // Without a word it asks every 10 s.
    assert!(took >= ttl && took < Duration::from_secs(5), "{took:?}");
}
