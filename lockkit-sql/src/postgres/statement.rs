//! Sending a statement with its arguments and reading its rows: prepared, or as text where a pooler
//! may stand before the server. One round trip either way, once a connection is warm.
//!
//! An unnamed statement does not serve instead of text: sqlx prepares and executes in two messages, and a
//! transaction-mode pooler may give the connection to another client between them.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use lockkit_core::Claim;
use sqlx::postgres::{PgConnection, PgRow, PgValueFormat, PgValueRef};
use sqlx::{AssertSqlSafe, Column, Executor, Row as _, TypeInfo, ValueRef};

use crate::rows::{columns, micros};
use crate::server::dialect::{Arg, Arguments, Operation, Row, StatementId, Value, hex, key_args};

/// The arguments of a statement: of many operations or claims, a list for each column.
pub(super) fn arguments<'a>(id: StatementId, arguments: Arguments<'a>) -> Cow<'a, [Arg<'a>]> {
    match arguments {
        Arguments::List(args) => Cow::Borrowed(args),
        Arguments::Batch([one], client) if id != StatementId::Submit => one.single(client).into(),
        Arguments::Batch([release, acquire], client) if id == StatementId::Pass => {
            let [_, capacity, hold, wait] = acquire.numbers();
            let mut args = key_args(&acquire.claim.key).to_vec();
            args.extend([release.id(), acquire.id()].map(Arg::Bytes));
            args.extend([capacity, hold, wait].map(Arg::Int));
            args.extend([client.as_slice(), acquire.identity()].map(Arg::Bytes));
            args.push(acquire.note().map_or(Arg::Null, Arg::Bytes));
            args.into()
        }
        Arguments::Batch(operations, client) => {
            let claims: Vec<_> = operations.iter().map(|one| &**one.claim).collect();
            let number =
                |at: usize| Arg::Ints(operations.iter().map(|o| o.numbers()[at]).collect());
            let mut args = columns_of(&claims);
            args.push(Arg::Ints(operations.iter().map(|one| one.kind as i64).collect()));
            args.extend((0..4).map(number));
            args.push(Arg::Many(operations.iter().map(Operation::identity).collect()));
            args.push(Arg::Maybe(operations.iter().map(Operation::note).collect()));
            args.push(Arg::Bytes(client));
            args.into()
        }
        Arguments::Claims(claims, client) => {
            let mut args = columns_of(claims);
            args.push(Arg::Ints(claims.iter().map(|claim| micros(claim.hold_ttl)).collect()));
            args.push(Arg::Ints(claims.iter().map(|claim| micros(claim.wait_ttl)).collect()));
            args.push(Arg::Bytes(client));
            args.into()
        }
    }
}

/// Namespaces, spaces, names and ids.
fn columns_of<'a>(claims: &[&'a Claim]) -> Vec<Arg<'a>> {
    let keys: Vec<_> = claims.iter().map(|claim| columns(&claim.key)).collect();
    vec![
        Arg::Many(keys.iter().map(|(namespace, ..)| namespace.as_bytes()).collect()),
        Arg::Ints(keys.iter().map(|(_, space, _)| *space).collect()),
        Arg::Many(keys.iter().map(|(.., name)| name.as_bytes()).collect()),
        Arg::Many(claims.iter().map(|claim| claim.id.as_bytes().as_slice()).collect()),
    ]
}

/// By a statement that the connection remembers under a name. Only where the connection is the server's
/// own.
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
            Arg::Maybe(list) => {
                query.bind(list.iter().map(|b| b.map(<[u8]>::to_vec)).collect::<Vec<_>>())
            }
        };
    }
    rows(query.fetch_all(connection).await?)
}

/// As text. Arguments are numbers and hexadecimal digits, so there is nothing to escape. Means the same
/// under any setting of `standard_conforming_strings` and `bytea_output`.
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
        Arg::Bytes(bytes) => write!(text, "{}::bytea", literal(bytes)),
        Arg::Null => write!(text, "NULL::bytea"),
        Arg::Ints(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(i64::to_string).collect();
            write!(text, "'{{{}}}'::bigint[]", numbers.join(","))
        }
        Arg::Many(list) => {
            let list: Vec<_> = list.iter().map(|bytes| literal(bytes)).collect();
            write!(text, "ARRAY[{}]::bytea[]", list.join(","))
        }
        Arg::Maybe(list) => {
            let list: Vec<_> =
                list.iter().map(|bytes| bytes.map_or("NULL".to_owned(), literal)).collect();
            write!(text, "ARRAY[{}]::bytea[]", list.join(","))
        }
    };
}

fn literal(bytes: &[u8]) -> String {
    format!(r"E'\\x{}'", hex(bytes))
}

fn rows(rows: Vec<PgRow>) -> Result<Vec<Row>, sqlx::Error> {
    rows.iter().map(row).collect()
}

fn row(row: &PgRow) -> Result<Row, sqlx::Error> {
    let values = row.columns().iter().enumerate().map(|(i, column)| {
        Ok(match column.type_info().name() {
            "INT8" => row.try_get::<Option<i64>, _>(i)?.map_or(Value::Null, Value::Int),
            _ => bytes(&row.try_get_raw(i)?)?,
        })
    });
    values.collect::<Result<_, _>>().map(Row)
}

fn bytes(value: &PgValueRef<'_>) -> Result<Value, sqlx::Error> {
    if value.is_null() {
        return Ok(Value::Null);
    }
    let found = value.as_bytes().map_err(sqlx::Error::Decode)?;
    match value.format() {
        PgValueFormat::Binary => Ok(Value::Bytes(found.to_vec())),
        PgValueFormat::Text => {
            let odd = || sqlx::Error::Decode("bytes in no form that PostgreSQL writes".into());
            unescaped(found).map(Value::Bytes).ok_or_else(odd)
        }
    }
}

/// Bytes as PostgreSQL writes them in text: `\x` and hexadecimal digits, or with
/// `bytea_output = escape` as they are, except for `\\` and three octal digits after a `\`.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let digits = |digits: &[u8], radix| {
        std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, radix).ok())
    };
    if let Some(text) = text.strip_prefix(br"\x") {
        let pairs = text.chunks(2).map(|pair| digits(pair, 16).filter(|_| pair.len() == 2));
        return pairs.collect();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        let (byte, length) = match (first, behind) {
            (b'\\', [b'\\', ..]) => (b'\\', 2),
            (b'\\', [a, b, c, ..]) => (digits(&[*a, *b, *c], 8)?, 4),
            (b'\\', _) => return None,
            (byte, _) => (*byte, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    Some(bytes)
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
        assert_eq!(written(Arg::Bytes(b"a'\\")), r"E'\\x61275c'::bytea");
        assert_eq!(written(Arg::Int(-1)), "(-1)::bigint");
        assert_eq!(written(Arg::Many(vec![b"", b"x"])), r"ARRAY[E'\\x',E'\\x78']::bytea[]");
        assert_eq!(written(Arg::Ints(vec![1, -2])), "'{1,-2}'::bigint[]");
    }

    #[test]
    fn bytes_are_read_in_both_forms_that_the_server_writes() {
        assert_eq!(unescaped(br"\x00415cff").as_deref(), Some(&b"\0A\\\xff"[..]));
        assert_eq!(unescaped(br"\x").as_deref(), Some(&b""[..]));
        assert_eq!(unescaped(b"").as_deref(), Some(&b""[..]));
        assert_eq!(unescaped(br"\000A\\\377").as_deref(), Some(&b"\0A\\\xff"[..]));
        assert_eq!(unescaped(br"\\x41").as_deref(), Some(&br"\x41"[..]));
        for odd in [&br"\x4"[..], br"\xzz", br"\", br"\9", br"\400"] {
            assert_eq!(unescaped(odd), None, "{odd:?}");
        }
    }
}
