//! Whom to wake: the claims that wait through the drivers of this process, and what messages call them.
//! No I/O.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lockkit_core::driver::{ClaimId, Grant};
use lockkit_core::waiting::{RegisterBells, Waiting};
use lockkit_core::{Claim, Token};
use sha2::{Digest, Sha256};

use crate::rows::micros;

/// What stands for a claim where others can see it: from the id, and no way back.
pub(crate) type Tag = [u8; 8];

/// The tag of a claim, as the database makes it from the id.
pub(crate) fn tag(id: &ClaimId) -> Tag {
    let hash = Sha256::digest(id.as_bytes());
    std::array::from_fn(|i| hash[i])
}

/// Who waits through one driver.
#[derive(Debug)]
pub(crate) struct Wakes {
    /// The id of this client, which its channel and its claims bear.
    pub(crate) client: Tag,
    pub(crate) claims: Waiting<Tag>,
    /// Whether what happens in this process comes as a message too.
    messages: bool,
    pub(crate) registers: RegisterBells,
}

/// All drivers of this process: a release through one rings at the others.
fn drivers() -> MutexGuard<'static, Vec<Weak<Wakes>>> {
    static DRIVERS: OnceLock<Mutex<Vec<Weak<Wakes>>>> = OnceLock::new();
    // Nothing panics while it holds this lock, so what is poisoned is sound.
    DRIVERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wakes {
    pub(crate) fn new(messages: bool) -> Arc<Self> {
        let wakes = Arc::new(Self {
            client: tag(&ClaimId::random()),
            claims: Waiting::new(tag),
            messages,
            registers: RegisterBells::default(),
        });
        let mut drivers = drivers();
        drivers.retain(|driver| driver.strong_count() > 0);
        drivers.push(Arc::downgrade(&wakes));
        wakes
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    /// The client's id, as its channel has it.
    pub(crate) fn channel(&self) -> String {
        let hex: String = self.client.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("lockkit_{hex}")
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    /// A message to this client: `g TAG TOKEN`, the claim holds; `l TAG`, it is to look; `r`, a
    /// register was written.
    pub(crate) fn heard(&self, message: &str) {
        let mut words = message.split(' ');
        let verb = words.next();
        if verb == Some("r") {
            return self.registers.ring(None);
        }
        let Some(tag) = words.next().and_then(read_tag) else { return };
        let token = words.next().and_then(|token| token.parse().ok()).and_then(Token::new);
        match token {
            Some(token) if verb == Some("g") => self.claims.granted(&tag, |c| granted(c, token)),
            _ => self.claims.ring(&tag),
        }
    }

    /// A verb of this process made these hold: who waits here, through whichever driver, is asked about
    /// at once.
    pub(crate) fn ring(woken: &[Tag]) {
        if woken.is_empty() {
            return;
        }
        let all: Vec<_> = drivers().iter().filter_map(Weak::upgrade).collect();
        for wakes in all.iter().filter(|wakes| !(wakes.messages && wakes.claims.is_told())) {
            woken.iter().for_each(|tag| wakes.claims.ring(tag));
        }
    }

    /// A register was written by this process.
    pub(crate) fn ring_registers() {
        let all: Vec<_> = drivers().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|wakes| wakes.registers.ring(None));
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn read_tag(hex: &str) -> Option<Tag> {
    let tag = u64::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 16)?;
    Some(tag.to_be_bytes())
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
/// The lease of a claim that somebody else made a holder counts from the last request of its owner
/// that was answered: the database counts it from later.
fn granted(claim: &Claim, token: Token) -> Grant {
    Grant { token, ttl: Duration::from_micros(micros(claim.hold_ttl) as u64), since: None }
}
