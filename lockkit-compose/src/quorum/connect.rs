//! Connecting to all members at once, of which a minority may be away: a program must be able to
//! begin while a member is down.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{BACKEND, QuorumDriver, QuorumOptions};
use crate::late::{Connect, LONGEST_ATTEMPT, LateDriver};
use lockkit_core::Error;
use lockkit_core::driver::{LockDriver, no_answer};

/// How long the others may take once a majority is connected.
const GRACE: Duration = Duration::from_secs(2);

/// A member of a quorum that is yet to be connected.
#[derive(Clone)]
pub struct QuorumMember {
    kind: String,
    connect: Connect,
}

impl QuorumMember {
    /// A member that `connect` connects to. It is called again, in the background, as long as the
    /// member cannot be reached.
    ///
    /// `kind` is a word for what sort of backend it is. Members of one kind have the same
    /// capabilities; so one that is away can be taken for what the others of its kind are.
    pub fn new<F>(kind: impl Into<String>, connect: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn LockDriver>, Error>> + Send + 'static,
    {
        let connect: Connect =
            Arc::new(move || Box::pin(connect()) as BoxFuture<'static, Result<_, Error>>);
        Self { kind: kind.into(), connect }
    }
}

impl std::fmt::Debug for QuorumMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuorumMember").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// How far a member got.
enum Reached {
    Here(Arc<dyn LockDriver>),
    Away(Error),
}

impl QuorumDriver {
    /// Connects to all members at once. A majority must answer; those who do not are connected in
    /// the background.
    ///
    /// # Errors
    /// When fewer than a majority can be reached, when a member says that trying again will not
    /// help (a wrong password, a wrong URL), when no member of some kind can be reached, and as
    /// for [`new`](Self::new).
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn connect(
        members: Vec<QuorumMember>,
        options: QuorumOptions,
    ) -> Result<Self, Error> {
        let reached = reach(&members).await?;
        let mut drivers = Vec::with_capacity(members.len());
        for (member, here) in members.iter().zip(&reached) {
            drivers.push(match here {
                Reached::Here(driver) => driver.clone(),
                Reached::Away(error) => {
                    let alike = members.iter().zip(&reached).find_map(|(other, here)| match here {
                        Reached::Here(driver) if other.kind == member.kind => Some(driver),
                        _ => None,
                    });
                    let Some(alike) = alike else {
                        let kind = &member.kind;
                        let message = format!("no {kind} member can be reached: {error}");
                        return Err(Error::retryable(BACKEND, message));
                    };
                    tracing::warn!(%error, "a member of the quorum is away: the others do");
                    Arc::new(LateDriver::like(alike, member.connect.clone()))
                }
            });
        }
        Self::new(drivers, options)
    }
}

/// Asks all members, until enough have answered.
async fn reach(members: &[QuorumMember]) -> Result<Vec<Reached>, Error> {
    let mut connecting: FuturesUnordered<_> = members
        .iter()
        .enumerate()
        .map(|(at, member)| async move {
            let attempt = tokio::time::timeout(LONGEST_ATTEMPT, (member.connect)()).await;
            (at, attempt.unwrap_or_else(|_| Err(no_answer(BACKEND))))
        })
        .collect();
    let mut reached: Vec<_> = members.iter().map(|_| Reached::Away(no_answer(BACKEND))).collect();
    let mut here = 0;
    loop {
        let next = match here > members.len() / 2 {
            false => connecting.next().await,
            true => tokio::time::timeout(GRACE, connecting.next()).await.unwrap_or(None),
        };
        let Some((at, answer)) = next else { break };
        reached[at] = match answer {
            Ok(driver) => {
                here += 1;
                Reached::Here(driver)
            }
            Err(error) if error.is_retryable() => Reached::Away(error),
            Err(error) => return Err(error),
        };
    }
    let away = reached.iter().find_map(|one| match one {
        Reached::Away(error) => Some(error.to_string()),
        Reached::Here(_) => None,
    });
    match away {
        Some(why) if here <= members.len() / 2 => {
            let message = format!("no majority of the members can be reached; one said: {why}");
            Err(Error::retryable(BACKEND, message))
        }
        _ => Ok(reached),
    }
}
