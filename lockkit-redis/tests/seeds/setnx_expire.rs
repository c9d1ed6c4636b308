//! `SETNX`, and `EXPIRE` in a second command; `DEL` to release.

use std::time::Duration;

use lockkit_lab::Shift;
use lockkit_lab::raw::resp::{RespConnection, RespReply};

use crate::scene::{
    AFTERWARDS, LONG, ask, client, gets_in, hold_and_die, lockkit, overtake, server,
};

const LOCK: &str = "setnx";
const YEAR: Duration = Duration::from_secs(365 * 86_400);

async fn set(redis: &mut RespConnection) -> bool {
    ask(redis, &["SETNX", LOCK, "locked"]).await == RespReply::Number(1)
}

async fn expire(redis: &mut RespConnection) {
    ask(redis, &["EXPIRE", LOCK, &LONG.as_secs().to_string()]).await;
}

async fn take(redis: &mut RespConnection) -> bool {
    let taken = set(redis).await;
    if taken {
        expire(redis).await;
    }
    taken
}

#[tokio::test]
async fn with_setnx_and_expire_a_holder_that_dies_between_the_two_holds_for_ever() {
    let server = server().await;
    let (mut dies, mut later) = (client(&server).await, client(&server).await);
    assert!(set(&mut dies).await);
    drop(dies);
    let (a, b) = (lockkit(&server).await, lockkit(&server).await);
    hold_and_die(&a, LOCK).await;

    server.move_clock(Shift::Ahead(YEAR)).unwrap();
    assert!(!take(&mut later).await, "a year later it is still held");
    assert_eq!(ask(&mut later, &["TTL", LOCK]).await, RespReply::Number(-1), "it has no end");
    let next = gets_in(&b, LOCK).await;
    assert!(next.is_some(), "a claim and its end are written in one step");
}

#[tokio::test]
async fn with_setnx_and_expire_a_former_holder_deletes_the_lock_of_the_one_after_it() {
    let server = server().await;
    let (mut former, mut second) = (client(&server).await, client(&server).await);
    let mut third = client(&server).await;
    assert!(take(&mut former).await);
    server.move_clock(AFTERWARDS).unwrap();
    assert!(take(&mut second).await);
    ask(&mut former, &["DEL", LOCK]).await;
    assert!(take(&mut third).await, "two hold");

    let (a, b) = (lockkit(&server).await, lockkit(&server).await);
    overtake(&a, &b, LOCK).await.does_no_harm(&a).await;
}
