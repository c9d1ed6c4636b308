//! Whatever call fails, before or after it acted, no lock is lost by it and nothing is left
//! behind. (The faults of servers and networks need the lab.)

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, Attempted, BreakMode, ClaimEnd, LockDriver, Patience, Renewal,
};
use lockkit_core::{Claim, Error, LockManager, Space, Token};
use tokio::task::JoinSet;

use crate::context::{CaseContext, MustSucceed, PATIENCE};
use crate::faulty::{Faulty, InjectedFault, InjectionPoint};
use crate::wrap::Tampered;

pub async fn robust_01_an_answer_is_lost_after_any_call_acted(context: CaseContext) {
    at_every_call(&context, |call| vec![InjectedFault { call, point: InjectionPoint::After }])
        .await;
}

pub async fn robust_02_the_connection_is_cut_at_any_call(context: CaseContext) {
    at_every_call(&context, |call| {
        let places = [
            InjectionPoint::Before,
            InjectionPoint::Polls(1),
            InjectionPoint::Polls(2),
            InjectionPoint::Polls(3),
        ];
        places.map(|place| InjectedFault { call, point: place }).to_vec()
    })
    .await;
}

const STORIES_AT_ONCE: usize = 8;

/// Goes through a [`Story`] for every fault of every call that it makes, some at a time.
async fn at_every_call(context: &CaseContext, faults: impl Fn(u64) -> Vec<InjectedFault>) {
    // Stories have connections of their own, and a server may have few.
    let calls = (STORIES_AT_ONCE / faults(0).len()).max(1) as u64;
    for first in (0..).step_by(calls as usize) {
        let mut stories = JoinSet::new();
        for fault in (first..first + calls).flat_map(&faults) {
            let context = context.clone();
            stories.spawn(async move {
                Story::with(&context, fault).await.fault_struck(&context).await
            });
        }
        let mut struck = true;
        while let Some(told) = stories.join_next().await {
            struck &= told.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
        }
        if !struck {
            return;
        }
        assert!(first < 1_000, "a story without end");
    }
}

/// A user whose driver fails once, and another client that wants the same lock.
struct Story {
    fault: InjectedFault,
    name: String,
    faulty: Arc<Faulty>,
    ours: LockManager,
    theirs: Arc<dyn LockDriver>,
    highest: Option<Token>,
}

impl Story {
    async fn with(context: &CaseContext, fault: InjectedFault) -> Self {
        let faulty = Arc::new(Faulty::at(fault));
        let driver = Tampered::new(context.driver().await, faulty.clone());
        Self {
            fault,
            name: format!("{fault:?}"),
            faulty,
            ours: context.manager_over(Arc::new(driver)),
            theirs: context.driver().await,
            highest: None,
        }
    }

    /// Says whether the fault struck.
    async fn fault_struck(mut self, context: &CaseContext) -> bool {
        self.lock_and_release(context).await;
        self.wait_and_downgrade(context).await;
        self.try_and_break(context).await;
        let key = context.key(&self.name);
        context.free(&self.theirs, &key, PATIENCE).await;
        // And the lock works again.
        let guard = context.soon("it works again", self.ours.mutex(&self.name).lock()).await;
        let guard = guard.expect("it works again");
        self.grows(guard.token().expect("it holds"));
        self.may_fail(guard.release().await);
        context.free(&self.theirs, &key, PATIENCE).await;
        self.ours.shutdown().await;
        self.theirs.close().await;
        self.faulty.struck()
    }

    async fn lock_and_release(&mut self, context: &CaseContext) {
        let guard = context.soon("it is locked", self.ours.mutex(&self.name).lock()).await;
        let guard = guard.expect("a wait outlasts a fault");
        let token = guard.token().expect("it holds");
        self.grows(token);
        self.may_fail(guard.renew().await);
        self.may_fail(guard.verify().await);
        let line = context.queue(&self.theirs, &context.key(&self.name)).await;
        let stands: Vec<_> = line.iter().map(|s| (s.token, s.holds())).collect();
        assert_eq!(stands, [(token, true)], "{:?}: one claim, and it holds", self.fault);
        let next = context.exclusive(&self.name);
        self.theirs.queue(&next).await;
        assert!(guard.is_valid());
        self.may_fail(guard.release().await);
        // Long before the lease ends, whatever became of the release.
        let granted = self.theirs.turn(&next).await;
        self.grows(granted.token);
        self.theirs.let_go(&next).await;
    }

    async fn wait_and_downgrade(&mut self, context: &CaseContext) {
        let holder = context.exclusive(&self.name);
        let token = self.theirs_soon(&holder).await;
        self.grows(token);
        let lock = self.ours.rwlock(&self.name);
        let waiting = tokio::spawn(async move { lock.write().await });
        context.waiters(&self.theirs, &holder.key, 1).await;
        self.theirs.let_go(&holder).await;
        let guard = context.soon("the waiter gets it", waiting).await.expect("no panic");
        let guard = guard.expect("a wait outlasts a fault");
        self.grows(guard.token().expect("it holds"));
        if let Some(guard) = self.may_fail(guard.downgrade().await) {
            self.may_fail(guard.release().await);
        }
        context.free(&self.theirs, &holder.key, PATIENCE).await;
    }

    /// Another client gets the lock. A request of ours that was cut off may arrive only now, and be
    /// in the way until its claim is released again.
    async fn theirs_soon(&self, claim: &Arc<Claim>) -> Token {
        let give_up = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.theirs.acquire(claim, Patience::Try).await {
                Ok(Attempted { result: Acquisition::Granted(grant), .. }) => return grant.token,
                Ok(Attempted { result: Acquisition::Busy, .. })
                    if tokio::time::Instant::now() < give_up => {}
                other => panic!("{:?}: somebody else gets {other:?}", self.fault),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn try_and_break(&mut self, context: &CaseContext) {
        let tried = self.ours.mutex(&self.name).try_lock().await;
        if let Some(guard) = self.may_fail(tried) {
            let guard = guard.expect("nobody holds it");
            self.grows(guard.token().expect("it holds"));
            self.may_fail(guard.release().await);
        }
        let key = context.key(&self.name);
        context.free(&self.theirs, &key, PATIENCE).await;
        let stuck = context.exclusive(&self.name);
        let token = self.theirs_soon(&stuck).await;
        self.grows(token);
        self.may_fail(self.ours.inspect(Space::Lock, &self.name).await);
        let how = BreakMode::Forced;
        for _ in 0..2 {
            // Asked again, it may have been broken already.
            self.may_fail(
                self.ours.admin().break_lock(Space::Lock, &self.name, token, how, None).await,
            );
        }
        let answer = self.theirs.renew_one(&stuck).await;
        let broken = matches!(answer, Renewal::Ended(ClaimEnd::Broken(_)));
        assert!(broken, "{:?}: {answer:?}", self.fault);
    }

    /// What was asked once may fail by the fault, and by nothing else.
    fn may_fail<T>(&self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                assert!(e.is_retryable(), "{:?} made this of it: {e}", self.fault);
                None
            }
        }
    }

    fn grows(&mut self, token: Token) {
        let before = self.highest.replace(token);
        assert!(Some(token) > before, "{:?}: {token} after {before:?}", self.fault);
    }
}
