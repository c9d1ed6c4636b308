//! The driver against the [`Model`], over random commands. Every failure names the seed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use lockkit_core::capabilities::LeaseScope;
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{
    Acquisition, Attempted, BreakMode, ClaimEnd, LockDriver, Patience, Released, Renewal, SetLimit,
};
use lockkit_core::{Claim, Error, Lifetime, LossReason, Mode, Space, Token};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::context::CaseContext;
use crate::listing::record;
use crate::model::{ExpectedResult, Model};

pub async fn model_01_random_commands_are_answered_as_the_model_answers(context: CaseContext) {
    let modes = |rng: &mut StdRng, _| match rng.random_bool(0.5) {
        true => Mode::Exclusive,
        false => Mode::Shared,
    };
    for run in 0..4 {
        compare(&context, run, Resizes::Never, modes).await;
    }
}

pub async fn model_02_semaphores_are_answered_as_the_model_answers(context: CaseContext) {
    let modes = |rng: &mut StdRng, _| {
        let limit = if rng.random_bool(0.9) { 5 } else { 3 };
        let permits = rng.random_range(1..=limit);
        Mode::Permits { permits, limit }
    };
    for run in 0..4 {
        compare(&context, run, Resizes::Never, modes).await;
    }
}

pub async fn model_03_resized_semaphores_are_answered_as_the_model_answers(context: CaseContext) {
    let modes = |rng: &mut StdRng, given: Option<u32>| {
        let limit = given.filter(|_| rng.random_bool(0.95)).unwrap_or(3);
        Mode::Permits { permits: rng.random_range(1..=3), limit }
    };
    for run in 0..4 {
        compare(&context, run, Resizes::Often, modes).await;
    }
}

/// Whether commands change the limit of what is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Resizes {
    Never,
    Often,
}

const COMMANDS: usize = 150;

/// Asks driver and model the same, and compares every answer and every state.
async fn compare(
    context: &CaseContext,
    run: u64,
    resizes: Resizes,
    modes: impl Fn(&mut StdRng, Option<u32>) -> Mode,
) {
    let seed = seed().wrapping_add(run);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut side = SideBySide {
        drivers: [context.driver().await, context.driver().await],
        name: format!("run {run}"),
        model: Model::default(),
        claims: Vec::new(),
        tokens: HashMap::new(),
        highest: None,
        log: Vec::new(),
        released: HashSet::new(),
    };
    if resizes == Resizes::Often {
        side.resize(context, SetLimit::IfUnset(3))
            .await
            .expect("nobody has given it another limit");
    }
    for _ in 0..COMMANDS {
        let command = match resizes == Resizes::Often && rng.random_bool(0.15) {
            true => side.resize(context, random_limit(&mut rng)).await,
            false => side.command(context, &mut rng, &modes).await,
        };
        let differs = match command {
            Ok(()) => side.compare_queues(context).await,
            differs => differs,
        };
        if let Err(differs) = differs {
            let last = side.log.split_off(side.log.len().saturating_sub(12));
            panic!(
                "{differs}\n  seed: LOCKKIT_CONFORMANCE_SEED={}\n  last commands:\n    {}",
                seed.wrapping_sub(run),
                last.join("\n    ")
            );
        }
    }
}

fn random_limit(rng: &mut StdRng) -> SetLimit {
    let limit = rng.random_range(0..=6);
    if rng.random_bool(0.9) { SetLimit::To(limit) } else { SetLimit::IfUnset(limit) }
}

/// Random, unless the environment names one.
fn seed() -> u64 {
    let named = std::env::var("LOCKKIT_CONFORMANCE_SEED").ok();
    named.and_then(|seed| seed.parse().ok()).unwrap_or_else(|| rand::rng().random())
}

/// A driver and the model, asked the same.
struct SideBySide {
    drivers: [Arc<dyn LockDriver>; 2],
    name: String,
    model: Model,
    claims: Vec<Arc<Claim>>,
    tokens: HashMap<ClaimId, Token>,
    highest: Option<Token>,
    log: Vec<String>,
    released: HashSet<ClaimId>,
}

impl SideBySide {
    async fn command(
        &mut self,
        context: &CaseContext,
        rng: &mut StdRng,
        modes: &impl Fn(&mut StdRng, Option<u32>) -> Mode,
    ) -> Result<(), String> {
        let old = self.known(rng);
        match (rng.random_range(0..100), old) {
            (0..40, _) | (_, None) => {
                let claim = context.claim(&self.name, modes(rng, self.model.given()));
                let claim = self.of_some_lifetime(claim, rng);
                self.claims.push(claim.clone());
                let waits = rng.random_bool(0.6) && context.has_line();
                self.acquire(&self.driver_for(&claim, rng), claim, waits).await
            }
            (40..46, Some(claim)) => {
                let (queue, _) = self.model.queue_and_holders();
                let driver = self.driver_for(&claim, rng);
                let waits = rng.random_bool(0.8) && context.has_line();
                let is_queued = queue.iter().any(|queued| queued.id == claim.id);
                let is_broken = self.model.renew(claim.id) == ExpectedResult::Broken;
                // What becomes of a claim that is asked for again after its end is not specified; nor whether a
                // try of one that was broken says so, or that it is busy. A lease that is that of a session goes on
                // after a break, so that its grant, of which the next renewal says that it was broken, is none
                // too long.
                let in_session = context.capabilities().lease_scope == LeaseScope::Session;
                if !is_queued || is_broken && (in_session || !waits) {
                    return Ok(());
                }
                self.acquire(&driver, claim, waits).await
            }
            (46..62, Some(claim)) => self.renew(&self.driver_for(&claim, rng), &claim).await,
            (62..86, Some(claim)) => self.release(&self.driver_for(&claim, rng), &claim).await,
            (86..93, Some(claim)) => self.downgrade(&self.driver_for(&claim, rng), claim).await,
            (_, Some(claim)) => self.break_one(&self.driver_for(&claim, rng), rng).await,
        }
    }

    /// Where only its own driver is asked about a renewed claim, every other one is detached.
    fn of_some_lifetime(&self, claim: Arc<Claim>, rng: &mut StdRng) -> Arc<Claim> {
        let shared = self.drivers[0].capabilities().lease_scope == LeaseScope::Shared;
        match shared && rng.random_bool(0.5) {
            true => Arc::new((*claim).clone().with_lifetime(Lifetime::Detached)),
            false => claim,
        }
    }

    /// Any driver may be asked about any claim; but where claims live in sessions, or with their
    /// process, only the one that made it can renew it. Where renewed claims share what keeps them
    /// alive, only the one that made such a claim is asked about it.
    fn driver_for(&self, claim: &Claim, rng: &mut StdRng) -> Arc<dyn LockDriver> {
        let any = rng.random_range(0..2);
        let same = usize::from(claim.id.as_bytes()[0] % 2);
        let can = self.drivers[0].capabilities();
        let own = match can.lease_scope {
            LeaseScope::Session => true,
            LeaseScope::Shared => claim.lifetime == Lifetime::Renewed,
            _ => !can.detached,
        };
        self.drivers[if own { same } else { any }].clone()
    }

    /// One of the last claims, and often one that is first.
    fn known(&self, rng: &mut StdRng) -> Option<Arc<Claim>> {
        let front = self.model.queue_and_holders().0.first().map(|m| m.id);
        let front = self.claims.iter().find(|c| Some(c.id) == front);
        if let (Some(claim), true) = (front, rng.random_bool(0.4)) {
            return Some(claim.clone());
        }
        let last = self.claims.len().saturating_sub(8)..self.claims.len();
        (!last.is_empty()).then(|| self.claims[rng.random_range(last)].clone())
    }

    /// Notes a command and both answers, and compares these.
    fn same<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: String,
        model: T,
        driver: T,
    ) -> Result<(), String> {
        self.log.push(format!("{what}: {driver:?}"));
        match model == driver {
            true => Ok(()),
            false => Err(format!("{what}: {driver:?}, but the model says {model:?}")),
        }
    }

    fn called(&self, claim: &Claim) -> String {
        let number = self.claims.iter().position(|c| c.id == claim.id);
        format!("claim {} ({:?})", number.unwrap_or(usize::MAX), claim.mode)
    }

    async fn acquire(
        &mut self,
        driver: &Arc<dyn LockDriver>,
        claim: Arc<Claim>,
        waits: bool,
    ) -> Result<(), String> {
        let patience = if waits { Patience::Wait } else { Patience::Try };
        let expected = self.model.acquire(claim.id, claim.mode, waits);
        let answer = match driver.acquire(&claim, patience).await {
            Ok(Attempted { result: Acquisition::Granted(grant), .. }) => {
                self.note_token(&claim, grant.token)?;
                ExpectedResult::Holds
            }
            Ok(Attempted { result: Acquisition::Queued { ahead }, .. }) => {
                ExpectedResult::Waits(ahead)
            }
            Ok(Attempted { result: Acquisition::Busy, .. }) => ExpectedResult::Busy,
            Err(Error::LimitMismatch { in_use, .. }) => ExpectedResult::OtherLimit(in_use),
            Err(Error::Lost { reason: LossReason::Broken(_), .. }) => ExpectedResult::Broken,
            Err(e) => return Err(format!("acquire failed: {e}")),
        };
        let what = format!("acquire {}, {patience:?}", self.called(&claim));
        self.same(what, expected, answer)
    }

    async fn renew(
        &mut self,
        driver: &Arc<dyn LockDriver>,
        claim: &Arc<Claim>,
    ) -> Result<(), String> {
        if self.released.contains(&claim.id) && !driver.capabilities().detached {
            return Ok(()); // its process may have forgotten how it ended
        }
        let expected = self.model.renew(claim.id);
        let renewed = driver.renew_single(claim).await;
        let renewed = renewed.map_err(|e| format!("renew failed: {e}"))?;
        let answer = self.renewal(claim, &renewed)?;
        let what = format!("renew {}", self.called(claim));
        self.same(what, expected, answer)
    }

    fn renewal(&mut self, claim: &Claim, renewal: &Renewal) -> Result<ExpectedResult, String> {
        Ok(match renewal {
            Renewal::Holds(grant) => {
                self.note_token(claim, grant.token)?;
                ExpectedResult::Holds
            }
            Renewal::Waits { ahead } => ExpectedResult::Waits(*ahead),
            Renewal::Ended(ClaimEnd::Broken(_)) => ExpectedResult::Broken,
            Renewal::Ended(_) => ExpectedResult::NotFound,
        })
    }

    async fn release(
        &mut self,
        driver: &Arc<dyn LockDriver>,
        claim: &Arc<Claim>,
    ) -> Result<(), String> {
        self.released.insert(claim.id);
        let expected = match self.model.release(claim.id) {
            (true, _) => Released::Removed,
            (false, true) => Released::NotFound,
            (false, false) => Released::NoSuchLock,
        };
        let answer = driver.release(claim).await;
        let mut answer = answer.map_err(|e| format!("release failed: {e}"))?;
        // A member of a quorum may still have what is on its way out, for it is slower than the
        // majority: then it cannot be told whether others have the lock.
        if !driver.capabilities().fifo
            && (answer, expected) == (Released::NotFound, Released::NoSuchLock)
        {
            answer = expected;
        }
        let what = format!("release {}", self.called(claim));
        self.same(what, expected, answer)
    }

    async fn downgrade(
        &mut self,
        driver: &Arc<dyn LockDriver>,
        claim: Arc<Claim>,
    ) -> Result<(), String> {
        // Only of what holds exclusively, or is gone: core asks for nothing else.
        let standing = self.model.renew(claim.id);
        if claim.mode != Mode::Exclusive
            || !matches!(standing, ExpectedResult::Holds | ExpectedResult::NotFound)
        {
            return Ok(());
        }
        let expected = self.model.downgrade(claim.id);
        let answer = driver.downgrade(&claim).await;
        let answer = answer.map_err(|e| format!("downgrade failed: {e}"))?;
        let answer = self.renewal(&claim, &answer)?;
        let what = format!("downgrade {}", self.called(&claim));
        if answer == ExpectedResult::Holds {
            let shared = Arc::new(Claim::clone(&claim).with_mode(Mode::Shared));
            let known = self.claims.iter_mut().find(|c| c.id == claim.id);
            known.into_iter().for_each(|c| *c = shared.clone());
        }
        self.same(what, expected, answer)
    }

    async fn break_one(
        &mut self,
        driver: &Arc<dyn LockDriver>,
        rng: &mut StdRng,
    ) -> Result<(), String> {
        let (line, _) = self.model.queue_and_holders();
        if line.is_empty() {
            return Ok(());
        }
        let at = rng.random_range(0..line.len());
        let member = line[at];
        let Some(token) = self.tokens.get(&member.id).copied().filter(|_| !member.broken) else {
            return Ok(());
        };
        let force = if rng.random_bool(0.5) { BreakMode::Graceful } else { BreakMode::Forced };
        let key = self.claims[0].key.clone();
        let why = record("the model says so", force == BreakMode::Forced);
        let answer = driver.break_claim(&key, token, force, &why).await;
        let answer = answer.map_err(|e| format!("break failed: {e}"))?;
        self.model.break_at(at, force);
        self.same(format!("break place {at}, {force:?}"), true, answer)
    }

    async fn resize(&mut self, context: &CaseContext, limit: SetLimit) -> Result<(), String> {
        let key = context.key_in(Space::Semaphore, &self.name);
        let expected = self.model.resize(limit);
        let answer = self.drivers[0].resize(&key, limit).await;
        let answer = answer.map_err(|e| format!("resize failed: {e}"))?;
        self.same(format!("resize {limit:?}"), expected, answer)
    }

    /// Compares the list that is shown with the model's.
    async fn compare_queues(&mut self, context: &CaseContext) -> Result<(), String> {
        let Some(first) = self.claims.first() else {
            return Ok(());
        };
        let shown = context.queue(&self.drivers[0], &first.key).await;
        let (line, holders) = self.model.queue_and_holders();
        let expected: Vec<_> =
            line.iter().enumerate().map(|(i, m)| (m.mode, i < holders, m.broken)).collect();
        let roles: Vec<_> = shown.iter().map(|s| (s.mode, s.holds(), s.broken)).collect();
        if roles != expected {
            return Err(format!("the list is {roles:?}, but the model says {expected:?}"));
        }
        let places: Vec<_> = line.iter().map(|m| m.id).zip(shown.iter().map(|s| s.token)).collect();
        for (id, token) in places {
            self.note(id, token)?;
        }
        Ok(())
    }

    fn note_token(&mut self, claim: &Claim, token: Token) -> Result<(), String> {
        self.note(claim.id, token)
    }

    /// A claim keeps its token, and a new one has a greater one than all before.
    fn note(&mut self, id: ClaimId, token: Token) -> Result<(), String> {
        match self.tokens.insert(id, token) {
            Some(before) if before == token => Ok(()),
            Some(before) => Err(format!("a claim's token changed from {before} to {token}")),
            None if Some(token) > self.highest => {
                self.highest = Some(token);
                Ok(())
            }
            None => Err(format!("the token {token} after {:?}", self.highest)),
        }
    }
}
