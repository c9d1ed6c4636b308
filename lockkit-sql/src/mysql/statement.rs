//! A statement with its arguments, and its answer as rows: sqlx's types on one side, the
//! dialect's on the other.

use std::sync::Arc;

use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow, MySqlValueRef};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Decode, Row as _, TypeInfo, ValueRef};

use crate::rows::to_json;
use crate::server::dialect::{Arg, Cell, Row, hex, without_header};

/// A statement that is prepared when a connection first meets it. In the text that it is made from, `?1`
/// stands for the first argument of its verb, wherever and however often that is wanted.
#[derive(Debug)]
pub(super) struct Statement {
    text: Arc<str>,
    /// Which argument stands at each `?` of the text.
    order: Vec<usize>,
}

impl Statement {
    pub(super) fn new(text: &str) -> Self {
        let text = without_header(text);
        let mut words = text.split('?');
        let mut text = words.next().unwrap_or_default().to_owned();
        let mut order = Vec::new();
        for word in words {
            let rest = word.trim_start_matches(|c: char| c.is_ascii_digit());
            let number = word[..word.len() - rest.len()].parse::<usize>();
            order.push(number.map_or(usize::MAX, |number| number - 1));
            text.push('?');
            text.push_str(rest);
        }
        Self { text: text.into(), order }
    }

    pub(super) fn bind(
        &self,
        args: &[Arg<'_>],
    ) -> Result<Query<'static, sqlx::MySql, MySqlArguments>, sqlx::Error> {
        let mut query = sqlx::query(AssertSqlSafe(self.text.clone()));
        for at in &self.order {
            query = match args.get(*at) {
                Some(Arg::Int(number)) => query.bind(*number),
                Some(Arg::Bytes(bytes)) => query.bind(bytes.to_vec()),
                Some(Arg::Null) => query.bind(None::<Vec<u8>>),
                // MySQL has no lists of arguments.
                _ => return Err(wrong_arguments()),
            };
        }
        Ok(query)
    }
}

/// Runs it for its rows. Reads the answer to its end: what a procedure does behind its rows may fail
/// too.
pub(super) async fn fetch(
    query: Query<'static, sqlx::MySql, MySqlArguments>,
    connection: &mut MySqlConnection,
) -> Result<Vec<Row>, sqlx::Error> {
    let rows = query.fetch(connection).map_ok(|row| read(&row)).try_collect::<Vec<_>>().await?;
    rows.into_iter().collect()
}

pub(super) fn wrong_arguments() -> sqlx::Error {
    sqlx::Error::Protocol("a verb with other arguments than the dialect knows".into())
}

/// The JSON of `lockkit_renew`, from the lists of a renewal: texts of at most so many bytes, or of one claim
/// each, and how many claims each has.
pub(super) fn texts(args: &[Arg<'_>], most: usize) -> Option<Vec<(usize, String)>> {
    let [Arg::Many(namespaces), Arg::Ints(spaces), Arg::Many(names), Arg::Many(ids), rest @ ..] =
        args
    else {
        return None;
    };
    let [Arg::Ints(holds), Arg::Ints(waits), ..] = rest else {
        return None;
    };
    let claims = ids.iter().enumerate().map(|(i, id)| {
        let (namespace, name) = (hex(namespaces.get(i)?), hex(names.get(i)?));
        Some(to_json(&(hex(id), holds.get(i)?, waits.get(i)?, namespace, spaces.get(i)?, name)))
    });
    let mut texts: Vec<(usize, String)> = Vec::new();
    for claim in claims {
        let claim = claim?;
        match texts.last_mut() {
            // A comma and the bracket at the end.
            Some((count, text)) if text.len() + claim.len() + 2 <= most => {
                *count += 1;
                text.push(',');
                text.push_str(&claim);
            }
            _ => texts.push((1, format!("[{claim}"))),
        }
    }
    texts.iter_mut().for_each(|(_, text)| text.push(']'));
    Some(texts)
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
        assert_eq!(texts(&args, 1_000), Some(vec![(2, expected.to_owned())]));
        assert_eq!(texts(&args, expected.len()), Some(vec![(2, expected.to_owned())]));
        let parts = texts(&args, expected.len() - 1).unwrap();
        let first = r#"[["0f0f",30,10,"6c6b",0,"6122"]]"#.to_owned();
        let second = r#"[["a0a0",40,20,"6c6b",1,"c3a1"]]"#.to_owned();
        assert_eq!(parts, [(1, first), (1, second)]);
        assert_eq!(texts(&args[..5], 1_000), None);
    }
}
