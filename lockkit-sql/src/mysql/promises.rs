//! What MySQL's and MariaDB's settings leave of the promises. No I/O.

use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::promises::Promises;

/// Settings as [`StatementId::Settings`](crate::server::dialect::StatementId::Settings) reads them.
pub(super) fn judge(settings: &[(String, String)], promises: &mut Promises) {
    let setting = |name: &str| {
        settings.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str())
    };
    let flush = setting("innodb_flush_log_at_trx_commit");
    // Some servers say 1, others ON.
    let has_log = !matches!(setting("log_bin"), "" | "0" | "OFF");
    let sync = setting("sync_binlog");
    let flushed = format!("innodb_flush_log_at_trx_commit = {flush}");
    let (kept, why) = match flush {
        "1" | "3" if has_log && sync != "1" => {
            let lost = "a crash of the machine takes back commits that the binary log lost";
            (Guarantee::Tokens, format!("sync_binlog = {sync} with a binary log: {lost}"))
        }
        "1" | "3" if has_log => (Guarantee::All, format!("{flushed}, sync_binlog = 1")),
        "1" | "3" => (Guarantee::All, format!("{flushed}, no binary log")),
        _ => (
            Guarantee::Tokens,
            format!("{flushed}: a crash of the machine forgets the last commits"),
        ),
    };
    promises.set(Fault::WritesLost, Some(kept), why);
    if flush == "0" {
        let why = format!("{flushed}: a killed server forgets the last second's commits");
        promises.set(Fault::ServerRestarts, Some(Guarantee::Tokens), why);
    }
}
