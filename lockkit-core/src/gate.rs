//! The gate: how a granted claim excludes, and is excluded by, the lock of the same name that programs take
//! with another library ("neighbours"). What a driver offers; what core does with it is in
//! `acquire/gate.rs` (taking it), `record/gate.rs` (its deadline) and `registry/gate.rs` (renewal, giving it
//! back).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use sha2::{Digest, Sha256};

use crate::driver::LockDriver;
use crate::state::ListRequest;
use crate::{Claim, Error, Name, Namespace, Space};

/// The locks that neighbours take, as a driver sees them: tried, never waited for.
///
/// A driver that was told to exclude neighbours returns one from
/// [`LockDriver::gate`](crate::driver::LockDriver::gate); scripts, queue and states of the driver know nothing
/// of it. An exclusive claim enters its queue and is granted as ever. Only then core takes the gate of its
/// name, with a back-off of 20 to 500 ms, and the guard comes when both are had. The guard is valid until
/// the earlier of the two deadlines, each of which counts from the sending of its own request; every renewal
/// keeps both; either one lost ends the guard. The gate is given back before the claim is released.
///
/// Among lockkit's clients all promises stay, since the queue decides first. Towards neighbours there is
/// exclusion only, while they keep their own lease.
///
/// # Writing one
/// 1. **It is ours by a value that no neighbour has**: [`Claim::gate_owner`], the same for every attempt of a
///    claim, so that an answer that got lost can be asked for again.
/// 2. [`take`](Self::take) makes it only where there is none, in one atomic step, with a lease of the claim's
///    `hold_ttl` on the backend's clock. One that is this claim's already is taken, and its lease lasts
///    at least that long from now on.
/// 3. [`keep`](Self::keep) lengthens, never shortens, and **never makes it**: a gate that is not there any
///    more, or another's, is lost.
/// 4. [`give`](Self::give) removes it only while it is this claim's, in one atomic step. One that is not
///    there is no error.
/// 5. Every method may be dropped at any await point, may fail after it acted, and ends in bounded time, as
///    those of the driver. Core gives a gate back again and again while an attempt without an answer may
///    still take it: so a `take` that sent its request twice, since the first got no answer, is a
///    retryable error, and is asked for again.
///
/// The setting is the namespace's: [`check_neighbours`] says what a driver does with it.
#[async_trait]
pub trait Gate: fmt::Debug + Send + Sync {
    /// Refuses a name that the neighbours' lock cannot have. No I/O; asked before anything is sent.
    fn check_name(&self, name: &Name) -> Result<(), Error> {
        let _ = name;
        Ok(())
    }

    /// Refuses names which the neighbours' lock does not tell apart, so that a client which takes all of
    /// them would wait for itself. Asked before the first lock of a
    /// [multi-lock](crate::sync::MultiLock). By default all names differ.
    async fn check_distinct(&self, names: &[Name]) -> Result<(), Error> {
        let _ = names;
        Ok(())
    }

    /// Tries to take the gate of this claim's name. One round trip.
    async fn take(&self, claim: &Arc<Claim>) -> Result<GateAttempt, Error>;

    /// Lengthens the leases of the gates of these claims, which were taken, and says of each, in the order
    /// given, whether it is still there. One round trip for all. An item that is an error concerns that claim
    /// only; an error of the whole means that nothing is known of any.
    async fn keep(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<GateRenewal, Error>>, Error>;

    /// Gives the gate of this claim back, taken or not. While it fails, the claim is not released either; a
    /// key or row that is not this claim's is no reason to fail. One round trip.
    async fn give(&self, claim: &Arc<Claim>) -> Result<(), Error>;
}

/// What became of an attempt to take a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateAttempt {
    /// It is this claim's.
    Taken {
        /// How long its lease lasts from the moment at which the backend carried out the request.
        ttl: Duration,
    },
    /// A neighbour has it.
    Busy {
        /// How long its lease lasts yet, where the backend tells that and it has an end.
        remaining: Option<Duration>,
    },
}

/// What became of a gate that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateRenewal {
    /// It is this claim's.
    Kept {
        /// How long its lease lasts from the moment at which the backend carried out the request.
        ttl: Duration,
    },
    /// It is not there, or not this claim's. It was not made again.
    NotFound,
}

/// How a lock that was granted waits for a neighbour; see
/// [`LockManager::neighbour_wait`](crate::LockManager::neighbour_wait).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NeighbourWait {
    /// How long the neighbour's lease lasts yet unless it is renewed, where the backend tells it.
    pub remaining: Option<Duration>,
}

impl Claim {
    /// What a gate that this claim took carries as its owner: 32 lower-case hexadecimal digits. It is a hash
    /// of the claim's id, so that what neighbours can read releases no claim of lockkit.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkit_core::Error> {
    /// # use std::{sync::Arc, time::Duration};
    /// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
    /// # let key = Key::new(Namespace::default(), Space::Lock, Name::new("nightly")?);
    /// # let (ttl, me) = (Duration::from_secs(30), Arc::new(ClientIdentity::of_this_process()));
    /// let claim = Claim::new(key, Mode::Exclusive, ttl, ttl, me);
    /// assert_eq!(claim.gate_owner(), claim.clone().gate_owner());
    /// assert_ne!(claim.gate_owner(), claim.id.to_hex());
    /// # Ok(()) }
    /// ```
    pub fn gate_owner(&self) -> String {
        let hash =
            Sha256::new().chain_update(b"gate\0").chain_update(self.id.as_bytes()).finalize();
        hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// An error where an attempt to take a gate was sent more than once, as `ambiguous` of a driver's own retries say: the
/// first may arrive after the release, so core has to know.
///
/// # Errors
/// A retryable one, where `ambiguous` is not 0.
pub fn answered_once(backend: &'static str, ambiguous: u32) -> Result<(), Error> {
    match ambiguous {
        0 => Ok(()),
        _ => Err(Error::retryable(backend, "the connection broke in the middle of a request")),
    }
}

/// Keeps gates by requests of at most `size` each, side by side, and says of each claim, in the order given, what
/// became of its gate. What fails for a request fails for each claim of it.
pub async fn keep_in_groups<'a, F>(
    claims: &'a [Arc<Claim>],
    size: usize,
    keep: impl Fn(&'a [Arc<Claim>]) -> F,
) -> Vec<Result<GateRenewal, Error>>
where
    F: Future<Output = Result<Vec<Result<GateRenewal, Error>>, Error>>,
{
    let groups = claims.chunks(size);
    let answers = join_all(groups.clone().map(keep)).await;
    let of_group = |(group, answer): (&[Arc<Claim>], Result<Vec<_>, Error>)| match answer {
        Ok(kept) => kept,
        Err(error) => vec![Err(error); group.len()],
    };
    groups.zip(answers).flat_map(of_group).collect()
}

/// The names of locks that have claims, `most` at most: those for which an operator's check looks at what neighbours
/// have.
///
/// # Errors
/// As of the driver's listings.
pub async fn names_in_use(driver: &dyn LockDriver, most: usize) -> Result<Vec<Name>, Error> {
    let mut names = Vec::new();
    for namespace in driver.namespaces(None, most).await?.items {
        let (prefix, space, limit) = (String::new(), Some(Space::Lock), most - names.len());
        let request = ListRequest { namespace, space, prefix, after: None, limit };
        names.extend(driver.list(&request).await?.states.into_iter().map(|it| it.key.name));
        if names.len() >= most {
            break;
        }
    }
    Ok(names)
}

/// Refuses names of which two are one for neighbours: the lock of each, in the order of the names, and what it is
/// called (`"advisory lock"`).
///
/// # Errors
/// [`Error::Config`], with the two names.
pub fn refuse_twins<K: Eq + std::hash::Hash + fmt::Debug>(
    names: &[Name],
    locks: impl IntoIterator<Item = K>,
    called: &str,
) -> Result<(), Error> {
    let mut seen = HashMap::new();
    for (name, lock) in names.iter().zip(locks) {
        match seen.get(&lock) {
            Some(other) if *other != name => {
                return Err(Error::Config(format!(
                    "{other:?} and {name:?} are one {called} ({lock:?}), so a lock on both would wait for \
                     itself: rename one of them"
                )));
            }
            _ => drop(seen.insert(lock, name)),
        }
    }
    Ok(())
}

/// Refuses a process whose neighbours are not those of its namespace: it would enter past the gate, or
/// exclude other programs than its fellows do.
///
/// A driver stores the setting with the namespace: its
/// [`namespace_counter`](crate::driver::LockDriver::namespace_counter), which core reads once a manager and
/// before the first acquire, reads the setting in the same request, whether it has a gate or not; where none
/// is stored, and it has a gate, it stores its own in that same atomic step. Then it calls this. `stored` is
/// what was read, `own` the driver's option (`set-nx`, say), and `place` says where it is stored, so that an
/// operator can remove it.
///
/// # Errors
/// [`Error::Config`], with what to do.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::Namespace;
/// use lockkit_core::driver::check_neighbours;
///
/// let (shop, place) = (Namespace::new("shop")?, "the key lockkit:neighbours:shop");
/// assert!(check_neighbours(&shop, Some("set-nx"), Some("set-nx"), place).is_ok());
/// let refused = check_neighbours(&shop, None, Some("set-nx"), place).unwrap_err();
/// assert!(refused.to_string().contains("connect with ?neighbours=set-nx"));
/// # Ok(()) }
/// ```
pub fn check_neighbours(
    namespace: &Namespace,
    own: Option<&str>,
    stored: Option<&str>,
    place: &str,
) -> Result<(), Error> {
    let Some(stored) = stored.filter(|stored| own != Some(*stored)) else { return Ok(()) };
    let ours = match own {
        None => "this process would enter past their gate".to_owned(),
        Some(own) => format!("this process has ?neighbours={own}"),
    };
    Err(Error::Config(format!(
        "the namespace {:?} shares its locks with neighbours ({stored}), and {ours}: connect with \
         ?neighbours={stored}, or use another namespace. To end the sharing, stop all processes of the \
         namespace and remove {place}",
        namespace.as_str()
    )))
}

/// The error for what neighbours' locks do not have. `what` begins the sentence.
pub(crate) fn not_with_neighbours(what: &str) -> Error {
    Error::Config(format!(
        "{what} cannot be had in a namespace that shares its locks with neighbours, whose locks are \
         exclusive, renewed and of one process: use a mutex with automatic renewal, or a namespace \
         without ?neighbours="
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_of_a_namespace_is_that_of_all_its_processes() {
        let namespace = Namespace::new("shop").unwrap();
        let check = |own, stored| check_neighbours(&namespace, own, stored, "the key k");
        check(None, None).unwrap();
        check(Some("set-nx"), None).unwrap();
        check(Some("set-nx"), Some("set-nx")).unwrap();
        for own in [None, Some("redisson")] {
            let refused = check(own, Some("set-nx")).unwrap_err();
            assert!(!refused.is_retryable());
            let refused = refused.to_string();
            for part in ["\"shop\"", "connect with ?neighbours=set-nx", "remove the key k"] {
                assert!(refused.contains(part), "{refused}");
            }
        }
    }
}
