//! `acquire`, `renew`, `release`: locks that outlive the process, by ticket.

use std::io::Read;

use lockkit::driver::Released;
use lockkit::{Error, LockManager, Ticket};

use crate::args::{AcquireArgs, TicketArgs};
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::output;
use crate::run::signals::Signals;
use crate::take::{self, Take};

/// Prints the ticket and the token, in one line.
pub(crate) async fn acquire(args: &AcquireArgs) -> Result<u8, Failure> {
    let take = Take { name: &args.name, args: &args.take, max_hold: None, detached: true };
    let backend = Backend::choose(&args.backend)?;
    take.rehearse(&backend).await?;
    let locks = backend.connect().await?;
    let result = async {
        let ticket = take.take(&locks, &mut Signals::ending()?).await?.detach()?;
        let line = format!("{ticket} {}", ticket.token());
        if let Err(failure) = output::print_line(line) {
            // Nobody learned the ticket: nobody could release it.
            let _ = locks.release_ticket(&ticket).await;
            let unheard = || "nobody reads the ticket: the lock was released".to_owned();
            let sentence = failure.sentence.unwrap_or_else(unheard);
            return Err(Failure::new(code::OS, sentence));
        }
        Ok(0)
    }
    .await;
    take::close(&locks).await;
    result
}

/// Prints the token.
pub(crate) async fn renew(args: &TicketArgs) -> Result<u8, Failure> {
    let (locks, ticket) = open(args).await?;
    // The guard would release the lock: it becomes a ticket again before anything can fail.
    let ticket = locks.resume(&ticket).await?.detach()?;
    take::close(&locks).await;
    output::print_line(ticket.token())?;
    Ok(0)
}

/// Says nothing when it was held until now.
pub(crate) async fn release(args: &TicketArgs) -> Result<u8, Failure> {
    let (locks, ticket) = open(args).await?;
    let released = locks.release_ticket(&ticket).await?;
    take::close(&locks).await;
    match released {
        Released::Removed => Ok(0),
        _ => {
            let name = ticket.name();
            let sentence = format!("{name:?} was not held by this ticket any more");
            Err(Failure::new(code::LOST, sentence))
        }
    }
}

async fn open(args: &TicketArgs) -> Result<(LockManager, Ticket), Failure> {
    let text = match args.ticket.as_str() {
        "-" => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|e| Failure::usage(format!("cannot read the ticket from stdin: {e}")))?;
            // What `acquire` printed, token and all, is as good.
            text.split_whitespace().next().unwrap_or_default().to_owned()
        }
        text => text.to_owned(),
    };
    let ticket: Ticket = text.parse()?;
    let backend = Backend::choose(&args.backend)?;
    if backend.prefix() != ticket.namespace().as_str() {
        let prefix = ticket.namespace();
        return Err(Error::config(format!("this ticket needs --prefix {prefix}")).into());
    }
    Ok((backend.connect().await?, ticket))
}
