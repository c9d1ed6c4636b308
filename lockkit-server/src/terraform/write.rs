//! The steps of a write, each of which changes the head once.
//!
//! 1. The head names the new version as *pending*, so that the next writer deletes its parts should
//!    this one end.
//! 2. The parts are stored.
//! 3. The head names it as current, the version before as previous, and the one before that as
//!    garbage.
//! 4. The garbage is deleted. The next write strikes it off.
//!
//! Steps 1 and 3 bear the lock's token and change a head that nothing else has changed, so a writer
//! that was overtaken fails at 3.

use lockkit_core::Token;

use super::head::{Head, NotWritten, StateVersion};
use super::{Result, Target, conflict};

impl Target {
    /// The token of the lock of this id, which the head names and which holds now.
    pub(super) async fn token_of(&self, id: &str) -> Result<Token> {
        let head = self.load_head().await?;
        let named = head.lock.as_ref().filter(|lock| lock.id == id).map(|lock| lock.token);
        let holder = self.holder(&head).await?.map(|holder| holder.token);
        holder
            .filter(|token| Some(token.get()) == named)
            .ok_or_else(|| conflict("the lock of this ID does not hold: the state was not written"))
    }

    /// Names the version as pending; `false` where the current one has the same bytes.
    pub(super) async fn announce(
        &self,
        id: &str,
        token: Token,
        version: &StateVersion,
    ) -> Result<bool> {
        let deleted = self.load_head().await?.garbage;
        for garbage in &deleted {
            self.delete_parts(garbage).await?;
        }
        let announced = self.update(Some(token), |head| {
            check(head, id, token)?;
            if head.current.as_ref().is_some_and(|current| current.has_bytes_of(version)) {
                return Ok(false);
            }
            if head.pending.as_ref() != Some(version) {
                head.garbage.retain(|garbage| !deleted.contains(garbage));
                head.discard_pending();
                head.pending = Some(version.clone());
            }
            Ok(true)
        });
        Ok(announced.await?)
    }

    /// Names the pending version as current; what may be deleted then.
    pub(super) async fn publish(
        &self,
        id: &str,
        token: Token,
        version: &StateVersion,
    ) -> Result<Vec<StateVersion>> {
        let published = self.update(Some(token), |head| {
            if head.serves(&version.write) {
                // An attempt whose answer was lost.
                return Ok(head.garbage.clone());
            }
            check(head, id, token)?;
            if head.pending.as_ref() != Some(version) {
                return Err(conflict("another write of this state followed"));
            }
            head.pending = None;
            replace_current(head, Some(version.clone()));
            Ok(head.garbage.clone())
        });
        match published.await {
            Ok(garbage) => Ok(garbage),
            Err(why @ NotWritten::Failed(_)) => Err(why.into()),
            Err(why) => {
                self.abandon(version).await;
                Err(why.into())
            }
        }
    }

    /// Removes the current version; what may be deleted then.
    pub(super) async fn withdraw(&self, id: &str, token: Token) -> Result<Vec<StateVersion>> {
        let withdrawn = self.update(Some(token), |head| {
            check(head, id, token)?;
            if head.current.is_some() {
                replace_current(head, None);
            }
            Ok(head.garbage.clone())
        });
        Ok(withdrawn.await?)
    }

    /// Deletes the parts of a version that was refused, unless a reader may be sent to it. A
    /// failure here leaves parts behind, and nothing else.
    async fn abandon(&self, version: &StateVersion) {
        if let Ok(head) = self.load_head().await
            && !head.serves(&version.write)
        {
            let _ = self.delete_parts(version).await;
        }
    }
}

/// Refuses a write under a lock that is not the state's.
fn check(head: &Head, id: &str, token: Token) -> Result<()> {
    match head.has_lock(id, token) {
        true => Ok(()),
        false => Err(conflict("the lock of this ID was ended: the state was not written")),
    }
}

fn replace_current(head: &mut Head, version: Option<StateVersion>) {
    let before = std::mem::replace(&mut head.current, version);
    let old = std::mem::replace(&mut head.previous, before);
    head.garbage.extend(old);
}
