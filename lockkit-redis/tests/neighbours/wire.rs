//! What is sent, and in how many round trips; what redis-py and Redisson would read.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{GateAttempt, GateRenewal, LockDriver};
use lockkit_core::{Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_lab::proxy::Protocol;
use lockkit_lab::raw::resp::{RespConnection, RespReply};
use lockkit_lab::{Proxy, Server, ServerKind};
use lockkit_redis::RedisDriver;

use super::{Place, STYLES, soon};

const TTL: Duration = Duration::from_secs(60);

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, TTL, TTL, identity))
}

/// Another neighbour's lock, as their libraries write it.
async fn theirs(place: &Place, ms: &str) {
    match place.style {
        "set-nx" => drop(place.ask(&["SET", &place.name, "a random value", "PX", ms]).await),
        _ => {
            place.ask(&["HSET", &place.name, "b1d7-1:44", "1"]).await;
            place.ask(&["PEXPIRE", &place.name, ms]).await;
        }
    }
}

#[tokio::test]
async fn a_lock_is_the_key_of_its_name_with_the_form_that_neighbours_know() {
    for style in STYLES {
        let place = Place::new(style).await;
        let locks = place.locks(TTL).await;
        let guard = locks.mutex(&place.name).lock().await.unwrap();
        let owner = guard.claim().gate_owner();
        match style {
            "set-nx" => {
                let value = place.ask(&["GET", &place.name]).await;
                assert_eq!(value.text(), format!("lockkit:{owner}"));
                assert!(!value.text().contains(&guard.claim().id.to_hex()), "it is a secret");
            }
            _ => {
                let RespReply::Array(fields) = place.ask(&["HGETALL", &place.name]).await else {
                    panic!("a hash")
                };
                let [field, count] = &fields[..] else { panic!("one field: {fields:?}") };
                assert_eq!(count.text(), "1");
                let (uuid, thread) = field.text().split_once(':').unwrap();
                assert_eq!((uuid.replace('-', ""), thread), (owner.clone(), "1"));
                assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
            }
        }
        let left = place.left().await;
        assert!(left > 50_000 && left <= 60_000, "{left}");
        guard.release().await.unwrap();
        assert_eq!(place.left().await, -2);
    }
}

#[tokio::test]
async fn a_gate_is_kept_and_given_back_only_by_its_owner_and_never_shortened_or_made_by_a_renewal()
{
    for style in STYLES {
        let place = Place::new(style).await;
        let driver = RedisDriver::connect(&place.url(style)).await.unwrap();
        let gate = driver.gate().unwrap();
        let (ours, other) = (claim(&place.name), claim(&place.name));
        // Nothing is made by a renewal.
        let kept = gate.keep(std::slice::from_ref(&ours)).await.unwrap();
        assert_eq!(kept[0].as_ref().unwrap(), &GateRenewal::NotFound);
        assert_eq!(place.left().await, -2);
        // Asked twice is like asked once, and lengthens.
        for _ in 0..2 {
            let taken = gate.take(&ours).await.unwrap();
            assert_eq!(taken, GateAttempt::Taken { ttl: TTL });
            assert!(place.left().await > 50_000);
            place.ask(&["PEXPIRE", &place.name, "5000"]).await;
        }
        let kept = gate.keep(std::slice::from_ref(&ours)).await.unwrap();
        assert_eq!(kept[0].as_ref().unwrap(), &GateRenewal::Kept { ttl: TTL });
        assert!(place.left().await > 50_000);
        place.ask(&["PEXPIRE", &place.name, "500000"]).await;
        gate.keep(std::slice::from_ref(&ours)).await.unwrap();
        gate.take(&ours).await.unwrap();
        assert!(place.left().await > 400_000, "nothing shortens it");
        // Another claim, as another process would.
        let GateAttempt::Busy { remaining } = gate.take(&other).await.unwrap() else {
            panic!("it is taken")
        };
        assert!(remaining.is_some_and(|left| left > TTL), "{remaining:?}");
        gate.give(&other).await.unwrap();
        let kept = gate.keep(std::slice::from_ref(&other)).await.unwrap();
        assert_eq!(kept[0].as_ref().unwrap(), &GateRenewal::NotFound);
        assert!(place.left().await > 400_000, "it is as it was");
        gate.give(&ours).await.unwrap();
        assert_eq!(place.left().await, -2);
        gate.give(&ours).await.unwrap();
        // A neighbour's, with an end and without.
        theirs(&place, "9000").await;
        let GateAttempt::Busy { remaining: Some(left) } = gate.take(&ours).await.unwrap() else {
            panic!("it is theirs")
        };
        assert!(left <= Duration::from_secs(9), "{left:?}");
        place.ask(&["PERSIST", &place.name]).await;
        let busy = gate.take(&ours).await.unwrap();
        assert_eq!(busy, GateAttempt::Busy { remaining: None });
        gate.give(&ours).await.unwrap();
        let kept = gate.keep(std::slice::from_ref(&ours)).await.unwrap();
        assert_eq!(kept[0].as_ref().unwrap(), &GateRenewal::NotFound);
        assert_eq!(place.left().await, -1, "theirs is as it was");
        place.ask(&["DEL", &place.name]).await;
    }
}

#[tokio::test]
async fn a_release_is_told_to_redissons_waiters_on_their_channel() {
    for name in ["plain", "{tag}:job"] {
        let place = Place::new("redisson").await;
        let name = format!("{name} {}", place.namespace);
        let channel = match name.contains('{') {
            true => format!("redisson_lock__channel:{name}"),
            false => format!("redisson_lock__channel:{{{name}}}"),
        };
        let mut waiting = RespConnection::open(place.server.addr()).await.unwrap();
        waiting.call(&["SUBSCRIBE", &channel]).await.unwrap();
        let locks = place.locks(TTL).await;
        let guard = locks.mutex(&name).lock().await.unwrap();
        guard.release().await.unwrap();
        let RespReply::Array(message) = soon("the message", waiting.read()).await.unwrap() else {
            panic!("a message")
        };
        assert_eq!((message[1].text(), message[2].text()), (&*channel, "0"));
    }
}

#[tokio::test]
async fn a_lock_of_the_other_library_is_an_error_that_names_it_and_stays() {
    for (style, other) in [("set-nx", "redisson"), ("redisson", "set-nx")] {
        let mut place = Place::new(other).await;
        theirs(&place, "60000").await;
        place.style = style;
        let locks = place.locks(TTL).await;
        let error = locks.mutex(&place.name).lock().await.unwrap_err();
        assert!(!error.is_retryable(), "{error}");
        let error = error.to_string();
        assert!(error.contains(&place.name) && error.contains(style), "{error}");
        assert!(place.left().await > 0);
        // Nothing is left that would have to end with its lease.
        let driver = RedisDriver::connect(&place.url(style)).await.unwrap();
        let ours = claim(&place.name);
        driver.gate().unwrap().give(&ours).await.unwrap();
        let kept = driver.gate().unwrap().keep(std::slice::from_ref(&ours)).await.unwrap();
        assert_eq!(kept[0].as_ref().unwrap(), &GateRenewal::NotFound);
        assert!(place.left().await > 0);
    }
}

#[tokio::test]
async fn names_of_lockkits_own_keys_are_refused() {
    let place = Place::new("set-nx").await;
    let locks = place.locks(TTL).await;
    let refused = locks.mutex("lockkit:format").lock().await.unwrap_err();
    assert!(matches!(refused, Error::Config(_)), "{refused:?}");
}

/// One more each for acquire, renewal and release; and none without neighbours.
#[tokio::test]
async fn a_gate_costs_one_round_trip_each_and_nothing_where_there_is_none() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    for (query, more) in [("?", 0), ("?neighbours=set-nx&", 1)] {
        let url = format!("{}{query}timeout=30s", server.url_at(proxy.addr()));
        let locks = LockManager::new(RedisDriver::connect(&url).await.unwrap());
        // Scripts are sent in full once, and the namespace is read.
        let guard = locks.mutex("a").lock().await.unwrap();
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
        let count = || proxy.counts().round_trips;
        let before = count();
        let guard = locks.mutex("a").lock().await.unwrap();
        let acquired = count();
        assert_eq!(acquired - before, 1 + more, "acquire {query}");
        guard.release().await.unwrap();
        assert_eq!(count() - acquired, 1 + more, "release {query}");
        locks.shutdown().await;
    }
}
