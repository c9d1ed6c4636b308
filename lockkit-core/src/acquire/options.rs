//! What can be set for each lock.

use std::sync::Arc;
use std::time::Duration;

use crate::settings::Settings;
use crate::{Capabilities, Error, Lifetime};

/// What can be set for each lock.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait_ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) note: Option<Arc<str>>,
    /// Whether it is renewed in the background while it is held.
    pub(crate) auto_renew: bool,
    pub(crate) detached: bool,
    pub(crate) class: Option<&'static str>,
    /// Whether the limit is the backend's to say, so that any number of permits may be asked for.
    pub(crate) resizable: bool,
}

impl Options {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            ttl: settings.default_ttl(),
            wait_ttl: settings.default_wait_ttl(),
            max_hold: None,
            at_least: None,
            lock_delay: settings.default_lock_delay(),
            note: None,
            auto_renew: true,
            detached: false,
            class: None,
            resizable: false,
        }
    }

    /// What the claim asks for: a process that dies leaves a lease that lasts for the least hold, and behind
    /// it for the lock delay.
    pub(crate) fn hold_ttl(&self) -> Duration {
        self.ttl.max(self.at_least.unwrap_or_default()).saturating_add(self.lock_delay)
    }

    pub(super) fn lifetime(&self, capabilities: &Capabilities) -> Lifetime {
        let is_left = self.at_least.is_some() && capabilities.detached && capabilities.shorten;
        match (self.detached || is_left, self.auto_renew) {
            (true, _) => Lifetime::Detached,
            (false, true) => Lifetime::Renewed,
            (false, false) => Lifetime::Fixed,
        }
    }

    /// Refuses combinations of which one part could not be kept.
    pub(super) fn check_combination(&self) -> Result<(), Error> {
        if self.detached && self.at_least.is_some() {
            return Err(Error::config(
                "a detached lock is released by its ticket, which knows of no least hold: leave out one",
            ));
        }
        if self.detached && !self.lock_delay.is_zero() {
            return Err(Error::config(
                "a detached lock is renewed by its ticket, which knows of no lock delay: leave out one",
            ));
        }
        match (self.at_least, self.max_hold) {
            (Some(least), Some(most)) if least > most => Err(Error::Config(format!(
                "a least hold of {least:?} is longer than the max_hold of {most:?}: make it shorter"
            ))),
            _ => Ok(()),
        }
    }
}
