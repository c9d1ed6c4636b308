//! A statement with its arguments, and its answer as rows: sqlx's types on one side, the
//! dialect's on the other.

use std::sync::Arc;

use futures_util::TryStreamExt;
use lockkit_core::Claim;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow, MySqlValueRef};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Decode, Executor, Row as _, TypeInfo, ValueRef};

use crate::rows::{columns, micros};
use crate::server::dialect::{Arg, Row, Value, hex, without_header};

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

/// Runs it as text. Bytes are ASCII, and compared by the collation of the column beside them.
pub(super) async fn plain(
    statement: &Statement,
    args: &[Arg<'_>],
    connection: &mut MySqlConnection,
) -> Result<Vec<Row>, sqlx::Error> {
    let mut words = statement.text.split('?');
    let mut text = words.next().unwrap_or_default().to_owned();
    for (at, word) in statement.order.iter().zip(words) {
        let literal = |bytes: &&[u8]| format!("_ascii X'{}'", hex(bytes));
        let literals: Vec<_> = match args.get(*at) {
            Some(Arg::Int(number)) => vec![number.to_string()],
            Some(Arg::Ints(numbers)) => numbers.iter().map(i64::to_string).collect(),
            Some(Arg::Bytes(bytes)) => vec![literal(bytes)],
            Some(Arg::Many(many)) => many.iter().map(literal).collect(),
            _ => return Err(wrong_arguments()),
        };
        text.push_str(&literals.join(", "));
        text.push_str(word);
    }
    let rows = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(text))).await?;
    rows.iter().map(read).collect()
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
    sqlx::Error::Protocol("a id with other arguments than the dialect knows".into())
}

/// The JSON of `lockkit_renew`: texts of at most so many bytes, or of one claim each, and how many claims
/// each has.
pub(super) fn texts(claims: &[&Claim], most: usize) -> Vec<(usize, String)> {
    let mut texts: Vec<(usize, String)> = Vec::new();
    for claim in claims {
        let (namespace, space, name) = columns(&claim.key);
        let [namespace, name] = [namespace, name].map(|text| hex(text.as_bytes()));
        let (hold, wait) = (micros(claim.hold_ttl), micros(claim.wait_ttl));
        let id = hex(claim.id.as_bytes());
        let claim = format!(r#"["{id}",{hold},{wait},"{namespace}",{space},"{name}"]"#);
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
    texts
}

/// A row of sqlx's.
fn read(row: &MySqlRow) -> Result<Row, sqlx::Error> {
    let values = (0..row.len()).map(|column| value(row.try_get_raw(column)?));
    values.collect::<Result<_, _>>().map(Row)
}

fn value(value: MySqlValueRef<'_>) -> Result<Value, sqlx::Error> {
    if value.is_null() {
        return Ok(Value::Null);
    }
    let kind = value.type_info().name().to_owned();
    let read = match kind.as_str() {
        "BOOLEAN" => <bool as Decode<sqlx::MySql>>::decode(value).map(|b| Value::Int(b.into())),
        unsigned if unsigned.ends_with("UNSIGNED") => <u64 as Decode<sqlx::MySql>>::decode(value)
            .map(|n| Value::Int(i64::try_from(n).unwrap_or(i64::MAX))),
        whole if whole.ends_with("INT") => {
            <i64 as Decode<sqlx::MySql>>::decode(value).map(Value::Int)
        }
        _ => <&[u8] as Decode<sqlx::MySql>>::decode(value).map(|b| Value::Bytes(b.to_vec())),
    };
    read.map_err(sqlx::Error::Decode)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkit_core::driver::ClaimId;
    use lockkit_core::{ClientIdentity, Key, Mode, Name, Namespace, Space};

    use super::*;

    fn claim(space: Space, name: &str, id: u8, ttls: [u64; 2]) -> Claim {
        let key = Key::new(Namespace::new("lk").unwrap(), space, Name::new(name).unwrap());
        let [hold, wait] = ttls.map(Duration::from_micros);
        let client = Arc::new(ClientIdentity::unknown());
        let mode = match space {
            Space::Lock => Mode::Exclusive,
            Space::Semaphore => Mode::Permits { permits: 1, limit: 1 },
        };
        let mut claim = Claim::new(key, mode, hold, wait, client);
        claim.id = ClaimId::from_bytes([id; 16]);
        claim
    }

    #[test]
    fn a_renewal_is_json_of_numbers_and_hexadecimal_digits() {
        let one = claim(Space::Lock, "a\"", 0x0f, [30, 10]);
        let other = claim(Space::Semaphore, "á", 0xa0, [40, 20]);
        let claims = [&one, &other];
        let (first, second) = ("0f".repeat(16), "a0".repeat(16));
        let first = format!(r#"["{first}",30,10,"6c6b",0,"6122"]"#);
        let second = format!(r#"["{second}",40,20,"6c6b",1,"c3a1"]"#);
        let whole = format!("[{first},{second}]");
        assert_eq!(texts(&claims, 1_000), [(2, whole.clone())]);
        assert_eq!(texts(&claims, whole.len()), [(2, whole.clone())]);
        let parts = texts(&claims, whole.len() - 1);
        assert_eq!(parts, [(1, format!("[{first}]")), (1, format!("[{second}]"))]);
    }
}
