//! Batches on database servers. The suite has what any driver shows; here is what is particular:
//! operations that a few statements take all at once, beside those that go one by one; rows that another
//! client has locked.

#[macro_use]
mod either;
mod rows;
mod scene;
#[path = "../submitting/mod.rs"]
mod submitting;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use lockkit_core::driver::{Acquisition, Attempted, LockDriver, Patience, Released, Renewal};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace, Settings, Space,
};
use lockkit_lab::Kind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use scene::{LONG, Scene};
use submitting::*;
use tokio::time::timeout;

on_either_server! {
    names_that_are_free_and_names_that_are_not_travel_in_one_round_trip,
    a_lock_that_is_given_back_in_a_batch_may_be_taken_in_it,
    a_row_that_somebody_has_locked_holds_up_its_own_step_alone,
    a_step_that_waits_for_a_row_for_a_moment_gets_its_lock,
    a_release_by_itself_waits_until_the_row_of_its_lock_is_free,
    an_acquire_by_itself_waits_until_the_row_of_its_lock_is_free,
    an_acquire_is_not_sent_again_once_its_waiting_lease_is_over,
    a_step_that_the_table_does_not_take_leaves_no_trace_of_its_batch,
    two_processes_that_carry_batches_of_the_same_names_never_fail,
    random_batches_answer_as_their_steps_would_one_by_one,
    a_lock_and_a_semaphore_of_one_name_travel_together,
    a_thousand_free_names_of_a_multi_lock_travel_in_batches,
}

fn claim_of(name: &str, mode: Mode, note: Option<String>) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), mode.space(), Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    let mut claim = Claim::new(key, mode, LONG, LONG, identity);
    claim.note = note.map(Arc::from);
    Arc::new(claim)
}

fn claim(name: &str) -> Arc<Claim> {
    claim_of(name, Mode::Exclusive, None)
}

fn token(reply: &Outcome) -> i64 {
    match reply {
        Outcome::Acquired(Acquisition::Granted(grant)) => grant.token.as_i64(),
        other => panic!("it is free, and yet: {other:?}"),
    }
}

async fn names_that_are_free_and_names_that_are_not_travel_in_one_round_trip(scene: Scene) {
    scene.warm().await;
    let mut admin = scene.admin().await;
    let names: Vec<_> = (0..40).map(|i| format!("it's {i} \\ %")).collect();
    let mut tokens = vec![0; names.len()];
    // The first time they are new, then they are known, then others have had them in between.
    for round in 0..4 {
        let note = (round == 2).then(|| "it's".to_owned());
        let claims: Vec<_> =
            names.iter().map(|name| claim_of(name, Mode::Exclusive, note.clone())).collect();
        if round == 3 {
            assert_eq!(admin.run(scene.words.take_the_sevens).await, 4);
        }
        let replies = scene.submitted(&claims.iter().map(try_it).collect::<Vec<_>>()).await;
        for (at, reply) in replies.iter().enumerate() {
            if round == 3 && names[at].contains('7') {
                assert_eq!(*reply, Outcome::Acquired(Acquisition::Busy), "round {round}, {at}");
                continue;
            }
            let token = token(reply);
            assert!(token > tokens[at], "round {round}: {token} comes after {}", tokens[at]);
            tokens[at] = token;
            let state = scene.driver.inspect(&claims[at].key).await.unwrap();
            assert_eq!(state.queue.len(), 1);
            assert_eq!(state.queue[0].token.as_i64(), token);
            assert_eq!(state.queue[0].note.as_deref(), note.as_deref());
        }
        if round < 3 {
            let replies = scene.submitted(&claims.iter().map(release).collect::<Vec<_>>()).await;
            assert!(replies.iter().all(|reply| *reply == REMOVED), "round {round}: {replies:?}");
        }
    }
}

async fn a_lock_that_is_given_back_in_a_batch_may_be_taken_in_it(scene: Scene) {
    scene.warm().await;
    let mut last = 0;
    let mut holder = claim("a");
    let beside = claim("b");
    scene.submitted(&[try_it(&holder), try_it(&beside)]).await;
    for _ in 0..3 {
        let next = claim("a");
        let replies = scene.submitted(&[release(&holder), try_it(&next)]).await;
        assert_eq!(replies[0], REMOVED);
        assert!(token(&replies[1]) > last);
        (last, holder) = (token(&replies[1]), next);
    }
    // Several of one lock keep their order.
    let line = [claim("a"), claim("a"), claim("a")];
    let waits: Vec<_> = [release(&holder)].into_iter().chain(line.iter().map(wait)).collect();
    let replies = scene.submitted(&waits).await;
    assert!(token(&replies[1]) > last);
    assert_eq!(replies[2], Outcome::Acquired(Acquisition::Queued { ahead: 1 }));
    assert_eq!(replies[3], Outcome::Acquired(Acquisition::Queued { ahead: 2 }));
}

/// The one waits and says that it could not; the others are carried out, and are told soon.
async fn a_row_that_somebody_has_locked_holds_up_its_own_step_alone(scene: Scene) {
    scene.warm().await;
    let mut admin = scene.admin().await;
    for round in 0..2 {
        let names: Vec<_> = (0..10).map(|i| format!("{i}")).collect();
        let make = |name: &String| claim(name);
        if round == 0 {
            // Known to be free, or new.
            let known: Vec<_> = names[..8].iter().map(make).collect();
            scene.submitted(&known.iter().map(try_it).collect::<Vec<_>>()).await;
            scene.submitted(&known.iter().map(release).collect::<Vec<_>>()).await;
        }
        admin.run(scene.words.begin).await;
        for lock in scene.words.lock_rows {
            assert_eq!(admin.count(lock).await, 1);
        }
        let claims: Vec<_> = names.iter().map(make).collect();
        let begun = Instant::now();
        let flight = claims.iter().map(try_it).collect::<Vec<_>>();
        let replies = submit_all(&*scene.driver, &flight).await;
        let took = begun.elapsed();
        admin.run("ROLLBACK").await;
        assert!(took < Duration::from_secs(20), "the flight took {took:?}");
        for (name, reply) in names.iter().zip(&replies) {
            match (name.as_str(), reply) {
                ("4" | "5", Err(Error::Backend { retryable: true, .. })) => {}
                ("4" | "5", other) => panic!("{name} is locked, and yet: {other:?}"),
                (_, Ok(Attempted { result: answer, .. })) => drop(token(answer)),
                (_, other) => panic!("{name} failed: {other:?}"),
            }
        }
        let replies = submit(&*scene.driver, &claims.iter().map(release).collect::<Vec<_>>()).await;
        for (name, reply) in names.iter().zip(replies.unwrap()) {
            let expected = match name.as_str() {
                "4" | "5" => Outcome::Released(Released::NoSuchLock),
                _ => REMOVED,
            };
            assert_eq!(reply.unwrap().result, expected, "{name}");
        }
    }
}

async fn a_step_that_waits_for_a_row_for_a_moment_gets_its_lock(scene: Scene) {
    scene.warm().await;
    let mut admin = scene.admin().await;
    let claims = [claim("warm/1"), claim("warm/2")];
    admin.run(scene.words.begin).await;
    admin.run(scene.words.touch).await;
    let steps = claims.each_ref().map(try_it);
    let waited = AtomicBool::new(false);
    let let_go = async {
        let mut watch = scene.admin().await;
        // Once the step waits for the row by itself.
        while watch.count(scene.words.waiting).await == 0 {
            // MariaDB's answer is as old as the last one that was asked for within 100 ms.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        waited.store(true, Relaxed);
        admin.run("COMMIT").await;
    };
    let carry = async {
        loop {
            let replies = submit_all(&*scene.driver, &steps).await;
            // On a busy machine nobody may have seen it wait before it gave up: it comes again.
            let gave_up = replies.iter().any(|reply| matches!(reply, Err(e) if e.is_retryable()));
            if !gave_up || waited.load(Relaxed) {
                break replies;
            }
        }
    };
    let (replies, ()) = tokio::join!(carry, let_go);
    for reply in replies {
        token(&reply.unwrap().result);
    }
}

/// It waits longer than a database waits for a row at once.
async fn a_release_by_itself_waits_until_the_row_of_its_lock_is_free(scene: Scene) {
    scene.warm().await;
    let mut admin = scene.admin().await;
    let claim = claim("warm/1");
    let replies = submit(&*scene.driver, &[try_it(&claim)]).await.unwrap();
    token(&replies[0].as_ref().unwrap().result);
    admin.run(scene.words.begin).await;
    admin.run(scene.words.touch).await;
    let let_go = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        admin.run("COMMIT").await;
    };
    let steps = [release(&claim)];
    let (replies, ()) = tokio::join!(submit(&*scene.driver, &steps), let_go);
    for reply in replies.unwrap() {
        assert_eq!(reply.unwrap().result, REMOVED);
    }
}

/// As for a release: a busy server takes longer than that for the transactions of a contended name.
async fn an_acquire_by_itself_waits_until_the_row_of_its_lock_is_free(scene: Scene) {
    scene.warm().await;
    let mut admin = scene.admin().await;
    let [claim, other] = [claim("warm/1"), claim("warm/1")];
    admin.run(scene.words.begin).await;
    admin.run(scene.words.touch).await;
    let refused = scene.driver.acquire(&other, Patience::Try).await;
    assert!(refused.is_err_and(|error| error.is_retryable()), "a try says that the row is locked");
    let let_go = async {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        admin.run("COMMIT").await;
    };
    let (acquired, ()) = tokio::join!(scene.driver.acquire(&claim, Patience::Wait), let_go);
    let acquired = acquired.expect("it waits for its row").result;
    assert!(matches!(acquired, Acquisition::Granted(_)), "{acquired:?}");
}

/// For that long core goes on releasing a claim whose caller gave up: a later one would stay.
async fn an_acquire_is_not_sent_again_once_its_waiting_lease_is_over(scene: Scene) {
    scene.warm().await;
    let mut admin = scene.admin().await;
    let mut claim = Arc::unwrap_or_clone(claim("warm/1"));
    claim.wait_ttl = Duration::from_millis(1_200);
    admin.run(scene.words.begin).await;
    admin.run(scene.words.touch).await;
    // One attempt of a second, and one that began within the lease.
    let limit = Duration::from_secs(20);
    let claim = Arc::new(claim);
    let refused = timeout(limit, scene.driver.acquire(&claim, Patience::Wait)).await;
    let refused = refused.expect("it is not sent again");
    assert!(refused.is_err_and(|error| error.is_retryable()), "the row is locked");
    admin.run("COMMIT").await;
}

/// Core finds out which one by halving the batch.
async fn a_step_that_the_table_does_not_take_leaves_no_trace_of_its_batch(scene: Scene) {
    scene.warm().await;
    let mut admin = scene.admin().await;
    if let Some(check) = scene.words.refuse_long_notes {
        admin.run(check).await;
    }
    for names in [["new/1", "new/2", "new/3"], ["warm/1", "warm/2", "new/4"]] {
        let note = Some("x".repeat(70_000));
        let claims = [claim(names[0]), claim_of(names[1], Mode::Exclusive, note), claim(names[2])];
        let refused = submit(&*scene.driver, &claims.each_ref().map(try_it)).await;
        assert!(matches!(refused, Err(Error::Backend { retryable: false, .. })), "{refused:?}");
        assert_eq!(admin.count(scene.words.claims).await, 0);
        let replies = scene.submitted(&[try_it(&claims[0]), try_it(&claims[2])]).await;
        replies.iter().for_each(|reply| assert!(token(reply) > 0));
        scene.submitted(&[release(&claims[0]), release(&claims[2])]).await;
    }
}

async fn two_processes_that_carry_batches_of_the_same_names_never_fail(scene: Scene) {
    let names: Arc<Vec<_>> = Arc::new((0..30).map(|i| format!("{i}")).collect());
    let mut going = tokio::task::JoinSet::new();
    for seed in 0..4 {
        let (driver, names) = (scene.other().await, names.clone());
        going.spawn(async move {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut granted = 0;
            for _ in 0..60 {
                let mut chosen: Vec<_> =
                    names.iter().filter(|_| rng.random_bool(0.5)).map(|name| claim(name)).collect();
                // As they come, in no order.
                for i in (1..chosen.len()).rev() {
                    chosen.swap(i, rng.random_range(0..=i));
                }
                let tries: Vec<_> = chosen.iter().map(try_it).collect();
                let replies = submit_all(&*driver, &tries).await;
                let mut held = Vec::new();
                for (claim, reply) in chosen.iter().zip(replies) {
                    match reply.unwrap().result {
                        Outcome::Acquired(Acquisition::Granted(_)) => held.push(release(claim)),
                        Outcome::Acquired(Acquisition::Busy) => {}
                        other => panic!("{other:?}"),
                    }
                }
                granted += held.len();
                for reply in submit_all(&*driver, &held).await {
                    assert_eq!(reply.unwrap().result, REMOVED);
                }
            }
            granted
        });
    }
    let granted: usize = going.join_all().await.into_iter().sum();
    assert!(granted > 500, "{granted} were granted");
}

/// What a flight says does not depend on how its steps are carried: beside it, one after the other in
/// memory.
async fn random_batches_answer_as_their_steps_would_one_by_one(scene: Scene) {
    let model = MemoryDriver::new();
    let mut rng = StdRng::seed_from_u64(12);
    let mut live: Vec<Arc<Claim>> = Vec::new();
    for round in 0..300 {
        let steps = match round % 2 {
            0 => random_hand_over(&mut rng, &mut live),
            _ => random_steps(&mut rng, &mut live),
        };
        let before = said(&submit_all(&*scene.driver, &steps).await);
        let mut expected = Vec::new();
        for step in &steps {
            expected.extend(submit(&model, std::slice::from_ref(step)).await.unwrap());
        }
        assert_eq!(before, said(&expected), "round {round}: {steps:?}");
        for (step, said) in steps.iter().zip(&before) {
            let claim = step.claim();
            live.retain(|other| other.id != claim.id);
            if said.starts_with("granted") || said.starts_with("queued") {
                live.push(claim.clone());
            }
        }
        // Who holds is the same, too.
        let (ours, theirs) =
            (scene.driver.renew(&live).await.unwrap(), model.renew(&live).await.unwrap());
        for (ours, theirs) in ours.into_iter().zip(theirs) {
            match (ours.unwrap(), theirs.unwrap()) {
                (Renewal::Holds(_), Renewal::Holds(_)) => {}
                (Renewal::Waits { ahead: ours }, Renewal::Waits { ahead: theirs }) => {
                    assert_eq!(ours, theirs, "round {round}");
                }
                (ours, theirs) => panic!("round {round}: {ours:?}, not {theirs:?}"),
            }
        }
    }
}

/// A claim leaves, whether it holds or not, and another one comes: nothing else.
fn random_hand_over(rng: &mut StdRng, live: &mut Vec<Arc<Claim>>) -> Vec<Operation> {
    let exclusive = |at: &usize| live[*at].mode == Mode::Exclusive;
    let all: Vec<_> = (0..live.len()).filter(exclusive).collect();
    // Mostly the oldest, which is likely to hold.
    let chosen = if rng.random_bool(0.7) { all.first() } else { all.last() };
    let Some(at) = chosen else { return random_steps(rng, live) };
    let leaving = live.remove(*at);
    let coming = claim_of(leaving.key.name.as_str(), Mode::Exclusive, None);
    vec![release(&leaving), wait(&coming)]
}

fn random_steps(rng: &mut StdRng, live: &mut Vec<Arc<Claim>>) -> Vec<Operation> {
    let mut steps = Vec::new();
    for _ in 0..rng.random_range(0..6) {
        if !live.is_empty() {
            steps.push(release(&live.swap_remove(rng.random_range(0..live.len()))));
        }
    }
    for _ in 0..rng.random_range(1..12) {
        let (name, kind) = (format!("{}", rng.random_range(0..8)), rng.random_range(0..10));
        let mode = match kind {
            0..6 => Mode::Exclusive,
            6..8 => Mode::Shared,
            8 => Mode::Permits { permits: 2, limit: 3 },
            _ => Mode::Permits { permits: 1, limit: rng.random_range(3..5) },
        };
        // Some are asked for again.
        let repeated = live.iter().find(|_| rng.random_bool(0.05)).cloned();
        let is_new =
            |claim: &Arc<Claim>| !steps.iter().any(|it: &Operation| it.claim().id == claim.id);
        let claim = repeated.filter(is_new).unwrap_or_else(|| claim_of(&name, mode, None));
        steps.push(if rng.random_bool(0.5) { wait(&claim) } else { try_it(&claim) });
    }
    steps
}

/// Without tokens, which are each backend's own.
fn said(replies: &Outcomes) -> Vec<String> {
    let one = |reply: &Result<Attempted<Outcome>, Error>| match reply {
        Ok(Attempted { result: Outcome::Acquired(Acquisition::Granted(_)), .. }) => {
            "granted".into()
        }
        Ok(Attempted { result: Outcome::Acquired(Acquisition::Busy), .. }) => "busy".into(),
        Ok(Attempted { result: Outcome::Acquired(Acquisition::Queued { ahead }), .. }) => {
            format!("queued behind {ahead}")
        }
        Ok(Attempted { result: answer, .. }) => format!("{answer:?}"),
        Err(Error::LimitMismatch { in_use, asked, .. }) => format!("{in_use}, not {asked}"),
        Err(error) => panic!("{error}"),
    };
    replies.iter().map(one).collect()
}

async fn a_lock_and_a_semaphore_of_one_name_travel_together(scene: Scene) {
    scene.warm().await;
    for _ in 0..2 {
        let both = [claim("a"), claim_of("a", Mode::Permits { permits: 1, limit: 1 }, None)];
        assert_eq!(both.each_ref().map(|c| c.key.space), [Space::Lock, Space::Semaphore]);
        let replies = scene.submitted(&both.each_ref().map(try_it)).await;
        replies.iter().for_each(|reply| assert!(token(reply) > 0));
        let replies = scene.submitted(&both.each_ref().map(release)).await;
        assert_eq!(replies, [REMOVED, REMOVED]);
    }
    let mut admin = scene.admin().await;
    assert_eq!(admin.count(scene.words.rows_of_a).await, 2);
}

/// A transaction that has read a range to change it holds up new names in it, and so the flight as a
/// whole. PostgreSQL has no such locks.
async fn a_thousand_free_names_of_a_multi_lock_travel_in_batches(scene: Scene) {
    scene.warm().await;
    let flights = 1_000_u64.div_ceil(scene.driver.capabilities().batches.operations as u64);
    let locks = LockManager::with(scene.driver.clone(), Settings::default()).unwrap();
    locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    let (before, begun) = (scene.requests(), Instant::now());
    let all = locks.multi((0..1_000).map(|n| format!("n{n}")));
    let guard = all.try_lock_for(LONG).await.unwrap().expect("all are free");
    let (locked, took) = (scene.requests() - before, begun.elapsed());
    guard.release().await.unwrap();
    let released = scene.requests() - before - locked;
    println!(
        "{:?}, 1,000 names: {locked} requests in {took:?}, released by {released}",
        scene.kind
    );
    // Beside them may stand a connection that is opened for a flight, and what prepares a statement.
    assert!((flights..=2 * flights + 20).contains(&locked), "{locked} for {flights} flights");
    assert!((flights..=2 * flights + 20).contains(&released), "{released} for {flights} flights");
}

#[tokio::test]
async fn a_range_that_somebody_has_locked_on_mariadb_holds_up_the_steps_in_it_alone() {
    let scene = Scene::on(Kind::MariaDb).await;
    scene.warm().await;
    // The ends of the range: what is between them is locked, and nothing else.
    let ends = [claim("b"), claim("d")];
    scene.submitted(&ends.each_ref().map(try_it)).await;
    scene.submitted(&ends.each_ref().map(release)).await;
    let mut admin = scene.admin().await;
    admin.run("START TRANSACTION").await;
    let range = "SELECT COUNT(*) FROM lockkit_names
        WHERE namespace = '' AND space = 0 AND name > 'b' AND name < 'd' FOR UPDATE";
    assert_eq!(admin.count(range).await, 0);
    let claims = ["a", "c/1", "c/2", "e"].map(claim);
    let replies = submit_all(&*scene.driver, &claims.each_ref().map(try_it)).await;
    token(&replies[0].clone().unwrap().result);
    for reply in &replies[1..3] {
        assert!(matches!(reply, Err(Error::Backend { retryable: true, .. })), "{reply:?}");
    }
    token(&replies[3].clone().unwrap().result);
    admin.run("ROLLBACK").await;
    let replies = submit(&*scene.driver, &claims.each_ref().map(release)).await.unwrap();
    let replies: Vec<_> = replies.into_iter().map(|reply| reply.unwrap().result).collect();
    let none = Outcome::Released(Released::NoSuchLock);
    assert_eq!(replies, [REMOVED, none, none, REMOVED]);
}
