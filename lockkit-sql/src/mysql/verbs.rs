//! The verbs that are more than one statement with the verb's arguments.

use sqlx::mysql::MySqlConnection;

use super::flight::{Flight, left_out};
use super::statement::{self, texts, wrong_arguments};
use super::{IDLE, MySql, judge};
use crate::server::dialect::{Arg, Cell, Row, Verb, Verdict};

impl MySql {
    /// The statement of a verb, with these arguments.
    pub(super) async fn ask(
        &self,
        connection: &mut MySqlConnection,
        verb: Verb,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        self.packet.check(bytes(args))?;
        statement::fetch(self.statements[&verb].bind(args)?, connection).await
    }

    pub(super) async fn load(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let rows = self.ask(connection, Verb::Load, args).await?;
        if let Some(set_at) = rows.first().and_then(|row| row.int(3)) {
            let args = [args, &[Arg::Int(set_at)]].concat();
            self.rebase.bind(&args)?.execute(connection).await?;
        }
        Ok(rows)
    }

    pub(super) async fn health(
        &self,
        connection: &mut MySqlConnection,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let rows = self.ask(connection, Verb::Health, &[]).await?;
        let row = rows.first().ok_or_else(wrong_arguments)?;
        if let Some(packet) = row.int(4).and_then(|bytes| usize::try_from(bytes).ok()) {
            self.packet.learn(packet);
        }
        match row.int(5) {
            Some(0) => Ok(rows),
            _ => Err(sqlx::Error::Configuration(EMPTY_IS_NULL.into())),
        }
    }

    /// A renewal or a look, in as few requests as fit into the server's packets.
    pub(super) async fn about(
        &self,
        connection: &mut MySqlConnection,
        verb: Verb,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let mut rows = Vec::new();
        let mut before = 0;
        for (count, text) in texts(args, self.packet.part()).ok_or_else(wrong_arguments)? {
            let part = match self.ask(connection, verb, &[Arg::Bytes(text.as_bytes())]).await {
                Err(error) if count > 1 => return Err(self.packet.parted(error, text.len())),
                answer => answer?,
            };
            rows.extend(part.into_iter().map(|row| behind(row, before)));
            before += count as i64;
        }
        Ok(rows)
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
        let mut rows = Vec::new();
        // The last step that was left out: those of its list behind it stay behind it.
        let mut left = None;
        let whole = 0..flight.len();
        let mut parts = vec![whole];
        while let Some(mut part) = parts.pop() {
            while !part.is_empty() && left.is_some_and(|at| flight.is_one_list(at, part.start)) {
                rows.push(left_out(part.start));
                part.start += 1;
            }
            let Some(last) = part.clone().last() else { continue };
            let packed = flight.arguments(&part);
            let packed = packed.bind();
            if bytes(&packed) > self.packet.part() {
                if part.len() == 1 {
                    // By itself it is a smaller request, or an error of its own.
                    rows.push(left_out(last));
                    left = Some(last);
                } else {
                    let middle = part.start + part.len() / 2;
                    parts.extend([middle..part.end, part.start..middle]);
                }
                continue;
            }
            let answer = match self.ask(connection, Verb::Carry, &packed).await {
                // Another transaction was in the way, and this part did nothing. What the parts before it did
                // is told, and not repeated.
                Err(error)
                    if !rows.is_empty()
                        && matches!(judge(&error), Verdict::Again | Verdict::HeldUp) =>
                {
                    rows.extend(parts.into_iter().chain([part]).flatten().map(left_out));
                    return Ok(rows);
                }
                Err(error) if flight.len() > 1 => {
                    return Err(self.packet.parted(error, bytes(&packed)));
                }
                answer => answer?,
            };
            let answer = answer.first().and_then(|row| flight.rows(row, &part, &self.alone));
            let answer = answer.ok_or_else(wrong_arguments)?;
            if answer.contains(&left_out(last)) {
                left = Some(last);
            }
            rows.extend(answer);
        }
        Ok(rows)
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

/// A pool's sessions are the program's. Namespaces and registers may be empty, and here that is no text.
const EMPTY_IS_NULL: &str = "the connections of this pool have EMPTY_STRING_IS_NULL in their sql_mode, and \
    lockkit needs it to be off";

fn bytes(args: &[Arg<'_>]) -> usize {
    let bytes = |arg: &Arg<'_>| if let Arg::Bytes(bytes) = arg { bytes.len() } else { 0 };
    args.iter().map(bytes).sum()
}

/// The row of a claim that has so many before it in other parts.
fn behind(mut row: Row, before: i64) -> Row {
    if let Some(Cell::Int(number)) = row.0.first_mut() {
        *number += before;
    }
    row
}

/// The columns that the verb has: a procedure may tell more.
fn cut(mut row: Row, columns: usize) -> Row {
    row.0.truncate(columns);
    row
}
