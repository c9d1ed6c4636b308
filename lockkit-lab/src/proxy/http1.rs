//! Messages of HTTP/1.1: heads, and bodies of a stated length or in chunks. May not
//! interpret more of a head than that.

use super::message::{Message, MessageClass, Wire};

/// As long as a head may be; what is longer is no HTTP.
const LONGEST_HEAD: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct Http1;

impl Wire for Http1 {
    fn to_server(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = message(arrived)?;
        Message::take(arrived, length, vec![MessageClass::Request])
    }

    fn to_client(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = message(arrived)?;
        Message::take(arrived, length, vec![MessageClass::Answer])
    }
}

/// The length of the message at the front, if all of it is there.
fn message(bytes: &[u8]) -> Option<usize> {
    let Some(head) = find(bytes, b"\r\n\r\n") else {
        return (bytes.len() > LONGEST_HEAD).then_some(bytes.len());
    };
    let body = head + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let header = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    };
    let end = match (header("transfer-encoding"), header("content-length")) {
        (Some(encoding), _) if encoding.contains("chunked") => body + chunks(&bytes[body..])?,
        (_, Some(length)) => body + length.parse::<usize>().ok()?,
        (_, None) => body,
    };
    (end <= bytes.len()).then_some(end)
}

/// The length of a body in chunks, if all of it is there.
fn chunks(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = find(&bytes[at..], b"\r\n")?;
        let size = String::from_utf8_lossy(&bytes[at..at + line]).into_owned();
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        at += line + 2;
        if size == 0 {
            // Further headers may follow, and an empty line.
            loop {
                let line = find(bytes.get(at..)?, b"\r\n")?;
                at += line + 2;
                if line == 0 {
                    return Some(at);
                }
            }
        }
        at += size + 2;
        bytes.get(at..)?;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_prefix_of_a_message_is_a_message() {
        for whole in [
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n\r\n\r\n1",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nx: y\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
        ] {
            for end in 0..whole.len() {
                assert_eq!(message(&whole.as_bytes()[..end]), None, "{whole:?} up to {end}");
            }
            let two = format!("{whole}{whole}");
            assert_eq!(message(two.as_bytes()), Some(whole.len()), "{whole:?}");
        }
    }
}
