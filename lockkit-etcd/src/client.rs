//! Requests to etcd: on which endpoint, for how long, and what their failures mean. Knows nothing
//! of locks.
//!
//! Each endpoint has a client of its own, and one of them is in use until it fails. (One client
//! over all endpoints spreads its calls, and one dead endpoint then fails a part of them all the
//! time.) The client library waits for ever by itself, so every call here ends in bounded time.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, KvClient, Txn, TxnOpResponse, TxnResponse};
use lockkit_core::Error;
use lockkit_core::driver::{Background, locked};
use tokio::sync::{OnceCell, mpsc};
use tokio::time::timeout;

use crate::terms::Terms;

pub(crate) const BACKEND: &str = "etcd";

/// What a call may take with all its attempts.
const LIMIT: Duration = Duration::from_millis(4_500);
/// What one attempt may take where there is another endpoint to try.
pub(crate) const ATTEMPT: Duration = Duration::from_millis(1_500);
const PAUSE: Duration = Duration::from_millis(20);
/// What etcd does not say when it refuses something.
const RIGHTS: &str = "the login needs the rights to read and to write all keys below \"lockkit/\", or \
                      below the root that the URL names";
/// The longest answer to a transaction: a list of some hundred thousand claims. (The client's own
/// limit is 4 MB, and a list beyond it could not be left any more.)
const LONGEST_ANSWER: usize = 256 * 1024 * 1024;

/// Clients, one an endpoint.
pub(crate) struct EtcdClient {
    endpoints: Vec<Endpoint>,
    /// The one in use.
    current: AtomicUsize,
    /// Whether the last attempt of any request got no answer.
    ambiguous: AtomicBool,
    /// In which terms the members answer.
    pub(crate) terms: Terms,
    /// What goes on without a caller that waits for it.
    pub(crate) background: Background,
}

struct Endpoint {
    url: String,
    options: ConnectOptions,
    clients: OnceCell<Clients>,
}

impl Endpoint {
    async fn connect(&self) -> Result<&Clients, etcd_client::Error> {
        let connect = || async {
            let options = Some(self.options.clone());
            Client::connect([&self.url], options).await.map(Clients::of)
        };
        self.clients.get_or_try_init(connect).await
    }
}

/// Two ways to one member: the usual one, and one that takes long answers.
struct Clients {
    any: Client,
    kv: KvClient,
}

impl Clients {
    fn of(client: Client) -> Self {
        let kv = client.kv_client().max_decoding_message_size(LONGEST_ANSWER);
        Self { any: client, kv }
    }
}

/// An answer, and what is known of the attempts before it.
pub(crate) struct Response<T> {
    pub(crate) answer: T,
    /// How many attempts failed that may have reached the server, or may yet.
    pub(crate) ambiguous: u32,
    /// The number of the endpoint that answered.
    pub(crate) at: usize,
}

impl<T> Response<T> {
    /// The same with what the answer means.
    pub(crate) fn with<U>(self, answer: U) -> Response<U> {
        Response { answer, ambiguous: self.ambiguous, at: self.at }
    }

    /// Whether it was asked more than once.
    pub(crate) fn is_repeated(&self) -> bool {
        self.ambiguous > 0
    }
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum EtcdError {
    /// The lease that the request named is not there. Nothing was done.
    LeaseGone,
    /// Anything else.
    Failed {
        error: Error,
        /// How many requests got no answer, and may have been carried out or may be yet. 0: nothing
        /// was sent, or etcd refused what was.
        ambiguous: u32,
    },
}

/// The result of a request to etcd.
pub(crate) type EtcdResult<T> = Result<T, EtcdError>;

impl EtcdError {
    /// A request of which it is not known whether it was carried out.
    fn unknown(error: Error) -> Self {
        Self::Failed { error, ambiguous: 1 }
    }
}

impl From<EtcdError> for Error {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::LeaseGone => Error::retryable(BACKEND, "the lease is gone"),
            EtcdError::Failed { error, .. } => error,
        }
    }
}

/// An error that is not about a request without an answer.
impl From<Error> for EtcdError {
    fn from(error: Error) -> Self {
        Self::Failed { error, ambiguous: 0 }
    }
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.endpoints.iter().map(|e| &e.url).collect();
        f.debug_struct("EtcdClient").field("endpoints", &urls).finish_non_exhaustive()
    }
}

impl EtcdClient {
    /// Clients that connect when they are first used.
    pub(crate) fn to(urls: Vec<String>, options: &ConnectOptions) -> Self {
        let endpoint = |url| Endpoint { url, options: options.clone(), clients: OnceCell::new() };
        Self::over(urls.into_iter().map(endpoint).collect())
    }

    /// A client that the program made.
    pub(crate) fn with(client: Client) -> Self {
        let (url, options) = ("a client of the program".to_owned(), ConnectOptions::new());
        let clients = OnceCell::new_with(Some(Clients::of(client)));
        Self::over(vec![Endpoint { url, options, clients }])
    }

    fn over(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            current: AtomicUsize::default(),
            ambiguous: AtomicBool::default(),
            terms: Terms::default(),
            background: Background::default(),
        }
    }

    /// One transaction. It must be harmless to repeat.
    pub(crate) async fn txn(&self, txn: Txn) -> EtcdResult<Response<TxnResponse>> {
        self.txn_within(ATTEMPT, || txn.clone()).await
    }

    /// The same where each endpoint has so long to answer, if there are several; made for each
    /// attempt, always alike.
    pub(crate) async fn txn_within(
        &self,
        patience: Duration,
        make: impl Fn() -> Txn,
    ) -> EtcdResult<Response<TxnResponse>> {
        let request = |mut kv: KvClient| {
            let txn = make();
            async move { kv.txn(txn).await }
        };
        let reply = self.ask(patience, |clients| clients.kv.clone(), request).await?;
        self.terms.record(reply.answer.header());
        Ok(reply)
    }

    /// The revision that a majority has reached, as this endpoint answers a read that shows it.
    pub(crate) async fn revision_at(&self, at: usize, read: Txn) -> EtcdResult<i64> {
        let request = |mut kv: KvClient| {
            let read = read.clone();
            async move { kv.txn(read).await }
        };
        let attempt = Box::pin(self.attempt(at, |clients| clients.kv.clone(), &request));
        match timeout(ATTEMPT, attempt).await {
            Ok(answer) => Ok(revision(&answer?)),
            Err(_) => Err(no_response()),
        }
    }

    /// One call, which must be harmless to repeat: on the endpoint in use, then on the others.
    pub(crate) async fn call<T, F>(&self, request: impl Fn(Client) -> F) -> EtcdResult<Response<T>>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.call_within(ATTEMPT, request).await
    }

    /// The same where each endpoint has so long to answer, if there are several.
    pub(crate) async fn call_within<T, F>(
        &self,
        patience: Duration,
        request: impl Fn(Client) -> F,
    ) -> EtcdResult<Response<T>>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.ask(patience, |clients| clients.any.clone(), request).await
    }

    async fn ask<C, T, F>(
        &self,
        patience: Duration,
        way: fn(&Clients) -> C,
        request: impl Fn(C) -> F,
    ) -> EtcdResult<Response<T>>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let start = Instant::now();
        let mut ambiguous = 0;
        loop {
            let at = self.current.load(Ordering::Relaxed);
            let left = LIMIT.saturating_sub(start.elapsed());
            let limit = if self.endpoints.len() > 1 { left.min(patience) } else { left };
            // Boxed: it is large, and all that it is wrapped in would be copied with it.
            let attempt = Box::pin(self.attempt(at, way, &request));
            let error = match timeout(limit, attempt).await {
                Ok(Ok(answer)) => {
                    self.ambiguous.store(false, Ordering::Relaxed);
                    return Ok(Response { answer, ambiguous, at });
                }
                Ok(Err(error)) => error,
                Err(_) => no_response(),
            };
            let (error, may_retry) = match error {
                EtcdError::LeaseGone if ambiguous == 0 => return Err(EtcdError::LeaseGone),
                // Not "nothing was done": an attempt before may have done it.
                EtcdError::LeaseGone => (Error::from(EtcdError::LeaseGone), false),
                EtcdError::Failed { error, ambiguous: now } => {
                    ambiguous += now;
                    let retryable = error.is_retryable();
                    (error, retryable)
                }
            };
            self.ambiguous.store(may_retry, Ordering::Relaxed);
            if !may_retry {
                return Err(EtcdError::Failed { error, ambiguous });
            }
            self.leave(at);
            // A single server that was silent has had its time: core knows when to ask again.
            let enough = if self.endpoints.len() > 1 { LIMIT } else { LIMIT / 8 };
            if start.elapsed() + PAUSE >= enough {
                return Err(EtcdError::Failed { error, ambiguous });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The version of each endpoint's member; `None` of one that does not answer.
    pub(crate) async fn versions(&self) -> Vec<Option<String>> {
        let status = |mut client: Client| async move { client.status().await };
        let asking = (0..self.endpoints.len()).map(|at| async move {
            let attempt = Box::pin(self.attempt(at, |clients| clients.any.clone(), &status));
            let status = timeout(ATTEMPT, attempt).await.ok()?.ok()?;
            Some(status.version().to_owned())
        });
        futures_util::future::join_all(asking).await
    }

    /// Chooses another endpoint than this one.
    pub(crate) fn leave(&self, at: usize) {
        let next = (at + 1) % self.endpoints.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether the last attempt of any request got no answer: then the next ones may not, either.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.ambiguous.load(Ordering::Relaxed)
    }

    /// The number of the endpoint in use.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    async fn attempt<C, T, F>(
        &self,
        at: usize,
        way: fn(&Clients) -> C,
        request: &impl Fn(C) -> F,
    ) -> EtcdResult<T>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let endpoint = &self.endpoints[at];
        let clients = match endpoint.clients.get() {
            Some(clients) => clients,
            // The request itself has not been sent.
            None => Box::pin(endpoint.connect())
                .await
                .map_err(|error| EtcdError::from(Error::from(error_of(error))))?,
        };
        request(way(clients)).await.map_err(error_of)
    }
}

fn no_response() -> EtcdError {
    EtcdError::unknown(Error::retryable(BACKEND, "etcd did not answer in time"))
}

/// The answers to the operations of a transaction, of which the ranges are wanted.
pub(crate) fn ranges(response: &TxnResponse) -> Vec<etcd_client::GetResponse> {
    response.op_responses().into_iter().flat_map(flatten).collect()
}

fn flatten(response: TxnOpResponse) -> Vec<etcd_client::GetResponse> {
    match response {
        TxnOpResponse::Get(get) => vec![get],
        TxnOpResponse::Txn(locks) => ranges(&locks),
        _ => Vec::new(),
    }
}

pub(crate) fn revision(response: &TxnResponse) -> i64 {
    response.header().map_or(0, etcd_client::ResponseHeader::revision)
}

/// Numbers of gRPC's status codes.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// A status that etcd itself sent is certain: nothing was done. Anything else may be the end of a
/// request that was carried out.
fn error_of(error: etcd_client::Error) -> EtcdError {
    use etcd_client::Error as E;
    let status = match error {
        E::GRpcStatus(status) => status,
        E::InvalidArgs(_) | E::InvalidUri(_) | E::InvalidMetadataValue(_) | E::Utf8Error(_) => {
            return Error::permanent(BACKEND, error).into();
        }
        _ => return EtcdError::unknown(Error::retryable(BACKEND, error)),
    };
    let message = status.message().to_owned();
    // Both pass by themselves, and are refused before anything is done.
    if message.contains("too many requests") || message.contains("auth store is old") {
        return Error::retryable(BACKEND, message).into();
    }
    match status.code() as i32 {
        code::NOT_FOUND if message.contains("lease") => EtcdError::LeaseGone,
        code::PERMISSION_DENIED => Error::permanent(BACKEND, format!("{message}: {RIGHTS}")).into(),
        code::INVALID_ARGUMENT
        | code::RESOURCE_EXHAUSTED
        | code::FAILED_PRECONDITION
        | code::UNIMPLEMENTED
        | code::UNAUTHENTICATED => Error::permanent(BACKEND, message).into(),
        _ if message.is_empty() => {
            EtcdError::unknown(Error::retryable(BACKEND, "the connection failed"))
        }
        _ => EtcdError::unknown(Error::retryable(BACKEND, message)),
    }
}

/// The way to the task, which is started when it is first needed, ends with its runtime, and is
/// started again then.
#[derive(Debug)]
pub(crate) struct Task<T>(Mutex<Option<mpsc::UnboundedSender<T>>>);

impl<T> Default for Task<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Task<T> {
    /// The way to the task; `run` makes it, if there is none.
    pub(crate) fn reach<F>(
        &self,
        run: impl FnOnce(mpsc::UnboundedReceiver<T>) -> F,
    ) -> mpsc::UnboundedSender<T>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut open = locked(&self.0);
        if let Some(to) = open.as_ref().filter(|to| !to.is_closed()) {
            return to.clone();
        }
        let (to, from) = mpsc::unbounded_channel();
        tokio::spawn(run(from));
        open.insert(to).clone()
    }
}
