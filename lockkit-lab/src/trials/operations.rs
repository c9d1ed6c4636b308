//! The operations of a driver, one by one: how each is prepared, done and checked. What went wrong
//! on the way is not known here: an operation that failed is done again, as core does it.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, BreakMode, Grant, LockDriver, Patience, Precondition, RegisterKey, Registers,
    Renewal, Version, Write, WriteId, WriteResult,
};
use lockkit_core::state::ListRequest;
use lockkit_core::{Capabilities, Claim, Error, Mode, Name, Token};
use tokio::sync::Mutex;

use super::TrialSetup;
use super::scene::settled;
use crate::proxy::Proxy;
use lockkit_conformance::context::{CaseContext, MustSucceed, PATIENCE};
use lockkit_conformance::listing;

/// What a driver can be asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Connect,
    Acquire,
    AcquireShared,
    RefusedTry,
    Queue,
    Turn,
    Renew,
    Shorten,
    Release,
    Downgrade,
    Raise,
    Break,
    Inspect,
    List,
    Namespaces,
    Load,
    Store,
    Delete,
    Changed,
    Page,
}

impl Operation {
    /// Those that this driver has.
    pub(super) fn of(can: &Capabilities) -> Vec<Self> {
        use Operation as O;
        let mut all = vec![
            O::Connect,
            O::Acquire,
            O::AcquireShared,
            O::RefusedTry,
            O::Queue,
            O::Turn,
            O::Renew,
            O::Release,
            O::Downgrade,
            O::Break,
            O::Inspect,
            O::List,
        ];
        all.extend(can.shorten.then_some(O::Shorten));
        all.extend(can.raise.then_some(O::Raise));
        all.extend(can.namespaces.then_some(O::Namespaces));
        if can.registers {
            all.extend([O::Load, O::Store, O::Delete, O::Changed, O::Page]);
        }
        all
    }
}

impl Operation {
    /// Whether something may be left when it failed and is not repeated.
    pub(super) fn leaves_something(self) -> bool {
        use Operation as O;
        let looks =
            matches!(self, O::Inspect | O::List | O::Namespaces | O::Load | O::Changed | O::Page);
        !(looks || matches!(self, O::Connect | O::Store | O::Delete))
    }
}

/// One operation of one client, behind a proxy of its own.
pub(super) struct Client {
    pub(super) operation: Operation,
    pub(super) proxy: Proxy,
    context: CaseContext,
    /// `None` until it has connected.
    driver: Mutex<Option<Arc<dyn LockDriver>>>,
    /// Another client, past all proxies.
    others: Arc<dyn LockDriver>,
    /// Its claim.
    claim: Arc<Claim>,
    /// Another client's claim to the same lock.
    other: Arc<Claim>,
    /// The greatest token that was given before the operation.
    highest: Option<Token>,
    at: RegisterKey,
    version: Option<Version>,
    store: Write,
}

impl Client {
    /// Does everything that comes before the operation.
    pub(super) async fn prepared(
        stage: &TrialSetup,
        others: &Arc<dyn LockDriver>,
        operation: Operation,
    ) -> Self {
        let context = stage.context().clone();
        let proxy = stage.proxy().await;
        let name = lockkit_core::driver::ClaimId::random().to_hex();
        let mode = match operation {
            Operation::AcquireShared => Mode::Shared,
            _ => Mode::Exclusive,
        };
        let mut client = Self {
            operation,
            driver: Mutex::new(None),
            others: others.clone(),
            claim: context.claim(&name, mode),
            other: context.exclusive(&name),
            highest: None,
            at: RegisterKey {
                namespace: context.namespace().clone(),
                name: Name::new(&name).expect("a valid name"),
            },
            version: None,
            store: store(b"mine", Precondition::Absent),
            context,
            proxy,
        };
        if operation != Operation::Connect {
            let driver = stage.through(&client.proxy).await;
            client.set_up(&driver).await;
            *client.driver.lock().await = Some(driver);
            settled(&client.proxy).await;
        }
        client.proxy.reset();
        client
    }

    async fn set_up(&mut self, driver: &Arc<dyn LockDriver>) {
        use Operation as O;
        // The connection is warm, and the lock has been in use.
        let claim = self.context.exclusive(self.claim.key.name.as_str());
        self.highest = Some(driver.grant(&claim).await.token);
        driver.let_go(&claim).await;
        let grant = match self.operation {
            O::RefusedTry | O::Queue | O::Break => Some(self.others.grant(&self.other).await),
            O::Turn => {
                let grant = self.others.grant(&self.other).await;
                driver.queue(&self.claim).await;
                Some(grant)
            }
            O::Renew | O::Shorten | O::Release | O::Downgrade | O::Raise => {
                Some(driver.grant(&self.claim).await)
            }
            O::Inspect | O::List | O::Namespaces => Some(driver.grant(&self.claim).await),
            _ => None,
        };
        if let (Some(grant), false) = (grant, self.operation == O::Turn) {
            self.highest = Some(grant.token);
        }
        if matches!(self.operation, O::Load | O::Delete | O::Changed | O::Page) {
            let first = store(b"first", Precondition::Absent);
            let outcome = registers(&self.others).write(&self.at, &first).await;
            self.version = Some(stored(outcome.expect("it is stored").result));
        }
    }

    /// Does the operation once. An answer that is wrong panics.
    pub(super) async fn act(&self, stage: &TrialSetup) -> Result<(), Error> {
        use Operation as O;
        let mut driver = self.driver.lock().await;
        if driver.is_none() {
            *driver = Some(stage.connect(&self.proxy).await?);
        }
        let driver = driver.as_ref().expect("it has just been made");
        let claim = &self.claim;
        match self.operation {
            O::Connect => driver.health().await.map(drop),
            O::Acquire | O::AcquireShared => {
                match driver.acquire(claim, Patience::Try).await?.result {
                    Acquisition::Granted(grant) => self.greater(grant),
                    other => panic!("it is free: {other:?}"),
                }
            }
            O::RefusedTry => match driver.acquire(claim, Patience::Try).await?.result {
                Acquisition::Busy => Ok(()),
                other => panic!("it is held: {other:?}"),
            },
            O::Queue => match driver.acquire(claim, Patience::Wait).await?.result {
                Acquisition::Queued { ahead: 1 } => Ok(()),
                other => panic!("one is ahead: {other:?}"),
            },
            O::Turn => self.turn(driver).await,
            O::Renew => self.held(Some(driver.renew_single(claim).await?)),
            O::Shorten => self.held(Some(driver.shorten(claim, Duration::from_secs(60)).await?)),
            O::Release => driver.release(claim).await.map(drop),
            O::Downgrade => self.held(Some(driver.downgrade(claim).await?)),
            O::Raise => {
                let raised = Token::new(self.highest.map_or(1, Token::get) + 1_000);
                let answer = driver.raise(claim, raised.expect("far from the greatest")).await?;
                assert!(matches!(answer, Renewal::Holds(g) if Some(g.token) >= raised));
                Ok(())
            }
            O::Break => {
                let token = self.highest.expect("it is held");
                let record = listing::record("it is in the way", true);
                let force = BreakMode::Forced;
                driver.break_claim(&claim.key, token, force, &record).await.map(drop)
            }
            O::Inspect => {
                let state = driver.inspect(&claim.key).await?;
                assert_eq!(state.queue.len(), 1, "{state:?}");
                Ok(())
            }
            O::List => self.listed(driver).await,
            O::Namespaces => {
                let all = listing::namespaces(driver, 1_000).await?;
                assert!(all.contains(self.context.namespace()), "{all:?}");
                Ok(())
            }
            O::Load | O::Store | O::Delete | O::Changed | O::Page => self.on_register(driver).await,
        }
    }

    /// Lets the one ahead go and waits for the turn, renewing meanwhile as core does.
    async fn turn(&self, driver: &Arc<dyn LockDriver>) -> Result<(), Error> {
        self.others.let_go(&self.other).await;
        let told = driver.granted(&self.claim);
        tokio::pin!(told);
        loop {
            tokio::select! {
                grant = &mut told => return self.greater(grant?),
                () = tokio::time::sleep(Duration::from_secs(1)) => {
                    let renewed = driver.renew_single(&self.claim).await?;
                    if let Renewal::Holds(grant) = renewed {
                        return self.greater(grant);
                    }
                }
            }
        }
    }

    async fn listed(&self, driver: &Arc<dyn LockDriver>) -> Result<(), Error> {
        let request = ListRequest {
            namespace: self.context.namespace().clone(),
            space: None,
            prefix: self.claim.key.name.as_str().to_owned(),
            after: None,
            limit: 10,
        };
        let page = driver.list(&request).await?;
        assert_eq!(page.states.len(), 1, "{page:?}");
        Ok(())
    }

    async fn on_register(&self, driver: &Arc<dyn LockDriver>) -> Result<(), Error> {
        let registers = registers(driver);
        match self.operation {
            Operation::Load => {
                let entry = registers.load(&self.at).await?.expect("it was stored");
                assert_eq!(
                    (entry.value.as_slice(), Some(entry.version)),
                    (&b"first"[..], self.version)
                );
            }
            Operation::Page => {
                let (namespace, name) = (self.context.namespace(), self.at.name.as_str());
                let page = listing::registers(driver, namespace, name, 10).await?;
                let shown: Vec<_> = page.iter().map(|it| (Some(it.version), it.bytes)).collect();
                assert_eq!(shown, [(self.version, b"first".len())]);
            }
            // The same write, however often: never a conflict with itself.
            Operation::Store => {
                stored(registers.write(&self.at, &self.store).await?.result);
            }
            Operation::Delete => {
                let expect = self.version.map_or(Precondition::Absent, Precondition::Version);
                let write_id = self.store.write_id;
                let delete = Write { expect, write_id, ..Write::of(None) };
                stored(registers.write(&self.at, &delete).await?.result);
            }
            _ => {
                let waiting = registers.changed(&self.at, self.version);
                let change = async {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    let write = Write { expect: Precondition::Anything, ..self.store.clone() };
                    self::registers(&self.others).write(&self.at, &write).await
                };
                let (changed, outcome) = tokio::join!(waiting, change);
                let version = stored(outcome.expect("others can store").result);
                assert_eq!(changed?.map(|e| e.version), Some(version));
            }
        }
        Ok(())
    }

    /// Looks at what others see once the operation was answered, and that the lock works.
    pub(super) async fn check(&self) {
        use Operation as O;
        let key = &self.claim.key;
        let state = self.context.state(&self.others, key).await;
        let stands: Vec<_> = state.queue.iter().map(|s| (s.mode, s.holds())).collect();
        let (held, shared) = ((Mode::Exclusive, true), (Mode::Shared, true));
        let expected = match self.operation {
            O::Acquire | O::Turn | O::Renew | O::Shorten | O::Raise => vec![held],
            O::Inspect | O::List | O::Namespaces | O::RefusedTry => vec![held],
            O::AcquireShared | O::Downgrade => vec![shared],
            O::Queue if self.context.has_line() => vec![held, (Mode::Exclusive, false)],
            O::Queue => vec![held],
            O::Connect | O::Release | O::Break => vec![],
            O::Load | O::Store | O::Delete | O::Changed | O::Page => vec![],
        };
        assert_eq!(stands, expected, "{:?}: {state:?}", self.operation);
        match self.operation {
            O::Store => assert_eq!(self.entry().await, Some(b"mine".to_vec())),
            O::Delete => assert_eq!(self.entry().await, None),
            _ => {}
        }
        self.given_up().await;
    }

    async fn entry(&self) -> Option<Vec<u8>> {
        let entry = registers(&self.others).load(&self.at).await;
        entry.expect("others can load").map(|entry| entry.value)
    }

    /// Gives everything back as core does when it is no longer wanted, and checks that it is
    /// free then, and works.
    pub(super) async fn given_up(&self) {
        let driver = self.driver.lock().await.clone();
        if let Some(driver) = driver {
            let release = || driver.release(&self.claim);
            let released = super::scene::answered(&self.context, "it is released", release).await;
            released.unwrap_or_else(|e| panic!("a release is repeated until it is answered: {e}"));
        }
        self.others.let_go(&self.other).await;
        self.context.free(&self.others, &self.claim.key, PATIENCE).await;
        let next = self.context.exclusive(self.claim.key.name.as_str());
        let grant = self.others.grant(&next).await;
        let _ = self.greater(grant);
        self.others.let_go(&next).await;
    }

    fn greater(&self, grant: Grant) -> Result<(), Error> {
        let greater = Some(grant.token) > self.highest;
        assert!(greater, "{:?}: {:?} after {:?}", self.operation, grant.token, self.highest);
        Ok(())
    }

    fn held(&self, renewal: Option<Renewal>) -> Result<(), Error> {
        let holds = matches!(&renewal, Some(Renewal::Holds(g)) if Some(g.token) == self.highest);
        assert!(holds, "{:?}: it is held, and not {renewal:?}", self.operation);
        Ok(())
    }
}

fn registers(driver: &Arc<dyn LockDriver>) -> &dyn Registers {
    driver.registers().expect("the driver says that it has registers")
}

fn store(value: &[u8], expect: Precondition) -> Write {
    Write {
        value: Some(value.to_vec()),
        expect,
        token: None,
        write_id: WriteId::random(),
        ttl: None,
        repeated: false,
    }
}

fn stored(outcome: WriteResult) -> Version {
    match outcome {
        WriteResult::Stored(version) => version,
        other => panic!("it is the only write, so it is stored, and not {other:?}"),
    }
}
