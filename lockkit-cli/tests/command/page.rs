//! What the manual page says holds for every subcommand: each exit code on it is produced here, and
//! no output shows the password of a URL.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::thread;

use lockkit_lab::{ServerKind, SharedServer};
use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Running, Stage, code, stderr, stdout, wait_for};

/// The codes in a table: first in their line, or between the first two bars.
fn codes(lines: &str, cell: impl Fn(&str) -> Option<&str>) -> BTreeSet<i32> {
    let cells = lines.lines().filter_map(cell).flat_map(|cell| cell.split(','));
    cells.filter_map(|code| code.trim().parse().ok()).collect()
}

#[test]
fn each_exit_code_of_the_manual_page_is_produced() {
    let stage = Stage::new();
    let mut produced = BTreeSet::new();
    let mut ends = |expected: i32, line: &[&str]| {
        let output = stage.run(line);
        assert_eq!(code(&output), expected, "{line:?}: {}", stderr(&output));
        produced.insert(expected);
    };
    ends(0, &["run", "--local", "a", "true"]);
    ends(0, &["put", "--local", "r", "x"]);
    for line in [
        &["break", "--local", "a", "--token", "1"][..],
        &["get", "--local", "none"],
        &["delete", "--local", "none"],
        &["elect", "--local", "--show", "a"],
        &["put", "--local", "--if-absent", "r", "y"],
    ] {
        ends(1, line);
    }
    ends(0, &["latch", "down", "--local", "open", "1"]);
    ends(1, &["latch", "down", "--local", "open", "1", "--as", "another"]);
    ends(64, &["run", "--local", "a"]);
    ends(69, &["run", "-n", "--url", "redis://127.0.0.1:1", "a", "true"]);
    let breaks = "\"$LOCKKIT\" break --local a --force --token $LOCKKIT_TOKEN";
    ends(74, &["run", "--local", "a", "sh", "-c", breaks]);
    let puts = format!("{breaks}; \"$LOCKKIT\" put --local --fenced r 1; echo $? >put");
    ends(74, &["run", "--local", "a", "sh", "-c", &puts]);
    assert_eq!(stage.wait_for_file("put"), "74\n");
    ends(0, &["acquire", "--local", "--ttl", "1h", "held"]);
    ends(75, &["run", "--local", "-n", "held", "true"]);
    ends(75, &["acquire", "--local", "-n", "held"]);
    ends(75, &["latch", "wait", "--local", "--wait", "10ms", "closed", "1"]);
    ends(126, &["run", "--local", "a", "."]);
    ends(127, &["run", "--local", "a", "no-such-command"]);

    // The system refuses: a folder for temporary files that does not exist.
    let mut hold = stage.lockkit(&["hold", "--local", "a"]);
    let refused = hold.env("TMPDIR", stage.path("none")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(code(&refused), 71, "{}", stderr(&refused));
    produced.insert(71);
    // lockkit fails: its own second process is killed while it waits for the lock.
    let mut hold = stage.start(&["hold", "--local", "held"]);
    stage.wait_for_waiters("held", 1);
    let keeper = stage.state("held")["waiters"][0]["identity"]["pid"].as_i64().unwrap();
    kill_process(Pid::from_raw(keeper as i32).unwrap(), Signal::KILL).unwrap();
    assert_eq!(hold.code(), 70);
    produced.insert(70);

    let page = stdout(&stage.run(&["--help"]));
    let (_, table) = page.split_once("Exit codes:\n").unwrap();
    // The codes are in nine columns behind two spaces.
    let listed = codes(table, |line| line.get(2..11));
    assert_eq!(listed, produced, "{table}");
    let guide = include_str!("../../../docs/operations.md");
    let (_, table) = guide.split_once("## Exit codes of the command").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let listed = codes(table, |line| line.strip_prefix("| ")?.split(" | ").next());
    assert_eq!(listed, produced, "{table}");
}

/// The password in the URLs below.
const PASSWORD: &str = "hunter2";

/// A line of each subcommand. Those that last are ended once they have said something.
const LINES: [(&str, &[&str], bool); 25] = [
    ("run", &["-n", "a", "true"], false),
    ("run", &["--once", "-n", "b", "true"], false),
    ("hold", &["-n", "a"], false),
    ("elect", &["a", "true"], true),
    ("latch", &["down", "l", "2"], false),
    ("latch", &["wait", "--wait", "1", "l", "2"], false),
    ("resize", &["s", "2"], false),
    ("get", &["r"], false),
    ("put", &["r", "1"], false),
    ("delete", &["r"], false),
    ("acquire", &["-n", "t"], false),
    ("renew", &["LK1.x.1.1.1..a"], false),
    ("release", &["LK1.x.1.1.1..a"], false),
    ("check", &[], false),
    ("ls", &["--all-namespaces"], false),
    ("show", &["a"], false),
    ("break", &["a", "--token", "1"], false),
    ("watch", &["a"], true),
    ("top", &[], true),
    ("doctor", &[], false),
    ("schema", &[], false),
    ("serve", &["--listen", "127.0.0.1:0"], true),
    ("take-over", &["--from", "sqlite:old.db"], false),
    ("completions", &["bash"], false),
    ("man", &[], false),
];

/// These take no URL from `--url`, or several: they name servers by themselves.
const OTHERS: [&str; 3] = ["compare", "storm", "judge"];

/// What it printed, on both streams.
fn printed(stage: &Stage, line: &[&str], lasts: bool, variable: Option<(&str, &str)>) -> String {
    let [out, err] = ["out", "err"].map(|name| fs::File::create(stage.path(name)).unwrap());
    let mut command = stage.lockkit(line);
    command.envs(variable).stdin(Stdio::null()).stdout(out).stderr(err);
    let mut running = Running(command.spawn().unwrap());
    let read = || ["out", "err"].map(|name| fs::read_to_string(stage.path(name)).unwrap()).concat();
    if lasts {
        let ended = wait_for("a word or an end", || {
            let ended = running.0.try_wait().unwrap().is_some();
            (ended || !read().is_empty()).then_some(ended)
        });
        if !ended {
            running.signal(Signal::TERM);
        }
    }
    running.end();
    read()
}

#[tokio::test]
async fn no_output_of_any_subcommand_shows_the_password_of_the_url() {
    let stage = Stage::new();
    let pages = stage.path("pages");
    fs::create_dir(&pages).unwrap();
    assert_eq!(code(&stage.run(&["man", "--dir", "pages"])), 0);
    for page in fs::read_dir(pages).unwrap() {
        let page = page.unwrap().file_name().into_string().unwrap();
        if let Some(verb) = page.strip_prefix("lockkit-") {
            let verb = verb.trim_end_matches(".1");
            let known = LINES.iter().map(|line| line.0).chain(OTHERS);
            assert!(known.into_iter().any(|known| known == verb), "{verb} has no line here");
        }
    }
    let server = SharedServer::server(ServerKind::Redis).await.unwrap();
    let place = server.url();
    let place = place.strip_prefix("redis://").unwrap();
    // One that answers (Redis takes any password for its default user), one that refuses the
    // login, one that is not there, and two that cannot be URLs.
    let urls = [
        format!("redis://default:{PASSWORD}@{place}"),
        format!("redis://nobody:{PASSWORD}@{place}"),
        format!("postgres://me:{PASSWORD}@127.0.0.1:1/app"),
        format!("pigeon://me:{PASSWORD}@coop"),
        format!("redis://me:{PASSWORD}@{place}?nonsense=1"),
    ];
    thread::scope(|scope| {
        for url in &urls {
            for source in ["--url", "LOCKKIT_URL", "LOCKKIT_URL_FILE"] {
                scope.spawn(move || {
                    let stage = Stage::new();
                    fs::write(stage.path("url"), url).unwrap();
                    let file = stage.path("url").display().to_string();
                    let namespace = stage.path("").display().to_string();
                    for (verb, rest, lasts) in LINES {
                        let (options, variable) = match source {
                            "--url" => (vec!["--url", url.as_str()], None),
                            "LOCKKIT_URL" => (vec![], Some((source, url.as_str()))),
                            _ => (vec![], Some((source, file.as_str()))),
                        };
                        let common = ["-v", "--namespace", &namespace, verb];
                        let line = [&options[..], &common, rest].concat();
                        let said = printed(&stage, &line, lasts, variable);
                        assert!(!said.contains(PASSWORD), "{source} {line:?}: {said}");
                        // It was there to be shown: that of the one which is not there is.
                        if verb == "run" && url.ends_with(":1/app") {
                            assert!(said.contains("me:***@127.0.0.1:1/app"), "{line:?}: {said}");
                        }
                    }
                });
            }
        }
    });
}
