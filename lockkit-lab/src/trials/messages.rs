//! A fault at every message of every operation in turn. How many messages an operation has is
//! counted first, in a run without a fault.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use tokio::task::JoinSet;

use super::operations::{Client, Operation};
use super::scene::{guarantee, nothing_left};
use super::{TrialResult, TrialSetup};
use crate::proxy::{Counts, End, ProxyFault as Network, When};
use lockkit_conformance::context::PATIENCE;

/// Operations with a fault at the same time: most of them wait for an answer that never comes.
const AT_ONCE: usize = 24;

pub async fn robust_01_an_answer_is_lost_after_the_server_acted_at_any_message(
    stage: TrialSetup,
) -> TrialResult {
    everywhere(stage, |counts| {
        let requests = (1..=counts.requests).map(When::Request);
        let pushes = (1..=counts.pushes).map(When::Push);
        requests.chain(pushes).map(|when| (Network::Mute, when)).collect()
    })
    .await
}

pub async fn robust_02_the_connection_is_cut_at_any_message(stage: TrialSetup) -> TrialResult {
    everywhere(stage, |counts| {
        let mut faults = Vec::new();
        for n in 1..=counts.requests {
            faults.push((Network::Cut, When::Request(n)));
            faults.push((Network::HalfOpen { receiver: End::Server }, When::Request(n)));
        }
        faults.extend((1..=counts.answers).map(|n| (Network::Cut, When::Answer(n))));
        faults.extend((1..=counts.pushes).map(|n| (Network::Cut, When::Push(n))));
        faults
    })
    .await
}

/// What a client does that met the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Asks again until it is answered.
    AsksAgain,
    /// Wants it no more.
    GivesUp,
}

type Faults = fn(&Counts) -> Vec<(Network, When)>;

async fn everywhere(stage: TrialSetup, faults: Faults) -> TrialResult {
    guarantee(stage.context(), Fault::ConnectionCut)?;
    let stage = Arc::new(stage);
    let others = stage.context().driver().await;
    let mut running = JoinSet::new();
    let (mut struck, mut ordered) = (0, 0);
    for operation in Operation::of(stage.context().capabilities()) {
        let counts = undisturbed(&stage, &others, operation).await;
        let faults = faults(&counts);
        remark!("{operation:?}: {} requests, {} pushes", counts.requests, counts.pushes);
        for (fault, when) in faults {
            let gives_up = operation.leaves_something().then_some(Then::GivesUp);
            for then in std::iter::once(Then::AsksAgain).chain(gives_up) {
                if running.len() == AT_ONCE {
                    struck += u32::from(done(running.join_next().await));
                }
                let (stage, others) = (stage.clone(), others.clone());
                ordered += 1;
                running.spawn(async move {
                    disturbed(&stage, &others, operation, (fault, when), then).await
                });
            }
        }
    }
    while !running.is_empty() {
        struck += u32::from(done(running.join_next().await));
    }
    remark!("{struck} of {ordered} faults struck");
    // A message that comes now and then may have been counted, and not have come again.
    assert!(struck * 10 >= ordered * 9, "only {struck} of {ordered} faults struck");
    nothing_left(stage.context(), &others, PATIENCE).await;
    Ok(())
}

fn done(ended: Option<Result<bool, tokio::task::JoinError>>) -> bool {
    match ended {
        Some(Ok(struck)) => struck,
        Some(Err(e)) => std::panic::resume_unwind(e.into_panic()),
        None => false,
    }
}

/// The messages of an operation that nothing disturbs.
async fn undisturbed(
    stage: &TrialSetup,
    others: &Arc<dyn LockDriver>,
    operation: Operation,
) -> Counts {
    let client = Client::prepared(stage, others, operation).await;
    let acted = client.act(stage).await;
    acted.unwrap_or_else(|e| panic!("{operation:?} works when nothing disturbs it: {e}"));
    let counts = client.proxy.counts();
    client.check().await;
    counts
}

/// Says whether the fault struck.
async fn disturbed(
    stage: &TrialSetup,
    others: &Arc<dyn LockDriver>,
    operation: Operation,
    (fault, when): (Network, When),
    then: Then,
) -> bool {
    let client = Client::prepared(stage, others, operation).await;
    let strike = client.proxy.fault(fault, when);
    let what = format!("{operation:?}, {fault:?} at {when:?}, {then:?}");
    let story = async {
        match (client.act(stage).await, then) {
            (Ok(()), _) => client.check().await,
            (Err(e), Then::GivesUp) => {
                may_pass(&e, &what);
                client.given_up().await;
            }
            (Err(mut e), Then::AsksAgain) => {
                for round in 0.. {
                    may_pass(&e, &what);
                    assert!(round < 20, "{what}: it fails and fails: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    match client.act(stage).await {
                        Ok(()) => break,
                        Err(again) => e = again,
                    }
                }
                client.check().await;
            }
        }
    };
    stage.context().within(2 * PATIENCE, &what, story).await;
    strike.has_struck()
}

fn may_pass(error: &Error, what: &str) {
    assert!(error.is_retryable(), "{what}: what failed may work the next time, yet: {error}");
}
