//! A lock service in a process of its own, which is frozen, killed and started again. It knows
//! nothing of what is served.

use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

/// One server. It ends with this.
#[derive(Debug)]
pub struct ServiceProcess {
    program: PathBuf,
    backend: String,
    address: SocketAddr,
    child: Mutex<Child>,
}

impl ServiceProcess {
    /// Starts one, as `PROGRAM service BACKEND ADDRESS`, which says `ready` once it listens.
    ///
    /// # Errors
    /// When it does not.
    pub fn start(program: &Path, backend: &str) -> io::Result<Self> {
        // No other process gets the port in between: the system hands out others first.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = Mutex::new(launch(program, backend, address)?);
        Ok(Self { program: program.to_owned(), backend: backend.to_owned(), address, child })
    }

    /// Where it listens, also when it is started again.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    /// Stops it, as a machine that stands still.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it.
    pub fn kill(&self) {
        let mut child = self.child();
        // It can be gone already, and nothing else can go wrong.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Starts it at the same place, after [`kill`](Self::kill).
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_again(&self) -> io::Result<()> {
        *self.child() = launch(&self.program, &self.backend, self.address)?;
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child()), signal);
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn launch(program: &Path, backend: &str, address: SocketAddr) -> io::Result<Child> {
    let mut child = Command::new(program)
        .args(["service", backend, &address.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(said) = child.stdout.take() {
        BufReader::new(said).read_line(&mut line)?;
    }
    match line.as_str() {
        "ready\n" => Ok(child),
        said => Err(io::Error::other(format!("the service did not start: {said}"))),
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
