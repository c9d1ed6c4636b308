//! A statement with its arguments, and its answer as rows: sqlx's types on one side, the
//! dialect's on the other.

use std::borrow::Borrow;
use std::sync::Arc;

use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlQueryResult, MySqlRow, MySqlValueRef};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Decode, Row as _, TypeInfo, ValueRef};

use crate::server::dialect::{Arg, Cell, Row};

/// A statement that is prepared when a connection first meets it.
pub(super) struct Statement {
    query: Query<'static, sqlx::MySql, MySqlArguments>,
}

impl Statement {
    /// Binds arguments, in their order.
    pub(super) fn new<'a, 'b: 'a>(
        text: &Arc<str>,
        args: impl IntoIterator<Item = impl Borrow<Arg<'b>> + 'a>,
    ) -> Result<Self, sqlx::Error> {
        let mut query = sqlx::query(AssertSqlSafe(text.clone()));
        for arg in args {
            query = match arg.borrow() {
                Arg::Int(number) => query.bind(*number),
                Arg::Bytes(bytes) => query.bind(bytes.to_vec()),
                Arg::Null => query.bind(None::<Vec<u8>>),
                Arg::Ints(_) | Arg::Many(_) | Arg::Maybe(_) => {
                    return Err(sqlx::Error::Protocol("MySQL has no lists of arguments".into()));
                }
            };
        }
        Ok(Self { query })
    }

    /// Runs it for what it changes.
    pub(super) async fn execute(
        self,
        connection: &mut MySqlConnection,
    ) -> Result<MySqlQueryResult, sqlx::Error> {
        self.query.execute(connection).await
    }

    /// Runs it for its rows. Reads the answer to its end: what a procedure does behind its rows
    /// may fail too.
    pub(super) async fn fetch(
        self,
        connection: &mut MySqlConnection,
    ) -> Result<Vec<Row>, sqlx::Error> {
        self.query
            .fetch(connection)
            .map_ok(|row| read(&row))
            .try_collect::<Vec<_>>()
            .await?
            .into_iter()
            .collect()
    }
}

/// The JSON of `lockkit_renew`, from the lists of a renewal.
pub(super) fn text(args: &[Arg<'_>]) -> Option<String> {
    use std::fmt::Write;
    let [Arg::Many(namespaces), Arg::Ints(spaces), Arg::Many(names), Arg::Many(ids), rest @ ..] =
        args
    else {
        return None;
    };
    let [Arg::Ints(holds), Arg::Ints(waits), ..] = rest else {
        return None;
    };
    let mut text = String::with_capacity(128 * ids.len());
    for (i, id) in ids.iter().enumerate() {
        text.push(if i == 0 { '[' } else { ',' });
        write!(
            text,
            r#"["{}",{},{},"{}",{},"{}"]"#,
            hex(id),
            holds.get(i)?,
            waits.get(i)?,
            hex(namespaces.get(i)?),
            spaces.get(i)?,
            hex(names.get(i)?)
        )
        .ok()?;
    }
    text.push(']');
    Some(text)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits =
        bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]);
    digits.map(char::from).collect()
}

/// A row of sqlx's.
fn read(row: &MySqlRow) -> Result<Row, sqlx::Error> {
    let cells = (0..row.len()).map(|column| cell(row.try_get_raw(column)?));
    cells.collect::<Result<_, _>>().map(Row)
}

fn cell(value: MySqlValueRef<'_>) -> Result<Cell, sqlx::Error> {
    if value.is_null() {
        return Ok(Cell::Null);
    }
    let kind = value.type_info().name().to_owned();
    let read = match kind.as_str() {
        "BOOLEAN" => <bool as Decode<sqlx::MySql>>::decode(value).map(|b| Cell::Int(b.into())),
        unsigned if unsigned.ends_with("UNSIGNED") => <u64 as Decode<sqlx::MySql>>::decode(value)
            .map(|n| Cell::Int(i64::try_from(n).unwrap_or(i64::MAX))),
        whole if whole.ends_with("INT") => {
            <i64 as Decode<sqlx::MySql>>::decode(value).map(Cell::Int)
        }
        _ => <&[u8] as Decode<sqlx::MySql>>::decode(value).map(|b| Cell::Bytes(b.to_vec())),
    };
    read.map_err(sqlx::Error::Decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_json_of_numbers_and_hexadecimal_digits() {
        let args = [
            Arg::Many(vec![b"lk", b"lk"]),
            Arg::Ints(vec![0, 1]),
            Arg::Many(vec![b"a\"", "á".as_bytes()]),
            Arg::Many(vec![&[0x0f; 2], &[0xa0; 2]]),
            Arg::Ints(vec![30, 40]),
            Arg::Ints(vec![10, 20]),
            Arg::Bytes(b"client"),
        ];
        let expected = r#"[["0f0f",30,10,"6c6b",0,"6122"],["a0a0",40,20,"6c6b",1,"c3a1"]]"#;
        assert_eq!(text(&args).as_deref(), Some(expected));
        assert_eq!(text(&args[..5]), None);
    }
}
