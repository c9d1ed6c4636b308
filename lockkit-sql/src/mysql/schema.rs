//! Making the tables and procedures. The statements are in `sql/`; here are their order, and the lock
//! under which they run.

use sqlx::mysql::{MySqlConnection, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, Executor, Row as _};

use super::MySql;
use crate::rows::other_version;
use crate::server::dialect::{Dialect, ErrorClass};

/// Tables and procedures, in the order in which they need each other; each statement ends with a
/// line that is `--;`.
const SCHEMA: &str = concat!(
    include_str!("sql/schema.sql"),
    include_str!("sql/procedures/lock_queue.sql"),
    include_str!("sql/procedures/remove_claim.sql"),
    include_str!("sql/procedures/promote.sql"),
    include_str!("sql/procedures/enqueue.sql"),
    include_str!("sql/procedures/acquire.sql"),
    include_str!("sql/procedures/dequeue.sql"),
    include_str!("sql/procedures/release.sql"),
    include_str!("sql/procedures/submit.sql"),
    include_str!("sql/procedures/pass.sql"),
    include_str!("sql/procedures/renew.sql"),
    include_str!("sql/procedures/amend.sql"),
    include_str!("sql/procedures/break.sql"),
    include_str!("sql/procedures/resize.sql"),
    include_str!("sql/procedures/write.sql"),
    include_str!("sql/procedures/counter.sql"),
    include_str!("sql/procedures/sweep.sql"),
);
const END: &str = "--;";
/// The claims of a renewal, as a table.
const CLAIMS: &str = "JSON_TABLE(p_claims, '$[*]' COLUMNS (
      n FOR ORDINALITY, id CHAR(32) PATH '$[0]', hold_ttl BIGINT PATH '$[1]',
      wait_ttl BIGINT PATH '$[2]', namespace VARCHAR(256) PATH '$[3]', space TINYINT PATH '$[4]',
      name VARCHAR(1024) PATH '$[5]'))";

/// How a procedure begins whose work is a transaction of its own; an error ends it.
const TRANSACTION: &str = "DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK AND NO CHAIN NO RELEASE;
    RESIGNAL;
  END;
  ROLLBACK AND NO CHAIN NO RELEASE;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ WRITE;";

/// What makes all, in order; the version comes last. What is there stays.
pub(super) fn steps(prefix: &str) -> Vec<String> {
    let parts = SCHEMA.split(END).map(str::trim).filter(|part| !part.is_empty());
    let parts = parts.map(|part| part.replacen(MAKE, MAKE_IF_MISSING, 1));
    let version = MySql::VERSION;
    let last = format!(
        "INSERT INTO lockkit_meta (one, version, floor) VALUES (1, {version}, 0) \
         ON DUPLICATE KEY UPDATE version = version"
    );
    let refusal = other_version(prefix, "', version, '", version);
    let filled = |part: String| {
        let part = part.replace("{claims}", CLAIMS).replace("{transaction}", TRANSACTION);
        let part = part.replace("lockkit_", prefix).replace("{version}", &version.to_string());
        part.replace("{other_version}", &refusal)
    };
    parts.chain([last]).map(filled).collect()
}

/// The statement that drops the procedure which this step makes.
fn drops(step: &str) -> Option<String> {
    let (_, made) = step.split_once(MAKE_IF_MISSING)?;
    let (name, _) = made.split_once('(')?;
    Some(format!("DROP PROCEDURE IF EXISTS {name}"))
}

const MAKE: &str = "CREATE PROCEDURE ";
/// A comment with `M!` is read by MariaDB alone, one with `!80029` by MySQL from that version on.
const MAKE_IF_MISSING: &str = "CREATE PROCEDURE /*M! IF NOT EXISTS */ /*!80029 IF NOT EXISTS */ ";
/// Said by a MySQL that is older.
const IS_THERE: u16 = 1304;

/// The name of the server's lock for making tables and procedures. It ends with the connection.
fn turn(prefix: &str) -> String {
    format!("SHA2(CONCAT(DATABASE(), '.', 'lockkit {prefix}'), 256)")
}

/// Procedures keep the mode that they were made in.
const MODE: &str = "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'";

/// The same for a connection of the driver's, or of a program's pool, which gets back what it had. The
/// view may be in use for long before it is replaced: that is waited for, unlike what a verb waits for.
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
/// finds a procedure missing waits for it. Procedures may have outlived the tables of another version.
pub(super) fn as_text(steps: &[String], prefix: &str) -> String {
    let mut text = format!("DELIMITER {END}\n\n");
    let turn = turn(prefix);
    let (take, give) = (format!("DO GET_LOCK({turn}, 60)"), format!("DO RELEASE_LOCK({turn})"));
    let made = steps.iter().flat_map(|step| drops(step).into_iter().chain([step.clone()]));
    for step in [MODE.to_owned(), take].into_iter().chain(made).chain([give]) {
        text.push_str(&format!("{step}\n{END}\n\n"));
    }
    text.push_str("DELIMITER ;\n");
    text.push_str(RIGHTS);
    text
}

/// Makes what is missing.
pub(super) async fn install(
    dialect: &MySql,
    connection: &mut MySqlConnection,
) -> Result<(), sqlx::Error> {
    connection.execute(sqlx::raw_sql(BEGIN)).await?;
    // The second client finds everything done. Statements that make tables are no transaction here;
    // what was left half made is made by the next one.
    let turn = turn(&dialect.prefix);
    // A call ends this at its own time limit, and a connect after two minutes.
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

/// Under the server's lock.
async fn make(dialect: &MySql, connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let found = version(dialect, &mut *connection).await?;
    if let Some(found) = found.filter(|found| *found != MySql::VERSION) {
        let refusal = other_version(&dialect.prefix, found, MySql::VERSION);
        return Err(sqlx::Error::Configuration(refusal.into()));
    }
    for step in &dialect.schema {
        // As text: these cannot be prepared.
        let run = |step: String| sqlx::raw_sql(AssertSqlSafe(step));
        // A procedure that is there without a version may have outlived the tables of another one. It is dropped
        // only then, for which a user needs one more right.
        let made = match drops(step) {
            Some(drops) if found.is_none() => {
                let anew = step.replacen(MAKE_IF_MISSING, MAKE, 1);
                match connection.execute(run(anew)).await {
                    Err(error) if number(&error) == Some(IS_THERE) => {
                        connection.execute(run(drops)).await?;
                        connection.execute(run(step.clone())).await
                    }
                    made => made,
                }
            }
            _ => connection.execute(run(step.clone())).await,
        };
        match made {
            Err(error) if number(&error) == Some(IS_THERE) => {}
            // Another client has made everything since this one found something missing.
            Err(error) if found.is_some() && dialect.class(&error) == ErrorClass::Forbidden => {
                return Ok(());
            }
            done => {
                done?;
            }
        }
    }
    Ok(())
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>();
    error.map(MySqlDatabaseError::number)
}

/// The version of the tables, if all were made.
async fn version(
    dialect: &MySql,
    connection: &mut MySqlConnection,
) -> Result<Option<i64>, sqlx::Error> {
    let version = format!("SELECT version FROM {}meta WHERE one = 1", dialect.prefix);
    let version = sqlx::query(AssertSqlSafe(version)).fetch_optional(connection).await;
    match version {
        Ok(row) => row.map(|row| row.try_get::<i32, _>(0).map(i64::from)).transpose(),
        Err(error) if dialect.class(&error) == ErrorClass::NoTables => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_procedure_that_is_there_stays_and_the_version_comes_last() {
        let steps = steps("shop_");
        let procedures: Vec<_> = steps.iter().filter(|step| step.contains(MAKE)).collect();
        assert_eq!(procedures.len(), 16);
        assert!(procedures.iter().all(|step| step.contains(MAKE_IF_MISSING)), "{procedures:?}");
        let last = steps.last().expect("there are steps");
        assert!(last.starts_with("INSERT INTO shop_meta"), "{last}");
        assert!(steps.iter().all(|step| !step.contains("lockkit_")));
    }

    /// InnoDB reads a subquery of IF, SET, CASE or a call's argument with shared locks, whatever the isolation
    /// level: it waits for rows that others write. One in a plain SELECT, or in a cursor, takes no lock.
    #[test]
    fn no_procedure_reads_with_a_lock_by_accident() {
        for step in steps("").iter().filter(|step| step.contains("PROCEDURE")) {
            for statement in step.split(';') {
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
