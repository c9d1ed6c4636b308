//! A server in a process of its own, which is frozen, killed and started again.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

/// One server. It ends with this.
pub(crate) struct ServerProcess {
    backend: String,
    address: SocketAddr,
    child: Mutex<Child>,
}

impl ServerProcess {
    pub(crate) fn start(backend: &str) -> Self {
        // Nobody else gets the port in between: the system hands out others first.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let child = Mutex::new(spawn(backend, address));
        Self { backend: backend.to_owned(), address, child }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn start_again(&self) {
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) =
            spawn(&self.backend, self.address);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
}

fn spawn(backend: &str, address: SocketAddr) -> Child {
    let mut child = Command::new(lockkit_lab::worker::example("http_server"))
        .args([backend, &address.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}
