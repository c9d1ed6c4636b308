//! The registers of the memory driver, on tokio's paused clock.

use std::time::Duration;

use lockkit_core::driver::{
    Precondition, RegisterKey, Registers, Version, Write, WriteId, WriteResult,
};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{Error, Name, Namespace, Token};
use tokio::time::Instant;

const HOLD: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

fn register(name: &str) -> RegisterKey {
    RegisterKey { namespace: Namespace::default(), name: Name::new(name).unwrap() }
}

fn write(value: &str, expect: Precondition, token: Option<u64>) -> Write {
    Write {
        value: Some(value.into()),
        expect,
        token: token.and_then(Token::new),
        write_id: WriteId::random(),
        ttl: None,
        repeated: false,
    }
}

async fn stored(driver: &MemoryDriver, at: &RegisterKey, store: &Write) -> Version {
    match driver.write(at, store).await.unwrap().result {
        WriteResult::Stored(version) => version,
        other => panic!("not stored: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_register_takes_what_is_expected_refuses_old_tokens_and_knows_repeated_writes() {
    let driver = MemoryDriver::new();
    let at = register("r");
    assert_eq!(driver.load(&at).await.unwrap(), None);
    let first = write("one", Precondition::Absent, Some(5));
    let one = stored(&driver, &at, &first).await;
    assert_eq!(stored(&driver, &at, &first).await, one, "an answer got lost");
    let absent = write("two", Precondition::Absent, None);
    assert_eq!(driver.write(&at, &absent).await.unwrap().result, WriteResult::Conflict);
    let highest = Token::new(5).unwrap();
    let stale = write("two", Precondition::Absent, Some(4));
    let refused = driver.write(&at, &stale).await.unwrap().result;
    assert_eq!(refused, WriteResult::Stale { highest });
    let two = stored(&driver, &at, &write("two", Precondition::Version(one), Some(5))).await;
    let three = stored(&driver, &at, &write("three", Precondition::Anything, None)).await;
    assert!(one < two && two < three);
    let entry = driver.load(&at).await.unwrap().unwrap();
    assert_eq!((entry.value.as_slice(), entry.token), (&b"three"[..], Some(highest)));
    let mut delete =
        Write { expect: Precondition::Version(two), token: Some(highest), ..Write::of(None) };
    assert_eq!(driver.write(&at, &delete).await.unwrap().result, WriteResult::Conflict);
    delete.expect = Precondition::Version(three);
    let gone = driver.write(&at, &delete).await.unwrap().result;
    assert_eq!(driver.write(&at, &delete).await.unwrap().result, gone);
    assert_eq!(driver.load(&at).await.unwrap(), None);
    tokio::time::advance(Duration::from_secs(100_000)).await;
    let stale = write("four", Precondition::Absent, Some(4));
    let refused = driver.write(&at, &stale).await.unwrap().result;
    assert_eq!(refused, WriteResult::Stale { highest }, "tokens outlive values");
    assert!(stored(&driver, &at, &write("four", Precondition::Absent, Some(5))).await > three);
    let large = write(&"x".repeat(64 * 1024 + 1), Precondition::Anything, None);
    assert!(matches!(driver.write(&at, &large).await, Err(Error::Config(_))));
}

#[tokio::test(start_paused = true)]
async fn a_register_s_change_is_pushed_and_none_that_came_before_is_missed() {
    let driver = MemoryDriver::new();
    let at = register("r");
    let watch = |after| {
        let (driver, at) = (driver.clone(), at.clone());
        tokio::spawn(async move { Registers::changed(&driver, &at, after).await.unwrap() })
    };
    let watching = watch(None);
    tokio::task::yield_now().await;
    assert!(!watching.is_finished());
    let mut store = write("one", Precondition::Anything, None);
    store.ttl = Some(HOLD);
    let one = stored(&driver, &at, &store).await;
    assert_eq!(watching.await.unwrap().unwrap().version, one);
    assert_eq!(watch(None).await.unwrap().unwrap().version, one);
    let begun = Instant::now();
    assert_eq!(watch(Some(one)).await.unwrap(), None, "its time is over");
    assert!(begun.elapsed() >= HOLD && begun.elapsed() < HOLD + 5 * MS);
    let two = stored(&driver, &at, &write("two", Precondition::Absent, None)).await;
    assert!(two > one);
    let watching = watch(Some(two));
    tokio::task::yield_now().await;
    let delete = Write::of(None);
    driver.write(&at, &delete).await.unwrap();
    assert_eq!(watching.await.unwrap(), None);
}
