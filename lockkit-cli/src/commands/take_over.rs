//! `take-over`: raises the tokens of a backend above those of another.

use crate::args::BackendArgs;
use crate::args::look::TakeOverArgs;
use crate::backend::Backend;
use crate::exit::Failure;
use crate::output;

pub(crate) async fn take_over(args: &TakeOverArgs, chosen: &BackendArgs) -> Result<u8, Failure> {
    let backend = Backend::choose(chosen)?;
    let old = Backend::beside(chosen, &args.from, "--from")?.connect().await?;
    let new = backend.connect().await?;
    let base = new.take_over_tokens(&old).await?;
    old.shutdown().await;
    new.shutdown().await;
    output::print(&format!("tokens begin above {base}\n"))?;
    Ok(0)
}
