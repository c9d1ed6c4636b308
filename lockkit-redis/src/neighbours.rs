//! Locks of other libraries at the same server: which there are, how they write a lock, and how a namespace
//! remembers which it shares its locks with.

use lockkit_core::driver::check_neighbours;
use lockkit_core::{Claim, Error, Namespace};

use crate::keys;

/// Locks of other libraries that a namespace excludes, and is excluded by: the key `NAME` of the database, as
/// they see it.
///
/// One for a namespace, stored in it: a process without it, or with the other, is refused. A name has one
/// owner at a time among all; what is not promised towards neighbours is in `docs/neighbours.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisNeighbours {
    /// A string with a random value and an expiry, removed by compare-and-delete: redis-py's `Lock` and the
    /// many clients that use `SET NAME VALUE NX PX`, at one server. (`?neighbours=set-nx`)
    SetNx,
    /// Redisson's `RLock`: a hash whose field is `UUID:thread`, and a message on a channel when it is
    /// released. (`?neighbours=redisson`)
    Redisson,
}

impl RedisNeighbours {
    /// The word in a URL, and in the namespace.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SetNx => "set-nx",
            Self::Redisson => "redisson",
        }
    }

    /// All of them, by their words.
    pub(crate) const WORDS: [(&str, Self); 2] =
        [(Self::SetNx.as_str(), Self::SetNx), (Self::Redisson.as_str(), Self::Redisson)];

    /// What a gate of this claim has as its owner.
    pub(crate) fn owner(self, claim: &Claim) -> String {
        let id = claim.gate_owner();
        match self {
            Self::SetNx => format!("lockkit:{id}"),
            Self::Redisson => {
                let (a, b, c, d, e) = (&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]);
                format!("{a}-{b}-{c}-{d}-{e}:1")
            }
        }
    }

    /// The channel on which those are notified who wait for this lock; none for locks that are polled.
    pub(crate) fn channel(self, name: &str) -> String {
        match self {
            Self::SetNx => String::new(),
            Self::Redisson if name.contains('{') => format!("redisson_lock__channel:{name}"),
            Self::Redisson => format!("redisson_lock__channel:{{{name}}}"),
        }
    }
}

/// The neighbours that are stored, refused where they are not those of this process.
pub(crate) fn check(
    namespace: &Namespace,
    own: Option<RedisNeighbours>,
    stored: &str,
) -> Result<(), Error> {
    let stored = Some(stored).filter(|stored| !stored.is_empty());
    let place = format!("the key {}", keys::neighbours(namespace));
    check_neighbours(namespace, own.map(RedisNeighbours::as_str), stored, &place)
}

#[cfg(test)]
mod tests {
    use super::RedisNeighbours;

    #[test]
    fn the_channel_is_that_of_redisson() {
        let channel = |name| RedisNeighbours::Redisson.channel(name);
        assert_eq!(channel("job"), "redisson_lock__channel:{job}");
        assert_eq!(channel("jobs:{7}"), "redisson_lock__channel:jobs:{7}");
        assert_eq!(RedisNeighbours::SetNx.channel("job"), "");
    }
}
