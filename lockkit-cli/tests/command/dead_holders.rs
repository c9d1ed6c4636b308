//! A dead holder on a bucket, and commands that each try once: what one of them saw counts for the next.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::thread::sleep;
use std::time::Duration;

use lockkit_lab::s3::S3Server;
use rustix::process::Signal;

use crate::stage::{Stage, stderr, wait_for_death};

/// Longer than the TTL of the holders.
const OVER: Duration = Duration::from_millis(2_500);

struct Bucket {
    stage: Stage,
    server: S3Server,
}

impl Bucket {
    fn new() -> Self {
        Self { stage: Stage::new(), server: S3Server::start().unwrap() }
    }

    fn lockkit(&self, state: &Path, arguments: &[&str]) -> std::process::Command {
        let endpoint = self.server.endpoint();
        let url = format!("s3://locks/x?endpoint={endpoint}&pace=50ms&min_ttl=500ms");
        let mut command = self.stage.lockkit(arguments);
        command
            .env("LOCKKIT_URL", url)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("XDG_STATE_HOME", state);
        command
    }

    /// Takes the lock in a process that is killed.
    fn is_held_by_a_dead_process(&self) {
        let script = "echo $$ >holder; exec sleep 60";
        let arguments = ["run", "--ttl", "2", "a", "sh", "-c", script];
        let mut command = self.lockkit(&self.stage.path("holders"), &arguments);
        let mut holder = self.stage.start_command(&mut command);
        let pid = self.stage.wait_for_pid("holder");
        holder.signal(Signal::KILL);
        holder.end();
        wait_for_death(pid);
        fs::remove_file(self.stage.path("holder")).unwrap();
    }

    fn tried(&self, state: &Path) -> Output {
        self.lockkit(state, &["run", "--try", "--ttl", "2", "a", "true"]).output().unwrap()
    }
}

#[track_caller]
fn assert_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
}

#[test]
fn a_try_gets_the_lock_of_a_dead_holder_one_ttl_after_the_first_try_of_this_host() {
    let bucket = Bucket::new();
    let (state, another) = (bucket.stage.path("state"), bucket.stage.path("another"));
    bucket.is_held_by_a_dead_process();
    assert_code(&bucket.tried(&state), 75);
    assert_code(&bucket.tried(&state), 75);
    sleep(OVER);
    // It sees the holder for the first time.
    assert_code(&bucket.tried(&another), 75);
    assert_code(&bucket.tried(&state), 0);
    assert_code(&bucket.tried(&another), 0);
}

#[test]
fn what_others_could_have_written_is_ignored_with_a_warning() {
    let bucket = Bucket::new();
    let state = bucket.stage.path("state");
    bucket.is_held_by_a_dead_process();
    assert_code(&bucket.tried(&state), 75);
    sleep(OVER);
    let file = state.join("lockkit/sessions.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let warned = bucket.tried(&state);
    assert_code(&warned, 75);
    let why = stderr(&warned);
    assert!(why.contains("sessions.json is ignored") && why.contains("not 0600"), "{why}");
    // It is replaced by what was seen just now.
    let after = bucket.tried(&state);
    assert_code(&after, 75);
    assert!(!stderr(&after).contains("ignored"), "{}", stderr(&after));
    sleep(OVER);
    assert_code(&bucket.tried(&state), 0);
}
