//! What people who know other commands expect of this one.

use std::fs;

use crate::stage::{Stage, code, stderr, stdout};

#[test]
fn a_text_for_the_shell_runs_with_c() {
    let stage = Stage::new();
    let ran = stage.run(&["run", "--local", "a", "-c", "echo $LOCKKIT_NAME | tr a b; exit 3"]);
    assert_eq!((code(&ran), &*stdout(&ran)), (3, "b\n"), "{}", stderr(&ran));
    let script = "echo led >did; kill -TERM $PPID; sleep 1000";
    let led = stage.run(&["elect", "--local", "e", "-c", script]);
    assert_eq!(fs::read_to_string(stage.path("did")).unwrap(), "led\n", "{}", stderr(&led));
}

#[test]
fn the_backend_may_stand_before_the_verb() {
    let stage = Stage::new();
    let put = stage.run(&["--url", "sqlite:a.db", "--namespace", "p", "put", "r", "x"]);
    assert_eq!(code(&put), 0, "{}", stderr(&put));
    let seen = stage.run(&["get", "--url", "sqlite:a.db", "--namespace", "p", "r"]);
    assert_eq!(stdout(&seen), "x");
    assert_eq!(code(&stage.run(&["--local", "ls", "--url", "sqlite:a.db"])), 64);
    assert_eq!(code(&stage.run(&["--local", "run", "a", "true"])), 0);
}

#[test]
fn durations_may_have_several_units() {
    let stage = Stage::new();
    assert_eq!(code(&stage.run(&["acquire", "--local", "--ttl", "1h30m", "a"])), 0);
    assert_eq!(stage.state("a")["holders"][0]["ttl_ms"], 5_400_000);
}

#[test]
fn the_note_is_the_user_and_the_command_line_without_secrets() {
    let stage = Stage::new();
    let note_of = |options: &[&str]| {
        let script = "\"$LOCKKIT\" show --json --local a; true";
        let line = ["a", "sh", "-c", script, "--password", "hunter2"];
        let mut run = stage.lockkit(&[&["run", "--local"], options, &line].concat());
        let shown = run.env("USER", "ada").output().unwrap();
        assert_eq!(code(&shown), 0, "{}", stderr(&shown));
        let state: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        state["holders"][0]["note"].clone()
    };
    let note = note_of(&[]);
    let note = note.as_str().unwrap();
    assert!(note.starts_with("ada: sh -c ") && note.ends_with("--password ***"), "{note}");
    assert_eq!(note_of(&["--note", "why"]), "why");
    assert!(note_of(&["--note", ""]).is_null());
}

#[test]
fn holders_are_shown_with_user_host_command_and_age() {
    let stage = Stage::new();
    let inside = "\"$LOCKKIT\" ls --local; \"$LOCKKIT\" show --local a; true";
    let line = ["run", "--local", "--note", "why", "a", "sh", "-c", inside];
    let ran = stage.lockkit(&line).env("USER", "ada").output().unwrap();
    let shown = stdout(&ran);
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    assert_eq!(shown.matches("ada:sh[").count(), 2, "{shown}");
    assert_eq!(shown.matches(&format!("]@{host}")).count(), 2, "{shown}");
    assert!(shown.contains(" ms") && shown.contains("why"), "{shown}");
    let mut unnamed = stage.lockkit(&["run", "--local", "a", "sh", "-c", inside]);
    let shown = stdout(&unnamed.env_remove("USER").env_remove("LOGNAME").output().unwrap());
    let user = format!("uid{}:sh[", rustix::process::getuid());
    assert!(shown.contains(&user), "{shown}");
}

#[test]
fn an_unreachable_backend_is_named_with_what_was_being_done_and_without_its_password() {
    let stage = Stage::new();
    // Nobody listens on port 1.
    let places = [
        "redis://u:***@127.0.0.1:1",
        "redis+cluster://u:***@127.0.0.1:1",
        "redis+sentinel://u:***@127.0.0.1:1/m",
        "postgres://u:***@127.0.0.1:1/x",
        "mysql://u:***@127.0.0.1:1/x",
        "zk://u:***@127.0.0.1:1/x",
        "mirror:redis://u:***@127.0.0.1:1,postgres://u:***@127.0.0.1:1/x",
        "etcd://u:***@127.0.0.1:1",
    ];
    for place in places {
        let ran = stage.run(&["run", "-n", "--url", &place.replace("***", "hunter2"), "a", "true"]);
        let said = stderr(&ran);
        assert_eq!(code(&ran), 69, "{said}");
        assert!(said.contains(&format!("while connecting to {place}: ")), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn the_namespace_may_come_from_the_environment() {
    let stage = Stage::new();
    let put = |options: &[&str], value: &str| {
        let mut put = stage.lockkit(&[&["put"], options, &["r", value]].concat());
        let put = put.env("LOCKKIT_NAMESPACE", "env").output().unwrap();
        assert_eq!(code(&put), 0, "{}", stderr(&put));
    };
    put(&["--url", "sqlite:a.db"], "1");
    put(&["--url", "sqlite:a.db", "--namespace", "option"], "2");
    put(&["--url", "sqlite:a.db?namespace=url"], "3");
    for (namespace, value) in [("env", "1"), ("option", "2"), ("url", "3")] {
        let seen = stage.run(&["get", "--url", "sqlite:a.db", "--namespace", namespace, "r"]);
        assert_eq!(stdout(&seen), value, "{namespace}");
    }
}

#[test]
fn ls_says_when_there_is_nothing() {
    let stage = Stage::new();
    let listed = stage.run(&["ls", "--local", "--namespace", "shop"]);
    assert_eq!((code(&listed), &*stdout(&listed)), (0, ""));
    let said = stderr(&listed);
    assert!(said.contains("locks.db") && said.contains("\"shop\""), "{said}");
    assert_eq!(stdout(&stage.run(&["ls", "--local", "--json"])), "[]\n");
}

#[test]
fn a_register_can_be_deleted() {
    let stage = Stage::new();
    assert_eq!(code(&stage.run(&["delete", "--local", "r"])), 1, "there is none");
    let version = stdout(&stage.run(&["put", "--local", "r", "x"]));
    let wrong = stage.run(&["delete", "--local", "--if-version", "9999", "r"]);
    assert_eq!(code(&wrong), 1, "{}", stderr(&wrong));
    let right = stage.run(&["delete", "--local", "--if-version", version.trim(), "r"]);
    assert_eq!(code(&right), 0, "{}", stderr(&right));
    assert_eq!(code(&stage.run(&["get", "--local", "r"])), 1);
}

#[test]
fn a_job_that_was_done_once_can_be_forgotten() {
    let stage = Stage::new();
    let job = || code(&stage.run(&["run", "--local", "--once", "job", "sh", "-c", "echo >>ran"]));
    assert_eq!((job(), job()), (0, 0));
    let forgotten = stage.run(&["run", "--local", "--once", "--forget", "job"]);
    assert_eq!(code(&forgotten), 0, "{}", stderr(&forgotten));
    assert_eq!(job(), 0);
    assert_eq!(fs::read_to_string(stage.path("ran")).unwrap(), "\n\n");
}

#[test]
fn each_subcommand_has_an_example_and_a_page() {
    let stage = Stage::new();
    fs::create_dir(stage.path("pages")).unwrap();
    assert_eq!(code(&stage.run(&["man", "--dir", "pages"])), 0);
    let mut verbs = 0;
    for entry in fs::read_dir(stage.path("pages")).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let Some(verb) = file.strip_prefix("lockkit-") else {
            assert_eq!(file, "lockkit.1");
            continue;
        };
        let verb = verb.strip_suffix(".1").unwrap();
        let page = fs::read_to_string(stage.path("pages").join(&file)).unwrap();
        assert!(page.contains(&format!(".TH lockkit-{verb} 1")), "{file}");
        for help in ["-h", "--help"] {
            let help = stdout(&stage.run(&[verb, help]));
            assert!(help.contains("Example") && help.contains("lockkit "), "{verb}: {help}");
        }
        verbs += 1;
    }
    let of_features = i32::from(cfg!(feature = "compare")) + 2 * i32::from(cfg!(feature = "lab"));
    assert_eq!(verbs, 23 + of_features);
}

#[test]
fn break_says_what_it_did() {
    let stage = Stage::new();
    let held = stage.run(&["acquire", "--local", "--note", "why", "--ttl", "1000", "a"]);
    assert!(held.status.success());
    let token = stage.wait_for_holder("a").to_string();
    let broken = stage.run(&["break", "--local", "a", "--token", &token]);
    let said = stderr(&broken);
    assert!(said.contains(&format!("broke the lock \"a\": token {token}")), "{said}");
    assert!(said.contains("\"why\"") && said.contains("when its lease ends"), "{said}");
}

#[test]
fn colours_come_where_they_are_wanted() {
    let stage = Stage::new();
    assert!(stage.run(&["acquire", "--local", "a"]).status.success());
    let list = |color: &str| stdout(&stage.run(&["ls", "--local", "--color", color]));
    assert!(list("always").contains("\u{1b}[1mNAME"));
    assert!(!list("auto").contains('\u{1b}') && !list("never").contains('\u{1b}'));
}

#[cfg(not(feature = "zookeeper-tls"))]
#[test]
fn a_backend_that_is_not_compiled_in_comes_with_the_command_that_adds_it() {
    let stage = Stage::new();
    for url in ["zks://db:2281", "quorum:redis://a,zks://b:1,redis://c"] {
        let ran = stage.run(&["run", "--url", url, "a", "true"]);
        assert_eq!(code(&ran), 64, "{}", stderr(&ran));
        let adds = "cargo install --path lockkit-cli --features zookeeper-tls";
        assert!(stderr(&ran).contains(adds), "{}", stderr(&ran));
    }
}

#[test]
fn help_is_a_subcommand_and_lists_the_others_in_groups() {
    let stage = Stage::new();
    let help = stage.run(&["help"]);
    assert_eq!((code(&help), stdout(&help)), (0, stdout(&stage.run(&["--help"]))));
    let help = stdout(&help);
    let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text:?} is not in {help}"));
    let order = ["Hold a lock", "  run ", "  hold ", "Look at", "  ls ", "Options:", "Examples:"];
    assert!(order.map(at).is_sorted(), "{help}");
    for verb in ["elect", "latch", "put", "acquire", "doctor", "schema", "completions", "help"] {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb} is not in {help}");
    }
    let run = stage.run(&["help", "run"]);
    assert_eq!((code(&run), stdout(&run)), (0, stdout(&stage.run(&["run", "--help"]))));
    let nothing = stage.run(&[]);
    assert_eq!(code(&nothing), 64);
    let said = stderr(&nothing);
    assert!(
        said.contains("lockkit run NAME -- COMMAND") && said.contains("lockkit help"),
        "{said}"
    );
    assert!(said.len() < 200, "one sentence: {said}");
    let unknown = stderr(&stage.run(&["runn"]));
    assert!(unknown.contains("'run'"), "a similar subcommand is named: {unknown}");
}

#[test]
fn the_short_help_of_run_has_its_own_options_first_and_says_durations_and_exit_codes() {
    let stage = Stage::new();
    let help = stdout(&stage.run(&["run", "-h"]));
    let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text:?} is not in {help}"));
    for own in ["--ttl", "--wait", "--leftovers", "--contain"] {
        for global in ["--verbose", "--quiet", "--color", "--url"] {
            assert!(at(own) < at(global), "{own} stands behind {global}: {help}");
        }
    }
    for said in ["250ms", "Exit codes", "74", "75"] {
        at(said);
    }
    let long = stdout(&stage.run(&["run", "--help"]));
    for internal in ["LOCKKIT_HELD", "lk-supervisor"] {
        assert!(!long.contains(internal), "{internal} in {long}");
        let page = stdout(&stage.run(&["man", "run"])).replace('\\', "");
        assert!(page.contains(internal), "{internal} is not on the manual page");
    }
}

#[test]
fn the_options_of_flock_are_answered_with_ours() {
    let stage = Stage::new();
    for (option, ours) in [
        ("-x", "exclusive unless --shared"),
        ("-e", "exclusive unless --shared"),
        ("--exclusive", "exclusive unless --shared"),
        ("--nonblock", "--try"),
        ("--nb", "--try"),
        ("--timeout", "--wait"),
        ("--conflict-exit-code", "--busy-exit-code"),
        ("-o", "--leftovers=leave"),
        ("--close", "--leftovers=leave"),
        ("-F", "--leftovers=leave"),
        ("--no-fork", "--leftovers=leave"),
        ("-u", "lockkit release"),
        ("--unlock", "lockkit release"),
    ] {
        let ran = stage.run(&["run", "--local", option, "a", "touch", "ran"]);
        let said = stderr(&ran);
        assert_eq!(code(&ran), 64, "{option}: {said}");
        assert!(said.contains("flock") && said.contains(ours), "{option}: {said}");
    }
    assert!(!stage.path("ran").exists());
}

/// What stands between backticks in a cell of a table, as words; of options only.
fn options(cell: &str) -> Vec<Vec<&str>> {
    let quoted = cell.split('`').skip(1).step_by(2).filter(|text| text.starts_with('-'));
    quoted.map(|text| text.split(' ').collect()).collect()
}

#[test]
fn the_guides_table_of_flocks_options_is_what_the_command_does() {
    let stage = Stage::new();
    let guide = include_str!("../../../docs/coming-from.md");
    let (_, table) = guide.split_once("| flock | lockkit |\n| --- | --- |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let mut same = 0;
    for row in table.lines() {
        let (theirs, ours) = row.trim_matches('|').split_once(" | ").unwrap();
        for option in options(theirs) {
            let line = match option[0] {
                "-c" => vec!["run", "--local", "a", "-c", "true"],
                _ => [&["run", "--local"], &option[..], &["a", "true"]].concat(),
            };
            let ran = stage.run(&line);
            let said = stderr(&ran);
            let mut ours = options(ours).into_iter().map(|option| option[0]);
            if ours.clone().any(|ours| ours == option[0]) {
                assert_eq!(code(&ran), 0, "{line:?}: {said}");
                same += 1;
                continue;
            }
            assert_eq!(code(&ran), 64, "{line:?}: {said}");
            let told = ours.any(|ours| said.contains(ours)) || said.contains("leave it out");
            assert!(said.contains("flock") && told, "{line:?}: {said}");
        }
    }
    assert_eq!(same, 6, "-n, -w, -E, -s, --shared and -c mean the same: {table}");
}
