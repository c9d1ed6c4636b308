//! Grants travel on answers, and are asked for where an answer was lost.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{Acquire, Acquisition, Batch, BreakMode, LeaseStart, Patience};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Error, LossReason};
use lockkit_lab::ServerKind;
use lockkit_lab::proxy::{ProxyFault, When};
use tokio::time::timeout;

use super::scene::{KINDS, SOON, Scene, claim, queue, short_claim, take};

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_hand_over_grants_from_its_own_sending() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let [holder, next, last] = ["hot"; 3].map(claim);
        take(&scene.driver, &holder).await;
        queue(&scene.driver, &next).await;
        // On MariaDB a poll might learn of it sooner.
        let waiting = match kind {
            ServerKind::Postgres => Some(scene.waiting(&next)),
            _ => None,
        };
        if waiting.is_some() {
            scene.is_quiet().await;
        }
        let (before, pushed) = (SteadyClock.now(), scene.proxy.counts().pushes);
        let acquire = Acquire { claim: last.clone(), patience: Patience::Wait };
        let batch = Batch { releases: &[holder], acquires: &[acquire] };
        let outcome = scene.driver.submit(batch).await.unwrap();
        let acquired = outcome.acquired[0].as_ref().unwrap().result;
        assert_eq!(acquired, Acquisition::Queued { ahead: 1 }, "{kind:?}");
        let waiting = waiting.unwrap_or_else(|| scene.waiting(&next));
        let grant = timeout(SOON, waiting).await.expect("it was reported").unwrap().unwrap();
        let LeaseStart::Sent(sent) = grant.start else { panic!("{kind:?}: {grant:?}") };
        assert!(before <= sent && sent <= SteadyClock.now(), "{kind:?}");
        assert_eq!(scene.proxy.counts().pushes, pushed, "{kind:?}: no message");
        // What was granted holds, with this token.
        let state = scene.driver.inspect(&next.key).await.unwrap();
        assert_eq!(state.queue[0].token, grant.token, "{kind:?}");
        assert_eq!(state.queue.len(), 2, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_answer_was_lost_is_asked_for() {
    let scene = Scene::on(ServerKind::Postgres).await;
    for is_dropped in [false, true] {
        let [holder, next] = ["hot"; 2].map(claim);
        take(&scene.driver, &holder).await;
        queue(&scene.driver, &next).await;
        let waiting = scene.waiting(&next);
        scene.is_quiet().await;
        if is_dropped {
            // The caller gives up after the server has acted.
            let mut mute = scene.proxy.fault(ProxyFault::Mute, When::Request(1));
            tokio::select! {
                _ = scene.driver.release(&holder) => panic!("no answer"),
                () = mute.struck() => {}
            }
        } else {
            let mut cut = scene.proxy.fault(ProxyFault::Cut, When::Answer(1));
            scene.driver.release(&holder).await.unwrap();
            assert!(cut.has_struck());
            cut.struck().await;
        }
        let granted = timeout(SOON, waiting).await.expect("it was asked about").unwrap();
        granted.unwrap();
        scene.proxy.heal().await.unwrap();
        scene.driver.release(&next).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_promotes_and_releases_is_not_reported() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let [holder, gave_up, next] = ["hot"; 3].map(claim);
        take(&scene.driver, &holder).await;
        queue(&scene.driver, &gave_up).await;
        queue(&scene.driver, &next).await;
        let [left, waiting] = [scene.waiting(&gave_up), scene.waiting(&next)];
        scene.release(&[holder, gave_up]).await;
        timeout(SOON, waiting).await.expect("it was reported").unwrap().unwrap();
        // Where it is asked about, it is not there.
        let left = timeout(Duration::from_millis(300), left).await;
        assert!(!matches!(left, Ok(Ok(Ok(_)))), "{kind:?}: {left:?}");
    }
}

/// It keeps what is left of its waiting lease, so a grant would outlive that.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_reports_no_grant_to_a_waiter_that_was_broken_gracefully() {
    let scene = Scene::on(ServerKind::MariaDb).await;
    let [holder, broken] = ["hot"; 2].map(claim);
    take(&scene.driver, &holder).await;
    queue(&scene.driver, &broken).await;
    let token = scene.driver.inspect(&broken.key).await.unwrap().queue[1].token;
    let why = BreakRecord::new(ClientIdentity::of_this_process(), BreakMode::Graceful, None);
    let break_it = scene.driver.break_claim(&broken.key, token, BreakMode::Graceful, &why);
    assert!(break_it.await.unwrap());
    scene.release(&[holder]).await;
    let told = timeout(SOON, scene.waiting(&broken)).await.expect("it is told").unwrap();
    let lost = told.as_ref().err().and_then(Error::loss);
    assert!(matches!(lost, Some(LossReason::Broken(_))), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_another_process_is_handed_over_to() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let other = scene.other().await;
        let [holder, theirs, last] = ["hot"; 3].map(claim);
        take(&scene.driver, &holder).await;
        queue(&other, &theirs).await;
        let acquire = Acquire { claim: last.clone(), patience: Patience::Wait };
        let batch = Batch { releases: &[holder], acquires: &[acquire] };
        scene.driver.submit(batch).await.unwrap().released[0].as_ref().unwrap();
        timeout(SOON, other.granted(&theirs)).await.expect("it was told").unwrap();
        let waiting = scene.waiting(&last);
        other.release(&theirs).await.unwrap();
        timeout(SOON, waiting).await.expect("it was told").unwrap().unwrap();
    }
}

/// A hand-over, by the driver's own call.
async fn hand_over(scene: &Scene, leaving: &Arc<Claim>, coming: &Arc<Claim>) -> Acquisition {
    let acquire = Acquire { claim: coming.clone(), patience: Patience::Wait };
    let batch = Batch { releases: std::slice::from_ref(leaving), acquires: &[acquire] };
    let outcome = scene.driver.submit(batch).await.unwrap();
    outcome.released[0].as_ref().unwrap();
    outcome.acquired[0].as_ref().unwrap().result
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_has_ended_is_not_handed_over_to() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let [holder, next, last] = ["hot"; 3].map(claim);
        take(&scene.driver, &holder).await;
        let ended = short_claim("hot");
        queue(&scene.driver, &ended).await;
        queue(&scene.driver, &next).await;
        tokio::time::sleep(ended.wait_ttl * 2).await;
        let acquired = hand_over(&scene, &holder, &last).await;
        assert_eq!(acquired, Acquisition::Queued { ahead: 1 }, "{kind:?}");
        timeout(SOON, scene.waiting(&next)).await.expect("it holds").unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_passes_by_a_claim_that_has_ended() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let [holder, next] = ["hot"; 2].map(claim);
        take(&scene.driver, &holder).await;
        let ended = short_claim("hot");
        queue(&scene.driver, &ended).await;
        queue(&scene.driver, &next).await;
        tokio::time::sleep(ended.wait_ttl * 2).await;
        scene.release(&[holder]).await;
        timeout(SOON, scene.waiting(&next)).await.expect("it holds").unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_removes_a_holder_that_has_ended_and_lets_the_next_claim_hold() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let [holder, next, last] = ["hot"; 3].map(claim);
        let mut holder = (*holder).clone();
        holder.hold_ttl = Duration::from_millis(200);
        let (ttl, holder) = (holder.hold_ttl, Arc::new(holder));
        take(&scene.driver, &holder).await;
        assert_eq!(queue(&scene.driver, &next).await, 1, "{kind:?}");
        tokio::time::sleep(ttl * 2).await;
        assert_eq!(queue(&scene.driver, &last).await, 1, "{kind:?}: the next claim only");
        timeout(SOON, scene.waiting(&next)).await.expect("it holds").unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_was_sent_before_stays_where_it_is() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let [holder, next, repeated] = ["hot"; 3].map(claim);
        take(&scene.driver, &holder).await;
        queue(&scene.driver, &next).await;
        queue(&scene.driver, &repeated).await;
        let acquired = hand_over(&scene, &holder, &repeated).await;
        assert_eq!(acquired, Acquisition::Queued { ahead: 1 }, "{kind:?}");
        let state = scene.driver.inspect(&next.key).await.unwrap();
        assert_eq!(state.queue.len(), 2, "{kind:?}: {state:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_counts_what_others_queued_and_withdrew_since_the_last() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let other = scene.other().await;
        let [a, b, c, d, e, f, g, theirs] = ["hot"; 8].map(claim);
        take(&scene.driver, &a).await;
        queue(&scene.driver, &b).await;
        queue(&scene.driver, &c).await;
        let ahead = |ahead| Acquisition::Queued { ahead };
        assert_eq!(hand_over(&scene, &a, &d).await, ahead(2), "{kind:?}");
        assert_eq!(queue(&other, &theirs).await, 3, "{kind:?}");
        assert_eq!(hand_over(&scene, &b, &e).await, ahead(3), "{kind:?}");
        other.release(&theirs).await.unwrap();
        assert_eq!(hand_over(&scene, &c, &f).await, ahead(2), "{kind:?}");
        assert_eq!(hand_over(&scene, &d, &g).await, ahead(2), "{kind:?}: nothing has changed");
        let queue = scene.driver.inspect(&a.key).await.unwrap().queue;
        assert!(queue.is_sorted_by_key(|claim| claim.token) && queue.len() == 3, "{queue:?}");
    }
}
