//! The process of a runtime, and the requests that it has not answered yet.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lockkit_core::Error;
use lockkit_core::driver::BatchError;
use lockkit_http::wire::Problem;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

/// Where the client runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    Node,
    Deno,
    Bun,
    /// A page of Chromium.
    Page,
}

impl Runtime {
    /// The command of the program; an error says what is missing here.
    pub(crate) fn command(self) -> Result<Command, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("");
        let script = match self {
            Self::Page => "driver-browser.js",
            _ => "driver.js",
        };
        let script = root.join("clients/typescript/build/tests").join(script);
        if !script.is_file() {
            return Err("it is not built: cargo xtask typescript --build".to_owned());
        }
        let packaged = |program: &str| {
            let program = root.join("target/runtimes/node_modules").join(program);
            match program.is_file() {
                true => Ok(Command::new(program)),
                false => Err(format!("there is no {self:?}: cargo xtask install fetches it")),
            }
        };
        let mut command = match self {
            Self::Node | Self::Page => Command::new("node"),
            Self::Deno => packaged("@deno/linux-x64-glibc/deno")?,
            Self::Bun => packaged("@oven/bun-linux-x64/bin/bun")?,
        };
        if self == Self::Deno {
            let rights = ["--allow-net=127.0.0.1", "--allow-env", "--allow-sys"];
            command.arg("run").args(rights).env("DENO_NO_UPDATE_CHECK", "1");
        }
        command.arg(script);
        Ok(command)
    }
}

/// A running `tests/driver.ts`, or the like.
#[derive(Debug)]
pub(crate) struct Program {
    _child: Child,
    lines: mpsc::UnboundedSender<Value>,
    waiting: Waiting,
    next: AtomicU64,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

/// A client in it. Those that ask the same servers first share its connections.
#[derive(Debug)]
pub(crate) struct Client {
    program: Arc<Program>,
    servers: String,
}

#[derive(Debug, Deserialize)]
struct Answer {
    id: u64,
    #[serde(default)]
    answer: Option<Value>,
    #[serde(default)]
    problem: Option<Problem>,
}

impl Program {
    /// Starts it; it ends when this is dropped.
    pub(crate) async fn start(runtime: Runtime) -> Result<Arc<Self>, Error> {
        let mut command = runtime.command().map_err(Error::Config)?;
        let started = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // The one of the browser ends it, and removes its profile, at the end of its input.
            .kill_on_drop(runtime != Runtime::Page)
            .spawn();
        let mut child = started.map_err(|e| Error::config(format!("{runtime:?}: {e}")))?;
        let (Some(mut input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::config("the program has no input or no output"));
        };
        let (lines, mut written) = mpsc::unbounded_channel::<Value>();
        tokio::spawn(async move {
            while let Some(line) = written.recv().await {
                if input.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let waiting = Arc::default();
        tokio::spawn(read(output, Arc::clone(&waiting)));
        tokio::spawn(async move {
            let mut errors = BufReader::new(errors).lines();
            while let Ok(Some(line)) = errors.next_line().await {
                eprintln!("{line}");
            }
        });
        Ok(Arc::new(Self { _child: child, lines, waiting, next: AtomicU64::new(1) }))
    }

    /// Another client, once it has connected: leases of the suite are not to pay for that.
    pub(crate) async fn client(program: &Arc<Self>, servers: String) -> Result<Client, Error> {
        let client = Client { program: Arc::clone(program), servers };
        let first = json!({"namespace": "", "name": "first", "space": "lock"});
        let _: Value = client.ask("/v1/inspect", &first).await?;
        Ok(client)
    }

    fn send(&self, line: Value) {
        let _ = self.lines.send(line);
    }
}

impl Client {
    /// The answer to a request, which ends when this is dropped.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Error> {
        self.submit(path, body).await.map_err(|failed| failed.error)
    }

    /// The same; an error says how many requests may have been carried out.
    pub(crate) async fn submit<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, BatchError> {
        let Self { program, servers } = self;
        let id = program.next.fetch_add(1, Ordering::Relaxed);
        let (answered, answer) = oneshot::channel();
        program.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answered);
        let asked = Asked { program, id };
        program.send(json!({"id": id, "servers": servers, "path": path, "body": body}));
        let answer = answer.await;
        drop(asked);
        let gone =
            || BatchError::unknown(Error::permanent("http", "the program in TypeScript ended"));
        let answer = answer.map_err(|_| gone())?;
        if let Some(problem) = answer.problem {
            return Err(problem.batch_error());
        }
        serde_json::from_value(answer.answer.unwrap_or_default()).map_err(|e| {
            BatchError::unknown(Error::permanent("http", format!("{path}: what it said: {e}")))
        })
    }
}

/// A request without an answer.
struct Asked<'a> {
    program: &'a Program,
    id: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut waiting = self.program.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.remove(&self.id).is_some() {
            self.program.send(json!({"cancel": self.id}));
        }
    }
}

async fn read(output: ChildStdout, waiting: Waiting) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer: Answer = serde_json::from_str(&line).expect("the program writes JSON");
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waits) = waiting.remove(&answer.id) {
            let _ = waits.send(answer);
        }
    }
    waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
