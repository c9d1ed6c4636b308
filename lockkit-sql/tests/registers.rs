//! Registers of the SQLite driver.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use lockkit_core::Token;
use lockkit_core::driver::{
    LockDriver, Precondition, Registers, Version, Write, WriteId, WriteResult,
};
use support::*;

fn store(value: &[u8], expect: Precondition, token: Option<u64>) -> Write {
    Write {
        value: Some(value.to_vec()),
        expect,
        token: token.and_then(Token::new),
        write_id: WriteId::random(),
        ttl: None,
        repeated: false,
    }
}

fn stored(outcome: WriteResult) -> Version {
    match outcome {
        WriteResult::Stored(version) => version,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_value_is_loaded_as_it_was_stored_and_versions_grow_across_deletion() {
    let folder = folder();
    let d = open(&folder).await;
    let r = d.registers().unwrap();
    let at = register("a");
    assert_eq!(r.load(&at).await.unwrap(), None);
    let big: Vec<u8> = (0..65_536u32).map(|i| (i % 251) as u8).collect();
    let first = store(&big, Precondition::Absent, None);
    let v1 = stored(r.write(&at, &first).await.unwrap().result);
    assert_eq!(stored(r.write(&at, &first).await.unwrap().result), v1, "repeated");
    let entry = r.load(&at).await.unwrap().unwrap();
    assert_eq!((entry.value, entry.version, entry.token), (big, v1, None));
    let again = store(b"x", Precondition::Absent, None);
    assert_eq!(r.write(&at, &again).await.unwrap().result, WriteResult::Conflict);
    let empty = store(b"", Precondition::Version(v1), None);
    let v2 = stored(r.write(&at, &empty).await.unwrap().result);
    assert_eq!(r.load(&at).await.unwrap().unwrap().value, b"");
    let delete = Write { expect: Precondition::Version(v2), ..Write::of(None) };
    let v3 = stored(r.write(&at, &delete).await.unwrap().result);
    assert_eq!(stored(r.write(&at, &delete).await.unwrap().result), v3);
    assert_eq!(r.load(&at).await.unwrap(), None);
    let gone = store(b"x", Precondition::Version(v2), None);
    assert_eq!(r.write(&at, &gone).await.unwrap().result, WriteResult::Conflict);
    let v4 = stored(r.write(&at, &store(b"y", Precondition::Absent, None)).await.unwrap().result);
    assert!(v1 < v2 && v2 < v3 && v3 < v4);
}

#[tokio::test]
async fn an_older_token_is_refused_also_after_deletion_and_reopening() {
    let folder = folder();
    let d = open(&folder).await;
    let at = register("a");
    let r = d.registers().unwrap();
    stored(r.write(&at, &store(b"1", Precondition::Anything, Some(7))).await.unwrap().result);
    stored(r.write(&at, &store(b"2", Precondition::Anything, Some(7))).await.unwrap().result);
    stored(r.write(&at, &store(b"3", Precondition::Anything, None)).await.unwrap().result);
    let stale = WriteResult::Stale { highest: Token::new(7).unwrap() };
    let old = store(b"4", Precondition::Anything, Some(6));
    assert_eq!(r.write(&at, &old).await.unwrap().result, stale);
    let delete = Write { token: Token::new(7), ..Write::of(None) };
    stored(r.write(&at, &delete).await.unwrap().result);
    d.close().await;
    let again = open(&folder).await;
    let r = again.registers().unwrap();
    assert_eq!(r.write(&at, &old).await.unwrap().result, stale);
    assert_eq!(r.load(&at).await.unwrap(), None);
}

#[tokio::test]
async fn of_sixteen_racing_writers_one_wins() {
    let folder = folder();
    let d = open(&folder).await;
    let at = register("a");
    let v = stored(d.write(&at, &store(b"0", Precondition::Absent, None)).await.unwrap().result);
    let races =
        (0..16u8).map(|i| {
            let (d, at) = (d.clone(), at.clone());
            async move {
                d.write(&at, &store(&[i], Precondition::Version(v), None)).await.unwrap().result
            }
        });
    let outcomes = futures_util::future::join_all(races).await;
    let won = outcomes.iter().filter(|o| matches!(o, WriteResult::Stored(_)));
    assert_eq!(won.count(), 1, "{outcomes:?}");
}

#[tokio::test]
async fn a_change_is_seen_here_and_elsewhere_and_one_before_the_question_is_not_missed() {
    let folder = folder();
    let (a, b) = (open(&folder).await, open(&folder).await);
    let at = register("a");
    let v1 = stored(a.write(&at, &store(b"1", Precondition::Absent, None)).await.unwrap().result);
    let seen = Registers::changed(&b, &at, None).await.unwrap().unwrap();
    assert_eq!(seen.version, v1);
    let write = store(b"2", Precondition::Anything, None);
    let (seen, done) = tokio::join!(Registers::changed(&b, &at, Some(v1)), a.write(&at, &write));
    assert_eq!(seen.unwrap().unwrap().version, stored(done.unwrap().result));
}

#[tokio::test]
async fn a_value_with_a_ttl_ends_by_itself() {
    let folder = folder();
    let clock = Hand::new();
    let d = open_at(&folder, &clock, "boot").await;
    let at = register("a");
    let mut write = store(b"1", Precondition::Absent, Some(3));
    write.ttl = Some(Duration::from_secs(5));
    let v1 = stored(d.write(&at, &write).await.unwrap().result);
    clock.forward(Duration::from_secs(5));
    assert_eq!(d.load(&at).await.unwrap(), None);
    let old = store(b"2", Precondition::Absent, Some(2));
    assert!(matches!(d.write(&at, &old).await.unwrap().result, WriteResult::Stale { .. }));
    let v2 =
        stored(d.write(&at, &store(b"2", Precondition::Absent, Some(3))).await.unwrap().result);
    assert!(v2 > v1);
}

/// A write that may have been applied once is not applied again over what others wrote since.
#[tokio::test]
async fn a_repeated_write_never_lands_over_a_later_one() {
    let folder = folder();
    let d = open(&folder).await;
    let at = register("a");
    let anybody = || store(b"theirs", Precondition::Anything, None);
    let delete = || Write::of(None);
    let mut first = store(b"mine", Precondition::Absent, None);
    stored(d.write(&at, &first).await.unwrap().result);
    stored(d.write(&at, &delete()).await.unwrap().result);
    first.repeated = true;
    let again = d.write(&at, &first).await.unwrap();
    assert_eq!((again.result, again.ambiguous), (WriteResult::Conflict, 0));
    assert_eq!(d.load(&at).await.unwrap(), None, "the deletion stays");

    let mut fenced = store(b"mine", Precondition::Anything, Some(7));
    stored(d.write(&at, &fenced).await.unwrap().result);
    let later = stored(d.write(&at, &anybody()).await.unwrap().result);
    fenced.repeated = true;
    assert_eq!(d.write(&at, &fenced).await.unwrap().result, WriteResult::Conflict);
    assert_eq!(d.load(&at).await.unwrap().unwrap().version, later);

    // One that cannot have been applied is: its token is news, its version is still there, its name
    // was never written.
    let repeated = |name: &str, expect, token| {
        let (d, at) = (d.clone(), register(name));
        let write = Write { repeated: true, ..store(b"mine", expect, token) };
        async move { stored(d.write(&at, &write).await.unwrap().result) }
    };
    repeated("a", Precondition::Anything, Some(8)).await;
    let theirs = stored(d.write(&at, &anybody()).await.unwrap().result);
    repeated("a", Precondition::Version(theirs), None).await;
    repeated("b", Precondition::Absent, None).await;
}
