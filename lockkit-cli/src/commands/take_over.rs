//! `take-over`: raises the tokens of a backend above those of another.

use crate::args::BackendArgs;
use crate::args::look::TakeOverArgs;
use crate::backend::Backend;
use crate::exit::Failure;
use crate::output;

pub(crate) async fn take_over(args: &TakeOverArgs, chosen: &BackendArgs) -> Result<u8, Failure> {
    let backend = Backend::choose(chosen)?;
    let from = Backend::beside(chosen, &args.from, "--from")?;
    let old = from.connect().await?;
    let new = backend.connect().await?;
    let reached = old.reached_token().await;
    let reached =
        reached.map_err(|error| Failure::from(error).at("reading the tokens of", &from))?;
    let base = new.raise_tokens_above(reached).await?;
    old.shutdown().await;
    new.shutdown().await;
    output::print(&format!("tokens begin above {base}\n"))?;
    Ok(0)
}
