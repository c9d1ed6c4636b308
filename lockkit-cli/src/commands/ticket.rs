//! `acquire`, `renew`, `release`: locks that outlive the process, by ticket.

use std::io::Read;

use lockkit::driver::Released;
use lockkit::{Error, LockManager, Ticket, Token};
use serde::Serialize;

use crate::acquire::{self, LockRequest};
use crate::args::BackendArgs;
use crate::args::acquire::{AcquireArgs, TicketArgs};
use crate::backend::Backend;
use crate::exit::{ExitError, code};
use crate::output;
use crate::run::signals::Signals;
use crate::view::json;

/// A ticket as JSON. Stable: programs read it.
#[derive(Serialize)]
struct TicketView<'a> {
    ticket: String,
    token: Token,
    name: &'a str,
    space: &'static str,
    ttl_ms: u64,
}

/// Prints the ticket alone, so that `ticket=$(lockkit acquire …)` has it.
pub(crate) async fn acquire(args: &AcquireArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    if output::nobody_reads() {
        return Err(ExitError::usage(
            "nobody could read the ticket, since stdout is closed or /dev/null: nothing was taken",
        ));
    }
    for (option, given) in
        [("--at-least", args.take.at_least), ("--lock-delay", args.take.lock_delay)]
    {
        if given.is_some() {
            return Err(ExitError::usage(format!(
                "{option} is for a lock that lockkit itself holds, and the ticket outlives it: use \
                 `lockkit run`, or a longer --ttl"
            )));
        }
    }
    let take = LockRequest::new(&args.name, &args.take, None, true);
    let backend = Backend::choose(backend)?.ttl_or_default(args.take.ttl);
    take.rehearse(&backend).await?;
    let locks = take.connect(&backend).await?;
    let result = async {
        let taken = take.take(&locks, &mut Signals::ending()?).await?.into_lock();
        let no_slot = || ExitError::usage("a slot has no ticket: use `lockkit run --slots`");
        let ticket = taken.ok_or_else(no_slot)?.detach()?;
        let line = match args.json {
            true => json(&TicketView::of(&ticket))?,
            false => ticket.to_string(),
        };
        if let Err(failure) = output::print_line(line) {
            // The ticket was read by no one, so the lock could not be released.
            let _ = locks.release_ticket(&ticket).await;
            let unheard = || "nobody reads the ticket: the lock was released".to_owned();
            let sentence = failure.sentence.unwrap_or_else(unheard);
            return Err(ExitError::new(code::OS, sentence));
        }
        Ok(0)
    }
    .await;
    acquire::close_after(&locks, &result).await;
    result
}

impl<'a> TicketView<'a> {
    fn of(ticket: &'a Ticket) -> Self {
        Self {
            ticket: ticket.to_string(),
            token: ticket.token(),
            name: ticket.name().as_str(),
            space: ticket.space().as_str(),
            ttl_ms: u64::try_from(ticket.ttl().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Prints the token.
pub(crate) async fn renew(args: &TicketArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    let (locks, ticket) = open(args, backend).await?;
    // The guard would release the lock: it becomes a ticket again before anything can fail.
    let ticket = locks.resume(&ticket).await?.detach()?;
    acquire::close(&locks).await;
    output::print_line(ticket.token())?;
    Ok(0)
}

/// Says nothing when it was held until now.
pub(crate) async fn release(args: &TicketArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    let (locks, ticket) = open(args, backend).await?;
    let released = locks.release_ticket(&ticket).await?;
    acquire::close(&locks).await;
    match released {
        Released::Removed => Ok(0),
        _ => {
            let name = ticket.name();
            let sentence = format!("{name:?} was not held by this ticket any more");
            Err(ExitError::new(code::LOST, sentence))
        }
    }
}

async fn open(
    args: &TicketArgs,
    backend: &BackendArgs,
) -> Result<(LockManager, Ticket), ExitError> {
    let text = match args.ticket.as_str() {
        "-" => {
            let mut text = String::new();
            let read = std::io::stdin().take(LONGEST).read_to_string(&mut text);
            read.map_err(|e| ExitError::usage(format!("cannot read the ticket from stdin: {e}")))?;
            text
        }
        text => text.to_owned(),
    };
    let text = text.trim();
    if text.contains(char::is_whitespace) {
        return Err(ExitError::usage("a ticket is one word: give what `acquire` printed, alone"));
    }
    let ticket: Ticket = text.parse()?;
    let backend = Backend::choose(backend)?.ttl_or_default(Some(ticket.ttl()));
    if backend.namespace() != ticket.namespace().as_str() {
        let namespace = match ticket.namespace().as_str() {
            "" => "''",
            namespace => namespace,
        };
        return Err(Error::config(format!("this ticket needs --namespace {namespace}")).into());
    }
    Ok((backend.connect().await?, ticket))
}

/// More bytes than any ticket has.
const LONGEST: u64 = 16 * 1024;
