//! A hand-over costs as much in a long queue as in a short one.

use std::collections::VecDeque;

use lockkit_core::driver::{Acquire, Acquisition, Batch, Patience};

use super::scene::{KINDS, Scene, claim, queue, take};

const HAND_OVERS: usize = 200;
/// So many that are ahead are counted.
const COUNTED: usize = 64;

#[derive(Debug)]
struct Costs {
    requests: u64,
    flushes: u64,
    rows: u64,
}

/// What so many hand-overs cost, from before the first.
async fn costs(scene: &Scene, waiters: usize) -> Costs {
    let name = format!("{waiters} wait");
    let mut holder = claim(&name);
    take(&scene.driver, &holder).await;
    let mut waiting = VecDeque::new();
    for ahead in 1..=waiters {
        let claim = claim(&name);
        assert_eq!(queue(&scene.driver, &claim).await as usize, ahead);
        waiting.push_back(claim);
    }
    let before = scene.work().await;
    let requests = scene.requests();
    for _ in 0..HAND_OVERS {
        let coming = claim(&name);
        let acquire = Acquire { claim: coming.clone(), patience: Patience::Wait };
        let batch = Batch { releases: std::slice::from_ref(&holder), acquires: &[acquire] };
        let outcome = scene.driver.submit(batch).await.unwrap();
        outcome.released[0].as_ref().unwrap();
        let acquired = outcome.acquired[0].as_ref().unwrap().result;
        let Acquisition::Queued { ahead } = acquired else { panic!("{acquired:?}") };
        assert_eq!(ahead as usize, waiters.min(COUNTED));
        waiting.push_back(coming);
        holder = waiting.pop_front().unwrap();
    }
    let requests = scene.requests() - requests;
    let after = scene.work().await;
    Costs { requests, flushes: after[0] - before[0], rows: after[1] - before[1] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_the_same_with_a_thousand_waiters() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let [short, long] = [costs(&scene, 64).await, costs(&scene, 1_000).await];
        println!("{kind:?}: {short:?} with 64 waiters, {long:?} with 1,000");
        for costs in [&short, &long] {
            // Some for new connections and the sweep; InnoDB writes pages in between.
            assert!(costs.requests <= HAND_OVERS as u64 * 6 / 5, "{kind:?}: {costs:?}");
            assert!(costs.flushes <= HAND_OVERS as u64 * 3 / 2, "{kind:?}: {costs:?}");
        }
        // The sweep reads some, in passing.
        let [short, long] = [short.rows, long.rows].map(|rows| rows / HAND_OVERS as u64);
        assert!(long <= short * 5 / 4, "{kind:?}: {long} rows, and {short} in a short queue");
    }
}
