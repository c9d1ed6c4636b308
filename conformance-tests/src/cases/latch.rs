//! Latches: each participant counts once, and the gate opens for all.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Error;
use tokio::task::JoinSet;

use crate::context::CaseContext;
use crate::faulty::{Faulty, InjectedFault, InjectionPoint};
use crate::wrap::Tampered;

pub async fn latch_01_it_opens_at_zero_for_all(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let latch = ours.latch("boot", 2);
    assert_eq!(latch.count().await.expect("it works"), 2);
    let waiting = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.latch("boot", 2).wait().await }
    });
    assert_eq!(latch.count_down_as("a").await.expect("it works"), 1);
    let brief = latch.wait_timeout(Duration::from_millis(300)).await;
    assert!(!brief.expect("it works"), "one is missing");
    assert!(!waiting.is_finished(), "nobody is let through early");
    assert_eq!(theirs.latch("boot", 2).count_down_as("b").await.expect("it works"), 0);
    context.soon("it opens for who waits", waiting).await.expect("no panic").expect("it works");
    let late = context.manager().await;
    let opened = context.soon("for who comes later", late.latch("boot", 2).wait()).await;
    opened.expect("it works");
    assert_eq!(late.latch("boot", 2).arrived().await.expect("it works"), ["a", "b"]);
    let other = late.latch("another", 2).count().await;
    assert_eq!(other.expect("it works"), 2, "another name");
}

pub async fn latch_02_a_participant_counts_once(context: CaseContext) {
    let theirs = context.manager().await;
    for call in 0..3 {
        for place in [InjectionPoint::Before, InjectionPoint::Polls(1), InjectionPoint::After] {
            let faulty = Arc::new(Faulty::at(InjectedFault { call, point: place }));
            let ours =
                context.manager_over(Arc::new(Tampered::new(context.driver().await, faulty)));
            let name = format!("{call} {place:?}");
            let latch = ours.latch(&name, 3);
            assert_eq!(latch.count_down_as("a").await.expect(&name), 2);
            assert_eq!(latch.count_down_as("a").await.expect(&name), 2, "{name}: said twice");
            // It was restarted, and is another process now.
            let again = theirs.latch(&name, 3).count_down_as("a").await;
            assert_eq!(again.expect(&name), 2, "{name}");
            assert_eq!(theirs.latch(&name, 3).count().await.expect(&name), 2, "{name}");
        }
    }
}

pub async fn latch_03_counting_below_zero_is_an_error(context: CaseContext) {
    let locks = context.manager().await;
    let latch = locks.latch("a", 1);
    assert_eq!(latch.count_down_as("a").await.expect("it works"), 0);
    let below = latch.count_down_as("b").await;
    assert!(matches!(below, Err(Error::BelowZero { .. })), "{below:?}");
    assert_eq!(latch.count_down_as("a").await.expect("it has counted"), 0);
    assert_eq!(latch.arrived().await.expect("it works"), ["a"]);
    let other = locks.latch("a", 2).count_down_as("b").await;
    assert!(
        matches!(other, Err(Error::CountMismatch { in_use: 1, asked: 2, .. })),
        "another count: {other:?}"
    );
    for count in [0, 801, u32::MAX] {
        let odd = locks.latch("odd", count).count_down_as("a").await;
        assert!(matches!(odd, Err(Error::Config(_))), "{count}: {odd:?}");
    }
    for id in ["", "a\nb", &"x".repeat(81)] {
        let odd = locks.latch("odd", 2).count_down_as(id).await;
        assert!(matches!(odd, Err(Error::InvalidName { .. })), "{id:?}: {odd:?}");
    }
}

pub async fn latch_04_all_of_many_at_once_are_counted(context: CaseContext) {
    let managers = [context.manager().await, context.manager().await, context.manager().await];
    let mut counting = JoinSet::new();
    for i in 0..12 {
        let latch = managers[i % 3].latch("a", 12);
        counting.spawn(async move { latch.count_down_as(format!("p{i:02}")).await });
    }
    let mut missing = Vec::new();
    for counted in context.soon("all are counted", counting.join_all()).await {
        missing.push(counted.expect("it is counted"));
    }
    missing.sort_unstable();
    assert_eq!(missing, Vec::from_iter(0..12), "one at a time");
    let opened = context.soon("it is open", managers[0].latch("a", 12).wait()).await;
    opened.expect("it works");
}

pub async fn latch_05_a_reset_closes_it_for_everybody(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let latch = ours.latch("a", 1);
    latch.count_down_as("a").await.expect("it works");
    theirs.latch("a", 1).reset(2).await.expect("it works");
    assert_eq!(latch.count().await.expect("a reset is for all handles"), 2);
    assert!(!latch.wait_timeout(Duration::from_millis(200)).await.expect("it works"));
    assert_eq!(latch.count_down_as("a").await.expect("it counts again"), 1);
    let waiting = tokio::spawn(async move { theirs.latch("a", 1).wait().await });
    assert_eq!(latch.count_down_as("b").await.expect("it works"), 0);
    context.soon("it opens", waiting).await.expect("no panic").expect("it works");
    latch.delete().await.expect("it works");
    assert_eq!(latch.count().await.expect("it is new"), 1);
}
