//! Messages of Redis' protocol, RESP2 and RESP3. May not interpret more of a
//! command than its name.

use std::collections::VecDeque;

use super::message::{Message, MessageClass, Wire};

/// First words of messages that come in answer to a request although they look
/// like pushes.
const CONFIRMATIONS: [&str; 6] =
    ["subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe"];

/// A client that publishes by itself, and not in a script, says to itself that it is alive; the message
/// begins with this.
const ALIVE: &[u8] = b"alive";

#[derive(Debug, Default)]
pub(crate) struct Resp {
    /// What is to be answered next: whether each request was chatter.
    chatter: VecDeque<bool>,
    /// Only then can an array of RESP2 be a published message; elsewhere it is
    /// data that happens to begin with that word.
    subscribed: bool,
}

impl Wire for Resp {
    fn to_server(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = match arrived.first()? {
            b'*' => value(arrived)?,
            _ => line_length(arrived)?,
        };
        if first_word(arrived).is_some_and(|word| {
            let word = word.to_ascii_lowercase();
            CONFIRMATIONS[..3].iter().any(|name| name.as_bytes() == word)
        }) {
            self.subscribed = true;
        }
        let chatter = first_word(arrived).is_some_and(|word| word.eq_ignore_ascii_case(b"publish"));
        self.chatter.push_back(chatter);
        let class = if chatter { MessageClass::Chatter } else { MessageClass::Request };
        Message::take(arrived, length, vec![class])
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
        let class = match push {
            true if last_word(&arrived[..length]).starts_with(ALIVE) => MessageClass::Chatter,
            true => MessageClass::Push,
            false if self.chatter.pop_front() == Some(true) => MessageClass::Chatter,
            false => MessageClass::Answer,
        };
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
        let head = line_length(rest)?;
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
fn line_length(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1)
}

/// The first element of an array or push, if it is a text.
fn first_word(bytes: &[u8]) -> Option<&[u8]> {
    let first = &bytes[line_length(bytes)?..];
    let head = line_length(first)?;
    let text = match first.first()? {
        b'$' => {
            let rest = &first[head..];
            &rest[..line_length(rest)?]
        }
        b'+' => &first[1..head],
        _ => return None,
    };
    Some(text.trim_ascii_end())
}

/// The last line of a message.
fn last_word(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(wire: &mut Resp, bytes: &str) -> Vec<MessageClass> {
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
        assert_eq!(classes(&mut Resp::default(), bytes), [MessageClass::Answer; 5]);
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
        assert_eq!(classes(&mut wire, bytes), [MessageClass::Answer]);
        let mut command = b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n".to_vec();
        wire.to_server(&mut command).unwrap();
        assert_eq!(classes(&mut wire, bytes), [MessageClass::Push]);
    }

    #[test]
    fn what_a_client_says_to_itself_is_chatter() {
        let mut wire = Resp::default();
        let publish = "*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$7\r\nalive 1\r\n*1\r\n$4\r\nPING\r\n";
        let mut sent = publish.as_bytes().to_vec();
        let mut said = || wire.to_server(&mut sent).unwrap().begins;
        assert_eq!((said(), said()), (vec![MessageClass::Chatter], vec![MessageClass::Request]));
        assert_eq!(
            classes(&mut wire, ":1\r\n+PONG\r\n"),
            [MessageClass::Chatter, MessageClass::Answer]
        );
        let mut subscribe = b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n".to_vec();
        wire.to_server(&mut subscribe).unwrap();
        let told =
            |text: &str| format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n{text}\r\n", text.len());
        assert_eq!(classes(&mut wire, &told("alive 1")), [MessageClass::Chatter]);
        assert_eq!(classes(&mut wire, &told("look 1")), [MessageClass::Push]);
    }
}
