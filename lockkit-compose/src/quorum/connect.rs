//! Connecting to all members at once, of which a minority may be away: a program must be able to
//! begin while a member is down.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::named::why;

use super::member::{Connect, LONGEST_ATTEMPT, Member};
use super::{BACKEND, QuorumDriver, QuorumOptions};
use lockkit_core::Error;
use lockkit_core::driver::{LockDriver, no_answer};

/// How long the others may take once a majority is connected.
const GRACE: Duration = Duration::from_secs(2);

/// A member of a quorum that is yet to be connected.
///
/// ```
/// use std::sync::Arc;
/// use lockkit_compose::QuorumMember;
/// use lockkit_core::MemoryDriver;
/// use lockkit_core::driver::LockDriver;
///
/// // A program connects to a server here.
/// let member = QuorumMember::new("memory", || async {
///     Ok(Arc::new(MemoryDriver::new()) as Arc<dyn LockDriver>)
/// });
/// ```
#[derive(Clone)]
pub struct QuorumMember {
    kind: String,
    name: Option<String>,
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
        Self { kind: kind.into(), name: None, connect }
    }

    /// The same, which errors call so: by its URL without a login, say. Otherwise by its number.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What errors call the one of this index.
    fn called(&self, at: usize) -> String {
        let Self { kind, name, .. } = self;
        name.clone().unwrap_or_else(|| format!("member {} ({kind})", at + 1))
    }
}

impl std::fmt::Debug for QuorumMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuorumMember").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// A member's driver, or why it is away.
type Reached = Result<Arc<dyn LockDriver>, Error>;

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
        let of_kind = |QuorumMember { kind, .. }: &QuorumMember| {
            let mut here = members.iter().zip(&reached).filter(|(other, _)| other.kind == *kind);
            here.find_map(|(_, driver)| driver.as_ref().ok())
        };
        let mut taken_in = Vec::with_capacity(members.len());
        for (at, (member, reached)) in members.iter().zip(&reached).enumerate() {
            let name = member.called(at);
            taken_in.push(match reached {
                Ok(driver) => Member::new(name, driver.clone()),
                Err(error) => {
                    let Some(alike) = of_kind(member) else {
                        let kind = &member.kind;
                        let message = format!("no {kind} member can be reached: {}", why(error));
                        return Err(Error::retryable(BACKEND, message));
                    };
                    tracing::warn!(%error, "a member of the quorum is away: the others do");
                    Member::away(name, alike, member.connect.clone())
                }
            });
        }
        Self::of(taken_in, options)
    }
}

/// Asks all members, until enough have answered.
async fn reach(members: &[QuorumMember]) -> Result<Vec<Reached>, Error> {
    let mut connecting: FuturesUnordered<_> = members
        .iter()
        .enumerate()
        .map(|(at, member)| async move {
            let attempt = tokio::time::timeout(LONGEST_ATTEMPT, (member.connect)()).await;
            let answer = attempt.unwrap_or_else(|_| Err(no_answer(BACKEND)));
            (at, answer.map_err(|error| error.at(&member.called(at))))
        })
        .collect();
    let silent = |at: usize| Err(no_answer(BACKEND).at(&members[at].called(at)));
    let mut reached: Vec<_> = (0..members.len()).map(silent).collect();
    let mut here = 0;
    loop {
        let next = match here > members.len() / 2 {
            false => connecting.next().await,
            true => tokio::time::timeout(GRACE, connecting.next()).await.unwrap_or(None),
        };
        let Some((at, answer)) = next else { break };
        match answer {
            Err(error) if !error.is_retryable() => return Err(error),
            answer => {
                here += usize::from(answer.is_ok());
                reached[at] = answer;
            }
        }
    }
    if here > members.len() / 2 {
        return Ok(reached);
    }
    let failures: Vec<_> = reached.iter().filter_map(|one| one.as_ref().err()).map(why).collect();
    let failures = failures.join("; ");
    let message = format!("no majority of the members can be reached; {failures}");
    Err(Error::retryable(BACKEND, message))
}
