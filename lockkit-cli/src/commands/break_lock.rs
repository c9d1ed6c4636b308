//! `break`: takes a lock away from its holder, or a place in line from who waits.

use lockkit::driver::Force;
use lockkit::{LockManager, MemoryDriver, Name};

use crate::args::BreakArgs;
use crate::backend::Backend;
use crate::commands::show;
use crate::exit::{Failure, code};
use crate::{output, phrase, take};

pub(crate) async fn break_lock(args: &BreakArgs) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    let space = show::space(args.semaphore);
    let how = match args.force {
        true => Force::Immediate,
        false => Force::Polite,
    };
    let (name, token, reason) = (&args.name, args.token, args.reason.as_deref());
    // Refuses what cannot be a reason before anything is touched.
    let stage = LockManager::new(MemoryDriver::new());
    stage.break_lock(space, name, token, how, reason).await?;
    let locks = Backend::choose(&args.backend)?.connect().await?;
    let broken = locks.break_lock(space, name, token, how, reason).await;
    take::close(&locks).await;
    let subject = phrase::subject(space, &args.name);
    match broken? {
        true => {
            output::detail(format!("broke {subject} of token {}", args.token));
            Ok(0)
        }
        false => Err(Failure::new(
            code::NO,
            format!("nobody has {subject} with token {}: see `lockkit show`", args.token),
        )),
    }
}
