//! The memory driver against a model that is too simple to be wrong: the same random verbs on
//! both, with time that moves by hand, and every answer and every look must be the same.

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use lockkit_core::clock::{Clock, Moment};
use lockkit_core::driver::{BreakMode, LockDriver, Patience, SetLimit};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::state::ListRequest;
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Key, Mode, Name, Namespace, Space, Token};
use model::Model;
use proptest::prelude::*;

#[derive(Debug)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// A verb on the claims of the pool, by index.
#[derive(Clone, Debug)]
enum Verb {
    Acquire(usize, Patience),
    Granted(usize),
    Renew(Vec<usize>),
    Release(usize),
    Shorten(usize, u64),
    Downgrade(usize),
    Raise(usize, u64),
    /// The claim that stands at this index of its list, or one that does not.
    Break(bool, prop::sample::Index, BreakMode),
    BreakNobody(bool),
    Resize(SetLimit),
    Wait(u64),
}

const POOL: usize = 32;

/// The first half stands for one lock, the other for one semaphore.
fn pool() -> Vec<Arc<Claim>> {
    let identity = Arc::new(identity());
    let claim = |at: usize| {
        let mode = match at {
            0..16 if at.is_multiple_of(3) => Mode::Exclusive,
            0..16 => Mode::Shared,
            _ => Mode::Permits {
                permits: 1 + at as u32 % 3,
                limit: match at {
                    26 | 27 => 0,
                    28 | 29 => 2,
                    31 => 4,
                    _ => 5,
                },
            },
        };
        let hold = Duration::from_millis([5, 12, 30][at % 3]);
        let wait = Duration::from_millis([4, 9, 20][at / 3 % 3]);
        let claim = Claim::new(key(at < 16), mode, hold, wait, identity.clone());
        Arc::new(claim.with_note(Some(format!("claim {at}").into())))
    };
    (0..POOL).map(claim).collect()
}

fn identity() -> ClientIdentity {
    ClientIdentity::new("here", 1, "test")
}

fn key(lock: bool) -> Key {
    let space = if lock { Space::Lock } else { Space::Semaphore };
    Key::new(Namespace::default(), space, Name::new("a").unwrap())
}

fn record(number: u64, force: BreakMode) -> BreakRecord {
    BreakRecord::from_parts(identity(), number, None, force == BreakMode::Forced)
}

fn any_verb() -> impl Strategy<Value = Verb> {
    let patience = prop_oneof![1 => Just(Patience::Try), 3 => Just(Patience::Wait)];
    let force = || prop_oneof![Just(BreakMode::Graceful), Just(BreakMode::Forced)];
    prop_oneof![
        12 => (0..POOL, patience).prop_map(|(c, p)| Verb::Acquire(c, p)),
        4 => (0..POOL).prop_map(Verb::Granted),
        4 => proptest::collection::vec(0..POOL, 1..8).prop_map(Verb::Renew),
        5 => (0..POOL).prop_map(Verb::Release),
        1 => (0..POOL, 0..30_u64).prop_map(|(c, ttl)| Verb::Shorten(c, ttl)),
        2 => (0..POOL).prop_map(Verb::Downgrade),
        1 => (0..POOL, 0..6_u64).prop_map(|(c, more)| Verb::Raise(c, more)),
        2 => (any::<bool>(), any::<prop::sample::Index>(), force())
            .prop_map(|(lock, at, force)| Verb::Break(lock, at, force)),
        1 => any::<bool>().prop_map(Verb::BreakNobody),
        1 => prop_oneof![Just(0), Just(2), Just(4), Just(5), Just(5), Just(7)]
            .prop_map(|limit| Verb::Resize(SetLimit::To(limit))),
        1 => Just(Verb::Resize(SetLimit::IfUnset(5))),
        4 => (1..8_u64).prop_map(Verb::Wait),
        // Long enough for break records to be forgotten.
        1 => prop_oneof![Just(40_000), Just(60_000)].prop_map(Verb::Wait),
    ]
}

/// Both sides, and the time.
struct Both {
    driver: MemoryDriver,
    model: Model,
    clock: Arc<HandClock>,
    pool: Vec<Arc<Claim>>,
    verbs: u64,
}

impl Both {
    fn new() -> Self {
        let clock = Arc::new(HandClock(AtomicU64::new(1_000_000_000)));
        Self {
            driver: MemoryDriver::with_clock(clock.clone()),
            model: Model::default(),
            clock,
            pool: pool(),
            verbs: 0,
        }
    }

    /// Does the verb on both sides; gives the driver's answer and the model's.
    async fn apply(&mut self, verb: &Verb) -> (String, String) {
        self.verbs += 1;
        let now = self.clock.now();
        let (driver, model) = (&self.driver, &mut self.model);
        let claim = |at: &usize| self.pool[*at].clone();
        match verb {
            Verb::Acquire(c, patience) => pair(
                driver.acquire(&claim(c), *patience).await.map(|told| told.result),
                model.acquire(&claim(c), *patience, now),
            ),
            Verb::Granted(c) => {
                pair(driver.granted(&claim(c)).now_or_never(), model.granted(&claim(c), now))
            }
            Verb::Renew(some) => {
                let claims: Vec<_> = some.iter().map(claim).collect();
                let renewals: Vec<_> = claims.iter().map(|c| model.renew(c, now)).collect();
                let answers = driver.renew(&claims).await.unwrap();
                let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
                pair(answers, renewals)
            }
            Verb::Release(c) => {
                pair(driver.release(&claim(c)).await.unwrap(), model.release(&claim(c), now))
            }
            Verb::Shorten(c, ttl) => {
                let ttl = Duration::from_millis(*ttl);
                pair(
                    driver.shorten(&claim(c), ttl).await.unwrap(),
                    model.shorten(&claim(c), ttl, now),
                )
            }
            Verb::Downgrade(c) => {
                pair(driver.downgrade(&claim(c)).await.unwrap(), model.downgrade(&claim(c), now))
            }
            Verb::Raise(c, more) => {
                let token = Token::new(model.last_token() + more).unwrap_or(Token::new(1).unwrap());
                pair(
                    driver.raise(&claim(c), token).await.unwrap(),
                    model.raise(&claim(c), token, now),
                )
            }
            Verb::Break(lock, at, force) => {
                let key = key(*lock);
                let line = model.look(&key, now).queue;
                let Some(token) = (!line.is_empty()).then(|| line[at.index(line.len())].token)
                else {
                    return pair((), ());
                };
                let record = record(self.verbs, *force);
                pair(
                    driver.break_claim(&key, token, *force, &record).await.unwrap(),
                    model.break_claim(&key, token, *force, &record, now),
                )
            }
            Verb::BreakNobody(lock) => {
                let (key, force) = (key(*lock), BreakMode::Forced);
                let (token, record) = (Token::new(i64::MAX as u64).unwrap(), record(0, force));
                pair(
                    driver.break_claim(&key, token, force, &record).await.unwrap(),
                    model.break_claim(&key, token, force, &record, now),
                )
            }
            Verb::Resize(limit) => {
                let key = key(false);
                pair(driver.resize(&key, *limit).await.unwrap(), model.resize(&key, *limit, now))
            }
            Verb::Wait(ms) => {
                self.clock.0.fetch_add(ms * 1_000_000, Ordering::SeqCst);
                let now = self.clock.now();
                // Breaking nobody has ended claims go and the next ones begin: the driver does that
                // now and then by itself, for lists that nobody touches.
                for key in [key(true), key(false)] {
                    let (token, force) = (Token::new(i64::MAX as u64).unwrap(), BreakMode::Forced);
                    let record = record(0, force);
                    driver.break_claim(&key, token, force, &record).await.unwrap();
                    model.break_claim(&key, token, force, &record, now);
                }
                pair((), ())
            }
        }
    }

    /// What both show of everything.
    async fn look(&mut self) -> (String, String) {
        let now = self.clock.now();
        let keys = [key(true), key(false)];
        let mut driver = Vec::new();
        for key in &keys {
            driver.push(self.driver.inspect(key).await.unwrap());
        }
        let request = ListRequest {
            namespace: Namespace::default(),
            space: None,
            prefix: String::new(),
            after: None,
            limit: 10,
        };
        driver.extend(self.driver.list(&request).await.unwrap().states);
        let mut model: Vec<_> = keys.iter().map(|key| self.model.look(key, now)).collect();
        let in_use: Vec<_> = model.iter().filter(|s| !s.is_free()).cloned().collect();
        model.extend(in_use);
        pair(driver, model)
    }
}

fn pair(driver: impl std::fmt::Debug, model: impl std::fmt::Debug) -> (String, String) {
    (format!("{driver:#?}"), format!("{model:#?}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_driver_answers_every_sequence_of_verbs_as_the_model_does(
        verbs in proptest::collection::vec(any_verb(), 1..150)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut both = Both::new();
            for verb in &verbs {
                let (driver, model) = both.apply(verb).await;
                prop_assert_eq!(driver, model, "the answer to {:?}", verb);
                let (driver, model) = both.look().await;
                prop_assert_eq!(driver, model, "what is seen after {:?}", verb);
            }
            Ok(())
        })?;
    }
}
