//! `take-over`: raises the tokens of a backend above those of another.

use crate::args::TakeOverArgs;
use crate::backend::Backend;
use crate::exit::Failure;
use crate::output;

pub(crate) async fn take_over(args: &TakeOverArgs) -> Result<u8, Failure> {
    let backend = Backend::choose(&args.backend)?;
    let old = Backend::beside(&args.backend, &args.from, "--from")?.connect().await?;
    let new = backend.connect().await?;
    let base = new.take_over_tokens(&old).await?;
    old.shutdown().await;
    new.shutdown().await;
    output::print(&format!("tokens begin above {base}\n"))?;
    Ok(0)
}
