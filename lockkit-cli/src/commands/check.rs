//! `check`: asks the backend whether the lock that this command runs under still holds.

use lockkit::Name;

use crate::args::CheckArgs;
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::run::nested::{self, Held};
use crate::{output, phrase, take};

pub(crate) async fn check(args: &CheckArgs) -> Result<u8, Failure> {
    let Some(held) = nested::held().pop() else {
        return Err(Failure::usage(
            "this does not run under `lockkit run`: there is no lock to check",
        ));
    };
    Name::new(&held.name)?;
    let locks = backend(args, &held)?.connect().await?;
    let state = locks.inspect(held.space(), &held.name).await;
    take::close(&locks).await;
    let subject = phrase::subject(held.space(), &held.name);
    match state?.holders().find(|s| s.token.get() == held.token) {
        Some(standing) if !standing.broken => {
            output::detail(format!("{subject} is held with token {}", held.token));
            Ok(0)
        }
        Some(_) => Err(lost(&format!("{subject} was broken"))),
        None => Err(lost(&format!("{subject} is not held with token {} any more", held.token))),
    }
}

fn lost(sentence: &str) -> Failure {
    Failure::new(code::LOST, sentence)
}

/// The same backend as that of the lock: as told, or, where its URL may not be told, as the
/// environment has it.
fn backend(args: &CheckArgs, held: &Held) -> Result<Backend, Failure> {
    let mut told = args.backend.clone();
    if told.url.is_none() && !told.local && !held.hidden {
        return Backend::exactly(&held.backend, &held.prefix);
    }
    let nowhere = ["LOCKKIT_URL", "LOCKKIT_URL_FILE"].map(std::env::var_os) == [None, None];
    if told.url.is_none() && !told.local && nowhere {
        return Err(Failure::usage(
            "the backend's URL contains a secret, which is not handed on: give it with LOCKKIT_URL \
             or LOCKKIT_URL_FILE instead of --url",
        ));
    }
    told.prefix = Some(held.prefix.clone());
    Backend::choose(&told)
}
