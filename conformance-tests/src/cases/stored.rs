//! A register for cases, and what they write to it.

use std::sync::Arc;

use lockkit_core::driver::{
    LockDriver, Precondition, RegisterEntry, RegisterKey, Registers, Version, Write, WriteId,
    WriteResult,
};
use lockkit_core::{Name, Token};

use crate::context::{CaseContext, MustSucceed};

/// A register of this case, over a driver of its own.
#[derive(Clone)]
pub(super) struct Register {
    pub(super) driver: Arc<dyn LockDriver>,
    pub(super) at: RegisterKey,
}

impl Register {
    pub(super) async fn new(context: &CaseContext, name: &str) -> Self {
        Self {
            driver: context.driver().await,
            at: RegisterKey {
                namespace: context.namespace().clone(),
                name: Name::new(name).expect("a valid name"),
            },
        }
    }

    pub(super) fn registers(&self) -> &dyn Registers {
        self.driver.registers().expect("the driver says that it has registers")
    }

    pub(super) async fn load(&self) -> Option<RegisterEntry> {
        self.registers().load(&self.at).await.expect("it can be loaded")
    }

    pub(super) async fn store(&self, store: Write) -> WriteResult {
        let outcome = self.registers().write(&self.at, &store).await;
        outcome.expect("a store is answered").result
    }

    pub(super) async fn delete(&self, deletion: Write) -> WriteResult {
        let outcome = self.registers().write(&self.at, &deletion).await;
        outcome.expect("a deletion is answered").result
    }

    pub(super) async fn must_store(&self, store: Write) -> Version {
        match self.store(store).await {
            WriteResult::Stored(version) => version,
            other => panic!("it should have been stored: {other:?}"),
        }
    }

    pub(super) async fn changed(&self, after: Option<Version>) -> Option<RegisterEntry> {
        let changed = self.registers().changed(&self.at, after).await;
        changed.expect("a change can be waited for")
    }
}

pub(super) fn write(value: &[u8]) -> Write {
    Write {
        value: Some(value.to_vec()),
        expect: Precondition::Anything,
        token: None,
        write_id: WriteId::random(),
        ttl: None,
        repeated: false,
    }
}

pub(super) fn write_with(value: &[u8], token: Token) -> Write {
    let mut store = write(value);
    store.token = Some(token);
    store
}

/// The tokens of two holders, one after the other.
pub(super) async fn two_tokens(context: &CaseContext) -> (Token, Token) {
    let driver = context.driver().await;
    let claims = [context.exclusive("r"), context.exclusive("r")];
    let first = driver.grant(&claims[0]).await.token;
    driver.let_go(&claims[0]).await;
    let second = driver.grant(&claims[1]).await.token;
    (first, second)
}
