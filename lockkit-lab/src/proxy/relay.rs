//! One connection through the proxy: reads at both ends, has each message judged,
//! and delivers it in time. May not decide what passes: the proxy's hub judges.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{self, Instant};

use super::connection::{ConnectionState, Delivery, ProxiedConnection, lock};
use super::fault::End;
use super::hub::Hub;
use super::message::Message;

impl ProxiedConnection {
    /// Carries bytes to and fro until both ends are closed or the state changes.
    pub(crate) async fn run(self: Arc<Self>, hub: Arc<Hub>, mut client: TcpStream) {
        let mut state = self.state.subscribe();
        let server = tokio::select! {
            _ = state.wait_for(|state| *state != ConnectionState::Open) => None,
            server = hub.dial(self.target) => server.ok(),
        };
        let Some(mut server) = server else {
            let _ = client.set_zero_linger();
            self.state.send_replace(ConnectionState::Over);
            return;
        };
        let met = tokio::select! {
            biased;
            met = state.wait_for(|state| *state != ConnectionState::Open) => {
                met.map_or(ConnectionState::Cut, |met| *met)
            }
            _ = self.relay(&hub, &mut client, &mut server) => ConnectionState::Over,
        };
        match met {
            ConnectionState::Open | ConnectionState::Over => {}
            ConnectionState::Cut => reset(&client, &server),
            ConnectionState::HalfOpen { receiver: End::Server } => {
                drop(server);
                forsake(client, state).await;
            }
            ConnectionState::HalfOpen { receiver: End::Client } => {
                drop(client);
                forsake(server, state).await;
            }
        }
        self.state.send_replace(ConnectionState::Over);
    }

    async fn relay(
        &self,
        hub: &Hub,
        client: &mut TcpStream,
        server: &mut TcpStream,
    ) -> io::Result<()> {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let (up, up_queue) = mpsc::unbounded_channel();
        let (down, down_queue) = mpsc::unbounded_channel();
        // Clients are read first: what a client sent before an answer reached it
        // belongs to the same round trip.
        tokio::try_join!(
            biased;
            self.read(hub, End::Server, from_client, up),
            self.deliver(hub, End::Server, to_server, up_queue),
            self.read(hub, End::Client, from_server, down),
            self.deliver(hub, End::Client, to_client, down_queue),
        )?;
        Ok(())
    }

    /// Reads what is for the end `to`, and queues what passes.
    async fn read(
        &self,
        hub: &Hub,
        to: End,
        mut from: ReadHalf<'_>,
        queue: mpsc::UnboundedSender<(Instant, Option<Message>)>,
    ) -> io::Result<()> {
        let mut arrived = Vec::new();
        loop {
            let length = from.read_buf(&mut arrived).await?;
            let now = Instant::now();
            if length == 0 {
                // A close is lost like an answer; it arrives after what was sent.
                if !(to == End::Client && self.is_mute()) {
                    let _ = queue.send((now + hub.latency(to), None));
                    return Ok(());
                }
                self.over().await;
            }
            self.count_bytes(to, length);
            while let Some(mut message) = self.next(to, &mut arrived) {
                if to == End::Client {
                    hub.translate(&mut message.bytes);
                }
                match hub.judge(self, to, &message) {
                    Delivery::Pass(after) => drop(queue.send((now + after, Some(message)))),
                    Delivery::Lose => {}
                    Delivery::End => self.over().await,
                }
            }
        }
    }

    /// Writes what is queued to the end `to` when its time has come.
    async fn deliver(
        &self,
        hub: &Hub,
        to: End,
        mut end: WriteHalf<'_>,
        mut queue: mpsc::UnboundedReceiver<(Instant, Option<Message>)>,
    ) -> io::Result<()> {
        while let Some((due, message)) = queue.recv().await {
            // Without a need to wait, not even a tick of the timer.
            if due > Instant::now() {
                time::sleep_until(due).await;
            }
            hub.passage().await;
            let Some(message) = message else {
                return end.shutdown().await;
            };
            if to == End::Client {
                lock(&self.tally).received(&message.begins);
            }
            end.write_all(&message.bytes).await?;
        }
        Ok(())
    }

    fn next(&self, to: End, arrived: &mut Vec<u8>) -> Option<Message> {
        let mut wire = lock(&self.wire);
        match to {
            End::Server => wire.to_server(arrived),
            End::Client => wire.to_client(arrived),
        }
    }

    fn count_bytes(&self, to: End, length: usize) {
        let mut tally = lock(&self.tally);
        match to {
            End::Server => tally.counts.bytes_to_server += length as u64,
            End::Client => tally.counts.bytes_to_client += length as u64,
        }
    }

    fn is_mute(&self) -> bool {
        lock(&self.mute).is_some()
    }

    /// Waits until the connection is ended, which drops this future.
    async fn over(&self) {
        std::future::pending::<()>().await;
    }
}

/// Both ends learn of it at once, and nothing that is in flight arrives.
fn reset(client: &TcpStream, server: &TcpStream) {
    let _ = client.set_zero_linger();
    let _ = server.set_zero_linger();
}

/// Keeps an end open that shall not know that the other one is closed.
async fn forsake(mut end: TcpStream, mut state: watch::Receiver<ConnectionState>) {
    let mut lost = vec![0; 4096];
    tokio::select! {
        _ = state.wait_for(|state| *state == ConnectionState::Cut) => drop(end.set_zero_linger()),
        _ = async { while matches!(end.read(&mut lost).await, Ok(1..)) {} } => {}
    }
}
