//! Flights of a program that carries the claims of others.

use std::sync::Arc;

use lockkit_core::driver::{
    Acquisition, Attempted, Flights, Gather, LockDriver, Patience, Released, Reply, Step,
};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};

use crate::moody::{Mood, Moody};
use crate::{MS, SECOND, begin, claims};

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, 30 * SECOND, 10 * SECOND, identity))
}

fn acquire(claim: &Arc<Claim>) -> Step {
    Step::Acquire { claim: claim.clone(), patience: Patience::Try }
}

#[tokio::test(start_paused = true)]
async fn the_steps_of_callers_that_know_nothing_of_each_other_share_a_flight() {
    let driver = Moody::carrying(Flights::of(64, 1));
    let gather = Gather::new(Arc::new(driver.clone()));
    let latest = driver.clock().now().after(SECOND);
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..40 {
        let gather = gather.clone();
        let step = acquire(&claim(&format!("a{caller}")));
        callers.spawn(async move { gather.carry(&[step], latest).await });
    }
    for replies in callers.join_all().await {
        let granted = |reply: &_| matches!(reply, Reply::Acquired(Acquisition::Granted(_)));
        assert!(replies.iter().all(|reply| granted(&reply.as_ref().unwrap().result)));
    }
    let sizes: Vec<_> = driver.flights().iter().map(Vec::len).collect();
    assert_eq!(sizes, [40]);
}

#[tokio::test(start_paused = true)]
async fn several_steps_of_one_caller_are_answered_in_their_order() {
    let driver = Moody::carrying(Flights::of(64, 1));
    let gather = Gather::new(Arc::new(driver.clone()));
    let latest = driver.clock().now().after(SECOND);
    let (first, second) = (claim("first"), claim("second"));
    gather.carry(&[acquire(&first)], latest).await.pop().unwrap().unwrap();
    let both = [acquire(&second), Step::Release { claim: first.clone() }];
    let replies = gather.carry(&both, latest).await;
    let answers: Vec<_> = replies.into_iter().map(|reply| reply.unwrap().result).collect();
    assert!(matches!(answers[0], Reply::Acquired(Acquisition::Granted(_))), "{answers:?}");
    assert_eq!(answers[1], Reply::Released(Released::Removed));
    assert_eq!(driver.flights().last().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_could_not_depart_in_time_never_does() {
    let driver = Moody::carrying(Flights::of(2, 1));
    let gather = Gather::new(Arc::new(driver.clone()));
    let now = driver.clock().now();
    // Two that share a flight, so that it is in a task of its own; its answer takes long.
    driver.next("flight", Mood::Late(500 * MS));
    let slow = [acquire(&claim("slow")), acquire(&claim("too"))];
    let slow = gather.carry(&slow, now.after(10 * SECOND));
    let mut slow = Box::pin(slow);
    begin(slow.as_mut()).await;
    tokio::task::yield_now().await;
    let late = [acquire(&claim("late"))];
    let refused = gather.carry(&late, now.after(100 * MS)).await.pop().unwrap();
    assert!(refused.unwrap_err().is_retryable());
    assert!(slow.await.iter().all(Result::is_ok));
    assert_eq!(claims(&driver, "late").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_before_its_step_departed_leaves_nothing() {
    let driver = Moody::carrying(Flights::of(2, 1));
    let gather = Gather::new(Arc::new(driver.clone()));
    let latest = driver.clock().now().after(10 * SECOND);
    driver.next("flight", Mood::Late(500 * MS));
    let slow = [acquire(&claim("slow")), acquire(&claim("too"))];
    let mut slow = Box::pin(gather.carry(&slow, latest));
    begin(slow.as_mut()).await;
    tokio::task::yield_now().await;
    let gone = [acquire(&claim("gone"))];
    {
        let mut gone = Box::pin(gather.carry(&gone, latest));
        begin(gone.as_mut()).await;
    }
    assert!(slow.await.iter().all(Result::is_ok));
    let last = claim("last");
    let Attempted { result: answer, .. } =
        gather.carry(&[acquire(&last)], latest).await.pop().unwrap().unwrap();
    assert!(matches!(answer, Reply::Acquired(Acquisition::Granted(_))));
    assert_eq!(claims(&driver, "gone").await, 0);
}
