//! The locks that a command runs under, as its environment has them. No I/O.

use lockkit::Space;
use serde::{Deserialize, Serialize};

/// Where all the locks that a command runs under stand, outermost first.
pub(super) const HELD: &str = "LOCKKIT_HELD";

/// One lock that a command runs under. No secrets: environments end up in logs.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Held {
    pub(super) space: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) token: u64,
    /// Its mode.
    #[serde(default)]
    pub(super) mode: String,
    /// The backend's URL, as far as it may be shown.
    pub(crate) backend: String,
    /// Whether the URL has a secret, which may not.
    pub(crate) hidden: bool,
}

impl Held {
    pub(crate) fn space(&self) -> Space {
        match self.space == Space::Semaphore.as_str() {
            true => Space::Semaphore,
            false => Space::Lock,
        }
    }
}

/// The locks that this process runs under, outermost first.
pub(crate) fn held() -> Vec<Held> {
    let text = std::env::var(HELD).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}
