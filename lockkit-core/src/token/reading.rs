//! Tokens out of numbers and text, which may be none.

use std::str::FromStr;

use super::Token;
use crate::Error;

impl TryFrom<u64> for Token {
    type Error = Error;

    fn try_from(number: u64) -> Result<Self, Error> {
        let range = i64::MAX;
        let error = || Error::Config(format!("{number} is no token: they go from 1 to {range}"));
        Self::new(number).ok_or_else(error)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.get()
    }
}

/// Reads the decimal number that [`Display`](std::fmt::Display) shows.
impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let error = |_| Error::Config(format!("{text:?} is no token: it is a decimal number"));
        text.parse().map_err(error).and_then(|number: u64| Self::try_from(number))
    }
}
