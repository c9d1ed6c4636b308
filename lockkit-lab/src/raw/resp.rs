//! A few words of Redis' protocol (RESP2, and RESP3 after `HELLO 3`).

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{in_time, unexpected};

/// What a Redis server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RespReply {
    /// A status or a text; also RESP3's numbers with a fraction and its booleans.
    Text(String),
    /// An error.
    Error(String),
    /// A whole number.
    Number(i64),
    /// Nothing.
    Nil,
    /// Several; maps and sets are flat.
    Array(Vec<RespReply>),
    /// A push message (RESP3).
    Push(Vec<RespReply>),
}

impl RespReply {
    /// The text, or an empty one.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Error(text) => text,
            _ => "",
        }
    }
}

/// Asks one question on a connection of its own; an error reply is an error.
pub async fn ask(addr: SocketAddr, command: &[&str]) -> io::Result<RespReply> {
    match RespConnection::open(addr).await?.call(command).await? {
        RespReply::Error(said) => Err(unexpected(said)),
        reply => Ok(reply),
    }
}

/// A connection to a Redis server.
#[derive(Debug)]
pub struct RespConnection {
    stream: BufReader<TcpStream>,
}

impl RespConnection {
    /// Connects.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(super::connect(addr).await?) })
    }

    /// Sends a command and reads the next reply.
    pub async fn call(&mut self, command: &[&str]) -> io::Result<RespReply> {
        self.send(&[command]).await?;
        self.read().await
    }

    /// Sends several commands in one piece.
    pub async fn send(&mut self, commands: &[&[&str]]) -> io::Result<()> {
        let mut bytes = String::new();
        for command in commands {
            bytes += &format!("*{}\r\n", command.len());
            for word in *command {
                bytes += &format!("${}\r\n{word}\r\n", word.len());
            }
        }
        in_time(self.stream.write_all(bytes.as_bytes())).await
    }

    /// Reads the next reply.
    pub async fn read(&mut self) -> io::Result<RespReply> {
        in_time(self.value()).await
    }

    async fn value(&mut self) -> io::Result<RespReply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        let count = || rest.parse::<i64>().map_err(|_| unexpected(line.clone()));
        Ok(match kind {
            "+" | "," | "#" | "(" => RespReply::Text(rest.into()),
            "-" => RespReply::Error(rest.into()),
            ":" => RespReply::Number(count()?),
            "_" => RespReply::Nil,
            "$" | "*" if count()? < 0 => RespReply::Nil,
            "$" | "=" => self.bulk(count()?).await?,
            "%" => RespReply::Array(self.values(2 * count()?).await?),
            "*" | "~" => RespReply::Array(self.values(count()?).await?),
            ">" => RespReply::Push(self.values(count()?).await?),
            _ => return Err(unexpected(line)),
        })
    }

    async fn bulk(&mut self, length: i64) -> io::Result<RespReply> {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0) + 2];
        self.stream.read_exact(&mut bytes).await?;
        bytes.truncate(bytes.len() - 2);
        Ok(RespReply::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }

    async fn values(&mut self, count: i64) -> io::Result<Vec<RespReply>> {
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(Box::pin(self.value()).await?);
        }
        Ok(values)
    }
}
