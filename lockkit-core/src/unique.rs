//! Ids that no other process makes: not a fork of this one, nor one on a copy of this machine.

use std::hash::{DefaultHasher, Hasher};
use std::time::SystemTime;

use rand::rngs::OsRng;
use rand::{RngCore, TryRngCore};

/// 128 random bits from the kernel, mixed with what differs where the kernel's generator was copied
/// along with the machine, or where this process was forked: the process id, the wall clock, and the
/// time since boot, which is never set.
pub(crate) fn id() -> [u8; 16] {
    let mut bytes = [0; 16];
    if OsRng.try_fill_bytes(&mut bytes).is_err() {
        rand::rng().fill_bytes(&mut bytes);
    }
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    hasher.write_u32(std::process::id());
    hasher.write_u128(wall.as_nanos());
    hasher.write_u128(since_boot());
    // What is mixed in takes nothing from the randomness of what is there.
    for half in bytes.chunks_exact_mut(8) {
        hasher.write_u8(0);
        let mixed = hasher.finish().to_ne_bytes();
        half.iter_mut().zip(mixed).for_each(|(byte, other)| *byte ^= other);
    }
    bytes
}

/// In nanoseconds, on a clock that is neither set nor slewed.
fn since_boot() -> u128 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::MonotonicRaw;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u128 * 1_000_000_000 + now.tv_nsec as u128
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::id;

    #[test]
    fn no_id_comes_twice_and_every_bit_varies() {
        let ids: HashSet<_> = (0..10_000).map(|_| id()).collect();
        assert_eq!(ids.len(), 10_000);
        let numbers = || ids.iter().map(|id| u128::from_ne_bytes(*id));
        assert_eq!(numbers().fold(0, |all, id| all | id), u128::MAX);
        assert_eq!(numbers().fold(u128::MAX, |all, id| all & id), 0);
    }
}
