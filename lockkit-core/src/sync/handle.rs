//! What the primitives made of claims have in common: a name, options, and the way to a guard. A macro gives
//! the options' methods to each of them. A name is checked when it is used, so that making a primitive cannot
//! fail.

use std::fmt;
use std::sync::Arc;

use crate::acquire::{Options, Request, WaitBudget, acquire};
use crate::guard::Guard;
use crate::name::check_note;
use crate::observe::Labels;
use crate::shared::Core;
use crate::sync::owner::{Owner, enter};
use crate::{Error, Key, Mode, Name, Space};

#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    /// `Err` has what was given where it is no valid name: using it is an error then.
    name: Result<Name, Arc<str>>,
    pub(crate) owner: Option<Owner>,
    pub(crate) options: Options,
}

impl Handle {
    pub(crate) fn new(core: &Arc<Core>, name: &str, owner: Option<Owner>) -> Self {
        Self {
            name: Name::new(name).map_err(|_| name.into()),
            owner,
            options: Options::of(&core.settings),
            core: core.clone(),
        }
    }

    pub(crate) fn name(&self) -> Result<Name, Error> {
        match &self.name {
            Ok(name) => Ok(name.clone()),
            Err(bad) => Name::new(bad),
        }
    }

    /// The name as it was given, usable or not.
    pub(crate) fn given_name(&self) -> &str {
        match &self.name {
            Ok(name) => name.as_str(),
            Err(bad) => bad,
        }
    }

    pub(crate) async fn acquire(
        &self,
        mode: Mode,
        kind: &'static str,
        wait: WaitBudget,
    ) -> Result<Option<Guard>, Error> {
        let request = self.request(mode, kind)?;
        match &self.owner {
            None => acquire(&self.core, &request, wait).await,
            Some(owner) => enter(&self.core, owner, &request, wait).await,
        }
    }

    /// Waits for as long as it takes.
    pub(crate) async fn wait(&self, mode: Mode, kind: &'static str) -> Result<Guard, Error> {
        self.core.waited(self.acquire(mode, kind, WaitBudget::Forever).await?)
    }

    /// The queue of its claims.
    pub(crate) fn key(&self, space: Space) -> Result<Key, Error> {
        Ok(Key::new(self.core.namespace.clone(), space, self.name()?))
    }

    fn request(&self, mode: Mode, kind: &'static str) -> Result<Request<'_>, Error> {
        let options = &self.options;
        options.note.as_deref().map_or(Ok(()), check_note)?;
        let labels = Labels { backend: self.core.backend(), kind, class: options.class };
        Ok(Request { key: self.key(mode.space())?, mode, options, labels })
    }
}

/// Its name, and the manager that it is of.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.given_name(), self.core)
    }
}

/// The options that every primitive has.
macro_rules! options {
    () => {
        /// How long the lock stays held when its holder dies; the manager's unless set. Renewed
        /// at a third of it.
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.handle.options.ttl = ttl;
            self
        }

        /// How long this claim, when it waits and its process dies, blocks those behind it.
        pub fn wait_ttl(mut self, ttl: std::time::Duration) -> Self {
            self.handle.options.wait_ttl = ttl;
            self
        }

        /// Renews the lock no longer than until it was held for this long, so that a holder that
        /// hangs loses it.
        pub fn max_hold(mut self, limit: std::time::Duration) -> Self {
            self.handle.options.max_hold = Some(limit);
            self
        }

        /// Keeps the lock held for so long at least, counted from the grant, although it is released sooner:
        /// for a short job that several hosts start by clocks that differ.
        ///
        /// The lease asked for is the greater of this and the ttl from the first request on, so a process
        /// that dies leaves a lock that stays held for that time.
        ///
        /// A release before that time: where each claim has a lease of its own
        /// ([`Capabilities::detached`](crate::Capabilities::detached) and
        /// [`shorten`](crate::Capabilities::shorten)), it leaves the rest of the time to the backend and returns
        /// at once. Elsewhere it returns after that time; a guard that is dropped is released then, as long as
        /// the process lives. A loss or a break ends the lock sooner. Not with [`detached`](Self::detached).
        pub fn at_least(mut self, hold: std::time::Duration) -> Self {
            self.handle.options.at_least = Some(hold);
            self
        }

        /// Keeps the lock closed for so long after its guard was lost, and not after a release: time for
        /// work that did not stop to come to its end. The manager's unless set.
        ///
        /// The lease asked for is the ttl and this delay; the guard counts on the ttl alone. So no second clock is
        /// needed, and the lock of a process that dies stays closed for the sum. A guard that was lost is neither
        /// renewed nor released before the delay is over. A release opens the lock at once, and so does a forced
        /// break. The delay is an option of each claim: all clients of a name should use the same one. Not with
        /// [`detached`](Self::detached).
        pub fn lock_delay(mut self, delay: std::time::Duration) -> Self {
            self.handle.options.lock_delay = delay;
            self
        }

        /// Says why, to people who look at the lock: at most 1,000 bytes without control
        /// characters.
        pub fn note(mut self, note: impl AsRef<str>) -> Self {
            self.handle.options.note = Some(note.as_ref().into());
            self
        }

        /// Whether the lock is renewed in the background while it is held. If not, it simply ends
        /// after its ttl, unless [renewed](crate::HeldLock::renew) by hand. Where the answer to the
        /// acquire was so late that less than half of the lease is left, it is renewed once before the
        /// guard is returned.
        pub fn auto_renew(mut self, renew: bool) -> Self {
            self.handle.options.auto_renew = renew;
            self
        }

        /// Makes a lock that can outlive this process, by [`Guard::detach`](crate::Guard::detach).
        pub fn detached(mut self) -> Self {
            self.handle.options.detached = true;
            self
        }

        /// A label for metrics, such as `"invoice"`. Each value is a time series of its own: use few.
        pub fn class(mut self, class: &'static str) -> Self {
            self.handle.options.class = Some(class);
            self
        }
    };
}
pub(crate) use options;
