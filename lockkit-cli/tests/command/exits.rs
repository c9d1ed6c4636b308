//! Exit codes, the choice of the backend, bad input.

use std::fs;
use std::process::Stdio;

use lockkit_lab::{Clients, Server, ServerKind, TestCertificates};

use crate::stage::{Stage, code as code_of, stderr, stdout};

#[test]
fn the_exit_code_is_the_commands_own_and_128_plus_n_for_a_signal() {
    let stage = Stage::new();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let output = stage.run(&["run", "--local", "a", "sh", "-c", script]);
        assert_eq!(code_of(&output), code, "{script}: {}", stderr(&output));
    }
}

#[test]
fn a_command_that_cannot_be_run_ends_with_126_or_127_and_nothing_is_made() {
    let stage = Stage::new();
    fs::write(stage.path("plain"), "text").unwrap();
    for (command, code) in
        [("no-such-command", 127), ("./no/such", 127), ("./plain", 126), (".", 126), ("", 127)]
    {
        let output = stage.run(&["run", "--local", "a", command]);
        assert_eq!(output.status.code(), Some(code), "{command}");
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    }
    assert!(!stage.state_folder().exists());
}

#[test]
fn bad_input_ends_with_64_one_sentence_and_nothing_made() {
    let stage = Stage::new();
    let long = "x".repeat(513);
    let cases: &[&[&str]] = &[
        &[],
        &["rum"],
        &["run"],
        &["run", "a"],
        &["run", "a", "--"],
        &["run", "", "true"],
        &["run", "a\nb", "true"],
        &["run", &long, "true"],
        &["run", "--namespace", &long, "a", "true"],
        &["run", "--ttl", "soon", "a", "true"],
        &["run", "--ttl", "0", "a", "true"],
        &["run", "--ttl", "1ms", "a", "true"],
        &["run", "--ttl", "-1", "a", "true"],
        &["run", "--ttl", "99d99", "a", "true"],
        &["run", "--ttl", "9", "--kill-after", "3", "a", "true"],
        &["run", "--kill-after", "10", "a", "true"],
        &["run", "--max-hold", "0", "a", "true"],
        &["run", "--wait", "x", "a", "true"],
        &["run", "--wait", "1", "--try", "a", "true"],
        &["run", "--permits", "1", "a", "true"],
        &["run", "--permits", "0", "--limit", "2", "a", "true"],
        &["run", "--permits", "3", "--limit", "2", "a", "true"],
        &["run", "--limit", "2", "--shared", "a", "true"],
        &["run", "-E", "256", "a", "true"],
        &["run", "-q", "-v", "a", "true"],
        &["run", "--note", "a\u{1b}[2J", "a", "true"],
        &["run", "--local", "--url", "memory:", "a", "true"],
        &["run", "--url", "", "a", "true"],
        &["run", "--url", "nonsense", "a", "true"],
        &["run", "--url", "pigeon://coop", "a", "true"],
        &["run", "--url", "sqlite:a.db?ttl=soon", "a", "true"],
        &["run", "--ttl", "1m1h", "a", "true"],
        &["run", "--max-hold", "50ms", "a", "true"],
        &["run", "a", "-c", "true", "true"],
        &["run", "--forget", "a"],
        &["run", "--once", "--forget", "a", "true"],
        &["--url", "nonsense", "ls"],
        &["delete", ""],
        &["man", "nonsense"],
        &["--color", "pink", "ls"],
        &["run", "--once", "--shared", "a", "true"],
        &["run", "--keep", "1d", "a", "true"],
        &["elect"],
        &["elect", "a"],
        &["elect", "", "true"],
        &["elect", "--value", "a\nb", "a", "true"],
        &["elect", "--ttl", "9", "--kill-after", "3", "a", "true"],
        &["latch"],
        &["latch", "down", "a"],
        &["latch", "down", "a", "0"],
        &["latch", "down", "a", "801"],
        &["latch", "down", "", "1"],
        &["latch", "show", "a", "801"],
        &["latch", "wait", "a", "1", "--wait", "x"],
        &["get", ""],
        &["put", "", "x"],
        &["put", "--if-version", "1", "--if-absent", "a", "x"],
        &["put", "--fenced", "a", "x"],
        &["acquire", ""],
        &["renew", "nonsense"],
        &["release", "--", "-"],
        &["check"],
        &["ls", "--held-over", "x"],
        &["show", ""],
        &["break", "a"],
        &["break", "a", "--token", "0"],
        &["break", "", "--token", "1"],
        &["break", "a", "--token", "1", "--reason", "a\nb"],
        &["ls", "--namespace", "a\nb"],
        &["doctor", "--namespace", &long],
        &["watch", ""],
        &["completions", "tcl"],
    ];
    for case in cases {
        let output = stage.run(case);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(64), "{case:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{case:?}: {said}");
        assert!(said.starts_with("lockkit: ") && said.len() < 700, "{case:?}: {said}");
        assert!(output.stdout.is_empty(), "{case:?}");
    }
    assert!(!stage.state_folder().exists());
}

#[test]
fn a_lock_that_is_taken_ends_a_try_with_75_or_as_told() {
    let stage = Stage::new();
    let _holder = stage.start(&["run", "--local", "a", "--", "sleep", "1000"]);
    stage.wait_for_holder("a");
    for (options, code) in [
        (&["--try"][..], 75),
        (&["-n"], 75),
        (&["--wait", "0"], 75),
        (&["--wait", "100ms"], 75),
        (&["-n", "-E", "9"], 9),
        (&["-n", "--busy-exit-code", "0"], 0),
        (&["-n", "--shared"], 75),
        (&["-n", "--limit", "1"], 4),
        (&["-n", "--namespace", "other"], 4),
    ] {
        let arguments = [&["run", "--local"], options, &["a", "sh", "-c", "exit 4"]].concat();
        let output = stage.run(&arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
        assert_eq!(
            code != 4,
            said.contains("held by ") && said.contains(":sleep["),
            "{options:?}: {said}"
        );
    }
    let quiet = stage.run(&["run", "--local", "-q", "-n", "a", "true"]);
    assert_eq!((quiet.status.code(), stderr(&quiet)), (Some(75), String::new()));
}

#[test]
fn readers_and_permits_share() {
    let stage = Stage::new();
    let _reader = stage.start(&["run", "--local", "-s", "a", "sleep", "1000"]);
    stage.wait_for_holder("a");
    assert_eq!(stage.run(&["run", "--local", "-sn", "a", "true"]).status.code(), Some(0));
    let _permit = stage.start(&[
        "run",
        "--local",
        "--limit",
        "2",
        "b",
        "sh",
        "-c",
        "echo >up; exec sleep 1000",
    ]);
    stage.wait_for_file("up");
    let one = stage.run(&["run", "--local", "-n", "--permits", "1", "--limit", "2", "b", "true"]);
    assert_eq!(one.status.code(), Some(0), "{}", stderr(&one));
    let two = stage.run(&["run", "--local", "-n", "--permits", "2", "--limit", "2", "b", "true"]);
    assert_eq!(two.status.code(), Some(75), "{}", stderr(&two));
    let other = stage.run(&["run", "--local", "-n", "--limit", "3", "b", "true"]);
    assert_eq!(other.status.code(), Some(64), "{}", stderr(&other));
}

#[test]
fn the_default_file_is_remarked_on_once_and_local_or_quiet_say_nothing() {
    let stage = Stage::new();
    let output = stage.run(&["run", "a", "true"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("state/lockkit/locks.db") && said.contains("this host only"), "{said}");
    assert_eq!(said.lines().count(), 1);
    for option in ["--local", "-q"] {
        let output = stage.run(&["run", option, "a", "true"]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    }
}

#[test]
fn the_url_comes_from_the_option_the_variable_or_the_file() {
    let stage = Stage::new();
    fs::write(stage.path("url"), "sqlite:by-file.db\n").unwrap();
    let run = |url: Option<&str>, variable: Option<&str>| {
        let mut command = stage.lockkit(&["run", "a", "true"]);
        if let Some(url) = url {
            command = stage.lockkit(&["run", "--url", url, "a", "true"]);
        }
        if let Some(variable) = variable {
            command.env("LOCKKIT_URL", variable);
        }
        let output = command.env("LOCKKIT_URL_FILE", stage.path("url")).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!stderr(&output).contains("this host only"), "{}", stderr(&output));
    };
    let made = || ["by-file.db", "by-variable.db", "by-option.db"].map(|f| stage.path(f).exists());
    run(None, None);
    assert_eq!(made(), [true, false, false]);
    run(None, Some("sqlite:by-variable.db"));
    assert_eq!(made(), [true, true, false]);
    run(Some("sqlite:by-option.db"), Some("sqlite:wrong.db"));
    assert_eq!(made(), [true, true, true]);
    assert!(!stage.path("wrong.db").exists() && !stage.state_folder().exists());
}

#[test]
fn a_variable_that_is_empty_or_names_no_file_is_refused() {
    let stage = Stage::new();
    for (name, value) in [
        ("LOCKKIT_URL", ""),
        ("LOCKKIT_URL", " "),
        ("LOCKKIT_URL_FILE", ""),
        ("LOCKKIT_URL_FILE", "nowhere"),
    ] {
        let output = stage.lockkit(&["ls"]).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(64));
        assert!(stderr(&output).contains(name), "{}", stderr(&output));
    }
    assert!(!stage.state_folder().exists());
}

#[test]
fn a_place_that_cannot_be_made_ends_with_69() {
    let stage = Stage::new();
    fs::write(stage.path("state"), "a file where a folder should be").unwrap();
    let output = stage.run(&["run", "--local", "a", "true"]);
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    let url = format!("sqlite:{}/x.db", stage.path("state").display());
    let output = stage.run(&["run", "--url", &url, "a", "true"]);
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
}

#[test]
fn stdin_and_stdout_are_the_commands() {
    let stage = Stage::new();
    fs::write(stage.path("in"), "through\n").unwrap();
    let stdin = fs::File::open(stage.path("in")).unwrap();
    let output = stage.lockkit(&["run", "--local", "a", "cat"]).stdin(stdin).output().unwrap();
    assert_eq!(stdout(&output), "through\n");
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_command_inherits_only_what_it_would_have_without_lockkit() {
    let stage = Stage::new();
    let script = "ls /proc/self/fd | wc -l";
    let without = stage.program("sh").args(["-c", script]).stdin(Stdio::null()).output().unwrap();
    let with = stage.run(&["run", "--local", "a", "sh", "-c", script]);
    assert_eq!(stdout(&with), stdout(&without));
}

#[test]
fn a_reader_that_went_away_is_no_reason_to_panic() {
    let stage = Stage::new();
    for verb in [&["man"][..], &["completions", "bash"], &["--help"], &["ls", "--json", "--local"]]
    {
        let mut child =
            stage.lockkit(verb).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(stderr(&output), "", "{verb:?}");
        assert_eq!(output.status.code(), Some(0), "{verb:?}");
    }
}

#[test]
fn manual_and_completions_come_from_the_command_itself() {
    let stage = Stage::new();
    let page = stdout(&stage.run(&["man"]));
    for word in [".TH lockkit 1", "lockkit\\-acquire(1)"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    let page = stdout(&stage.run(&["man", "run"]));
    for word in [".TH lockkit-run 1", "kill\\-after", "busy\\-exit\\-code", "Examples"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&stage.run(&["completions", shell])).contains("kill-after"));
    }
    assert!(!stage.state_folder().exists());
}

#[tokio::test]
async fn a_failed_tls_connection_says_what_to_do() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let (open, closed) = (
        server.addr(),
        TestCertificates::begin(server.addr(), Clients::WithCertificate).await.unwrap(),
    );
    let (authority, stranger) = (closed.authority(), closed.stranger());
    let tls = closed.addr();
    let (cert, key) = closed.client();
    let [authority, stranger, cert, key] =
        [authority, stranger, cert, key].map(|p| p.display().to_string());
    fs::write(stage.path("text"), "no certificate").unwrap();
    let identity = format!("cert={cert}&key={key}");
    let said = |url: &str| {
        let ran = stage.run(&["run", "-n", "--url", url, "a", "true"]);
        (code_of(&ran), stderr(&ran))
    };
    let good = format!("rediss://{tls}?ca={authority}&{identity}");
    assert_eq!(said(&good).0, 0, "{}", said(&good).1);
    for (url, code, advice) in [
        (format!("rediss://{tls}?{identity}"), 69, "add ?ca=FILE"),
        (format!("rediss://{tls}?ca={stranger}&{identity}"), 69, "another authority signed"),
        (format!("rediss://{tls}?ca={authority}"), 69, "cert=FILE and key=FILE"),
        (format!("rediss://{tls}?ca={key}"), 64, "it has a private key"),
        (format!("rediss://{tls}?ca={}", stage.path("text").display()), 64, "no certificate"),
        (format!("redis://{tls}"), 69, "use rediss://"),
        (format!("rediss://{open}?ca={authority}"), 69, "use redis://"),
        (format!("http://{tls}"), 69, "use https://"),
        (format!("https://{open}?ca={authority}"), 69, "use http://"),
    ] {
        let (ended, said) = said(&url);
        assert_eq!(ended, code, "{url}: {said}");
        assert!(said.contains(advice), "{url}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
