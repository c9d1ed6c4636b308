//! What a command learns of the locks it runs under, by its environment: for `check` and
//! `put --fenced`, and so that `run` inside `run` on the same name is refused instead of waiting for
//! itself. No I/O.

use lockkit::{Mode, Space, Token};

use super::held::{HELD, Held};
use crate::backend::Backend;
use crate::describe;
use crate::exit::ExitError;
use crate::taken::TakenLease;

impl Held {
    pub(crate) fn new(backend: &Backend, mode: Mode, name: &str, token: Token) -> Self {
        Self {
            space: mode.space().as_str().to_owned(),
            mode: mode.as_str().to_owned(),
            namespace: backend.namespace().to_owned(),
            name: name.to_owned(),
            token: token.get(),
            backend: backend.url_without_passwords(),
            hidden: backend.hides_something(),
        }
    }

    /// The token, for a register in that backend; an error where it would not fence.
    pub(crate) fn fences(&self, backend: &Backend) -> Result<Token, ExitError> {
        if self.mode != Mode::Exclusive.as_str() {
            let sentence = match self.space() {
                Space::Semaphore => "permits of a semaphore do not fence: use a lock",
                Space::Lock => "a reader's token does not fence: take the lock without --shared",
            };
            return Err(ExitError::usage(sentence));
        }
        self.is_in(backend, "and its token does not fence")?;
        let none = || ExitError::usage("LOCKKIT_HELD has no token: leave it as lockkit made it");
        Token::new(self.token).ok_or_else(none)
    }

    /// Refuses another backend or namespace than that of the lock, in which this is `so`.
    pub(crate) fn is_in(&self, backend: &Backend, so: &str) -> Result<(), ExitError> {
        let (here, namespace) = (backend.url_without_passwords(), backend.namespace());
        if (&*self.backend, &*self.namespace) == (&*here, namespace) {
            return Ok(());
        }
        Err(ExitError::usage(format!(
            "the lock that this runs under is in {} in the namespace {:?}, {so} in {here} in the \
             namespace {namespace:?}: leave --url and --namespace out, or give those of the lock",
            self.backend, self.namespace
        )))
    }
}

/// Refuses to wait for what this process itself runs under.
pub(crate) fn refuse(
    held: &[Held],
    backend: &Backend,
    space: Space,
    name: &str,
) -> Result<(), ExitError> {
    let same = |one: &Held| {
        one.name == name
            && one.space() == space
            && one.namespace == backend.namespace()
            && one.backend == backend.url_without_passwords()
    };
    match held.iter().any(same) {
        false => Ok(()),
        true => Err(ExitError::usage(format!(
            "this already runs under {}, and would wait for itself: run it without lockkit, or use \
             another name (LOCKKIT_HELD says so: what outlived its lock can unset it)",
            describe::subject(space, name)
        ))),
    }
}

/// The variables for a command that runs under one more, and those that it must not have.
pub(crate) fn environment(
    mut held: Vec<Held>,
    name: &str,
    lease: &TakenLease,
    backend: &Backend,
) -> Result<Vec<(&'static str, Option<String>)>, ExitError> {
    let mut variables = backend.handed_on();
    let token = lease.token()?;
    variables.extend([
        ("LOCKKIT_NAME", Some(name.to_owned())),
        ("LOCKKIT_TOKEN", Some(token.to_string())),
        // That of an outer command is not this one's.
        ("LOCKKIT_SLOT", lease.slot().map(|slot| slot.number().to_string())),
    ]);
    if let Some(slot) = lease.slot() {
        let permit = slot.permit();
        held.push(Held::new(backend, permit.mode(), name, permit.token()?));
    }
    let lock = lease.lock();
    held.push(Held::new(backend, lock.mode(), lock.name().as_str(), token));
    if let Ok(text) = serde_json::to_string(&held) {
        variables.push((HELD, Some(text)));
    }
    Ok(variables)
}
