//! One server: where it is, how it is logged in at, and a plain command to it.

use redis::aio::ConnectionLike;
use redis::{Client, Cmd, ConnectionAddr, RedisResult, Value};

/// Host and port.
pub(crate) type Address = (String, u16);

/// Whether a request waits where many are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// It does.
    Waits,
    /// It goes first: what keeps a claim alive, or ends it.
    First,
}

/// The address at which this client connects.
pub(crate) fn address_of(client: &Client) -> Address {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            (host.clone(), *port)
        }
        _ => Address::default(),
    }
}

/// The client of another server, with the login of this one.
pub(crate) fn client_at(client: &Client, (host, port): Address) -> RedisResult<Client> {
    let info = client.get_connection_info();
    let addr = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Client::open(info.clone().set_addr(addr))
}

/// The answer to a command.
pub(crate) async fn ask<C: ConnectionLike>(connection: &mut C, cmd: &Cmd) -> RedisResult<Value> {
    into_result(connection.req_packed_command(cmd).await?)
}

/// An answer of the server, which is an error if it is one as a whole. The error of a part is that of one
/// claim.
pub(crate) fn into_result(answer: Value) -> RedisResult<Value> {
    match answer {
        Value::ServerError(error) => Err(error.into()),
        answer => Ok(answer),
    }
}
