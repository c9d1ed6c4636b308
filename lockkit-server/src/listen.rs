//! Where a server listens: the loopback address, or a Unix socket that only its user may open.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lockkit_core::Error;
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::{TcpListener, UnixListener};

/// A place to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address of the loopback interface.
    Tcp(SocketAddr),
    /// The path of a socket.
    Unix(PathBuf),
}

/// A listener that is open.
#[derive(Debug)]
pub enum Listener {
    /// Of an address.
    Tcp(TcpListener),
    /// Of a socket.
    Unix(UnixListener, PathBuf),
}

impl FromStr for Listen {
    type Err = Error;

    /// Reads `HOST:PORT`, a loopback address, or `unix:/PATH`.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => {
                    Err(Error::config("a socket has an absolute path: unix:/run/lockkit.sock"))
                }
            };
        }
        let address: SocketAddr =
            text.replace("localhost:", "127.0.0.1:").parse().map_err(|_| {
                let shown: String = text.chars().take(40).collect();
                Error::Config(format!("{shown:?} is no address: use 127.0.0.1:7411 or unix:/PATH"))
            })?;
        match address.ip().is_loopback() {
            true => Ok(Self::Tcp(address)),
            false => Err(Error::Config(format!(
                "{address} is reached from other hosts, and this server asks nobody who it is: \
                 listen on 127.0.0.1 or a Unix socket, behind a proxy that does"
            ))),
        }
    }
}

impl fmt::Display for Listen {
    /// The URL by which a client of this host reaches it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "http+unix:{}", path.display()),
        }
    }
}

impl Listen {
    /// Opens it.
    ///
    /// A socket is created with mode 0600. One that a server left behind is replaced; one at which a
    /// server answers is an error.
    pub async fn open(&self) -> io::Result<Listener> {
        match self {
            Self::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address).await?)),
            Self::Unix(path) => {
                clear(path)?;
                // The socket has its mode from the moment it is there.
                let before = umask(Mode::from_bits_truncate(0o177));
                let opened = UnixListener::bind(path);
                umask(before);
                Ok(Listener::Unix(opened?, path.clone()))
            }
        }
    }
}

/// Removes a socket at which nobody answers, and nothing else.
fn clear(path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        let what = "there is a file of this name that is not a socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    if UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there"));
    }
    std::fs::remove_file(path)
}

impl Listener {
    /// Where it listens, with the port that the system chose for port 0.
    pub fn place(&self) -> io::Result<Listen> {
        match self {
            Self::Tcp(listener) => Ok(Listen::Tcp(listener.local_addr()?)),
            Self::Unix(_, path) => Ok(Listen::Unix(path.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_and_sockets_are_listened_at() {
        for good in ["127.0.0.1:7411", "[::1]:0", "localhost:80", "unix:/run/a.sock"] {
            good.parse::<Listen>().expect(good);
        }
        for bad in ["0.0.0.0:7411", "10.0.0.1:7411", "[::]:1", "a:1", "7411", "unix:a", ""] {
            bad.parse::<Listen>().expect_err(bad);
        }
    }

    #[tokio::test]
    async fn a_socket_is_its_users_own_and_a_stale_one_is_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let listen = Listen::Unix(path.clone());
        let first = listen.open().await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(listen.open().await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        listen.open().await.unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(listen.open().await.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(path.exists(), "a file is left alone");
    }
}
