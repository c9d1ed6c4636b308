//! The verbs that are more than one statement with the verb's arguments.

use std::sync::Arc;

use sqlx::mysql::MySqlConnection;

use super::flight::Flight;
use super::statement::{Statement, text};
use super::{GRACE, IDLE, MySql};
use crate::server::dialect::{Arg, Cell, Row};

impl MySql {
    /// One row where the name is believed to be free, the whole work otherwise.
    pub(super) async fn acquire(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let [ns, space, name, id, weight, capacity, hold, wait, _, identity, note, patience] = args
        else {
            return Err(wrong_arguments());
        };
        // More than the limit may wait, but never takes a free name as it is.
        let fits = matches!((weight, capacity), (Arg::Int(n), Arg::Int(limit)) if n <= limit);
        if fits && self.alone.is_known(args) {
            let swift = [id, weight, capacity, hold, wait, identity, note, hold, ns, space, name];
            let done = Statement::new(&self.statements.swift_acquire, swift)?;
            let done = done.execute(connection).await?;
            if done.rows_affected() == 1 {
                let token = i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX);
                return Ok(vec![granted(token, hold)]);
            }
            self.alone.forget(args);
        }
        let full = [ns, space, name, id, weight, capacity, hold, wait, identity, note, patience];
        let rows = Statement::new(&self.statements.acquire, full)?.fetch(connection).await?;
        let [row] = <[Row; 1]>::try_from(rows).map_err(|_| wrong_arguments())?;
        if row.int(6) == Some(1) {
            self.alone.learn(args);
        }
        Ok(vec![cut(row, 6)])
    }

    pub(super) async fn release(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        if self.alone.is_known(args) {
            let swift = Statement::new(&self.statements.swift_release, args)?;
            if swift.execute(connection).await?.rows_affected() == 1 {
                return Ok(vec![released()]);
            }
            self.alone.forget(args);
        }
        let rows = plain(connection, &self.statements.release, args).await?;
        let [row] = <[Row; 1]>::try_from(rows).map_err(|_| wrong_arguments())?;
        if row.int(0) == Some(1) && row.int(2) == Some(0) {
            self.alone.learn(args);
        }
        Ok(vec![cut(row, 2)])
    }

    pub(super) async fn carry(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let flight = Flight::new(args, &self.alone).ok_or_else(wrong_arguments)?;
        let packed = flight.arguments();
        let rows = plain(connection, &self.statements.carry, &packed.bind()).await?;
        let answer = rows.first().and_then(|row| flight.rows(row, &self.alone));
        answer.ok_or_else(wrong_arguments)
    }

    pub(super) async fn batch(
        &self,
        connection: &mut MySqlConnection,
        statement: &Arc<str>,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let claims = text(args).ok_or_else(wrong_arguments)?;
        plain(connection, statement, &[Arg::Bytes(claims.as_bytes())]).await
    }

    pub(super) async fn list(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let [ns, space, Arg::Bytes(prefix), after_space, after_name, limit] = args else {
            return Err(wrong_arguments());
        };
        // Names have 512 bytes at most, so none that has the prefix is greater.
        let end = [prefix, vec![0xff; 512].as_slice()].concat();
        let (prefix, end) = (Arg::Bytes(prefix), Arg::Bytes(&end));
        let args = [ns, &prefix, &end, space, space, after_space, after_space, after_name, limit];
        Statement::new(&self.statements.page, args)?.fetch(connection).await
    }

    pub(super) async fn namespaces(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let [from, limit] = args else {
            return Err(wrong_arguments());
        };
        let args = [from, limit, from, limit, limit];
        Statement::new(&self.statements.namespaces, args)?.fetch(connection).await
    }

    pub(super) async fn store(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let [ns, name, value, expect, version, token, write_id, ttl, repeated] = args else {
            return Err(wrong_arguments());
        };
        let null = Arg::Null;
        let or_null = |arg| if matches!(arg, &Arg::Int(0)) { &null } else { arg };
        let grace = Arg::Int(GRACE.as_micros() as i64);
        let (token, ttl) = (or_null(token), or_null(ttl));
        let args = [ns, name, value, expect, version, token, write_id, ttl, &grace, repeated];
        Statement::new(&self.statements.store, args)?.fetch(connection).await
    }

    pub(super) async fn sweep(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let [bite] = args else {
            return Err(wrong_arguments());
        };
        let lock = || self.swept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (namespace, space, name) = lock().clone();
        let (namespace, name) = (Arg::Bytes(&namespace), Arg::Bytes(&name));
        let (space, idle) = (Arg::Int(space), Arg::Int(IDLE.as_micros() as i64));
        let args = [&namespace, &space, &name, bite, &idle];
        let rows = Statement::new(&self.statements.sweep, args)?.fetch(connection).await?;
        let end = rows
            .first()
            .and_then(|row| Some((row.bytes(0)?.to_vec(), row.int(1)?, row.bytes(2)?.to_vec())));
        *lock() = end.unwrap_or((Vec::new(), -1, Vec::new()));
        Ok(Vec::new())
    }
}

/// A verb whose arguments are the statement's.
pub(super) async fn plain(
    connection: &mut MySqlConnection,
    statement: &Arc<str>,
    args: &[Arg<'_>],
) -> Result<Vec<Row>, sqlx::Error> {
    Statement::new(statement, args)?.fetch(connection).await
}

fn granted(token: i64, hold_ttl: &Arg<'_>) -> Row {
    let Arg::Int(ttl) = hold_ttl else { return Row::default() };
    Row(vec![Cell::Int(1), Cell::Int(token), Cell::Int(*ttl), Cell::Int(0), Cell::Null, Cell::Null])
}

fn released() -> Row {
    Row(vec![Cell::Int(1), Cell::Null])
}

/// The columns that the verb has: a procedure may tell more.
fn cut(mut row: Row, columns: usize) -> Row {
    row.0.truncate(columns);
    row
}

fn wrong_arguments() -> sqlx::Error {
    sqlx::Error::Protocol("a verb with other arguments than the dialect knows".into())
}
