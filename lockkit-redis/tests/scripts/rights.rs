//! Users with fewer rights than lockkit needs. No right may be missing in the middle of a script: what
//! was written before it would stay half done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{
    Acquisition, BreakMode, ClaimEnd, LockDriver, Patience, Precondition, RegisterKey, Registers,
    Released, Renewal, SetLimit, Write, WriteId, WriteResult,
};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Error, Mode, Name, Namespace, Token};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Server, ServerKind};
use lockkit_redis::{RedisDriver, RedisOptions};

use super::{LONG, PERMIT, ask, claim, connect, granted, holds, named, queue, take};

/// Well below every lease: a claim that is granted within it was told, or polls.
const SOON: Duration = Duration::from_secs(10);

/// As `docs/redis.md` says it, in a database other than the first.
const RIGHTS: [&str; 11] = [
    "~lockkit:*",
    "&lockkit:wake:*",
    "+@read",
    "+@write",
    "+@connection",
    "+eval",
    "+evalsha",
    "+publish",
    "+subscribe",
    "+info",
    "+time",
];

async fn set_user(server: &Server, rights: &[&str]) {
    let mut words = vec!["ACL", "SETUSER", "app", "reset", "on", ">secret"];
    words.extend(rights);
    ask(server, &words).await;
}

async fn connect_as_user(server: &Server) -> Result<RedisDriver, Error> {
    let url = format!("redis://app:secret@{}/3", server.addr());
    RedisOptions::default().timeout(LONG).connect(&url).await
}

async fn server_with_user(rights: &[&str]) -> Server {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    set_user(&server, rights).await;
    server
}

/// How often the server has refused something to somebody.
async fn refusals(server: &Server) -> u64 {
    let RespReply::Array(entries) = ask(server, &["ACL", "LOG"]).await else { panic!("a log") };
    let count = |entry: &RespReply| match entry {
        RespReply::Array(fields) => match fields[1] {
            RespReply::Number(count) => count as u64,
            _ => panic!("{fields:?}"),
        },
        _ => panic!("{entry:?}"),
    };
    entries.iter().map(count).sum()
}

/// All that this server keeps in this database, but for when it ends.
async fn contents(server: &Server) -> BTreeMap<String, String> {
    let mut connection = resp::RespConnection::open(server.addr()).await.unwrap();
    connection.call(&["SELECT", "3"]).await.unwrap();
    let RespReply::Array(keys) = connection.call(&["KEYS", "*"]).await.unwrap() else {
        panic!("keys")
    };
    let mut contents = BTreeMap::new();
    for key in keys.iter().map(RespReply::text) {
        let read: &[&str] = match connection.call(&["TYPE", key]).await.unwrap().text() {
            "hash" => &["HGETALL", key],
            "zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
            _ => &["GET", key],
        };
        let mut value = connection.call(read).await.unwrap();
        if let RespReply::Array(items) = &mut value {
            let mut pairs: Vec<_> = items.chunks(2).map(|pair| format!("{pair:?}")).collect();
            pairs.sort(); // a hash has no order
            value = RespReply::Text(pairs.concat());
        }
        contents.insert(key.to_owned(), value.text().to_owned());
    }
    contents
}

async fn tries(driver: &RedisDriver, mode: Mode) -> Acquisition {
    let newcomer = claim(mode);
    driver.acquire(&newcomer, Patience::Try).await.unwrap().result
}

/// How many permits are held, or how many readers hold.
async fn weight_held(driver: &RedisDriver, mode: Mode) -> u32 {
    let state = driver.inspect(&claim(mode).key).await.unwrap();
    let weight = |mode| if let Mode::Permits { permits, .. } = mode { permits } else { 1 };
    state.holders().map(|it| weight(it.mode)).sum()
}

#[tokio::test]
async fn without_a_channel_readers_and_writers_exclude_each_other_and_their_turn_comes() {
    // What Redis 7 gives to a user about whose channels nothing is said.
    let server = server_with_user(&["~*", "+@all"]).await;
    let driver = connect_as_user(&server).await.unwrap();
    let [reader, last] = [claim(Mode::Shared), claim(Mode::Shared)];
    let writer = claim(Mode::Exclusive);
    take(&driver, &reader).await;
    queue(&driver, &writer).await;
    queue(&driver, &last).await;
    let begun = Instant::now();
    assert_eq!(driver.release(&reader).await.unwrap(), Released::Removed);
    granted(&driver, &writer).await;
    assert_eq!(tries(&driver, Mode::Shared).await, Acquisition::Busy);
    assert_eq!(weight_held(&driver, Mode::Shared).await, 1, "the writer alone");
    assert_eq!(driver.release(&writer).await.unwrap(), Released::Removed);
    granted(&driver, &last).await;
    assert!(begun.elapsed() < SOON, "nobody polled: {:?}", begun.elapsed());
    assert_eq!(tries(&driver, Mode::Exclusive).await, Acquisition::Busy);
    assert_eq!(driver.release(&last).await.unwrap(), Released::Removed);
}

#[tokio::test]
async fn without_a_channel_no_more_permits_are_held_than_there_are() {
    let server = server_with_user(&["~*", "+@all"]).await;
    let driver = connect_as_user(&server).await.unwrap();
    let permits = |permits| claim(Mode::Permits { permits, limit: 5 });
    let (first, second) = (permits(3), permits(2));
    take(&driver, &first).await;
    take(&driver, &second).await;
    let waiting = [permits(3), permits(3), permits(2)];
    for it in &waiting {
        queue(&driver, it).await;
    }
    let begun = Instant::now();
    for (leaves, comes) in [(&first, 0), (&second, 2), (&waiting[0], 1)] {
        assert_eq!(driver.release(leaves).await.unwrap(), Released::Removed);
        if comes != 2 {
            granted(&driver, &waiting[comes]).await;
        }
        let held = weight_held(&driver, first.mode).await;
        assert!(held <= 5, "{held} of 5 permits");
    }
    granted(&driver, &waiting[2]).await;
    assert!(begun.elapsed() < SOON, "nobody polled: {:?}", begun.elapsed());
    assert_eq!(tries(&driver, Mode::Permits { permits: 1, limit: 5 }).await, Acquisition::Busy);
}

#[tokio::test]
async fn a_client_that_may_not_publish_tries_it_once_a_connection_and_others_behind_it_poll() {
    let server = server_with_user(&["~lockkit:*", "+@all"]).await;
    let mute = connect_as_user(&server).await.unwrap();
    let others = format!("{}/3", server.url());
    let other = RedisOptions::default().timeout(LONG).connect(&others).await.unwrap();
    // Its own subscription may be refused, too; that is none of what is counted.
    ask(&server, &["ACL", "SETUSER", "app", "&lockkit:wake:*", "-publish"]).await;
    ask(&server, &["ACL", "LOG", "RESET"]).await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let (holder, waiter) = (claim(mode), claim(Mode::Exclusive));
        take(&mute, &holder).await;
        queue(&other, &waiter).await;
        let begun = Instant::now();
        mute.release(&holder).await.unwrap();
        granted(&other, &waiter).await;
        assert!(begun.elapsed() < SOON, "nobody told it, and it did not poll");
        other.release(&waiter).await.unwrap();
    }
    assert_eq!(refusals(&server).await, 0, "it knew since it connected");
}

#[tokio::test]
async fn who_waits_behind_a_client_that_may_publish_does_not_poll() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let driver = connect(&server).await;
    let (holder, waiter) = (claim(Mode::Exclusive), claim(Mode::Exclusive));
    take(&driver, &holder).await;
    queue(&driver, &waiter).await;
    let calls = async || {
        let stats = ask(&server, &["INFO", "commandstats"]).await.text().to_owned();
        let (_, rest) = stats.split_once("cmdstat_evalsha:calls=").unwrap();
        rest.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    // What it asks when its subscription begins has been asked.
    let mut before = calls().await;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = calls().await;
        if now == before {
            break;
        }
        assert!(now < before + 20, "it polls");
        before = now;
    }
}

#[tokio::test]
async fn a_right_to_publish_that_is_withdrawn_during_a_hold_changes_no_answer() {
    let server = server_with_user(&RIGHTS).await;
    let driver = connect_as_user(&server).await.unwrap();
    // A client of the same user: the driver's own claims need no message.
    let waiting = connect_as_user(&server).await.unwrap();
    let [holder, second, third] = [(); 3].map(|()| claim(Mode::Exclusive));
    take(&driver, &holder).await;
    queue(&waiting, &second).await;
    queue(&waiting, &third).await;
    ask(&server, &["ACL", "SETUSER", "app", "-publish"]).await;
    let state = driver.inspect(&holder.key).await.unwrap();
    assert_eq!(state.queue.len(), 3);
    assert_eq!(driver.release(&holder).await.unwrap(), Released::Removed);
    // At the latest its own renewal tells it.
    holds(&waiting, &second).await;
    let begun = Instant::now();
    assert!(matches!(waiting.renew_single(&third).await.unwrap(), Renewal::Waits { ahead: 1 }));
    assert_eq!(driver.release(&second).await.unwrap(), Released::Removed);
    granted(&waiting, &third).await;
    assert!(begun.elapsed() < SOON, "its list's last message was refused, and it did not poll");
    assert_eq!(refusals(&server).await, 1, "it was tried once");
    let by = ClientIdentity::of_this_process();
    let record = BreakRecord::from_parts(by, 0, None, true);
    let token = holds(&driver, &third).await;
    assert!(driver.break_claim(&third.key, token, BreakMode::Forced, &record).await.unwrap());
    let renewed = driver.renew_single(&third).await.unwrap();
    assert!(matches!(renewed, Renewal::Ended(ClaimEnd::Broken(_))), "{renewed:?}");
    assert!(matches!(write(&driver, "1").await.unwrap(), WriteResult::Stored(_)));
}

async fn write(driver: &RedisDriver, value: &str) -> Result<WriteResult, Error> {
    let at = RegisterKey { namespace: Namespace::default(), name: Name::new("r").unwrap() };
    let value = Some(value.as_bytes().to_vec());
    let (expect, write_id) = (Precondition::Anything, WriteId::random());
    let write = Write { expect, write_id, ..Write::of(value) };
    Ok(driver.write(&at, &write).await?.result)
}

#[tokio::test]
async fn a_command_that_the_user_may_not_call_is_named_when_it_connects() {
    for command in ["zadd", "pexpireat", "hdel", "hstrlen", "time"] {
        let server = server_with_user(&["~*", "&*", "+@all", &format!("-{command}")]).await;
        let error = connect_as_user(&server).await.unwrap_err();
        let named = error.to_string().contains(&command.to_uppercase());
        assert!(named && !error.is_retryable(), "{command}: {error}");
        assert!(contents(&server).await.is_empty(), "nothing was written");
    }
}

/// What the lack of a right comes to.
enum Lack {
    /// Operations fail, with one of these in the error, or are done in full.
    Refused(&'static [&'static str]),
    /// No operation on a lock fails.
    Served,
}

/// The same, for somebody who connects and for somebody who is connected.
fn lack(right: &str) -> (Lack, Lack) {
    use Lack::{Refused, Served};
    match right {
        "~lockkit:*" => (Refused(&["key"]), Refused(&["key"])),
        // Since Redis 7.2 the server itself names the one at which a script stopped.
        "+@read" => (Refused(&["get"]), Refused(&["get", "type"])),
        "+@write" => (Refused(&["set"]), Refused(&["set", "zrem", "pexpire", "del"])),
        "+evalsha" => (Refused(&["evalsha"]), Refused(&["evalsha"])),
        "+time" => (Refused(&["time"]), Refused(&["time"])),
        // Needed when a connection is made, or when the server does not know a script.
        "+@connection" => (Refused(&["select"]), Served),
        "+eval" => (Refused(&["eval"]), Served),
        "+info" => (Refused(&["info"]), Served),
        // Waiters poll.
        "&lockkit:wake:*" | "+publish" | "+subscribe" => (Served, Served),
        other => panic!("{other}"),
    }
}

/// Whether it is an error for good, and names the right.
fn is_named(error: &Error, one_of: &[&str]) -> bool {
    let told = error.to_string().to_lowercase();
    !error.is_retryable() && one_of.iter().any(|name| told.contains(name))
}

#[tokio::test]
async fn each_documented_right_is_needed_and_its_lack_is_told_to_who_connects() {
    for right in RIGHTS {
        let fewer: Vec<_> = RIGHTS.into_iter().filter(|it| *it != right).collect();
        let server = server_with_user(&fewer).await;
        let connected = connect_as_user(&server).await;
        match (lack(right).0, connected) {
            (Lack::Refused(one_of), Err(error)) => {
                assert!(is_named(&error, one_of), "without {right}: {error}");
                assert!(contents(&server).await.is_empty(), "without {right}");
            }
            (Lack::Served, Ok(driver)) => serves(&server, &driver, right).await,
            (_, connected) => panic!("without {right}: {connected:?}"),
        }
    }
}

/// A lock is handed over, and the server has refused something.
async fn serves(server: &Server, driver: &RedisDriver, without: &str) {
    let (first, second) = (named("served", Mode::Exclusive), named("served", Mode::Exclusive));
    take(driver, &first).await;
    queue(driver, &second).await;
    let begun = Instant::now();
    assert_eq!(driver.release(&first).await.unwrap(), Released::Removed, "without {without}");
    granted(driver, &second).await;
    assert!(begun.elapsed() < SOON, "without {without}: {:?}", begun.elapsed());
    driver.release(&second).await.unwrap();
    assert!(refusals(server).await > 0, "{without} is not needed at all");
}

/// The state of locks from which each operation of the matrix starts.
struct Scene {
    driver: RedisDriver,
    alone: Arc<Claim>,
    holder: Arc<Claim>,
    waiter: Arc<Claim>,
    permit: Arc<Claim>,
}

async fn scene(server: &Server) -> Scene {
    let driver = connect_as_user(server).await.unwrap();
    let alone = named("alone", Mode::Exclusive);
    let [holder, waiter] = [(); 2].map(|()| named("line", Mode::Exclusive));
    let permit = named("permits", PERMIT);
    for it in [&alone, &holder, &permit] {
        take(&driver, it).await;
    }
    queue(&driver, &waiter).await;
    write(&driver, "0").await.unwrap();
    // All scripts are known.
    let other = named("other", Mode::Shared);
    take(&driver, &other).await;
    renew(&driver, &other).await.unwrap();
    driver.raise(&other, Token::new(1).unwrap()).await.unwrap();
    driver.shorten(&other, LONG).await.unwrap();
    driver.downgrade(&other).await.unwrap();
    break_it(&driver, &other, 1).await.unwrap();
    driver.resize(&named("sized", PERMIT).key, SetLimit::To(2)).await.unwrap();
    driver.inspect(&other.key).await.unwrap();
    driver.namespace_counter(&Namespace::default()).await.unwrap();
    driver.release(&other).await.unwrap();
    Scene { driver, alone, holder, waiter, permit }
}

async fn renew(driver: &RedisDriver, claim: &Arc<Claim>) -> Result<(), Error> {
    driver.renew_single(claim).await.map(drop)
}

async fn break_it(driver: &RedisDriver, claim: &Arc<Claim>, token: u64) -> Result<(), Error> {
    let by = ClientIdentity::of_this_process();
    let record = BreakRecord::from_parts(by, 0, None, false);
    let token = Token::new(token).unwrap();
    driver.break_claim(&claim.key, token, BreakMode::Graceful, &record).await.map(drop)
}

/// Each operation, by itself.
async fn operate(scene: &Scene, operation: usize) -> Result<(), Error> {
    let Scene { driver, alone, holder, waiter, permit } = scene;
    match operation {
        0 => renew(driver, alone).await,
        1 => renew(driver, holder).await,
        2 => renew(driver, waiter).await,
        3 => driver.acquire(&named("line", Mode::Shared), Patience::Wait).await.map(drop),
        4 => driver.acquire(&named("free", Mode::Exclusive), Patience::Try).await.map(drop),
        5 => driver.raise(holder, Token::new(1 << 60).unwrap()).await.map(drop),
        6 => driver.shorten(alone, LONG).await.map(drop),
        7 => driver.downgrade(holder).await.map(drop),
        8 => driver.resize(&permit.key, SetLimit::To(3)).await.map(drop),
        9 => write(driver, "1").await.map(drop),
        10 => driver.inspect(&alone.key).await.map(drop),
        11 => driver.raise_namespace_counter(&Namespace::default(), 7).await,
        12 => driver.release(permit).await.map(drop),
        13 => driver.release(alone).await.map(drop),
        14 => driver.release(holder).await.map(drop),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_right_that_is_withdrawn_during_a_hold_is_named_and_leaves_nothing_half_done() {
    for right in RIGHTS {
        let server = server_with_user(&RIGHTS).await;
        let scene = scene(&server).await;
        let fewer: Vec<_> = RIGHTS.into_iter().filter(|it| *it != right).collect();
        set_user(&server, &fewer).await;
        for operation in 0..=14 {
            let before = contents(&server).await;
            match (operate(&scene, operation).await, lack(right).1) {
                (Err(error), Lack::Refused(one_of)) => {
                    assert!(is_named(&error, one_of), "{operation} without {right}: {error}");
                    assert_eq!(contents(&server).await, before, "{operation} without {right}");
                }
                (Err(error), Lack::Served) => panic!("{operation} without {right}: {error}"),
                (Ok(()), _) => {}
            }
        }
        set_user(&server, &RIGHTS).await;
        let Scene { driver, alone, holder, waiter, permit } = &scene;
        for it in [permit, alone, holder] {
            driver.release(it).await.unwrap();
        }
        granted(driver, waiter).await;
        driver.release(waiter).await.unwrap();
        let left = driver.inspect(&waiter.key).await.unwrap().queue;
        assert!(left.iter().all(|it| it.mode == Mode::Shared && it.holds()), "{right}: {left:?}");
    }
}
