//! `schema`: the statements that make lockkit's tables in a SQL database. Connects to nothing.

use crate::args::DoctorArgs;
use crate::backend::Backend;
use crate::exit::Failure;
use crate::output;

pub(crate) fn schema(args: &DoctorArgs) -> Result<u8, Failure> {
    let backend = Backend::choose(&args.backend)?;
    output::print(&backend.schema()?)?;
    Ok(0)
}
