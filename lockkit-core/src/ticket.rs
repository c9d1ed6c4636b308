//! The ticket of a detached claim: one word of text with which another process renews or releases
//! it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::claim::ClaimId;
use crate::settings::LONGEST_TTL;
use crate::{Claim, ClientIdentity, Error, Key, Lifetime, Mode, Name, Namespace, Space, Token};

/// What lets another process go on with a detached lock. Its text (`to_string`, `parse`) is one
/// word without spaces or quotes.
///
/// A ticket *is* the claim: a process that has it is the holder, with the same token, and the
/// backend cannot tell two such processes apart. **One process at a time** resumes it; handing the
/// ticket on means to [detach](crate::Guard::detach) first. A manager refuses to resume a ticket
/// twice at a time. Where two managers do, both guards are valid side by side, and fencing does not
/// separate them. When one of them releases, the other learns it
/// [`LossReason::Vanished`](crate::LossReason::Vanished) at its next renewal, after a third of the
/// ttl at most, or at its next [`verify`](crate::HeldLock::verify); until then it may say that it is
/// valid while a third one holds.
///
/// **The text is enough to renew and release the lock**: keep it as you would keep a password.
/// `Debug` hides that part.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::Ticket;
///
/// let guard = locks.mutex("deploy").detached().lock().await?;
/// let token = guard.token()?;
/// let text = guard.detach()?.to_string(); // for the next step, perhaps on another host
///
/// let ticket: Ticket = text.parse()?;
/// let guard = locks.resume(&ticket).await?;
/// assert_eq!(guard.token()?, token);
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    key: Key,
    mode: Mode,
    ttl: Duration,
    token: Token,
    id: ClaimId,
}

/// `LK1.MODE.TTL_MS.TOKEN.ID.NAMESPACE.NAME`, namespace and name percent-encoded.
const VERSION: &str = "LK1";
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'/');

impl Ticket {
    pub(crate) fn new(claim: &Claim, token: Token) -> Self {
        Self { key: claim.key.clone(), mode: claim.mode, ttl: claim.hold_ttl, token, id: claim.id }
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.key.name
    }

    /// The namespace of the manager that made it. A manager with another one refuses the ticket.
    pub fn namespace(&self) -> &Namespace {
        &self.key.namespace
    }

    /// The space that the name is in.
    pub fn space(&self) -> Space {
        self.key.space
    }

    /// How it holds.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The fencing token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The ttl of its lease.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(crate) fn claim(&self, wait_ttl: Duration, identity: Arc<ClientIdentity>) -> Claim {
        Claim::new(self.key.clone(), self.mode, self.ttl, wait_ttl, identity)
            .with_lifetime(Lifetime::Detached)
            .with_id(self.id)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}.")?;
        match self.mode {
            Mode::Exclusive => f.write_str("x")?,
            Mode::Shared => f.write_str("s")?,
            Mode::Permits { permits, limit } => write!(f, "p{permits}of{limit}")?,
        }
        let (ttl, token, id) = (self.ttl.as_millis(), self.token, self.id.to_hex());
        let namespace = utf8_percent_encode(self.key.namespace.as_str(), PLAIN);
        let name = utf8_percent_encode(self.key.name.as_str(), PLAIN);
        write!(f, ".{ttl}.{token}.{id}.{namespace}.{name}")
    }
}

impl FromStr for Ticket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text.trim()).ok_or_else(|| {
            Error::config("this is not a ticket: give the whole word that acquiring printed")
        })
    }
}

fn parse(text: &str) -> Option<Ticket> {
    let mut parts = text.split('.');
    (parts.next()? == VERSION).then_some(())?;
    let mode = parse_mode(parts.next()?)?;
    let ttl = Duration::from_millis(parts.next()?.parse().ok()?);
    let token = Token::new(parts.next()?.parse().ok()?)?;
    let id = ClaimId::from_hex(parts.next()?)?;
    let namespace = Namespace::new(decode(parts.next()?)?).ok()?;
    let name = Name::new(decode(parts.next()?)?).ok()?;
    let whole = parts.next().is_none() && !ttl.is_zero() && ttl <= LONGEST_TTL;
    whole.then(|| Ticket { key: Key::new(namespace, mode.space(), name), mode, ttl, token, id })
}

fn parse_mode(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => {
            let (permits, limit) = text.strip_prefix('p')?.split_once("of")?;
            let (permits, limit) = (permits.parse().ok()?, limit.parse().ok()?);
            // The limit may have been another one when the claim was made.
            (permits > 0).then_some(Mode::Permits { permits, limit })
        }
    }
}

fn decode(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(name: &str, mode: Mode) -> Ticket {
        let key =
            Key::new(Namespace::new("sh op").unwrap(), mode.space(), Name::new(name).unwrap());
        let identity = Arc::new(ClientIdentity::of_this_process());
        let ttl = Duration::from_secs(30);
        Ticket::new(&Claim::new(key, mode, ttl, ttl, identity), Token::new(7).unwrap())
    }

    #[test]
    fn a_ticket_survives_its_text_which_is_one_word() {
        for name in ["a", "a/b.c d", "..", "ä'\"$`;*", "%2F"] {
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { permits: 3, limit: 10 }] {
                let ticket = ticket(name, mode);
                let text = ticket.to_string();
                assert!(!text.contains(|c: char| c.is_whitespace() || "'\"$`;*".contains(c)));
                assert_eq!(text.parse::<Ticket>().unwrap(), ticket);
            }
        }
    }

    #[test]
    fn what_is_no_ticket_is_refused() {
        let good = ticket("a", Mode::Exclusive).to_string();
        for bad in ["", "LK1", &good[..good.len() - 2], &good.replace("LK1", "LK2"), "x y z"] {
            assert!(bad.parse::<Ticket>().is_err(), "{bad}");
        }
        let zero = ticket("a", Mode::Permits { permits: 1, limit: 1 }).to_string();
        assert!(zero.replace("p1of1", "p0of1").parse::<Ticket>().is_err());
    }

    #[test]
    fn debug_hides_the_id() {
        let ticket = ticket("a", Mode::Exclusive);
        assert!(!format!("{ticket:?}").contains(&ticket.id.to_hex()[..8]));
    }
}
