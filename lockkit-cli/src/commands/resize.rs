//! `resize`: another limit for a semaphore.

use crate::args::BackendArgs;
use crate::args::sync::ResizeArgs;
use crate::backend::Backend;
use crate::exit::Failure;
use crate::output;
use crate::take;

pub(crate) async fn resize(args: &ResizeArgs, backend: &BackendArgs) -> Result<u8, Failure> {
    lockkit::Name::new(&args.name)?;
    let locks = Backend::choose(backend)?.connect().await?;
    let resized = locks.semaphore(&args.name, args.limit).resizable().resize(args.limit).await;
    take::close(&locks).await;
    resized?;
    output::print_line(args.limit)?;
    Ok(0)
}
