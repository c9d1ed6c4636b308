//! `break`: takes a lock away from its holder, or a place in line from who waits.

use lockkit::Name;
use lockkit::driver::Force;

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
    let locks = Backend::choose(&args.backend)?.connect().await?;
    let broken = locks.break_lock(space, &args.name, args.token, how, args.reason.as_deref()).await;
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
