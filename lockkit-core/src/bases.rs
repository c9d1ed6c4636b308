//! The token offsets that a driver has read. A backend that gets older data back forgets an offset that
//! was raised since, and all tokens would fall by it.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::concurrency::locked;
use crate::{Error, Namespace};

/// The greatest token offset that was read of each namespace.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::Namespace;
/// use lockkit_core::driver::KnownBases;
///
/// let (bases, shop) = (KnownBases::default(), Namespace::new("shop")?);
/// assert_eq!(bases.saw("mine", &shop, 5)?, 5);
/// assert!(bases.saw("mine", &shop, 0).is_err());
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct KnownBases(Mutex<HashMap<Namespace, u64>>);

impl KnownBases {
    /// The number that a driver stores for a namespace, in decimal digits.
    ///
    /// # Errors
    /// A permanent one where something else is stored.
    pub fn parse(backend: &'static str, stored: &[u8]) -> Result<u64, Error> {
        let number = std::str::from_utf8(stored).ok().and_then(|text| text.parse().ok());
        let wrong = || Error::permanent(backend, "the token offset that is stored is no number");
        number.ok_or_else(wrong)
    }

    /// Checks an offset that was read. An error when a greater one was read before: open managers go on
    /// above that, and one that began below would give tokens that go back.
    pub fn saw(
        &self,
        backend: &'static str,
        namespace: &Namespace,
        base: u64,
    ) -> Result<u64, Error> {
        let mut known = locked(&self.0);
        let known = known.entry(namespace.clone()).or_default();
        if base < *known {
            let message = format!(
                "the token base of the namespace {:?} went back from {known} to {base}, so older data \
                 came back: raise it again (`lockkit take-over`) before anybody else connects",
                namespace.as_str()
            );
            return Err(Error::permanent(backend, message));
        }
        *known = base;
        Ok(base)
    }
}
