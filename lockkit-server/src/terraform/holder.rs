//! The claim that is the lock of a state: taking it, finding it, ending it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkit_core::driver::{Acquire, Acquisition, BreakMode, ClaimId, Patience};
use lockkit_core::state::ClaimState;
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Error, Lifetime, Mode, Token};
use lockkit_http::wire::Code;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::head::Head;
use super::info::{LockInfo, id_of_note};
use super::{Result, Target};
use crate::response::ErrorResponse;
use crate::service::{with_offset, without_offset};

/// How long a claim would wait: it never does.
const WAIT_TTL: Duration = Duration::from_secs(10);

/// The claim that holds a state.
pub(super) struct StateHolder {
    pub(super) token: Token,
    /// Terraform's id; `None` where another program holds.
    pub(super) id: Option<String>,
    /// The JSON to show: as it was sent, or what the claim's note has of it.
    pub(super) info: String,
}

impl Target {
    /// Takes the lock; `None` when another claim holds. Taking it again with the same id gives the
    /// same token, on any server and for any caller.
    pub(super) async fn take(&self, info: &LockInfo, ttl: Duration) -> Result<Option<Token>> {
        let claim = self.claim(&info.id, ttl, info.identity()).with_note(Some(info.note().into()));
        claim.check(self.service.driver().capabilities())?;
        let acquire = Acquire { claim: Arc::new(claim), patience: Patience::Try };
        match self.service.acquire(acquire).await?.result {
            Acquisition::Granted(grant) => {
                let offset = self.service.token_offset(&self.namespace).await?;
                Ok(Some(with_offset(grant, offset).token))
            }
            Acquisition::Queued { .. } | Acquisition::Busy => Ok(None),
        }
    }

    /// Releases the claim of this id, if it is there.
    pub(super) async fn release(&self, id: &str) -> Result<()> {
        let claim = self.claim(id, WAIT_TTL, ClientIdentity::unknown());
        self.service.release(Arc::new(claim)).await?;
        Ok(())
    }

    /// The claim whose id all servers make of the state and Terraform's id.
    fn claim(&self, id: &str, ttl: Duration, identity: ClientIdentity) -> Claim {
        // Names and ids have no control characters, so no two triples meet.
        let digest = Sha256::new()
            .chain_update(b"lockkit-terraform\0")
            .chain_update(self.namespace.as_str())
            .chain_update(b"\0")
            .chain_update(self.name.as_str())
            .chain_update(b"\0")
            .chain_update(id);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest.finalize()[..16]);
        Claim::new(self.key(), Mode::Exclusive, ttl, WAIT_TTL, Arc::new(identity))
            .with_lifetime(Lifetime::Detached)
            .with_id(ClaimId::from_bytes(bytes))
    }

    /// The claim that holds now. One read, which renews nothing.
    pub(super) async fn holder(&self, head: &Head) -> Result<Option<StateHolder>> {
        let state = self.service.driver().inspect(&self.key()).await?;
        if let Some(why) = state.damaged {
            let backend = self.service.driver().capabilities().backend;
            return Err(Error::permanent(backend, why).into());
        }
        let offset = self.service.token_offset(&self.namespace).await?;
        let holder = state.queue.into_iter().find(ClaimState::holds);
        Ok(holder.map(|holder| StateHolder::of(holder, offset, head)))
    }

    /// Breaks the claim of this holder; its record names the caller.
    pub(super) async fn break_holder(&self, holder: &StateHolder) -> Result<()> {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let record = BreakRecord::from_parts(
            self.caller.breaker(None),
            u64::try_from(at).unwrap_or(0),
            Some("UNLOCK without an ID (terraform force-unlock)".to_owned()),
            true,
        );
        record.check()?;
        let offset = self.service.token_offset(&self.namespace).await?;
        let token = without_offset(holder.token, offset);
        let token = token.ok_or_else(|| {
            ErrorResponse::new(Code::Unavailable, "the tokens of this namespace were raised")
        })?;
        let driver = self.service.driver();
        driver.break_claim(&self.key(), token, BreakMode::Forced, &record).await?;
        Ok(())
    }
}

impl StateHolder {
    fn of(claim: ClaimState, offset: u64, head: &Head) -> Self {
        let token = Token::new(claim.token.get().saturating_add(offset)).unwrap_or(claim.token);
        if let Some(lock) = head.lock.as_ref().filter(|lock| lock.token == token.get()) {
            return Self { token, id: Some(lock.id.clone()), info: lock.info.clone() };
        }
        // The service ended between the claim and the head, or another program holds.
        let note = claim.note.unwrap_or_default();
        let id = id_of_note(&note);
        let info = match &id {
            Some(_) => note,
            // An empty ID would keep `-lock-timeout` from trying again.
            None => {
                let who = claim.identity.to_string();
                json!({"ID": format!("token {token}"), "Who": who, "Info": note}).to_string()
            }
        };
        Self { token, id, info }
    }
}
