//! What statements of PostgreSQL answer, as the rows that the driver knows.

use crate::server::dialect::{Row, Value};

/// The row of `StatementId::Acquire` from that of its statement: a token, or the answer of `acquire_packed`.
pub(super) fn taken(row: &Row, hold: i64) -> Row {
    match row.int(0) {
        Some(token) => Row::granted(token, hold),
        None => Row(unpacked(row.bytes(1).unwrap_or_default(), 5)),
    }
}

/// The row of `StatementId::Release` from that of its statement: 1, or the answer of `release_packed`.
pub(super) fn freed(row: &Row) -> Row {
    match row.int(0) {
        Some(_) => Row::released(),
        None => Row(unpacked(row.bytes(1).unwrap_or_default(), 1)),
    }
}

/// The rows of `StatementId::Pass` from the answer of `pass`.
pub(super) fn handed_over(row: &Row) -> Vec<Row> {
    let mut values = unpacked(row.bytes(0).unwrap_or_default(), 6);
    let acquired = values.split_off(1.min(values.len()));
    let row = |number, values| Row([vec![Value::Int(number)], values].concat());
    vec![row(0, values), row(1, acquired)]
}

/// Numbers of 8 bytes each, and what is behind them.
pub(super) fn unpacked(bytes: &[u8], numbers: usize) -> Vec<Value> {
    let (numbers, rest) = bytes.split_at_checked(8 * numbers).unwrap_or((&[], bytes));
    let (numbers, _) = numbers.as_chunks::<8>();
    let numbers = numbers.iter().map(|number| Value::Int(i64::from_be_bytes(*number)));
    numbers.chain([Value::Bytes(rest.to_vec())]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_bytes_is_numbers_and_what_is_behind_them() {
        let bytes = [[0, 0, 0, 0, 0, 0, 1, 2], [7; 8]].concat();
        assert_eq!(unpacked(&bytes, 1), [Value::Int(258), Value::Bytes(vec![7; 8])]);
        assert_eq!(unpacked(&bytes[..8], 1), [Value::Int(258), Value::Bytes(Vec::new())]);
        // What is too short has no numbers, which no operation takes for an answer.
        assert_eq!(unpacked(&[1], 1), [Value::Bytes(vec![1])]);
    }
}
