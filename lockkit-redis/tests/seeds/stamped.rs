//! `SETNX` with a timestamp, and `GETSET` once that has passed: the pattern of Redis' first years.
//! The ends of leases are compared with the clocks of clients.

use std::time::{Duration, SystemTime};

use lockkit_lab::Server;
use lockkit_lab::raw::resp::{RespConnection, RespReply};

use crate::scene::{
    AFTERWARDS, LONG, ask, client, gets_in, hold_and_die, lockkit, overtake, server,
};

const LOCK: &str = "stamped";

/// A client, and by how much its clock is ahead of the right time.
struct Stamped {
    redis: RespConnection,
    ahead: Duration,
    /// When its lease ends, by its clock.
    ends: u128,
}

impl Stamped {
    async fn new(server: &Server, ahead: Duration) -> Self {
        Self { redis: client(server).await, ahead, ends: 0 }
    }

    fn now(&self) -> u128 {
        (SystemTime::now() + self.ahead).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
    }

    async fn take(&mut self, lease: Duration) -> bool {
        self.ends = self.now() + lease.as_millis() + 1;
        let mine = self.ends.to_string();
        if ask(&mut self.redis, &["SETNX", LOCK, &mine]).await == RespReply::Number(1) {
            return true;
        }
        let seen = ask(&mut self.redis, &["GET", LOCK]).await;
        if !self.has_passed(&seen) {
            return false;
        }
        let before = ask(&mut self.redis, &["GETSET", LOCK, &mine]).await;
        self.has_passed(&before)
    }

    fn has_passed(&self, stamp: &RespReply) -> bool {
        stamp.text().parse::<u128>().is_ok_and(|ends| ends < self.now())
    }

    /// As recommended: only while its own lease lasts, as far as it knows.
    async fn release(&mut self) {
        if self.now() < self.ends {
            ask(&mut self.redis, &["DEL", LOCK]).await;
        }
    }
}

const RIGHT: Duration = Duration::ZERO;

#[tokio::test]
async fn with_stamps_a_client_whose_clock_is_ahead_is_a_second_holder() {
    let server = server().await;
    let mut holder = Stamped::new(&server, RIGHT).await;
    let mut ahead = Stamped::new(&server, 2 * LONG).await;
    assert!(holder.take(LONG).await);
    assert!(ahead.take(LONG).await, "the lease has just begun, and is over by its clock");

    let (a, b) = (lockkit(&server).await, lockkit(&server).await);
    let guard = a.mutex(LOCK).lock().await.unwrap();
    assert!(gets_in(&b, LOCK).await.is_none(), "clocks of clients do not matter");
    assert!(guard.is_valid());
}

#[tokio::test]
async fn with_stamps_a_dead_holder_whose_clock_was_ahead_blocks_the_lock_beyond_its_lease() {
    let server = server().await;
    let mut dies = Stamped::new(&server, 2 * LONG).await;
    assert!(dies.take(LONG).await);
    drop(dies);
    let mut later = Stamped::new(&server, LONG + Duration::from_secs(1)).await;
    assert!(!later.take(LONG).await, "its lease is over by any clock but its own");

    let (a, b) = (lockkit(&server).await, lockkit(&server).await);
    hold_and_die(&a, LOCK).await;
    assert!(gets_in(&b, LOCK).await.is_none());
    server.move_clock(AFTERWARDS).unwrap();
    assert!(gets_in(&b, LOCK).await.is_some(), "the server's clock ends the lease");
}

#[tokio::test]
async fn with_stamps_a_former_holder_releases_the_lock_of_the_one_after_it() {
    let server = server().await;
    let mut former = Stamped::new(&server, RIGHT).await;
    let mut ahead = Stamped::new(&server, 2 * LONG).await;
    let mut third = Stamped::new(&server, RIGHT).await;
    assert!(former.take(LONG).await && ahead.take(LONG).await);
    former.release().await;
    assert!(third.take(LONG).await, "the key of the second holder was deleted");

    let (a, b) = (lockkit(&server).await, lockkit(&server).await);
    overtake(&a, &b, LOCK).await.does_no_harm(&a).await;
}
