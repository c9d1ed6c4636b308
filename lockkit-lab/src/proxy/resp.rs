//! Messages of Redis' protocol, RESP2 and RESP3. May not interpret more of a
//! command than its name.

use super::message::{Class, Message, Wire};

/// First words of messages that come in answer to a request although they look
/// like pushes.
const CONFIRMATIONS: [&str; 6] =
    ["subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe"];

#[derive(Debug, Default)]
pub(crate) struct Resp {
    /// Only then can an array of RESP2 be a published message; elsewhere it is
    /// data that happens to begin with that word.
    subscribed: bool,
}

impl Wire for Resp {
    fn to_server(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = match arrived.first()? {
            b'*' => value(arrived)?,
            _ => line(arrived)?,
        };
        if first_word(arrived).is_some_and(|word| {
            let word = word.to_ascii_lowercase();
            CONFIRMATIONS[..3].iter().any(|name| name.as_bytes() == word)
        }) {
            self.subscribed = true;
        }
        Message::take(arrived, length, vec![Class::Request])
    }

    fn to_client(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = value(arrived)?;
        let begins_with = |words: &[&str]| {
            first_word(arrived).is_some_and(|w| words.iter().any(|x| x.as_bytes() == w))
        };
        let push = match arrived[0] {
            b'>' => !begins_with(&CONFIRMATIONS),
            b'*' => self.subscribed && begins_with(&["message", "pmessage", "smessage"]),
            _ => false,
        };
        let class = if push { Class::Push } else { Class::Answer };
        Message::take(arrived, length, vec![class])
    }
}

/// The length of the value at the front, if all of it is there.
fn value(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut missing = 1_usize;
    while missing > 0 {
        missing -= 1;
        let rest = bytes.get(at..)?;
        let head = line(rest)?;
        at += head;
        let count = std::str::from_utf8(&rest[1..head]).ok().and_then(|n| n.trim().parse().ok());
        let count = usize::try_from(count.unwrap_or(-1_i64)).ok();
        match (rest[0], count) {
            (b'$' | b'=' | b'!', Some(length)) => at += length + 2,
            (b'*' | b'~' | b'>', Some(count)) => missing += count,
            (b'%', Some(count)) => missing += 2 * count,
            // Attributes come before the value that they belong to.
            (b'|', Some(count)) => missing += 2 * count + 1,
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

/// The length of the line at the front, its end included.
fn line(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1)
}

/// The first element of an array or push, if it is a text.
fn first_word(bytes: &[u8]) -> Option<&[u8]> {
    let first = &bytes[line(bytes)?..];
    let head = line(first)?;
    let text = match first.first()? {
        b'$' => {
            let rest = &first[head..];
            &rest[..line(rest)?]
        }
        b'+' => &first[1..head],
        _ => return None,
    };
    Some(text.trim_ascii_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(wire: &mut Resp, bytes: &str) -> Vec<Class> {
        let mut buffer = bytes.as_bytes().to_vec();
        let mut found = Vec::new();
        while let Some(message) = wire.to_client(&mut buffer) {
            found.extend(message.begins);
        }
        assert!(buffer.is_empty());
        found
    }

    #[test]
    fn nested_and_empty_values_are_one_message_each() {
        let bytes =
            "*2\r\n*1\r\n:1\r\n$-1\r\n*0\r\n$0\r\n\r\n%1\r\n+a\r\n_\r\n|1\r\n+t\r\n:9\r\n+OK\r\n";
        assert_eq!(classes(&mut Resp::default(), bytes), [Class::Answer; 5]);
    }

    #[test]
    fn no_prefix_of_a_message_is_a_message() {
        let whole = b"*2\r\n$3\r\na\r\n\r\n*1\r\n:1\r\n";
        for end in 0..whole.len() {
            assert_eq!(value(&whole[..end]), None, "{end}");
        }
        assert_eq!(value(whole), Some(whole.len()));
    }

    #[test]
    fn an_array_that_begins_with_message_is_a_push_only_after_a_subscription() {
        let bytes = "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n";
        let mut wire = Resp::default();
        assert_eq!(classes(&mut wire, bytes), [Class::Answer]);
        let mut command = b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n".to_vec();
        wire.to_server(&mut command).unwrap();
        assert_eq!(classes(&mut wire, bytes), [Class::Push]);
    }
}
