//! A few words of MySQL's protocol: login as `root` without a password, and text
//! queries.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{in_time, unexpected};

/// CLIENT_PROTOCOL_41 | CLIENT_TRANSACTIONS | CLIENT_SECURE_CONNECTION | CLIENT_PLUGIN_AUTH.
const CAPABILITIES: u32 = 0x200 | 0x2000 | 0x8000 | 0x8_0000;
const COM_QUERY: u8 = 3;

/// A connection of the user `root`.
#[derive(Debug)]
pub struct MySqlClient {
    stream: BufReader<TcpStream>,
}

impl MySqlClient {
    /// Connects and logs in.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let mut connection = Self { stream: BufReader::new(super::connect(addr).await?) };
        let greeting = connection.packet().await?;
        refused(&greeting)?;
        let mut login = CAPABILITIES.to_le_bytes().to_vec();
        login.extend_from_slice(&0x0100_0000_u32.to_le_bytes());
        login.push(45); // utf8mb4_general_ci
        login.extend_from_slice(&[0; 23]);
        login.extend_from_slice(b"root\0\0"); // no password: an answer of length 0
        login.extend_from_slice(b"mysql_native_password\0");
        connection.write(1, &login).await?;
        let mut answer = connection.packet().await?;
        if answer.first() == Some(&0xfe) {
            // Another way to log in: in each, no password is an empty answer.
            connection.write(3, &[]).await?;
            answer = connection.packet().await?;
        }
        refused(&answer)?;
        match answer.first() {
            Some(0) => Ok(connection),
            _ => Err(unexpected("the server asks for another way to log in")),
        }
    }

    /// Sends a query and reads its rows, each value as text.
    pub async fn query(&mut self, sql: &str) -> io::Result<Vec<Vec<Option<String>>>> {
        self.write(0, &[&[COM_QUERY], sql.as_bytes()].concat()).await?;
        let head = self.packet().await?;
        refused(&head)?;
        let columns = usize::from(*head.first().unwrap_or(&0));
        if columns == 0 {
            return Ok(Vec::new());
        }
        for _ in 0..=columns {
            self.packet().await?; // the columns' definitions and the mark after them
        }
        let mut rows = Vec::new();
        loop {
            let packet = self.packet().await?;
            refused(&packet)?;
            if packet.first() == Some(&0xfe) && packet.len() < 9 {
                return Ok(rows);
            }
            rows.push(row(&packet, columns).ok_or_else(|| unexpected("odd row"))?);
        }
    }

    async fn write(&mut self, sequence: u8, body: &[u8]) -> io::Result<()> {
        let mut bytes = u32::try_from(body.len()).unwrap_or(0).to_le_bytes()[..3].to_vec();
        bytes.push(sequence);
        bytes.extend_from_slice(body);
        in_time(self.stream.write_all(&bytes)).await
    }

    async fn packet(&mut self) -> io::Result<Vec<u8>> {
        in_time(async {
            let head = self.stream.read_u32_le().await?;
            let mut body = vec![0; (head & 0x00ff_ffff) as usize];
            self.stream.read_exact(&mut body).await?;
            Ok(body)
        })
        .await
    }
}

fn refused(packet: &[u8]) -> io::Result<()> {
    match packet.first() {
        Some(0xff) => Err(unexpected(String::from_utf8_lossy(&packet[3..]))),
        _ => Ok(()),
    }
}

/// Values of up to 65,535 bytes: the lab asks for no longer ones.
fn row(mut rest: &[u8], columns: usize) -> Option<Vec<Option<String>>> {
    let mut row = Vec::new();
    for _ in 0..columns {
        let (first, after) = rest.split_first()?;
        let (length, after) = match first {
            0xfb => {
                row.push(None);
                rest = after;
                continue;
            }
            0xfc => {
                let (length, after) = after.split_first_chunk::<2>()?;
                (usize::from(u16::from_le_bytes(*length)), after)
            }
            short => (usize::from(*short), after),
        };
        let (value, after) = after.split_at_checked(length)?;
        row.push(Some(String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Some(row)
}
