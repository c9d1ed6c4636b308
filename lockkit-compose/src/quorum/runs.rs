//! Which runs of a member count. A server that was started again, or that took another one's place,
//! may have older data than the one before it, and in it the sign.
//!
//! A member keeps, as the token base of a namespace for each identity, which start of it is
//! *admitted*, and whether the server's settings kept every write then. A new start of an admitted
//! identity counts at once where the old settings and the new ones keep every write. Any other run
//! that is not admitted puts the member into quarantine. A member that tells no run counts by its
//! sign alone.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{join_all, try_join_all};
use sha2::{Digest, Sha256};

use super::{BACKEND, NAMESPACE, QuorumInner};
use lockkit_core::driver::{LockDriver, ServerRun};
use lockkit_core::{Error, Key, Name, Namespace, Space};

/// Where members keep which runs count, each identity in a namespace below it. In this one itself:
/// 1 once runs are kept here at all.
const RUNS: &str = "lockkit.quorum.run";
const START_BITS: u32 = 35;

/// What is kept of the run of an identity. A counter can only grow, so a time comes first.
#[derive(Clone, Copy)]
struct Admission(u64);

impl Admission {
    fn new(run: &ServerRun, keeps_writes: bool, before: Option<Self>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let next = before.map_or(0, |before| (before.0 >> (START_BITS + 1)) + 1);
        let minute = (now.as_secs() / 60).max(next);
        Self((minute << START_BITS | hash_of_start(run)) << 1 | u64::from(keeps_writes))
    }

    fn is_of(self, run: &ServerRun) -> bool {
        self.0 >> 1 & ((1 << START_BITS) - 1) == hash_of_start(run)
    }

    fn keeps_writes(self) -> bool {
        self.0 & 1 == 1
    }
}

fn hash_of_start(run: &ServerRun) -> u64 {
    (hash(&run.start) >> (128 - START_BITS)) as u64
}

/// The same in every program.
pub(super) fn hash(text: &str) -> u128 {
    let digest = Sha256::digest(text.as_bytes());
    digest[..16].iter().fold(0, |hash, byte| hash << 8 | u128::from(*byte))
}

impl QuorumInner {
    /// Whether the run of a member that answers now is one that counts.
    pub(super) async fn run_counts(&self, member: usize, limit: Duration) -> Result<bool, Error> {
        let Some(run) = self.run_of(member, limit).await? else {
            return Ok(true);
        };
        if self.members[member].knows(&run) {
            return Ok(true);
        }
        match self.admitted(member, &run).await? {
            Some(admitted) if admitted.is_of(&run) => {}
            Some(admitted) if admitted.keeps_writes() => {
                if !self.keeps_writes(member).await? {
                    return Ok(false);
                }
                self.admit(member, &run).await?;
            }
            Some(_) => return Ok(false),
            // Programs that kept no runs may have begun this quorum.
            None => return self.keeps_no_runs().await,
        }
        self.members[member].remember(run);
        Ok(true)
    }

    pub(super) async fn run_of(
        &self,
        member: usize,
        limit: Duration,
    ) -> Result<Option<ServerRun>, Error> {
        let key = sign_key()?;
        self.ask(member, limit, |driver| async move { driver.run_of(&key).await }).await
    }

    /// Lets the run count that answers now. An error if another one answers by then.
    pub(super) async fn admit(&self, member: usize, run: &ServerRun) -> Result<(), Error> {
        let before = self.admitted(member, run).await?;
        let keeps_writes = self.keeps_writes(member).await?;
        if self.run_of(member, self.options.member_limit).await?.as_ref() != Some(run) {
            return Err(Error::retryable(BACKEND, "a member was started again"));
        }
        let Admission(base) = Admission::new(run, keeps_writes, before);
        self.raise_base_of(member, &namespace_of(run)?, base).await?;
        self.members[member].remember(run.clone());
        Ok(())
    }

    /// Says at a member that runs are kept from now on.
    pub(super) async fn keep_runs(&self, member: usize) -> Result<(), Error> {
        self.raise_base_of(member, &Namespace::new(RUNS)?, 1).await
    }

    /// The members of a new quorum, or of one whose programs kept no runs until now, have nothing that
    /// they could have forgotten as far as anybody knows: all their runs count.
    pub(super) async fn admit_all(&self) -> Result<(), Error> {
        let admitting = (0..self.members.len()).map(|member| async move {
            let run = self.run_of(member, self.options.member_limit).await?;
            if let Some(run) = &run
                && self.admitted(member, run).await?.is_none()
            {
                self.admit(member, run).await?;
            }
            Ok::<_, Error>(run.is_some())
        });
        if try_join_all(admitting).await?.contains(&true) {
            let keeping = (0..self.members.len()).map(|member| self.keep_runs(member));
            try_join_all(keeping).await?;
        }
        Ok(())
    }

    /// Whether runs are kept at no member so far.
    pub(super) async fn keeps_no_runs(&self) -> Result<bool, Error> {
        let (limit, runs) = (self.options.member_limit, Namespace::new(RUNS)?);
        let asking = (0..self.members.len()).map(|member| self.base_of(member, &runs, limit));
        Ok(self.enough(join_all(asking).await)?.iter().all(|(_, base)| *base == 0))
    }

    async fn admitted(&self, member: usize, run: &ServerRun) -> Result<Option<Admission>, Error> {
        let limit = self.options.member_limit;
        let base = self.base_of(member, &namespace_of(run)?, limit).await?;
        Ok((base > 0).then_some(Admission(base)))
    }

    async fn keeps_writes(&self, member: usize) -> Result<bool, Error> {
        let ask = |driver: Arc<dyn LockDriver>| async move { driver.keeps_writes().await };
        self.ask(member, self.options.member_limit, ask).await
    }
}

/// Where a member is asked for its run: beside the sign.
fn sign_key() -> Result<Key, Error> {
    Ok(Key::new(Namespace::new(NAMESPACE)?, Space::Lock, Name::new("quarantine")?))
}

fn namespace_of(run: &ServerRun) -> Result<Namespace, Error> {
    Namespace::new(format!("{RUNS}.{:032x}", hash(&run.identity)))
}
