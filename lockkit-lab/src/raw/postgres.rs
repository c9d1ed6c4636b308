//! A few words of PostgreSQL's protocol 3.0: trusted login and simple queries.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{in_time, unexpected};

/// A connection of the user `postgres` to the database of that name.
#[derive(Debug)]
pub struct PostgresConnection {
    stream: BufReader<TcpStream>,
}

impl PostgresConnection {
    /// Connects and logs in.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let mut stream = BufReader::new(super::connect(addr).await?);
        let words = b"\x00\x03\x00\x00user\0postgres\0database\0postgres\0\0";
        let mut login = length_of(words.len()).to_vec();
        login.extend_from_slice(words);
        in_time(stream.write_all(&login)).await?;
        let mut connection = Self { stream };
        connection.rows().await?;
        Ok(connection)
    }

    /// Sends a simple query and reads its rows, each value as text.
    pub async fn query(&mut self, sql: &str) -> io::Result<Vec<Vec<Option<String>>>> {
        self.send(&[(b'Q', &[sql.as_bytes(), b"\0"].concat())]).await?;
        self.rows().await
    }

    /// Sends protocol messages, given by type and body, in one piece.
    pub async fn send(&mut self, messages: &[(u8, &[u8])]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (kind, body) in messages {
            bytes.push(*kind);
            bytes.extend_from_slice(&length_of(body.len()));
            bytes.extend_from_slice(body);
        }
        in_time(self.stream.write_all(&bytes)).await
    }

    /// Reads up to the message that says that the server is ready again.
    pub async fn rows(&mut self) -> io::Result<Vec<Vec<Option<String>>>> {
        let (mut rows, mut error) = (Vec::new(), None);
        loop {
            match self.read().await? {
                (b'D', body) => rows.push(row(&body).ok_or_else(|| unexpected("odd row"))?),
                (b'E', body) => {
                    let said = String::from_utf8_lossy(&body).replace('\0', " ");
                    error = Some(unexpected(said));
                    // Before the login is through, an error is the last message.
                    if self.stream.buffer().is_empty() && rows.is_empty() {
                        let mut peek = [0; 1];
                        if in_time(self.stream.get_ref().peek(&mut peek)).await? == 0 {
                            return Err(error.unwrap_or_else(|| unexpected("closed")));
                        }
                    }
                }
                (b'R', body) if body[..] != [0; 4] => {
                    return Err(unexpected("the server asks for a password"));
                }
                (b'Z', _) => return error.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    /// Reads one protocol message: its type and its body.
    pub async fn read(&mut self) -> io::Result<(u8, Vec<u8>)> {
        in_time(async {
            let kind = self.stream.read_u8().await?;
            let length = self.stream.read_u32().await?.saturating_sub(4);
            let mut body = vec![0; length as usize];
            self.stream.read_exact(&mut body).await?;
            Ok((kind, body))
        })
        .await
    }
}

/// The length of a message counts itself.
fn length_of(body: usize) -> [u8; 4] {
    u32::try_from(body + 4).unwrap_or(u32::MAX).to_be_bytes()
}

fn row(body: &[u8]) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut row = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        row.push(match usize::try_from(i32::from_be_bytes(*length)) {
            Err(_) => None,
            Ok(length) => {
                let (value, after) = rest.split_at_checked(length)?;
                rest = after;
                Some(String::from_utf8_lossy(value).into_owned())
            }
        });
    }
    Some(row)
}
