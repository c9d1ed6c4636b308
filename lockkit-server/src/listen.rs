//! Where a server listens: an address, or a Unix socket that only its user may open.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lockkit_core::Error;
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

use crate::caller::Peer;
use crate::tls::Tls;

/// A place to listen at.
///
/// ```
/// use lockkit_server::Listen;
///
/// assert!(matches!("127.0.0.1:7411".parse(), Ok(Listen::Tcp(_))));
/// assert!(matches!("unix:/run/lockkit.sock".parse(), Ok(Listen::Unix(_))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address. Other hosts reach it unless it is of the loopback interface.
    Tcp(SocketAddr),
    /// The path of a socket.
    Unix(PathBuf),
}

/// A listener that is open.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    tls: Option<Tls>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A connection that was accepted.
pub(crate) enum Accepted {
    /// With what does the handshake, if there is one.
    Tcp(TcpStream, SocketAddr, Option<TlsAcceptor>),
    Unix(UnixStream),
}

impl Accepted {
    /// The other end.
    pub(crate) fn peer(&self) -> Peer {
        match self {
            Self::Tcp(_, address, _) => Peer::of(address.ip()),
            Self::Unix(stream) => {
                stream.peer_cred().map_or(Peer::Unknown, |peer| Peer::User(peer.uid()))
            }
        }
    }
}

impl FromStr for Listen {
    type Err = Error;

    /// Reads `ADDRESS:PORT`, `localhost:PORT` or `unix:/PATH`.
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
        Ok(Self::Tcp(address))
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
    /// Whether other hosts reach it.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().is_loopback())
    }

    /// Opens it.
    ///
    /// A socket is created with mode 0600. One that a server left behind is replaced; one at which a
    /// server answers is an error.
    pub async fn open(&self) -> io::Result<Listener> {
        match self {
            Self::Tcp(address) => Ok(Socket::Tcp(TcpListener::bind(address).await?).into()),
            Self::Unix(path) => {
                clear(path)?;
                // The socket has its mode from the moment it is there.
                let before = umask(Mode::from_bits_truncate(0o177));
                let opened = UnixListener::bind(path);
                umask(before);
                Ok(Socket::Unix(opened?, path.clone()).into())
            }
        }
    }
}

/// Removes a socket at which no server answers, and nothing else.
fn clear(path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        let what = "there is a file of this name that is not a socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there"));
    }
    std::fs::remove_file(path)
}

impl From<Socket> for Listener {
    fn from(socket: Socket) -> Self {
        Self { socket, tls: None }
    }
}

impl Listener {
    /// Speaks TLS. A Unix socket stays as it is.
    #[must_use]
    pub fn with_tls(mut self, tls: &Tls) -> Self {
        self.tls = matches!(self.socket, Socket::Tcp(_)).then(|| tls.clone());
        self
    }

    /// Where it listens, with the port that the system chose for port 0.
    pub fn address(&self) -> io::Result<Listen> {
        match &self.socket {
            Socket::Tcp(listener) => Ok(Listen::Tcp(listener.local_addr()?)),
            Socket::Unix(_, path) => Ok(Listen::Unix(path.clone())),
        }
    }

    /// The URL by which clients reach it. (Its certificate may be for another name.)
    pub fn url(&self) -> io::Result<String> {
        let url = self.address()?.to_string();
        Ok(match (&self.tls, url.strip_prefix("http://")) {
            (Some(_), Some(rest)) => format!("https://{rest}"),
            _ => url,
        })
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The next connection.
    ///
    /// # Cancel safety
    /// Dropping it loses none.
    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // An answer is one small packet, which must not wait for the next.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, address, self.tls.as_ref().map(Tls::acceptor)))
            }
            Socket::Unix(listener, _) => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_sockets_are_listened_at() {
        for good in ["127.0.0.1:7411", "[::1]:0", "localhost:80", "unix:/run/a.sock"] {
            assert!(!good.parse::<Listen>().expect(good).is_remote(), "{good}");
        }
        for remote in ["0.0.0.0:7411", "10.0.0.1:7411", "[::]:1"] {
            assert!(remote.parse::<Listen>().expect(remote).is_remote(), "{remote}");
        }
        for bad in ["a:1", "7411", "unix:a", ""] {
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
        assert!(!path.exists(), "a listener that ends takes its socket along");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(listen.open().await.expect("nobody listens there any more"));
        std::fs::write(&path, "").unwrap();
        assert_eq!(listen.open().await.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(path.exists(), "a file is left alone");
    }
}
