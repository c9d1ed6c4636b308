//! Other processes that take part in a case: how a case starts and stops them, and what they do.
//! Both ends stand here, since they share a little protocol of arguments and lines.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lockkit_core::{Error, LockManager, Settings};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::context::{CaseContext, LONG};
use crate::harness::Worker;

/// The processes of one case, and a folder that they share. They end with it.
#[derive(Debug)]
pub struct Crew {
    worker: Worker,
    namespace: String,
    folder: tempfile::TempDir,
}

impl Crew {
    /// The crew of a case that needs [`Processes`](crate::Need::Processes).
    ///
    /// # Panics
    /// When the harness has no worker.
    pub fn of(context: &CaseContext) -> Self {
        Self {
            worker: context.harness().worker().expect("the case needs processes"),
            namespace: context.namespace().as_str().to_owned(),
            folder: tempfile::tempdir().expect("a temporary folder can be made"),
        }
    }

    /// A folder that goes away with the crew.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a process that does what `args` say, with this file.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(&self, args: &[&str], file: &Path) -> Process {
        self.start_in(args, file, &[])
    }

    /// The same in this environment.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_in(&self, args: &[&str], file: &Path, environment: &[(&str, &Path)]) -> Process {
        let mut child = Command::new(&self.worker.program)
            .arg("worker")
            .args([&self.worker.url, &self.namespace])
            .arg(file)
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the worker program can be started");
        let stdout = child.stdout.take().expect("it is piped");
        Process { _stdin: child.stdin.take(), child, lines: BufReader::new(stdout).lines() }
    }
}

/// A process at work.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Closed when the case ends, upon which the process ends too.
    _stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Waits for its end.
    ///
    /// # Panics
    /// When it failed.
    pub async fn finished(mut self) {
        let status = self.child.wait().await.expect("it can be waited for");
        assert!(status.success(), "a worker process ended with {status}");
    }

    /// The next line that it says.
    ///
    /// # Panics
    /// When it ended instead.
    pub async fn read_line(&mut self) -> String {
        let line = self.lines.next_line().await.expect("its output can be read");
        line.expect("the worker process ended early")
    }

    /// The number after `word`, once it says that.
    ///
    /// # Panics
    /// When it ended before.
    pub async fn says(&mut self, word: &str) -> u64 {
        loop {
            let line = self.read_line().await;
            let number = line.strip_prefix(word).and_then(|n| n.trim().parse().ok());
            if let Some(number) = number {
                return number;
            }
        }
    }

    /// Stops it in its tracks (SIGSTOP), until [`Asleep::go_on`] or the end of the value.
    ///
    /// # Panics
    /// When it has ended.
    pub fn stopped(&self) -> Asleep {
        let pid = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32));
        let pid = pid.expect("it runs");
        rustix::process::kill_process(pid, rustix::process::Signal::STOP)
            .expect("it can be stopped");
        Asleep(pid)
    }
}

/// A stopped process. Dropping it lets the process go on.
#[derive(Debug)]
pub struct Asleep(rustix::process::Pid);

impl Asleep {
    /// Lets it go on.
    pub fn go_on(self) {}
}

impl Drop for Asleep {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

/// The other end: does what a [`Crew`] asked for, with the manager that `connect` makes. `args` are
/// those after `worker`.
///
/// # Errors
/// Whatever kept it from doing so.
pub async fn run<F>(
    args: &[String],
    connect: impl FnOnce(String, Settings) -> F,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    F: Future<Output = Result<LockManager, Error>>,
{
    end_with_parent();
    let [url, namespace, file, task, name, number] = args else {
        return Err("worker: URL NAMESPACE FILE count|hold NAME NUMBER".into());
    };
    let settings = Settings::default().namespace(namespace).ttl(LONG).wait_ttl(LONG);
    let manager = connect(url.clone(), settings).await?;
    let number: u64 = number.parse()?;
    match task.as_str() {
        "count" => count(&manager, name, PathBuf::from(file), number).await?,
        "hold" => hold(&manager, name, Duration::from_millis(number)).await?,
        other => return Err(format!("worker: no task {other:?}").into()),
    }
    manager.shutdown().await;
    Ok(())
}

/// Ends this process when the one that started it is gone, which shows in its closed stdin.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

/// Adds one to the number in a file, again and again, under the lock.
async fn count(
    manager: &LockManager,
    name: &str,
    file: PathBuf,
    rounds: u64,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    use std::io::Write;
    let tokens = file.with_extension("tokens");
    for _ in 0..rounds {
        let guard = manager.mutex(name).lock().await?;
        let seen: u64 = std::fs::read_to_string(&file)?.trim().parse()?;
        tokio::task::yield_now().await;
        std::fs::write(&file, (seen + 1).to_string())?;
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(&tokens)?;
        writeln!(log, "{}", guard.token()?)?;
        guard.release().await?;
    }
    Ok(())
}

/// Holds the lock and says, many times a second, under which token it would write now; ends when
/// it has lost it.
async fn hold(manager: &LockManager, name: &str, ttl: Duration) -> Result<(), Error> {
    let guard = manager.mutex(name).ttl(ttl).lock().await?;
    while let Ok(token) = guard.token() {
        println!("wrote {token}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("lost");
    Ok(())
}
