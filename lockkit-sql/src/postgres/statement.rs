//! Sending a statement with its arguments and reading its rows: prepared, or as text where a pooler
//! loses what was prepared. One round trip either way, once a connection is warm.

use std::fmt::Write;
use std::sync::Arc;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Column, Executor, Row as _, TypeInfo};

use crate::server::dialect::{Arg, Cell, Row};

/// By a statement that the connection remembers.
pub(super) async fn prepared(
    connection: &mut PgConnection,
    text: &Arc<str>,
    args: &[Arg<'_>],
) -> Result<Vec<Row>, sqlx::Error> {
    let mut query = sqlx::query(AssertSqlSafe(text.clone()));
    for arg in args {
        query = match arg {
            Arg::Int(number) => query.bind(*number),
            Arg::Bytes(bytes) => query.bind(bytes.to_vec()),
            Arg::Null => query.bind(None::<Vec<u8>>),
            Arg::Ints(numbers) => query.bind(numbers.clone()),
            Arg::Many(list) => query.bind(list.iter().map(|b| b.to_vec()).collect::<Vec<_>>()),
        };
    }
    rows(query.fetch_all(connection).await?)
}

/// As text. Arguments are numbers and hexadecimal digits, so there is nothing to escape.
pub(super) async fn plain(
    connection: &mut PgConnection,
    text: &str,
    args: &[Arg<'_>],
) -> Result<Vec<Row>, sqlx::Error> {
    let mut words = text.split('$');
    let mut filled = words.next().unwrap_or_default().to_owned();
    for word in words {
        let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        let (number, rest) = word.split_at(digits);
        let arg = number.parse::<usize>().ok().and_then(|n| args.get(n.checked_sub(1)?));
        write_arg(&mut filled, arg.unwrap_or(&Arg::Null));
        filled.push_str(rest);
    }
    rows(connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(filled))).await?)
}

fn write_arg(text: &mut String, arg: &Arg<'_>) {
    let _ = match arg {
        Arg::Int(number) => write!(text, "({number})::bigint"),
        Arg::Bytes(bytes) => write!(text, "'{}'::bytea", hex(bytes)),
        Arg::Null => write!(text, "NULL::bytea"),
        Arg::Ints(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(i64::to_string).collect();
            write!(text, "'{{{}}}'::bigint[]", numbers.join(","))
        }
        Arg::Many(list) => {
            let list: Vec<_> = list.iter().map(|bytes| format!("'{}'", hex(bytes))).collect();
            write!(text, "ARRAY[{}]::bytea[]", list.join(","))
        }
    };
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("\\x"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn rows(rows: Vec<PgRow>) -> Result<Vec<Row>, sqlx::Error> {
    rows.iter().map(row).collect()
}

fn row(row: &PgRow) -> Result<Row, sqlx::Error> {
    let cells = row.columns().iter().enumerate().map(|(i, column)| {
        Ok(match column.type_info().name() {
            "INT8" => row.try_get::<Option<i64>, _>(i)?.map_or(Cell::Null, Cell::Int),
            _ => row.try_get::<Option<Vec<u8>>, _>(i)?.map_or(Cell::Null, Cell::Bytes),
        })
    });
    cells.collect::<Result<_, _>>().map(Row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_text_that_needs_no_escape() {
        let written = |arg| {
            let mut text = String::new();
            write_arg(&mut text, &arg);
            text
        };
        assert_eq!(written(Arg::Bytes(b"a'\\")), r"'\x61275c'::bytea");
        assert_eq!(written(Arg::Int(-1)), "(-1)::bigint");
        assert_eq!(written(Arg::Many(vec![b"", b"x"])), r"ARRAY['\x','\x78']::bytea[]");
        assert_eq!(written(Arg::Ints(vec![1, -2])), "'{1,-2}'::bigint[]");
    }
}
