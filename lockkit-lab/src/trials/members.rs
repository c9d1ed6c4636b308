//! What is demanded where the server is one member of several: that it is away, and back, without
//! anybody noticing. Stages the absence of that member alone.

use lockkit_core::capabilities::Guarantee;

use super::scene::{Tokens, answered, its_turn, wait_in_line, works_again};
use super::stage::staged;
use super::{TrialResult, TrialSetup};
use crate::Data;
use crate::proxy::{ProxyFault as Network, When};
use lockkit_conformance::context::{LONG, PATIENCE};

const LOCK: &str = "a";

/// How a member is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// It dies, and comes back with its data.
    Killed,
    /// It is there, and says nothing.
    Paused,
    /// One client cannot reach it.
    CutOff,
}

/// A lock is held, renewed, refused, given back and handed on, and another one is taken, by old
/// clients and new ones, all while a member is away.
pub(super) async fn goes_unnoticed(stage: &TrialSetup, absence: Absence) -> TrialResult {
    let context = stage.context();
    let mut tokens = Tokens::new(Guarantee::All);
    let proxy = stage.proxy().await;
    let ours = context.manager_over(stage.through(&proxy).await);
    let theirs = context.manager().await;
    let guard = ours.mutex(LOCK).lock().await.expect("it is free");
    let token = tokens.next(&guard, "before");
    let waiting = wait_in_line(context, &theirs, LOCK).await;
    match absence {
        Absence::Killed => stage.server().kill().await,
        Absence::Paused => stage.server().freeze().await,
        Absence::CutOff => drop(proxy.fault(Network::BlackHole, When::Now)),
    }
    let verified = answered(context, "the others know it", || guard.verify()).await;
    assert_eq!(verified.expect("it is held"), token, "{absence:?}");
    answered(context, "the others renew it", || guard.renew()).await.expect("it is held");
    for manager in [&ours, &theirs] {
        let tried = answered(context, "a try is answered", || {
            let mutex = manager.mutex("another").ttl(LONG);
            async move { mutex.try_lock().await }
        });
        let other = tried.await.expect("it is answered").expect("it is free");
        other.release().await.expect("it was held");
    }
    let newcomer = answered(context, "a program begins", || context.harness().driver()).await;
    let newcomer = context.manager_over(newcomer.expect("it begins"));
    let tried = answered(context, "a try is answered", || {
        let mutex = newcomer.mutex(LOCK);
        async move { mutex.try_lock().await }
    });
    assert!(tried.await.expect("it is answered").is_none(), "{absence:?}: two hold");
    guard.release().await.expect("it was held");
    let next = its_turn(context, waiting, PATIENCE, None).await;
    let token = tokens.next(&next, "while it is away");
    match absence {
        Absence::Killed => staged(stage.server().restart(Data::Keep).await),
        Absence::Paused => stage.server().thaw(),
        Absence::CutOff => staged(proxy.heal().await),
    }
    // What was in flight to the member that is back affects no claim.
    let verified = answered(context, "all know it", || next.verify()).await;
    assert_eq!(verified.expect("it is held"), token, "{absence:?}");
    drop(next);
    works_again(context, &[&ours, &theirs, &newcomer], LOCK, &mut tokens, PATIENCE).await;
    Ok(())
}
