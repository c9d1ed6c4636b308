//! Schedules that random ones meet too seldom; those for a rule are run with it and without it.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::{Acquisition, Grant, LockDriver, Patience, Renewal};
use lockkit_core::{Claim, ClientIdentity, Margin, Mode};
use tokio::time::{sleep, timeout};

use super::client::key;
use super::{PACE, TTL};
use crate::document::{SESSIONS, SessionDocument, decode, encode, session_key, shard_of};
use crate::rules::{Rules, StoreRule};
use crate::store::{ReadOutcome, Store, StoreFacts};
use crate::testing::{Faults, TestStore};
use crate::{StoreDriver, StoreOptions};

/// A holder, whose connection a test disturbs, and another client that waits for its first lock.
struct Pair {
    store: TestStore,
    holder: StoreDriver,
    holders_store: TestStore,
    other: StoreDriver,
    first: Arc<Claim>,
}

impl Pair {
    async fn new(rules: Rules) -> Self {
        let mut facts = StoreFacts::of("searched");
        (facts.pace, facts.min_ttl) = (PACE, TTL);
        let store = TestStore::new().with_facts(facts);
        let holders_store = store.client(1);
        let (holder, other) = (driver(&holders_store, rules).await, driver(&store, rules).await);
        let first = claim("first", TTL);
        granted(&holder, &first).await.expect("it is free");
        let waits = claim("first", TTL * 10);
        let queued = other.acquire(&waits, Patience::Wait).await.expect("it works").result;
        assert_eq!(queued, Acquisition::Queued { ahead: 1 });
        let waiter = other.clone();
        tokio::spawn(async move { waiter.granted(&waits).await });
        Self { store, holder, holders_store, other, first }
    }

    fn cut(&self) {
        self.holders_store.set_faults(Faults { is_partitioned: true, ..Faults::default() });
    }

    /// The holder's connection is cut; says whether the other client gets this lock before `until`.
    async fn is_taken_before(&self, lock: &str, until: Moment) -> bool {
        self.cut();
        let state = async {
            loop {
                let state = self.other.inspect(&key(lock)).await.expect("it works");
                let holder = state.holders().next().map(|holder| holder.ttl);
                if holder != Some(TTL) || granted(&self.other, &claim(lock, TTL)).await.is_some() {
                    return TokioClock.now();
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        let taken = timeout(TTL * 10, state).await.expect("a dead holder is followed");
        taken < until
    }
}

async fn driver(store: &TestStore, rules: Rules) -> StoreDriver {
    let mut options = StoreOptions::default().clock(TokioClock::shared());
    options.rules = rules;
    StoreDriver::connect(Arc::new(store.clone()), options).await.expect("the store works")
}

fn claim(lock: &str, ttl: Duration) -> Arc<Claim> {
    let me = Arc::new(ClientIdentity::unknown());
    Arc::new(Claim::new(key(lock), Mode::Exclusive, ttl, ttl, me))
}

async fn granted(driver: &StoreDriver, claim: &Arc<Claim>) -> Option<Grant> {
    match driver.acquire(claim, Patience::Try).await.expect("the store works").result {
        Acquisition::Granted(grant) => Some(grant),
        _ => None,
    }
}

/// Until when a client trusts a grant.
fn trusted(grant: &Grant) -> Moment {
    let start = grant.start.moment().expect("a grant names its beat");
    start.after(grant.ttl - Margin::default().of(grant.ttl))
}

/// A slow acquire under a beat that is a little old; then the holder is cut off.
async fn slow_acquire_lets_two_hold(rules: Rules) -> bool {
    let pair = Pair::new(rules).await;
    sleep(TTL / 8).await;
    let latency = TTL / 2;
    pair.holders_store.set_faults(Faults { latency, ..Faults::default() });
    let grant = granted(&pair.holder, &claim("second", TTL)).await.expect("it is free");
    pair.is_taken_before("second", trusted(&grant)).await
}

/// A copy of the holder's machine beats its session; the holder finds that beat, then it is cut off.
async fn copied_machine_lets_two_hold(rules: Rules) -> bool {
    let pair = Pair::new(rules).await;
    sleep(PACE).await;
    for session in pair.store.list(SESSIONS, None, 10).await.expect("it works") {
        let Ok(ReadOutcome::Document(found)) = pair.store.get(&session, None).await else {
            panic!("the session is there");
        };
        let document = decode("searched", "a session", &found.bytes);
        let mut document: SessionDocument = document.expect("it is a session");
        if document.ttl() == TTL {
            (document.write, document.beat) = ("copy".to_owned(), "copy".to_owned());
            pair.store.put_if(&session, &encode(&document), Some(&found.version)).await;
        }
    }
    sleep(TTL * 4 / 5).await;
    match pair.holder.renew_single(&pair.first).await.expect("it works") {
        Renewal::Holds(grant) => pair.is_taken_before("first", trusted(&grant)).await,
        _ => false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_counts_from_the_acquire_lets_two_hold() {
    assert!(!slow_acquire_lets_two_hold(Rules { without: None }).await);
    assert!(slow_acquire_lets_two_hold(Rules { without: Some(StoreRule::LeaseFromBeat) }).await);
}

#[tokio::test(start_paused = true)]
async fn a_beat_of_another_process_that_is_taken_for_ones_own_lets_two_hold() {
    assert!(!copied_machine_lets_two_hold(Rules { without: None }).await);
    assert!(copied_machine_lets_two_hold(Rules { without: Some(StoreRule::KnownBeat) }).await);
}

/// A session that was not used for long is removed while an acquire waits for its next beat.
#[tokio::test(start_paused = true)]
async fn an_acquire_does_not_enter_with_a_session_that_is_being_removed() {
    let mut facts = StoreFacts::of("searched");
    (facts.pace, facts.min_ttl) = (PACE, TTL);
    let store = TestStore::new().with_facts(facts);
    let holders_store = store.client(1);
    let (holder, other) = (
        driver(&holders_store, Rules { without: None }).await,
        driver(&store, Rules { without: None }).await,
    );
    let used = claim("used", TTL);
    granted(&holder, &used).await.expect("it is free");
    holder.release(&used).await.expect("it works");
    sleep(TTL * 3).await;
    let least_latency = TTL / 20;
    holders_store.set_faults(Faults { least_latency, ..Faults::default() });
    let held = claim("held", TTL);
    let removes = async {
        // The beat is on its way, and arrives before the removal.
        sleep(least_latency / 2).await;
        holder.inner.remove_unused_sessions(false).await;
    };
    let (grant, ()) = tokio::join!(granted(&holder, &held), removes);
    let until = trusted(&grant.expect("it is free"));
    while TokioClock.now() < until {
        assert!(granted(&other, &claim("held", TTL)).await.is_none(), "two hold");
        sleep(PACE).await;
    }
}

/// Two shards with a claim each of one session; a client that saw one of them ends and removes the session, and
/// a late copy of its document comes after that.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_removed_while_a_claim_of_it_is_left_and_comes_back_late_holds_nothing() {
    let pair = Pair::new(Rules { without: None }).await;
    let shards = pair.other.inner.context.shards;
    let first = shard_of(&key("first"), shards);
    let elsewhere =
        (0..).map(|n| format!("second {n}")).find(|n| shard_of(&key(n), shards) != first);
    let second = claim(&elsewhere.expect("there are several shards"), TTL);
    granted(&pair.holder, &second).await.expect("it is free");
    assert!(matches!(pair.holder.renew_single(&second).await, Ok(Renewal::Holds(_))));
    let own = pair.holder.inner.own.get(&second.id).expect("it is its own").session.id.clone();
    let session = session_key(&own);
    let document = async || match pair.store.get(&session, None).await {
        Ok(ReadOutcome::Document(found)) => Some(found.bytes),
        _ => None,
    };
    let living = document().await.expect("it lives");
    let remove = async || {
        while document().await.is_some() {
            sleep(TTL / 2).await;
            pair.other.inner.context.sweep(true).await.expect("the store works");
        }
    };
    pair.cut();
    timeout(TTL * 4, remove()).await.expect("it is removed");
    let is_left = || {
        let documents = pair.store.documents().into_iter();
        let mut shards = documents.filter(|(key, _)| key.starts_with("l/"));
        shards.any(|(_, document)| String::from_utf8_lossy(&document).contains(&own))
    };
    assert!(is_left(), "nobody looked at the other shard");
    pair.store.put_if(&session, &living, None).await;
    // A process that knows nothing of it takes the lock, but not before it has watched for a whole TTL.
    let next = driver(&pair.store, Rules { without: None }).await;
    let (taken, begun) = (claim(second.key.name.as_str(), TTL), TokioClock.now());
    while granted(&next, &taken).await.is_none() {
        sleep(PACE).await;
    }
    assert!(TokioClock.now().since(begun) >= TTL);
    pair.holders_store.set_faults(Faults::default());
    for lost in [&pair.first, &second] {
        let renewed = pair.holder.renew_single(lost).await;
        assert!(matches!(renewed, Ok(Renewal::Ended(_))), "{renewed:?}");
    }
    assert!(matches!(next.renew_single(&taken).await, Ok(Renewal::Holds(_))));
    timeout(TTL * 4, remove()).await.expect("it is removed again");
    assert!(!is_left());
}
