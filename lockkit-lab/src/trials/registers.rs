//! Registers across a restart, a cut connection, a lost answer.

use std::sync::Arc;

use lockkit_core::capabilities::Fault;
use lockkit_core::driver::{
    Attempted, LockDriver, Precondition, RegisterKey, Registers, Version, Write, WriteId,
    WriteResult,
};
use lockkit_core::{Error, Name, Token};

use super::scene::{answered, guarantee, settled};
use super::stage::staged;
use super::{NotApplicable, TrialResult, TrialSetup};
use crate::Data;
use crate::proxy::{ProxyFault as Network, When};
use lockkit_conformance::context::{CaseContext, MustSucceed};

pub async fn register_04_tokens_are_remembered_across_a_restart(stage: TrialSetup) -> TrialResult {
    let context = stage.context();
    offered(context)?;
    guarantee(context, Fault::ServerRestarts)?;
    let at = at(context);
    let driver = context.driver().await;
    let (old, new) = two_tokens(context, &driver).await;
    let version = stored(registers(&driver).write(&at, &write(b"new", Some(new))).await);
    staged(stage.server().restart(Data::Keep).await);
    let fresh = answered(context, "a new client connects", || context.harness().driver()).await;
    for driver in [driver, fresh.expect("a new client connects")] {
        let load = || registers(&driver).load(&at);
        let entry = answered(context, "it is loaded", load).await.expect("it is loaded");
        let entry = entry.expect("it is there still");
        assert_eq!((entry.value, entry.version), (b"new".to_vec(), version));
        assert_eq!(entry.token, Some(new), "the token is remembered");
        let late = registers(&driver).write(&at, &write(b"late", Some(old))).await;
        assert_eq!(late.expect("it is answered").result, WriteResult::Stale { highest: new });
    }
    Ok(())
}

pub async fn register_05_changed_survives_a_cut_connection(stage: TrialSetup) -> TrialResult {
    let context = stage.context();
    offered(context)?;
    let at = at(context);
    let others = context.driver().await;
    let mut seen = Some(stored(registers(&others).write(&at, &write(b"0", None)).await));
    let proxy = stage.proxy().await;
    let driver = stage.through(&proxy).await;
    for round in 1..=3 {
        let waiting = tokio::spawn({
            let (driver, at, context) = (driver.clone(), at.clone(), context.clone());
            async move {
                let ask = || registers(&driver).changed(&at, seen);
                answered(&context, "the change is told", ask).await
            }
        });
        settled(&proxy).await;
        proxy.fault(Network::Cut, When::Now);
        let value = format!("{round}").into_bytes();
        let version = stored(registers(&others).write(&at, &write(&value, None)).await);
        let told = context.soon("the change is told", waiting).await.expect("no panic");
        let entry = told.expect("it is told after all").expect("there is a value");
        assert_eq!((entry.value, entry.version), (value, version));
        seen = Some(version);
    }
    Ok(())
}

pub async fn register_06_a_write_whose_answer_was_lost_is_distinguished_from_a_conflict(
    stage: TrialSetup,
) -> TrialResult {
    let context = stage.context();
    offered(context)?;
    let at = at(context);
    let others = context.driver().await;
    let proxy = stage.proxy().await;
    let driver = stage.through(&proxy).await;
    let mut seen = stored(registers(&driver).write(&at, &write(b"0", None)).await);
    for fault in [(Network::Cut, When::Answer(1)), (Network::Mute, When::Request(1))] {
        settled(&proxy).await;
        let mut strike = proxy.fault(fault.0, fault.1);
        let mut mine = write(b"mine", None);
        mine.expect = Precondition::Version(seen);
        let store = || registers(&driver).write(&at, &mine);
        let outcome = answered(context, "it is answered", store).await;
        context.soon("the answer is lost", strike.struck()).await;
        let version = stored(outcome);
        // Another caller that expected the same is in conflict, and so am I once overwritten.
        let mut theirs = write(b"theirs", None);
        theirs.expect = Precondition::Version(seen);
        assert_eq!(conflict(&others, &at, &theirs).await, WriteResult::Conflict);
        theirs.expect = Precondition::Version(version);
        seen = stored(registers(&others).write(&at, &theirs).await);
        assert_eq!(conflict(&driver, &at, &mine).await, WriteResult::Conflict);
    }
    Ok(())
}

async fn conflict(driver: &Arc<dyn LockDriver>, at: &RegisterKey, store: &Write) -> WriteResult {
    registers(driver).write(at, store).await.expect("it is answered").result
}

fn offered(context: &CaseContext) -> TrialResult {
    match context.capabilities().registers {
        true => Ok(()),
        false => NotApplicable::because("the driver has no registers"),
    }
}

fn at(context: &CaseContext) -> RegisterKey {
    let name = Name::new("r").expect("a valid name");
    RegisterKey { namespace: context.namespace().clone(), name }
}

fn registers(driver: &Arc<dyn LockDriver>) -> &dyn Registers {
    driver.registers().expect("the driver says that it has registers")
}

fn write(value: &[u8], token: Option<Token>) -> Write {
    let value = value.to_vec();
    Write {
        value: Some(value),
        expect: Precondition::Anything,
        token,
        write_id: WriteId::random(),
        ttl: None,
        repeated: false,
    }
}

fn stored(outcome: Result<Attempted<WriteResult>, Error>) -> Version {
    match outcome.map(|answered| answered.result) {
        Ok(WriteResult::Stored(version)) => version,
        other => panic!("it should have been stored: {other:?}"),
    }
}

/// The tokens of two holders, one after the other.
async fn two_tokens(context: &CaseContext, driver: &Arc<dyn LockDriver>) -> (Token, Token) {
    let claims = [context.exclusive("r"), context.exclusive("r")];
    let first = driver.grant(&claims[0]).await.token;
    driver.let_go(&claims[0]).await;
    let second = driver.grant(&claims[1]).await.token;
    driver.let_go(&claims[1]).await;
    (first, second)
}
