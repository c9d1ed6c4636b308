//! The operations that are more than one statement with the operation's arguments.

use lockkit_core::Claim;
use sqlx::mysql::MySqlConnection;

use super::batch::{self, PackedBatch, is_one_name, left_out};
use super::statement::{self, texts, wrong_arguments};
use super::{MySql, judge};
use crate::server::dialect::{
    Arg, ErrorClass, Operation, OperationKind, Row, StatementId, Value, key_args,
};
use crate::waiters::ClaimTag;

impl MySql {
    /// The statement of an operation, with these arguments.
    pub(super) async fn ask(
        &self,
        connection: &mut MySqlConnection,
        id: StatementId,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        self.packet.check(bytes(args))?;
        statement::fetch(self.statements[&id].bind(args)?, connection).await
    }

    pub(super) async fn load(
        &self,
        connection: &mut MySqlConnection,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let rows = self.ask(connection, StatementId::Load, args).await?;
        if let Some(set_at) = rows.first().and_then(|row| row.int(3)) {
            let args = [args, &[Arg::Int(set_at)]].concat();
            self.redate.bind(&args)?.execute(connection).await?;
        }
        Ok(rows)
    }

    pub(super) async fn health(
        &self,
        connection: &mut MySqlConnection,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let rows = self.ask(connection, StatementId::Health, &[]).await?;
        let row = rows.first().ok_or_else(wrong_arguments)?;
        if let Some(packet) = row.int(4).and_then(|bytes| usize::try_from(bytes).ok()) {
            self.packet.learn(packet);
        }
        match row.int(5) {
            Some(0) => Ok(rows),
            _ => Err(sqlx::Error::Configuration(EMPTY_IS_NULL.into())),
        }
    }

    /// A renewal or a poll, in as few requests as fit into the server's packets.
    pub(super) async fn claim_states(
        &self,
        connection: &mut MySqlConnection,
        id: StatementId,
        claims: &[&Claim],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let mut rows = Vec::new();
        let mut before = 0;
        for (count, text) in texts(claims, self.packet.part()) {
            let part = match self.ask(connection, id, &[Arg::Bytes(text.as_bytes())]).await {
                Err(error) if count > 1 => return Err(self.packet.parted(error, text.len())),
                answer => answer?,
            };
            rows.extend(part.into_iter().map(|row| behind(row, before)));
            before += count as i64;
        }
        Ok(rows)
    }

    /// One operation: a single row where the name is believed to be uncontended, the procedure otherwise.
    pub(super) async fn single(
        &self,
        connection: &mut MySqlConnection,
        one: &Operation<'_>,
        client: &ClaimTag,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let args = one.single(client);
        // The number of columns of the operation; behind them a procedure says whether the name is contended.
        let (fast, id, columns, uncontended) = match one.kind {
            OperationKind::Release => (&self.fast_release, StatementId::Release, 2, 0),
            _ => (&self.fast_acquire, StatementId::Acquire, 6, 1),
        };
        if self.uncontended.has(one) {
            let done = fast.bind(&args)?.execute(&mut *connection).await?;
            if done.rows_affected() == 1 {
                let token = i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX);
                return Ok(vec![batch::done(one, token)]);
            }
            self.uncontended.forget(one);
        }
        let mut rows = self.ask(connection, id, &args).await?;
        for row in &mut rows {
            if row.int(0) == Some(1) && row.int(columns) == Some(uncontended) {
                self.uncontended.learn(one);
            }
            row.0.truncate(columns);
        }
        Ok(rows)
    }

    /// A release and an acquire of one lock. Where the lock is believed to be uncontended, there is nothing to
    /// hand over.
    pub(super) async fn pass(
        &self,
        connection: &mut MySqlConnection,
        both: &[Operation<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let [release, acquire] = both else { return Err(wrong_arguments()) };
        let batch = PackedBatch::new(both, &self.uncontended);
        let every = batch.every();
        let key = &acquire.claim.key;
        let mut args = key_args(key).to_vec();
        let [_, capacity, hold_ttl, wait_ttl] = acquire.numbers();
        args.extend([release.id(), acquire.id()].map(Arg::Bytes));
        args.extend([capacity, hold_ttl, wait_ttl].map(Arg::Int));
        args.push(Arg::Bytes(acquire.identity()));
        args.push(acquire.note().map_or(Arg::Null, Arg::Bytes));
        args.extend(self.passed.last(key).unwrap_or([-1, 0, 0]).map(Arg::Int));
        args.push(Arg::Bytes(&every));
        if self.uncontended.has(release) || bytes(&args) > self.packet.part() {
            return self.submit(connection, both).await;
        }
        let answer = self.ask(connection, StatementId::Pass, &args).await?;
        let row = answer.first().ok_or_else(wrong_arguments)?;
        if let (Some(since), Some(sequence), Some(ahead)) = (row.int(1), row.int(3), row.int(4)) {
            self.passed.saw(key.clone(), [since, sequence, ahead]);
        }
        batch.rows(row, &(0..both.len()), &self.uncontended).ok_or_else(wrong_arguments)
    }

    pub(super) async fn submit(
        &self,
        connection: &mut MySqlConnection,
        operations: &[Operation<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let batch = PackedBatch::new(operations, &self.uncontended);
        let mut rows = Vec::new();
        // The last operation that was left out: later ones of its name stay behind it.
        let mut left = None;
        let mut parts: Vec<_> = std::iter::once(0..operations.len()).collect();
        while let Some(mut part) = parts.pop() {
            let is_behind = |at: usize, one: usize| is_one_name(&operations[at], &operations[one]);
            while !part.is_empty() && left.is_some_and(|at| is_behind(at, part.start)) {
                rows.push(left_out(part.start));
                part.start += 1;
            }
            let Some(last) = part.clone().last() else { continue };
            let packed = batch.arguments(&part);
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
            let answer = match self.ask(connection, StatementId::Submit, &packed).await {
                // Another transaction was in the way, and this part did nothing. What the parts before it
                // did is answered, and not repeated.
                Err(error)
                    if !rows.is_empty()
                        && matches!(judge(&error), ErrorClass::Again | ErrorClass::Blocked) =>
                {
                    rows.extend(parts.into_iter().chain([part]).flatten().map(left_out));
                    return Ok(rows);
                }
                Err(error) if operations.len() > 1 => {
                    return Err(self.packet.parted(error, bytes(&packed)));
                }
                answer => answer?,
            };
            let answer = answer.first().and_then(|row| batch.rows(row, &part, &self.uncontended));
            let answer = answer.ok_or_else(wrong_arguments)?;
            if answer.contains(&left_out(last)) {
                left = Some(last);
            }
            rows.extend(answer);
        }
        Ok(rows)
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
    if let Some(Value::Int(number)) = row.0.first_mut() {
        *number += before;
    }
    row
}
