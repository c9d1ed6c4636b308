//! What a manager is made with: how long leases last, in which namespace names live, who it is.

use std::time::Duration;

use crate::deadline::Margin;
use crate::{Capabilities, ClientIdentity, Error, Namespace};

/// The settings of a [`LockManager`](crate::LockManager), with the defaults that this field knows:
/// leases of 30 s, renewed at a third of it; waiting claims of 10 s; no namespace.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::{LockManager, MemoryDriver, Settings};
///
/// # fn main() -> Result<(), lockkit_core::Error> {
/// let settings = Settings::default().namespace("shop").ttl(Duration::from_secs(10));
/// let locks = LockManager::with(std::sync::Arc::new(MemoryDriver::new()), settings)?;
/// assert_eq!(locks.settings().namespace_str(), "shop");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    ttl: Option<Duration>,
    wait_ttl: Option<Duration>,
    namespace: Option<String>,
    lock_delay: Option<Duration>,
    pub(crate) identity: Option<ClientIdentity>,
    pub(crate) margin: Option<Margin>,
    pub(crate) id: Option<String>,
}

/// The longest lease: 10 years. More is a mistake, or a wish for a lock that never ends, which
/// lockkit does not have.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(10 * 365 * 86_400);

impl Settings {
    /// How long a lock stays held when its holder dies; 30 s unless set. Every lock can have
    /// its own.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long a waiter that died blocks those behind it; 10 s unless set.
    pub fn wait_ttl(mut self, ttl: Duration) -> Self {
        self.wait_ttl = Some(ttl);
        self
    }

    /// How long a lock stays closed after its guard was lost, and not after a release; not at all unless
    /// set. Every lock can have its own: [`Mutex::lock_delay`](crate::sync::Mutex::lock_delay) says what it
    /// means.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = Some(delay);
        self
    }

    /// Keeps the names of this application apart from another's on the same backend: at most 128
    /// bytes, none unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Who this is, as others see it; host, process id and program of this process unless set.
    pub fn identity(mut self, identity: ClientIdentity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// What this backend and namespace are called where locks of several managers are taken together:
    /// these are taken in the order of the managers' ids, so it must be the same in all processes.
    /// None unless set. See [`MultiLock`](crate::sync::MultiLock).
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// How much earlier than the backend this client takes a lease for ended; unless set, what the
    /// [lease clock](Capabilities::lease_clock) of the backend needs ([`Margin::for_clock`]). Less
    /// than that trusts clocks to be slewed by less; where the backend's answers name a margin, the
    /// greater one counts.
    pub fn drift_margin(mut self, margin: Margin) -> Self {
        self.margin = Some(margin);
        self
    }

    /// The ttl of locks that set none of their own.
    pub fn default_ttl(&self) -> Duration {
        self.ttl.unwrap_or(Duration::from_secs(30))
    }

    /// The ttl of waiting claims that set none of their own.
    pub fn default_wait_ttl(&self) -> Duration {
        self.wait_ttl.unwrap_or(Duration::from_secs(10))
    }

    /// The lock delay of locks that set none of their own.
    pub fn default_lock_delay(&self) -> Duration {
        self.lock_delay.unwrap_or_default()
    }

    /// The namespace that was set.
    pub fn namespace_str(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// These settings together with those of a URL.
    ///
    /// # Errors
    /// [`Error::Config`] for a setting that is given in both, and differs.
    pub fn merged_with_url(mut self, url: &Self) -> Result<Self, Error> {
        merge("ttl", &mut self.ttl, &url.ttl)?;
        merge("wait_ttl", &mut self.wait_ttl, &url.wait_ttl)?;
        merge("namespace", &mut self.namespace, &url.namespace)?;
        Ok(self)
    }

    pub(crate) fn margin(&self, capabilities: &Capabilities) -> Margin {
        self.margin.unwrap_or_else(|| Margin::for_clock(capabilities.lease_clock))
    }

    pub(crate) fn check(&self, capabilities: &Capabilities) -> Result<Namespace, Error> {
        let margin = self.margin(capabilities);
        check_ttl("ttl", self.default_ttl(), margin, capabilities)?;
        check_ttl("wait_ttl", self.default_wait_ttl(), margin, capabilities)?;
        Namespace::new(self.namespace_str())
    }
}

fn merge<T: Clone + PartialEq>(
    name: &str,
    given: &mut Option<T>,
    in_url: &Option<T>,
) -> Result<(), Error> {
    match (&given, in_url) {
        (Some(given), Some(other)) if given != other => {
            let message =
                format!("{name} is given by the URL and explicitly, and differs: give one");
            Err(Error::Config(message))
        }
        _ => {
            *given = given.take().or_else(|| in_url.clone());
            Ok(())
        }
    }
}

/// Refuses what cannot be a lease on this backend.
pub(crate) fn check_ttl(
    what: &str,
    ttl: Duration,
    margin: Margin,
    capabilities: &Capabilities,
) -> Result<(), Error> {
    let least = capabilities.min_ttl;
    if ttl < least {
        let backend = capabilities.backend;
        let message =
            format!("a {what} of {ttl:?} is too short: {backend} takes {least:?} or more");
        return Err(Error::Config(message));
    }
    if ttl > LONGEST_TTL {
        return Err(Error::Config(format!(
            "a {what} of {ttl:?} is too long: use 10 years at most"
        )));
    }
    if margin.of(ttl) > ttl / 2 {
        let message = format!(
            "a {what} of {ttl:?} leaves nothing beside the drift margin of {:?}",
            margin.of(ttl)
        );
        return Err(Error::Config(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_given_by_the_url_or_explicitly_and_never_in_two_ways() {
        let second = Duration::from_secs(1);
        let (explicit, url) =
            (Settings::default().ttl(second), Settings::default().namespace("shop"));
        let merged = explicit.clone().merged_with_url(&url).unwrap();
        assert_eq!((merged.default_ttl(), merged.namespace_str()), (second, "shop"));
        assert_eq!(merged.default_wait_ttl(), Duration::from_secs(10));
        explicit.clone().merged_with_url(&explicit).unwrap();
        let other = Settings::default().ttl(second * 2);
        let refused = explicit.merged_with_url(&other).unwrap_err().to_string();
        assert!(refused.contains("ttl is given by the URL"), "{refused}");
    }
}
