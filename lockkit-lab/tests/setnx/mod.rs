//! A lock that is wrong on purpose, on a real Redis: `SET NX PX`, `DEL` without a look at the
//! owner, no renewal, no token. What many programs have, and the judge must convict.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Capabilities;
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::*;
use lockkit_core::state::{ClaimState, Health, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Error, Key, Mode, Token};
use lockkit_lab::raw::resp::{RespConnection, RespReply};
use tokio::sync::Mutex as AsyncMutex;

#[derive(Debug)]
pub(crate) struct SetNx {
    addr: SocketAddr,
    connection: AsyncMutex<Option<RespConnection>>,
    /// What this client believes that it holds.
    believed: Mutex<HashSet<ClaimId>>,
    prefix: String,
}

const CAPABILITIES: Capabilities = Capabilities::of("setnx");

impl SetNx {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        let connection = AsyncMutex::default();
        let prefix = format!("setnx-{}", std::process::id());
        Self { addr, connection, believed: Mutex::default(), prefix }
    }

    async fn call(&self, words: &[&str]) -> Result<RespReply, Error> {
        let mut connection = self.connection.lock().await;
        if connection.is_none() {
            *connection = Some(RespConnection::open(self.addr).await.map_err(failed)?);
        }
        connection.as_mut().unwrap().call(words).await.map_err(failed)
    }

    fn name(&self, key: &Key) -> String {
        format!("{}/{}/{}", self.prefix, key.space, key.name)
    }

    async fn take(&self, claim: &Claim) -> Result<bool, Error> {
        let ttl = claim.hold_ttl.as_millis().to_string();
        let reply = self.call(&["SET", &self.name(&claim.key), "x", "NX", "PX", &ttl]).await?;
        let taken = reply.text() == "OK";
        if taken {
            self.believed.lock().unwrap().insert(claim.id);
        }
        Ok(taken)
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::retryable("setnx", error)
}

fn grant(claim: &Claim) -> Grant {
    Grant {
        token: Token::new(1).unwrap(),
        ttl: claim.hold_ttl,
        start: LeaseStart::LastAnswered,
        margin: Duration::ZERO,
    }
}

impl SetNx {
    async fn acquire_one(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Acquisition, Error> {
        Ok(match (self.take(claim).await?, patience) {
            (true, _) => Acquisition::Granted(grant(claim)),
            (false, Patience::Try) => Acquisition::Busy,
            (false, Patience::Wait) => Acquisition::Queued { ahead: 1 },
        })
    }

    async fn release_one(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        if self.believed.lock().unwrap().remove(&claim.id) {
            self.call(&["DEL", &self.name(&claim.key)]).await?;
            return Ok(Released::Removed);
        }
        Ok(Released::NotFound)
    }
}

#[async_trait]
impl LockDriver for SetNx {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let acquire = |one: Acquire| async move {
            let acquired = self.acquire_one(&one.claim, one.patience).await;
            acquired.map(Attempted::from).map_err(BatchError::unknown)
        };
        let release = |claim| async move {
            self.release_one(&claim).await.map(Attempted::from).map_err(BatchError::unknown)
        };
        Ok(submit_each(batch, acquire, release).await)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        while !self.take(claim).await? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(grant(claim))
    }

    /// Renews nothing, and says that all is well.
    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let believed = self.believed.lock().unwrap();
        let state = |claim: &Arc<Claim>| match believed.contains(&claim.id) {
            true => Renewal::Holds(grant(claim)),
            false => Renewal::Waits { ahead: 1 },
        };
        Ok(claims.iter().map(state).map(Ok).collect())
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        Ok(Renewal::Holds(grant(claim)))
    }

    async fn break_claim(
        &self,
        _: &Key,
        _: Token,
        _: BreakMode,
        _: &BreakRecord,
    ) -> Result<bool, Error> {
        Err(self.unsupported("breaking"))
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let held = self.call(&["EXISTS", &self.name(key)]).await? == RespReply::Number(1);
        let token = Token::new(1).unwrap();
        let standing = ClaimState::new(token, Mode::Exclusive, ClientIdentity::of_this_process());
        let line = if held { vec![standing] } else { Vec::new() };
        Ok(LockState::new(key.clone(), line, None))
    }

    async fn list(&self, _: &ListRequest) -> Result<Page, Error> {
        Err(self.unsupported("listing"))
    }

    async fn health(&self) -> Result<Health, Error> {
        Ok(Health::well("SET NX"))
    }
}
