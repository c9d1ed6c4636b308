//! `watch`: one lock, now and after each change, until interrupted.

use futures_util::StreamExt;
use lockkit::Name;

use crate::args::ShowArgs;
use crate::backend::Backend;
use crate::commands::show;
use crate::exit::Failure;
use crate::output;
use crate::view::{StateView, json};

pub(crate) async fn watch(args: &ShowArgs) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    let locks = Backend::choose(&args.backend)?.connect().await?;
    let mut states = std::pin::pin!(locks.watch(show::space(args.semaphore), &args.name));
    while let Some(state) = states.next().await {
        let state = state?;
        match args.json {
            true => output::print_line(json(&StateView::of(&state))?)?,
            false => output::print(&show::text(&state))?,
        }
    }
    Ok(0)
}
