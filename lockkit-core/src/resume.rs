//! Detached locks: a manager goes on with one that a ticket stands for, or releases it.

use std::sync::Arc;
use std::time::Duration;

use crate::driver::{Released, Renewal};
use crate::gate::not_with_neighbours;
use crate::observe::Labels;
use crate::record::{ClaimRecord, LeaseLeft, RecordOptions};
use crate::shared::Core;
use crate::{Claim, Error, Guard, LockManager, LossReason, Ticket, fresh, renewer};

/// How often is asked again since the answer came later than the lease lasts.
const TRIES: u32 = 3;

impl LockManager {
    /// Goes on with a detached lock: renews it, and holds it as if it had been made here.
    ///
    /// [`Error::Lost`] when it has ended. [`Error::Config`] when this manager has resumed the ticket
    /// already and its guard lives; another manager is not known, see [`Ticket`]. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it leaves the detached lock as it is.
    pub async fn resume(&self, ticket: &Ticket) -> Result<Guard, Error> {
        let core = self.core();
        core.check_open()?;
        check_namespace(core, ticket)?;
        check_gate(core)?;
        let base = core.namespace_counter().await?;
        renewer::ensure(&core.registry);
        let claim = Arc::new(ticket.claim(core.settings.default_wait_ttl(), core.identity.clone()));
        core.registry.note_ttls(&claim);
        for _ in 0..TRIES {
            if let Some(record) = renew(core, &claim, base).await? {
                if let Err(error) = core.registry.insert(claim.id, &record) {
                    record.give_back();
                    return Err(error);
                }
                return Ok(Guard::new(core.clone(), record));
            }
        }
        let what = "each answer came after the lease that it renewed was over";
        Err(Error::retryable(core.backend(), what))
    }

    /// Releases a detached lock. A guard of this manager that resumed it is lost before that
    /// ([`LossReason::Vanished`]). One round trip.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the lock was released; it can be asked for again.
    pub async fn release_ticket(&self, ticket: &Ticket) -> Result<Released, Error> {
        let core = self.core();
        core.check_open()?;
        check_namespace(core, ticket)?;
        check_gate(core)?;
        let claim = ticket.claim(core.settings.default_wait_ttl(), core.identity.clone());
        if let Some(record) = core.registry.take(claim.id) {
            record.lose(LossReason::Vanished);
        }
        core.driver().release(&Arc::new(claim)).await
    }
}

fn check_gate(core: &Core) -> Result<(), Error> {
    match core.driver().gate() {
        None => Ok(()),
        Some(_) => Err(not_with_neighbours("a lock that outlives its process")),
    }
}

fn check_namespace(core: &Core, ticket: &Ticket) -> Result<(), Error> {
    let (theirs, ours) = (ticket.namespace(), &core.namespace);
    match theirs == ours {
        true => Ok(()),
        false => Err(Error::Config(format!(
            "this ticket is for the namespace {theirs:?}, not {ours:?}: set it"
        ))),
    }
}

/// The claim as one that is held here; `None` when the answer came too late for that.
async fn renew(
    core: &Core,
    claim: &Arc<Claim>,
    base: u64,
) -> Result<Option<Arc<ClaimRecord>>, Error> {
    let sent = core.clock().now();
    let grant = match core.driver().renew_single(claim).await? {
        Renewal::Holds(grant) => grant,
        Renewal::Ended(ended) => return Err(Error::Lost { reason: ended.into() }),
        Renewal::Waits { .. } => return Err(Error::Lost { reason: LossReason::Expired }),
    };
    let labels = Labels { backend: core.backend(), kind: "detached", class: None };
    let how = RecordOptions {
        margin: core.margin(),
        base,
        renew: true,
        max_hold: None,
        at_least: None,
        lock_delay: Duration::ZERO,
        labels,
    };
    let record = Arc::new(ClaimRecord::new(claim.clone(), sent, core.clock().clone(), how));
    let fresh = match record.grant(&grant, Some(sent)) {
        LeaseLeft::Enough => Ok(true),
        LeaseLeft::Little => fresh::renewed(core, &record).await,
        LeaseLeft::Nothing => Ok(false),
    };
    let ended = record.loss();
    match fresh {
        Ok(true) => {
            record.hand_out();
            Ok(Some(record))
        }
        fresh => {
            let over = record.is_over();
            record.give_back();
            fresh?;
            match ended.filter(|_| over) {
                Some(reason) => Err(Error::Lost { reason }),
                None => Ok(None),
            }
        }
    }
}
