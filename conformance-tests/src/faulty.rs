//! A driver that fails once, at a chosen call: before it acts, after it acted, or at one of its
//! await points in between. Everything else it leaves as it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use lockkit_core::Error;

use crate::wrap::{DriverMethod, Tamper};

/// Where the one fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedFault {
    /// At which call, counted from 0.
    pub call: u64,
    /// At which place of it.
    pub point: InjectionPoint,
}

/// The place of a fault within a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionPoint {
    /// The request never leaves.
    Before,
    /// The call is dropped after so many polls: whether it acted is anybody's guess.
    Polls(u32),
    /// The driver acted, and its answer is lost.
    After,
}

/// Fails once.
#[derive(Debug)]
pub struct Faulty {
    fault: InjectedFault,
    calls: AtomicU64,
    enabled: AtomicBool,
    struck: AtomicBool,
}

impl Faulty {
    /// Fails at this place.
    pub fn at(fault: InjectedFault) -> Self {
        Self {
            fault,
            calls: AtomicU64::new(0),
            enabled: AtomicBool::new(false),
            struck: AtomicBool::new(false),
        }
    }

    /// Whether it came to the chosen call.
    pub fn struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst)
    }

    fn error() -> Error {
        Error::retryable("faulty", "a fault that the case staged")
    }
}

#[async_trait]
impl Tamper for Faulty {
    async fn before(&self, _: DriverMethod) -> Result<(), Error> {
        let chosen = self.calls.fetch_add(1, Ordering::SeqCst) == self.fault.call;
        if chosen {
            self.struck.store(true, Ordering::SeqCst);
        }
        if chosen && self.fault.point == InjectionPoint::Before {
            return Err(Self::error());
        }
        self.enabled.fetch_or(chosen, Ordering::SeqCst);
        Ok(())
    }

    fn cut_after_polls(&self, _: DriverMethod) -> Option<u32> {
        match self.fault.point {
            InjectionPoint::Polls(polls) if self.enabled.swap(false, Ordering::SeqCst) => {
                Some(polls)
            }
            _ => None,
        }
    }

    async fn after(&self, _: DriverMethod) -> Result<(), Error> {
        match self.fault.point {
            InjectionPoint::After if self.enabled.swap(false, Ordering::SeqCst) => {
                Err(Self::error())
            }
            _ => Ok(()),
        }
    }
}
