//! Making the tables and procedures, and upgrading those of an older version, while clients use them.
//! The statements stand in `sql/`; here is in which order, and by whom.

use std::collections::BTreeSet;

use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Executor, Row as _};

use super::MySql;
use crate::server::dialect::{Dialect, Verdict};

/// Tables and procedures, in the order in which they need each other; each statement ends with a
/// line that is `--;`.
const SCHEMA: &str = concat!(
    include_str!("sql/schema.sql"),
    include_str!("sql/verbs/enter.sql"),
    include_str!("sql/verbs/leave.sql"),
    include_str!("sql/verbs/settle.sql"),
    include_str!("sql/verbs/put.sql"),
    include_str!("sql/verbs/acquire.sql"),
    include_str!("sql/verbs/remove.sql"),
    include_str!("sql/verbs/release.sql"),
    include_str!("sql/verbs/carry.sql"),
    include_str!("sql/verbs/renew.sql"),
    include_str!("sql/verbs/amend.sql"),
    include_str!("sql/verbs/break.sql"),
    include_str!("sql/verbs/resize.sql"),
    include_str!("sql/verbs/write.sql"),
    include_str!("sql/verbs/store.sql"),
    include_str!("sql/verbs/sweep.sql"),
);
const END: &str = "--;";

/// A statement that makes a part.
#[derive(Debug)]
pub(super) struct Step {
    /// The procedure that it is about.
    procedure: Option<String>,
    text: String,
}

/// What makes or upgrades all, in order; the version comes last.
pub(super) fn steps(prefix: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for statement in SCHEMA.split(END).map(str::trim).filter(|one| !one.is_empty()) {
        let text = statement.replace("lockkit_", prefix);
        let procedure = procedure_of(&text);
        if let Some(name) = &procedure {
            steps.push(Step { procedure: procedure.clone(), text: removal(name) });
        }
        steps.push(Step { procedure, text: text.replacen(MAKE, MAKE_ANEW, 1) });
    }
    let version = MySql::VERSION;
    let text = format!(
        "UPDATE {prefix}meta SET version = {version} WHERE one = 1 AND version < {version}"
    );
    steps.push(Step { procedure: None, text });
    steps
}

const MAKE: &str = "CREATE PROCEDURE ";
/// MariaDB replaces a procedure in one step, so that nobody finds none. What stands in the comment is
/// read by MariaDB alone.
const MAKE_ANEW: &str = "CREATE /*M! OR REPLACE */ PROCEDURE ";

/// MySQL cannot replace a procedure: it is removed first. On MariaDB the same statement names one that
/// is never there.
fn removal(name: &str) -> String {
    format!("DROP PROCEDURE IF EXISTS /*M! {name}_of_nobody */ /*!80000 {name} */")
}

/// The name of the procedure that a statement makes.
fn procedure_of(statement: &str) -> Option<String> {
    let (_, rest) = statement.split_once(MAKE)?;
    rest.split_once('(').map(|(name, _)| name.to_owned())
}

/// What the server's lock for who makes tables and procedures is called. It ends with the connection.
/// Clients of version 1 take the same one.
fn turn(prefix: &str) -> String {
    format!("SHA2(CONCAT(DATABASE(), '.', 'lockkit {prefix}'), 256)")
}

/// Procedures keep the mode that they were made in.
const MODE: &str = "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'";

/// The same for a connection of the driver's, or of a program's pool, which gets back what it had. A table may
/// be in use for long before it can be changed: that is waited for, unlike what a verb waits for.
const BEGIN: &str = "SET @lockkit_mode = @@SESSION.sql_mode, \
    @lockkit_wait = @@SESSION.lock_wait_timeout, \
    /*M! @lockkit_only = @@SESSION.tx_read_only, SESSION tx_read_only = 0, */ \
    /*!80000 @lockkit_only = @@SESSION.transaction_read_only, SESSION transaction_read_only = 0, */ \
    SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', \
    SESSION lock_wait_timeout = 120";
const FINISH: &str = "SET SESSION lock_wait_timeout = @lockkit_wait, \
    /*M! SESSION tx_read_only = @lockkit_only, */ \
    /*!80000 SESSION transaction_read_only = @lockkit_only, */ \
    SESSION sql_mode = @lockkit_mode";

/// What a program needs that uses them; for whom is not known here.
const RIGHTS: &str = "
-- The rights of a program that uses these tables, with the names of its database and its user:
-- GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON `database`.* TO app;
";

/// The steps for who runs them with the command-line client, who takes the lock as well: a client that
/// finds a procedure missing waits for it.
pub(super) fn as_text(steps: &[Step], prefix: &str) -> String {
    let mut text = format!("DELIMITER {END}\n\n");
    let turn = turn(prefix);
    let (take, give) = (format!("DO GET_LOCK({turn}, 60)"), format!("DO RELEASE_LOCK({turn})"));
    let steps = steps.iter().map(|step| &step.text);
    for step in [&MODE.to_owned(), &take].into_iter().chain(steps).chain([&give]) {
        text.push_str(step);
        text.push_str(&format!("\n{END}\n\n"));
    }
    text.push_str("DELIMITER ;\n");
    text.push_str(RIGHTS);
    text
}

/// Makes what is missing or older.
pub(super) async fn install(
    dialect: &MySql,
    connection: &mut MySqlConnection,
) -> Result<(), sqlx::Error> {
    connection.execute(sqlx::raw_sql(BEGIN)).await?;
    // Whoever comes second finds everything done. Statements that make tables are no transaction here;
    // what was left half made is made by the next one.
    let turn = turn(&dialect.prefix);
    // A call ends this at its own time limit, and a connect after two minutes: an upgrade of a server
    // that is busy takes its time.
    let lock = AssertSqlSafe(format!("SELECT GET_LOCK({turn}, 120)"));
    let locked: Option<i64> = sqlx::query(lock).fetch_one(&mut *connection).await?.try_get(0)?;
    if locked != Some(1) {
        return Err(sqlx::Error::PoolTimedOut);
    }
    let made = make(dialect, connection).await;
    let unlock = AssertSqlSafe(format!("SELECT RELEASE_LOCK({turn})"));
    let freed = sqlx::query(unlock).fetch_one(&mut *connection).await;
    let made = made.and(freed.map(drop));
    // After an error the connection is closed.
    if made.is_ok() {
        connection.execute(sqlx::raw_sql(FINISH)).await?;
    }
    made
}

/// Under the server's lock. Procedures of an older version are replaced: who uses them goes on, with
/// the new ones.
async fn make(dialect: &MySql, connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let is_current = is_current(dialect, &mut *connection).await?;
    let there: Vec<(Vec<u8>,)> = sqlx::query_as(
        "SELECT CAST(routine_name AS BINARY) FROM information_schema.routines \
         WHERE routine_schema = DATABASE()",
    )
    .fetch_all(&mut *connection)
    .await?;
    let there: BTreeSet<Vec<u8>> = there.into_iter().map(|(name,)| name).collect();
    let is_there = |name: &String| is_current && there.contains(name.as_bytes());
    let is_complete = dialect.schema.iter().filter_map(|s| s.procedure.as_ref()).all(is_there);
    for step in &dialect.schema {
        if step.procedure.as_ref().is_some_and(is_there) {
            continue;
        }
        // As text: these cannot be prepared.
        let step = sqlx::raw_sql(AssertSqlSafe(step.text.clone()));
        match (&mut *connection).execute(step).await {
            // Somebody else has replaced the procedure that this one found missing.
            Err(error) if is_complete && dialect.verdict(&error) == Verdict::Forbidden => {
                return Ok(());
            }
            done => done?,
        };
    }
    Ok(())
}

/// Whether the procedures that are there are those of this version.
async fn is_current(
    dialect: &MySql,
    connection: &mut MySqlConnection,
) -> Result<bool, sqlx::Error> {
    let version = format!("SELECT version FROM {}meta WHERE one = 1", dialect.prefix);
    let version = sqlx::query(AssertSqlSafe(version)).fetch_optional(connection).await;
    match version {
        Ok(Some(row)) => Ok(i64::from(row.try_get::<i32, _>(0)?) >= MySql::VERSION),
        Ok(None) => Ok(false),
        Err(error) if dialect.verdict(&error) == Verdict::NoTables => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_procedure_is_replaced_and_the_version_comes_last() {
        let steps = steps("shop_");
        for made in steps.iter().filter(|step| step.text.contains(" PROCEDURE shop_")) {
            let name = made.procedure.as_deref().expect("it is known whose step it is");
            assert!(made.text.contains("CREATE /*M! OR REPLACE */ PROCEDURE"), "{name}");
            let removed = steps.iter().filter(|s| s.text.starts_with("DROP PROCEDURE"));
            let removed: Vec<_> =
                removed.filter(|s| s.procedure == made.procedure).map(|s| &s.text).collect();
            assert_eq!(removed.len(), 1, "{name}");
            assert!(removed[0].contains(&format!("/*!80000 {name} */")), "{}", removed[0]);
        }
        let procedures = steps.iter().filter(|step| step.procedure.is_some()).count();
        assert_eq!(procedures, 2 * 15);
        let last = &steps.last().expect("there are steps").text;
        assert!(last.starts_with("UPDATE shop_meta SET version = 6"), "{last}");
        assert!(steps.iter().all(|step| !step.text.contains("lockkit_")));
    }

    /// InnoDB reads a subquery of IF, SET, CASE or a call's argument with shared locks, whatever the isolation
    /// level: it waits for rows that others write. One in a plain SELECT, or in a cursor, takes no lock.
    #[test]
    fn no_procedure_reads_with_a_lock_by_accident() {
        for step in steps("").iter().filter(|step| step.text.contains("PROCEDURE")) {
            for statement in step.text.split(';') {
                let code: Vec<_> =
                    statement.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
                let code = code.join(" ").replace("( ", "(");
                let words: Vec<_> = code.split_whitespace().collect();
                let Some(nested) = code.find("(SELECT ") else { continue };
                let begins = match words.iter().position(|word| *word == "CURSOR") {
                    Some(at) => words[at + 2],
                    None => words[0],
                };
                assert!(begins == "SELECT" && !code.contains("FOR UPDATE"), "{}", &code[..nested]);
            }
        }
    }
}
