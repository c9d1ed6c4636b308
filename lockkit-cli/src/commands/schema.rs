//! `schema`: the statements that make lockkit's tables in a SQL database, or a table or bucket, and
//! the rights that a user of locks needs. Connects to nothing.

use lockkit::BackendUrl;

use crate::args::BackendArgs;
use crate::backend::{Backend, option};
use crate::exit::ExitError;
use crate::output;

pub(crate) fn schema(backend: &BackendArgs) -> Result<u8, ExitError> {
    let backend = Backend::choose(backend)?;
    let mut text = backend.schema()?;
    text.push_str(&rights(backend.url()));
    output::print(&text)?;
    Ok(0)
}

/// What a user needs who may use locks and not make tables.
fn rights(url: &BackendUrl) -> String {
    let place = url.rest().split('?').next().unwrap_or_default();
    let (_, rest) = place.split_once("://").unwrap_or_default();
    let login = rest.rsplit_once('@').map_or("", |(login, _)| login);
    let user = login.split(':').next().unwrap_or_default();
    // Others would have to be quoted, or decoded: then a person does it.
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let known = !user.is_empty() && user.chars().all(plain);
    match url.scheme() {
        "postgres" | "postgresql" => {
            let schema = option(url.rest(), "tables").unwrap_or("lockkit");
            let (mark, user) = if known { ("", user) } else { ("-- ", "LOCKER") };
            format!(
                "\n-- What a user needs who uses locks and may not make tables.\n\
                 {mark}GRANT USAGE ON SCHEMA \"{schema}\" TO \"{user}\";\n\
                 {mark}GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{schema}\" TO \
                 \"{user}\";\n\
                 {mark}GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA \"{schema}\" TO \"{user}\";\n"
            )
        }
        // Those are with what makes the table or bucket.
        "dynamodb" | "s3" | "az" | "gs" => String::new(),
        _ => {
            let database = rest.rsplit_once('/').map_or("DATABASE", |(_, database)| database);
            let user = if known { user } else { "LOCKER" };
            format!(
                "\n-- What a user needs who uses locks and may not make tables; the host is yours to \
                 say:\n-- GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON `{database}`.* TO \
                 '{user}'@'%';\n"
            )
        }
    }
}
