//! The verbs that are more than one statement with the verb's arguments.

use sqlx::mysql::MySqlConnection;

use super::flight::Flight;
use super::statement::{self, wrong_arguments};
use super::{IDLE, MySql};
use crate::server::dialect::{Arg, Row, Verb};

impl MySql {
    /// The statement of a verb, with these arguments.
    pub(super) async fn ask(
        &self,
        connection: &mut MySqlConnection,
        verb: Verb,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        statement::fetch(self.statements[&verb].bind(args)?, connection).await
    }

    /// One row where the name is believed to be free, the whole work otherwise.
    pub(super) async fn acquire(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let [_, _, _, _, Arg::Int(weight), Arg::Int(limit), Arg::Int(hold), ..] = args else {
            return Err(wrong_arguments());
        };
        // More than the limit may wait, but never takes a free name as it is.
        if weight <= limit && self.alone.is_known(args) {
            let done = self.swift_acquire.bind(args)?.execute(&mut *connection).await?;
            if done.rows_affected() == 1 {
                let token = i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX);
                return Ok(vec![Row::granted(token, *hold)]);
            }
            self.alone.forget(args);
        }
        let rows = self.ask(connection, Verb::Acquire, args).await?;
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
            let done = self.swift_release.bind(args)?.execute(&mut *connection).await?;
            if done.rows_affected() == 1 {
                return Ok(vec![Row::released()]);
            }
            self.alone.forget(args);
        }
        let rows = self.ask(connection, Verb::Release, args).await?;
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
        let rows = self.ask(connection, Verb::Carry, &packed.bind()).await?;
        let answer = rows.first().and_then(|row| flight.rows(row, &self.alone));
        answer.ok_or_else(wrong_arguments)
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
        let from = lock().clone();
        let bytes = |column| Arg::Bytes(from.bytes(column).unwrap_or_default());
        let space = Arg::Int(from.int(1).unwrap_or(-1));
        let idle = Arg::Int(IDLE.as_micros() as i64);
        let args = [bytes(0), space, bytes(2), bite.clone(), idle];
        let rows = self.ask(connection, Verb::Sweep, &args).await?;
        let end = rows.into_iter().find(|row| row.bytes(0).is_some());
        *lock() = end.unwrap_or_default();
        Ok(Vec::new())
    }
}

/// The columns that the verb has: a procedure may tell more.
fn cut(mut row: Row, columns: usize) -> Row {
    row.0.truncate(columns);
    row
}
