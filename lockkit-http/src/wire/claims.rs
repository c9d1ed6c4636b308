//! Claims, and what is asked about them.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquire as DriverAcquire, Batch, ClaimId, Patience};
use lockkit_core::{
    Claim as DriverClaim, ClientIdentity, Error, Key, Lifetime, Mode, Name, Namespace,
};
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::RenewOutcome;
use super::ms_up;

/// A claim: what a client puts into the queue of a lock, and what it renews and releases. The client
/// makes it, keeps it, and sends the same with every request about it.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Claim;
///
/// let it: Claim = serde_json::from_str(r#"{"id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19", "name": "invoice/42"}"#)?;
/// assert_eq!((it.ttl_ms, it.wait_ttl_ms), (30_000, 10_000));
/// assert!(it.for_driver(|id| id).is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// 128 random bits as 32 lower-case hexadecimal digits, new for every claim. A secret: who has
    /// it can renew and release. A request with the same id is the same request again.
    pub id: String,
    /// Keeps the locks of one application apart from another's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the lock or semaphore: 1 to 512 bytes without control characters.
    pub name: String,
    /// Its mode.
    #[serde(default)]
    pub mode: ModeKind,
    /// With mode `permits`: how many it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// With mode `permits`: how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The TTL while it holds.
    #[serde(default = "Claim::default_ttl_ms")]
    pub ttl_ms: u64,
    /// The TTL while it waits.
    #[serde(default = "Claim::default_wait_ttl_ms")]
    pub wait_ttl_ms: u64,
    /// The client, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<ClientIdentity>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The mode of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeKind {
    /// No other claim.
    #[default]
    Exclusive,
    /// Other shared claims may hold, too.
    Shared,
    /// Some permits of a semaphore.
    Permits,
}

impl ModeKind {
    /// A mode, taken apart: with permits and limit, where it has them.
    pub(super) fn of(mode: Mode) -> (Self, Option<u32>, Option<u32>) {
        match mode {
            Mode::Exclusive => (Self::Exclusive, None, None),
            Mode::Shared => (Self::Shared, None, None),
            Mode::Permits { permits, limit } => (Self::Permits, Some(permits), Some(limit)),
        }
    }
}

impl Claim {
    fn default_ttl_ms() -> u64 {
        30_000
    }

    fn default_wait_ttl_ms() -> u64 {
        10_000
    }

    /// What is sent for a claim of the driver trait.
    pub fn of(claim: &DriverClaim) -> Self {
        let (mode, permits, limit) = ModeKind::of(claim.mode);
        Self {
            id: claim.id.to_hex(),
            namespace: claim.key.namespace.as_str().to_owned(),
            name: claim.key.name.as_str().to_owned(),
            mode,
            permits,
            limit,
            ttl_ms: ms_up(claim.hold_ttl),
            wait_ttl_ms: ms_up(claim.wait_ttl),
            holder: Some((*claim.identity).clone()),
            note: claim.note.as_deref().map(str::to_owned),
        }
    }

    /// Its mode, checked.
    pub fn mode(&self) -> Result<Mode, Error> {
        match (self.mode, self.permits, self.limit) {
            (ModeKind::Exclusive, None, None) => Ok(Mode::Exclusive),
            (ModeKind::Shared, None, None) => Ok(Mode::Shared),
            (ModeKind::Permits, Some(permits), Some(limit)) => Ok(Mode::Permits { permits, limit }),
            (ModeKind::Permits, ..) => Err(Error::config(
                "a claim of mode permits says how many (permits) of how many (limit)",
            )),
            _ => Err(Error::config("permits and limit go with the mode permits only")),
        }
    }

    /// The claim for a driver, under the id that `hidden` makes of the client's. Names are checked.
    pub fn for_driver(
        self,
        hidden: impl FnOnce(ClaimId) -> ClaimId,
    ) -> Result<Arc<DriverClaim>, Error> {
        let id = ClaimId::from_hex(&self.id).ok_or_else(|| {
            Error::config("the id of a claim is 32 lower-case hexadecimal digits, made at random")
        })?;
        let mode = self.mode()?;
        let key = Key::new(Namespace::new(&self.namespace)?, mode.space(), Name::new(&self.name)?);
        let (ttl, wait_ttl) =
            (Duration::from_millis(self.ttl_ms), Duration::from_millis(self.wait_ttl_ms));
        let nobody = || ClientIdentity::new("unknown", 0, "unknown");
        let holder = Arc::new(self.holder.unwrap_or_else(nobody));
        let claim = DriverClaim::new(key, mode, ttl, wait_ttl, holder)
            .with_id(hidden(id))
            // Other servers over the same backend answer for it, too.
            .with_lifetime(Lifetime::Detached)
            .with_note(self.note.map(Arc::from));
        Ok(Arc::new(claim))
    }
}

/// `POST /v1/acquire`: puts a claim into the queue.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::AcquireBody;
///
/// let json = r#"
///     {"claim": {"id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19", "name": "invoice/42"},
///      "wait_ms": 5000}
/// "#;
/// let it: AcquireBody = serde_json::from_str(json)?;
/// assert_eq!(it.wait_ms, 5000);
/// assert!(!it.no_wait);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcquireBody {
    /// The claim.
    pub claim: Claim,
    /// Whether it leaves at once when it cannot hold at once, without ever having been in the queue.
    #[serde(default)]
    pub no_wait: bool,
    /// Whether the semaphore's limit may be changed by `resize`: then more permits than the limit
    /// may be asked for, and wait. Otherwise such an acquire is refused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub resizable: bool,
    /// How long the answer may wait for the claim to hold: 25 s at most.
    #[serde(default)]
    pub wait_ms: u64,
}

/// `POST /v1/wait`: renews a claim, and answers when it holds or when the time is over.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::WaitBody;
///
/// let json = r#"
///     {"claim": {"id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19", "name": "invoice/42"},
///      "wait_ms": 25000}
/// "#;
/// let it: WaitBody = serde_json::from_str(json)?;
/// assert_eq!(it.claim.name, "invoice/42");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitBody {
    /// The claim, which [`AcquireBody`] put into the queue.
    pub claim: Claim,
    /// How long the answer may wait: 25 s at most.
    #[serde(default)]
    pub wait_ms: u64,
}

/// `POST /v1/release`, `/v1/verify`, `/v1/downgrade`.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::ClaimBody;
///
/// let json = r#"
///     {"claim": {"id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19", "name": "invoice/42"}}
/// "#;
/// let it: ClaimBody = serde_json::from_str(json)?;
/// assert_eq!(it.claim.name, "invoice/42");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    /// The claim.
    pub claim: Claim,
}

/// `POST /v1/renew`: renews many claims.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::RenewBody;
///
/// let json = r#"
///     {"claims": [{"id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19", "name": "invoice/42"}]}
/// "#;
/// let it: RenewBody = serde_json::from_str(json)?;
/// assert_eq!(it.claims.len(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// The claims; [`RenewOutcome`] has one answer for each, in the same order.
    pub claims: Vec<Claim>,
}

/// `POST /v1/shorten`: makes the lease of a claim end earlier.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::ShortenBody;
///
/// let json = r#"
///     {"claim": {"id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19", "name": "invoice/42"},
///      "ttl_ms": 5000}
/// "#;
/// let it: ShortenBody = serde_json::from_str(json)?;
/// assert_eq!(it.ttl_ms, 5000);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortenBody {
    /// The claim.
    pub claim: Claim,
    /// How long it holds from now on.
    pub ttl_ms: u64,
}

/// `POST /v1/batch`: releases and acquires of different claims, each answered by itself.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::BatchBody;
///
/// let json = r#"
///     {"releases": [{"id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19", "name": "invoice/42"}],
///      "acquires": [{"claim": {"id": "91a2b3c4f5e6d7a8f5c44b1ed0c9a2f3", "name": "invoice/43"}}]}
/// "#;
/// let it: BatchBody = serde_json::from_str(json)?;
/// assert_eq!((it.releases.len(), it.acquires.len()), (1, 1));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchBody {
    /// The claims to take out of their queues. They come before all acquires.
    #[serde(default)]
    pub releases: Vec<Claim>,
    /// The claims to put in.
    #[serde(default)]
    pub acquires: Vec<BatchAcquire>,
}

/// One acquire of a [`BatchBody`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchAcquire {
    /// The claim.
    pub claim: Claim,
    /// As in [`AcquireBody`].
    #[serde(default)]
    pub no_wait: bool,
    /// As in [`AcquireBody`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub resizable: bool,
}

impl BatchBody {
    /// The body for a batch of a driver.
    pub fn of(batch: &Batch<'_>) -> Self {
        let acquire = |acquire: &DriverAcquire| BatchAcquire {
            claim: Claim::of(&acquire.claim),
            no_wait: acquire.patience == Patience::Try,
            resizable: acquire.claim.resizable,
        };
        Self {
            releases: batch.releases.iter().map(|claim| Claim::of(claim)).collect(),
            acquires: batch.acquires.iter().map(acquire).collect(),
        }
    }
}

fn is_false(it: &bool) -> bool {
    !it
}
