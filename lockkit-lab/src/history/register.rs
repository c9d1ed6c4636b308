//! The resource that locks protect, as a careful user would build it: it remembers the greatest
//! token that it has seen, for reads as for writes, and refuses lower ones.
//!
//! (A read must present its token too. Otherwise a stale writer could still write between a newer
//! holder's read and its write, whose token the register has not seen yet.)

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Registers in memory, by name.
#[derive(Clone, Debug, Default)]
pub struct GuardedRegisters(Arc<Mutex<HashMap<String, RegisterContent>>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RegisterContent {
    pub(super) highest: u64,
    pub(super) value: u64,
}

impl RegisterContent {
    /// What a register does: the model that histories are held against, too.
    pub(super) fn apply(&mut self, token: u64, write: Option<u64>) -> RegisterResult {
        if token < self.highest {
            return RegisterResult::Stale { highest: self.highest };
        }
        self.highest = token;
        if let Some(value) = write {
            self.value = value;
        }
        RegisterResult::Done { value: self.value }
    }
}

/// What a register says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegisterResult {
    /// It did it, and this is its value now.
    Done {
        /// The value.
        value: u64,
    },
    /// It refused the token.
    Stale {
        /// The highest token that it has seen.
        highest: u64,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Question {
    register: String,
    token: u64,
    write: Option<u64>,
}

impl GuardedRegisters {
    /// Writes, or reads when there is nothing to write.
    pub fn apply(&self, register: &str, token: u64, write: Option<u64>) -> RegisterResult {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.entry(register.to_owned()).or_default().apply(token, write)
    }

    /// Serves them on a loopback port to other processes, for as long as this one lives.
    pub fn serve(&self) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let registers = self.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let registers = registers.clone();
                std::thread::spawn(move || registers.answer(client));
            }
        });
        Ok(address)
    }

    fn answer(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut out = client.try_clone()?;
        for line in BufReader::new(client).lines() {
            let q: Question = serde_json::from_str(&line?)?;
            let answer = serde_json::to_string(&self.apply(&q.register, q.token, q.write))?;
            out.write_all(format!("{answer}\n").as_bytes())?;
        }
        Ok(())
    }
}

/// A connection to registers that another process serves.
#[derive(Debug)]
pub struct RegisterClient {
    lines: BufReader<TcpStream>,
}

impl RegisterClient {
    /// Connects.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { lines: BufReader::new(stream) })
    }

    /// Writes, or reads when there is nothing to write. Blocks for as long as a loopback round
    /// trip takes.
    pub fn apply(
        &mut self,
        register: &str,
        token: u64,
        write: Option<u64>,
    ) -> io::Result<RegisterResult> {
        let question = Question { register: register.to_owned(), token, write };
        let line = serde_json::to_string(&question)? + "\n";
        self.lines.get_mut().write_all(line.as_bytes())?;
        let mut answer = String::new();
        self.lines.read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_token_is_refused_for_reads_and_writes_also_over_the_wire() {
        let registers = GuardedRegisters::default();
        let address = registers.serve().unwrap();
        let mut client = RegisterClient::connect(address).unwrap();
        assert_eq!(client.apply("a", 5, Some(7)).unwrap(), RegisterResult::Done { value: 7 });
        assert_eq!(registers.apply("a", 4, Some(8)), RegisterResult::Stale { highest: 5 });
        assert_eq!(client.apply("a", 6, None).unwrap(), RegisterResult::Done { value: 7 });
        assert_eq!(client.apply("a", 5, None).unwrap(), RegisterResult::Stale { highest: 6 });
        assert_eq!(client.apply("b", 1, None).unwrap(), RegisterResult::Done { value: 0 });
    }
}
