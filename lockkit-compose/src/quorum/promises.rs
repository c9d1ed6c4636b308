//! What a quorum keeps as its members are set up now: each is asked, and the worst counts.

use std::sync::Arc;

use futures_util::future::join_all;
use lockkit_core::capabilities::{Capabilities, Fault, Guarantee};
use lockkit_core::driver::LockDriver;
use lockkit_core::promises::{Promise, Promises};

use super::QuorumInner;
use super::member::Member;
use crate::named::why;

impl QuorumInner {
    pub(super) async fn promises(&self, stated: &Capabilities) -> Promises {
        let asking = (0..self.members.len()).map(|member| async move {
            let promises = |driver: Arc<dyn LockDriver>| async move { driver.promises().await };
            self.ask(member, self.options.member_limit, promises).await
        });
        let mut kept = Promises::of(stated);
        let mut writes: Option<Promise> = None;
        for (member, answer) in join_all(asking).await.into_iter().enumerate() {
            let Member { name, capabilities, .. } = &self.members[member];
            // Errors of a member name it.
            let of_member = |why: &str| match why.starts_with(name.as_str()) {
                true => why.to_owned(),
                false => format!("{name}: {why}"),
            };
            let now = answer.unwrap_or_else(|error| {
                let mut unknown = Promises::of(capabilities);
                for fault in [Fault::ServerRestarts, Fault::WritesLost] {
                    unknown.set(fault, None, why(&error));
                }
                unknown
            });
            for loss in now.losses(capabilities).all() {
                // A member that restarts without its last writes is a member that lost them. One that
                // loses claims at any time, with nothing to show for it, may break any majority.
                let cost = match loss.fault {
                    Fault::ServerRestarts | Fault::WritesLost => {
                        stated.guarantee(Fault::WritesLost)
                    }
                    _ => Guarantee::Nothing,
                };
                let cost =
                    if cost < Guarantee::All { loss.guarantee.map(|_| cost) } else { Some(cost) };
                kept = kept.worse(Promises::from_iter([(loss.fault, cost, of_member(&loss.why))]));
            }
            let own = now.all().iter().find(|promise| promise.fault == Fault::WritesLost).cloned();
            let own = own.map(|mut it| {
                it.why = of_member(&it.why);
                it
            });
            writes = match (writes, own) {
                (Some(worst), Some(own)) if worst.is_worse(&own) => Some(worst),
                (worst, own) => own.or(worst),
            };
        }
        if let Some(Promise { fault, guarantee, why, .. }) = writes {
            let guarantee = match guarantee {
                Some(Guarantee::Nothing | Guarantee::Tokens) => Some(stated.guarantee(fault)),
                None if stated.guarantee(fault) >= Guarantee::All => Some(stated.guarantee(fault)),
                all => all,
            };
            kept.set(fault, guarantee, why);
        }
        kept
    }
}
