//! What a command is told of the locks it runs under, by its environment: for `check`, and so that
//! `run` inside `run` on the same name is refused instead of waiting for itself. No I/O.

use lockkit::{Space, Token};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::exit::Failure;
use crate::phrase;

/// Where all the locks that a command runs under stand, outermost first.
const HELD: &str = "LOCKKIT_HELD";

/// One lock that a command runs under. No secrets: environments end up in logs.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Held {
    space: String,
    pub(crate) prefix: String,
    pub(crate) name: String,
    pub(crate) token: u64,
    /// The backend's URL, as far as it may be shown.
    pub(crate) backend: String,
    /// Whether the URL has more, which may not.
    pub(crate) hidden: bool,
}

impl Held {
    pub(crate) fn new(backend: &Backend, space: Space, name: &str, token: Token) -> Self {
        Self {
            space: space.as_str().to_owned(),
            prefix: backend.prefix().to_owned(),
            name: name.to_owned(),
            token: token.get(),
            backend: backend.shown(),
            hidden: backend.hides_something(),
        }
    }

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

/// Refuses to wait for what this process itself runs under.
pub(crate) fn refuse(
    held: &[Held],
    backend: &Backend,
    space: Space,
    name: &str,
) -> Result<(), Failure> {
    let same = |one: &Held| {
        one.name == name
            && one.space() == space
            && one.prefix == backend.prefix()
            && one.backend == backend.shown()
    };
    match held.iter().any(same) {
        false => Ok(()),
        true => Err(Failure::usage(format!(
            "this already runs under {}, and would wait for itself: run it without lockkit, or use \
             another name (LOCKKIT_HELD says so: what outlived its lock can unset it)",
            phrase::subject(space, name)
        ))),
    }
}

/// The variables for a command that runs under one more.
pub(crate) fn environment(mut held: Vec<Held>, one: Held) -> Vec<(&'static str, String)> {
    let mut variables =
        vec![("LOCKKIT_NAME", one.name.clone()), ("LOCKKIT_TOKEN", one.token.to_string())];
    held.push(one);
    if let Ok(text) = serde_json::to_string(&held) {
        variables.push((HELD, text));
    }
    variables
}
