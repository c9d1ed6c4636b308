//! A server before DynamoDB Local that counts what passes, and answers in its place, or loses its answers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What becomes of a request.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// It is carried out and answered.
    Passes,
    /// It is carried out, and the connection is cut before the answer.
    Lost,
    /// It is carried out, and the answer is this.
    CarriedOutBut(String),
    /// It is not carried out, and the answer is this; without one there is silence.
    Answered(Option<String>),
}

type Decide = Box<dyn FnMut(&str) -> Fate + Send>;

/// The server.
pub(crate) struct Front {
    addr: SocketAddr,
    state: Arc<State>,
}

struct State {
    decide: Mutex<Decide>,
    actions: Mutex<Vec<String>>,
    bytes_to_client: AtomicU64,
}

impl Front {
    /// Before this server, or before none, where every request is answered here.
    pub(crate) async fn start(server: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let addr = listener.local_addr().expect("it has one");
        let decide: Mutex<Decide> = Mutex::new(Box::new(|_| Fate::Passes));
        let (actions, bytes_to_client) = (Mutex::default(), AtomicU64::new(0));
        let state = Arc::new(State { decide, actions, bytes_to_client });
        let serving = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = serving.clone();
                tokio::spawn(async move {
                    // A connection that breaks is no fault of a test.
                    let _ = state.serve(client, server).await;
                });
            }
        });
        Self { addr, state }
    }

    /// What URLs name.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Decides from now on what becomes of the requests of each action.
    pub(crate) fn decide(&self, decide: impl FnMut(&str) -> Fate + Send + 'static) {
        *self.state.decide.lock().unwrap() = Box::new(decide);
    }

    /// Everything passes from now on.
    pub(crate) fn heal(&self) {
        self.decide(|_| Fate::Passes);
    }

    /// The actions of the requests since the last time.
    pub(crate) fn take_actions(&self) -> Vec<String> {
        std::mem::take(&mut *self.state.actions.lock().unwrap())
    }

    /// What its clients were sent so far.
    pub(crate) fn bytes_to_client(&self) -> u64 {
        self.state.bytes_to_client.load(Ordering::SeqCst)
    }
}

impl State {
    async fn serve(
        &self,
        mut client: TcpStream,
        server: Option<SocketAddr>,
    ) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        let mut read = Vec::new();
        loop {
            while whole(&read).is_none() {
                if client.read_buf(&mut read).await? == 0 {
                    return Ok(());
                }
            }
            let request = std::mem::take(&mut read);
            let action = action(&request);
            self.actions.lock().unwrap().push(action.clone());
            let fate = (self.decide.lock().unwrap())(&action);
            let mut answer = None;
            if let (Some(server), false) = (server, matches!(fate, Fate::Answered(_))) {
                answer = Some(carried_out(server, &request).await?);
            }
            let answer = match fate {
                Fate::Passes => answer.unwrap_or_default(),
                Fate::Lost => return client.set_zero_linger(),
                Fate::CarriedOutBut(answer) | Fate::Answered(Some(answer)) => answer.into_bytes(),
                Fate::Answered(None) => continue,
            };
            self.bytes_to_client.fetch_add(answer.len() as u64, Ordering::SeqCst);
            client.write_all(&answer).await?;
            if String::from_utf8_lossy(&answer).to_ascii_lowercase().contains("connection: close") {
                return Ok(());
            }
        }
    }
}

/// A refusal as DynamoDB says it.
pub(crate) fn refusal(status: u16, code: &str) -> String {
    let body =
        format!("{{\"__type\":\"com.amazonaws.dynamodb.v20120810#{code}\",\"message\":\"no\"}}");
    answer(status, &body)
}

/// An answer with this body.
pub(crate) fn answer(status: u16, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn head(bytes: &[u8]) -> Option<(String, usize)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some((String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase(), end + 4))
}

/// Whether the whole request is there; requests do not come in pipelines.
fn whole(bytes: &[u8]) -> Option<()> {
    let (head, body) = head(bytes)?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.trim().parse().expect("a number"));
    (bytes.len() >= body + length).then_some(())
}

fn action(request: &[u8]) -> String {
    let text = String::from_utf8_lossy(request).into_owned();
    let target = text.split("DynamoDB_20120810.").nth(1).unwrap_or_default();
    target.chars().take_while(char::is_ascii_alphabetic).collect()
}

/// The server's answer, on a connection of its own.
async fn carried_out(server: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut connection = TcpStream::connect(server).await?;
    let first = request.iter().position(|byte| *byte == b'\n').expect("it has lines") + 1;
    connection.write_all(&request[..first]).await?;
    connection.write_all(b"connection: close\r\n").await?;
    connection.write_all(&request[first..]).await?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await?;
    Ok(answer)
}
