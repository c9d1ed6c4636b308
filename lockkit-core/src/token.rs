//! Fencing tokens.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A fencing token: the number that orders a claim in its lock's queue.
///
/// For one name, a later conflicting holder has a greater token. A resource that remembers the
/// greatest token it has seen, and refuses lower ones, is safe from a holder that lost its lock
/// without noticing. Fits into a signed 64-bit column. Tokens of different names, and of different
/// backends, do not compare.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let first = locks.mutex("invoice/42").lock().await?;
/// let stale = first.token()?;
/// first.release().await?;
/// let second = locks.mutex("invoice/42").lock().await?;
/// assert!(second.token()? > stale);
/// let read: lockkit_core::Token = stale.to_string().parse()?; // out of a header or a column
/// assert_eq!(read, stale);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(NonZeroU64);

impl Token {
    /// The token of this number; `None` for 0 and for what does not fit into an `i64`.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(n) if number <= i64::MAX as u64 => Some(Self(n)),
            _ => None,
        }
    }

    /// The number, from 1 to `i64::MAX`.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number as databases keep it.
    pub const fn as_i64(self) -> i64 {
        self.0.get() as i64
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A number or a text that is no [`Token`]. Converts into [`Error::Config`](crate::Error::Config).
///
/// ```
/// use lockkit_core::Token;
///
/// let error = "0".parse::<Token>().unwrap_err();
/// assert!(error.to_string().contains("is no token"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no token: tokens are decimal numbers from 1 to {max}", max = i64::MAX)]
pub struct InvalidToken(String);

impl TryFrom<u64> for Token {
    type Error = InvalidToken;

    fn try_from(number: u64) -> Result<Self, InvalidToken> {
        Self::new(number).ok_or_else(|| InvalidToken(number.to_string()))
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.get()
    }
}

/// Reads the decimal number that [`Display`](std::fmt::Display) shows.
impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let number = text.parse().ok().and_then(Self::new);
        number.ok_or_else(|| InvalidToken(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_positive_and_fits_a_signed_column() {
        assert_eq!(Token::new(0), None);
        assert_eq!(Token::new(i64::MAX as u64).unwrap().as_i64(), i64::MAX);
        assert_eq!(Token::new(i64::MAX as u64 + 1), None);
    }

    #[test]
    fn a_token_is_read_as_it_is_shown_and_nothing_else_is_one() {
        for number in [1, 7, i64::MAX as u64] {
            let token = Token::new(number).unwrap();
            assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
            let json = serde_json::to_string(&token).unwrap();
            assert_eq!(json, number.to_string());
            assert_eq!(serde_json::from_str::<Token>(&json).unwrap(), token);
        }
        for text in ["", "0", "-1", "1.0", "9223372036854775808", "0x10"] {
            text.parse::<Token>().expect_err(text);
            serde_json::from_str::<Token>(text).expect_err(text);
        }
    }
}
