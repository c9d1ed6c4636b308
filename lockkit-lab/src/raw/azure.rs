//! A few words to Azurite, the emulator of Azure Blob Storage: requests without a body, under a signature for
//! all of them that was made with the emulator's well-known key.

use std::io;
use std::net::SocketAddr;

use super::{http, unexpected};

/// The emulator's account.
pub const ACCOUNT: &str = "devstoreaccount1";

/// Everything in that account, until the year 2099.
const SIGNATURE: &str = "sv=2021-08-06&ss=b&srt=sco&sp=rwdlac&se=2099-01-01T00%3A00%3A00Z&spr=https%2Chttp\
                         &sig=kV1%2FDJNn7340SUtIltqF6L9gEwifTOYTqBxfQeMSrhM%3D";

/// Sends a request without a body, such as `PUT` to `CONTAINER?restype=container`, with further headers, each
/// as a line. Gives the status of the answer.
///
/// # Errors
/// If there is no answer.
pub async fn ask(
    addr: SocketAddr,
    method: &str,
    target: &str,
    headers: &[&str],
) -> io::Result<u16> {
    let sign = if target.contains('?') { '&' } else { '?' };
    let target = format!("/{ACCOUNT}/{target}{sign}{SIGNATURE}");
    Ok(http::ask(addr, method, &target, headers, b"").await?.status)
}

/// Creates a container, unless there is one.
///
/// # Errors
/// If it cannot be created.
pub async fn create_container(addr: SocketAddr, name: &str) -> io::Result<()> {
    match ask(addr, "PUT", &format!("{name}?restype=container"), &[]).await? {
        201 | 409 => Ok(()),
        status => Err(unexpected(format!("{status} to the creation of {name}"))),
    }
}
