//! What PostgreSQL's settings leave of the promises. No I/O.

use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::promises::Promises;

/// Settings as [`StatementId::Settings`](crate::server::dialect::StatementId::Settings) reads them. Of several
/// statements that weaken what is kept, the worst comes last.
pub(super) fn judge(settings: &[(String, String)], promises: &mut Promises) {
    let fault = Fault::WritesLost;
    let shown: Vec<_> = settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    promises.set(fault, Some(Guarantee::All), shown.join(", "));
    // Of this login, and of every other that may use the tables.
    let quick = |(name, value): &&(String, String)| {
        name.starts_with("synchronous_commit") && value == "off"
    };
    if let Some((name, _)) = settings.iter().find(quick) {
        let why = format!("{name} = off: a crash of the machine forgets the last commits");
        promises.set(fault, Some(Guarantee::Tokens), why);
    }
    for name in ["full_page_writes", "fsync"] {
        if settings.iter().any(|(known, value)| known == name && value == "off") {
            let why = format!("{name} = off: a crash of the machine may corrupt all data");
            promises.set(fault, Some(Guarantee::Nothing), why);
        }
    }
}
