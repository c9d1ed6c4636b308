//! Claims that wait: at which member, for how long when something fails, and what they leave.

use std::sync::Arc;
use std::time::Duration;

use lockkit_compose::QuorumDriver;
use lockkit_core::driver::{Acquisition, Attempted, Grant, LockDriver, Patience, Renewal};
use lockkit_core::{Claim, Mode};

use super::directed::{nap, quorum, servers, take};
use super::network::Server;
use super::world::{TTL, claim, key, open, runtime};

/// The least pause between two looks of the first waiter.
const LOOK: Duration = Duration::from_millis(90);

async fn queue(quorum: &QuorumDriver) -> Arc<Claim> {
    let claim = claim(Mode::Exclusive);
    match quorum.acquire(&claim, Patience::Wait).await {
        Ok(Attempted { result: Acquisition::Queued { .. }, .. }) => claim,
        other => panic!("it is held: {other:?}"),
    }
}

/// Three programs: the first holds, and the two others wait in this order.
struct Scene {
    servers: Vec<Arc<Server>>,
    programs: [QuorumDriver; 3],
    held: Arc<Claim>,
    waiters: [Arc<Claim>; 2],
}

impl Scene {
    async fn set(seed: u64) -> Self {
        Self::set_without(seed, None).await
    }

    /// The same, where the holder is not at this member, which did not answer when it was acquired.
    async fn set_without(seed: u64, member: Option<usize>) -> Self {
        let servers = servers();
        let programs = [0, 1, 2].map(|program| quorum(&servers, 3 * seed + program, &[]));
        for program in &programs {
            open(program).await;
        }
        let held = claim(Mode::Exclusive);
        let away = member.map(|member| &servers[member]);
        away.inspect(|server| server.set_up(false));
        take(&programs[0], &held).await;
        nap(TTL / 20).await; // until it is at all members
        away.inspect(|server| server.set_up(true));
        let waiters = [queue(&programs[1]).await, queue(&programs[2]).await];
        Self { servers, programs, held, waiters }
    }

    async fn release(&self) {
        self.programs[0].release(&self.held).await.unwrap();
    }

    /// After how long the waiter is granted, and its grant.
    async fn granted(&self, waiter: usize) -> (Duration, Grant) {
        let (program, claim) = (&self.programs[waiter + 1], &self.waiters[waiter]);
        let began = program.clock().now();
        let grant = tokio::time::timeout(2 * TTL, program.granted(claim)).await;
        let grant = grant.expect("it is free").unwrap();
        (program.clock().now().since(began), grant)
    }

    /// How many claims each member has.
    async fn claims(&self) -> Vec<usize> {
        let mut counts = Vec::new();
        for server in &self.servers {
            counts.push(server.driver().inspect(&key()).await.unwrap().queue.len());
        }
        counts
    }
}

#[test]
fn a_release_hands_the_lock_to_the_first_waiter_before_any_look() {
    for seed in 0..100 {
        runtime().block_on(async {
            let scene = Scene::set(seed).await;
            assert_eq!(scene.claims().await, [3, 1, 1], "claims wait at one member only");
            for waiter in 0..2 {
                let (release, granted) = tokio::join!(
                    async {
                        match waiter {
                            0 => scene.programs[0].release(&scene.held).await,
                            _ => scene.programs[1].release(&scene.waiters[0]).await,
                        }
                    },
                    scene.granted(waiter)
                );
                release.unwrap();
                assert!(granted.0 < LOOK, "seed {seed}: {:?}", granted.0);
            }
        });
    }
}

#[test]
fn claims_queue_in_their_order_where_the_holder_is_not_at_the_first_member() {
    for seed in 0..100 {
        runtime().block_on(async {
            let scene = Scene::set_without(seed, Some(0)).await;
            assert_eq!(
                scene.claims().await[1..],
                [3, 1],
                "seed {seed}: an acquire that waits is in a queue"
            );
            scene.release().await;
            scene.granted(0).await;
        });
    }
}

/// Whatever the first member pushes, and however late: at no member does the lease end before the grant says.
#[test]
fn a_grant_from_a_queue_counts_from_before_its_lease_began_at_any_member() {
    for seed in 0..100 {
        runtime().block_on(async {
            let scene = Scene::set(seed).await;
            nap(TTL / 3).await;
            scene.release().await;
            let (_, grant) = scene.granted(0).await;
            let program = &scene.programs[1];
            let until = grant.start.moment().expect("a quorum says it").after(grant.ttl);
            for server in &scene.servers {
                let queue = server.driver().inspect(&key()).await.unwrap().queue;
                if let Some(holder) = queue.iter().find(|it| it.holds()) {
                    let lease = program.clock().now().after(holder.expires_in);
                    assert!(until <= lease, "seed {seed}: by {:?}", until.since(lease));
                }
            }
        });
    }
}

#[test]
fn a_waiter_that_gives_up_leaves_the_queue() {
    for seed in 0..20 {
        runtime().block_on(async {
            let scene = Scene::set(seed).await;
            for (program, claim) in scene.programs[1..].iter().zip(&scene.waiters) {
                program.release(claim).await.unwrap();
            }
            assert_eq!(scene.claims().await, [1, 1, 1], "seed {seed}");
        });
    }
}

#[test]
fn a_waiter_that_is_renewed_keeps_its_place() {
    for seed in 0..20 {
        runtime().block_on(async {
            let scene = Scene::set(seed).await;
            for _ in 0..6 {
                nap(TTL / 3).await;
                let claims = [&scene.held, &scene.waiters[0], &scene.waiters[1]];
                for (ahead, (program, claim)) in scene.programs.iter().zip(claims).enumerate() {
                    match program.renew_single(claim).await.unwrap() {
                        Renewal::Holds(_) => assert_eq!(ahead, 0, "seed {seed}"),
                        Renewal::Waits { ahead: told } => {
                            assert_eq!(told as usize, ahead, "seed {seed}");
                        }
                        ended => panic!("seed {seed}: {ended:?}"),
                    }
                }
            }
            assert_eq!(scene.claims().await, [3, 1, 1], "seed {seed}");
        });
    }
}

/// The answer of the member is lost.
#[test]
fn a_claim_that_a_member_queued_without_being_heard_is_taken_back() {
    for seed in 0..20 {
        runtime().block_on(async {
            let scene = Scene::set(seed).await;
            scene.servers[0].set_mute(true);
            let claim = queue(&scene.programs[1]).await;
            scene.servers[0].set_mute(false);
            nap(TTL / 4).await;
            let waiting = scene.claims().await;
            assert_eq!(waiting, [3, 2, 1], "seed {seed}: it waits at the next member");
            scene.programs[1].release(&claim).await.unwrap();
            assert_eq!(scene.claims().await, [3, 1, 1], "seed {seed}");
        });
    }
}

/// The first waiter has died; its claim is granted at the first member, where its lease goes on for long.
#[test]
fn a_dead_waiter_keeps_no_other_from_the_lock_for_longer_than_some_looks() {
    for seed in 0..100 {
        runtime().block_on(async {
            let scene = Scene::set(seed).await;
            scene.release().await;
            let (took, _) = scene.granted(1).await;
            assert!(took < TTL * 2 / 3, "seed {seed}: {took:?}");
            // And the next ones do not queue behind it.
            let next = queue(&scene.programs[2]).await;
            let (program, held) = (&scene.programs[2], &scene.waiters[1]);
            let (released, granted) = tokio::join!(program.release(held), program.granted(&next));
            released.unwrap();
            granted.unwrap();
        });
    }
}

#[test]
fn where_the_first_member_does_not_answer_claims_wait_at_the_next() {
    for seed in 0..50 {
        runtime().block_on(async {
            let servers = servers();
            let programs = [0, 1].map(|program| quorum(&servers, 2 * seed + program, &[]));
            for program in &programs {
                open(program).await;
            }
            servers[0].set_up(false);
            let held = claim(Mode::Exclusive);
            take(&programs[0], &held).await;
            nap(TTL / 20).await;
            let waits = queue(&programs[1]).await;
            let began = programs[1].clock().now();
            let (released, granted) =
                tokio::join!(programs[0].release(&held), programs[1].granted(&waits));
            released.unwrap();
            granted.unwrap();
            let took = programs[1].clock().now().since(began);
            assert!(took < 2 * LOOK, "seed {seed}: {took:?}");
        });
    }
}

/// The first member forgets all, or does not answer, while claims wait there: they move on by themselves, or
/// with their next renewal.
#[test]
fn claims_that_wait_at_a_member_that_fails_go_on_elsewhere() {
    for (seed, loses_data) in (0..50).flat_map(|seed| [(seed, true), (seed, false)]) {
        runtime().block_on(async {
            let scene = Scene::set(seed).await;
            match loses_data {
                true => scene.servers[0].lose_data(),
                false => scene.servers[0].set_up(false),
            }
            let (program, waiter) = (&scene.programs[1], &scene.waiters[0]);
            let released = async {
                nap(TTL / 3).await;
                let renewal = program.renew_single(waiter).await.unwrap();
                assert!(matches!(renewal, Renewal::Waits { .. }), "seed {seed}: {renewal:?}");
                nap(TTL / 3).await; // until it waits at the next member
                let now = program.clock().now();
                scene.release().await;
                now
            };
            let granted = async {
                scene.granted(0).await;
                program.clock().now()
            };
            let (released, granted) = tokio::join!(released, granted);
            let took = granted.since(released);
            // Mostly at once; where the member that lost its data got the holder again, after the second look.
            assert!(took < 2 * LOOK, "seed {seed}, loses data: {loses_data}: {took:?}");
        });
    }
}
