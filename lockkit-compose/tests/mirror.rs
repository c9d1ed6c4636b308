//! The mirror as a fleet meets it: a move from one backend to another with programs at different
//! steps, and what ends at one of the two.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use lockkit_compose::MirrorDriver;
use lockkit_core::driver::{BreakMode, LockDriver};
use lockkit_core::{Error, LockManager, LossReason, MemoryDriver, Settings, Space};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

fn over(driver: impl LockDriver) -> LockManager {
    LockManager::with(Arc::new(driver), Settings::default().ttl(TTL).wait_ttl(TTL)).unwrap()
}

fn mirror(old: &MemoryDriver, new: &MemoryDriver) -> LockManager {
    over(MirrorDriver::new(Arc::new(old.clone()), Arc::new(new.clone())))
}

async fn nothing_is_left(driver: &MemoryDriver) {
    let locks = over(driver.clone());
    let state = locks.inspect(Space::Lock, "a").await.unwrap();
    assert!(state.is_free(), "{state:?}");
}

/// Which steps of the move programs are at, while the move is at this one.
fn steps(stage: u64) -> &'static [u8] {
    match stage {
        0 => &[1],
        1 => &[1, 2],
        2 | 3 => &[2],
        4 => &[2, 4],
        _ => &[4],
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_moves_under_load_with_one_holder_at_a_time_and_growing_tokens() {
    for seed in 0..20 {
        let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
        let stage = Arc::new(AtomicU64::new(0));
        let (inside, highest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut fleet = Vec::new();
        for program in 0..6 {
            let mut rng = StdRng::seed_from_u64(seed * 100 + program);
            let (old, new, stage) = (old.clone(), new.clone(), stage.clone());
            let (inside, highest) = (inside.clone(), highest.clone());
            fleet.push(tokio::spawn(async move {
                let mut turns = 0;
                while stage.load(Ordering::SeqCst) < 6 {
                    let steps = steps(stage.load(Ordering::SeqCst));
                    let locks = match steps[rng.random_range(0..steps.len())] {
                        1 => over(old.clone()),
                        2 => mirror(&old, &new),
                        _ => over(new.clone()),
                    };
                    for _ in 0..rng.random_range(1..4) {
                        let patience = MS * rng.random_range(0..200);
                        let mutex = locks.mutex("a");
                        let Some(guard) = mutex.try_lock_for(patience).await.unwrap() else {
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "seed {seed}");
                        let token = guard.token().unwrap().get();
                        let before = highest.swap(token, Ordering::SeqCst);
                        assert!(token > before, "seed {seed}: {token} after {before}");
                        sleep(MS * rng.random_range(0..30)).await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        guard.release().await.unwrap();
                        turns += 1;
                    }
                    locks.shutdown().await;
                }
                turns
            }));
        }
        for step in 1..=6 {
            sleep(Duration::from_secs(3)).await;
            stage.store(step, Ordering::SeqCst);
            if step == 3 {
                // The last that used the old one alone have gone by now.
                sleep(Duration::from_secs(2)).await;
                over(new.clone())
                    .admin()
                    .take_over_tokens(&over(old.clone()).admin())
                    .await
                    .unwrap();
            }
        }
        for program in fleet {
            assert!(program.await.unwrap() > 20, "seed {seed}: everybody had his turns");
        }
        nothing_is_left(&old).await;
        nothing_is_left(&new).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_at_either_gets_it_and_who_gives_up_leaves_nothing() {
    let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
    for held in [over(old.clone()), over(new.clone())] {
        let guard = held.mutex("a").lock().await.unwrap();
        let locks = mirror(&old, &new);
        assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
        assert!(locks.mutex("a").try_lock_for(TTL * 5).await.unwrap().is_none());
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.mutex("a").lock().await }
        });
        sleep(TTL * 5).await;
        assert!(!waiting.is_finished());
        guard.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert!(held.mutex("a").try_lock().await.unwrap().is_none());
        sleep(TTL * 5).await;
        assert!(guard.is_valid(), "it is renewed at both");
        drop(guard);
        locks.shutdown().await;
        nothing_is_left(&old).await;
        nothing_is_left(&new).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_broken_at_one_is_lost_and_taken_back_at_the_other() {
    let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
    for side in [&old, &new] {
        let locks = mirror(&old, &new);
        let guard = locks.mutex("a").lock().await.unwrap();
        let breaker = over(side.clone());
        let state = breaker.inspect(Space::Lock, "a").await.unwrap();
        let token = state.queue[0].token;
        let how = BreakMode::Forced;
        assert!(breaker.admin().break_lock(Space::Lock, "a", token, how, None).await.unwrap());
        assert!(matches!(guard.lost().await, LossReason::Broken(_)));
        drop(guard);
        locks.shutdown().await;
        nothing_is_left(&old).await;
        nothing_is_left(&new).await;
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_that_would_go_back_are_an_error_and_nothing_is_left() {
    let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
    let locks = over(old.clone());
    let mut reached = locks.mutex("a").lock().await.unwrap().token().unwrap();
    for _ in 0..9 {
        let guard = locks.mutex("a").lock().await.unwrap();
        reached = guard.token().unwrap();
        guard.release().await.unwrap();
    }
    // Raised by hand, and not by enough.
    let key = over(new.clone()).inspect(Space::Lock, "a").await.unwrap().key;
    new.raise_namespace_counter(&key.namespace, 1).await.unwrap();
    let guard = over(new.clone()).mutex("a").lock().await.unwrap();
    assert!(guard.token().unwrap() < reached);
    guard.release().await.unwrap();
    let error = mirror(&old, &new).mutex("a").lock().await.unwrap_err();
    assert!(matches!(&error, Error::Config(why) if why.contains("take them over")), "{error}");
    nothing_is_left(&old).await;
    nothing_is_left(&new).await;
}

#[tokio::test(start_paused = true)]
async fn taking_over_twice_changes_nothing_and_the_mirror_shows_the_tokens_it_gives() {
    let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
    let locks = mirror(&old, &new);
    let first = locks.mutex("a").lock().await.unwrap().token().unwrap();
    let (from, to) = (over(old.clone()), over(new.clone()));
    let base = to.admin().take_over_tokens(&from.admin()).await.unwrap();
    assert!(base > first.get());
    assert_eq!(to.admin().take_over_tokens(&from.admin()).await.unwrap(), base);
    let guard = locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    assert!(token.get() > base);
    let shown = locks.inspect(Space::Lock, "a").await.unwrap();
    assert_eq!(shown.queue[0].token, token);
    let how = BreakMode::Graceful;
    assert!(locks.admin().break_lock(Space::Lock, "a", token, how, Some("moved")).await.unwrap());
    assert!(matches!(guard.lost().await, LossReason::Broken(_)));
}

/// Members of a fleet that use one side alone see what a leader campaigned with, and nothing else.
#[tokio::test(start_paused = true)]
async fn what_a_leader_is_known_by_reads_the_same_on_either_side() {
    let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
    let everybody = [mirror(&old, &new), over(old.clone()), over(new.clone())];
    let values = [Some("10.0.0.7:4000"), None, Some("like a mark \u{21c4}e35305b2"), Some("12.0")];
    for value in values {
        let election = mirror(&old, &new).election("a");
        let election = match value {
            Some(value) => election.value(value),
            None => election,
        };
        let leadership = election.campaign().await.unwrap();
        for one in &everybody {
            let leader = one.election("a").leader().await.unwrap().expect("there is a leader");
            assert_eq!(leader.value.as_deref(), value);
            let state = one.inspect(Space::Lock, "a").await.unwrap();
            assert_eq!(state.queue[0].note.as_deref(), value);
            let mut all = pin!(one.admin().list("a"));
            let listed = all.next().await.expect("it is listed").unwrap();
            assert_eq!(listed.queue[0].note.as_deref(), value);
        }
        leadership.resign().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_sits_while_the_tokens_are_taken_over_keeps_the_one_that_it_bears() {
    let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
    let (locks, watching) = (mirror(&old, &new), mirror(&old, &new));
    let leadership = locks.election("a").value("1").campaign().await.unwrap();
    let first = leadership.token().unwrap();
    let election = watching.election("a");
    let mut seen = pin!(election.observe());
    assert_eq!(seen.next().await.expect("a leader").unwrap().token, first);
    over(new.clone()).admin().take_over_tokens(&over(old.clone()).admin()).await.unwrap();
    sleep(TTL * 3).await;
    assert_eq!(leadership.token().unwrap(), first);
    for one in [&locks, &watching] {
        assert_eq!(one.election("a").leader().await.unwrap().unwrap().token, first);
        let mut all = pin!(one.admin().list("a"));
        assert_eq!(all.next().await.expect("it is listed").unwrap().queue[0].token, first);
    }
    // The next one waits behind it since before; it is the next that is seen, with what it bears.
    let candidate = mirror(&old, &new);
    let next = tokio::spawn(async move { candidate.election("a").value("2").campaign().await });
    sleep(TTL).await;
    let how = BreakMode::Forced;
    assert!(watching.admin().break_lock(Space::Lock, "a", first, how, None).await.unwrap());
    assert!(matches!(leadership.lost().await, LossReason::Broken(_)));
    let next = next.await.unwrap().unwrap();
    let leader = seen.next().await.expect("a leader").unwrap();
    assert_eq!((leader.value.as_deref(), leader.token), (Some("2"), next.token().unwrap()));
    assert!(leader.token.get() > 1 << 50);
}

/// Whoever waited, or came, with what was known before the tokens were taken over.
#[tokio::test(start_paused = true)]
async fn whoever_holds_after_the_tokens_were_taken_over_is_shown_under_the_token_that_it_bears() {
    let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
    let locks = mirror(&old, &new);
    // Known from now on, and soon wrong.
    drop(locks.mutex("warm").lock().await.unwrap());
    let at_old = over(old.clone()).mutex("waits for old").lock().await.unwrap();
    let at_new = over(new.clone()).mutex("waits for new").lock().await.unwrap();
    let names = ["waits for old", "waits for new", "comes later"];
    let waiting = names.map(|name| {
        let locks = locks.clone();
        tokio::spawn(async move {
            if name == "comes later" {
                sleep(TTL * 3).await;
            }
            locks.mutex(name).lock().await.unwrap()
        })
    });
    sleep(TTL).await;
    over(new.clone()).admin().take_over_tokens(&over(old.clone()).admin()).await.unwrap();
    at_old.release().await.unwrap();
    at_new.release().await.unwrap();
    for (name, waiting) in names.into_iter().zip(waiting) {
        let guard = waiting.await.unwrap();
        let token = guard.token().unwrap();
        assert!(token.get() > 1 << 50, "{name}: {token}");
        for one in [mirror(&old, &new), over(new.clone())] {
            let line = one.inspect(Space::Lock, name).await.unwrap().queue;
            assert_eq!(line.iter().map(|s| s.token).collect::<Vec<_>>(), [token], "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_that_the_new_backend_refuses_leaves_nothing_at_the_old_one() {
    let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
    let held = over(new.clone()).mutex("a").lock().await.unwrap();
    assert!(mirror(&old, &new).mutex("a").try_lock().await.unwrap().is_none());
    nothing_is_left(&old).await;
    held.release().await.unwrap();
    nothing_is_left(&new).await;
}

/// Each move but the first begins with tokens that were taken over before; the last one goes back to where
/// an earlier one ended.
#[tokio::test(start_paused = true)]
async fn tokens_grow_when_a_fleet_moves_on_to_a_third_backend_and_back() {
    let backends = [MemoryDriver::new(), MemoryDriver::new(), MemoryDriver::new()];
    let mut highest = 0;
    for (from, to) in [(0, 1), (1, 2), (2, 1), (1, 0)] {
        let (old, new) = (&backends[from], &backends[to]);
        let (locks, how) = (mirror(old, new), BreakMode::Forced);
        let kept = locks.mutex("kept").lock().await.unwrap();
        for side in [old, new] {
            let side = over(side.clone());
            for user in [&side, &locks, &side, &mirror(old, new)] {
                let guard = user.mutex("a").lock().await.unwrap();
                let token = guard.token().unwrap();
                assert!(token.get() > highest, "{from} to {to}: {token} after {highest}");
                highest = token.get();
                for one in [&side, &locks] {
                    let queue = one.inspect(Space::Lock, "a").await.unwrap().queue;
                    assert_eq!(queue.iter().map(|s| s.token).collect::<Vec<_>>(), [token]);
                }
                guard.release().await.unwrap();
                let guard = user.mutex("a").lock().await.unwrap();
                let token = guard.token().unwrap();
                assert!(
                    locks.admin().break_lock(Space::Lock, "a", token, how, None).await.unwrap()
                );
                assert!(matches!(guard.lost().await, LossReason::Broken(_)));
            }
            over(new.clone()).admin().take_over_tokens(&over(old.clone()).admin()).await.unwrap();
        }
        let queue = locks.inspect(Space::Lock, "kept").await.unwrap().queue;
        assert_eq!(
            queue[0].token,
            kept.token().unwrap(),
            "it began before the tokens were taken over"
        );
        kept.release().await.unwrap();
    }
}
